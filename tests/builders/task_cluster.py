"""All subtasks of one operator, run by the engine's own tasks over any backend: batches, a crash, another parallelism."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from builders.operator_cluster import MAX_PARALLELISM, sort_key
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config import OnBadRecord
from penstock.engine.acknowledgements import acknowledged
from penstock.engine.assignment import Answer, Assignment, RunPlace
from penstock.engine.subtask import Subtask
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.clock import OperatorClock
from penstock.operators.inputs import BROADCAST, WAKE
from penstock.operators.outputs import BAD, RESULTS, untagged
from penstock.operators.process.operator import OwnCode
from penstock.operators.process.task import ProcessSpec
from penstock.operators.states import state_layout
from penstock.operators.timers import takes_timers
from penstock.recovery.state_migration import StateMigration
from penstock.recovery.state_plan import redistribute
from penstock.snapshot.mailbox import Address
from penstock.snapshot.merger import Merge
from penstock.snapshot.messages import Message, UploadDone
from penstock.snapshot.uploader import Upload
from penstock.snapshot.uploader import perform as store
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout, Workplace
from penstock.state.handle import Due, StateHandle
from penstock.state.keys import SORT_KEY, key_groups, owners
from penstock.state.lifetimes import StateTime
from penstock.state.subtask_rows import RowsByTable, rows_of_subtask, subtask_sort_key
from penstock.storage import LocalStorage

UID = "op"
Row = Mapping[str, Any]


@dataclass
class AtOnce:
    """An `Executor` that makes state durable at once."""

    number: int
    answers: list[Answer] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        return SYSTEM_CLOCK

    def attempt(self) -> int:
        return self.number

    def partition(self) -> int:
        return 0

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)

    def upload(self, upload: Upload) -> None:
        assert isinstance(store(upload), UploadDone)

    def merge(self, merge: Merge) -> None:
        raise AssertionError("nobody orders merges")

    def tell(self, message: Message) -> None:
        """The exception itself reaches the test."""


class TaskCluster:
    """Rows with a key have it in the column `k`; rows without are given to a subtask by its number."""

    def __init__(
        self,
        root: Path,
        operator: OwnCode,
        *,
        rows: pa.Schema,
        output: pa.Schema,
        broadcast: pa.Schema | None = None,
        backend: str = "memory",
        on_bad_record: OnBadRecord = OnBadRecord.FAIL,
        parallelism: int = 1,
        has_event_time: bool = True,
        sides: tuple[str, ...] = (),
    ) -> None:
        self.parallelism = parallelism
        self.clock = OperatorClock()
        """Event time and the clock in the last batch."""
        self.letters: list[Row] = []
        """The dead letters of the last batch."""
        self.emitted: list[Row] = []
        """What went to side outputs in it."""
        self._has_event_time, self._sides = has_event_time, sides
        self.keys = ("k",) if "k" in rows.names else ()
        self._operator, self._rows, self._output, self._side = operator, rows, output, broadcast
        self._layout: StateLayout = state_layout(
            operator, pa.schema([rows.field(name) for name in self.keys])
        )
        self._storage, self._root = LocalStorage(root / "storage"), root
        self._backend = backend_named(backend)
        self._on_bad_record = on_bad_record
        self._attempts = count()
        self._run = 1
        self._batch = 0
        self.given = 0
        """How many rows and timers it had."""
        self.bad: dict[str, int] = {}
        """How many rows of the last batch were bad, by operator."""
        self.ran: frozenset[int] = frozenset()
        """The subtasks that had something to do in it."""
        self._handles: Mapping[SubtaskId, StateHandle] = {}
        self.checkpoint()

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def batch(
        self,
        rows: Sequence[Row] | Mapping[int, Sequence[Row]],
        told: Sequence[Row] = (),
        *,
        wake: bool = False,
        watermark_us: int | None = None,
        now_us: int | None = None,
    ) -> list[Row]:
        """Run one batch, each subtask after the other; returns the results. As the driver does, it wakes all when something is due."""
        self._batch += 1
        before = self.clock
        reached = before.watermark_us if watermark_us is None else watermark_us
        now = before.now_us if now_us is None else now_us
        self.clock = OperatorClock(before.watermark_us, reached, before.now_us, now)
        wake = wake or any(handle.due.is_reached(reached, now) for handle in self._handles.values())
        plan = replace(
            self._plan(), wake=frozenset({UID} if wake else ()), clocks={UID: self.clock}, now_us=now
        )
        answers: list[Answer] = []
        results: list[Row] = []
        self.letters, self.emitted = [], []
        for index, table in enumerate(self._tables(rows, told)):
            executor = AtOnce(next(self._attempts))
            spec = ProcessSpec(
                self._operator,
                self._layout.key,
                self._output,
                self._sides,
                broadcast_columns=None if self._side is None else tuple(self._side.names),
                has_event_time=self._has_event_time,
            )
            task = Subtask(UID, spec, plan, executor, self._on_bad_record)
            given = list(task((with_wake_row(table, index) if wake else table).to_batches()))
            assert table.num_rows or not given or takes_timers(self._operator)
            for batch in given:
                apart = untagged(batch, task.tags)
                results += [{**row, "by": index} for row in apart.pop(RESULTS).to_pylist()]
                self.letters += apart.pop(BAD).to_pylist() if BAD in apart else []
                self.emitted += [row for side in apart.values() for row in side.to_pylist()]
            answers += executor.answers
        done = acknowledged(plan, (UID,), answers)
        self._handles, self.bad = done.handles, {uid: bad.rows for uid, bad in done.bad_records.items()}
        self.given = sum(answer.bad.of for answer in answers)
        self.ran = frozenset(subtask.index for subtask in done.with_rows)
        return results

    def _tables(
        self, rows: Sequence[Row] | Mapping[int, Sequence[Row]], told: Sequence[Row]
    ) -> list[pa.Table]:
        if isinstance(rows, Mapping):
            return [self._table(rows.get(index, ()), None, told, index) for index in range(self.parallelism)]
        numbers = np.array([sort_key(row["k"] or "") for row in rows], dtype=np.int64)
        owner = owners(key_groups(numbers), self.parallelism)
        return [
            self._table(
                [row for row, mine in zip(rows, owner == index, strict=True) if mine],
                numbers[owner == index],
                told,
                index,
            )
            for index in range(self.parallelism)
        ]

    def _table(self, rows: Sequence[Row], numbers: Any, told: Sequence[Row], index: int) -> pa.Table:
        """As Spark hands it to a task: the rows of the broadcast side in any order, but numbered."""
        own = np.full(len(rows), subtask_sort_key(index)) if numbers is None else numbers
        table = pa.Table.from_pylist(list(rows), self._rows).append_column(
            SORT_KEY, pa.array(own, pa.int64())
        )
        if self._side is None:
            return table
        turned = list(enumerate(told))[::-1]
        side = pa.table(
            {
                SORT_KEY: pa.array([subtask_sort_key(index)] * len(told), pa.int64()),
                BROADCAST: pa.array([number for number, _ in turned], pa.int64()),
                **{
                    f"{BROADCAST}_{at}": pa.array([row[name.name] for _, row in turned], name.type)
                    for at, name in enumerate(self._side)
                },
            }
        )
        return pa.concat_tables([table, side], promote_options="default")

    def _plan(self) -> Assignment:
        none: frozenset[Any] = frozenset()
        return Assignment(
            self._place(),
            CheckpointId(self._batch),
            self._handles,
            none,
            none,
            {},
            none,
            none,
            False,
            none,
            False,
        )

    def _place(self) -> RunPlace:
        return RunPlace(
            "job",
            RunId(self._run),
            self.parallelism,
            MAX_PARALLELISM,
            self._storage,
            self._backend,
            self._local,
            False,
            cast("Address", None),
        )

    @property
    def _local(self) -> Path:
        return self._root / f"local-{self._run}"

    # ── what happens to it ─────────────────────────────────────────────────────────────────────

    def checkpoint(self) -> None:
        """This is where a crash leads back to."""
        self._completed = (self._batch, dict(self._handles), self.parallelism, self.clock)

    def restart(self, parallelism: int) -> None:
        """Go back to the checkpoint, with so many subtasks, on machines that have no files."""
        shutil.rmtree(self._local, ignore_errors=True)
        self._run += 1
        self._batch, handles, former, self.clock = self._completed
        self.parallelism = parallelism
        self._handles = handles
        if former != parallelism and handles:
            self._handles = self._taken_over(list(handles.values()))

    def _taken_over(self, former: list[StateHandle]) -> dict[SubtaskId, StateHandle]:
        place, version = self._place(), CheckpointId(self._batch)
        handles = redistribute(
            former, uid=UID, parallelism=self.parallelism, version=version, backend=self._backend.name
        )
        take_over = StateMigration(
            place.storage,
            place.backend,
            place.local_dir,
            place.run,
            place.parallelism,
            place.max_parallelism,
            {UID: self._layout},
            frozenset(),
            former={UID: sorted(former, key=lambda handle: handle.subtask)},
        )
        taken = [take_over(handle, next(self._attempts)) for handle in handles.values()]
        shutil.rmtree(self._local, ignore_errors=True)  # what it names is in storage
        return {one.handle.subtask: one.handle for one in taken}

    @property
    def due(self) -> Due:
        """The first moments for which any subtask waits."""
        return Due.first(handle.due for handle in self._handles.values())

    @property
    def files(self) -> list[int]:
        """How many refs the state of each subtask has."""
        return [len(handle.refs) for _, handle in sorted(self._handles.items())]

    def timers_stored(self) -> list[tuple[str, int]]:
        """The timers in event time that wait."""
        return sorted((row["k"], row["__at"]) for row in self._scanned("__timers"))

    def values_stored(self) -> list[Row]:
        """The rows of keys."""
        return self._scanned(None)

    def _scanned(self, table: str | None) -> list[Row]:
        found: list[Row] = []
        for index in range(self.parallelism):
            subtask = SubtaskId(UID, index)
            time = StateTime(self.clock.now_us, {}, self.clock.watermark_us, self.clock.now_us)
            place = Workplace.of(
                self._place(), subtask, version=self._batch + 1, attempt=next(self._attempts), time=time
            )
            with closing(self._backend.open(place, self._layout, self._handles.get(subtask))) as state:
                scan = state.scan() if table is None else state.table(table).scan()
                found += [row for batch in scan for row in batch.to_pylist()]
        return found

    def stored(self) -> list[RowsByTable]:
        """What every subtask has of its own."""
        found = []
        for index in range(self.parallelism):
            subtask = SubtaskId(UID, index)
            place = Workplace.of(
                self._place(), subtask, version=self._batch + 1, attempt=next(self._attempts)
            )
            with closing(self._backend.open(place, self._layout, self._handles.get(subtask))) as state:
                found.append(rows_of_subtask(state, self._layout))
        return found


def with_wake_row(table: pa.Table, subtask: int) -> pa.Table:
    """As Spark does it in a batch that wakes everyone."""
    wakes = pa.table({SORT_KEY: pa.array([subtask_sort_key(subtask)], pa.int64()), WAKE: [True]})
    return pa.concat_tables([table, wakes], promote_options="default")
