"""`/metrics` for Prometheus: Flink's metrics under their own names, and the families of Penstock. The dashboard's process.

A family of ours begins with `penstock_`, a counter ends with `_total`, and units come last. Unknown values are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.dashboard.flink.terms import DESCRIBED, is_over, job_metrics
from penstock.dashboard.status_poller import JobViews
from penstock.status.live import OperatorLive, Progress, SinkLive, SourceLive
from penstock.status.view import JobState, JobView, source_behind

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]
_Part = TypeVar("_Part", SourceLive, OperatorLive, SinkLive)


@dataclass(frozen=True)
class Family:
    """The series of one measurement. `labels` follow those of the job."""

    name: str
    text: str
    values: Callable[[JobView], Values]
    labels: Labels = ()

    @property
    def is_counter(self) -> bool:
        """Whether its values never decrease: the convention of Prometheus for names."""
        return self.name.endswith("_total")


def _job(name: str, text: str, value: Callable[[JobView], float | None]) -> Family:
    """One value for the whole job."""

    def values(view: JobView) -> Iterator[tuple[Labels, float]]:
        found = value(view)
        if found is not None:
            yield (), found

    return Family(name, text, values)


def _live(name: str, text: str, value: Callable[[Progress], float | None]) -> Family:
    """One value from the live status of the job."""
    return _job(name, text, lambda view: None if view.live is None else value(view.live))


def _each(
    kind: str,
    parts: Callable[[Progress], Mapping[str, _Part]],
    name: str,
    text: str,
    value: Callable[[JobView, _Part], float | None],
) -> Family:
    """One value for each source, operator or sink."""

    def values(view: JobView) -> Iterator[tuple[Labels, float]]:
        for uid, part in (parts(view.live) if view.live is not None else {}).items():
            found = value(view, part)
            if found is not None:
                yield (uid,), found

    return Family(name, text, values, (kind,))


def _source(name: str, text: str, value: Callable[[JobView, SourceLive], float | None]) -> Family:
    return _each("source", lambda live: live.sources, name, text, value)


def _operator(name: str, text: str, value: Callable[[JobView, OperatorLive], float | None]) -> Family:
    return _each("operator", lambda live: live.operators, name, text, value)


def _sink(name: str, text: str, value: Callable[[JobView, SinkLive], float | None]) -> Family:
    return _each("sink", lambda live: live.sinks, name, text, value)


def _states(view: JobView) -> Values:
    return [((state.value,), float(state is view.state)) for state in JobState]


def _info(view: JobView) -> Values:
    plan = view.plan
    return [] if plan is None else [((plan.guarantee, plan.settings.mode, plan.penstock, plan.spark), 1.0)]


def _batch_phases(view: JobView) -> Values:
    recent = view.live.recent_batches[:1] if view.live is not None else ()
    return [((name,), ms / 1000) for one in recent for name, ms in one.phases.items()]


def _phases(view: JobView) -> Values:
    last = view.last_completed
    if last is None:
        return []
    phases = {
        "batch": last.batch_ms,
        "alignment": last.alignment_ms,
        "synchronous": last.sync_ms,
        "asynchronous": last.async_ms,
        "complete": last.complete_ms,
        "commit": last.commit_ms,
    }
    return [((name,), took / 1000) for name, took in phases.items()]


def _lag_s(view: JobView, watermark_us: int | None) -> float | None:
    """How far a watermark lags the clock; for a finished job, at its last status."""
    if watermark_us is None or view.live is None:
        return None
    now = view.now if view.state.is_alive else view.live.at
    return now - watermark_us / 1e6


def _since_s(view: JobView, moment: float) -> float:
    """The seconds since a moment; 0 if there is none."""
    return max(0.0, view.now - moment) if moment else 0.0


def _rows_per_s(view: JobView) -> float | None:
    """The rate of the job; 0 while no run is up."""
    return None if view.live is None else view.live.rows_per_s if view.is_up else 0.0


def _last_down_s(view: JobView) -> float | None:
    known = (failure.down_s for failure in view.failures)
    return next((down for down in known if down is not None), None)


FAMILIES = (
    Family("penstock_job_state", "1 for the current state of the job, 0 for the others", _states, ("state",)),
    _job(
        "penstock_job_supervised",
        "Whether a supervisor restarts the job when its process dies",
        lambda view: view.supervised,
    ),
    Family(
        "penstock_job_info",
        "The guarantee, mode and versions of the job",
        _info,
        ("guarantee", "mode", "penstock", "spark"),
    ),
    _job(
        "penstock_last_look_age_seconds",
        "The age of the last read of the job: grows while its storage does not answer, and all other values stay",
        lambda view: view.look_age_s,
    ),
    _job("penstock_run", "The number of the newest run", lambda view: view.run),
    _job(
        "penstock_restarts_total",
        "Recoveries of the job after a failure or a death, since its first start",
        lambda view: view.restarts,
    ),
    _job(
        "penstock_last_failure_timestamp_seconds",
        "When the job last failed or died",
        lambda view: view.failures[0].at if view.failures else None,
    ),
    _job("penstock_last_down_seconds", "How long nothing was processed at the last failure", _last_down_s),
    _job(
        "penstock_rows_done_again_total",
        "Rows that were processed again after failures",
        lambda view: view.rows_again,
    ),
    _live("penstock_rows_total", "Rows read", lambda live: live.rows_in),
    _job("penstock_rows_per_second", "Rows read in a second", _rows_per_s),
    _live("penstock_batches_total", "Batches done", lambda live: live.batches),
    _live("penstock_last_batch_seconds", "How long the last batch took", lambda live: live.batch_seconds),
    Family(
        "penstock_last_batch_phase_seconds",
        "How long each phase of the last batch with rows took",
        _batch_phases,
        ("phase",),
    ),
    _job(
        "penstock_checkpoint_age_seconds",
        "How long ago the last completed checkpoint was completed",
        lambda view: view.checkpoint_age_s,
    ),
    _job(
        "penstock_checkpoint_interval_seconds",
        "The configured checkpoint interval",
        lambda view: None if view.plan is None else view.plan.settings.interval_s,
    ),
    _job(
        "penstock_checkpoint_late",
        "Whether a running job is late with its next checkpoint",
        lambda view: view.is_late,
    ),
    _live(
        "penstock_checkpoints_completed_total",
        "Checkpoints completed since the job was started",
        lambda live: live.checkpoints_completed,
    ),
    _live(
        "penstock_checkpoints_failed_total",
        "Checkpoints given up since the job was started",
        lambda live: live.checkpoints_failed,
    ),
    _live(
        "penstock_rows_since_checkpoint",
        "Rows processed since the last completed checkpoint: after a failure they are processed again",
        lambda live: live.rows_since_checkpoint,
    ),
    Family(
        "penstock_last_checkpoint_phase_seconds",
        "How long each phase of the last completed checkpoint took, for the slowest subtask",
        _phases,
        ("phase",),
    ),
    _live("penstock_merges_total", "Merges of files of state", lambda live: live.merges),
    _live("penstock_merged_bytes_total", "Bytes that merges have written", lambda live: live.merged_bytes),
    _live("penstock_merge_seconds_total", "Time spent in merges", lambda live: live.merge_ms / 1000),
    _source("penstock_source_rows_total", "Rows read from a source", lambda _, source: source.rows),
    _source(
        "penstock_source_behind_rows",
        "Unread rows in a source, if known and a run is up",
        lambda view, source: source_behind(view, source).now,
    ),
    _source(
        "penstock_source_watermark_lag_seconds",
        "How far the watermark of a source lags the clock",
        lambda view, source: _lag_s(view, source.watermark_us),
    ),
    _operator(
        "penstock_operator_rows_total", "Rows that an operator received", lambda _, operator: operator.rows
    ),
    _operator(
        "penstock_operator_state_bytes",
        "Bytes of state of an operator",
        lambda _, operator: operator.state_bytes,
    ),
    _operator(
        "penstock_operator_state_files",
        "State files of an operator, over all subtasks",
        lambda _, operator: operator.files,
    ),
    _operator(
        "penstock_operator_watermark_lag_seconds",
        "How far the watermark of an operator lags the clock",
        lambda view, operator: _lag_s(view, operator.watermark_us),
    ),
    _operator(
        "penstock_operator_late_rows_total",
        "Rows that arrived too late for an operator",
        lambda _, operator: operator.late_rows,
    ),
    _operator(
        "penstock_operator_bad_records_total",
        "Rows that an operator rejected",
        lambda _, operator: operator.bad_records,
    ),
    _sink("penstock_sink_rows_total", "Rows that a sink received", lambda _, sink: sink.rows),
    _sink(
        "penstock_sink_commits_waiting",
        "Transactions that are pre-committed but not committed",
        lambda _, sink: sink.waiting,
    ),
    _sink(
        "penstock_sink_rows_waiting",
        "Rows in uncommitted transactions, which readers do not see yet",
        lambda _, sink: sink.waiting_rows,
    ),
    _sink(
        "penstock_sink_waiting_seconds",
        "The age of the oldest uncommitted transaction; 0 if there is none",
        lambda view, sink: _since_s(view, sink.waiting_since),
    ),
    _sink("penstock_sink_down", "Whether the commits of a sink fail", lambda _, sink: bool(sink.down)),
    _sink("penstock_sink_bad_records_total", "Rows that a sink rejected", lambda _, sink: sink.bad_records),
)


JOB_LABELS = ("job_id", "job_name")
"""The label names of Flink's own reporter."""
_JOB_SCOPE = "flink_jobmanager_job_"
_OPERATOR_SCOPE = "flink_taskmanager_job_task_operator_"


def exposition(views: Iterable[JobView]) -> bytes:
    """The metrics of all jobs in the text format of Prometheus."""
    return generate_latest(_registry(views))


def metrics_route(jobs: JobViews) -> Route:
    """The route for Prometheus. It answers in the format that the client accepts."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(_registry(jobs.views())), headers={"content-type": content_type})

    return Route("/metrics", metrics, methods=["GET"])


def _registry(views: Iterable[JobView]) -> CollectorRegistry:
    """A registry for one response."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Jobs(list(views)))
    return registry


class _Jobs(Collector):
    """Collects the metrics of all jobs at one moment."""

    def __init__(self, views: Sequence[JobView]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """Yield each family once, with the series of all jobs."""
        yield GaugeMetricFamily(
            "flink_jobmanager_numRunningJobs",
            "Jobs that are running or starting",
            value=sum(not is_over(view) for view in self._views),
        )
        yield from self._job_scope()
        yield from self._operator_scope()
        for family in FAMILIES:
            yield self._ours(family)

    def _job_scope(self) -> Iterator[Metric]:
        values = [(view, job_metrics(view)) for view in self._views]
        for name, text in DESCRIBED.items():
            metric = GaugeMetricFamily(_JOB_SCOPE + name, text, labels=JOB_LABELS)
            for view, of_it in values:
                _add(metric, _labels(view), of_it[name])
            yield metric

    def _operator_scope(self) -> Iterator[Metric]:
        """Flink's metrics of subtasks, here for each operator as a whole."""
        found = {
            name: GaugeMetricFamily(_OPERATOR_SCOPE + name, text, labels=(*JOB_LABELS, "operator_name"))
            for name, text in _OPERATOR_DESCRIBED.items()
        }
        for view in self._views:
            values = {(uid, name): value for uid, name, value in _operator_values(view)}
            for (uid, name), value in values.items():
                _add(found[name], (*_labels(view), uid), value)
        return iter(found.values())

    def _ours(self, family: Family) -> Metric:
        kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
        metric = kind(family.name, family.text, labels=(*JOB_LABELS, *family.labels))
        for view in self._views:
            for labels, value in family.values(view):
                _add(metric, (*_labels(view), *labels), value)
        return metric


_OPERATOR_DESCRIBED = {
    "numRecordsIn": "Rows that an operator or a sink received",
    "numRecordsOut": "Rows that a source emitted",
    "currentInputWatermark": "The watermark, in milliseconds since the epoch",
    "numLateRecordsDropped": "Rows that arrived too late for an operator",
    "pendingRecords": "Unread rows in a source",
}


def _operator_values(view: JobView) -> Iterator[tuple[str, str, float]]:
    live = view.live
    if live is None:
        return
    for uid, source in live.sources.items():
        yield uid, "numRecordsOut", source.rows
        if (behind := source_behind(view, source).now) is not None:
            yield uid, "pendingRecords", behind
    for uid, operator in live.operators.items():
        yield uid, "numRecordsIn", operator.rows
        yield uid, "numLateRecordsDropped", operator.late_rows
        if operator.watermark_us is not None:
            yield uid, "currentInputWatermark", operator.watermark_us // 1000
    for uid, sink in live.sinks.items():
        yield uid, "numRecordsIn", sink.rows


def _add(metric: GaugeMetricFamily | CounterMetricFamily, labels: Sequence[str], value: float) -> None:
    """Add one series. A number too large for a float was not measured: the file is forged."""
    with contextlib.suppress(OverflowError):
        metric.add_metric(labels, float(value))


def _labels(view: JobView) -> tuple[str, str]:
    return view.id, view.name
