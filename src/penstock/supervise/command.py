"""The command that a supervisor repeats, and the options that it does not repeat once they have done their work. Driver.

    --takeover    takes the job from another run. Once this program has had the job, whoever has it then is not to be disturbed.
    --restore N   goes back to an older checkpoint. Once a run has recorded that it did, a second time would throw away what came after.

All other options can be repeated: a start that finds `--savepoint`, `--claim`, `--drop-state` or `--position` done does not do it again.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.ids import RunId
from penstock.ownership.claim import newest_run, read_run
from penstock.ownership.descent import read_descent
from penstock.storage import Storage

_NEWEST_RUNS = 20
"""So many have a record."""


@dataclass(frozen=True)
class Done:
    """What an attempt has got done."""

    claimed: bool = False
    restored: bool = False

    def __or__(self, other: Done) -> Done:
        return Done(self.claimed or other.claimed, self.restored or other.restored)


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


def next_command(command: Sequence[str], done: Done) -> list[str]:
    """What the next attempt is started with."""
    flags = ("--takeover",) if done.claimed else ()
    valued = ("--restore",) if done.restored else ()
    return without(command, flags, valued)


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
