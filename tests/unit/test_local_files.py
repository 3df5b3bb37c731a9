"""Working files of a machine: what a new run takes over from earlier ones, and what it leaves behind."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import SubtaskId
from penstock.state.backends.base import Workplace
from penstock.state.backends.fetch import local_file
from penstock.state.handle import FileRef
from penstock.state.local_files import (
    begin_run,
    earlier_runs,
    fingerprint,
    forget_earlier_runs,
    forget_unnamed,
    job_dir,
    make_job_dir,
    run_dir,
)
from penstock.storage import LocalStorage

NAME = "state/views/1-0-0-0.arrow"
OTHER = "state/views/1-1-0-0.arrow"


class Machine:
    """Run 1 wrote two files and uploaded them; run 3 begins."""

    def __init__(self, root: Path) -> None:
        self.storage = LocalStorage(root / "storage")
        self.job = job_dir(root / "local", "job", self.storage.uri)
        for name in (NAME, OTHER):
            path = run_dir(self.job, 1) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode() * 100)
            self.storage.put(name, path.read_bytes())
        self.local = run_dir(self.job, 3)

    @property
    def left(self) -> Path:
        return run_dir(self.job, 1) / NAME

    @property
    def ref(self) -> FileRef:
        return FileRef(1, len(NAME) * 100, _checksum(NAME.encode() * 100), NAME)

    def workplace(self) -> Workplace:
        return Workplace(self.storage, self.local, SubtaskId("views", 0), 1, 128, 5, "3-5-0-0")


def _checksum(data: bytes) -> str:
    import xxhash

    return xxhash.xxh3_64_hexdigest(data)


def _no_links(source: Path, target: Path) -> None:
    raise PermissionError(errno.EPERM, "no hard links here", str(source), None, str(target))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_what_an_earlier_run_left_is_used_again(
    machine: Machine, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an earlier run with the right checksum is linked, or copied where no links are, not fetched; deleting it there does no harm."""
    if not links:
        monkeypatch.setattr("penstock.storage.file_system.os.link", _no_links)
    begin_run(machine.local, {NAME, OTHER})
    machine.storage.delete([NAME])
    workplace = machine.workplace()
    path = local_file(workplace, machine.ref)
    machine.left.unlink()
    assert fingerprint(path) == (machine.ref.size, machine.ref.checksum)
    assert (workplace.origins.reused_files, workplace.origins.reused_bytes) == (1, machine.ref.size)
    assert local_file(workplace, machine.ref) == path
    assert workplace.origins.reused_files == 1, "a file that is there already is not counted again"


@pytest.mark.parametrize("damage", ["flipped bit", "truncated", "gone"])
def test_what_is_not_right_any_more_comes_from_storage(
    machine: Machine, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed, short or missing file of an earlier run is not used; storage has it, and a change is told."""
    content = bytearray(machine.left.read_bytes())
    content[50] ^= 4
    machine.left.unlink()
    if damage != "gone":
        machine.left.write_bytes(content if damage == "flipped bit" else content[:-1])
    begin_run(machine.local, {NAME, OTHER})
    workplace = machine.workplace()
    with caplog.at_level(logging.WARNING):
        path = local_file(workplace, machine.ref)
    assert fingerprint(path) == (machine.ref.size, machine.ref.checksum)
    assert (workplace.origins.reused_files, workplace.origins.fetched_files) == (0, 1)
    assert ("has changed" in caplog.text) == (damage == "flipped bit")


def test_the_loss_of_the_local_folder_costs_a_download(machine: Machine) -> None:
    """Without any local file everything comes from storage, verified."""
    shutil.rmtree(machine.job)
    workplace = machine.workplace()
    assert fingerprint(local_file(workplace, machine.ref)) == (machine.ref.size, machine.ref.checksum)
    assert workplace.origins.fetched_bytes == machine.ref.size


def test_damage_in_both_places_is_an_error(machine: Machine) -> None:
    """Nothing is made up: when storage is damaged too, the error names the file."""
    machine.left.unlink()
    machine.storage.put(NAME, b"x" * machine.ref.size)
    with pytest.raises(CorruptStateError, match=NAME):
        local_file(machine.workplace(), machine.ref)
    assert not list(machine.local.rglob("*.tmp"))


def test_a_new_run_keeps_of_earlier_ones_what_its_checkpoint_names(machine: Machine) -> None:
    """Files that the restored checkpoint does not name are removed at the beginning, once for each run."""
    begin_run(machine.local, {NAME})
    assert machine.left.is_file()
    assert not (run_dir(machine.job, 1) / OTHER).exists()
    begin_run(machine.local, set())
    assert machine.left.is_file(), "only the first call on a machine looks at earlier runs"


def test_earlier_runs_only(machine: Machine) -> None:
    """The folders of this run and of later ones are never touched; the newest earlier run comes first."""
    for run in (2, 3, 4):
        run_dir(machine.job, run).mkdir(parents=True)
    (machine.job / "something else").mkdir()
    assert earlier_runs(machine.local) == [run_dir(machine.job, 2), run_dir(machine.job, 1)]
    forget_earlier_runs(machine.local)
    assert sorted(path.name for path in machine.job.iterdir()) == ["run-3", "run-4", "something else"]


def test_tokens_are_no_part_of_the_order(machine: Machine) -> None:
    """With a token in its name a folder is found by its number; one of the same number, of another life of the job, is not an earlier run."""
    second, third = run_dir(machine.job, 2, "0a0b0c0d"), run_dir(machine.job, 3, "ffffffff")
    for folder in (second, third):
        folder.mkdir(parents=True)
    own = run_dir(machine.job, 3, "00000000")
    assert earlier_runs(own) == [second, run_dir(machine.job, 1)]


NAMES = [
    "3-4-0-7.arrow",
    "3-4-0-8.arrow",
    "3-4-1-9.arrow",
    "2-4-0-1.arrow",
    "3-5-0-1.arrow",
    "3-6-0-1.arrow",
]


def tidied(machine: Machine, folder: Path, *, merging: bool) -> list[str]:
    """What is left in a folder after subtask 0 has tidied up in batch 5 of run 3, when one file is named."""
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / name).touch()
    named = {"state/views/3-4-0-8.arrow"}
    forget_unnamed(machine.local, run=3, batch=5, uid="views", subtask=0, named=named, merging=merging)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("merging", [True, False])
def test_a_subtask_forgets_its_own_files_only(machine: Machine, merging: bool) -> None:
    """Unnamed files of earlier batches of this run and subtask go; named ones, other subtasks, runs and batches stay."""
    assert tidied(machine, machine.local / "state" / "views", merging=merging) == sorted(NAMES[1:])
    forget_unnamed(
        machine.local, run=3, batch=5, uid="nothing", subtask=0, named=frozenset(), merging=merging
    )


def test_merged_files_that_nobody_took_are_forgotten(machine: Machine) -> None:
    """They go like others; while a result of the subtask is on its way they stay, since the next handle may name one."""
    merged = machine.local / "merged" / "state" / "views"
    assert tidied(machine, merged, merging=False) == sorted(NAMES[1:])
    shutil.rmtree(merged)
    assert tidied(machine, merged, merging=True) == sorted(NAMES)


# ── a folder that others can reach ─────────────────────────────────────────────────────────────


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files, in which anybody may put something."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def victim_of(folder: Path) -> Path:
    """A file of the user, in a folder that looks like that of an earlier run."""
    file = folder / "precious" / "run-1" / "state" / "thesis"
    file.parent.mkdir(parents=True)
    file.write_text("years of work")
    return file


def default_run() -> Path:
    return run_dir(job_dir(None, "job", "/storage"), 3)


def test_working_folders_are_for_this_user_alone(shared: Path) -> None:
    """Without local_dir there is a root for each user; it and all that is made below a given local_dir is closed to others."""
    assert default_run().parents[1] == shared / f"penstock-{os.geteuid()}"
    for run in (default_run(), run_dir(job_dir(shared / "given", "job", "/storage"), 3)):
        begin_run(run, set())
        begin_run(run, set())
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in (run, *run.parents[:2])] == [0o700] * 3


@pytest.mark.parametrize("place", ["root", "job", "job in a given local_dir"])
def test_a_link_is_not_taken_for_the_working_folder(shared: Path, place: str) -> None:
    """Whoever puts a link where the folder would be made can neither read what is written nor have anything deleted through it."""
    precious = victim_of(shared)
    run = default_run() if place != "job in a given local_dir" else run_dir(shared / "given" / "job-1", 3)
    link = run.parents[1] if place == "root" else run.parent
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(shared / "precious")
    with pytest.raises(ConfigError, match=rf"{link} is a link to .*precious.*give the job a local_dir"):
        begin_run(run, set())
    assert precious.exists()
    assert [path.name for path in (shared / "precious").iterdir()] == ["run-1"]


def test_a_link_is_no_earlier_run(shared: Path) -> None:
    """Nor is anything deleted through a link further down."""
    precious = victim_of(shared)
    run = run_dir(shared / "given" / "job-1", 3)
    for link in (run.with_name("run-1"), run.with_name("run-2") / "state" / "views"):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(precious.parents[1])
    begin_run(run, set())
    assert earlier_runs(run) == [run.with_name("run-2")]
    forget_earlier_runs(run)
    assert precious.exists()


def test_a_root_that_others_can_write_to_is_refused(shared: Path) -> None:
    """Something may have been put there already; one that others could only read is closed and used."""
    root = default_run().parents[1]
    root.mkdir()
    root.chmod(0o770)
    with pytest.raises(ConfigError, match=r"can be written by others \(mode 770\)"):
        begin_run(default_run(), set())
    root.chmod(0o755)
    begin_run(default_run(), set())
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("place", ["root", "job"])
def test_the_folder_of_another_user_is_refused(shared: Path, place: str) -> None:
    """Its owner could change at any time what it leads to."""
    folder = default_run().parents[1] if place == "root" else default_run().parent
    make_job_dir(default_run().parent)
    os.chown(folder, 12345, 12345)
    with pytest.raises(ConfigError, match=f"{folder} belongs to the user 12345, not to 0"):
        begin_run(default_run(), set())
