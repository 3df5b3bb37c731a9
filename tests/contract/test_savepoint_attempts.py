"""Several attempts at one savepoint, one after the other or at once: one is made, and who is told so has a whole one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_savepoints import Site

from penstock.checkpoint.metadata import write_metadata
from penstock.checkpoint.model import Completed
from penstock.cli import request_commands
from penstock.errors import ConfigError, UnavailableError
from penstock.long_work import doing
from penstock.ownership.claim import claim
from penstock.savepoint import request
from penstock.savepoint.create import ReportProgress, claim_folder, create_savepoint
from penstock.savepoint.manifest import MAKING, MANIFEST, Manifest, read_manifest
from penstock.savepoint.request import create_in_child_process, make_savepoint
from penstock.savepoint.table_files import fetched
from penstock.storage import LocalStorage, Storage
from penstock.storage.forwarding import ForwardingStorage
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure


class Interrupted(ForwardingStorage):
    """Something happens before the first file of state is stored, or before the manifest is."""

    def __init__(self, inner: Storage, happens: Callable[[], None], *, at_manifest: bool = False) -> None:
        super().__init__(inner)
        self._happens, self._at_manifest, self._did = happens, at_manifest, False

    def upload(self, local: Path, name: str) -> None:
        """See `Storage.upload`."""
        if not self._at_manifest:
            self._once()
        super().upload(local, name)

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage.create`."""
        if self._at_manifest and name == MANIFEST:
            self._once()
        return super().create(name, data)

    def _once(self) -> None:
        if not self._did:
            self._did = True
            self._happens()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def folder(site: Site) -> LocalStorage:
    return LocalStorage(site.root / "saved")


def five(site: Site) -> Completed:
    return site.checkpoint("memory", 1, list(range(5)))


def six(site: Site) -> Completed:
    return msgspec.structs.replace(site.checkpoint("memory", 1, list(range(50))), checkpoint=6)


def check_whole(folder: Storage, scratch: Path) -> Manifest:
    """Every file is what the manifest says, and nothing else is there."""
    made = read_manifest(folder)
    for file in made.files:
        fetched(folder, file, scratch)
    assert folder.names() == sorted([MANIFEST, *(file.path for file in made.files)])
    return made


def test_a_request_is_performed_again(site: Site, folder: LocalStorage) -> None:
    """A run that had taken it on was killed in the middle: the next one makes the savepoint in the folder that was asked for."""
    completed = five(site)
    write_metadata(site.storage, completed)
    claim_folder(folder, "ab12-11111111")
    folder.put("state/cards/values/0-00000001.parquet", b"of the run that was killed")
    made = make_savepoint(site.storage, completed, to=str(folder.root), token="ab12")
    assert made["savepoint"] == str(folder.root)
    check_whole(folder, site.root)


def test_how_far_it_is_can_be_seen(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process makes it, the live record of the job can say how many subtasks are done; afterwards nothing is under way."""
    completed = five(site)
    write_metadata(site.storage, completed)
    seen: list[str] = []

    def noting(*arguments: Any, report: ReportProgress, **options: Any) -> Manifest:
        def tell(done: int, of: int) -> None:
            report(done, of)
            seen.append(doing(completed.job).partition(",")[0])

        return create_in_child_process(*arguments, report=tell, **options)

    monkeypatch.setattr(request, "create_in_child_process", noting)
    make_savepoint(site.storage, completed, to=None, token="ab12")
    number = sum(len(state.handles) for state in completed.operators.values())
    subtasks = "1 subtask" if number == 1 else f"{number} subtasks"
    assert seen == [f"making the savepoint: {done} of {subtasks}" for done in range(1, number + 1)]
    assert doing(completed.job) == ""


def test_what_a_site_prints_is_no_word_of_it(
    site: Site, folder: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that greets, as some are set up to, makes a savepoint as any other."""
    completed = five(site)
    write_metadata(site.storage, completed)
    greeting = tmp_path / "greeting"
    greeting.mkdir()
    (greeting / "sitecustomize.py").write_text("print('welcome')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(greeting), *filter(None, sys.path)]))
    assert create_in_child_process(site.storage, completed, folder, token="ab12") == read_manifest(folder)


def test_a_folder_of_choice_when_the_checkpoint_goes(
    site: Site, folder: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of which a file was deleted in that moment is followed by the newest one, into the same folder."""
    claim(site.storage, 0.0)
    claim(site.storage, 0.0)
    completed = five(site)
    write_metadata(site.storage, completed)
    real, tried = make_savepoint, []

    def first_fails(storage: Storage, chosen: Completed, *, to: str | None, token: str) -> object:
        tried.append(chosen.checkpoint)
        if len(tried) > 1:
            return real(storage, chosen, to=to, token=token)
        write_metadata(storage, msgspec.structs.replace(chosen, checkpoint=6))
        victim = max(chosen.files)
        data = storage.get(victim)
        storage.delete([victim])
        try:
            return real(storage, chosen, to=to, token=token)
        finally:
            storage.put(victim, data)

    monkeypatch.setattr(request_commands, "make_savepoint", first_fails)
    made = request_commands.make(site.storage, checkpoint=None, to=str(folder.root), timeout="1min")
    assert (tried, made["checkpoint"]) == ([5, 6], 6)
    check_whole(folder, site.root)


def test_a_failure_leaves_the_folder_empty(site: Site, folder: LocalStorage) -> None:
    """Anybody can use it then."""
    completed = five(site)
    gone = site.storage.get("state/_sources/1-0-0")
    site.storage.delete(["state/_sources/1-0-0"])
    with pytest.raises(FileNotFoundError):
        create_savepoint(site.storage, completed, folder, token="t1")
    assert folder.names() == []
    site.storage.put("state/_sources/1-0-0", gone)
    create_savepoint(site.storage, completed, folder, token="t2")
    check_whole(folder, site.root)


def test_an_answer_that_was_lost_deletes_nothing(site: Site, folder: LocalStorage) -> None:
    """Whoever does not know whether the manifest is there leaves the files it names; asked again, it finds them."""
    lost = PlannedFailure(pattern=MANIFEST, operation="create", performed=True)
    with pytest.raises(UnavailableError):
        create_savepoint(
            site.storage, five(site), FaultyStorage(folder, FaultPlan(failures=(lost,))), token="t1"
        )
    made = create_savepoint(site.storage, six(site), folder, token="t1")
    assert check_whole(folder, site.root) == made
    assert made.checkpoint == 5


@pytest.mark.parametrize("at_manifest", [False, True])
def test_one_that_was_replaced_wakes_up(site: Site, folder: LocalStorage, at_manifest: bool) -> None:
    """Somebody deletes the folder, as the message says, and makes another in it: that one stays what it is."""

    def replaced() -> None:
        folder.delete(folder.names())
        create_savepoint(site.storage, six(site), LocalStorage(folder.root), token="bb")

    slow = Interrupted(folder, replaced, at_manifest=at_manifest)
    with pytest.raises(ConfigError, match="has a savepoint of another request by now"):
        create_savepoint(site.storage, five(site), slow, token="aa")
    assert check_whole(folder, site.root).id == "bb"


@pytest.mark.parametrize("at_manifest", [False, True])
def test_two_attempts_of_one_request(site: Site, folder: LocalStorage, at_manifest: bool) -> None:
    """The first that is done counts; the other one answers with it, and leaves nothing."""

    def overtaken() -> None:
        create_savepoint(site.storage, six(site), LocalStorage(folder.root), token="ab12-22222222")

    slow = Interrupted(folder, overtaken, at_manifest=at_manifest)
    made = create_savepoint(site.storage, five(site), slow, token="ab12-11111111")
    assert check_whole(folder, site.root) == made
    assert made.id == "ab12-22222222"


def test_the_winner_deletes_what_an_attempt_that_died_has_left(site: Site, folder: LocalStorage) -> None:
    """Nor does it wait for it; what is none of ours stays."""
    completed = five(site)
    lost = PlannedFailure(pattern=MANIFEST, operation="create")
    with pytest.raises(UnavailableError):
        create_savepoint(
            site.storage, completed, FaultyStorage(folder, FaultPlan(failures=(lost,))), token="ab12-1"
        )
    assert [name for name in folder.names() if name.startswith("state/")]
    made = create_savepoint(site.storage, completed, folder, token="ab12-2")
    assert check_whole(folder, site.root) == made
    assert made.id == "ab12-2"


def test_half_of_it_is_deleted_meanwhile(site: Site, folder: LocalStorage) -> None:
    """A savepoint that lacks files is not made, and nobody is told that it was."""

    def deleted() -> None:
        folder.delete([name for name in folder.names() if "values" in name])

    slow = Interrupted(folder, deleted, at_manifest=True)
    with pytest.raises(UnavailableError, match="has been deleted while it was made"):
        create_savepoint(site.storage, five(site), slow, token="aa")


def test_it_is_deleted_while_another_one_begins(site: Site, folder: LocalStorage) -> None:
    """Whoever has the folder now is not disturbed by one that wakes up there."""
    others = []

    def taken() -> None:
        folder.delete(folder.names())
        others.append(claim_folder(LocalStorage(folder.root), "bb"))

    with pytest.raises(ConfigError, match="another request"):
        create_savepoint(site.storage, five(site), Interrupted(folder, taken), token="aa")
    assert folder.names() == [MAKING]
    with pytest.raises(ConfigError, match="is no savepoint"):
        read_manifest(folder)


def test_a_manifest_that_was_just_written_is_a_savepoint(site: Site, folder: LocalStorage) -> None:
    """A maker that died behind it has made one: others are told so, and not that it is unfinished."""
    create_savepoint(site.storage, five(site), folder, token="t1")
    folder.put(MAKING, b"{}")
    with pytest.raises(ConfigError, match="holds a savepoint"):
        create_savepoint(site.storage, five(site), folder, token="t2")
