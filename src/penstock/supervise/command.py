"""The command that a supervisor repeats, and what a process has got done that a later one is not to do again. Driver.

The arguments of a program are repeated as they are: they are its own. That a job was taken over, or went back to an older checkpoint, is
told to the next attempt (`words.Done`), and `Job.run` does not do it again, wherever it was asked for. All else can be repeated: a start
that finds a savepoint adopted, state dropped or a position set does not do it again.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.ids import RunId
from penstock.ownership.claim import newest_run, read_run
from penstock.ownership.descent import read_descent
from penstock.storage import Storage
from penstock.supervise.words import Done

_NEWEST_RUNS = 20
"""So many have a record."""


def without(arguments: Sequence[str], flags: Collection[str], valued: Collection[str]) -> list[str]:
    """The arguments without these options, of which `valued` have a value; what follows `--` are none."""
    kept: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one == "--":
            return [*kept, one, *rest]
        name, equals, _ = one.partition("=")
        if name in valued:
            if not equals:
                next(rest, None)
        elif one not in flags:
            kept.append(one)
    return kept


@dataclass(frozen=True)
class Process:
    """A process of this machine."""

    pid: int
    began: str
    """See `process_start`: clocks may be set back, and pids come again."""


def done_by(storage: Storage, process: Process) -> Done:
    """What a process has got done, by what lies in storage: it may have died before it could say so.

    Its runs are looked for among the newest: another start may have come meanwhile.
    """
    newest = newest_run(storage)
    recent = range(newest, max(0, newest - _NEWEST_RUNS), -1)
    own = [RunId(run) for run in recent if _is_of(storage, RunId(run), process)]
    return Done(claimed=bool(own), restored=any(_has_restored(storage, run) for run in own))


def _is_of(storage: Storage, run: RunId, process: Process) -> bool:
    try:
        record = read_run(storage, run)
    except FileNotFoundError:
        return False
    found = Process(record.pid, record.process_started)
    return found == process and record.host == platform.node()


def _has_restored(storage: Storage, run: RunId) -> bool:
    try:
        read_descent(storage, run)
    except FileNotFoundError:
        return False
    return True
