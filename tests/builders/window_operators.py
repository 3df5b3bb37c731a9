"""The operators of windows without Spark, fed with plain rows, and plain Python that says what they must give.

Rows are `(key, time, value)`, with times in microseconds; None is a row without a time. One batch is `cluster.batch(operator,
rows_table(rows), watermark_us)` of an `OperatorCluster` with `operator.output`: rows first, judged by the watermark of the batch before, then
the watermark goes on, and what is due comes out, as dictionaries `{"k", "start", "end", "n", "total", "most"}`. `operator.late` has the rows
of the last batch that came too late.

    operator = WindowAggregates(ps.windows.tumbling("10ms"), lateness_us=0)
    cluster = OperatorCluster(folder, operator.output, "memory")
    cluster.batch(operator, rows_table([("a", 1_000, 5)]), watermark_us=20_000)

A batch is a set: of a session, rows that alone would be late count in when they reach into it over other rows of the same batch. Flink, which
takes row by row, says the same when the rows of a batch come to it in descending order of time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from builders.operator_cluster import BuiltIn
from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial, partial_name
from penstock.operators.bad_records import ROWS
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.process.user_code import Context
from penstock.operators.values.rows import Rows
from penstock.operators.window.base import ABSURD, LATE, TimeWindow, WindowProcess, without_late_rows
from penstock.operators.window.count import CountRowsSpec, CountSpec, run_count_windows
from penstock.operators.window.own_code import RowsRun, WindowCode, WindowRowsSpec
from penstock.operators.window.session import FIRST_ROW, LAST_ROW, SessionRun, SessionSpec
from penstock.operators.window.session_rows import SessionRowsSpec
from penstock.operators.window.time import PANE, WindowRun, WindowSpec
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY
from penstock.windows import CountWindows, SessionWindows, TimeWindows

Row = tuple[str, int | None, int]
KEY = pa.schema([("k", pa.string())])
INPUT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])


def _spec(name: str, kind: Kind) -> AggregateColumn:
    return AggregateColumn(name, kind, (Partial(partial_name(name, kind), kind, pa.int64()),), pa.int64())


SPECS = (_spec("n", Kind.COUNT), _spec("total", Kind.SUM), _spec("most", Kind.MAX))
PARTIALS = [partial.name for spec in SPECS for partial in spec.partials]


def rows_table(rows: Iterable[Row]) -> pa.Table:
    """Rows as a cluster takes them."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, INPUT, strict=True)], schema=INPUT)


def partials_of(values: Sequence[int]) -> tuple[int, int, int]:
    return len(values), sum(values), max(values)


class _InTime(BuiltIn):
    uses_time = True
    spec: Any
    _due = Due()

    def layout(self, key: pa.Schema) -> StateLayout:
        del key
        return self.spec.layout()

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        raise NotImplementedError

    def due(self, state: OpenState, clock: OperatorClock) -> Due:
        del state, clock
        return self._due


class SessionAggregates(_InTime):
    """Count, sum and maximum over sessions."""

    spec: SessionSpec

    def __init__(self, windows: SessionWindows, lateness_us: int = 0) -> None:
        self.spec = SessionSpec(KEY, windows, lateness_us, SPECS, pa.timestamp("us"))
        self.output = self.spec.output
        self.late: list[Row] = []

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        groups = self._grouped(rows.to_pylist(), clock)
        columns = [
            [*key[:2], min(times), max(times), *partials_of(values)]
            for key, times, values in (
                (key, [row["t"] for row in own], [row["v"] for row in own]) for key, own in groups.items()
            )
        ]
        names = [SORT_KEY, "k", FIRST_ROW, LAST_ROW, *PARTIALS]
        types = [pa.int64(), pa.string(), *[pa.int64()] * 5]
        arrays = [pa.array([row[at] for row in columns], kind) for at, kind in enumerate(types)]
        run = SessionRun(self.spec, state, clock)
        late = run.take_in(pa.table(arrays, names=names))
        run.close()
        for is_late, own in zip(late.tolist(), groups.values(), strict=True):
            self.late += [(row["k"], row["t"], row["v"]) for row in own if is_late]
        self._due = Due(event_us=run.waits_for)
        return run.results

    def _grouped(self, rows: list[dict[str, Any]], clock: OperatorClock) -> dict[Any, list[dict[str, Any]]]:
        """What Spark does with the rows of a batch."""
        groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["t"] is None or row["t"] > clock.latest_us:
                self.late.append((row["k"], row["t"], row["v"]))
            else:
                groups[row[SORT_KEY], row["k"], row["t"] // self.spec.windows.gap_us].append(row)
        return groups


class WindowAggregates(_InTime):
    """Count, sum and maximum over tumbling or sliding windows."""

    spec: WindowSpec

    def __init__(self, windows: TimeWindows, lateness_us: int = 0, early_us: int | None = None) -> None:
        self.spec = WindowSpec(KEY, windows, lateness_us, SPECS, pa.timestamp("us"), early_us=early_us)
        self.output = self.spec.output
        self.late: list[Row] = []

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        reduced, self.late_here = self._reduced(rows, clock)
        self.late += self.late_here
        own, late = without_late_rows(reduced, PANE, ROWS, clock, context.operator)
        assert late == len(self.late_here)
        run = WindowRun(self.spec, state, clock)
        results = run.run(own)
        self._due = run.due
        return results

    def _reduced(self, rows: pa.Table, clock: OperatorClock) -> tuple[pa.Table, list[Row]]:
        """What Spark does with the rows of a batch."""
        groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        late: list[Row] = []
        for row in rows.to_pylist():
            pane = self._pane(row["t"], clock)
            groups[row[SORT_KEY], row["k"], pane].append(row["v"])
            if pane in (LATE, ABSURD):
                late.append((row["k"], row["t"], row["v"]))
        columns = [[*key, *partials_of(values), len(values)] for key, values in groups.items()]
        names = [SORT_KEY, "k", PANE, *PARTIALS, ROWS]
        types = [pa.int64(), pa.string(), *[pa.int64()] * 5]
        arrays = [pa.array([row[at] for row in columns], kind) for at, kind in enumerate(types)]
        return pa.table(arrays, names=names), late

    def _pane(self, time: int | None, clock: OperatorClock) -> int:
        windows = self.spec.windows
        if time is None or time > clock.latest_us:
            return ABSURD
        newest = time - (time - windows.offset_us) % windows.every_us
        if newest + windows.size_us - 1 <= clock.closed_until_us(self.spec.lateness_us):
            return LATE
        return time - (time - windows.offset_us) % windows.pane_us


class _Sums(WindowProcess):
    """The same as the aggregates, in Python."""

    def process(self, key: Any, window: TimeWindow | None, rows: Rows, ctx: Context) -> Iterator[Any]:
        del ctx
        times = () if window is None else (window.start, window.end)
        yield (key, *times, *partials_of([row.v for row in rows]))


SUMS = _Sums()
COLUMNS = pa.schema([("v", pa.int64()), ("k", pa.string()), ("t", pa.timestamp("us"))])


class _RowsInTime(_InTime):
    """Own code that does what the aggregates do."""

    def __init__(self) -> None:
        self.late: list[Row] = []

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        table = rows.select(COLUMNS.names).cast(COLUMNS).append_column(SORT_KEY, rows.column(SORT_KEY))
        given = self._given(table, state, clock, context)
        late = given.late.select(INPUT.names).cast(INPUT).to_pylist()
        self.late += [(row["k"], row["t"], row["v"]) for row in late]
        self._due = Due(event_us=given.waits_for)
        return given.results

    @abstractmethod
    def _given(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun: ...


class WindowCalls(_RowsInTime):
    """Own code over tumbling or sliding windows."""

    def __init__(self, windows: TimeWindows, lateness_us: int = 0) -> None:
        super().__init__()
        self.output = WindowSpec(KEY, windows, lateness_us, SPECS, pa.timestamp("us")).output
        code = WindowCode(_Sums(), self.output, pa.timestamp("us"))
        self.spec = WindowRowsSpec(KEY, windows, lateness_us, COLUMNS, TimeColumn("t"), (), code)

    def _given(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun:
        return self.spec.run(rows, state, clock, context)


class SessionCalls(_RowsInTime):
    """Own code over sessions."""

    def __init__(self, windows: SessionWindows, lateness_us: int = 0) -> None:
        super().__init__()
        self.output = SessionSpec(KEY, windows, lateness_us, SPECS, pa.timestamp("us")).output
        code = WindowCode(_Sums(), self.output, pa.timestamp("us"))
        self.spec = SessionRowsSpec(KEY, windows, lateness_us, COLUMNS, TimeColumn("t"), (), code)

    def _given(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun:
        return self.spec.run(rows, state, clock, context)


class CountAggregates(_InTime):
    """Count, sum and maximum of every so many rows; none is ever late."""

    def __init__(self, windows: CountWindows) -> None:
        self.spec = CountSpec(KEY, windows, SPECS)
        self.output = self.spec.output

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        del context, clock
        each = [pa.array([1] * rows.num_rows, pa.int64()), rows.column("v"), rows.column("v")]
        columns = [rows.column(SORT_KEY), rows.column("k"), *each]
        return run_count_windows(self.spec, pa.table(columns, names=[SORT_KEY, "k", *PARTIALS]), state)


class CountCalls(_InTime):
    """Own code over every so many rows."""

    def __init__(self, windows: CountWindows) -> None:
        self.output = CountSpec(KEY, windows, SPECS).output
        self.spec = CountRowsSpec(KEY, windows, COLUMNS, WindowCode(_Sums(), self.output, None))

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        table = rows.select(COLUMNS.names).cast(COLUMNS).append_column(SORT_KEY, rows.column(SORT_KEY))
        return self.spec.run(table, state, clock, context).results


# ── what they must give ─────────────────────────────────────────────────────────────────────────


class TimeWindowModel:
    """Tumbling and sliding windows in plain Python: each is a list of values, and gives a result when it is over, and for late rows."""

    def __init__(self, windows: TimeWindows, lateness_us: int = 0) -> None:
        self.windows, self.lateness_us = windows, lateness_us
        self.open: dict[tuple[str, int], list[int]] = {}
        self.watermark_us = -(1 << 62)
        self.late: list[Row] = []

    def batch(self, rows: Sequence[Row], watermark_us: int) -> list[dict[str, Any]]:
        before, touched = self.watermark_us, set()
        for key, time, value in rows:
            starts = [] if time is None else [s for s in self._starts(time) if self._end(s) > before]
            for start in starts:
                self.open.setdefault((key, start), []).append(value)
                touched.add((key, start))
            if not starts:
                self.late.append((key, time, value))
        self.watermark_us = max(before, watermark_us)
        given = []
        for (key, start), values in list(self.open.items()):
            last = start + self.windows.size_us - 1
            if last <= self.watermark_us and (last > before or (key, start) in touched):
                given.append(result(key, start, last + 1, values))
            if self._end(start) <= self.watermark_us:
                del self.open[key, start]
        return given

    def _starts(self, time: int) -> list[int]:
        windows = self.windows
        start = time - (time - windows.offset_us) % windows.every_us
        found = []
        while start + windows.size_us > time:
            found.append(start)
            start -= windows.every_us
        return found

    def _end(self, start: int) -> int:
        return start + self.windows.size_us - 1 + self.lateness_us


class SessionModel:
    """Sessions in plain Python: of each key a list of first and last moment and values."""

    def __init__(self, windows: SessionWindows, lateness_us: int = 0) -> None:
        self.gap_us, self.lateness_us = windows.gap_us, lateness_us
        self.sessions: dict[str, list[tuple[int, int, list[Row], bool]]] = defaultdict(list)
        self.watermark_us = -(1 << 62)
        self.late: list[Row] = []

    def batch(self, rows: Sequence[Row], watermark_us: int) -> list[dict[str, Any]]:
        before = self.watermark_us
        for row in rows:
            key, time, _ = row
            if time is None:
                self.late.append(row)
            else:
                self.sessions[key].append((time, time + self.gap_us - 1, [row], True))
        self.watermark_us = max(before, watermark_us)
        given = []
        for key, sessions in self.sessions.items():
            joined = self._joined(sessions)
            self.sessions[key] = []
            for start, last, own, touched in joined:
                if last + self.lateness_us <= before:
                    self.late += own
                    continue
                if last <= self.watermark_us and (last > before or touched):
                    given.append(self.result(key, start, last + 1, [value for _, _, value in own]))
                if last + self.lateness_us > self.watermark_us:
                    self.sessions[key].append((start, last, own, False))
        return given

    @staticmethod
    def result(key: str, start: int, end: int, values: Sequence[int]) -> dict[str, Any]:
        return result(key, start, end, values)

    @staticmethod
    def _joined(sessions: list[tuple[int, int, list[Row], bool]]) -> list[tuple[int, int, list[Row], bool]]:
        joined: list[tuple[int, int, list[Row], bool]] = []
        for start, last, rows, touched in sorted(sessions, key=lambda one: one[0]):
            if joined and start <= joined[-1][1] + 1:
                first, end, own, was = joined[-1]
                joined[-1] = (first, max(end, last), own + rows, was or touched)
            else:
                joined.append((start, last, rows, touched))
        return joined


class CountModel:
    """Every so many rows of a key."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.open: dict[str, list[int]] = defaultdict(list)

    def batch(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        given = []
        for key, _, value in rows:
            self.open[key].append(value)
            if len(self.open[key]) == self.n:
                n, total, most = partials_of(self.open.pop(key))
                given.append({"k": key, "n": n, "total": total, "most": most})
        return given


def result(key: str, start: int, end: int, values: Sequence[int]) -> dict[str, Any]:
    n, total, most = partials_of(values)
    return {"k": key, "start": start, "end": end, "n": n, "total": total, "most": most}


def plain(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results with times as numbers."""
    return [
        {
            "k": row["k"],
            "start": _us(row["window_start"]),
            "end": _us(row["window_end"]),
            **{name: row[name] for name in ("n", "total", "most")},
        }
        for row in rows
    ]


def _us(time: Any) -> int:
    return int(pa.scalar(time, pa.timestamp("us")).value)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["k"], row["start"], row["end"]))
