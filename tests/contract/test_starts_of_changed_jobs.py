"""Starts of jobs that have changed: what may be dropped is dropped once, or again where it has to be; what is taken over takes time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.metadata import write_metadata
from penstock.checkpoint.model import Barrier, Completed, OperatorState, SubtaskReport
from penstock.checkpoint.state_columns import columns_of
from penstock.errors import IncompatibleStateError
from penstock.ids import CheckpointId, SubtaskId
from penstock.job_spec import JobSpec
from penstock.operators.state.declarations import DECLARED_STATES
from penstock.ownership.claim import Claim, Claimant, claim, newest_run, record_descent
from penstock.recovery.restore_options import RestoreOptions
from penstock.recovery.start import Start, start_run
from penstock.recovery.state_migration import RestoredSubtask
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout
from penstock.state.handle import StateHandle
from penstock.storage import LocalStorage
from penstock.testing.virtual import VirtualClock


def layout(key: pa.DataType) -> StateLayout:
    return StateLayout(pa.schema([("k", key)]), pa.schema([("n", pa.int64())]), parts=DECLARED_STATES)


STORED = layout(pa.string())


def checkpointed(storage: LocalStorage, *dropped: str) -> None:
    """A checkpoint of an operator, whose start was told to drop these."""
    mine = claim(storage, 0.0)
    record_descent(mine, CheckpointId(-1), 0)
    columns = columns_of(STORED, {})
    handle = StateHandle(SubtaskId("op", 0), "memory", 3)
    operator = OperatorState(columns.key, columns.value, (handle,), columns.tables, schema=columns.schema)
    write_metadata(
        storage,
        Completed(
            job="job",
            checkpoint=3,
            run=mine.run,
            mode="exactly-once",
            max_parallelism=128,
            parallelism=1,
            barrier=Barrier({"s": 5}, "v1\n{}\n5"),
            operators={"op": operator},
            dropped=dropped,
        ),
    )


def spec_of(root: Path, wanted: StateLayout) -> JobSpec:
    storage = LocalStorage(root / "storage")
    return JobSpec(
        *("job", "job-1", storage, backend_named("memory"), ps.Checkpointing(), 1, 128, root / "local"),
        local_recovery=False,
        layouts={"op": wanted},
        upstream={"op": ()},
        sinks={},
        streams={"s": 1},
    )


def started(root: Path, wanted: StateLayout, *dropped: str) -> Start:
    return start_run(
        spec_of(root, wanted),
        RestoreOptions(drop_state=dropped),
        claimant=Claimant(),
        clock=VirtualClock(),
        run_tasks=lambda *_: [],
    )


def test_the_same_word_again_drops_nothing(tmp_path: Path) -> None:
    """A supervisor repeats its command: what has been counted since stays."""
    checkpointed(LocalStorage(tmp_path / "storage"), "op")
    assert list(started(tmp_path, STORED, "op").handles) == [SubtaskId("op", 0)]


def test_what_was_never_dropped_goes(tmp_path: Path) -> None:
    """The first time."""
    checkpointed(LocalStorage(tmp_path / "storage"))
    assert not started(tmp_path, STORED, "op").handles


def test_a_job_that_changed_once_more_can_drop_once_more(tmp_path: Path) -> None:
    """It has no start without the word: it is refused then, and told to say it."""
    checkpointed(LocalStorage(tmp_path / "storage"), "op")
    other_key = layout(pa.int64())
    with pytest.raises(IncompatibleStateError, match=r"drop_state=\('op',\)"):
        started(tmp_path, other_key)
    assert not started(tmp_path, other_key, "op").handles


def test_what_comes_before_the_claim_comes_behind_what_is_refused(tmp_path: Path) -> None:
    """A refused start writes nothing that it would have to take back from under a start beside it."""
    storage = LocalStorage(tmp_path / "storage")
    checkpointed(storage)
    runs = list[int]()

    def start(wanted: StateLayout, claimant: Claimant) -> None:
        start_run(
            spec_of(tmp_path, wanted),
            claimant=claimant,
            clock=VirtualClock(),
            run_tasks=lambda *_: [],
            before_claim=lambda: runs.append(newest_run(storage)),
        )

    with pytest.raises(IncompatibleStateError):
        start(layout(pa.int64()), Claimant())
    assert runs == []
    claimant = Claimant()
    start(STORED, claimant)
    start(STORED, claimant)  # a restart
    assert (runs, newest_run(storage)) == ([1], 3)


def test_a_run_is_alive_while_it_takes_state_over(tmp_path: Path) -> None:
    """State in another form is written anew, all of it: nobody else is to take the job over meanwhile."""
    checkpointed(LocalStorage(tmp_path / "storage"))
    wider = StateLayout(STORED.key, pa.schema([("m", pa.int64()), ("n", pa.int64())]), parts=DECLARED_STATES)
    alive, seen = [False], list[bool]()

    @contextmanager
    def living(_: Claim) -> Iterator[None]:
        alive[0] = True
        yield
        alive[0] = False

    def run_tasks(_: object, handles: Sequence[StateHandle]) -> list[RestoredSubtask]:
        seen.append(alive[0])
        return [RestoredSubtask(one, SubtaskReport(one.subtask)) for one in handles]

    start_run(
        spec_of(tmp_path, wider),
        claimant=Claimant(),
        clock=VirtualClock(),
        run_tasks=run_tasks,
        alive=living,
    )
    assert (seen, alive) == ([True], [False])
