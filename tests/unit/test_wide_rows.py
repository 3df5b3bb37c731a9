"""Wide rows that stand in many results, or in many windows: no array becomes larger than a part, whatever is multiplied.

Arrow cannot hold more than 2 GB of text in an array. Here a part is a few kilobytes, and it is measured what arrays really hold: a batch that
is a slice of a larger array counts with the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from builders.operator_cluster import BuiltIn, OperatorCluster
from penstock.operators import event_time
from penstock.operators.event_time import LateRows, OperatorClock, TimeColumn
from penstock.operators.grouping import PieceLimits
from penstock.operators.join import input_rows, interval, lookup
from penstock.operators.join.input_rows import InputColumns
from penstock.operators.join.lookup import LookupSpec, run_lookup
from penstock.operators.join.spec import How, JoinSpec
from penstock.operators.process.user_code import Context
from penstock.operators.values.rows import Rows
from penstock.operators.window import own_code
from penstock.operators.window.base import TimeWindow, WindowProcess
from penstock.operators.window.own_code import WindowCode, WindowRows, WindowRowsSpec
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US
from penstock.windows import TimeWindows

PART = 8_000
MOST = 2 * PART
"""A part, and what goes with it: validity, keys, and the space that Arrow rounds up to."""
WIDTH = 1_000
LEFT = arrow_schema("k string, body string, at timestamp")
RIGHT = arrow_schema("id string, r long, paid timestamp")
LEFT_KEY = pa.schema([("k", pa.string())])
NARROW = arrow_schema("k string, n long")


class Watched:
    """A state that notes how much each write holds."""

    def __init__(self, state: Any, held: list[int]) -> None:
        self._state, self._held = state, held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def table(self, name: str) -> Any:
        return Watched(self._state.table(name), self._held)

    def write(self, rows: KeyBatch, values: pa.RecordBatch, *more: Any) -> None:
        self._held.append(values.get_total_buffer_size())
        self._state.write(rows, values, *more)


class Operator(BuiltIn):
    """Runs a function, and notes how much its results, and what it writes, hold."""

    uses_time = True

    def __init__(self, layout: StateLayout, apply: Any) -> None:
        self._layout, self._apply = layout, apply
        self.held: list[int] = []
        self.results: list[pa.RecordBatch] = []

    def layout(self, key: pa.Schema) -> StateLayout:
        del key
        return self._layout

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        raise NotImplementedError

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        self.results += self._apply(rows, Watched(state, self.held), context, clock)
        self.held += [batch.get_total_buffer_size() for batch in self.results]
        return []

    def due(self, state: OpenState, clock: OperatorClock) -> Due:
        del state, clock
        return Due()


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (event_time, input_rows, lookup, interval, own_code):
        monkeypatch.setattr(module, "PART_BYTES", PART)
    monkeypatch.setattr(lookup, "LIMITS", PieceLimits(PART))


def rows(schema: pa.Schema, *columns: list[Any]) -> pa.Table:
    """All of one key."""
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.table(arrays, schema=schema)
    return table.append_column(SORT_KEY, pa.array([5 << 48] * table.num_rows, pa.int64()))


def bodies(number: int) -> list[str]:
    return [f"{at:03}" + "x" * (WIDTH - 3) for at in range(number)]


def run(
    tmp_path: Path, operator: Operator, watermarks: tuple[int, ...] = (0,), given: pa.Table | None = None
) -> None:
    cluster = OperatorCluster(tmp_path, operator.layout(pa.schema([])).key)
    for watermark in watermarks:
        cluster.batch(
            operator, given if given is not None else pa.table({"k": pa.array([], pa.string())}), watermark
        )
        given = None


def both_inputs(spec: JoinSpec, left: pa.Table, right: pa.Table) -> Operator:
    def apply(_: pa.Table, state: Any, context: Context, clock: OperatorClock) -> list[pa.RecordBatch]:
        first = clock.before_us < 0
        own, other = (left, right) if first else (left.slice(0, 0), right.slice(0, 0))
        return interval.run_join(spec, own, other, state, clock, operator=context.operator).results

    return Operator(spec.layout(), apply)


def test_pairs_of_wide_rows(tmp_path: Path) -> None:
    """Each of 30 rows of a kilobyte has 40 partners."""
    left = InputColumns(LEFT, ("k",), TimeColumn("at"))
    right = InputColumns(RIGHT, ("id",), TimeColumn("paid"))
    spec = JoinSpec.by_interval(left, right, -1_000, 1_000, How.INNER)
    operator = both_inputs(
        spec,
        rows(LEFT, ["a"] * 30, bodies(30), list(range(30))),
        rows(RIGHT, ["a"] * 40, list(range(40)), list(range(40))),
    )
    run(tmp_path, operator)
    found = {(row["body"], row["r"]) for batch in operator.results for row in batch.to_pylist()}
    assert found == {(body, r) for body in bodies(30) for r in range(40)}
    assert max(operator.held) <= MOST


@pytest.mark.parametrize("key", ["a", None])
def test_wide_rows_in_many_windows_of_a_join(tmp_path: Path, key: str | None) -> None:
    """Each of 30 rows is in 50 windows; they come out alone, with a key when the windows are over, without one at once."""
    left = InputColumns(LEFT, ("k",), TimeColumn("at"))
    right = InputColumns(RIGHT, ("id",), TimeColumn("paid"))
    spec = JoinSpec.by_window(left, right, TimeWindows(50, 1), How.LEFT)
    given = pa.array([key] * 30, pa.string())
    table = rows(LEFT, ["a"] * 30, bodies(30), [1_000 + at for at in range(30)]).set_column(0, "k", given)
    operator = both_inputs(spec, table, rows(RIGHT, ["b"], [1], [1_000]))
    run(tmp_path, operator, (0, 1_030, FAR_AWAY_US))
    results = [row for batch in operator.results for row in batch.to_pylist()]
    assert len({(row["body"], row["window_start"]) for row in results}) == len(results) == 30 * 50
    assert max(operator.held) <= MOST


def test_a_row_of_a_join_is_there_once() -> None:
    """In however many windows it is."""
    left = InputColumns(LEFT, ("k",), TimeColumn("at"))
    right = InputColumns(RIGHT, ("id",), TimeColumn("paid"))
    spec = JoinSpec.by_window(left, right, TimeWindows(50, 1), How.INNER)
    table = rows(LEFT, ["a"] * 3, bodies(3), [100, 200, 300])
    found = spec.arriving(spec.left, table, OperatorClock(before_us=210), operator="op")
    assert (found.rows.num_rows, len(found.moments)) == (2, 39 + 50)
    assert found.late.column("body").to_pylist() == bodies(1)


def test_a_wide_answer_for_many_rows(tmp_path: Path) -> None:
    """A row of a kilobyte is looked up by 300, and 20 others are told at once among many narrow rows."""
    answers = arrow_schema("id string, body string")
    spec = LookupSpec(InputColumns(NARROW, ("k",), None), InputColumns(answers, ("id",), None), inner=False)
    names = [f"{at:02}" for at in range(20)]
    asking = pa.table([pa.array(["00"] * 300), pa.array(range(300), pa.int64())], schema=NARROW)
    told = pa.table([pa.array(names), pa.array(bodies(20))], schema=answers)

    def apply(_: pa.Table, state: Any, *more: Any) -> list[pa.RecordBatch]:
        del more
        left = asking.append_column(SORT_KEY, pa.array([5 << 48] * 300, pa.int64()))
        right = told.append_column(SORT_KEY, pa.array([(5 << 48) + at for at in range(20)], pa.int64()))
        return run_lookup(spec, left, right, state)

    operator = Operator(spec.layout(), apply)
    run(tmp_path, operator)
    results = [row for batch in operator.results for row in batch.to_pylist()]
    assert [(row["n"], row["body"]) for row in results] == [(at, bodies(1)[0]) for at in range(300)]
    assert max(operator.held) <= MOST


def test_late_rows_that_are_wide() -> None:
    """They come in columns that hold more than usual, and go out in parts of the usual ones."""
    late = LateRows(LEFT)
    wide = LEFT.set(1, pa.field("body", pa.large_string()))
    late.add(rows(wide, ["a"] * 30, bodies(30), list(range(30))))
    assert [row["body"] for batch in late.batches() for row in batch.to_pylist()] == bodies(30)
    assert {batch.schema for batch in late.batches()} == {LEFT}
    assert max(batch.nbytes for batch in late.batches()) <= MOST


class Bodies(WindowProcess):
    def process(self, key: Any, window: TimeWindow | None, rows: Rows, ctx: Context) -> Iterator[Any]:
        del ctx
        assert window is not None
        yield key, window.start, sorted(row.body for row in rows)


class Code(WindowCode):
    """Notes how much the rows of the windows hold that it is called for at once."""

    def results(self, windows: WindowRows, context: Context) -> Iterator[pa.RecordBatch]:
        CALLED.append(windows.rows.get_total_buffer_size())
        yield from super().results(windows, context)


CALLED: list[int] = []
OUTPUT = arrow_schema("k string, start timestamp_ntz, bodies array<string>")


@pytest.mark.parametrize("watermarks", [(0, FAR_AWAY_US), (FAR_AWAY_US,), (1_030, FAR_AWAY_US)])
@pytest.mark.parametrize("windows", [TimeWindows(50, 1), TimeWindows(5_000, 5_000)])
def test_wide_rows_in_windows_of_own_code(
    tmp_path: Path, windows: TimeWindows, watermarks: tuple[int, ...]
) -> None:
    """30 rows of 10 keys are in 50 windows each, or all in one moment's: new ones, stored ones, and both."""
    CALLED.clear()
    code = Code(Bodies(), OUTPUT, pa.timestamp("us"))
    spec = WindowRowsSpec(LEFT_KEY, windows, 0, LEFT, TimeColumn("at"), (), code)

    def apply(given: pa.Table, state: Any, context: Context, clock: OperatorClock) -> list[pa.RecordBatch]:
        table = given if given.num_rows else rows(LEFT, [], [], [])
        return spec.run(table, state, clock, context).results

    keys = [f"{at % 10}" for at in range(30)]
    moments = [1_000 + at for at in range(30)]
    columns = [
        pa.array(one).cast(field.type) for one, field in zip((keys, bodies(30), moments), LEFT, strict=True)
    ]
    operator = Operator(spec.layout(), apply)
    run(tmp_path, operator, watermarks, pa.table(columns, schema=LEFT))
    by_window: dict[tuple[str, int], list[str]] = {}
    for key, body, at in zip(keys, bodies(30), moments, strict=True):
        for start in range(at - windows.size_us + 1, at + 1):
            if start % windows.every_us == 0:
                by_window.setdefault((key, start), []).append(body)
    expected = sorted((*window, own) for window, own in by_window.items())
    got = [
        (row["k"], start, row["bodies"])
        for batch in operator.results
        for row, start in zip(
            batch.to_pylist(), batch.column("start").cast(pa.int64()).to_pylist(), strict=True
        )
    ]
    assert sorted(got) == expected
    assert max(CALLED) <= 3 * PART  # stored rows and new ones
    assert max(operator.held[: -len(operator.results)], default=0) <= MOST
