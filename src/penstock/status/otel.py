"""OpenTelemetry spans for checkpoints and recoveries, made of events. Driver; needs `penstock[otel]`.

    checkpoint                 from the trigger until all it promised is visible
    ├── batch                  until the barrier had passed
    ├── async part             until all files were in storage
    ├── complete               writing the metadata
    └── commit                 until readers see it
    recovery                   from the failure until the first batch is done again
    ├── wait and restore       until the next run is about to start its query
    └── first batch

A span is made when it is over: its times are those of the events, whatever happens to the thread that hears them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from penstock.lazy_imports import optional_package
from penstock.status.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    FirstBatch,
    JobEnded,
    RunFailed,
    RunStarted,
)
from penstock.status.listeners import Listener
from penstock.version import __version__

MOST_OPEN = 100
"""Completed checkpoints that wait for their commit. Beyond that number the oldest is exported as it is."""

_Parts = Sequence[tuple[str, float, float]]


class OpenTelemetry(Listener):
    """A listener that makes spans: `job.start(listeners=[ps.OpenTelemetry()])`.

    `tracer_provider`: yours; None takes the global one, which does nothing until your program has set one up. `job` becomes the attribute
    `penstock.job` of each span, where one program has several jobs.
    """

    def __init__(self, tracer_provider: Any = None, *, job: str = "") -> None:
        api = optional_package("opentelemetry.trace", needed_by="OpenTelemetry", extra="otel")
        self._api = api
        self._tracer = api.get_tracer("penstock", __version__, tracer_provider)
        self._job = {"penstock.job": job} if job else {}
        self._completed: dict[tuple[int, int], CheckpointCompleted] = {}
        self._failed: RunFailed | None = None
        self._started: RunStarted | None = None

    @override
    def on_event(self, event: Event) -> None:
        match event:
            case CheckpointCompleted():
                self._completed[event.checkpoint, event.run] = event
                self._tell_the_oldest(MOST_OPEN)
            case CheckpointCommitted():
                completed = self._completed.pop((event.checkpoint, event.run), None)
                if completed is not None:
                    self._checkpoint(completed, event)
            case CheckpointFailed():
                self._given_up(event)
            case RunFailed():
                self._tell_the_oldest(0)
                self._failed = self._failed or event
                if not event.restarts:
                    self._recovery(event.at, came_back=False)
            case RunStarted():
                self._started = event
            case FirstBatch():
                self._recovery(event.at, came_back=True)
            case JobEnded():
                self._recovery(event.at, came_back=False)

    @override
    def close(self) -> None:
        """Export completed checkpoints whose commit was never reported."""
        self._tell_the_oldest(0)

    # ── checkpoints ────────────────────────────────────────────────────────────────────────────

    def _tell_the_oldest(self, keep: int) -> None:
        while len(self._completed) > keep:
            self._checkpoint(self._completed.pop(next(iter(self._completed))), None)

    def _checkpoint(self, event: CheckpointCompleted, committed: CheckpointCommitted | None) -> None:
        parts = [
            ("batch", event.triggered_at, event.barrier_at),
            ("async part", event.barrier_at, event.stored_at),
            ("complete", event.stored_at, event.at),
        ]
        if committed is not None:
            parts.append(("commit", event.at, committed.at))
        facts = {
            "penstock.checkpoint": event.checkpoint,
            "penstock.run": event.run,
            "penstock.duration_ms": event.duration_ms,
            "penstock.state_bytes": event.state_bytes,
            "penstock.new_bytes": event.new_bytes,
            "penstock.rows": event.rows,
            "penstock.transactions": event.transactions,
            "penstock.subtasks": event.subtasks_in_all,
            "penstock.committed": committed is not None,
        }
        end = event.at if committed is None else committed.at
        self._span("checkpoint", event.triggered_at, end, facts=facts, parts=parts)

    def _given_up(self, event: CheckpointFailed) -> None:
        facts = {
            "penstock.checkpoint": event.checkpoint,
            "penstock.run": event.run,
            "penstock.reason": event.reason,
        }
        why = ": ".join(part for part in (event.text, event.detail) if part)
        self._span("checkpoint", event.triggered_at or event.at, event.at, facts=facts, error=why)

    # ── recoveries ─────────────────────────────────────────────────────────────────────────────

    def _recovery(self, end: float, *, came_back: bool) -> None:
        """Several failures without a batch between them are one recovery."""
        failed, started = self._failed, self._started
        self._failed = self._started = None
        if failed is None:
            return
        again = started if started is not None and started.run > failed.run else None
        facts: dict[str, Any] = {
            "penstock.run": failed.run,
            "penstock.error": failed.error,
            "penstock.strategy": failed.strategy,
            "penstock.rows_again": failed.rows_again,
        }
        parts: list[tuple[str, float, float]] = []
        if again is not None:
            facts |= {"penstock.next_run": again.run, "penstock.restored_from": again.restored_from}
            parts.append(("wait and restore", failed.at, again.at))
            if came_back:
                parts.append(("first batch", again.at, end))
        self._span(
            "recovery", failed.at, end, facts=facts, parts=parts, error="" if came_back else failed.why
        )

    # ── one span ───────────────────────────────────────────────────────────────────────────────

    def _span(
        self,
        name: str,
        begin: float,
        end: float,
        *,
        facts: Mapping[str, Any],
        parts: _Parts = (),
        error: str = "",
    ) -> None:
        """One span with its parts, all over already. It has no parent: the job does not run inside a request."""
        span = self._tracer.start_span(
            f"penstock.{name}",
            context=self._api.set_span_in_context(self._api.INVALID_SPAN),
            start_time=_nanos(begin),
            attributes={**self._job, **facts},
        )
        inside = self._api.set_span_in_context(span)
        for part, part_begin, part_end in parts:
            child = self._tracer.start_span(
                f"penstock.{name}.{part.replace(' ', '_')}", context=inside, start_time=_nanos(part_begin)
            )
            child.end(_nanos(max(part_begin, part_end)))
        if error:
            span.set_status(self._api.StatusCode.ERROR, error)
        span.end(_nanos(max(begin, end)))


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)
