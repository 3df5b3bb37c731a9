"""A storage that kills its own process: real processes, really killed."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import KillingStorage, KillMoment, KillPoint

PROGRAM = """
import sys
from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import KillingStorage, KillPoint, KillMoment
point = KillPoint(moment=KillMoment[sys.argv[2]], nth=int(sys.argv[3]), first=int(sys.argv[4]))
storage = KillingStorage(LocalStorage(sys.argv[1]), point, last_words=lambda n: print(f"bye {n}", flush=True))
storage.create("job.json", b"{}")
for number in range(10):
    storage.put(f"state/{number}", b"x")
    storage.create(f"chk-{number}-r1/_metadata", b"{}")
    print(number, flush=True)
"""


def run(root: Path, moment: KillMoment, *, nth: int = 1, first: int = 0) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", PROGRAM, str(root), moment.name, str(nth), str(first)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("moment", "complete"), [(KillMoment.BEFORE_COMPLETE, [0, 1]), (KillMoment.BEFORE_COMMIT, [0, 1, 2])]
)
def test_dies_before_or_after_the_metadata(tmp_path: Path, moment: KillMoment, complete: list[int]) -> None:
    """The process dies by SIGKILL at the chosen checkpoint, which exists only if the moment is after complete."""
    ended = run(tmp_path, moment, nth=3)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split("\n") == ["0", "1", "bye 2", ""]
    found = [int(path.parent.name[4:-3]) for path in tmp_path.glob("chk-*/_metadata")]
    assert sorted(found) == complete
    assert (tmp_path / "state" / "2").exists()


def test_checkpoints_below_the_first_do_not_count(tmp_path: Path) -> None:
    """`first` lets checkpoints pass, and `nth` counts from there."""
    ended = run(tmp_path, KillMoment.BEFORE_COMPLETE, nth=2, first=5)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.endswith("5\nbye 6\n")


def test_a_process_that_never_gets_there_lives(tmp_path: Path) -> None:
    """Without the checkpoint of the kill point nothing happens."""
    assert run(tmp_path, KillMoment.BEFORE_COMMIT, first=10).returncode == 0


def test_executors_get_the_storage_itself(tmp_path: Path) -> None:
    """A pickled copy is the inner storage, which kills nobody."""
    storage = KillingStorage(LocalStorage(tmp_path), KillPoint(moment=KillMoment.BEFORE_COMPLETE))
    copy = pickle.loads(pickle.dumps(storage))
    assert isinstance(copy, LocalStorage)
    assert copy.uri == storage.uri
