"""What tasks of the engine leave and find on a machine: another one than the driver's, and after a change of parallelism."""

from __future__ import annotations

import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.clock import SYSTEM_CLOCK
from penstock.config import OnBadRecord
from penstock.errors import ConfigError
from penstock.ids import CheckpointId, RunId
from penstock.operators.process.task import ProcessSpec
from penstock.recovery.state_migration import StateMigration
from penstock.run.assignment import Assignment, OperatorAnswer, RunPlace
from penstock.run.subtask import Subtask
from penstock.snapshot.mailbox import Address
from penstock.state.backends import backend_named
from penstock.state.handle import StateHandle
from penstock.storage import Storage
from penstock.testing.simulation.counting import KEY, LAYOUT, OUTPUT, Counting, as_rows
from penstock.testing.simulation.site import VirtualExecutor, Worker
from penstock.testing.simulation.workload import Item
from penstock.testing.virtual import VirtualStorage

UID = "views"
BACKEND = backend_named("filesystem")


def place(storage: Storage, job_folder: Path, run: int) -> RunPlace:
    return RunPlace(
        job="job",
        run=RunId(run),
        parallelism=1,
        max_parallelism=8,
        storage=storage,
        backend=BACKEND,
        local_dir=job_folder / f"run-{run}-ab",
        local_recovery=True,
        mailbox=Address("", 0, ""),
    )


def batch(here: RunPlace, number: int, before: StateHandle | None = None) -> OperatorAnswer:
    """One batch of one subtask; its files are stored at once."""
    handles = {} if before is None else {before.subtask: before}
    files = frozenset() if before is None else before.files
    plan = Assignment(
        place=here,
        batch=CheckpointId(number),
        handles=handles,
        undurable=frozenset(),
        keep=files,
        merges={},
        merging=frozenset(),
        expecting=frozenset(),
        forget_earlier_runs=False,
        awaited=frozenset(),
        newest_will_do=False,
    )
    told: list[object] = []
    executor = VirtualExecutor(number, 0, Worker(), SYSTEM_CLOCK, told.append)
    operator = Counting(random.Random(0), once=False)
    task = Subtask(UID, ProcessSpec(operator, KEY, OUTPUT), plan, executor, OnBadRecord.FAIL)
    list(task(as_rows([Item("key-1", ("0:1",))], here.max_parallelism)))
    (answer,) = executor.answers
    assert isinstance(answer, OperatorAnswer)
    assert answer.handle is not None
    for name in answer.handle.files - files:
        here.storage.upload(here.local_dir / name, name)
    return answer


def test_without_local_recovery_no_machine_uses_what_an_earlier_run_left(tmp_path: Path) -> None:
    """With it a task takes files of an earlier run over, without it they are deleted, on machines without the driver too."""
    storage = VirtualStorage()
    first = batch(place(storage, tmp_path / "job", 1), 0)
    again = batch(place(storage, tmp_path / "job", 2), 1, first.handle)
    assert again.report is not None
    assert again.report.reused_files == 1
    without = replace(place(storage, tmp_path / "job", 3), local_recovery=False)
    fetched = batch(without, 2, again.handle)
    assert fetched.report is not None
    assert (fetched.report.reused_files, fetched.report.fetched_files) == (0, 2)
    assert list((tmp_path / "job").glob("run-[12]-*/state/*/*")) == []


def take_over(storage: Storage, folder: Path, handle: StateHandle) -> StateMigration:
    return StateMigration(
        storage, BACKEND, folder / "run-2-ab", RunId(2), 2, 8, {UID: LAYOUT}, frozenset(handle.files)
    )


def test_state_is_taken_over_in_a_folder_that_is_closed_to_others(tmp_path: Path) -> None:
    """Also where the first task of a run on a machine is one that takes state over."""
    storage = VirtualStorage()
    handle = batch(place(storage, tmp_path / "job", 1), 0).handle
    assert handle is not None
    elsewhere = tmp_path / "elsewhere" / "job"
    take_over(storage, elsewhere, handle)(handle, 1)
    for folder in (elsewhere, elsewhere / "run-2-ab"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_state_is_not_taken_over_through_a_link(tmp_path: Path) -> None:
    """A link in the place of the working folder is refused, and nothing is written behind it."""
    storage = VirtualStorage()
    handle = batch(place(storage, tmp_path / "job", 1), 0).handle
    assert handle is not None
    (tmp_path / "victim").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="is a link"):
        take_over(storage, tmp_path / "link", handle)(handle, 1)
    assert list((tmp_path / "victim").iterdir()) == []
