"""The runs that a job has had, from their records. Changes nothing, and shows what it cannot read as such. Driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.decoding import refuse_absurd
from penstock.errors import CorruptStateError
from penstock.ids import NO_CHECKPOINT, RunId
from penstock.ownership.claim import RunRecord, newest_run, read_run, this_process
from penstock.ownership.descent import Descent, read_descent
from penstock.ownership.heartbeat import Heartbeat, Pulse, last_beat, seems_alive
from penstock.ownership.records import records
from penstock.ownership.run_ends import RunEnd, read_end
from penstock.storage import Storage

RUNNING = "running"
ENDED = "ended"
DID_NOT_SAY = "did not say"
"""Of a process that was killed, or of a machine that is gone: whoever dies so says nothing."""

_T = TypeVar("_T")


class ListedRun(msgspec.Struct, frozen=True):
    """One run, as far as its records can be read."""

    run: int
    record: RunRecord | None
    descent: Descent | None
    heartbeat: Heartbeat | None
    end: RunEnd | None
    alive: bool
    unreadable: tuple[str, ...] = ()
    """What is wrong with records of this run."""

    @property
    def how(self) -> str:
        """How it ended, in one word; or that it runs, or that it did not say."""
        if self.alive:
            return RUNNING
        if self.end is not None:
            return self.end.how
        return ENDED if self.heartbeat is not None and self.heartbeat.ended else DID_NOT_SAY

    @property
    def why(self) -> str:
        """What made it end; '' when nothing did, or nobody knows."""
        return f"{self.end.error}: {self.end.why}" if self.end is not None and self.end.error else ""

    @property
    def newest_checkpoint(self) -> int:
        """The newest one it is known to have had, its own or that from which it went on."""
        beaten = NO_CHECKPOINT if self.heartbeat is None else self.heartbeat.completed
        return max(beaten, NO_CHECKPOINT if self.descent is None else self.descent.restored_from)


def list_runs(storage: Storage, now: float, pulse: Pulse | None = None) -> list[ListedRun]:
    """All runs of which there is a record, oldest first. `pulse`: of who looks again and again."""
    newest = newest_run(storage)
    numbers = sorted({run for _, run in records(storage, "json", "restored", "alive", "ended")})
    return [_listed(storage, RunId(run), now, pulse, newest=run == newest) for run in numbers]


def _listed(storage: Storage, run: RunId, now: float, pulse: Pulse | None, *, newest: bool) -> ListedRun:
    wrong: list[str] = []

    def readable(read: Callable[[Storage, RunId], _T]) -> _T | None:
        try:
            found = read(storage, run)
            refuse_absurd(msgspec.to_builtins(found))
        except FileNotFoundError:
            return None
        except (CorruptStateError, msgspec.DecodeError) as error:
            wrong.append(str(error))
            return None
        return found

    record, descent = readable(read_run), readable(read_descent)
    heartbeat, end = readable(last_beat), readable(read_end)
    alive = newest and record is not None and seems_alive(record, heartbeat, now, pulse)
    return ListedRun(run, record, descent, heartbeat, end, alive, tuple(wrong))


@dataclass(frozen=True)
class EarlierAttempts:
    """What earlier attempts of a supervised program, in other processes, have already done with the job.

    A supervisor repeats its command unchanged, and a program its calls. Two options must not be repeated after every crash: `takeover`, and
    `restore`, which discards what came after the checkpoint. Whether they were done is read from the records of earlier runs in storage.
    Every other option is safe to repeat: a start detects a savepoint that was restored, state that was dropped, a position that was set.
    """

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
