"""Own code over windows, run by its task: what a call is told, and what it is given at the ends of the calendar."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from builders.operator_cluster import BuiltIn, OperatorCluster, task_context
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS
from penstock.operators.state.timers import microseconds, moment
from penstock.operators.views import TimestampColumn
from penstock.operators.window.count import CountRowsSpec
from penstock.operators.window.own_code import WindowCode, WindowRowsSpec
from penstock.operators.window.session_rows import SessionRowsSpec
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from penstock.state.handle import Due
from penstock.state.lifetimes import FAR_AWAY_US
from penstock.windows import CountWindows, SessionWindows

BACKENDS = ["filesystem", "memory", "rocksdb"]
TIME = pa.timestamp("us", "UTC")
KEY = pa.schema([("k", pa.string())])
ROWS = pa.schema([("k", pa.string()), ("t", TIME)])
OUTPUT = arrow_schema("k string, start timestamp, end timestamp, n long, watermark timestamp, now timestamp")


class Told(ps.WindowProcess):
    """Gives what it is told."""

    def process(
        self, key: Any, window: ps.types.TimeWindow | None, rows: ps.types.Rows, ctx: ps.types.Context
    ) -> Iterator[Any]:
        start, end = window or (None, None)
        assert all(isinstance(row.k, str) for row in rows)
        yield key, start, end, len(rows), ctx.watermark, ctx.now


class ByTask(BuiltIn):
    """Own code as the engine runs it."""

    def __init__(self, windows: Any, columns: pa.Schema = ROWS) -> None:
        code = WindowCode(Told(), OUTPUT, None if isinstance(windows, CountWindows) else TIME)
        if isinstance(windows, CountWindows):
            self.spec: Any = CountRowsSpec(KEY, windows, columns, code)
        else:
            kind: Any = SessionRowsSpec if isinstance(windows, SessionWindows) else WindowRowsSpec
            self.spec = kind(KEY, windows, 0, columns, TimeColumn("t"), (), code)
        self.uses_time = not isinstance(windows, CountWindows)
        self.late = 0
        self._due = Due()

    def layout(self, key: pa.Schema) -> StateLayout:
        return self.spec.layout()  # type: ignore[no-any-return]

    def run(self, rows: pa.Table, state: OpenState, context: ps.types.Context) -> list[pa.RecordBatch]:
        raise NotImplementedError

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: ps.types.Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        told = task_context(clock)
        task = self.spec.task(told)
        given = task.apply(TaskRows(rows), state)
        self.late += told.late.count
        self._due = task.due()
        return list(given[RESULTS])

    def due(self, state: OpenState, clock: OperatorClock) -> Due:
        return self._due


def rows_at(*times: datetime | int) -> pa.Table:
    numbers = [at if isinstance(at, int) else microseconds(at, "") for at in times]
    return pa.table([pa.array(["a"] * len(numbers)), pa.array(numbers).cast(TIME)], schema=ROWS)


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "windows", [ps.windows.tumbling("1h"), ps.windows.session("1h"), ps.windows.count(1)]
)
def test_a_call_is_told_the_time(tmp_path: Path, windows: Any) -> None:
    """The time of the batch by the driver's clock, and where event time has come to when a window closes."""
    cluster = OperatorCluster(tmp_path, OUTPUT)
    operator = ByTask(windows)
    cluster.now_us = microseconds(NOON + timedelta(hours=5), "")
    cluster.batch(operator, rows_at(), microseconds(NOON, ""))
    (row,) = cluster.batch(operator, rows_at(NOON), microseconds(NOON + timedelta(hours=2), ""))
    closed = NOON if isinstance(windows, CountWindows) else NOON + timedelta(hours=2)
    assert (row["watermark"], row["now"]) == (closed, NOON + timedelta(hours=5))


FIRST, LAST = moment(-FAR_AWAY_US), moment(FAR_AWAY_US)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (ps.windows.tumbling("1h", offset="30min"), {(FIRST, FIRST + HOUR / 2), (LAST - HOUR / 2, LAST)}),
        (ps.windows.sliding("1h", "30min"), {(FIRST, FIRST + HOUR / 2), (FIRST, FIRST + HOUR), (LAST - HOUR / 2, LAST), (LAST - HOUR, LAST)}),
        (ps.windows.session("1h"), {(FIRST, FIRST + HOUR), (LAST, LAST)}),
    ],
    ids=["tumbling", "sliding", "session"],
)  # fmt: skip
def test_windows_reach_beyond_the_calendar(tmp_path: Path, backend: str, windows: Any, expected: Any) -> None:
    """A window that holds the first or last moment of the calendar gives its result, and its bounds are moments that Python knows."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    operator = ByTask(windows)
    assert cluster.batch(operator, rows_at(FIRST, LAST), -FAR_AWAY_US + 1) == []
    given = cluster.batch(operator, rows_at(), FAR_AWAY_US)
    rounded = {tuple(round_up(row[name]) for name in ("start", "end")) for row in given}
    assert rounded == {tuple(map(round_up, bounds)) for bounds in expected}
    assert len(given) == len(expected)


def round_up(at: datetime) -> datetime:
    """The last moment stands for the one behind it."""
    return at if at.microsecond else at - timedelta(microseconds=1) if at > NOON else at


def test_a_row_beyond_the_calendar_is_late(tmp_path: Path) -> None:
    """Own code could not read its time: it is counted as late, and ends nothing."""
    cluster = OperatorCluster(tmp_path, OUTPUT)
    operator = ByTask(ps.windows.tumbling("1h"))
    beyond = microseconds(LAST, "") + 1
    (row,) = cluster.batch(operator, rows_at(NOON, beyond, microseconds(FIRST, "") - 1), FAR_AWAY_US)
    assert (row["n"], operator.late) == (1, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_nothing_but_a_key_are_counted(tmp_path: Path, backend: str) -> None:
    """A stream may have no columns beside its key; every third row of a key fills a window."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    operator = ByTask(ps.windows.count(3), KEY)
    given = [cluster.batch(operator, pa.table({"k": ["a"] * n})) for n in (2, 2, 5)]
    assert [[row["n"] for row in batch] for batch in given] == [[], [3], [3, 3]]


def test_windows_beyond_the_calendar_can_be_shown() -> None:
    """Who looks at state sees bounds that Python knows."""
    stored = pa.RecordBatch.from_pydict({"last": [microseconds(LAST, ""), microseconds(FIRST, "")]})
    assert TimestampColumn("window_end", "last", 1).of(stored).to_pylist()[0] == LAST
    assert TimestampColumn("window_start", "last", -5).of(stored).to_pylist()[1] == FIRST
