"""After a change of parallelism: every new subtask makes the state it took over its own, before the first batch. Driver and executors.

So does it after a time to live was made longer or switched off: what has expired by then must not be seen again (`recovery/ttl_changes.py`).
And so does it where the job keeps state in another form, or by another backend: then all rows are read as they were written, and written
anew (`recovery/state_match.py` says how). All three may come together.

Files of several former subtasks may hold keys of others. Each subtask therefore merges what it was handed into files of its own keys, and
the run starts from those. What belongs to subtasks and not to keys is dealt out anew: for that each subtask looks at all former ones.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.checkpoint.completed import SubtaskReport, TimeReached
from penstock.ids import RunId
from penstock.recovery.ttl_changes import SwitchedOn
from penstock.state.backends import backend_named
from penstock.state.backends.base import (
    FormerUids,
    OnRescale,
    OpenState,
    StateBackend,
    StateLayout,
    Workplace,
)
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import LONG_AGO_US, StateTime
from penstock.state.local_files import begin_run
from penstock.state.rewriting import StateChange, upload_new, write_rows
from penstock.state.subtask_rows import RowsByTable, rows_of_subtask, take_over
from penstock.storage import Storage


class RestoredSubtask(msgspec.Struct, frozen=True):
    """The handle of a subtask that has its state; the files it names are in storage."""

    handle: StateHandle
    report: SubtaskReport


class RestoreTask(Protocol):
    """Makes state a subtask's own, before the first batch. Pickled into tasks."""

    @property
    def local_dir(self) -> Path:
        """Working files of the run on a machine."""
        ...

    def at(self, local_dir: Path) -> RestoreTask:
        """The same, where a machine has its files elsewhere."""
        ...

    def __call__(self, handle: StateHandle, attempt: int) -> RestoredSubtask:
        """Do it; `handle` is what the subtask has so far."""
        ...


@dataclass(frozen=True)
class StateMigration:
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
    changes: Mapping[str, StateChange] = field(default_factory=dict)
    """By operators whose state is written anew."""
    anew_on_us: SwitchedOn = field(default_factory=dict)
    """Since when the times to live of the job hold, for what is written anew."""

    def at(self, local_dir: Path) -> StateMigration:
        """See `RestoreTask.at`."""
        return replace(self, local_dir=local_dir)

    def __call__(self, handle: StateHandle, attempt: int) -> RestoredSubtask:
        """Keep what is the subtask's own, as files of its own; called again, with another attempt, when a task fails."""
        begin_run(self.local_dir, self.named)
        uid = handle.subtask.uid
        time = self._time(uid, self.switched_on_us)
        workplace = Workplace.of(self, handle.subtask, version=handle.version, attempt=attempt, time=time)
        change = self.changes.get(uid)
        taken = self._kept(workplace, handle) if change is None else self._anew(workplace, handle, change)
        taken = msgspec.structs.replace(taken, due=handle.due, over_us=handle.over_us)
        report = SubtaskReport(handle.subtask, host=socket.gethostname(), **asdict(workplace.origins))
        return RestoredSubtask(taken, report)

    def _time(self, uid: str, switched_on_us: SwitchedOn) -> StateTime:
        return StateTime(
            self.now_us,
            switched_on_us.get(uid, {}),
            self.reached.watermarks_us.get(uid, LONG_AGO_US),
            self.reached.clock_us or LONG_AGO_US,
        )

    def _kept(self, workplace: Workplace, handle: StateHandle) -> StateHandle:
        """State in the form that it has: merged, where it is not all the subtask's own."""
        uid = handle.subtask.uid
        layout, former = self.layouts[uid], self._former_rows(workplace)
        with closing(self.backend.open(workplace, layout, handle)) as state:
            if uid in self.purged:
                state.purge()
            if former:
                self._deal_out(state, layout, former, workplace)
            return upload_new(workplace, state.freeze(), handle)

    def _former_rows(self, workplace: Workplace) -> list[RowsByTable]:
        """What each former subtask had of its own, read as it would have read it."""
        uid = workplace.subtask.uid
        handles, found = self.former.get(uid, ()), []
        change = self.changes.get(uid)
        layout = self.layouts[uid] if change is None else change.stored
        for handle in handles:
            there = replace(workplace, subtask=handle.subtask, parallelism=len(handles))
            with closing(self._writer_of(handle).open(there, layout, handle)) as state:
                rows = rows_of_subtask(state, layout)
            found.append(rows if change is None else _in_form(rows, change))
        return found

    def _deal_out(
        self, state: OpenState, layout: StateLayout, former: Sequence[RowsByTable], workplace: Workplace
    ) -> None:
        take_over(state, layout, former, subtask=workplace.subtask.index, parallelism=workplace.parallelism)

    # ── in another form ────────────────────────────────────────────────────────────────────────

    def _anew(self, workplace: Workplace, handle: StateHandle, change: StateChange) -> StateHandle:
        """All rows, read as they were written and written as the job wants them. What has expired is not among them."""
        uid = handle.subtask.uid
        there = replace(workplace, stem=f"{workplace.stem}-former")
        place = replace(workplace, time=self._time(uid, self.anew_on_us))
        with closing(self._writer_of(handle).open(there, change.stored, handle)) as state:
            rows = self._rows(state, change, dealt_out=uid in self.former)
            written = write_rows(rows, change.wanted, self.backend, place)
        former = self._former_rows(there)
        if any(table.num_rows for tables in former for table in tables.values()):
            with closing(self.backend.open(place, change.wanted, written)) as state:
                self._deal_out(state, change.wanted, former, place)
                written = upload_new(place, state.freeze(), written)
        written = written or StateHandle(handle.subtask, self.backend.name, handle.version)
        return msgspec.structs.replace(written, generation=max(handle.generation, written.generation))

    def _rows(
        self, state: OpenState, change: StateChange, *, dealt_out: bool
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        for name, table in change.tables.items():
            if table.wanted.on_rescale is OnRescale.BY_KEY or not dealt_out:
                for batch in state.table(name).numbered():
                    yield name, table.applied(batch)

    def _writer_of(self, handle: StateHandle) -> StateBackend:
        """The backend that reads what was written."""
        return self.backend if handle.backend == self.backend.name else backend_named(handle.backend)


def _in_form(rows: RowsByTable, change: StateChange) -> RowsByTable:
    """Rows of a former subtask as the job wants them; a table that is new has none."""
    found: dict[str, pa.Table] = {}
    for table in change.wanted.of_subtasks:
        how = change.tables.get(table.name)
        batches = [] if how is None else [how.applied(batch) for batch in rows[table.name].to_batches()]
        found[table.name] = pa.Table.from_batches(batches, pa.schema([*table.identity, *table.value]))
    return found


RunRestoreTasks = Callable[[RestoreTask, Sequence[StateHandle]], Sequence[RestoredSubtask]]
"""Runs such work for every handle, in tasks beside each other, each of them again until it succeeds."""
