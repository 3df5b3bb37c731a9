"""`/metrics` for Prometheus: what `flink.job_metrics` knows under Flink's names, and what is ours. The dashboard's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.dashboard.flink.job_metrics import DESCRIBED, job_metrics
from penstock.dashboard.flink.words import is_over
from penstock.dashboard.looking import Looker
from penstock.dashboard.metric_families import FAMILIES, Family
from penstock.status.view import JobView, source_behind

JOB_LABELS = ("job_id", "job_name")
"""As Flink's own reporter names them."""
_JOB_SCOPE = "flink_jobmanager_job_"
_OPERATOR_SCOPE = "flink_taskmanager_job_task_operator_"


def exposition(views: Iterable[JobView]) -> bytes:
    """The text that Prometheus reads."""
    return generate_latest(_registry(views))


def metrics_route(looker: Looker, path: str = "/metrics") -> Route:
    """The route for a Starlette application. Answers in the format that the client asks for."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(_registry(looker.views())), headers={"content-type": content_type})

    return Route(path, metrics, methods=["GET"])


def _registry(views: Iterable[JobView]) -> CollectorRegistry:
    """One for each answer: nothing is kept between two."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Jobs(list(views)))
    return registry


class _Jobs(Collector):
    """All jobs at one moment."""

    def __init__(self, views: Sequence[JobView]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """Each family once, with the series of all jobs."""
        yield GaugeMetricFamily(
            "flink_jobmanager_numRunningJobs",
            "Jobs that run, or are about to",
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
        """What Flink has for each subtask is here for each operator as a whole."""
        found = {
            name: GaugeMetricFamily(_OPERATOR_SCOPE + name, text, labels=(*JOB_LABELS, "operator_name"))
            for name, text in _OPERATOR_DESCRIBED.items()
        }
        for view in self._views:
            told = {(uid, name): value for uid, name, value in _operator_values(view)}
            for (uid, name), value in told.items():
                _add(found[name], (*_labels(view), uid), value)
        return iter(found.values())

    def _ours(self, family: Family) -> Metric:
        kind = CounterMetricFamily if family.counter else GaugeMetricFamily
        metric = kind(family.name, family.text, labels=(*JOB_LABELS, *family.labels))
        for view in self._views:
            for labels, value in family.values(view):
                _add(metric, (*_labels(view), *labels), value)
        return metric


_OPERATOR_DESCRIBED = {
    "numRecordsIn": "Rows that came to an operator or a sink",
    "numRecordsOut": "Rows that a source has given",
    "currentInputWatermark": "Its watermark, in milliseconds since the epoch",
    "numLateRecordsDropped": "Rows that came too late for it",
    "pendingRecords": "Rows that lie in a source and are not read yet",
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
    """One series. A number that is too large to be one was never measured: somebody else has written that file."""
    with contextlib.suppress(OverflowError):
        metric.add_metric(labels, float(value))


def _labels(view: JobView) -> tuple[str, str]:
    return view.id, view.name
