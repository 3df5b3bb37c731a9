"""What earlier attempts of a supervised program got done with a job, and what is therefore not to be done again. Driver.

A supervisor repeats its command as it is, and a program its calls. Two of them must not be done at every death: to take the job from
another run, and to go back to an older checkpoint, which throws away what came after it. Whether they were done lies in storage, where
the runs of earlier attempts have their records: nobody has to live long enough to say it, and a job that never ran is not mixed up with
one that did. All else can be repeated: a start that finds a savepoint adopted, state dropped or a position set does not do it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ids import RunId
from penstock.ownership.claim import read_run, this_process
from penstock.ownership.descent import read_descent
from penstock.ownership.records import records
from penstock.storage import Storage


@dataclass(frozen=True)
class EarlierAttempts:
    """Those of the same supervisor, in other processes than this one."""

    restored_from: frozenset[int] = frozenset()
    """The checkpoints that their runs have gone on from."""
    have_claimed: bool = False
    """Whether one of them had the job: whoever has it by now is not to be disturbed."""
    are_long: bool = False
    """There were so many runs that the records of the first are gone."""

    def have_restored(self, checkpoint: int) -> bool:
        """Whether one has gone back to it. Where that is not known any more it counts as done: nothing is thrown away by mistake."""
        return self.are_long or checkpoint in self.restored_from


def earlier_attempts(storage: Storage, supervisor: str) -> EarlierAttempts:
    """What lies in the storage of a job. `supervisor`: the id of that of this program; '' where it has none."""
    if not supervisor:
        return EarlierAttempts()
    known = sorted(RunId(run) for _, run in records(storage, "json"))
    own = [run for run in known if _is_of(storage, run, supervisor)]
    restored = (_restored_from(storage, run) for run in own)
    return EarlierAttempts(
        restored_from=frozenset(one for one in restored if one is not None),
        have_claimed=bool(own),
        are_long=bool(own) and own[0] == known[0] > 1,
    )


def _is_of(storage: Storage, run: RunId, supervisor: str) -> bool:
    """Another start in this very process is none of them: the program means what it says twice."""
    try:
        record = read_run(storage, run)
    except FileNotFoundError:  # forgotten in this moment
        return False
    here = (record.host, record.pid, record.process_started) == this_process()
    return record.supervisor == supervisor and not here


def _restored_from(storage: Storage, run: RunId) -> int | None:
    try:
        return read_descent(storage, run).restored_from
    except FileNotFoundError:  # it died before it had decided, and did nothing
        return None
