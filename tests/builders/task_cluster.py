"""All subtasks of own code, run by the engine's own tasks over any backend: batches, a crash, another parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.operator_cluster import MAX_PARALLELISM, sort_key
from penstock.config import OnBadRecord
from penstock.operators.event_time import OperatorClock
from penstock.operators.inputs import BROADCAST
from penstock.operators.outputs import BAD, RESULTS
from penstock.operators.process.operator import OwnCode
from penstock.operators.process.task import ProcessSpec
from penstock.operators.state.timers import takes_timers
from penstock.run.assignment import Assignment, Executor
from penstock.run.subtask import Subtask
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY, key_groups, owners
from penstock.state.subtask_rows import RowsByTable, rows_of_subtask, subtask_sort_key
from penstock.testing.subtasks import Subtasks

UID = "op"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class _SameObject:
    """Tasks with the test's own object: it may look at what was done with it."""

    spec: ProcessSpec
    on_bad_record: OnBadRecord
    uid: str = UID

    def layout(self) -> StateLayout:
        return self.spec.layout()

    def task(self, plan: Assignment, executor: Executor) -> Subtask:
        return Subtask(self.uid, self.spec, plan, executor, self.on_bad_record)


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
        self.letters: list[Row] = []
        """The dead letters of the last batch."""
        self.emitted: list[Row] = []
        """What went to side outputs in it."""
        self.keys = ("k",) if "k" in rows.names else ()
        self._operator, self._rows, self._side = operator, rows, broadcast
        spec = ProcessSpec(
            operator,
            pa.schema([rows.field(name) for name in self.keys]),
            output,
            sides,
            broadcast_columns=None if broadcast is None else tuple(broadcast.names),
            has_event_time=has_event_time,
        )
        self._subtasks = Subtasks(
            root,
            _SameObject(spec, on_bad_record),
            backend=backend_named(backend),
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
        )
        self.given = 0
        """How many rows and timers it had."""
        self.bad: dict[str, int] = {}
        """How many rows of the last batch were bad, by operator."""
        self.ran: frozenset[int] = frozenset()
        """The subtasks that had something to do in it."""
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
        before = self.clock
        reached = before.watermark_us if watermark_us is None else watermark_us
        now = before.now_us if now_us is None else now_us
        clock = OperatorClock(before.watermark_us, reached, before.now_us, now)
        wake = wake or self.due.is_reached(reached, now)
        tables = self._tables(rows, told)
        outputs, done = self._subtasks.run(tables, clock, wake=wake)
        results: list[Row] = []
        self.letters, self.emitted = [], []
        for index, (table, given) in enumerate(zip(tables, outputs, strict=True)):
            assert table.num_rows or not any(given.values()) or takes_timers(self._operator)
            for tag, batches in given.items():
                apart = [row for batch in batches for row in batch.to_pylist()]
                if tag == RESULTS:
                    results += [{**row, "by": index} for row in apart]
                else:
                    kept = self.letters if tag == BAD else self.emitted
                    kept += apart
        self.bad = {uid: bad.rows for uid, bad in done.bad_records.items()}
        self.given = self._subtasks.rows_given
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

    # ── what happens to it ─────────────────────────────────────────────────────────────────────

    def checkpoint(self) -> None:
        """This is where a crash leads back to."""
        self._completed = self._subtasks.checkpoint(), self.clock

    def restart(self, parallelism: int) -> None:
        """Go back to the checkpoint, with so many subtasks, on machines that have no files."""
        saved, self._subtasks.clock = self._completed
        self._subtasks.restore(saved, parallelism)

    # ── what it has come to ────────────────────────────────────────────────────────────────────

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        return self._subtasks.parallelism

    @property
    def clock(self) -> OperatorClock:
        """Event time and the clock in the last batch."""
        return self._subtasks.clock

    @property
    def due(self) -> Due:
        """The first moments for which any subtask waits."""
        return self._subtasks.due

    @property
    def files(self) -> list[int]:
        """How many refs the state of each subtask has."""
        return [len(handle.refs) for _, handle in sorted(self._subtasks.handles.items())]

    def timers_stored(self) -> list[tuple[str, int]]:
        """The timers in event time that wait."""
        return sorted((row["k"], row["__at"]) for row in self._scanned("__timers"))

    def values_stored(self) -> list[Row]:
        """The rows of keys."""
        return self._scanned(None)

    def _scanned(self, table: str | None) -> list[Row]:
        found: list[Row] = []
        for index in range(self.parallelism):
            with self._subtasks.opened(index) as state:
                scan = state.scan() if table is None else state.table(table).scan()
                found += [row for batch in scan for row in batch.to_pylist()]
        return found

    def stored(self) -> list[RowsByTable]:
        """What every subtask has of its own."""
        found = []
        for index in range(self.parallelism):
            with self._subtasks.opened(index) as state:
                found.append(rows_of_subtask(state, self._subtasks.layout))
        return found
