"""After a change of parallelism: every new subtask makes the state it took over its own, before the first batch. Driver and executors.

So does it after a time to live was made longer or switched off: what has expired by then must not be seen again (`recovery/lifetimes.py`).

Files of several former subtasks may hold keys of others. Each subtask therefore merges what it was handed into files of its own keys, and
the run starts from those. What belongs to subtasks and not to keys is dealt out anew: for that each subtask looks at all former ones.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.checkpoint.completed import SubtaskReport, TimeReached
from penstock.ids import RunId
from penstock.recovery.lifetimes import SwitchedOn
from penstock.state.backends.base import FormerUids, StateBackend, StateLayout, Workplace
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import LONG_AGO_US, StateTime
from penstock.state.local_files import begin_run
from penstock.state.subtask_rows import RowsByTable, rows_of_subtask, take_over
from penstock.storage import Storage


class Taken(msgspec.Struct, frozen=True):
    """The handle of a subtask that has its state; the files it names are in storage."""

    handle: StateHandle
    report: SubtaskReport


class SubtaskWork(Protocol):
    """Makes state a subtask's own, before the first batch. Pickled into tasks."""

    @property
    def local_dir(self) -> Path:
        """Working files of the run on a machine."""
        ...

    def at(self, local_dir: Path) -> SubtaskWork:
        """The same, where a machine has its files elsewhere."""
        ...

    def __call__(self, handle: StateHandle, attempt: int) -> Taken:
        """Do it; `handle` is what the subtask has so far."""
        ...


@dataclass(frozen=True)
class TakeOver:
    """What a task needs to know to take over the state of a subtask. It is called in tasks, on any machine."""

    storage: Storage
    backend: StateBackend
    local_dir: Path
    run: RunId
    parallelism: int
    max_parallelism: int
    layouts: Mapping[str, StateLayout]
    named: frozenset[str]
    """The files of all handles; of what earlier runs left on a machine only these are of use."""
    now_us: int = 0
    switched_on_us: SwitchedOn = field(default_factory=dict)
    purged: frozenset[str] = frozenset()
    """Operators of whose state all that has expired must go."""
    former: Mapping[str, Sequence[StateHandle]] = field(default_factory=dict)
    """By operators that have state of subtasks: what all former ones had, the first of them first."""
    reached: TimeReached = field(default_factory=TimeReached)
    """How far time had come at the checkpoint."""
    former_uids: FormerUids = field(default_factory=dict)

    def at(self, local_dir: Path) -> TakeOver:
        """See `SubtaskWork.at`."""
        return replace(self, local_dir=local_dir)

    def __call__(self, handle: StateHandle, attempt: int) -> Taken:
        """Keep what is the subtask's own, as files of its own; called again, with another attempt, when a task fails."""
        begin_run(self.local_dir, self.named)
        uid, index = handle.subtask.uid, handle.subtask.index
        time = StateTime(
            self.now_us,
            self.switched_on_us.get(uid, {}),
            self.reached.watermarks_us.get(uid, LONG_AGO_US),
            self.reached.clock_us or LONG_AGO_US,
        )
        workplace = Workplace.of(self, handle.subtask, version=handle.version, attempt=attempt, time=time)
        layout, former = self.layouts[uid], self._former_rows(workplace)
        with closing(self.backend.open(workplace, layout, handle)) as state:
            if uid in self.purged:
                state.purge()
            if former:
                take_over(state, layout, former, subtask=index, parallelism=self.parallelism)
            taken = msgspec.structs.replace(state.freeze(), due=handle.due)
        for name in sorted(taken.files - handle.files):
            self.storage.upload(workplace.local_path(name), name)
        report = SubtaskReport(handle.subtask, host=socket.gethostname(), **asdict(workplace.origins))
        return Taken(taken, report)

    def _former_rows(self, workplace: Workplace) -> list[RowsByTable]:
        """What each former subtask had of its own, read as it would have read it."""
        uid = workplace.subtask.uid
        handles, found = self.former.get(uid, ()), []
        for handle in handles:
            there = replace(workplace, subtask=handle.subtask, parallelism=len(handles))
            with closing(self.backend.open(there, self.layouts[uid], handle)) as state:
                found.append(rows_of_subtask(state, self.layouts[uid]))
        return found


PerformAll = Callable[[SubtaskWork, Sequence[StateHandle]], Sequence[Taken]]
"""Runs such work for every handle, in tasks beside each other, each of them again until it succeeds."""
