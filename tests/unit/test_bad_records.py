"""Rows that cannot be taken: a key whose call fails is undone as a whole, rows that a sink refuses are found, and all others go on."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from builders.operator_harness import OperatorHarness
from builders.sink_double import RefusingSink
from penstock.config import OnBadRecord
from penstock.errors import BadRecordError, ConfigError, InternalError, UnavailableError
from penstock.graph import BadRecords as BadRecordsNode
from penstock.graph import Graph, Output, Source, Transform
from penstock.ids import CheckpointId
from penstock.operators.aggregate.operator import without_null_keys
from penstock.operators.bad_records import LETTER, ROW, ROWS, BadRows
from penstock.operators.grouping import null_keys
from penstock.operators.process.keyed import KeyedProcess
from penstock.operators.process.run_tolerant import run_process_tolerantly
from penstock.operators.state.declarations import ValueState
from penstock.run.acknowledgements import BadRecordCounts
from penstock.run.assignment import BadCount
from penstock.run.sink_writer import TransactionWriter
from penstock.run.task_failures import tolerates
from penstock.sinks.two_phase_commit import TransactionContext

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


class TolerantHarness(OperatorHarness):
    """Runs an operator that may fail for a key."""

    def __init__(self, root):
        super().__init__(root, ["k"], OUTPUT)
        self.bad = BadRows("op", 7, kept=True)

    def process(self, operator, table):
        return self._run(operator, table, self._tolerantly).to_pylist()

    def _tolerantly(self, *given, **named):
        return run_process_tolerantly(*given, **named, bad=self.bad, tolerates=tolerates)

    def letters(self):
        return pa.Table.from_batches(self.bad.letters(), LETTER).to_pylist()


def table(*rows):
    return pa.table({"k": pa.array([k for k, _ in rows], pa.string()), "v": [v for _, v in rows]})


class Adding(KeyedProcess):
    """Changes its state and gives a result before it meets a row that it cannot take."""

    total = ValueState("long", default=0)
    seen = ValueState("array<long>", default=[])

    def process(self, key, rows, ctx):
        for row in rows:
            self.total.value += row.v
            self.seen.value.append(row.v)
            yield key, self.total.value
            if row.v < 0:
                raise ValueError(f"{row.v} is negative")


def test_a_call_that_raises_is_undone(tmp_path):
    """Of a row whose call raises nothing stays: no result, no state, also none that was changed in place; other rows go on."""
    harness = TolerantHarness(tmp_path)
    harness.process(Adding(), table(("a", 1), ("b", 2)))
    assert harness.process(Adding(), table(("a", 10), ("a", -1), ("b", 20), ("c", -5))) == [
        {"k": "a", "n": 11},
        {"k": "b", "n": 22},
    ]
    assert harness.state() == {("a",): ([1, 10], 11), ("b",): ([2, 20], 22)}
    assert harness.process(Adding(), table(("a", 4))) == [{"k": "a", "n": 15}]


def test_the_row_at_fault_is_a_dead_letter(tmp_path):
    """It says which row it was, whole, with operator, key and batch; those that only share its key are good."""
    harness = TolerantHarness(tmp_path)
    harness.process(Adding(), table(("a", 10), ("b", 1), ("a", -1)))
    (letter,) = harness.letters()
    assert harness.bad.count == 1
    assert harness.bad.first_reason == letter["reason"]
    assert json.loads(letter["row"]) == {"k": "a", "v": -1}
    assert letter["reason"].startswith("ValueError: -1 is negative (")
    assert f"{__file__}:" in letter["reason"]
    assert (letter["operator"], letter["key"], letter["batch"]) == ("op", '{"k":"a"}', 7)


def test_a_password_in_the_reason_is_not_kept(tmp_path):
    """A dead letter has dots in place of a password in the text of the exception, as the log has, also where the text is cut."""

    class Connecting(KeyedProcess):
        def process(self, key, rows, ctx):
            filler = "x" * (1_990 if key == "long" else 0)
            raise ValueError(f"{filler} cannot open postgresql://etl:hunter2@db/orders, password='hunter3'")

    harness = TolerantHarness(tmp_path)
    harness.process(Connecting(), table(("a", 1), ("long", 2)))
    reasons = [letter["reason"] for letter in harness.letters()]
    assert len(reasons) == 2
    assert "postgresql://etl:...@db/orders, password='...'" in reasons[0]
    assert not any("hunter" in text for text in [*reasons, harness.bad.first_reason])


@pytest.mark.parametrize("wrong", ["result", "names", "state", "no list"])
def test_values_that_do_not_fit_are_those_of_one_key(tmp_path, wrong):
    """A result that is not of the schema, a state that is not of its type and a return value that is no list undo the key they are of."""

    class Wrong(KeyedProcess):
        n = ValueState("int", default=0)

        def process(self, key, rows, ctx):
            bad = key == "b"
            self.n.value = 2**40 if bad and wrong == "state" else 1
            if bad and wrong == "no list":
                return 5
            if bad and wrong == "names":
                return [{"x": 1, 2: 3}]
            return [(key, "text" if bad and wrong == "result" else 1)] * 3

    harness = TolerantHarness(tmp_path)
    good = [{"k": key, "n": 1} for key in ("a", "c") for _ in range(3)]
    assert sorted(harness.process(Wrong(), table(("a", 1), ("b", 2), ("c", 3))), key=str) == good
    assert harness.state() == {("a",): (1,), ("c",): (1,)}
    (letter,) = harness.letters()
    reasons = {"result": "'text'", "names": "['x', 2]", "state": str(2**40), "no list": "returned 5"}
    assert reasons[wrong] in letter["reason"]


def test_text_that_cannot_be_read_is_bad_in_its_own_key(tmp_path):
    """Bytes that are no UTF-8 harm only the key that they are in or that they are; the letter has them in base64."""

    class Lengths(KeyedProcess):
        def process(self, key, rows, ctx):
            return [(key, len(row.text)) for row in rows]

    def text(*values):
        return pa.array(values, pa.binary()).view(pa.string())

    rows = pa.table({"k": text(b"a", b"\xff", b"c"), "text": text(b"good", b"good", b"\xfe")})

    class Unhashed(TolerantHarness):
        def _sort_keys(self, table):
            return pa.array(np.arange(len(table)))

    harness = Unhashed(tmp_path)
    assert harness.process(Lengths(), rows) == [{"k": "a", "n": 4}]
    by_key = {letter["key"]: letter for letter in harness.letters()}
    assert json.loads(by_key['{"k":{"base64":"/w=="}}']["row"])["text"] == "good"
    assert json.loads(by_key['{"k":"c"}']["row"])["text"] == {"base64": "/g=="}


def test_a_time_zone_that_only_java_knows_is_no_reason_to_fail():
    """Spark takes GMT+8 for the zone of a session, Python does not know it: a dead letter has the moment in UTC."""
    bad = BadRows("op", 7, kept=True)
    moments = pa.array([0, None], pa.timestamp("us", tz="GMT+8"))
    lists = pa.array([[0], []], pa.list_(moments.type))
    bad.add(pa.table({"at": moments, "all": lists}), ["why", "why"])
    rows = [json.loads(row) for row in bad.letters()[0].column("row").to_pylist()]
    moment = "1970-01-01 00:00:00.000000Z"
    assert rows == [{"at": moment, "all": [moment]}, {"at": None, "all": []}]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ConnectionError("away"),
        UnavailableError("down"),
        InternalError("a bug"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_about_the_row_stays_a_failure(tmp_path, error):
    """A server that is away, a machine without memory, a bug of Penstock and Ctrl-C end the run, whatever is said of bad rows."""

    class Failing(KeyedProcess):
        def process(self, key, rows, ctx):
            raise error

    with pytest.raises(type(error)):
        TolerantHarness(tmp_path).process(Failing(), table(("a", 1)))


def test_null_keys_are_found_row_by_row():
    """A row without a value in any of the key columns is bad, and the reason names the first such column."""
    rows = pa.table({"a": ["x", None, None], "b": [None, 1, None], "v": [1, 2, 3]}).slice(0, 3)
    flags, reasons = null_keys(rows, ["a", "b"])
    assert flags.tolist() == [True, True, True]
    assert reasons == [f"the key column {name!r} is null" for name in ("b", "a", "a")]
    assert null_keys(rows, ["v"])[1] == []


# ── sinks ──────────────────────────────────────────────────────────────────────────────────────


def sift(sink, *batches):
    bad = BadRows("out", 7, kept=True)
    sifter = TransactionWriter(sink, TransactionContext("job", "out", 1, 7, 0, 3), bad)
    rows = sifter.write([pa.RecordBatch.from_pylist(batch) for batch in batches])
    letters = pa.Table.from_batches(bad.letters(), LETTER).to_pylist()
    return rows, sifter.open, [json.loads(letter["row"])["v"] for letter in letters]


@pytest.mark.parametrize("when", ["check_rows", "write", "pre_commit"])
def test_rows_that_a_sink_refuses_are_found(when):
    """Whenever the sink says it, exactly the rows at fault are left out, and one transaction with all others is left."""
    sink = RefusingSink(lambda rows: [v for v in rows if v % 5 == 0], when)
    batches = [[{"v": v} for v in range(1, 18)], [{"v": v} for v in (5, 10)], [{"v": 40}, {"v": 41}]]
    rows, transaction, refused = sift(sink, *batches)
    assert refused == [5, 10, 15, 5, 10, 40]
    assert sink.prepared == {transaction["number"]: [v for v in range(1, 18) if v % 5] + [41]}
    assert rows == 15
    assert not sink.open


def test_rows_that_are_refused_beside_each_other():
    """Of rows that a sink takes alone but not together the later ones are bad."""
    sink = RefusingSink(lambda rows: [v for v in rows if rows.count(v) > 1], "write")
    rows, transaction, refused = sift(sink, [{"v": v} for v in (1, 2, 1, 3)], [{"v": 3}, {"v": 4}])
    assert refused == [1, 3]
    assert sink.prepared == {transaction["number"]: [1, 2, 3, 4]}
    assert rows == 4


class UniqueThenChecked(RefusingSink):
    """Refuses a number that it has at once, and multiples of 5 only at the end, like a deferred constraint."""

    def __init__(self):
        super().__init__(lambda rows: [v for v in rows if v % 5 == 0], "pre_commit")

    def write(self, transaction, batch):
        super().write(transaction, batch)
        rows = self._rows[transaction["number"]]
        if len(set(rows)) < len(rows):
            raise BadRecordError("a number comes twice")


def test_rows_that_are_refused_soon_and_others_late():
    """Those refused at the end are found although others, refused beside each other, kept every trial from coming to the end."""
    sink = UniqueThenChecked()
    rows, transaction, refused = sift(sink, [{"v": v} for v in (1, 2, 1, 5, 3)], [{"v": 10}, {"v": 2}])
    assert sorted(refused) == [1, 2, 5, 10]
    assert sink.prepared == {transaction["number"]: [1, 2, 3]}
    assert (rows, sink.open) == (3, set())


def test_a_sink_that_refuses_everything():
    """Then there is no transaction at all."""
    sink = RefusingSink(lambda rows: rows, "write")
    assert sift(sink, [{"v": 1}, {"v": 2}]) == (0, None, [1, 2])
    assert (sink.prepared, sink.open) == ({}, set())


# ── settings ───────────────────────────────────────────────────────────────────────────────────


SOURCE: Any = None
SINK = RefusingSink(lambda rows: rows, "write")


def graph(**settings):
    made = Graph(**settings)
    output = Output("out", Source("clicks", SOURCE, None), SINK)
    made.outputs.append(output)
    return made, output


def test_what_is_said_for_one_part_overrides_the_job():
    """The job's word holds for all that say nothing, but a dead letter that a sink refuses is never skipped unless asked for."""
    made, output = graph(on_bad_record=OnBadRecord.SKIP)
    assert made.policy(output) is OnBadRecord.SKIP
    letters = Output("letters", Transform(made.bad_records(output), lambda frame: frame), SINK)
    assert (made.policy(output), made.policy(letters)) == (OnBadRecord.KEEP, OnBadRecord.FAIL)
    made.set_on_bad_record("letters", OnBadRecord.SKIP)
    assert made.policy(letters) is OnBadRecord.SKIP


def test_contradictions_are_refused():
    """Nobody can skip rows and keep them, and dead letters that are written nowhere are rows lost."""
    made, output = graph()
    made.set_on_bad_record("out", OnBadRecord.SKIP)
    with pytest.raises(ConfigError, match=r"'out' has on_bad_record='skip'.*leave one of the two out"):
        made.bad_records(output)
    made, output = graph()
    letters = made.bad_records(output)
    with pytest.raises(ConfigError, match=r"the bad_records.. of 'out' are written nowhere"):
        made.check_bad_records()
    assert made.bad_records(output) is letters
    assert isinstance(letters, BadRecordsNode)
    made.outputs.append(Output("letters", letters, SINK))
    made.check_bad_records()


# ── counts ─────────────────────────────────────────────────────────────────────────────────────


def test_counts_go_on_from_the_checkpoint(caplog):
    """A batch says in one line how many of how many, and in a louder one when it was all of them."""
    counts = BadRecordCounts({"op": 5})
    with caplog.at_level(logging.WARNING):
        counts.add(CheckpointId(8), {"op": BadCount(2, 10, "why")})
        counts.add(CheckpointId(9), {"op": BadCount(3, 3, "again"), "out": BadCount(1, 2, "no")})
    assert counts.so_far == {"op": 10, "out": 1}
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "batch 8: 2 of 10 rows were bad at 'op', 7 so far; the first: why"),
        ("ERROR", "batch 9: ALL of 3 rows were bad at 'op', 10 so far; the first: again"),
        ("WARNING", "batch 9: 1 of 2 rows were bad at 'out', 1 so far; the first: no"),
    ]


def test_rows_that_are_to_be_kept_are_not_only_counted():
    """Aggregated rows without a key that come without the row itself end the run where they are to be kept; elsewhere they are counted."""
    grouped = pa.table({"k": pa.array(["a", None]), ROWS: pa.array([3, 2], pa.int64())})
    with pytest.raises(InternalError, match="2 rows without a key came to operator op"):
        without_null_keys(grouped, ["k"], BadRows("op", 7, kept=True))
    skipping = BadRows("op", 7, kept=False)
    assert without_null_keys(grouped, ["k"], skipping).column("k").to_pylist() == ["a"]
    assert skipping.count == 2
    maps = pa.array(
        [[("z", [[("a", 1)], None])]], pa.map_(pa.string(), pa.list_(pa.map_(pa.string(), pa.int64())))
    )
    row = pa.StructArray.from_arrays([pa.array([None], pa.string()), maps], names=["k", "maps"])
    kept = BadRows("op", 7, kept=True)
    whole = grouped.slice(1).append_column(ROW, row)
    assert without_null_keys(whole, ["k"], kept).num_rows == 0
    letters = pa.Table.from_batches(kept.letters(), LETTER).to_pylist()
    assert [json.loads(one["row"]) for one in letters] == [
        {"k": None, "maps": [["z", [[["a", 1]], None]]]}
    ] * 2
