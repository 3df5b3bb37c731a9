from __future__ import annotations

import pytest

from penstock.errors import FencedError
from penstock.recovery.fencing import Claimant, claim
from penstock.storage import LocalStorage

NOW = 0.0


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path)


def test_a_start_restarts_as_often_as_it_must(storage):
    """A start of a job claims it again for every restart, as long as nobody else came between."""
    mine = Claimant()
    assert [claim(storage, NOW, mine) for _ in range(3)] == [1, 2, 3]


def test_a_start_takes_the_job_from_another(storage):
    """The first claim of a start succeeds, whoever had the job."""
    assert claim(storage, NOW, Claimant()) == 1
    assert claim(storage, NOW, Claimant()) == 2


def test_a_start_that_lost_the_job_does_not_take_it_back(storage):
    """A zombie that fails for whatever reason and wants to restart is told that it is fenced."""
    zombie, owner = Claimant(), Claimant()
    claim(storage, NOW, zombie)
    claim(storage, NOW, owner)
    with pytest.raises(FencedError, match="run 2"):
        claim(storage, NOW, zombie)
    assert claim(storage, NOW, owner) == 3
