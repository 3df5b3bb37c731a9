"""What was begun is not read again, whichever run comes next."""

from __future__ import annotations

import pytest

from penstock.checkpoint.model import Barrier
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import CorruptStateError
from penstock.ids import RunId
from penstock.ownership.claim import Claimant, claim
from penstock.recovery.cleanup import forget_everything
from penstock.recovery.started_batches import StartedBatch, inherit_started, last_started, record_started
from penstock.storage import LocalStorage

TWELVE = StartedBatch(1, Barrier({"source": 12}), 12)


@pytest.fixture
def storage(tmp_path):
    storage = LocalStorage(tmp_path)
    record_started(storage, TWELVE)
    return storage


def test_a_run_that_begins_nothing_hands_on_what_it_found(storage):
    """Only the newest record counts, so each run takes it over; a zombie that begins more changes nothing."""
    for run in (2, 3):
        inherit_started(storage, RunId(run), last_started(storage))
    assert storage.names("begun") == ["begun/3.json"]
    record_started(storage, StartedBatch(1, Barrier({"source": 13}), 13))
    found = last_started(storage)
    assert found is not None
    assert (found.run, found.batch, found.barrier) == (3, 12, TWELVE.barrier)


def test_a_run_that_died_before_it_took_over_is_no_gap(storage):
    """The record of the run before it is still there."""
    inherit_started(storage, RunId(4), last_started(storage))
    assert last_started(storage) == StartedBatch(4, TWELVE.barrier, 12)


def test_a_zombie_records_what_nobody_knew_of(tmp_path):
    """Its successor has decided that nothing was begun, and may have deleted the files that the record names."""
    storage = LocalStorage(tmp_path)
    inherit_started(storage, RunId(2), last_started(storage))
    record_started(storage, TWELVE)
    assert last_started(storage) is None


def test_a_job_that_was_forgotten_has_begun_nothing(storage):
    """After a cancel that deletes all, the next start reads from the beginning."""
    claimant = Claimant()
    claim(storage, SYSTEM_CLOCK.wall(), claimant)
    forget_everything(storage, SYSTEM_CLOCK.wall(), claimant)
    assert last_started(storage) is None


def test_an_unreadable_record_is_not_taken_for_none(storage):
    """Going on without it could write twice."""
    storage.put("begun/2.json", b"{")
    storage.put("begun/.DS_Store", b"?")
    with pytest.raises(CorruptStateError, match=r"begun/2\.json"):
        last_started(storage)
