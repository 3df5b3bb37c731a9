"""Which files are needed, and what is discarded: the rules that no story of the protocol reaches by itself."""

from __future__ import annotations

from builders.protocol_story import SUBTASKS, completed, handle
from penstock.checkpoint.events import BatchFinished
from penstock.checkpoint.model import Barrier, SourceFile
from penstock.checkpoint.needed_files import NeededFiles
from penstock.ids import NO_CHECKPOINT, CheckpointId

SUBTASK = SUBTASKS[0]
NOTHING: tuple[set[str], ...] = ()


def finished(batch: int, *files: str, barrier: Barrier | None = None) -> BatchFinished:
    return BatchFinished(CheckpointId(batch), barrier or Barrier(), {SUBTASK: handle(SUBTASK, batch, *files)})


def read(*names: str) -> Barrier:
    """A barrier of sources that have noted something."""
    return Barrier(source_log=tuple(SourceFile(name, name, 1, "checksum") for name in names))


def test_what_a_run_starts_from_is_durable_and_needed() -> None:
    """Restored state, completed checkpoints and what was begun are in storage, and stay until something takes their place."""
    files = NeededFiles([completed(4, "a")], [handle(SUBTASK, 4, "rescaled")], frozenset({"begun"}))
    assert files.undurable({"a", "rescaled", "begun", "new"}) == {"new"}
    assert files.needed(NOTHING) == {"a", "rescaled", "begun"}
    assert files.discard(NOTHING) == ()
    files.batch_finished(finished(5, "a", "b"))
    assert files.discard(NOTHING) == ("rescaled",)


def test_what_is_wanted_stays() -> None:
    """What a pending checkpoint may come to name is not garbage, and is when nobody wants it any more."""
    files = NeededFiles([], [], frozenset())
    files.batch_finished(finished(0, "a"))
    files.batch_finished(finished(1, "b"))
    assert files.discard([{"a"}]) == ()
    assert files.discard(NOTHING) == ("a",)
    assert files.discard(NOTHING) == ()


def test_what_is_discarded_is_not_durable_any_more() -> None:
    """A file that is named again after it was discarded has to be stored again."""
    files = NeededFiles([], [], frozenset())
    files.batch_finished(finished(0, "a"))
    files.stored(handle(SUBTASK, 0, "a"))
    assert files.durable == {"a"}
    files.batch_finished(finished(1, "b"))
    files.discard(NOTHING)
    assert files.undurable({"a", "b"}) == {"a", "b"}


def test_what_the_next_run_begins_with_is_held_until_the_batch_is_finished() -> None:
    """Two records of what was begun may count: the older one until the batch of the newer is known to be finished."""
    files = NeededFiles([], [], frozenset({"begun"}))
    files.hold(CheckpointId(0), read("first").files)
    files.hold(CheckpointId(1), read("second").files)
    assert files.needed(NOTHING) == {"begun", "first", "second"}
    files.batch_finished(finished(1))
    assert files.needed(NOTHING) == {"second"}


def test_what_sources_have_noted_is_durable() -> None:
    """Nobody uploads it: it was put into storage before the batch began."""
    files = NeededFiles([], [], frozenset())
    files.batch_finished(finished(0, "a", barrier=read("offsets")))
    assert files.undurable_working == {"a"}


def test_merged_files_may_come_from_an_iterator() -> None:
    """They are durable and left alone until their batch is finished, however they are handed in."""
    files = NeededFiles([], [], frozenset())
    files.take_durable(iter(["merged", "in vain"]), CheckpointId(1))
    files.batch_finished(finished(0, "a"))
    assert files.discard(NOTHING) == ()
    assert files.undurable({"merged"}) == set()
    files.batch_finished(finished(1, "merged"))
    assert files.discard(NOTHING) == ("a", "in vain")


def test_two_runs_may_have_a_checkpoint_of_one_number() -> None:
    """What one of them names stays when the other is subsumed."""
    first, second = completed(4, "a", run=1), completed(4, "b", run=2)
    files = NeededFiles([first, second], [], frozenset())
    files.subsumed([first])
    assert files.discard(NOTHING) == ("a",)


def test_nothing_works_on_when_the_run_is_over() -> None:
    """The working version and what came too early for a batch is garbage then; what a completed checkpoint names is not."""
    files = NeededFiles([completed(0, "a")], [], frozenset())
    files.batch_finished(finished(1, "a", "b"))
    files.stored(handle(SUBTASK, 2, "early"))
    files.run_ended()
    assert files.discard(NOTHING) == ("b", "early")
    assert files.needed(NOTHING) == {"a"}


def test_no_batch_is_newer_than_no_checkpoint() -> None:
    """The record that a run takes over is held under no batch, so the first batch of all releases it when it is recorded itself."""
    files = NeededFiles([], [], frozenset({"begun"}))
    files.batch_finished(finished(NO_CHECKPOINT + 1))
    assert files.needed(NOTHING) == {"begun"}
    files.hold(CheckpointId(1), read().files)
    files.batch_finished(finished(1))
    assert files.needed(NOTHING) == set()
