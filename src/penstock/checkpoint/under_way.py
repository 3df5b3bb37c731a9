"""The checkpoints under way: when one is triggered, which can complete, which is given up. Pure; driver.

What always holds:
1. No more than `max_concurrent` are under way at once; between two triggers lies `interval`, after each end `min_pause`, unless
   somebody waits for one. One that was triggered ahead of its time for that reason, and fails, changes nothing: the next comes when
   the interval says, and `tolerable_failures` counts what would have failed had nobody asked.
2. Metadata are written one at a time, the oldest first: each names what those before it leave.
3. A checkpoint ends once, completed or given up. One whose metadata is being written is not given up: it may exist already.
"""

from __future__ import annotations

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.events import FailJob, FailureReason
from penstock.checkpoint.pending import EventTimestamp, Pending
from penstock.config import Checkpointing
from penstock.errors import InternalError
from penstock.ids import CheckpointId

PAUSE_AFTER_FAILURE_S = 5.0
"""So long, or `min_pause`, whoever waits for a checkpoint waits for the next when one has failed."""


class UnderWay:
    """The pending checkpoints of one run, and what is known of those that ended."""

    def __init__(self, settings: Checkpointing, started: EventTimestamp) -> None:
        self._settings = settings
        self._last_trigger = started.monotonic
        self._last_end = float("-inf")
        self._last_failure = float("-inf")
        self._ahead: set[CheckpointId] = set()
        """Those that are triggered before it was time, because somebody waits for them."""
        self._failures_in_a_row = 0
        self.pending: dict[CheckpointId, Pending] = {}

    # ── triggering ─────────────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """Whether no other may be triggered beside them."""
        return len(self.pending) >= self._settings.max_concurrent

    def is_time(self, now: EventTimestamp) -> bool:
        """Whether the settings want the next one."""
        return (
            now.monotonic - self._last_trigger >= self._settings.interval_s
            and now.monotonic - self._last_end >= self._settings.min_pause_s
        )

    def due(self, now: EventTimestamp, *, at_once: bool = False) -> bool:
        """Whether the next one may begin. `at_once`: somebody waits for it, who is not to wait for the interval."""
        pause_s = max(PAUSE_AFTER_FAILURE_S, self._settings.min_pause_s)
        may_be_ahead = at_once and now.monotonic - self._last_failure >= pause_s
        return (may_be_ahead or self.is_time(now)) and not self.full

    def trigger(self, checkpoint: CheckpointId, now: EventTimestamp, *, ahead: bool = False) -> Pending:
        """Begin one. `ahead`: only because somebody waits for it."""
        if ahead:
            self._ahead.add(checkpoint)
        else:
            self._last_trigger = now.monotonic
        self.pending[checkpoint] = Pending(checkpoint, now)
        return self.pending[checkpoint]

    # ── looking ────────────────────────────────────────────────────────────────────────────────

    def in_order(self) -> list[Pending]:
        """The oldest first."""
        return [self.pending[number] for number in sorted(self.pending)]

    def not_being_written(self) -> list[Pending]:
        """Those that can be given up, the oldest first."""
        return [one for one in self.in_order() if not one.writing]

    def in_the_way(self) -> list[Pending]:
        """Those that must be given up before another one may be triggered, as far as they can be."""
        too_many = len(self.pending) - self._settings.max_concurrent + 1
        return self.not_being_written()[: max(0, too_many)]

    def late(self, now: EventTimestamp) -> list[tuple[Pending, str]]:
        """Those of them whose time is over, and what each of them waited for."""
        timeout_s = self._settings.timeout_s
        return [
            (one, one.who_is_late(timeout_s))
            for one in self.not_being_written()
            if now.monotonic - one.triggered.monotonic >= timeout_s
        ]

    def next_to_write(self) -> Pending | None:
        """The oldest that can complete, unless one is being written."""
        if any(one.writing for one in self.pending.values()):
            return None
        return next((one for one in self.in_order() if one.ready), None)

    def being_written(self, checkpoint: CheckpointId) -> Pending:
        """The one whose metadata has this number."""
        return self._being_written(checkpoint)[0]

    def _being_written(self, checkpoint: CheckpointId) -> tuple[Pending, Completed]:
        for pending in self.pending.values():
            if pending.writing is not None and pending.writing.id == checkpoint:
                return pending, pending.writing
        raise InternalError(f"checkpoint {checkpoint} is not being written")

    # ── ending ─────────────────────────────────────────────────────────────────────────────────

    def is_ahead(self, pending: Pending) -> bool:
        """Whether it was triggered before its time."""
        return pending.checkpoint in self._ahead

    def complete(self, checkpoint: CheckpointId, now: EventTimestamp) -> Completed:
        """The metadata with this number is written: the checkpoint exists."""
        pending, written = self._being_written(checkpoint)
        self._end(pending, now)
        self._last_trigger = max(self._last_trigger, pending.triggered.monotonic)
        self._failures_in_a_row = 0
        return written

    def given_up(
        self, pending: Pending, reason: FailureReason, detail: str, now: EventTimestamp, back_to: CheckpointId
    ) -> list[FailJob]:
        """It never will. If that is more than is tolerated, the job goes `back_to` its last checkpoint."""
        counts = reason.counts and pending.checkpoint not in self._ahead
        self._end(pending, now)
        self._last_failure = now.monotonic if reason.counts else self._last_failure
        self._failures_in_a_row += counts
        if not counts or self._failures_in_a_row <= self._settings.tolerable_failures:
            return []
        text = (
            f"checkpoint {pending.checkpoint} {reason.text} ({detail}); it is failure {self._failures_in_a_row} in a row and "
            f"checkpoint.tolerable_failures is {self._settings.tolerable_failures}, so the job goes back to "
            f"{f'checkpoint {back_to}' if back_to >= 0 else 'its beginning'}"
        )
        return [FailJob(text)]

    def _end(self, pending: Pending, now: EventTimestamp) -> None:
        del self.pending[pending.checkpoint]
        self._ahead.discard(pending.checkpoint)
        self._last_end = now.monotonic
