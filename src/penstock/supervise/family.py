"""The processes that a program leaves behind: Spark's JVM, Python workers, whatever it has started. Driver; Linux.

A supervisor makes itself the one to whom orphans below it come (`PR_SET_CHILD_SUBREAPER`; process 1 of a container is that by nature). When
the program is gone, its whole family hangs on the supervisor, in whichever group or session. They get a moment to end by themselves, as
Spark's JVM does when its driver is gone, and are killed then. The next program need not wait for that: what lies in storage is safe from
what a dead one left. On other systems than Linux they must end by themselves.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.ownership.claim import process_start

GRACE_S = 5.0
"""So long has what is left to end by itself. It removes its temporary files then."""
POLL_S = 0.02
LOOK_S = 1.0
_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def adopt_orphans() -> bool:
    """From now on orphans below this process become its children; whether the system can do that."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def children() -> frozenset[int]:
    """The children of this process, those that wait to be reaped included."""
    own = os.getpid()
    return frozenset(pid for pid, parent in _parents().items() if parent == own)


def descendants(spared: frozenset[int]) -> frozenset[int]:
    """All processes below this one, but for the spared children and what is below them."""
    parents, own = _parents(), os.getpid()
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    found, ahead = set[int](), [pid for pid in below.get(own, ()) if pid not in spared]
    while ahead:
        pid = ahead.pop()
        found.add(pid)
        ahead += below.get(pid, ())
    return frozenset(found)


def _parents() -> dict[int, int]:
    found = (int(path.name) for path in _PROC.iterdir() if path.name.isdecimal()) if _PROC.is_dir() else ()
    return {pid: _parent(pid) for pid in found}


def _parent(pid: int) -> int:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[1])


@dataclass
class Remains:
    """What programs that have ended left behind: it ends beside their successors' starts, and is killed when that takes too long."""

    processes: dict[tuple[int, str], float] = field(default_factory=dict)
    """Until when each has time, by its pid and when it was started: a pid may be another's later."""

    def left_by_the_dead(self, spared: frozenset[int], now: float) -> None:
        """To be asked when a program has ended, and before the next is started. What one before it left gets no more time by that."""
        found = ((pid, process_start(pid)) for pid in descendants(spared))
        self.processes = {one: self.processes.get(one, now + GRACE_S) for one in found if one[1]}

    def tend(self, now: float) -> float | None:
        """Kill what had time enough; in how many seconds one should look again, None: all are gone."""
        self.processes = {
            one: until for one, until in self.processes.items() if process_start(one[0]) == one[1]
        }
        for (pid, _), until in self.processes.items():
            if now >= until:
                _kill(pid)
        waits_s = (until - now if until > now else LOOK_S for until in self.processes.values())
        return min((*waits_s, LOOK_S)) if self.processes else None


def _kill(pid: int) -> bool:
    """Whether it can be done: a process that has become another user's is not ours to end."""
    with suppress(ProcessLookupError):
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError:
            return False
    return True


def reap() -> dict[int, int]:
    """The children that have ended, each with its status as `subprocess` gives it."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def end_orphans(
    spared: frozenset[int],
    *,
    hurry: Callable[[], bool] = lambda: False,
    grace_s: float | None = None,
    clock: Clock = SYSTEM_CLOCK,
    leaves_sessions: bool = False,
) -> frozenset[int]:
    """Wait until every child but the spared ones is gone, and kill what is not after a moment; returns what was left alone.

    `hurry`: asked again and again whether there is no time for that moment. What cannot be killed is not waited for.
    `leaves_sessions`: what has a session of its own is left alone, with what is below it: it has put itself into the background.
    """
    until, alone = clock.monotonic() + (GRACE_S if grace_s is None else grace_s), frozenset[int]()
    while True:
        reap()
        left = children() - spared - alone
        if not left:
            return alone
        if clock.monotonic() >= until or hurry():
            alone |= frozenset(pid for pid in left if leaves_sessions and _has_left_the_session(pid))
            ours = {pid for pid in left - alone if _kill(pid)}
            spared |= left - alone - ours
        clock.sleep(POLL_S)


def _has_left_the_session(pid: int) -> bool:
    try:
        return os.getsid(pid) != os.getsid(0)
    except ProcessLookupError:
        return False
