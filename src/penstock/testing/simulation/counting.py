"""The operators of the simulation: user code that counts per key in a real state backend, and says for which records."""

from __future__ import annotations

import operator
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import xxhash
from typing_extensions import override

from penstock.checkpoint.model import Completed
from penstock.config import Mode
from penstock.graph import TimeSettings
from penstock.operators.inputs import WAKE
from penstock.operators.outputs import SideOutput
from penstock.operators.process.keyed import KeyedProcess
from penstock.operators.process.user_code import Context
from penstock.operators.state.declarations import ValueState, state_layout
from penstock.operators.state.folded_state import AggregateFunction, AggregatingState, ReducingState
from penstock.operators.state.list_state import ListState
from penstock.operators.state.map_state import MapState
from penstock.operators.state.raw_state import RawState
from penstock.operators.state.timers import CLOCK, EVENT_TIME, KINDS, Timer
from penstock.operators.values.rows import Rows
from penstock.run.reading import partition_name
from penstock.run.watermarks import Newest
from penstock.state.backends.base import OpenState
from penstock.state.keys import GROUP_SHIFT, SORT_KEY
from penstock.state.subtask_rows import subtask_sort_key
from penstock.testing.simulation.external import Row
from penstock.testing.simulation.lifeline import Violation
from penstock.testing.simulation.workload import Fault, Item, Record, fault_of, source_of

KEY = pa.schema([("key", pa.string())])
INPUT = pa.schema([("key", pa.string()), ("records", pa.list_(pa.string())), (SORT_KEY, pa.int64())])
OUTPUT = pa.schema(
    [
        ("key", pa.string()),
        ("count", pa.int64()),
        ("records", pa.list_(pa.string())),
        ("nonce", pa.int64()),
    ]
)


SET = "set clock"
"""The prefix of rows that report a timer that was set."""


def tells_of_timers(records: Sequence[str]) -> bool:
    """Whether a row is about a timer, and not about records."""
    return records[0].startswith((SET, *KINDS)) if records else False


class Counting(KeyedProcess):
    """Emits for every key that a batch touches the new count, the records, and a number that no replay repeats.

    `once`: only when it first sees a key, and never again; output that is lost once is then lost for good.
    Where calls may fail, that number is in a side output too.
    The count has a time to live that is longer than any simulation.
    """

    n = ValueState("long", ttl="3650d")
    echoes = SideOutput("nonce long")

    def __init__(self, rng: random.Random, *, once: bool, faults: float = 0.0) -> None:
        self._rng = rng
        self._once = once
        self._faults = faults

    @override
    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        records = [record for row in rows for record in row.records]
        before = self.n.value
        self.n.value = (before or 0) + len(records)
        if not self._once:
            nonce = self._rng.getrandbits(60)
            if self._faults:
                ctx.emit("echoes", (nonce,))
            yield key, self.n.value, records, nonce
        elif before is None:
            yield key, self.n.value, [first_sight(key)], self._rng.getrandbits(60)
        for record in records if self._faults else ():
            # after the state was changed and a result was given
            if fault_of(record, self._faults) is Fault.RAISES:
                raise ValueError(f"{record} cannot be counted")


LAYOUT = state_layout(Counting(random.Random(0), once=False), KEY)  # noqa: S311 - never drawn from


def sort_key(key: str | None, max_parallelism: int) -> int:
    """The number that state is sorted by; its upper part is the key group."""
    hashed = xxhash.xxh3_64_intdigest((key or "").encode())
    return (hashed % max_parallelism) << GROUP_SHIFT | (hashed & ((1 << GROUP_SHIFT) - 1))


def subtask_of(key: str | None, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key."""
    return (sort_key(key, max_parallelism) >> GROUP_SHIFT) % parallelism


def as_rows(items: Iterable[Item], max_parallelism: int) -> list[pa.RecordBatch]:
    """Items as Spark would hand them to a task; none without items."""
    rows = [(item.key, list(item.records), sort_key(item.key, max_parallelism)) for item in items]
    if not rows:
        return []
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), INPUT, strict=True)
    ]
    return [pa.RecordBatch.from_arrays(columns, schema=INPUT)]


def with_wake_row(rows: Iterable[pa.RecordBatch], subtask: int) -> list[pa.RecordBatch]:
    """The same, and what Spark adds for a subtask that is to run whether it has rows or not."""
    schema = INPUT.append(pa.field(WAKE, pa.bool_()))
    columns = {SORT_KEY: pa.array([subtask_sort_key(subtask)]), WAKE: pa.array([True])}
    wakes = [columns.get(field.name, pa.nulls(1, field.type)) for field in schema]
    others = [batch.append_column(WAKE, pa.nulls(batch.num_rows, pa.bool_())) for batch in rows]
    return [*others, pa.RecordBatch.from_arrays(wakes, schema=schema)]


def as_items(results: Iterable[pa.RecordBatch]) -> list[Item]:
    """The output of an operator as the next one sees it; only sinks get the rows about timers."""
    rows = [row for batch in results for row in batch.to_pylist()]
    return [Item(row["key"], tuple(row["records"])) for row in rows if not tells_of_timers(row["records"])]


def first_sight(key: str) -> str:
    """The records of a key as an operator that emits once passes them on, in any order of arrival."""
    return f"first of {key}"


def scan(state: OpenState) -> Mapping[str, int]:
    """The counts in the state."""
    found: dict[str, int] = {}
    for batch in state.scan():
        found |= dict(zip(batch.column("key").to_pylist(), batch.column("n").to_pylist(), strict=True))
    return found


MARKS = 4
LAST = 3


class CountingFunction(AggregateFunction):
    """Counts the records that are added."""

    @override
    def create(self) -> dict[str, int]:
        return {"n": 0}

    @override
    def add(self, accumulator: Any, value: int) -> Any:
        accumulator["n"] += value
        return accumulator

    @override
    def merge(self, accumulator: Any, other: Any) -> Any:
        return self.add(accumulator, other["n"])

    @override
    def result(self, accumulator: Any) -> int:
        return int(accumulator["n"])


def _written(number: int) -> bytes:
    return str(number).encode()


class CountingInEveryKind(Counting):
    """Changes every kind of state in the call that counts: entries and elements are added and removed."""

    added = ReducingState("long", operator.add)
    tally = AggregatingState("struct<n:long>", CountingFunction)
    raw = RawState(encode=_written, decode=int)
    marks = MapState("long", "long")
    last = ListState("long")

    @override
    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        for at in range(self.n.value or 0, (self.n.value or 0) + sum(len(row.records) for row in rows)):
            self.added.add(1)
            self.tally.add(1)
            self.raw.value = at + 1
            self.marks[at] = at * at
            self.marks.pop(at - MARKS, None)
            self.last.append(at)
        del self.last[:-LAST]
        yield from super().process(key, rows, ctx)


class CountingMore(Counting):
    """The next version of the operator, which keeps more; the one after it does not."""

    aside = ReducingState("long", operator.add)
    passed = MapState("long", "long")

    @override
    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        before, passed = self.n.value or 0, dict(self.passed.items())
        if max(passed, default=-1) >= before or sum(passed.values()) != (self.aside.value or 0):
            raise Violation(f"{key} has counted to {before}, passed {passed}, and {self.aside.value} aside")
        self.passed[before] = self.passed.get(before, 0) + 1
        self.aside.add(1)
        yield from super().process(key, rows, ctx)


def check_kinds(state: OpenState, counts: Mapping[str, int]) -> None:
    """Check that every kind of state agrees with the counts; raises `Violation`."""
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"marks": {}, "last": []})
    for batch in state.scan():
        for row in batch.to_pylist():
            found[row["key"]] |= {name: row[name] for name in ("added", "tally", "raw")}
    for batch in state.table("marks").scan():
        for row in batch.to_pylist():
            found[row["key"]]["marks"][row["marks_key"]] = row["marks"]
    for batch in state.table("last").scan():
        for row in batch.to_pylist():
            found[row["key"]]["last"].append(row["last"])
    expected = {key: _expected(count) for key, count in counts.items()}
    if dict(found) != expected:
        raise Violation(f"the kinds of state say {dict(found)}, the counts {expected}")


def _expected(count: int) -> dict[str, Any]:
    return {
        "added": count,
        "tally": {"n": count},
        "raw": _written(count),
        "marks": {at: at * at for at in range(max(0, count - MARKS), count)},
        "last": list(range(max(0, count - LAST), count)),
    }


_SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_S = 6
"""How much later than its position in the partition a record's time may be, so that records are out of order."""
TIME = TimeSettings("at", 2 * _SECOND_US, 5 * _SECOND_US, None, ("partition",), follows_clock=True)
"""Of each source; that some records are late is no matter to timers."""


def event_time_us(record: str) -> int | None:
    """The time of a record, from its name: about a second for each offset. None for what is no record of the source."""
    partition, _, offset = record.partition(":")
    if not (partition.isdigit() and offset.isdigit()):
        return None
    return (int(offset) + _drawn(record, "time") % LATEST_S) * _SECOND_US


def timer_us(record: str) -> int | None:
    """The time for which a record sets a timer; no other record sets one for the same time."""
    time_us = event_time_us(record)
    if time_us is None:
        return None
    partition, _, offset = record.partition(":")
    return time_us + (_drawn(record, "timer") % 10) * _SECOND_US + int(partition) * 1_000 + int(offset)


def _drawn(record: str, purpose: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{purpose} of {record}".encode())


def newest_of(records: Iterable[Record]) -> Newest:
    """The event times of a batch of records."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        partition, time_us = partition_name([record.id.partition(":")[0]]), event_time_us(record.id)
        if time_us is not None:
            of_source = found.setdefault(source_of(record.id), {})
            of_source[partition] = max(time_us, of_source.get(partition, time_us))
    return found


class CountingWithTimers(Counting):
    """Each record sets a timer by event time, each call one by the clock, which it reports; each firing timer emits a row."""

    @override
    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        yield from super().process(key, rows, ctx)
        for us in (timer_us(record) for row in rows for record in row.records):
            if us is not None:
                ctx.set_timer(_EPOCH + timedelta(microseconds=us))
        at = ctx.now + timedelta(microseconds=self._rng.randrange(3 * _SECOND_US))
        ctx.set_timer(at, by=CLOCK)
        yield self._row(key, SET, at)

    @override
    def on_timer(self, key: str, timer: Timer, ctx: Context) -> Iterator[tuple[object, ...]]:
        yield self._row(key, timer.by, timer.at)

    def _row(self, key: str, what: str, at: datetime) -> tuple[object, ...]:
        us = (at - _EPOCH) // timedelta(microseconds=1)
        return key, self.n.value, [f"{what} {us}"], self._rng.getrandbits(60)


def check_timers(
    uid: str, rows: Iterable[Row], records: list[Record], newest: Completed, mode: Mode, *, drained: bool
) -> None:
    """Every timer that is due has fired as often as the mode promises, and none that is not; raises `Violation`.

    Clock timers are those that the calls have set whose output is visible, which only exactly once is all there is.
    """
    fired: dict[str, Counter[tuple[str, int]]] = {what: Counter() for what in (EVENT_TIME, CLOCK, SET)}
    for row in rows:
        what, _, us = row["records"][0].rpartition(" ")
        fired[what][row["key"] if what != EVENT_TIME else "", int(us)] += 1
    until_us = max(newest.barrier.time.watermarks_us[uid], _watermark_us(records))
    moments = [us for record in records if (us := timer_us(record.id)) is not None]
    due = Counter(("", us) for us in moments if drained or us <= until_us)
    _compare(uid, EVENT_TIME, fired[EVENT_TIME], due, mode)
    if mode is Mode.EXACTLY_ONCE:
        now_us = newest.barrier.time.clock_us
        due = Counter({timer: times for timer, times in fired[SET].items() if timer[1] <= now_us})
        _compare(uid, CLOCK, fired[CLOCK], due, mode)


def _watermark_us(records: list[Record]) -> int:
    """The least event time after all records are read, from how far records may be out of order."""
    newest = [us for of_source in newest_of(records).values() for us in of_source.values()]
    return min(newest) - TIME.out_of_order_us - 1 if newest else 0


def _compare(
    uid: str, kind: str, fired: Counter[tuple[str, int]], due: Counter[tuple[str, int]], mode: Mode
) -> None:
    lost, extra = dict(due - fired), dict(fired - due)
    if (lost and mode is not Mode.AT_MOST_ONCE) or (extra and mode is not Mode.AT_LEAST_ONCE):
        raise Violation(f"timers of {uid} by {kind}: lost {lost}, too many {extra}")
