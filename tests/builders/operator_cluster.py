"""All subtasks of one operator over any backend, with storage: batches, lost files, another parallelism."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from msgspec.structs import replace

from penstock.checkpoint.model import StoredLifetime, TimeReached
from penstock.checkpoint.state_columns import columns_of
from penstock.config import OnBadRecord
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.bad_records import BadRows
from penstock.operators.base import TaskContext
from penstock.operators.event_time import LateRows, OperatorClock
from penstock.operators.process.columns import BatchProcess, run_batch_process
from penstock.operators.process.keyed import KeyedCode
from penstock.operators.process.run_keyed import run_process
from penstock.operators.process.run_tolerant import run_process_tolerantly
from penstock.operators.process.user_code import Context
from penstock.operators.state.declarations import state_layout
from penstock.operators.state.task_time import TaskTime, Timers
from penstock.operators.state.timers import takes_timers
from penstock.recovery.state_migration import StateMigration
from penstock.recovery.state_plan import TtlChanges, redistribute
from penstock.run.task_failures import tolerates
from penstock.state.backends import backend_named
from penstock.state.backends.base import OpenState, StateLayout, Workplace
from penstock.state.handle import Due, FileRef, StateHandle
from penstock.state.keys import GROUP_SHIFT, SORT_KEY, key_groups, owners
from penstock.state.lifetimes import LONG_AGO_US, TIMELESS, Moment, StateTime
from penstock.state.merge_orders import Merged, replaced
from penstock.storage import LocalStorage

UID = "op"
MAX_PARALLELISM = 8
SORT_KEYS_A_GROUP = 2  # so few that keys collide all the time


class BuiltIn(ABC):
    """An operator of Penstock's own, as a cluster runs it."""

    @abstractmethod
    def layout(self, key: pa.Schema) -> StateLayout:
        """What it keeps."""

    uses_time = False
    """Whether it runs also in a subtask without rows."""

    @abstractmethod
    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        """One subtask in one batch."""

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        """The same for one that has to know how far time has come."""
        del clock
        return self.run(rows, state, context)

    def due(self, state: OpenState, clock: OperatorClock) -> Due:
        """What its state waits for, after the batch; called right before the state is frozen."""
        del state, clock
        return Due()


def task_context(clock: OperatorClock, keys: tuple[str, ...] = ("k",)) -> TaskContext:
    """What the task of the only subtask is told in the first batch."""
    return TaskContext(
        uid=UID,
        keys=keys,
        subtask=0,
        parallelism=1,
        batch=1,
        clock=clock,
        over_us=None,
        on_bad_record=OnBadRecord.FAIL,
        bad=BadRows(UID, CheckpointId(1), kept=False),
        late=LateRows(None),
        late_right=LateRows(None),
        tolerates=tolerates,
    )


Operator = KeyedCode | BatchProcess | BuiltIn


class OperatorCluster:
    """Rows are keyed by the text in their column `k`. The state goes on from batch to batch, whichever operator is run."""

    def __init__(
        self, root: Path, output: pa.Schema, backend: str = "memory", *, tolerant: bool = False
    ) -> None:
        self.output = output
        self.bad = BadRows(UID, 0, kept=True)
        self.parallelism = 1
        self._backend = backend_named(backend)
        self._tolerant = tolerant
        self._storage = LocalStorage(root / "storage")
        self._local = root / "local"
        self._version = 0
        self._run_number = 1
        self._handles: list[StateHandle | None] = [None]
        self._layout: StateLayout | None = None
        self.now_us = 0
        """What the next batch takes for the time of the clock."""
        self.clock = OperatorClock()
        """Event time and the clock in the last batch. It is part of the checkpoint."""
        self.over_us = LONG_AGO_US
        """Windows up to it are over, also if the lateness is longer now."""
        self.event_time: str | None = None
        """The column of the rows with their event time."""
        self.skips_idle = False
        """Whether subtasks without rows are run only when something is due in them, as the driver does it."""
        self._lifetimes: dict[str, StoredLifetime] = {}

    def batch(
        self, operator: Operator, rows: pa.Table, watermark_us: int | None = None
    ) -> list[dict[str, Any]]:
        """Run one batch, at whose end event time has come to `watermark_us` (None: no further); returns the results."""
        self._version += 1
        self.clock = self._next_clock(watermark_us)
        self.declare(operator)
        texts = rows.column("k").cast(pa.binary()).to_pylist()  # also of one that Python cannot read
        sort_keys = np.array([sort_key(key) for key in texts], dtype=np.int64)
        rows = rows.append_column(SORT_KEY, pa.array(sort_keys))
        owner = owners(key_groups(sort_keys), self.parallelism)
        results: list[dict[str, Any]] = []
        for index in range(self.parallelism):
            mine = rows.filter(pa.array(owner == index))
            with closing(self._open(index)) as state:
                due = None if (before := self._handles[index]) is None else before.due
                if mine.num_rows or self._runs_without_rows(operator, before):
                    given, due = self._run(operator, mine, state, index)
                    results += pa.Table.from_batches(given, self.output).to_pylist()
                self._handles[index] = handle = replace(state.freeze(), due=due or Due())
            for name in handle.files - set(self._storage.names()):
                self._storage.put(name, (self._local / name).read_bytes())
        return results

    def _next_clock(self, watermark_us: int | None) -> OperatorClock:
        before = self.clock
        reached = before.watermark_us if watermark_us is None else max(watermark_us, before.watermark_us)
        now_us = max(self.now_us, before.now_us)
        return OperatorClock(before.watermark_us, reached, before.now_us, now_us, over_us=self.over_us)

    def _runs_without_rows(self, operator: Operator, before: StateHandle | None) -> bool:
        uses_time = operator.uses_time if isinstance(operator, BuiltIn) else takes_timers(operator)
        if not uses_time:
            return False
        clock = self.clock
        is_due = before is not None and before.due.is_reached(clock.watermark_us, clock.now_us)
        return is_due or not self.skips_idle

    def declare(self, operator: Operator) -> None:
        """Go on with the states of this operator. Another time to live is dealt with as at the start of a run."""
        key = pa.schema([("k", pa.string())])
        self._layout = operator.layout(key) if isinstance(operator, BuiltIn) else state_layout(operator, key)
        lifetimes = TtlChanges({UID: self._layout}, {UID: self._lifetimes}, self.now_us)
        now = columns_of(self._layout, lifetimes.switched_on[UID]).lifetimes
        if now == self._lifetimes:
            return
        if lifetimes.brings_back:
            self._take_over(lifetimes)
        self._handles = [
            handle and lifetimes.fading({handle.subtask: handle})[handle.subtask] for handle in self._handles
        ]
        self._lifetimes = now

    def _take_over(self, lifetimes: TtlChanges) -> None:
        layouts, since = lifetimes.former
        take_over = StateMigration(
            self._storage,
            self._backend,
            self._local,
            RunId(2),
            self.parallelism,
            MAX_PARALLELISM,
            layouts,
            frozenset(),
            self.now_us,
            since,
            lifetimes.brings_back,
            reached=TimeReached(watermarks_us={UID: self.clock.watermark_us}, clock_us=self.clock.now_us),
        )
        self._version += 1
        for index, handle in enumerate(self._handles):
            if handle is not None:
                self._handles[index] = take_over(replace(handle, version=self._version), 0).handle

    def merge(self, choose: Callable[[Sequence[FileRef], Moment], range | None] | None = None) -> int:
        """Merge in the background what the backend chooses, or somebody else; returns how many merges there were."""
        merges = 0
        for index, handle in enumerate(self._handles):
            window = (
                (choose or self._backend.choose_merge)(handle.refs, Moment(self.now_us)) if handle else None
            )
            if handle is None or window is None or self._backend.name != "filesystem":
                continue
            assert self._layout is not None
            refs, oldest = handle.refs[window.start : window.stop], window.stop == len(handle.refs)
            self._version += 1
            place = self._place(index)
            result = self._backend.merge(place, self._layout, refs, oldest=oldest)
            if result is not None:
                self._storage.put(result.name, place.merged_path(result.name).read_bytes())
            names = tuple(ref.name for ref in refs)
            self._handles[index] = replaced(handle, Merged(handle.subtask, names, result))
            merges += 1
        return merges

    def checkpoint(self) -> tuple[Any, ...]:
        """What `go_back` takes."""
        return list(self._handles), self.parallelism, self._lifetimes, self._layout, self.clock

    def go_back(self, checkpoint: tuple[Any, ...]) -> None:
        """All machines die, and their files with them; the job goes on from the checkpoint."""
        handles, self.parallelism, self._lifetimes, self._layout, self.clock = checkpoint
        self._handles = list(handles)
        shutil.rmtree(self._local, ignore_errors=True)

    def stored_rows(self) -> list[dict[str, Any]]:
        """Every row of every table that is in the files, seen or not, tombstones left out."""
        rows: list[dict[str, Any]] = []
        for index in range(self.parallelism):
            handle = self._handles[index]
            if self._backend.name == "rocksdb":
                rows += self._database_rows(index)
                continue
            for ref in handle.refs if handle else ():
                data = ref.inline or self._storage.get(ref.name)
                table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
                lists = [one for column in table.columns for one in column.to_pylist()]
                rows += [row for one in lists for row in one if not row.get("__deleted")]
        return rows

    def _database_rows(self, index: int) -> list[dict[str, Any]]:
        """At a time when nothing has expired, so that all is seen that is there."""
        assert self._layout is not None
        self._version += 1
        place = replace_field(self._place(index), time=TIMELESS)
        with closing(self._backend.open(place, self._layout, self._handles[index])) as state:
            tables: list[Any] = [state, *(state.table(table.name) for table in self._layout.tables)]
            return [row for table in tables for batch in table.scan() for row in batch.to_pylist()]

    def _run(
        self, operator: Operator, rows: pa.Table, state: OpenState, index: int
    ) -> tuple[list[pa.RecordBatch], Due]:
        clock = self.clock
        context = Context(
            UID, self._version, index, self.parallelism, _watermark_us=clock.before_us, _now_us=clock.now_us
        )
        if isinstance(operator, BuiltIn):
            results = operator.run_in_time(rows, state, context, clock)
            return results, operator.due(state, clock)
        assert self._layout is not None
        timers = (
            Timers(state, clock, self._layout.key, has_event_time=True) if takes_timers(operator) else None
        )
        time = TaskTime(clock, self.event_time, timers)
        common: dict[str, Any] = {"key_names": ["k"], "output": self.output, "context": context, "time": time}
        if isinstance(operator, BatchProcess):
            given = run_batch_process(operator, rows, state, **common)
        elif not self._tolerant:
            given = run_process(operator, rows, state, **common)
        else:
            given = run_process_tolerantly(operator, rows, state, **common, bad=self.bad, tolerates=tolerates)
        return given, Due() if timers is None else timers.due()

    def number_back(self, batches: int) -> None:
        """Go on with the state as it is, in batches that begin so many earlier: at least once, after a failure."""
        self._version -= batches
        self._run_number += 1

    def rescale(self, parallelism: int) -> None:
        """Go on with so many subtasks, on machines that have no files. What one of them waited for, all look for."""
        due = self.due
        taken = redistribute(
            [handle for handle in self._handles if handle],
            uid=UID,
            parallelism=parallelism,
            version=CheckpointId(self._version),
            backend=self._backend.name,
        )
        self.parallelism = parallelism
        self._handles = [replace(taken[SubtaskId(UID, index)], due=due) for index in range(parallelism)]
        shutil.rmtree(self._local, ignore_errors=True)

    def stored(self) -> dict[str, dict[str, Any]]:
        """Everything that is stored, by key; a map is a list of pairs."""
        found: dict[str, dict[str, Any]] = {}
        for row in self._scan():
            del row[SORT_KEY]
            key = row.pop("k")
            assert key not in found
            found[key] = row
        return found

    def rows_in(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table."""
        self._version += 1
        found: list[dict[str, Any]] = []
        for index in range(self.parallelism):
            with closing(self._look_into(index)) as state:
                found += [row for batch in state.table(table).scan() for row in batch.to_pylist()]
        return found

    def _scan(self) -> Iterator[dict[str, Any]]:
        self._version += 1
        for index in range(self.parallelism):
            with closing(self._look_into(index)) as state:
                for batch in state.scan():
                    yield from batch.to_pylist()

    def _place(self, index: int) -> Workplace:
        since = {stamp: one.switched_on_us for stamp, one in self._lifetimes.items()}
        return Workplace(
            storage=self._storage,
            local_dir=self._local,
            subtask=SubtaskId(UID, index),
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=self._version,
            stem=f"{self._run_number}-{self._version}-{index}-{self.parallelism}",
            time=StateTime(self.now_us, since, self.clock.before_us, self.clock.fired_us),
        )

    def _open(self, index: int) -> OpenState:
        assert self._layout is not None
        return self._backend.open(self._place(index), self._layout, self._handles[index])

    def _look_into(self, index: int) -> OpenState:
        """The state behind the last batch: what was due in it is gone."""
        assert self._layout is not None
        place = self._place(index)
        time = replace_field(place.time, watermark_us=self.clock.watermark_us, fired_us=self.clock.now_us)
        return self._backend.open(replace_field(place, time=time), self._layout, self._handles[index])

    @property
    def due(self) -> Due:
        """The first moments for which any subtask waits."""
        waiting = [handle.due for handle in self._handles if handle]
        event_us = [due.event_us for due in waiting if due.event_us is not None]
        clock_us = [due.clock_us for due in waiting if due.clock_us is not None]
        return Due(min(event_us, default=None), min(clock_us, default=None))

    @property
    def files(self) -> list[int]:
        """How many refs the state of each subtask has: a batch that writes nothing adds none."""
        return [len(handle.refs) if handle else 0 for handle in self._handles]


def sort_key(key: str | bytes) -> int:
    """As Spark's, a pure function of the key."""
    digest = xxhash.xxh3_64_intdigest(key.encode() if isinstance(key, str) else key)
    return (digest % MAX_PARALLELISM) << GROUP_SHIFT | (digest >> 32) % SORT_KEYS_A_GROUP
