"""What a supervised program is not to do again, because an attempt before it has: taking the job over, going back."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec
import pytest

from penstock.ids import CheckpointId
from penstock.ownership import claim as claims
from penstock.ownership.claim import Claim, Claimant, claim, record_descent
from penstock.ownership.runs import EarlierAttempts, earlier_attempts
from penstock.start_options import StartOptions
from penstock.storage import LocalStorage

OURS = "our supervisor"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def by_another_process(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, supervisor: str = OURS
) -> Claim:
    """A claim of an attempt that is dead by now."""
    with monkeypatch.context() as there:
        there.setattr(claims, "this_process", lambda: (platform.node(), os.getpid(), "earlier"))
        return claim(storage, 100.0, Claimant(supervisor=supervisor))


def test_an_attempt_that_did_nothing(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a record nothing is done, whoever said what; with a claim alone the job was had, and nothing restored."""
    assert earlier_attempts(storage, OURS) == EarlierAttempts()
    by_another_process(storage, monkeypatch)
    found = earlier_attempts(storage, OURS)
    assert (found.have_claimed, found.have_restored(3)) == (True, False)
    assert earlier_attempts(storage, "") == EarlierAttempts()


def test_going_back_is_done_once_for_each_checkpoint(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that went on from another checkpoint has not gone back to this one."""
    record_descent(by_another_process(storage, monkeypatch), CheckpointId(7))
    found = earlier_attempts(storage, OURS)
    assert [found.have_restored(one) for one in (3, 7)] == [False, True]
    asked = StartOptions(restore=7, takeover=True)
    assert (asked.without_done_actions(found).restore, asked.without_done_actions(found).takeover) == (
        None,
        False,
    )
    assert StartOptions(restore=3).without_done_actions(found).restore == 3
    first = asked.without_done_actions(EarlierAttempts())
    assert (first.restore, first.takeover) == (7, True)


def test_others_count_for_nothing(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of another supervisor, of none, and of this very process, which means what it says twice."""
    record_descent(by_another_process(storage, monkeypatch, "another"), CheckpointId(3))
    record_descent(by_another_process(storage, monkeypatch, ""), CheckpointId(3))
    record_descent(claim(storage, 100.0, Claimant(supervisor=OURS)), CheckpointId(3))
    assert earlier_attempts(storage, OURS) == EarlierAttempts()


def test_what_is_forgotten_counts_as_done(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many restarts that the first records are gone nobody knows; to go back again could throw results away."""
    for _ in range(3):
        by_another_process(storage, monkeypatch)
    assert not earlier_attempts(storage, OURS).have_restored(3)
    storage.delete(["runs/1.json"])
    assert earlier_attempts(storage, OURS).have_restored(3)


def test_records_of_before(storage: LocalStorage) -> None:
    """A record that names no supervisor is that of a run without one."""
    old = {"run": 1, "host": "h", "pid": 1, "process_started": "1", "started_at": 1.0}
    storage.put("runs/1.json", msgspec.json.encode(old))
    assert earlier_attempts(storage, OURS) == EarlierAttempts()
