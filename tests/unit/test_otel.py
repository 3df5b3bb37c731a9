"""Spans that the listener for OpenTelemetry makes of events, as an exporter of its SDK receives them."""

from __future__ import annotations

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock as ps
from builders.job_views import NOW, RICH_EVENTS, two_subtasks
from penstock.errors import ConfigError
from penstock.status.events import CheckpointCommitted, Event, FirstBatch, JobEnded, RunFailed, RunStarted
from penstock.status.listeners import Listeners
from penstock.status.otel import MOST_OPEN, OpenTelemetry
from services.patience import PATIENCE_S


def spans(*events: Event, job: str = "") -> list[ReadableSpan]:
    """What is exported after these events, in the order of their beginnings, parents first."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    listeners = Listeners([OpenTelemetry(provider, job=job)])
    for event in events:
        listeners.tell(event)
    assert listeners.close(PATIENCE_S)
    return sorted(
        exporter.get_finished_spans(), key=lambda one: (one.start_time or 0, one.parent is not None)
    )


def roots(found: list[ReadableSpan]) -> list[ReadableSpan]:
    return [one for one in found if one.parent is None]


def children(found: list[ReadableSpan], root: ReadableSpan) -> list[ReadableSpan]:
    assert root.context is not None
    return [one for one in found if one.parent is not None and one.parent.span_id == root.context.span_id]


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return round((span.end_time - span.start_time) / 1e9, 3)


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def failed(run: int, at: float, *, restarts: bool = True) -> RunFailed:
    return RunFailed(
        at=at,
        run=run,
        error="UserCodeError",
        why="division by zero",
        strategy="fixed",
        restarts=restarts,
        rows_again=9,
    )


def test_a_checkpoint() -> None:
    """A checkpoint is a span from its trigger to its commit, with a child for each part; together they fill it."""
    found = spans(
        two_subtasks(7, NOW, 1),
        CheckpointCommitted(at=NOW + 0.25, run=1, checkpoint=7, commit_ms=250.0),
        job="views",
    )
    (root,) = roots(found)
    assert (root.name, seconds(root), root.status.status_code) == (
        "penstock.checkpoint",
        1.75,
        trace.StatusCode.UNSET,
    )
    assert attributes(root)["penstock.checkpoint"] == 7
    assert attributes(root)["penstock.job"] == "views"
    parts = children(found, root)
    assert [(one.name.rpartition(".")[2], seconds(one)) for one in parts] == [
        ("batch", 0.6),
        ("async_part", 0.8),
        ("complete", 0.1),
        ("commit", 0.25),
    ]


def test_a_checkpoint_that_is_never_committed() -> None:
    """It is told when the job ends or fails, without the part that did not come; however many there are, memory is bounded."""
    (root,) = roots(spans(two_subtasks(7, NOW, 1)))
    assert attributes(root)["penstock.committed"] is False
    assert (
        len(roots(spans(*(two_subtasks(number, NOW + number, 1) for number in range(MOST_OPEN + 20)))))
        == MOST_OPEN + 20
    )
    listener = OpenTelemetry()
    for number in range(MOST_OPEN + 20):
        listener.on_event(two_subtasks(number, NOW, 1))
    assert len(listener._completed) == MOST_OPEN


def test_the_story_of_a_job() -> None:
    """Of a job that failed once: both checkpoints, the one that was given up with its reason as an error, and the recovery with its parts."""
    found = spans(*RICH_EVENTS)
    assert [one.name for one in roots(found)] == [
        "penstock.checkpoint",
        "penstock.checkpoint",
        "penstock.recovery",
        "penstock.checkpoint",
    ]
    _, given_up, recovery, _ = roots(found)
    assert given_up.status.status_code is trace.StatusCode.ERROR
    assert "per-page-1" in str(given_up.status.description)
    assert seconds(recovery) == 10.0
    assert recovery.status.status_code is trace.StatusCode.UNSET
    assert attributes(recovery) == {
        "penstock.run": 1,
        "penstock.error": "UserCodeError",
        "penstock.strategy": "exponential_delay",
        "penstock.rows_again": 55,
        "penstock.next_run": 2,
        "penstock.restored_from": 39,
    }
    assert [(one.name, seconds(one)) for one in children(found, recovery)] == [
        ("penstock.recovery.wait_and_restore", 5.0),
        ("penstock.recovery.first_batch", 5.0),
    ]


def test_failures_in_a_row_are_one_recovery() -> None:
    """A run that fails before its first batch belongs to the recovery that was under way."""
    started = [
        RunStarted(at=NOW + at, run=run, host="h", pid=1, restored_from=3) for run, at in ((2, 1), (3, 3))
    ]
    found = spans(
        failed(1, NOW),
        started[0],
        failed(2, NOW + 2),
        started[1],
        FirstBatch(at=NOW + 4, run=3, batch=1, took_s=1),
    )
    (root,) = roots(found)
    assert (seconds(root), attributes(root)["penstock.next_run"]) == (4.0, 3)


@pytest.mark.parametrize(
    "story",
    [
        [failed(1, NOW, restarts=False), JobEnded(at=NOW + 1, run=1, how="failed")],
        [failed(1, NOW), JobEnded(at=NOW + 1, run=1, how="cancelled")],
    ],
)
def test_a_job_that_does_not_come_back(story: list[Event]) -> None:
    """The recovery that did not succeed is a span with an error, once."""
    (root,) = roots(spans(*story))
    assert root.status.status_code is trace.StatusCode.ERROR
    assert root.status.description == "division by zero"


def test_a_first_start_is_no_recovery() -> None:
    """Without a failure before it, a first batch makes no span."""
    assert (
        spans(RunStarted(at=NOW, run=1, host="h", pid=1), FirstBatch(at=NOW + 1, run=1, batch=0, took_s=1))
        == []
    )


def test_spans_of_a_job_are_not_inside_of_others() -> None:
    """What the program happens to do while a job runs is not the parent of its checkpoints."""
    with TracerProvider().get_tracer("mine").start_as_current_span("mine"):
        assert roots(spans(two_subtasks(7, NOW, 1)))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener says what to install; the name is there without it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError, match="otel"):
        ps.OpenTelemetry()
