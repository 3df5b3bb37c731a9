"""What listeners hear of a real job that fails and comes back, the spans that are made of it, and what is shown of it in Flink's shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger import Count, Ledger, fail_for_good
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families

import penstock as ps
from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.flink.checkpoints import checkpoint_details, checkpointing_statistics
from penstock.dashboard.flink.job_details import exceptions, job_detail
from penstock.dashboard.metrics import exposition
from penstock.status.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    FirstBatch,
    JobEnded,
    RunFailed,
    RunStarted,
)
from penstock.status.job_watcher import look_at
from penstock.status.jobs import find_jobs

pytestmark = pytest.mark.spark


class Hearing(ps.Listener):
    """Notes everything, and is not well."""

    def __init__(self) -> None:
        self.heard: list[ps.types.Event] = []

    def on_event(self, event: ps.types.Event) -> None:
        self.heard.append(event)
        raise OSError("nobody is in the room")


class FailsOnce(Count):
    """Fails at its first row, until the driver has given up the batch."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def process(self, key, rows, ctx):
        if not self.marker.exists():
            fail_for_good(self.marker)
        yield from super().process(key, rows, ctx)


def test_a_failure_is_heard_traced_and_shown(spark, tmp_path: Path) -> None:
    """Listeners hear the story in order whatever they raise, the recovery is a span, and Flink's pages and metrics have the failure."""
    ledger = Ledger(tmp_path)
    ledger.append(0, "a", 3)
    hearing, exporter, provider = Hearing(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    job = ledger.job(restart=ps.fixed_delay(attempts=3, delay="10ms"))
    rows = job.read(ledger.log.read(spark), uid="log").key_by("app")
    rows.process(FailsOnce(tmp_path / "failed"), schema="app string, n long", uid="counts").write_to(
        ledger.sqlite(), uid="out"
    )
    job.run(available_now=True, listeners=[hearing, ps.OpenTelemetry(provider, job="pv")])
    assert ledger.counts() == {"a": 3}

    told = (RunStarted, RunFailed, FirstBatch, CheckpointCompleted, CheckpointCommitted, JobEnded)
    kinds = [type(event) for event in hearing.heard if isinstance(event, told)]
    assert kinds[:4] == [RunStarted, RunFailed, RunStarted, FirstBatch]
    assert kinds[-1] is JobEnded
    assert {CheckpointCompleted, CheckpointCommitted} <= set(kinds)

    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans["penstock.recovery"].status.status_code is StatusCode.UNSET
    assert (spans["penstock.recovery"].attributes or {})["penstock.next_run"] == 2
    assert {"penstock.recovery.first_batch", "penstock.checkpoint", "penstock.checkpoint.commit"} <= set(
        spans
    )

    (found,) = find_jobs([tmp_path / "store"])
    view = look_at(found, SYSTEM_CLOCK.wall())
    assert job_detail(view)["state"] == "FINISHED"
    assert [one["name"].partition(":")[0] for one in job_detail(view)["vertices"]] == ["log", "counts", "out"]
    (failure,) = exceptions(view)["exceptionHistory"]["entries"]
    assert "the disk of the user is on fire" in failure["stacktrace"]
    latest = checkpointing_statistics(view)["latest"]["completed"]
    details = checkpoint_details(view, latest["id"])
    assert details is not None
    assert sum(task["num_acknowledged_subtasks"] for task in details["tasks"].values()) > 0
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(exposition([view]).decode())
        for sample in family.samples
    }
    assert samples["penstock_restarts_total"] == 1
    assert samples["penstock_rows_total"] == 3
    assert samples["flink_jobmanager_job_numRestarts"] == 1
    assert samples["penstock_sink_rows_total"] == 1
