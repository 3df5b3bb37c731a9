"""At least once: which version of each subtask a checkpoint takes, compared with the rule written down as plainly as possible."""

from __future__ import annotations

import random

import pytest

from builders.protocol_story import handle
from penstock.checkpoint.content import LaterVersions
from penstock.checkpoint.events import BatchFinished
from penstock.checkpoint.model import Barrier
from penstock.checkpoint.pending import EventTimestamp, Pending
from penstock.ids import CheckpointId, SubtaskId
from penstock.state.handle import StateHandle

UPSTREAM = {"a": (), "b": ("a",), "c": ("a", "b")}
SUBTASKS = [SubtaskId(uid, index) for uid in UPSTREAM for index in range(2)]


def batch(number: int, handles: dict[SubtaskId, StateHandle]) -> BatchFinished:
    return BatchFinished(CheckpointId(number), Barrier(), handles)


def plainly(
    finished: list[BatchFinished], stored: set[tuple], checkpoint: int
) -> dict[SubtaskId, StateHandle]:
    """The first version of each subtask that is stored, at or after the barrier and whatever the operators before it took."""
    taken: dict[SubtaskId, StateHandle] = {}
    for uid, before in UPSTREAM.items():
        after = max(
            [checkpoint, *(one.version for subtask, one in taken.items() if subtask.uid in before)],
        )
        for event in finished:
            for subtask, one in event.handles.items():
                there = not one.files or (subtask, one.refs) in stored
                if subtask.uid == uid and event.batch >= after and there:
                    taken.setdefault(subtask, one)
    return taken


@pytest.mark.parametrize("seed", range(50))
def test_it_takes_what_the_plain_rule_takes(seed: int) -> None:
    """Whatever the order in which batches finish, versions are handed in and checkpoints complete."""
    rng = random.Random(seed)
    later = LaterVersions(UPSTREAM)
    finished: list[BatchFinished] = []
    stored: set[tuple] = set()
    done, handles = -1, {subtask: handle(subtask, 0) for subtask in SUBTASKS}
    for number in range(12):
        for subtask in SUBTASKS:
            same = rng.random() < 0.3  # without rows
            files = [] if rng.random() < 0.1 else [f"{subtask}-{number}"]
            refs = handles[subtask].refs if same else handle(subtask, number, *files).refs
            handles[subtask] = StateHandle(subtask, "filesystem", number, refs)
        event = batch(number, dict(handles))
        uploads = [one for one in event.handles.values() if rng.random() < 0.6]
        early = rng.sample(uploads, len(uploads) // 2)
        for one in early:
            later.hand_in(one)
        durable = {name for subtask, refs in stored for name in (ref.name for ref in refs)}
        later.batch_finished(event, durable)
        finished.append(event)
        stored |= {(one.subtask, one.refs) for one in early}
        for one in uploads:
            later.hand_in(one)
            stored.add((one.subtask, one.refs))
        barrier = rng.randint(done + 1, number)
        taken = later.to_take(CheckpointId(barrier))
        assert taken == plainly([one for one in finished if one.batch > done], stored, barrier)
        if len(taken) == len(SUBTASKS) and rng.random() < 0.5:
            pending = Pending(CheckpointId(barrier), EventTimestamp(0.0, 0.0), finished[barrier], taken)
            cut = later.cut(pending)
            assert cut == finished[min(one.version for one in taken.values())]
            done = cut.batch
            later.forget(done)
            assert later.files_since(CheckpointId(0)) == {
                name for one in finished if one.batch > done for name in one.files
            }


def test_a_state_that_did_not_change_is_taken_after_its_checkpoint() -> None:
    """A subtask without rows names what was stored long ago: no upload will come, and none is waited for."""
    later = LaterVersions({"a": ()})
    subtask = SubtaskId("a", 0)
    later.batch_finished(batch(0, {subtask: handle(subtask, 0, "old")}), set())
    later.hand_in(handle(subtask, 0, "old"))
    later.forget(CheckpointId(0))
    later.batch_finished(batch(1, {subtask: handle(subtask, 1, "old")}), set())
    assert later.to_take(CheckpointId(1)) == {subtask: handle(subtask, 1, "old")}
