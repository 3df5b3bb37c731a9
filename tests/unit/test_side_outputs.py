"""Side outputs: what an operator declares, what its code may emit, and how the rows travel with its results."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, StringType, StructField, StructType

import penstock as ps
from builders.operator_harness import OperatorHarness
from builders.sink_double import RefusingSink
from penstock.errors import BadRecordError, ConfigError, UserCodeError
from penstock.graph import BadRecords as BadRecordsNode
from penstock.graph import Graph, Output, Side, Source, Transform
from penstock.keyed_streams import KeyedStream
from penstock.operators import calls
from penstock.operators.bad_records import LETTER, BadRows
from penstock.operators.outputs import BAD, RESULTS, SideRows, declared_sides, side_tags, tagged, untagged
from penstock.operators.process import run_keyed as run_process_module
from penstock.operators.process import run_tolerant
from penstock.operators.process.columns import SideColumns, run_batch_process
from penstock.operators.process.failed_call import failed_call
from penstock.operators.process.operator import ProcessOperator
from penstock.operators.process.run_keyed import run_process
from penstock.operators.process.run_tolerant import run_process_tolerantly
from penstock.operators.process.user_code import Context
from penstock.run.task_failures import tolerates
from penstock.streams import Stream

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Alerting(ps.KeyedProcess):
    """Counts, and emits each row above a limit as an alert."""

    n = ps.ValueState("long", default=0)
    alerts = ps.SideOutput("k string, v long")
    quiet = ps.SideOutput("v long")

    def process(self, key, rows, ctx):
        for row in rows:
            self.n.value += 1
            if row.v > 10:
                ctx.emit("alerts", (key, row.v))
            else:
                ctx.emit("quiet", {"v": row.v})
            if row.v < 0:
                raise ValueError(f"{row.v} is negative")
        yield key, self.n.value


class SideHarness(OperatorHarness):
    """Runs an operator with side outputs, of either kind, tolerantly or not."""

    def __init__(self, root, *, read=("alerts",), tolerant=False):
        super().__init__(root, ["k"], OUTPUT)
        self.read = read
        self.tolerant = tolerant
        self.bad = BadRows("op", 3, kept=True)
        self.sides: Any = None

    def run(self, operator, table):
        def run(operator, table, state, *, context, **named):
            is_batch = isinstance(operator, ps.BatchProcess)
            self.sides = (SideColumns if is_batch else SideRows)("op", declared_sides(operator), self.read)
            context = Context("op", 3, 0, 1, _sides=self.sides)
            if is_batch:
                results = run_batch_process(operator, table, state, context=context, **named)
            elif self.tolerant:
                more: dict[str, Any] = {"bad": self.bad, "tolerates": tolerates}
                results = run_process_tolerantly(
                    operator, table, state, context=context, sides=self.sides, **more, **named
                )
            else:
                results = run_process(operator, table, state, context=context, sides=self.sides, **named)
            self.sides.close()
            return results

        return sorted(map(str, self._run(operator, table, run).to_pylist()))

    def side(self, name="alerts"):
        return sorted(tuple(row.values()) for batch in self.sides.batches(name) for row in batch.to_pylist())


def table(*rows):
    return pa.table({"k": pa.array([k for k, _ in rows], pa.string()), "v": [v for _, v in rows]})


# ── declaring ──────────────────────────────────────────────────────────────────────────────────


def test_a_schema_is_written_as_everywhere():
    """As DDL, as Spark's type and as a list: three ways to say the same."""
    ddl = "card string, amount decimal(12,2)"
    struct = StructType([StructField("card", StringType()), StructField("amount", DecimalType(12, 2))])
    columns: list[Any] = ["card string", ("amount", "decimal(12,2)")]
    schemas = [ps.SideOutput(one).schema for one in (ddl, struct, columns)]
    assert schemas[0] == schemas[1] == schemas[2]
    assert schemas[0] == pa.schema([("card", pa.string()), ("amount", pa.decimal128(12, 2))])


@pytest.mark.parametrize("schema", ["", "   ", [], "card strnig", "a long, A long", 5, StringType(), None])
def test_what_is_no_schema_is_refused(schema):
    """Where the class is written, and not when a row comes."""
    with pytest.raises(ConfigError):
        ps.SideOutput(schema)


def test_side_outputs_are_no_state_and_are_inherited():
    """They are found in the class and those before it, by name; they survive the way to a task."""

    class More(Alerting):
        another = ps.SideOutput("a int")

    assert list(declared_sides(More())) == ["alerts", "another", "quiet"]
    assert list(side_tags(declared_sides(More())).values()) == [
        "__penstock_side_0",
        "__penstock_side_1",
        "__penstock_side_2",
    ]
    again = pickle.loads(pickle.dumps(Alerting()))
    assert declared_sides(again)["alerts"].schema == Alerting.alerts.schema


def test_a_side_output_cannot_be_overwritten_by_mistake():
    """Assigning to its name is refused, with what to do instead."""
    with pytest.raises(AttributeError, match="alerts is a side output: emit rows to it"):
        Alerting().alerts = []  # type: ignore[assignment]


# ── a job ──────────────────────────────────────────────────────────────────────────────────────


SOURCE: Any = Source("clicks", None, None)  # type: ignore[arg-type]
SINK = RefusingSink(lambda rows: rows, "write")


class FakeJob:
    def __init__(self):
        self.graph = Graph()


def processed(operator=None):
    job: Any = FakeJob()
    keyed = KeyedStream(job.graph, SOURCE, ("k",))
    return job, keyed.process(operator or Alerting(), schema="k string, n long", uid="count")


def test_names_are_checked_where_they_are_asked_for():
    """A name that the class does not declare is refused with those that it does, and with the one that is meant."""
    _, stream = processed()
    with pytest.raises(
        ConfigError,
        match="'count' has no side output 'alert'; there are: alerts, quiet; did you mean 'alerts'",
    ):
        stream.side("alert")
    with pytest.raises(ConfigError, match="there are: alerts, quiet; give the name, as text"):
        stream.side(Alerting.alerts)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'count' has no side output 'n'; there are: alerts, quiet$"):
        stream.side("n")

    class Plain(ps.KeyedProcess):
        def process(self, key, rows, ctx):
            return None

    with pytest.raises(ConfigError, match="Plain declares none; write one into the class"):
        processed(Plain())[1].side("alerts")


def test_only_own_code_has_side_outputs():
    """A source, a transform and a side output itself have none."""
    job, stream = processed()
    for other in (Stream(job.graph, SOURCE), stream.transform(lambda df: df), stream.side("alerts")):
        with pytest.raises(ConfigError, match=r"side\('alerts'\): ask it of what process returned"):
            other.side("alerts")


def test_a_side_output_in_place_of_a_method_is_refused():
    """Otherwise Python would take it for the method."""

    class Hidden(ps.KeyedProcess):
        process = ps.SideOutput("a int")  # type: ignore[assignment]

    with pytest.raises(
        ConfigError, match="the side output 'process' has the name of a method of KeyedProcess"
    ):
        processed(Hidden())


def test_only_what_goes_somewhere_is_read():
    """Asking for a side output is not yet reading it; an operator behind it is in front of nothing but still reads it."""
    job, stream = processed()
    graph: Graph = job.graph
    (node,) = graph.operators
    quiet = stream.side("quiet")
    assert graph.sides_read(node) == ()
    stream.side("alerts").transform(lambda df: df).union(stream.side("alerts")).write_to(SINK, uid="out")
    assert graph.sides_read(node) == ("alerts",)
    quiet.key_by("v").process(Alerting(), schema="k string, n long", uid="behind")
    assert graph.sides_read(node) == ("alerts", "quiet")
    assert graph.upstream_operators() == {"count": (), "behind": ("count",)}
    assert graph.sides_read(graph.operators[1]) == ()


def test_a_side_output_of_dead_letters_is_no_dead_letter():
    """What own code makes of bad rows are rows like any other, with the setting of the job."""
    made = Graph(on_bad_record=ps.config.OnBadRecord.SKIP)
    letters = BadRecordsNode(Output("out", SOURCE, SINK))
    sorting = ProcessOperator("sort", letters, ("operator",), Alerting(), OUTPUT)
    side = Transform(Side(sorting, "alerts"), lambda frame: frame)
    assert made.policy(Output("sorted", side, SINK)) is ps.config.OnBadRecord.SKIP
    assert made.policy(Output("all", letters, SINK)) is ps.config.OnBadRecord.FAIL


# ── emitting ───────────────────────────────────────────────────────────────────────────────────


def test_emitted_rows_are_apart_from_results(tmp_path):
    """Tuples and dictionaries go to the side output that is named; one that nobody reads is dropped."""
    harness = SideHarness(tmp_path)
    assert harness.run(Alerting(), table(("a", 11), ("b", 1), ("a", 12))) == [
        "{'k': 'a', 'n': 2}",
        "{'k': 'b', 'n': 1}",
    ]
    assert harness.side() == [("a", 11), ("a", 12)]
    with pytest.raises(KeyError):
        harness.side("quiet")
    harness = SideHarness(tmp_path, read=("alerts", "quiet"))
    harness.run(Alerting(), table(("a", 11), ("b", 1)))
    assert (harness.side(), harness.side("quiet")) == ([("a", 11)], [(1,)])


class Emitting(ps.KeyedProcess):
    """Emits whatever it is told to, for each row."""

    n = ps.ValueState("int", default=0)
    alerts = ps.SideOutput("k string, v long")

    def __init__(self, row: Any, name: Any = "alerts"):
        self.row = row
        self.name = name

    def process(self, key, rows, ctx):
        self.n.value += 1
        ctx.emit(self.name, self.row if key == "b" else (key, 1))
        return [(key, 1)]


WRONG = [
    (("b", "x"), "process() emitted 'x' for 'v', which is not of type long"),
    (("b", 1.5), "process() emitted 1.5 for 'v', which is not of type long"),
    (("b",), "process() emitted ('b',) with 1 value, its schema has 2 columns (k, v)"),
    ({"k": "b", "w": 1}, "process() emitted unknown columns ['w']: {'k': 'b', 'w': 1}"),
    (5, "process() emitted 5; give a tuple with one value per column (k, v) or a dictionary"),
]


@pytest.mark.parametrize("read", [("alerts",), ()], ids=["read", "not read"])
@pytest.mark.parametrize(("row", "text"), WRONG)
def test_a_row_that_does_not_fit_is_named(tmp_path, row, text, read):
    """As a result would be: the error has the operator, the side output and the value, whether anybody reads it or not."""
    harness = SideHarness(tmp_path, read=read)
    with pytest.raises(BadRecordError) as refused:
        harness.run(Emitting(row), table(("a", 1), ("b", 1)))
    assert str(refused.value).startswith(f"operator op, side output 'alerts': {text}")


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_name_that_there_is_not_ends_the_run(tmp_path, tolerant):
    """No other row would do better, so that it is no bad row, and is not tried again; it says which names there are."""
    harness = SideHarness(tmp_path, tolerant=tolerant)
    with pytest.raises(
        UserCodeError, match=r"operator op: emit\('alert', ...\): .*there are: alerts; did you mean 'alerts'"
    ):
        harness.run(Emitting(("b", 1), "alert"), table(("a", 1), ("b", 1)))
    assert harness.bad.count == 0
    with pytest.raises(UserCodeError, match="there are: alerts; give the name, as text"):
        harness.run(Emitting(("b", 1), Emitting.alerts), table(("a", 1), ("b", 1)))


def test_an_operator_without_side_outputs_has_none_to_emit_to():
    """The context of such a call says so, and shows no more than it did."""
    context = Context("op", 3, 0, 1)
    assert repr(context) == "Context(operator='op', checkpoint=3, subtask=0, parallelism=1)"
    assert context == Context("op", 3, 0, 1, _sides=SideRows("op", {}))
    assert [one.name for one in fields(context)][:4] == ["operator", "checkpoint", "subtask", "parallelism"]
    with pytest.raises(
        UserCodeError, match=r"operator op: emit\('alerts', ...\): .*there are: none$"
    ) as missing:
        context.emit("alerts", ("a", 1))
    assert failed_call(missing.value).is_wrong_name


def test_a_misspelled_emit_is_found():
    """The fields of the context are listed without what is Penstock's own, and `emit` is known."""
    with pytest.raises(AttributeError) as missing:
        Context("op", 3, 0, 1).emitt("alerts", 1)  # type: ignore[attr-defined]
    assert failed_call(missing.value).names == (
        "fields of the context: operator, checkpoint, subtask, parallelism; did you mean 'emit'?"
    )


@pytest.mark.parametrize("tolerant", [False, True])
def test_nothing_is_emitted_after_the_calls(tmp_path, tolerant):
    """Whoever keeps the context, in a thread or a global, is refused when the call is over."""
    kept: list[Callable[..., None]] = []

    class Keeping(Alerting):
        def process(self, key, rows, ctx):
            kept.append(ctx.emit)

    SideHarness(tmp_path, tolerant=tolerant).run(Keeping(), table(("a", 11)))
    with pytest.raises(
        UserCodeError, match=r"emit\('alerts', \('a', 1\)\) after the call of process\(\) had ended"
    ):
        kept[0]("alerts", ("a", 1))


@pytest.mark.parametrize("tolerant", [False, True])
def test_many_rows_are_encoded_in_parts(tmp_path, monkeypatch, tolerant):
    """However many are emitted, also by one call and without any result, all of them are there."""
    for module in (calls, run_process_module, run_tolerant):
        monkeypatch.setattr(module, "OUTPUT_ROWS", 4)

    class Flood(Alerting):
        def process(self, key, rows, ctx):
            for at in range(rows[0].v):
                ctx.emit("alerts", (key, at))

    harness = SideHarness(tmp_path, tolerant=tolerant)
    wanted = {"a": 1, "b": 4, "c": 11, "d": 3, "e": 0}
    assert harness.run(Flood(), table(*wanted.items())) == []
    assert harness.side() == [(key, at) for key, number in wanted.items() for at in range(number)]


# ── a call that fails ──────────────────────────────────────────────────────────────────────────


def test_a_call_that_fails_emits_nothing(tmp_path):
    """When it raises after it emitted, the row at fault is bad and nothing of it is anywhere; the other rows go on."""
    harness = SideHarness(tmp_path, read=("alerts", "quiet"), tolerant=True)
    harness.run(Alerting(), table(("a", 11), ("b", 12), ("b", 1), ("b", -1), ("c", 2)))
    assert harness.side() == [("a", 11), ("b", 12)]
    assert harness.side("quiet") == [(1,), (2,)]
    assert harness.state() == {("a",): (1,), ("b",): (2,), ("c",): (1,)}
    assert harness.bad.count == 1


@pytest.mark.parametrize(("row", "text"), WRONG)
def test_a_row_that_does_not_fit_undoes_its_call(tmp_path, row, text):
    """Where bad rows are left out, so are the results and the state of the key that emitted it; the reason says what it was."""
    harness = SideHarness(tmp_path, tolerant=True)
    assert harness.run(Emitting(row), table(("a", 1), ("b", 1), ("c", 1))) == [
        "{'k': 'a', 'n': 1}",
        "{'k': 'c', 'n': 1}",
    ]
    assert harness.side() == [("a", 1), ("c", 1)]
    assert harness.state() == {("a",): (1,), ("c",): (1,)}
    (letters,) = harness.bad.letters()
    assert text in letters["reason"][0].as_py()


@pytest.mark.parametrize("wrong", ["result", "state"])
def test_what_a_bad_call_emitted_goes_with_it(tmp_path, wrong):
    """A result or a state that does not fit is found after the call; what the call emitted is taken back then."""

    class Wrong(Emitting):
        def process(self, key, rows, ctx):
            super().process(key, rows, ctx)
            if key == "b" and wrong == "state":
                self.n.value = 2**40
            return [(key, "text" if key == "b" and wrong == "result" else 1)]

    harness = SideHarness(tmp_path, tolerant=True)
    harness.run(Wrong(("b", 1)), table(("a", 1), ("b", 1), ("c", 1)))
    assert harness.side() == [("a", 1), ("c", 1)]
    assert harness.bad.count == 1


# ── in columns ─────────────────────────────────────────────────────────────────────────────────


class InColumns(ps.BatchProcess):
    alerts = ps.SideOutput("k string, v long")
    quiet = ps.SideOutput("v long")

    def __init__(self, emit: Callable[[Any, Any], Any]):
        self.emit = emit

    def process_batch(self, keys, batch, state):
        state.context.emit("alerts", self.emit(batch["k"], batch["v"]))
        state.context.emit("quiet", None)
        return {"k": keys["k"], "n": np.ones(len(keys), dtype=np.int64)}


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "table": lambda k, v: pa.table({"v": v, "k": k}),
    "batch": lambda k, v: pa.RecordBatch.from_arrays([k, v], names=["k", "v"]),
    "dictionary": lambda k, v: {"k": k, "v": v.to_numpy()},
    "pandas": lambda k, v: pd.DataFrame({"k": k.to_pandas(), "v": v.to_pandas()}),
    "parts": lambda k, v: ({"k": k.slice(at, 1), "v": [v[at].as_py()]} for at in range(len(k))),
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_emitted_in_every_form_of_results(tmp_path, form):
    """Whatever a result may be, in any order of columns."""
    harness = SideHarness(tmp_path)
    assert len(harness.run(InColumns(FORMS[form]), table(("a", 11), ("b", 1), ("a", 12)))) == 2
    assert harness.side() == [("a", 11), ("a", 12), ("b", 1)]


@pytest.mark.parametrize(
    ("emit", "text"),
    [
        (lambda k, v: {"k": k}, "a result of process_batch() lacks v; its schema has k, v"),
        (
            lambda k, v: {"k": k, "v": k},
            "process_batch() set the column 'v' to values of type string, such as 'a'",
        ),
        (lambda k, v: 5, "process_batch() gave 5; give an Arrow table"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, emit, text):
    """With the operator and the side output, whether anybody reads it or not."""
    with pytest.raises(BadRecordError) as refused:
        SideHarness(tmp_path, read=()).run(InColumns(emit), table(("a", 11)))
    assert str(refused.value).startswith(f"operator op, side output 'alerts': {text}")


# ── on the way ─────────────────────────────────────────────────────────────────────────────────


def test_rows_of_all_outputs_travel_as_one_and_come_apart():
    """Results, dead letters and side outputs, also a row of which every value is null, are what they were; in one schema."""
    wide = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("amount", pa.decimal128(12, 2))])
    tags = {BAD: LETTER, "__penstock_side_0": wide}
    bad = BadRows("op", 3, kept=True)
    bad.add(table(("a", 1)), ["why"])
    given = {
        RESULTS: [pa.RecordBatch.from_pylist([{"k": None, "n": None}, {"k": "b", "n": 1}], OUTPUT)],
        BAD: bad.letters(),
        "__penstock_side_0": [
            pa.RecordBatch.from_pylist(
                [{"at": datetime(2026, 1, 1, tzinfo=UTC), "amount": Decimal("1.50")}, {}], wide
            )
        ],
    }
    batches = tagged(given, OUTPUT, tags)
    assert len({str(batch.schema) for batch in batches}) == 1
    together = pa.Table.from_batches(batches).combine_chunks().to_batches()
    (one,) = together
    apart = untagged(one, tags)
    assert {tag: rows.to_pylist() for tag, rows in apart.items()} == {
        tag: [row for batch in rows for row in batch.to_pylist()] for tag, rows in given.items()
    }
    assert tagged({RESULTS: given[RESULTS]}, OUTPUT, {}) == given[RESULTS]
    assert tagged({}, OUTPUT, tags) == []
