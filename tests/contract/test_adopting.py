"""A start that adopts a savepoint: it is seen to be alive all the while, and deletes what was claimed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_savepoints import LAYOUT, MAX_PARALLELISM, Site

import penstock as ps
from penstock.errors import ConfigError
from penstock.job_spec import JobSpec
from penstock.ownership.claim import Claim
from penstock.savepoint.create import claim_folder, create_savepoint
from penstock.savepoint.manifest import MAKING, MANIFEST, Manifest, read_manifest
from penstock.savepoint.restore import GivenSavepoint, delete_rest_of_claimed, restore_savepoint
from penstock.state.backends import backend_named
from penstock.storage import LocalStorage, Storage
from penstock.testing.virtual import VirtualClock


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def folder(site: Site) -> LocalStorage:
    saved = LocalStorage(site.root / "saved")
    create_savepoint(site.storage, site.checkpoint("memory", 1, [1, 2]), saved, token="t1")
    return saved


def fork_of(root: Path, max_parallelism: int) -> JobSpec:
    return JobSpec(
        *("fork", "fork-1", LocalStorage(root), backend_named("memory"), ps.Checkpointing(), 1),
        *(max_parallelism, root / "local"),
        local_recovery=False,
        layouts={"cards": LAYOUT},
        upstream={"cards": ()},
        sinks={},
        streams={"clicks": 1},
    )


def test_it_is_alive_while_keys_are_hashed_anew(site: Site, folder: LocalStorage) -> None:
    """That reads and writes all state, and may take long: nobody else is to take the job over meanwhile."""
    alive: list[bool] = [False]

    @contextmanager
    def living(_: Claim) -> Iterator[None]:
        alive[0] = True
        yield
        alive[0] = False

    class Seen(Exception):  # noqa: N818 - it is none
        pass

    def rekey(_savepoint: GivenSavepoint, _to: Storage, _groups: int) -> Manifest:
        raise Seen(alive[0])

    root = site.root / "fork"
    spec = fork_of(root, MAX_PARALLELISM * 2)
    with pytest.raises(Seen) as seen:
        restore_savepoint(
            spec,
            GivenSavepoint(folder, read_manifest(folder)),
            clock=VirtualClock(),
            run_tasks=lambda *_: [],
            rekey=rekey,
            alive=living,
        )
    assert seen.value.args == (True,)


def test_what_comes_before_the_claim_can_stop_it(site: Site, folder: LocalStorage) -> None:
    """Whoever finds the job's record to be another's there has changed nothing."""
    root = site.root / "fork"
    with pytest.raises(ConfigError, match="another's"):
        restore_savepoint(
            fork_of(root, MAX_PARALLELISM),
            GivenSavepoint(folder, read_manifest(folder)),
            clock=VirtualClock(),
            run_tasks=lambda *_: [],
            before_claim=_refuse,
        )
    assert LocalStorage(root).names() == []


def _refuse() -> None:
    raise ConfigError("it is another's")


def test_what_a_crash_has_left_of_a_claimed_savepoint_goes(folder: LocalStorage) -> None:
    """The manifest is deleted first."""
    folder.delete([MANIFEST])
    delete_rest_of_claimed(folder)
    assert folder.names() == []


def test_who_makes_another_one_in_a_claimed_folder_is_not_disturbed(site: Site, folder: LocalStorage) -> None:
    """It is empty, and free for the next: a supervisor that repeats its command, with its claim, leaves that alone."""
    folder.delete(folder.names())
    claim_folder(folder, "t2")
    folder.put("state/cards/values/0-0123abcd.parquet", b"rows")
    delete_rest_of_claimed(folder)
    assert folder.names() == [MAKING, "state/cards/values/0-0123abcd.parquet"]
    folder.delete(folder.names())
    create_savepoint(site.storage, site.checkpoint("memory", 1, [3]), folder, token="t3")
    there = folder.names()
    delete_rest_of_claimed(folder)
    assert folder.names() == there
