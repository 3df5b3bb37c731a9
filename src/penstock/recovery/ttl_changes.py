"""Times to live that differ between a checkpoint and the current job. Pure; driver.

A new time to live counts from now on. One that became longer, or was removed, must not bring back expired values: all state of the operator
is rewritten without them before the first batch, as after a change of parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from penstock.checkpoint.completed import StoredLifetime
from penstock.checkpoint.state_columns import StoredLifetimes, columns_of, with_lifetimes
from penstock.ids import SubtaskId
from penstock.state.backends.base import StateLayout
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import LONG_AGO_US, Measure

SwitchedOn = Mapping[str, Mapping[str, int]]
"""By operator and column of stamps: the moment at which the time to live was switched on."""


@dataclass(frozen=True)
class TtlChanges:
    """The times to live of the current job, compared with those of the checkpoint."""

    layouts: Mapping[str, StateLayout]
    stored: Mapping[str, StoredLifetimes]
    now_us: int
    watermarks_us: Mapping[str, int] = field(default_factory=dict)
    """By operator: the watermark with which it resumes; operators without one are left out."""

    @cached_property
    def switched_on(self) -> SwitchedOn:
        """Since when each time to live counts: as stored in the checkpoint, or from now on."""
        return {
            uid: {
                stamp: known[stamp].switched_on_us if stamp in known else self._now_by(uid, one)
                for stamp, one in columns_of(layout).lifetimes.items()
            }
            for uid, layout in self.layouts.items()
            for known in (self.stored.get(uid, {}),)
        }

    def _now_by(self, uid: str, lifetime: StoredLifetime) -> int:
        """Rows stored without a stamp count from now on. An operator without stored state has no such rows, and no timers."""
        if Measure(lifetime.measure) is Measure.CLOCK:
            return self.now_us
        if Measure(lifetime.measure) is Measure.FIRED:
            return LONG_AGO_US
        return self.watermarks_us.get(uid, LONG_AGO_US) if uid in self.stored else LONG_AGO_US

    @cached_property
    def brings_back(self) -> frozenset[str]:
        """Operators whose expired values would become visible again."""
        return frozenset(
            uid
            for uid, layout in self.layouts.items()
            for now in (columns_of(layout).lifetimes,)
            if any(
                stamp not in now or now[stamp].ttl_us > before.ttl_us
                for stamp, before in self.stored.get(uid, {}).items()
            )
        )

    @cached_property
    def former(self) -> tuple[dict[str, StateLayout], SwitchedOn]:
        """The current layouts with the times to live of the checkpoint, and since when those count."""
        layouts = {
            uid: with_lifetimes(layout, self.stored.get(uid, {})) for uid, layout in self.layouts.items()
        }
        since = {
            uid: {stamp: one.switched_on_us for stamp, one in known.items()}
            for uid, known in self.stored.items()
        }
        return layouts, since

    def fading(self, handles: Mapping[SubtaskId, StateHandle]) -> dict[SubtaskId, StateHandle]:
        """The handles; files whose time to live is new or different expire when it has passed once."""
        return {subtask: self._fading(handle) for subtask, handle in handles.items()}

    def _fading(self, handle: StateHandle) -> StateHandle:
        uid = handle.subtask.uid
        before = {stamp: one.ttl_us for stamp, one in self.stored.get(uid, {}).items()}
        now = columns_of(self.layouts[uid]).lifetimes
        changed = [one for stamp, one in now.items() if before.get(stamp) != one.ttl_us]
        by_event = [one.ttl_us for one in changed if Measure(one.measure) is Measure.WATERMARK]
        by_clock = [one.ttl_us for one in changed if Measure(one.measure) is not Measure.WATERMARK]
        moments: dict[str, int] = {}
        if by_clock:
            moments["fades"] = self.now_us + min(by_clock)
        if by_event and uid in self.watermarks_us:
            moments["fades_event"] = self.watermarks_us[uid] + min(by_event)
        refs = tuple(msgspec.structs.replace(ref, **moments) for ref in handle.refs)
        return msgspec.structs.replace(handle, refs=refs)
