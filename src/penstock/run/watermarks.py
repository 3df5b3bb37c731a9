"""Watermarks: the event time of partitions, sources and operators. Pure; driver.

The watermark of a source is that of its slowest partition; the watermark of an operator is that of its slowest source. A partition that
was silent for long is idle, and not waited for; so is a source whose partitions are all idle. A watermark never goes back.
When all are idle, the watermark stays where the last of them left it, as in Flink: silence alone makes no row late.
With `TimeSettings.follows_clock` the watermark then advances to the newest row of all, and from there with the clock,
but only in batches that read nothing of the source, and only at operators for which something is due by it.
An operator does not pass an upstream operator that still waits for a moment in event time: the results of that one must not be late. An
idle operator whose watermark stays is not waited for: it would hold the others forever.

Silence is measured by what the driver has seen: from the beginning of the last batch with rows of the partition to the beginning of the
last batch without, or to a later look at the sources that found nothing. So a long batch, or a trigger with a long interval, makes no
partition idle: the driver has not yet seen the rows that arrived meanwhile. A restart begins to count anew, because there may be a
backlog; once a run has read its input to the end, the silence of earlier runs counts, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType

from penstock.checkpoint.model import SourceTime, TimeReached, Upstream
from penstock.errors import UserCodeError
from penstock.graph import TimeSettings
from penstock.ids import CheckpointId
from penstock.operators.event_time import OperatorClock
from penstock.run.reading import ALL_ROWS
from penstock.state.backends.base import StateLayout
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US, Measure

Newest = Mapping[str, Mapping[str, int]]
"""The newest event time among the rows of a batch, by source and partition. Partitions without rows that have a time are missing."""
NOTHING_WAITS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class _Partition:
    newest_us: int | None
    """None if it had no rows."""
    seen_us: int
    """The beginning of the last batch that had rows of it, or when it became known in this run."""
    before_us: int | None = None
    """The same in earlier runs, as long as the partition had no rows in this one."""

    def since_the_last_run(self) -> _Partition:
        """The partition with the silence of earlier runs included."""
        return self if self.before_us is None else replace(self, seen_us=self.before_us)


@dataclass(frozen=True)
class _Silence:
    """An operator whose sources are all idle: since when, and its watermark at that time."""

    began_us: int
    base_us: int


@dataclass(frozen=True)
class _Source:
    """The state of a source at one moment."""

    settings: TimeSettings
    partitions: Mapping[str, _Partition]
    watermark_us: int
    known_us: int
    """When this run began to read it."""

    def silent_since_us(self) -> int:
        """When the last of its partitions fell silent."""
        return max((one.seen_us for one in self.partitions.values()), default=self.known_us)

    def idle_from_us(self) -> int:
        """When the last of its partitions became idle, if it stayed silent."""
        return self.silent_since_us() + (self.settings.idle_after_us or 0)

    def is_idle(self, looked_us: int) -> bool:
        """Whether nothing waits for it."""
        return self._has_passed(self.silent_since_us(), looked_us)

    def _has_passed(self, since_us: int, looked_us: int) -> bool:
        after_us = self.settings.idle_after_us
        return after_us is not None and looked_us - since_us >= after_us

    def at(self, looked_us: int) -> _Source:
        """The source with its watermark advanced to this moment."""
        active = {
            name: one for name, one in self.partitions.items() if not self._has_passed(one.seen_us, looked_us)
        }
        if not active and self.settings.follows_clock:
            return self._advanced([max(self._newest(), default=None)])
        deciding = active or self._last_to_fall_silent()
        source = self._advanced([one.newest_us for one in deciding.values()])
        return source if self.settings.in_positions or not deciding else replace(source, partitions=deciding)

    def _newest(self) -> list[int]:
        return [one.newest_us for one in self.partitions.values() if one.newest_us is not None]

    def _last_to_fall_silent(self) -> dict[str, _Partition]:
        """The partitions that were still active when all others were idle, among those that had rows."""
        timed = {name: one for name, one in self.partitions.items() if one.newest_us is not None}
        last_us = max((one.seen_us for one in timed.values()), default=0)
        return {name: one for name, one in timed.items() if one.seen_us == last_us}

    def _advanced(self, newest_us: Collection[int | None]) -> _Source:
        """The source with the watermark of its slowest partition. If one has had no rows, the watermark stays."""
        known = [us for us in newest_us if us is not None]
        if not known or len(known) < len(newest_us):
            return self
        reached_us = min(known) - self.settings.out_of_order_us - 1
        return replace(self, watermark_us=max(self.watermark_us, _before_the_end(reached_us)))


class Watermarks:
    """The watermarks of one run. `begin` and `finish` are called for every batch in turn; their times never go back."""

    def __init__(
        self,
        sources: Mapping[str, TimeSettings],
        timed_by: Mapping[str, Collection[str]],
        reached: TimeReached,
        now_us: int,
        upstream: Upstream | None = None,
        *,
        lateness_us: Mapping[str, int] | None = None,
    ) -> None:
        self._upstream = upstream or {}
        in_order = sorted(timed_by, key=lambda operator: len(self._upstream.get(operator, ())))
        self._timed_by = {operator: frozenset(timed_by[operator]) for operator in in_order}
        self._sources = {
            uid: _restored(settings, reached.sources.get(uid), now_us) for uid, settings in sources.items()
        }
        self._applied = {
            operator: reached.watermarks_us.get(operator, LONG_AGO_US) for operator in self._timed_by
        }
        self._lateness_us = lateness_us or {}
        self._over_us = {
            operator: reached.over_us.get(operator, LONG_AGO_US) for operator in self._lateness_us
        }
        self._to_go_on_from = dict(reached.to_go_on_from_us)
        self._anew_in = reached.anew_in
        self._begins_anew = False
        self._fired_us = reached.clock_us or LONG_AGO_US
        self._silences: dict[str, _Silence] = {}
        self._looked_us = dict.fromkeys(sources, now_us)
        self._began_us = now_us
        self._reads: frozenset[str] = frozenset()

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def know(self, partitions: Mapping[str, Collection[str]], now_us: int) -> None:
        """Set the partitions that exist now. From now on they are waited for, even without rows."""
        for uid, names in partitions.items():
            source = self._sources[uid]
            new = {name: _Partition(None, now_us) for name in names if name not in source.partitions}
            kept = {name: one for name, one in source.partitions.items() if name in names}
            self._sources[uid] = replace(source, partitions={**kept, **new})

    def begin(
        self,
        now_us: int,
        *,
        reads: Collection[str] = (),
        looked_us: int | None = None,
        waiting: Mapping[str, int] = NOTHING_WAITS,
    ) -> dict[str, OperatorClock]:
        """Advance time to the rows of earlier batches.

        `reads`: the sources of which the batch may have rows. `looked_us`: when Spark last looked at all sources; it found nothing else.
        `waiting`: the operators that wait for a moment in event time, and the first moment of each.
        """
        self._reads = frozenset(reads)
        self._began_us = now_us if looked_us is None or not reads else looked_us
        self._looked_us = self._looked(looked_us, self._reads)
        self._advance_sources()
        before = dict(self._applied)
        self._applied, self._silences = self._ahead(self._looked_us, self._reads, waiting)
        clocks = self._clocks(before, self._applied, now_us)
        self._over_us = {
            operator: max(over_us, self._applied[operator] - self._lateness_us[operator])
            for operator, over_us in self._over_us.items()
        }
        return clocks

    def begin_end_of_time(self, now_us: int) -> dict[str, OperatorClock]:
        """Advance time to its end, because no more rows will come. The former watermarks are kept for a job that continues nevertheless."""
        before = dict(self._applied)
        self._to_go_on_from = self._to_go_on_from or self.if_nothing_is_read(None)
        self._applied = dict.fromkeys(before, FAR_AWAY_US)
        return self._clocks(before, self._applied, now_us)

    def begin_anew(self, batch: CheckpointId) -> dict[str, OperatorClock]:
        """After the end of time: remove, in this batch, all state that expires by event time. Then the watermarks are the former ones.

        Until the batch is done, time is over: a run that continues from the record of its beginning has to begin anew, too. The batch does
        nothing else, because all rows would be late: the clock stands still, and its timers fire in the next batch.
        """
        self._begins_anew, self._anew_in = True, batch
        return self._clocks(self._applied, self._applied, self._fired_us)

    def read_to_the_end(self, looked_us: int) -> None:
        """All rows that existed at this moment are read: partitions without rows were silent in this run, and since the previous one."""
        for uid, source in self._sources.items():
            silent = {name: one.since_the_last_run() for name, one in source.partitions.items()}
            self._sources[uid] = replace(source, partitions=silent)
        self._looked_us = self._looked(looked_us)

    def finish(self, newest: Newest) -> None:
        """The current batch has ended; these are the newest times among its rows."""
        for uid, found in newest.items():
            source = self._sources[uid]
            changed = {name: self._moved(source, name, us) for name, us in found.items()}
            self._sources[uid] = replace(source, partitions={**source.partitions, **changed})
        # the batch contains everything that had arrived when it began
        for uid in self._reads & self._looked_us.keys():
            self._looked_us[uid] = max(self._looked_us[uid], self._began_us)
        self._advance_sources()
        if self._begins_anew:
            self._applied = {
                operator: self._to_go_on_from.get(operator, LONG_AGO_US) for operator in self._applied
            }
            self._to_go_on_from, self._begins_anew = {}, False

    def _moved(self, source: _Source, name: str, newest_us: int) -> _Partition:
        known = source.partitions.get(name)
        before = newest_us if known is None or known.newest_us is None else known.newest_us
        return _Partition(max(before, newest_us), self._began_us)

    def _looked(self, looked_us: int | None, reads: Collection[str] = ()) -> dict[str, int]:
        """By source, the last moment up to which its rows are known. The rows of the batch that begins are not known yet."""
        return {
            uid: before_us if looked_us is None or uid in reads else max(before_us, looked_us)
            for uid, before_us in self._looked_us.items()
        }

    def _advance_sources(self) -> None:
        self._sources = {uid: source.at(self._looked_us[uid]) for uid, source in self._sources.items()}

    # ── what it comes to ───────────────────────────────────────────────────────────────────────

    @property
    def time_is_over(self) -> bool:
        """Whether time has ended, and no batch has begun anew and finished since."""
        return bool(self._to_go_on_from)

    def if_nothing_is_read(
        self, looked_us: int | None, waiting: Mapping[str, int] = NOTHING_WAITS
    ) -> dict[str, int]:
        """The watermarks of the operators in a batch that begins now and reads nothing; see `begin`."""
        return self._ahead(self._looked(looked_us), frozenset(), waiting)[0]

    def reached(self) -> TimeReached:
        """The record for the checkpoint."""
        sources = {
            uid: SourceTime(
                source.watermark_us,
                {name: one.newest_us for name, one in source.partitions.items() if one.newest_us is not None},
                source.settings.partition or (),
                {
                    name: one.seen_us if one.before_us is None else one.before_us
                    for name, one in source.partitions.items()
                },
            )
            for uid, source in self._sources.items()
        }
        to_go_on_from = dict(self._to_go_on_from)
        return TimeReached(
            dict(self._applied),
            sources,
            max(self._fired_us, 0),
            to_go_on_from,
            {operator: us for operator, us in self._over_us.items() if us > LONG_AGO_US},
            self._anew_in,
        )

    def _ahead(
        self, looked_us: Mapping[str, int], reads: frozenset[str], waiting: Mapping[str, int]
    ) -> tuple[dict[str, int], dict[str, _Silence]]:
        """Where the watermarks advance to. They follow the clock only where something is due by it, and at the operators before those."""
        sources = {uid: source.at(looked_us[uid]) for uid, source in self._sources.items()}
        furthest, _ = self._moved_on(sources, looked_us, reads, waiting, with_clock=self._timed_by.keys())
        due = {uid for uid, first_us in waiting.items() if uid in furthest and first_us <= furthest[uid]}
        before_due = {before for uid in due for before in self._upstream.get(uid, ())}
        return self._moved_on(sources, looked_us, reads, waiting, with_clock=due | before_due)

    def _moved_on(
        self,
        sources: Mapping[str, _Source],
        looked_us: Mapping[str, int],
        reads: frozenset[str],
        waiting: Mapping[str, int],
        *,
        with_clock: Collection[str],
    ) -> tuple[dict[str, int], dict[str, _Silence]]:
        applied: dict[str, int] = {}
        silences: dict[str, _Silence] = {}
        staying: set[str] = set()
        for operator, uids in self._timed_by.items():
            own = [sources[uid] for uid in uids]
            active = [sources[uid] for uid in uids if not sources[uid].is_idle(looked_us[uid])]
            reached_us = max(self._applied[operator], _of_slowest(active or _deciding(own)))
            if own and not active:
                if not all(one.settings.follows_clock for one in own):
                    staying.add(operator)
                elif reached_us > LONG_AGO_US:
                    silence = silences[operator] = self._silence(operator, own, reached_us)
                    if operator in with_clock and not uids & reads:
                        passed_us = min(looked_us[uid] for uid in uids) - silence.began_us
                        reached_us = max(reached_us, _before_the_end(silence.base_us + passed_us))
            holding = [
                applied[uid]
                for uid in self._upstream.get(operator, ())
                if uid in waiting and uid in applied and uid not in staying
            ]
            held_us = min([reached_us, *(us for us in holding if us > LONG_AGO_US)])
            applied[operator] = max(self._applied[operator], held_us)
        return applied, silences

    def _silence(self, operator: str, sources: Collection[_Source], reached_us: int) -> _Silence:
        began_us = max(source.idle_from_us() for source in sources)
        before = self._silences.get(operator)
        if before is not None and before.began_us == began_us:
            return before
        return _Silence(began_us, reached_us)

    def _clocks(
        self, before: Mapping[str, int], applied: Mapping[str, int], now_us: int
    ) -> dict[str, OperatorClock]:
        fired_us, self._fired_us = self._fired_us, now_us
        clocks = {}
        for operator in self._timed_by:
            clocks[operator] = OperatorClock(
                before[operator],
                applied[operator],
                fired_us,
                now_us,
                over_us=self._over_us.get(operator, LONG_AGO_US),
            )
        return clocks


def _deciding(sources: Collection[_Source]) -> list[_Source]:
    """The sources that decide when all are idle: the newest, if all follow the clock, otherwise those that fell silent last."""
    timed = [source for source in sources if source.watermark_us > LONG_AGO_US]
    if not timed:
        return []
    if all(source.settings.follows_clock for source in sources):
        return [max(timed, key=lambda source: source.watermark_us)]
    last_us = max(source.idle_from_us() for source in timed)
    return [source for source in timed if source.idle_from_us() == last_us]


def _of_slowest(sources: Collection[_Source]) -> int:
    return min((source.watermark_us for source in sources), default=LONG_AGO_US)


def _before_the_end(us: int) -> int:
    """Only a drain ends time; rows and clocks never do."""
    return min(us, FAR_AWAY_US - 1)


def latest_us(settings: TimeSettings, now_us: int) -> int:
    """The latest event time that is accepted; later ones are absurd."""
    return FAR_AWAY_US if settings.ahead_us is None else min(now_us + settings.ahead_us, FAR_AWAY_US)


def _restored(settings: TimeSettings, reached: SourceTime | None, now_us: int) -> _Source:
    """A source as the checkpoint has it. Its partitions count only if rows still tell them apart in the same way."""
    same = reached is not None and reached.told_by in (None, settings.partition or ())
    newest, seen = (reached.newest_us, reached.seen_us) if reached is not None and same else ({}, {})
    partitions = {
        name: _Partition(newest.get(name), now_us, seen.get(name))
        for name in newest.keys() | seen.keys()
        if name != ALL_ROWS
    }
    if not settings.partition:
        partitions = {ALL_ROWS: _Partition(newest.get(ALL_ROWS), now_us, seen.get(ALL_ROWS))}
    return _Source(settings, partitions, LONG_AGO_US if reached is None else reached.watermark_us, now_us)


def due_operators(
    handles: Iterable[StateHandle], watermarks_us: Mapping[str, int], now_us: int
) -> frozenset[str]:
    """The operators with something due, at these watermarks and this time of the clock."""
    return frozenset(
        handle.subtask.uid
        for handle in handles
        if handle.due.is_reached(watermarks_us.get(handle.subtask.uid, LONG_AGO_US), now_us)
    )


def waiting_in_event_time(handles: Iterable[StateHandle]) -> dict[str, int]:
    """The operators that wait for a moment in event time, with the first moment of each."""
    found: dict[str, int] = {}
    for handle in handles:
        uid, first = handle.subtask.uid, handle.due.event_us
        if first is not None:
            found[uid] = min(first, found.get(uid, first))
    return found


def refuse_pending_timers(handles: Iterable[StateHandle]) -> None:
    """Raise `UserCodeError` if a timer waits in event time, which has ended: it would never fire."""
    for uid, first_us in waiting_in_event_time(handles).items():
        raise UserCodeError(
            f"operator {uid}: event time has ended, and a timer for {_moment(first_us)} is still pending: its code sets a new timer each "
            "time one fires. With drain=True such a chain of timers must end",
            operator=uid,
        )


def _moment(us: int) -> str:
    try:
        return f"{datetime.fromtimestamp(us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{us} us after 1970"


def expiring_by_event_time(layouts: Mapping[str, StateLayout]) -> frozenset[str]:
    """The operators with state that expires by event time."""
    return frozenset(
        uid
        for uid, layout in layouts.items()
        if any(
            lifetime.measure is Measure.WATERMARK
            for table in layout.by_name.values()
            for lifetime in table.lifetimes
        )
    )
