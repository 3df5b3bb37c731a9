"""What people see of a job that really runs: its plan, what it does, what happened to it, and whether it has caught up."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.clock import SYSTEM_CLOCK
from penstock.status.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    FirstBatch,
    JobEnded,
    RunFailed,
    RunStarted,
    SavepointMade,
    TasksRepeated,
)
from penstock.status.job_watcher import JobWatcher
from penstock.status.jobs import find_jobs
from penstock.status.view import CheckpointStatus, JobState, JobView
from services.patience import PATIENCE_S, tries

TOKEN = "a-token-of-thirty-two-characters"

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def look(ledger: Ledger) -> JobView:
    (job,) = find_jobs([ledger.root / "store"])
    return JobWatcher(job).look(SYSTEM_CLOCK.wall())


def until_nothing_is_left(ledger: Ledger) -> JobView:
    """What it says of itself is about a second old."""
    for _ in tries(0.1):
        view = look(ledger)
        live = view.live
        if (
            live is not None
            and live.batches
            and live.sources["clicks"].behind == 0
            and not live.rows_since_checkpoint
        ):
            return view
    raise AssertionError("the job is not seen to have nothing left")


class Heard(ps.Listener):
    """Keeps all it hears."""

    def __init__(self) -> None:
        self.events: list[ps.types.Event] = []
        self.is_closed = False

    def on_event(self, event: ps.types.Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.is_closed = True


def _checkpoints_are_told(view: JobView) -> None:
    done = [one for one in view.checkpoints if one.status is CheckpointStatus.COMPLETED]
    assert done[0].retained
    assert all(one.committed_at for one in done)
    assert all(one.batch_ms > 0 and one.duration_ms >= one.complete_ms > 0 for one in done)
    assert {one.operator for one in done[-1].subtasks} == {"counts"}
    assert (
        2 * 600 <= sum(one.rows for one in done) <= 2 * 610
    )  # Spark accounts for the last batch behind its checkpoint
    kinds = [type(event) for event in reversed(view.events)]
    for kind in (
        RunStarted,
        FirstBatch,
        CheckpointCompleted,
        CheckpointCommitted,
        RunFailed,
        SavepointMade,
        JobEnded,
    ):
        assert kind in kinds
    assert kinds.index(RunFailed) < kinds.index(SavepointMade) < kinds.index(JobEnded)


def _what_spark_repeated_is_told(view: JobView) -> None:
    """Of the first task, whose repetition succeeded."""
    told = [event for event in view.events if isinstance(event, TasksRepeated)]
    assert [(one.operator, one.attempts) for one in told] == [("counts", 2)]
    assert re.fullmatch(r"ValueError: stumbled once \(test_job_status.py:\d+\)", told[0].why)


def test_a_job_from_its_start_over_a_failure_to_its_end(spark: SparkSession, ledger: Ledger) -> None:
    """All of it can be read from storage alone: while it runs, and when it is over, with what the failure cost."""
    ledger.fill(600)
    stumbled, marker = ledger.root / "stumbled", ledger.root / "failed"

    class FailsOnce(Count):
        def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
            if not stumbled.exists():
                stumbled.touch()
                raise ValueError("stumbled once")
            if ctx.checkpoint == 2 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    job = ledger.job(restart=ps.fixed_delay(attempts=2, delay="10ms"))
    clicks = job.read(ledger.log.read(spark, rows_per_batch=300), uid="clicks")
    counts = clicks.key_by("app").process(FailsOnce(), schema="app string, n long", uid="counts")
    counts.write_to(ledger.sqlite(), uid="out")
    heard = Heard()
    handle = job.start(ui="127.0.0.1:0", ui_token=TOKEN, listeners=[heard])
    try:
        assert handle.caught_up(timeout=PATIENCE_S)
        assert ledger.counts() == ledger.truth()
        shown = {"Authorization": f"Bearer {TOKEN}"}
        page = httpx.get(f"{handle.ui_address}/jobs/pv", headers=shown, timeout=PATIENCE_S)
        assert page.status_code == 200
        assert "counts" in page.text
        view = until_nothing_is_left(ledger)
        assert view.state is JobState.RUNNING
        assert view.live is not None
        assert view.plan is not None
        assert [(node.uid, node.kind, node.inputs) for node in view.plan.nodes] == [
            ("clicks", "source", ()),
            ("counts", "operator", ("clicks",)),
            ("out", "sink", ("counts",)),
        ]
        assert view.guarantee == "exactly-once"
        assert view.live.sources["clicks"].rows == 1200
        assert view.live.operators["counts"].state_bytes > 0
        assert view.live.restarts == 1
        ledger.fill(10)
        assert handle.caught_up(timeout=PATIENCE_S)
        folder = handle.savepoint()
    finally:
        handle.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(handle.ui_address)
    view = look(ledger)
    by_time = sorted(heard.events, key=lambda event: event.at)  # threads may overtake each other on the way
    assert by_time == list(reversed(view.events))
    assert heard.is_closed
    assert view.state is JobState.STOPPED
    (failure,) = view.failures
    assert failure.error == "UserCodeError"
    assert "the disk of the user is on fire" in failure.why
    assert "fixed_delay(attempts=2) allows another try" in failure.decision
    assert (failure.run, failure.next_run, failure.restored_from) == (1, 2, 1)
    assert failure.down_s
    _checkpoints_are_told(view)
    _what_spark_repeated_is_told(view)
    assert view.savepoints == (folder,)
    assert [(one.what, one.by, one.state, one.folder) for one in view.asked] == [
        ("stop", "the program itself", "done", ""),
        ("savepoint", "the program itself", "done", folder),
    ]
    assert not handle.caught_up() or ledger.counts() == ledger.truth()


def test_caught_up_of_a_source_that_cannot_be_asked(spark: SparkSession, ledger: Ledger) -> None:
    """Files in a folder are caught up when Spark has found no more of them and the rows are committed; with a new one they are not."""
    folder = ledger.root / "in"
    folder.mkdir()
    (folder / "0.json").write_text('{"app": "a"}\n' * 3)
    job = ledger.job(checkpoint=ps.Checkpointing(interval="50ms"))
    rows = job.read(spark.readStream.schema("app string").json(str(folder)), uid="files").key_by("app")
    rows.aggregate(n=F.count("*"), uid="counts").write_to(ledger.sqlite(), uid="out")
    handle = job.start()
    try:
        for number in range(1, 4):
            assert handle.caught_up(timeout=PATIENCE_S)
            assert ledger.counts() == {"a": 3 * number}
            (folder / f"{number}.json").write_text('{"app": "a"}\n' * 3)
            assert handle.caught_up(timeout=PATIENCE_S)
    finally:
        handle.stop()
    assert ledger.counts() == {"a": 12}


def test_a_job_that_fails_for_good_says_why(spark: SparkSession, ledger: Ledger) -> None:
    """Its last failure is told once, with the decision; nothing is caught up then."""
    ledger.fill(10)

    class Fails(Count):
        def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
            raise RuntimeError(f"cannot digest {key}")

    job = ledger.job(restart=ps.no_restart())
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    clicks.key_by("app").process(Fails(), schema="app string, n long", uid="c").write_to(
        ledger.sqlite(), uid="o"
    )
    handle = job.start()
    with pytest.raises(ps.JobFailedError):
        handle.wait()
    view = look(ledger)
    assert view.state is JobState.FAILED
    (failure,) = view.failures
    assert "cannot digest" in failure.why
    assert "no_restart()" in failure.decision
    assert (failure.restored_from, failure.down_s) == (None, None)
    assert not handle.caught_up()
