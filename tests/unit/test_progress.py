"""What a running job says it has done."""

from __future__ import annotations

from typing import Any

import pytest

from builders.protocol_story import completed, transaction
from penstock.clock import SYSTEM_CLOCK, Stopwatch
from penstock.ids import CheckpointId
from penstock.run.assignment import Answer, OperatorAnswer, SinkAnswer
from penstock.spark.batch_plans import BatchRun
from penstock.spark.query_reports import took
from penstock.status.events import Event, RunFailed
from penstock.status.live import MOST_BATCHES, BatchLive
from penstock.status.observer import Observer, SourceAccount
from penstock.testing.virtual import VirtualClock


def test_rows_are_counted_where_they_come_in_and_for_each_sink() -> None:
    """Input rows are those of the sources, output rows those of each sink by its uid; nothing is summed over sinks."""
    observer = Observer()
    observer.rows_read(0, {"clicks": SourceAccount(30), "users": SourceAccount(10)})
    observer.batch_done(CheckpointId(0), [transaction(0, "views"), transaction(0, "views", subtask=1)], 0.5)
    early = observer.progress.rows_out
    observer.rows_read(1, {"clicks": SourceAccount(2), "users": SourceAccount(0)})
    observer.batch_done(CheckpointId(1), [transaction(1, "alerts")], 0.5)
    assert observer.progress.rows_in == 42
    assert {uid: one.rows for uid, one in observer.progress.sources.items()} == {"clicks": 32, "users": 10}
    assert observer.progress.rows_out == {"views": 2, "alerts": 1}
    assert early == {"views": 2}


def test_since_when_a_run_is_up() -> None:
    """From its first batch on, or since it has found nothing to read; not any more when it has failed."""
    clock = VirtualClock()
    observer = Observer(clock=clock)
    assert observer.is_coming_up
    observer.has_nothing_to_read()
    up_since = clock.wall()
    clock.sleep(10.0)
    observer.batch_done(CheckpointId(0), [], 0.5)
    assert observer.progress.up_since == up_since
    observer.has_failed()
    observer.restarting()
    assert observer.is_coming_up
    clock.sleep(10.0)
    observer.batch_done(CheckpointId(0), [], 0.5)
    assert observer.progress.up_since == up_since + 20.0


def test_since_when_rows_are_in_no_checkpoint() -> None:
    """From the first of them on, until a checkpoint has all; a run that goes back has none."""
    clock = VirtualClock()
    observer = Observer(clock=clock)
    seen = [observer.progress.unsafe_since]
    began = clock.wall()
    for batch in range(3):
        clock.sleep(10.0)
        observer.rows_read(batch, {"clicks": SourceAccount(batch)})
        seen.append(observer.progress.unsafe_since)
    assert seen == [0.0, 0.0, began + 20.0, began + 20.0]
    observer.completed(completed(1))
    assert observer.progress.unsafe_since == began + 20.0
    observer.completed(completed(2))
    assert observer.progress.unsafe_since == 0.0


def test_rows_are_done_again_once_however_often_the_way_back_fails() -> None:
    """Storage may be down for a while: each try is a failure, and the rows behind the checkpoint are the same ones."""
    told: list[Event] = []
    observer = Observer(tell=told.append)
    observer.rows_read(0, {"clicks": SourceAccount(100)})
    for _ in range(3):
        observer.run_failed(OSError("down"), strategy="s", delay_s=1.0, decision="again")
    assert observer.progress.rows_again == 100
    assert [event.rows_again for event in told if isinstance(event, RunFailed)] == [100, 0, 0]


def test_the_newest_batches_are_kept_one_by_one() -> None:
    """With Spark's account of each: how long it took, where, and how fast rows came and were processed."""
    account = {
        "numInputRows": 90,
        "inputRowsPerSecond": 30.0,
        "processedRowsPerSecond": 60.0,
        "durationMs": {"triggerExecution": 1500, "addBatch": 1200, "latestOffset": 20, "queryPlanning": 80},
    }
    observer = Observer()
    for batch in range(MOST_BATCHES + 3):
        observer.rows_read(batch, {"clicks": SourceAccount(90)}, took(account))
    recent = observer.progress.recent_batches
    assert [one.batch for one in recent] == list(range(MOST_BATCHES + 2, 2, -1))
    assert (recent[0].rows, recent[0].seconds, recent[0].input_per_s, recent[0].processed_per_s) == (
        90,
        1.5,
        30.0,
        60.0,
    )
    assert sum(recent[0].phases.values()) == 1500
    assert took({**account, "durationMs": {}, "inputRowsPerSecond": 0.0}).seconds == 0


OF_SPARK = {"latestOffset": 10.0, "getBatch": 2.0, "queryPlanning": 8.0, "addBatch": 340.0, "walCommit": 30.0}


def test_the_phases_of_a_batch_add_up_to_its_duration() -> None:
    """What Penstock measures replaces Spark's `addBatch`, its planning is added to Spark's, and state is no part of tasks."""
    measured = {"plan": 5.0, "tasks": 310.0, "state": 25.0, "barrier": 3.0}
    one = BatchLive(7, 0.0, seconds=0.43, phases_ms={**OF_SPARK, "commitOffsets": 40.0, **measured})
    assert one.phases == pytest.approx(
        {"look": 12, "plan": 13, "tasks": 285, "state": 25, "barrier": 3, "log": 70, "other": 22}
    )
    assert sum(one.phases.values()) == pytest.approx(430)


def test_what_is_not_measured_is_other_time() -> None:
    """Without Penstock's part, as older versions wrote it, no phase is longer than it was measured."""
    one = BatchLive(7, 0.0, seconds=0.4, phases_ms={**OF_SPARK, "setOffsetRange": 5.0})
    assert one.phases["tasks"] == one.phases["state"] == 0
    assert one.phases["other"] == pytest.approx(350)
    assert BatchLive(7, 0.0, seconds=0.1, phases_ms={"tasks": 101.0, "state": 300.0}).phases == {
        **dict.fromkeys(("look", "plan", "tasks", "barrier", "log", "other"), 0.0),
        "state": 101.0,
    }


def test_the_actions_of_a_batch_are_its_tasks() -> None:
    """All actions of a batch count, planning is what lies before and between them, and the barrier what follows the last."""
    unused: Any = None
    watch = Stopwatch()
    batch = BatchRun(unused, unused, unused, unused)
    for _ in range(2):
        SYSTEM_CLOCK.sleep(0.02)
        with batch.action():
            SYSTEM_CLOCK.sleep(0.05)
    SYSTEM_CLOCK.sleep(0.01)
    answers: list[Answer] = [
        OperatorAnswer("counts", 0, None, None, state_ms=4.0),
        OperatorAnswer("counts", 1, None, None, state_ms=9.0),
        SinkAnswer("out", 0, 2, None),
    ]
    found = batch.phases_ms(watch, answers)
    whole_ms = watch.ms
    assert found["tasks"] >= 100
    assert found["plan"] >= 40
    assert found["barrier"] >= 10
    assert found["state"] == 9.0
    assert found["plan"] + found["tasks"] + found["barrier"] <= whole_ms + 0.01


def test_why_every_batch_is_planned_anew() -> None:
    """The reason is that of the newest batch: the next run may keep its plans."""
    observer = Observer()
    observer.rows_read(0, {"clicks": SourceAccount(1)}, BatchLive(-1, 0.0), "it takes a sample")
    assert observer.progress.planned_anew == "it takes a sample"
    observer.rows_read(1, {"clicks": SourceAccount(1)}, BatchLive(-1, 0.0))
    assert observer.progress.planned_anew == ""
