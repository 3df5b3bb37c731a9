"""What is told of tasks that Spark had to repeat in a batch that was done all the same."""

from __future__ import annotations

from pathlib import Path

from builders.planned_batches import MAILBOX, Batches
from penstock.ids import SubtaskId
from penstock.places import Place
from penstock.run.assignment import OperatorAnswer, SinkAnswer
from penstock.run.task_failures import REPORT_EVERY_S, RepeatReporter, repeated_tasks
from penstock.snapshot.mailbox import RepeatedTask, TaskFailed
from penstock.status.events import TasksRepeated
from penstock.testing.virtual import VirtualClock


def failed(uid: str, index: int, cause: str = "ValueError: no price", batch: int = 7) -> TaskFailed:
    return TaskFailed(
        1, batch, SubtaskId(uid, index), "", cause, at=Place("/jobs/views.py", 88, "process", "x")
    )


def test_what_failed_attempts_said_is_told_of_each_operator() -> None:
    """Which subtasks, how many attempts, and the first reason; what was only repeated along with them is not told."""
    told = [failed("counts", 3), failed("counts", 1, "other"), failed("counts", 3), failed("out", 0)]
    answers = [OperatorAnswer("before", 9, None, None, tries=3)]
    assert repeated_tasks(7, told, answers) == (
        RepeatedTask("counts", 7, (1, 3), 3, "ValueError: no price (views.py:88)"),
        RepeatedTask("out", 7, (0,), 2, "ValueError: no price (views.py:88)"),
    )


def test_attempts_that_said_nothing_are_told_without_a_reason() -> None:
    """Their process died, and Spark alone knows of it. A batch without repeated tasks tells nothing."""
    answers = [SinkAnswer("out", 4, 9, None, tries=2), SinkAnswer("out", 5, 10, None)]
    assert repeated_tasks(7, [], answers) == (RepeatedTask("out", 7, (4,), 2, ""),)
    assert repeated_tasks(7, [], answers[1:]) == ()


def test_code_that_stumbles_in_each_batch_is_told_of_now_and_then() -> None:
    """Once a minute for each operator, with how many batches were left out."""
    clock, told = VirtualClock(), list[RepeatedTask]()
    seldom = RepeatReporter(told.append, clock)
    for batch in range(4):
        seldom.take([RepeatedTask("counts", batch, (0,), 2, "no")])
        clock.sleep(REPORT_EVERY_S / 3)
    seldom.take([RepeatedTask("out", 4, (0,), 2, "no")])
    assert [(one.uid, one.batch, one.batches_before) for one in told] == [
        ("counts", 0, 0),
        ("counts", 3, 2),
        ("out", 4, 0),
    ]


def test_a_batch_that_is_done_tells_what_its_tasks_met(tmp_path: Path) -> None:
    """It belongs to that batch alone: the next one has nothing to tell."""
    batches = Batches(tmp_path)
    for met in ([failed("op", 0, batch=0)], []):
        under_way = batches.run.begin_tick(MAILBOX)
        for one in met:
            batches.run.deliver(one)
        batches.run.end_batch(under_way, [OperatorAnswer("op", 0, None, None)])
        batches.clock.advance(REPORT_EVERY_S)
    (told,) = (event for event in batches.told if isinstance(event, TasksRepeated))
    assert (told.batch, told.operator, told.subtasks, told.attempts) == (0, "op", (0,), 2)
    assert told.why == "ValueError: no price (views.py:88)"
