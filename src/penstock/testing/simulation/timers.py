"""The counting operator once more, with timers: when they fire follows from the records alone, or is said when they are set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import xxhash

from penstock.checkpoint.completed import Completed
from penstock.config import Mode
from penstock.engine.source_partitions import partition_name
from penstock.engine.watermarks import Newest
from penstock.graph import TimeSettings
from penstock.operators.process.keyed import Context
from penstock.operators.rows import Rows
from penstock.operators.timers import CLOCK, EVENT_TIME, Timer
from penstock.testing.simulation.counting import SET, Counting
from penstock.testing.simulation.external import Row
from penstock.testing.simulation.lifeline import Violation
from penstock.testing.simulation.source import Record, source_of

_SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_S = 6
"""So much later than its place in the partition says the time of a record may be: records are out of order."""
TIME = TimeSettings("at", 2 * _SECOND_US, 5 * _SECOND_US, None, ("partition",), follows_clock=True)
"""Of each source; that some records are late is no matter to timers."""


def event_time_us(record: str) -> int | None:
    """The time of a record, from its name: about a second for each offset. None for what is no record of the source."""
    partition, _, offset = record.partition(":")
    if not (partition.isdigit() and offset.isdigit()):
        return None
    return (int(offset) + _drawn(record, "time") % LATEST_S) * _SECOND_US


def timer_us(record: str) -> int | None:
    """The moment for which a record sets a timer; no other record sets one for it."""
    time_us = event_time_us(record)
    if time_us is None:
        return None
    partition, _, offset = record.partition(":")
    return time_us + (_drawn(record, "timer") % 10) * _SECOND_US + int(partition) * 1_000 + int(offset)


def _drawn(record: str, purpose: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{purpose} of {record}".encode())


def newest_of(records: Iterable[Record]) -> Newest:
    """What a batch of records says about time."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        partition, time_us = partition_name([record.id.partition(":")[0]]), event_time_us(record.id)
        if time_us is not None:
            of_source = found.setdefault(source_of(record.id), {})
            of_source[partition] = max(time_us, of_source.get(partition, time_us))
    return found


class CountingWithTimers(Counting):
    """Each record sets a timer by event time, each call one by the clock, of which it tells; each timer that fires is a row."""

    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        """See `KeyedProcess.process`."""
        yield from super().process(key, rows, ctx)
        for us in (timer_us(record) for row in rows for record in row.records):
            if us is not None:
                ctx.set_timer(_EPOCH + timedelta(microseconds=us))
        at = ctx.now + timedelta(microseconds=self._rng.randrange(3 * _SECOND_US))
        ctx.set_timer(at, by=CLOCK)
        yield self._row(key, SET, at)

    def on_timer(self, key: str, timer: Timer, ctx: Context) -> Iterator[tuple[object, ...]]:  # noqa: ARG002
        """See `KeyedProcess.on_timer`."""
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
    """As far as time has come at least when all records are read: none is so much older than the newest of its partition."""
    newest = [us for of_source in newest_of(records).values() for us in of_source.values()]
    return min(newest) - TIME.out_of_order_us - 1 if newest else 0


def _compare(
    uid: str, kind: str, fired: Counter[tuple[str, int]], due: Counter[tuple[str, int]], mode: Mode
) -> None:
    lost, extra = dict(due - fired), dict(fired - due)
    if (lost and mode is not Mode.AT_MOST_ONCE) or (extra and mode is not Mode.AT_LEAST_ONCE):
        raise Violation(f"timers of {uid} by {kind}: lost {lost}, too many {extra}")
