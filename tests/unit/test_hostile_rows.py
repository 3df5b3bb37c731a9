"""Rows with hostile values come out of state as they went in: of windows, joins, lookups, values, maps and lists.

On every backend, in every mode, with every policy for bad rows. Nested maps, nulls at every depth, NaN, -0.0, empty and odd texts, and
times at both ends of the calendar. Crashes, merges and other parallelisms come in between.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import BuiltIn, OperatorCluster
from penstock.config import OnBadRecord
from penstock.errors import BadRecordError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.dedupe import DedupeSpec, run_dedupe
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.join.input_rows import InputColumns
from penstock.operators.join.interval import run_join
from penstock.operators.join.lookup import LookupSpec, run_lookup
from penstock.operators.join.spec import How, JoinSpec
from penstock.operators.outputs import BAD, RESULTS, untagged
from penstock.operators.process.user_code import Context
from penstock.operators.state.timers import moment
from penstock.operators.values.python_values import python_values
from penstock.operators.window.count import CountRowsSpec
from penstock.operators.window.own_code import WindowCode, WindowRowsSpec
from penstock.operators.window.session_rows import SessionRowsSpec
from penstock.run import subtask as engine
from penstock.run.assignment import Assignment, OperatorAnswer, RunPlace
from penstock.snapshot.mailbox import Address
from penstock.state.backends import backend_named
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from penstock.state.handle import Due, StateHandle
from penstock.state.keys import SORT_KEY
from penstock.state.lifetimes import FAR_AWAY_US
from penstock.storage import LocalStorage
from penstock.testing.subtasks import LocalExecutor, with_wake_row
from penstock.windows import CountWindows, SessionWindows

BACKENDS = ["filesystem", "memory", "rocksdb"]
HOSTILE = (
    "real double, pair struct<a:string,b:double>, named map<string,struct<x:double,at:timestamp>>, "
    "deep array<struct<m:map<string,array<double>>,n:array<map<string,string>>>>, moment timestamp, day date, "
    "exact decimal(38,18), raw binary, flag boolean"
)
ROWS = arrow_schema(f"k string, id long, at timestamp, {HOSTILE}")
NAMES = arrow_schema(HOSTILE).names
STRUCT = f"struct<{','.join(f'{name}:{kind}' for name, kind in (one.split(' ', 1) for one in HOSTILE.split(', ')))}>"
KEY = pa.schema([("k", pa.string())])
FIRST, LAST = moment(-FAR_AWAY_US), moment(FAR_AWAY_US)

reals = st.sampled_from([math.nan, -0.0, 0.0, math.inf, 5e-324, 1.5]) | st.none()
texts = st.sampled_from(["", "\0", "\U0001f600", "__penstock", "null"])
times = st.sampled_from([FIRST, FIRST + timedelta(hours=1), datetime(1970, 1, 1, tzinfo=UTC), LAST])
values = st.fixed_dictionaries(
    {
        "real": reals,
        "pair": st.none() | st.fixed_dictionaries({"a": st.none() | texts, "b": reals}),
        "named": st.none()
        | st.dictionaries(
            texts, st.none() | st.fixed_dictionaries({"x": reals, "at": st.none() | times}), max_size=2
        ),
        "deep": st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries(
                {
                    "m": st.none() | st.dictionaries(texts, st.none() | st.lists(reals, max_size=2), max_size=2),
                    "n": st.none() | st.lists(st.dictionaries(texts, st.none() | texts, max_size=2), max_size=2),
                }
            ),
            max_size=2,
        ),
        "moment": st.none() | times,
        "day": st.none() | st.sampled_from([date.min, date.max, date(1970, 1, 1)]),
        "exact": st.none() | st.sampled_from([Decimal("-0.000000000000000001"), Decimal(99999999999999999999)]),
        "raw": st.none() | st.sampled_from([b"", b"\xff\0"]),
        "flag": st.none() | st.booleans(),
    }
)  # fmt: skip
Row = dict[str, Any]
given_rows = st.lists(st.tuples(st.sampled_from(["", "a", "\0"]), times, values), min_size=1, max_size=4)
batches = st.lists(given_rows, min_size=3, max_size=3)
happenings = st.permutations(["crash", "merge", 2]) | st.lists(
    st.sampled_from(["merge", "crash", 1, 2, 3]), min_size=3, max_size=3
)


def table_of(rows: list[Row]) -> pa.Table:
    """As Spark hands it over; maps are lists of pairs."""
    columns = [pa.array([_for_arrow(row[field.name]) for row in rows], field.type) for field in ROWS]
    return pa.table(columns, schema=ROWS)


def _for_arrow(value: Any) -> Any:
    """Dictionaries with the names of a struct are structs, all others maps."""
    if isinstance(value, dict):
        inner = {name: _for_arrow(one) for name, one in value.items()}
        return inner if set(inner) in ({"a", "b"}, {"x", "at"}, {"m", "n"}) else list(inner.items())
    return [_for_arrow(one) for one in value] if isinstance(value, list) else value


def seen(rows: list[Row]) -> Counter[str]:
    """What tells also -0.0 from 0.0, and takes one NaN for another."""
    return Counter(repr([row["id"], *(row[name] for name in NAMES)]) for row in rows)


class Gives(ps.WindowProcess):
    """Gives the rows that it is called with."""

    def process(self, key: Any, window: Any, rows: ps.types.Rows, ctx: Context) -> Iterator[Any]:
        for row in rows:
            yield tuple(getattr(row, name) for name in ROWS.names)


class Hostile(BuiltIn):
    """An operator that keeps rows, and gives them when time ends."""

    uses_time = True

    def __init__(self, kind: str) -> None:
        self.kind = kind
        time, code = TimeColumn("at"), WindowCode(Gives(), ROWS, ROWS.field("at").type)
        other = pa.schema([field.with_name(f"r_{field.name}") for field in ROWS])
        left = InputColumns(ROWS, ("k",), time)
        right = InputColumns(other, ("r_k",), TimeColumn("r_at"))
        self.other = other
        specs: dict[str, Callable[[], Any]] = {
            "tumbling": lambda: WindowRowsSpec(KEY, ps.windows.tumbling("1d"), 0, ROWS, time, (), code),
            "session": lambda: SessionRowsSpec(KEY, SessionWindows(60_000_000), 0, ROWS, time, (), code),
            "count": lambda: CountRowsSpec(KEY, CountWindows(2), ROWS, WindowCode(Gives(), ROWS, None)),
            "interval join": lambda: JoinSpec.by_interval(left, right, -1, 1, How.FULL),
            "window join": lambda: JoinSpec.by_window(left, right, ps.windows.tumbling("1d"), How.FULL),
            "unbounded join": lambda: JoinSpec.unbounded(left, right),
            "lookup": lambda: LookupSpec(left, right, inner=False),
            "dedupe": lambda: DedupeSpec(ROWS, ("k", "id"), time, 10),
        }
        self.spec = specs[kind]()
        self.output = self.spec.output if "join" in kind or kind == "lookup" else ROWS
        self._due = Due()

    def layout(self, key: pa.Schema) -> StateLayout:
        layout: StateLayout = self.spec.layout()
        return layout

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        raise NotImplementedError

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        match self.kind:
            case "tumbling" | "session" | "count":
                given = self.spec.run(rows, state, clock, context)
                assert given.late.num_rows == 0
                self._due = Due(event_us=given.waits_for)
                return given.results
            case "dedupe":
                return run_dedupe(self.spec, rows, state, clock, operator="op").passed
        second = rows.select(ROWS.names).rename_columns(self.other.names)
        second = second.append_column(SORT_KEY, rows.column(SORT_KEY))
        if self.kind == "lookup":
            return run_lookup(self.spec, rows, second, state)
        joined = run_join(self.spec, rows, second, state, clock, operator="op")
        self._due = joined.due
        return joined.results

    def due(self, state: OpenState, clock: OperatorClock) -> Due:
        return self._due


KINDS = ["tumbling", "session", "count", "interval join", "window join", "unbounded join", "lookup", "dedupe"]


def rows_of(batch: Any, begin: int) -> list[Row]:
    return [{"k": k, "id": begin + at, "at": time, **one} for at, (k, time, one) in enumerate(batch)]


class Story:
    """A cluster to which things happen between batches, and that recovers as jobs of a mode do."""

    def __init__(
        self, root: Path, output: pa.Schema, backend: str, mode: ps.Mode, *, tolerant: bool = False
    ) -> None:
        self.cluster = OperatorCluster(root, output, backend, tolerant=tolerant)
        self._mode = mode

    def batch(self, make: Any, rows: list[Row], happens: Any) -> list[tuple[list[Row], list[Row]]]:
        """Each time that the batch counts: its rows and its results."""
        if happens == "merge":
            self.cluster.merge()
        elif isinstance(happens, int):
            self.cluster.rescale(happens)
            assert self.cluster.batch(make(), table_of([])) == []
        before = self.cluster.checkpoint()
        times = [(rows, self.run(make, rows))]
        if happens != "crash":
            return times
        if self._mode is ps.AT_LEAST_ONCE:  # the state is of a later batch than the position
            self.cluster.clock = before[-1]
            self.cluster.number_back(1)
            return [*times, (rows, self.run(make, rows))]
        self.cluster.go_back(before)
        return [] if self._mode is ps.AT_MOST_ONCE else [(rows, self.run(make, rows))]

    def run(self, make: Any, rows: list[Row], watermark_us: int = -FAR_AWAY_US) -> list[Row]:
        return self.cluster.batch(make(), table_of(rows), watermark_us)


def as_seen(table: pa.Table) -> list[Row]:
    """The same form for what goes in and what comes out."""
    columns = {name: python_values(table.column(name)) for name in table.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def with_maps(given: list[Row], schema: pa.Schema) -> list[Row]:
    """Results of a cluster, of which maps are lists of pairs."""
    return as_seen(pa.Table.from_pylist(given, schema))


@pytest.mark.parametrize("mode", list(ps.Mode))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@given(batches=batches, happens=happenings)
@settings(max_examples=2, deadline=None)
def test_rows_come_out_as_they_went_in(
    kind: str, backend: str, mode: ps.Mode, batches: Any, happens: Any
) -> None:
    """Whatever they hold, and whenever they are, as long as none is late; as often as the mode promises."""
    output = Hostile(kind).output
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        told = Story(Path(folder), output, backend, mode)
        every: list[Row] = []
        given: list[Row] = []
        begin = 0
        for batch, what in zip(batches, happens, strict=True):
            rows = rows_of(batch, begin)
            begin += len(rows)
            for counted, results in told.batch(lambda: Hostile(kind), rows, what):
                every += counted
                given += results
        given += told.run(lambda: Hostile(kind), [], FAR_AWAY_US)
    found = with_maps(given, output)
    expected = as_seen(table_of(every))
    if kind == "dedupe":
        assert seen(found) == seen(list({row["id"]: row for row in expected}.values()))
    elif kind in ("tumbling", "session"):
        assert seen(found) == seen(expected)
    elif kind == "count":
        assert not seen(found) - seen(expected)
        assert len(found) == sum(n // 2 * 2 for n in Counter(row["k"] for row in every).values())
    else:
        check_pairs(found, expected, kind)


def check_pairs(found: list[Row], expected: list[Row], kind: str) -> None:
    """Each row has itself as a partner, and all that stands on either side is what went in."""
    by_id = {row["id"]: repr([row[name] for name in NAMES]) for row in expected}
    for row in found:
        assert row["id"] is None or repr([row[name] for name in NAMES]) == by_id[row["id"]]
        assert row["r_id"] is None or repr([row[f"r_{name}"] for name in NAMES]) == by_id[row["r_id"]]
    if kind == "lookup":
        assert Counter(row["id"] for row in found) == Counter(row["id"] for row in expected)
    else:
        assert {row["id"] for row in found if row["id"] == row["r_id"]} == set(by_id)


class Remembers(ps.KeyedProcess):
    """Keeps whole rows in every kind of state, and gives all that it has."""

    last = ps.ValueState(STRUCT)
    entries = ps.MapState("long", STRUCT)
    elements = ps.ListState(STRUCT)
    first = ps.ReducingState(STRUCT, lambda one, other: one)

    def process(self, key: str, rows: ps.types.Rows, ctx: Context) -> Iterator[Any]:
        if self.last.value is not None:
            yield (key, -1, None, *self.last.value.values())
            yield (key, -2, None, *self.first.value.values())
        for at, value in self.entries.items():
            yield (key, at, None, *value.values())
        for value in self.elements:
            yield (key, -3, None, *value.values())
        for row in rows:
            value = {name: getattr(row, name) for name in NAMES}
            self.last.value, self.entries[row.id] = value, value
            self.elements.append(value)
            self.first.add(value)


def one_array(column: Any) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


class RemembersInColumns(ps.BatchProcess):
    """The same in columns, for the last row of each key and all rows by number."""

    last = ps.ValueState(STRUCT)
    entries = ps.MapState("long", STRUCT)

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        stored = one_array(state["last"])
        yield self._given(keys["k"], pa.array([-1] * len(keys)), stored, stored.is_valid())
        rows = state["entries"].rows()
        whose = one_array(rows["key_index"])
        entries = one_array(rows["value"])
        yield self._given(keys["k"].take(whose), rows["key"], entries, entries.is_valid())
        columns = [one_array(batch[name]) for name in NAMES]
        structs = pa.StructArray.from_arrays(columns, fields=list(stored.type))
        last = [*(batch.starts[1:] - 1), len(structs) - 1]
        state["last"] = structs.take(pa.array(last))
        state["entries"].put(batch.key_index, batch["id"], structs)

    def _given(self, keys: Any, ids: Any, structs: Any, wanted: Any) -> pa.Table:
        nothing = pa.nulls(len(structs), ROWS.field("at").type)
        columns = [keys, ids, nothing, *structs.flatten()]
        return pa.table(columns, schema=ROWS).filter(wanted)


@pytest.mark.parametrize("mode", list(ps.Mode))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["fail", "tolerant", "columns"])
@given(batches=batches, happens=happenings)
@settings(max_examples=2, deadline=None)
def test_state_is_what_was_put_into_it(
    form: str, backend: str, mode: ps.Mode, batches: Any, happens: Any
) -> None:
    """Values, entries, elements and what was reduced, key by key and in columns."""
    make: Any = RemembersInColumns if form == "columns" else Remembers
    had: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        told = Story(Path(folder), ROWS, backend, mode, tolerant=form == "tolerant")
        begin = 0
        for batch, what in zip(batches, happens, strict=True):
            rows = rows_of(batch, begin)
            begin += len(rows)
            for counted, results in told.batch(make, rows, what):
                given = with_maps(results, ROWS)
                assert seen(given) == seen(remembered(had, {row["k"] for row in counted}, form))
                for row in as_seen(table_of(counted)):
                    had.setdefault(row["k"], []).append(row)
        assert list(told.cluster.bad.letters()) == []


def remembered(had: dict[str, list[Row]], keys: set[str], form: str) -> list[Row]:
    """What `Remembers` gives for these keys, or in columns the two kinds of state that there are."""
    expected: list[Row] = []
    for key in keys:
        own = had.get(key, [])
        expected += [{**row, "id": -1} for row in own[-1:]]
        expected += {row["id"]: row for row in own}.values()
        if form != "columns":
            expected += [{**row, "id": -2} for row in own[:1]]
            expected += [{**row, "id": -3} for row in own]
    return expected


class Subtask:
    """The only subtask of an operator, run by the engine's own task with a policy for bad rows."""

    def __init__(self, root: Path, kind: str, policy: OnBadRecord) -> None:
        self._hostile, self._kind, self._policy = Hostile(kind), kind, policy
        self._place = RunPlace(
            *("job", RunId(1), 1, 1, LocalStorage(root / "storage"), backend_named("memory"), root / "local"),
            *(False, cast("Address", None)),
        )
        self._handles: dict[SubtaskId, StateHandle] = {}
        self._batch = 0
        self.letters: list[Row] = []
        self.bad = 0

    def batch(self, rows: list[Row], watermark_us: int = -FAR_AWAY_US) -> list[Row]:
        """The results."""
        self._batch += 1
        none: frozenset[Any] = frozenset()
        plan = Assignment(
            *(self._place, CheckpointId(self._batch), self._handles, none, none, {}, none, none),
            *(False, none, False),
            clocks={"op": OperatorClock(-FAR_AWAY_US, watermark_us)},
        )
        executor, spec = LocalExecutor(self._batch), self._hostile.spec
        task = engine.Subtask("op", spec, plan, executor, self._policy)
        table = table_of(rows).append_column(SORT_KEY, pa.array([0] * len(rows), pa.int64()))
        wake = with_wake_row(table, 0) if self._kind != "dedupe" else table
        apart = [untagged(batch, task.tags) for batch in task(wake.to_batches())]
        (answer,) = executor.answers
        assert isinstance(answer, OperatorAnswer)
        if answer.handle is not None:
            self._handles = {answer.handle.subtask: answer.handle}
        self.bad += answer.bad.rows
        self.letters += [letter for one in apart if BAD in one for letter in one[BAD].to_pylist()]
        return [row for one in apart for row in one[RESULTS].to_pylist()]


@pytest.mark.parametrize("policy", list(OnBadRecord))
@pytest.mark.parametrize("kind", ["tumbling", "session", "count", "dedupe"])
@given(first=given_rows, second=given_rows, odd=values)
@settings(max_examples=3, deadline=None)
def test_hostile_rows_without_a_key(
    kind: str, policy: OnBadRecord, first: Any, second: Any, odd: Any
) -> None:
    """They end the run, are left out, or become dead letters; all others come out as they went in."""
    good = [rows_of(first, 0), rows_of(second, len(first))]
    bad: list[Row] = [{"k": None, "id": 99, "at": FIRST, **odd}]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        subtask = Subtask(Path(folder), kind, policy)
        if policy is OnBadRecord.FAIL:
            with pytest.raises(BadRecordError, match="no value in the key column 'k'"):
                subtask.batch([*good[0], *bad])
            return
        given = [row for batch in good for row in subtask.batch([*bad, *batch])]
        given += subtask.batch([], FAR_AWAY_US) if kind != "dedupe" else []
    assert subtask.bad == 2
    kept = [json.loads(letter["row"])["id"] for letter in subtask.letters]
    assert kept == ([99, 99] if policy is OnBadRecord.KEEP else [])
    found, expected = seen(with_maps(given, ROWS)), seen(as_seen(table_of([*good[0], *good[1]])))
    assert not found - expected if kind == "count" else found == expected
