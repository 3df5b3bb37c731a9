"""What the log and the live line say of a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import penstock as ps
from builders.restore_plans import job_spec, plan_of
from penstock.checkpoint.model import Barrier, Completed, OperatorState, PreCommitted, SubtaskReport
from penstock.guarantee import Guarantee
from penstock.ids import SubtaskId
from penstock.recovery.restore_plan import RestorePlan
from penstock.recovery.started_batches import StartedBatch
from penstock.state.handle import FileRef, StateHandle
from penstock.status.live import Progress, SourceLive
from penstock.status.observer import Observer
from penstock.status.sentences import Rate, ended, event_time_left, live_line, started
from penstock.storage import LocalStorage

NOW = 1_700_000_000.0
PROMISE = Guarantee(ps.EXACTLY_ONCE, None, "sources replay")
SUBTASK = SubtaskId("counts", 0)
CHECKPOINT = Completed(
    job="views",
    checkpoint=41,
    run=2,
    mode="exactly-once",
    max_parallelism=128,
    parallelism=2,
    barrier=Barrier(),
    operators={
        "counts": OperatorState(
            {}, {}, (StateHandle(SUBTASK, "filesystem", 41, (FileRef(10, 3000, "0" * 16),)),)
        )
    },
    transactions=(PreCommitted("out", 41, 0, {}, rows=7),),
    subtasks=(SubtaskReport(SUBTASK, 10, 1.0, 1.0, 1.0, 3000, 12, "host"),),
    completed_at=NOW - 75,
    duration_ms=56.0,
)
NOTHING_YET = Progress(run=0, at=NOW, status="running")
BUSY = Progress(
    run=3, at=NOW, status="running", batches=24, rows_in=1_200_000, checkpoint=41, checkpoint_at=NOW - 12.4
)


def timed(
    watermarks: Mapping[str, datetime | None], due_next: Mapping[str, datetime] | None = None
) -> Progress:
    observer = Observer(progress=BUSY)
    observer.event_time(watermarks, due_next or {}, {})
    return observer.progress


def left_out(bad: Mapping[str, int], late: Mapping[str, int]) -> Progress:
    observer = Observer(progress=BUSY)
    observer.bad_records(bad)
    observer.late_rows(late)
    return observer.progress


def point(tmp_path: Path, *retained: Completed, begun: int | None = None) -> RestorePlan:
    record = None if begun is None else StartedBatch(2, Barrier(), batch=begun)
    spec = job_spec(LocalStorage(tmp_path), layouts={}, max_parallelism=128)
    return plan_of(spec, retained, record, drop_state=("counts",))


def test_a_first_start(tmp_path: Path) -> None:
    """It says which run it is, that there was nothing to go on from, and what holds."""
    assert started("views", 2, PROMISE, point(tmp_path), NOW) == (
        "job views, run 3, begins from nothing: there is no checkpoint; exactly-once: sources replay"
    )


def test_a_start_from_a_checkpoint(tmp_path: Path) -> None:
    """It says from which checkpoint, whose it was and how old it is."""
    assert started("views", 2, PROMISE, point(tmp_path, CHECKPOINT), NOW) == (
        "job views, run 3, goes on from checkpoint 41 of run 2, completed 1 min 15 s ago; exactly-once: sources replay"
    )


def test_a_start_with_another_parallelism(tmp_path: Path) -> None:
    """It says from how many subtasks to how many, where there is state to share out."""
    here = point(tmp_path, CHECKPOINT)
    assert "; rescaled from 2 to 4 subtasks; " in started("views", 4, PROMISE, here, NOW)
    without_state = point(tmp_path, msgspec.structs.replace(CHECKPOINT, operators={}))
    assert "rescaled" not in started("views", 4, PROMISE, without_state, NOW)


def test_a_start_that_leaves_something_out(tmp_path: Path) -> None:
    """At most once: what was begun after the checkpoint is not read again, and that is said."""
    said = started("views", 2, PROMISE, point(tmp_path, CHECKPOINT, begun=43), NOW)
    assert "; batches up to 43 are not read again; " in said


def test_the_end() -> None:
    """How it ended, the counts, the last checkpoint, and the restarts if there were any."""
    assert ended("views", "finished", BUSY) == (
        "job views finished: run 3, 24 batches, 1,200,000 rows in, last checkpoint 41"
    )
    one = msgspec.structs.replace(BUSY, batches=1, rows_in=1, checkpoint=-1, restarts_total=1)
    assert ended("views", "failed", one) == (
        "job views failed: run 3, 1 batch, 1 row in, no checkpoint, 1 restart"
    )
    again = msgspec.structs.replace(one, restarts_total=3)
    assert ended("views", "failed", again).endswith(", no checkpoint, 3 restarts")
    lossy = left_out({"views": 1}, {"views": 1_000, "windows": 234})
    assert ended("views", "stopped", lossy) == (
        "job views stopped: run 3, 24 batches, 1,200,000 rows in, 1 bad row, late rows (views 1,000; windows 234), last checkpoint 41"
    )
    lossy = left_out({"views": 0}, {"views": 1_234, "windows": 0})
    assert ended("views", "stopped", lossy) == (
        "job views stopped: run 3, 24 batches, 1,200,000 rows in, 1,234 late rows, last checkpoint 41"
    )


def test_what_is_open_at_the_end() -> None:
    """How far event time came and what waits for it, and how to close it where that can be; nothing where nothing goes by it."""
    at, later = (datetime(2026, 1, 1, 0, 0, second, 999_999, UTC) for second in (30, 39))
    assert event_time_left("views", BUSY, drainable=True) == ""
    done = timed({"counts": at})
    assert event_time_left("views", done, drainable=True) == (
        "job views: watermark 2026-01-01 00:00:31 UTC, nothing is open"
    )
    left = timed({"counts": at}, {"counts": later})
    still = (
        "job views: watermark 2026-01-01 00:00:31 UTC, still open: counts (next at 2026-01-01 00:00:40 UTC)"
    )
    assert event_time_left("views", left, drainable=False) == still
    assert event_time_left("views", left, drainable=True) == (
        f"{still}; the next run goes on with it, drain=True closes it"
    )
    two = timed({"counts": at, "alarms": None}, {"alarms": later})
    assert event_time_left("views", two, drainable=False) == (
        "job views: watermarks (alarms none yet; counts 2026-01-01 00:00:31 UTC), still open: alarms (next at 2026-01-01 00:00:40 UTC)"
    )
    last = timed({"counts": datetime.max.replace(tzinfo=UTC)})
    assert "9999-12-31 23:59:59" in event_time_left("views", last, drainable=False)


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (NOTHING_YET, "running, 0 batches, 0 rows in, 52,310 rows/s, no checkpoint"),
        (
            msgspec.structs.replace(NOTHING_YET, batches=1),
            "running, 1 batch, its rows are not counted yet, 52,310 rows/s, no checkpoint",
        ),
        (
            msgspec.structs.replace(NOTHING_YET, batches=1, sources={"clicks": SourceLive(looked_at=NOW)}),
            "running, 1 batch, 0 rows in, 52,310 rows/s, no checkpoint",
        ),
        (
            BUSY,
            "running, run 3, 24 batches, 1,200,000 rows in, 52,310 rows/s, last checkpoint 41, 12 s ago",
        ),
        (
            msgspec.structs.replace(BUSY, restarts_total=2, checkpoint_at=NOW + 5),
            "running, run 3, 24 batches, 1,200,000 rows in, 52,310 rows/s, last checkpoint 41, just now, 2 restarts",
        ),
    ],
)
def test_the_live_line(progress: Progress, line: str) -> None:
    """It has batches, rows of input in all and a second, the last checkpoint and its age, and restarts."""
    assert live_line(progress, "running", 52_310.4, NOW, 200) == line


@pytest.mark.parametrize("columns", [0, 1, 2, 3, 10, 79, 87, 88, 89])
def test_the_live_line_fits(columns: int) -> None:
    """However narrow the terminal is, the line is no wider, and says that there is more."""
    whole = live_line(BUSY, "running", 52_310.0, NOW, 1000)
    line = live_line(BUSY, "running", 52_310.0, NOW, columns)
    assert len(line) == min(columns, len(whole))
    assert line == whole or line.endswith("..."[:columns])


def test_rows_a_second() -> None:
    """The rate is that of the last ten seconds, whenever the count was looked at."""
    rate = Rate(over_s=10)
    assert rate.rows_per_s(100, 0.0) == 0
    assert rate.rows_per_s(300, 2.0) == 100
    assert rate.rows_per_s(300, 10.0) == 20
    assert rate.rows_per_s(300, 11.0) == pytest.approx(200 / 11)
    assert rate.rows_per_s(300, 12.0) == 0
    assert rate.rows_per_s(1300, 22.0) == 100


def test_progress_knows_when_its_checkpoint_was_completed(tmp_path: Path) -> None:
    """That of a checkpoint that a run goes on from, and of every one it completes; none where there is none."""
    observer = Observer()
    observer.restored(point(tmp_path, CHECKPOINT))
    assert observer.progress.checkpoint_at == NOW - 75
    observer.completed(msgspec.structs.replace(CHECKPOINT, checkpoint=42, completed_at=NOW))
    assert (observer.progress.checkpoint, observer.progress.checkpoint_at) == (42, NOW)
    observer.restored(point(tmp_path))
    assert observer.progress.checkpoint_at == 0
