"""Rewriting state before the first batch: every subtask makes the state that it was assigned its own. Driver and executors.

There are three reasons, which may come together:
1. The parallelism changed. Files of former subtasks may hold keys of several new ones, so each subtask merges what it was assigned into
   files of its own keys. Tables that belong to subtasks and not to keys are redistributed; for that each subtask reads all former ones.
2. A time to live became longer or was removed: expired values must not become visible again (`state_plan.TtlChanges`).
3. The layout or the backend changed: all rows are read as they were written and written again (`recovery.state_match` says how).
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

from penstock.checkpoint.model import SubtaskReport, TimeReached
from penstock.ids import RunId
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
from penstock.state.lifetimes import LONG_AGO_US, StateTime, SwitchedOn
from penstock.state.local_files import begin_run
from penstock.state.rewriting import StateChange, upload_new, write_rows
from penstock.state.subtask_rows import RowsByTable, rows_of_subtask, take_over
from penstock.storage import Storage


class RestoredSubtask(msgspec.Struct, frozen=True):
    """A subtask whose state is ready; the files that its handle names are in storage."""

    handle: StateHandle
    report: SubtaskReport


class RestoreTask(Protocol):
    """Prepares the state of one subtask before the first batch. Pickled into tasks."""

    @property
    def local_dir(self) -> Path:
        """Working files of the run on this machine."""
        ...

    def at(self, local_dir: Path) -> RestoreTask:
        """The same task with its working files in another folder."""
        ...

    def __call__(self, handle: StateHandle, attempt: int) -> RestoredSubtask:
        """Prepare the state of the subtask of `handle`, which names what it has so far."""
        ...


@dataclass(frozen=True)
class StateMigration:
    """What a task needs to rewrite the state of a subtask. Called in tasks, on any machine."""

    storage: Storage
    backend: StateBackend
    local_dir: Path
    run: RunId
    parallelism: int
    max_parallelism: int
    layouts: Mapping[str, StateLayout]
    named: frozenset[str]
    """The files of all handles. Of the files that earlier runs left on a machine only these are useful."""
    now_us: int = 0
    switched_on_us: SwitchedOn = field(default_factory=dict)
    purged: frozenset[str] = frozenset()
    """Operators whose expired values must be removed."""
    former: Mapping[str, Sequence[StateHandle]] = field(default_factory=dict)
    """By operator with tables of subtasks: the handles of its former subtasks, in order."""
    reached: TimeReached = field(default_factory=TimeReached)
    """The watermarks and clock of the checkpoint."""
    former_uids: FormerUids = field(default_factory=dict)
    changes: Mapping[str, StateChange] = field(default_factory=dict)
    """By operator whose layout or backend changed."""
    anew_on_us: SwitchedOn = field(default_factory=dict)
    """Since when the current times to live count, for rows that are written again."""

    def at(self, local_dir: Path) -> StateMigration:
        """The same task with its working files in another folder."""
        return replace(self, local_dir=local_dir)

    def __call__(self, handle: StateHandle, attempt: int) -> RestoredSubtask:
        """Rewrite the state of one subtask; called again, with another attempt, if a task fails."""
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
        """State whose layout did not change: merged, if some of it belongs to other subtasks."""
        uid = handle.subtask.uid
        layout, former = self.layouts[uid], self._former_rows(workplace)
        with closing(self.backend.open(workplace, layout, handle)) as state:
            if uid in self.purged:
                state.purge()
            if former:
                self._deal_out(state, layout, former, workplace)
            return upload_new(workplace, state.freeze(), handle)

    def _former_rows(self, workplace: Workplace) -> list[RowsByTable]:
        """The rows of each former subtask, read with the layout it had."""
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
        """All rows that have not expired, read with the stored layout and written with the current one."""
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
        """The backend that wrote the handle."""
        return self.backend if handle.backend == self.backend.name else backend_named(handle.backend)


def _in_form(rows: RowsByTable, change: StateChange) -> RowsByTable:
    """Rows of a former subtask in the current layout; a new table has none."""
    found: dict[str, pa.Table] = {}
    for table in change.wanted.of_subtasks:
        how = change.tables.get(table.name)
        batches = [] if how is None else [how.applied(batch) for batch in rows[table.name].to_batches()]
        found[table.name] = pa.Table.from_batches(batches, pa.schema([*table.identity, *table.value]))
    return found


RunRestoreTasks = Callable[[RestoreTask, Sequence[StateHandle]], Sequence[RestoredSubtask]]
"""Runs the task for every handle, in parallel, and repeats each one until it succeeds."""
