"""Own code step by step, without Spark: rows in, results out, with a clock, a watermark, failures and restores that the test decides."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.checkpoint.model import TimeReached
from penstock.config import Duration, seconds, whole_number
from penstock.errors import ConfigError
from penstock.ids import CheckpointId
from penstock.operators.event_time import OperatorClock
from penstock.operators.outputs import BAD, LATE, RESULTS, checked_side, side_tags
from penstock.operators.state.timers import Timer, microseconds, moment, watermark
from penstock.run.reading import ALL_ROWS
from penstock.run.watermarks import (
    Watermarks,
    due_operators,
    expiring_by_event_time,
    refuse_pending_timers,
    waiting_in_event_time,
)
from penstock.state.backends.base import StateBackend
from penstock.state.lifetimes import in_microseconds
from penstock.testing.declared import (
    DeclaredOperator,
    Input,
    Row,
    RowsGiven,
    as_dicts,
    as_table,
    newest_us,
    parsed_moment,
)
from penstock.testing.subtasks import StoredState, Subtasks, SubtasksCheckpoint


@dataclass(frozen=True)
class _Step:
    """The steps since the last checkpoint, for a replay."""

    tables: tuple[pa.Table | None, ...] = ()
    """The rows of a batch, by input."""
    watermark_us: int | None = None
    now_us: int | None = None
    drains: bool = False


@dataclass(frozen=True)
class _Checkpoint:
    state: SubtasksCheckpoint
    time: TimeReached
    output_lengths: Mapping[str, int]


class Harness:
    """An operator under test: made by `penstock.testing.kit`.

    The virtual clock and the watermark move only when the test moves them, or when rows with newer event times come. After every step all
    timers fire and all windows close that are due. A checkpoint is taken only by `checkpoint()`; the first is the empty state.
    """

    def __init__(
        self, operator: DeclaredOperator, *, backend: StateBackend, parallelism: int, now: datetime
    ) -> None:
        whole_number("parallelism", parallelism, minimum=1, maximum=operator.max_parallelism)
        folder = Path(tempfile.mkdtemp(prefix="penstock-testing-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._operator = operator
        self._subtasks = Subtasks(
            folder,
            operator,
            backend=backend,
            parallelism=parallelism,
            max_parallelism=operator.max_parallelism,
        )
        self._stored = StoredState(self._subtasks)
        self._now_us = microseconds(now, "now=")
        self._times = {
            one.uid: one.time for one in self._every_input if one is not None and one.time is not None
        }
        self._watermarks = self._at(TimeReached())
        self._outputs: dict[str, list[pa.RecordBatch]] = {}
        self._steps: list[_Step] = []
        self._checkpoint = _Checkpoint(self._subtasks.checkpoint(), TimeReached(), {})

    # ── steps ──────────────────────────────────────────────────────────────────────────────────

    def batch(self, rows: RowsGiven = (), *, right: RowsGiven = (), broadcast: RowsGiven = ()) -> list[Row]:
        """Process rows as one batch; returns its results. Then the watermark follows the newest event time, and what is due happens.

        `right`: rows of the second stream of a `KeyedCoProcess`. `broadcast`: rows of the broadcast stream.
        If the user's code raises, the exception reaches the test, and the batch has changed nothing.
        """
        given = zip(self._every_input, (rows, right, broadcast), strict=True)
        return self._do(_Step(tables=tuple(as_table(of, some, self._operator.uid) for of, some in given)))

    def advance_watermark(self, to: datetime | str) -> list[Row]:
        """Move the watermark, as rows with newer times would; returns the results of the timers and windows that are due."""
        at_us = microseconds(parsed_moment(to, "advance_watermark"), "advance_watermark")
        if not self._times:
            raise ConfigError(
                f"advance_watermark({to!r}): no input of operator {self._operator.uid!r} has event time; write event_time='column'"
            )
        reached = self.watermark
        if reached is not None and moment(at_us) < reached:
            raise ConfigError(
                f"advance_watermark({to!r}): the watermark has reached {reached:%Y-%m-%d %H:%M:%S.%f}, and it never goes back"
            )
        return self._do(_Step(watermark_us=at_us))

    def advance_clock(self, by: Duration) -> list[Row]:
        """Move the virtual clock on; returns the results of the timers that are due."""
        return self._do(_Step(now_us=self._now_us + in_microseconds(seconds("by", by))))

    def drain(self) -> list[Row]:
        """End the input, as a job does that stops with `drain=True`: all timers in event time fire, all windows close."""
        return self._do(_Step(drains=True))

    def checkpoint(self) -> None:
        """Complete a checkpoint: `fail` goes back to it."""
        lengths = {tag: len(batches) for tag, batches in self._outputs.items()}
        self._checkpoint = _Checkpoint(self._subtasks.checkpoint(), self._watermarks.reached(), lengths)
        self._steps = []

    def fail(self, *, replay: bool = True) -> None:
        """Lose everything since the last checkpoint, state and outputs, and repeat the steps since then.

        `replay=False`: repeat nothing, so that the test can give the rows again in other batches. The clock does not go back.
        """
        self._restore(self._subtasks.parallelism)
        steps, self._steps = self._steps, []
        for step in steps if replay else ():
            self._do(step)

    def rescale(self, parallelism: int) -> None:
        """Take a checkpoint, and go on from it with another number of subtasks."""
        whole_number("parallelism", parallelism, minimum=1, maximum=self._operator.max_parallelism)
        self.checkpoint()
        self._restore(parallelism)
        self.checkpoint()

    # ── outputs ────────────────────────────────────────────────────────────────────────────────

    @property
    def results(self) -> list[Row]:
        """All results, each once: those that a failure has taken back are not in it."""
        return as_dicts(self._outputs.get(RESULTS, ()))

    def to_arrow(self) -> pa.Table:
        """The results as an Arrow table."""
        return pa.Table.from_batches(self._outputs.get(RESULTS, ()), self._operator.output)

    def side(self, name: str) -> list[Row]:
        """The rows of a side output."""
        node = self._operator.node
        code = type(node.own_code).__name__
        declared = node.side_outputs()
        tag = side_tags(declared)[checked_side(declared, name, node.uid, code)]
        return as_dicts(self._outputs.get(tag, ()))

    @property
    def rejected(self) -> list[Row]:
        """The bad rows, with `on_bad_record="skip"`: each with its `reason`, `key` and `row`, as JSON would have the values."""
        letters = as_dicts(self._outputs.get(BAD, ()))
        return [
            {
                "reason": one["reason"],
                "key": None if one["key"] is None else msgspec.json.decode(one["key"]),
                "row": msgspec.json.decode(one["row"]),
            }
            for one in letters
        ]

    @property
    def late(self) -> list[Row]:
        """The rows that came too late for their window, as they came."""
        return as_dicts(self._outputs.get(LATE, ()))

    # ── time and state ─────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """The time of the virtual clock."""
        return moment(self._now_us)

    @property
    def watermark(self) -> datetime | None:
        """The current watermark; None before the first row, or without event time."""
        return watermark(self._watermarks.reached().watermarks_us[self._operator.uid])

    def state(self, key: Any = None) -> dict[str, Any]:
        """The stored state of a key by name: values, lists, and maps as dictionaries. States without a value are left out.

        `{}` for a key that has no state, because it never had a row or its state was cleared: `keys` has those with state.
        A key of several columns is a tuple. Without a key: the `OperatorListState` of all subtasks, and `BroadcastState`.
        """
        return self._stored.of_subtasks() if key is None else self._stored.of_key(key)

    def timers(self, key: Any) -> list[Timer]:
        """The timers that a key has set and that have not fired, in order."""
        return self._stored.timers(key)

    @property
    def keys(self) -> list[Any]:
        """The keys that have state or timers."""
        return self._stored.keys()

    # ── how a step is done ─────────────────────────────────────────────────────────────────────

    def _do(self, step: _Step) -> list[Row]:
        before = len(self._outputs.get(RESULTS, ()))
        if step.now_us is not None:
            self._now_us = max(self._now_us, step.now_us)
        if step.tables:
            self._process(step.tables)
        if step.watermark_us is not None:
            settings = self._times.items()
            newest = {uid: {ALL_ROWS: step.watermark_us + one.out_of_order_us + 1} for uid, one in settings}
            self._watermarks.finish(newest)
        self._settle()
        if step.drains:
            self._drain()
        self._steps.append(step)
        return as_dicts(self._outputs.get(RESULTS, ())[before:])

    def _process(self, tables: Sequence[pa.Table | None]) -> None:
        given = [
            (of, table)
            for of, table in zip(self._every_input, tables, strict=True)
            if of is not None and table is not None
        ]
        reads = [of.uid for of, table in given if table.num_rows and of.time is not None]
        clocks = self._watermarks.begin(
            self._now_us, reads=reads, looked_us=self._now_us, waiting=self._waiting
        )
        self._run(self._operator.tables(tables, self._subtasks.parallelism), clocks[self._operator.uid])
        found = {of.uid: newest_us(of, table, self._now_us) for of, table in given}
        self._watermarks.finish({uid: {ALL_ROWS: us} for uid, us in found.items() if us is not None})

    def _settle(self) -> None:
        """Fire timers and close windows that are due, in batches without rows."""
        while True:
            watermarks_us = self._watermarks.if_nothing_is_read(self._now_us, self._waiting)
            is_due = bool(due_operators(self._subtasks.handles.values(), watermarks_us, self._now_us))
            clocks = self._watermarks.begin(self._now_us, looked_us=self._now_us, waiting=self._waiting)
            self._run(self._no_rows(), clocks[self._operator.uid])
            self._watermarks.finish({})
            if not is_due:
                return

    def _drain(self) -> None:
        uid = self._operator.uid
        if not self._times:
            return
        self._run(self._no_rows(), self._watermarks.begin_end_of_time(self._now_us)[uid])
        self._watermarks.finish({})
        refuse_pending_timers(self._subtasks.handles.values())
        clock = self._watermarks.begin_anew(CheckpointId(self._subtasks.batch + 1))[uid]
        self._run(
            self._no_rows(), clock, wake=bool(expiring_by_event_time({uid: self._subtasks.layout})), ends=True
        )
        self._watermarks.finish({})

    def _run(
        self, tables: list[pa.Table], clock: OperatorClock, *, wake: bool = False, ends: bool = False
    ) -> None:
        due = due_operators(
            self._subtasks.handles.values(), {self._operator.uid: clock.watermark_us}, clock.now_us
        )
        wake = wake or bool(due)
        if not wake and not any(table.num_rows for table in tables):
            self._subtasks.clock = clock
            return
        outputs, _ = self._subtasks.run(tables, clock, wake=wake, ends=ends)
        for of_subtask in outputs:
            for tag, batches in of_subtask.items():
                self._outputs.setdefault(tag, []).extend(batches)

    def _no_rows(self) -> list[pa.Table]:
        empty = [None if one is None else one.columns.empty_table() for one in self._every_input]
        return self._operator.tables(empty, self._subtasks.parallelism)

    @property
    def _every_input(self) -> tuple[Input | None, ...]:
        return (self._operator.left, self._operator.right, self._operator.broadcast)

    @property
    def _waiting(self) -> dict[str, int]:
        return waiting_in_event_time(self._subtasks.handles.values())

    def _at(self, reached: TimeReached) -> Watermarks:
        uid, lateness_us = self._operator.uid, self._operator.node.allowed_lateness_us
        lateness = {} if lateness_us is None else {uid: lateness_us}
        return Watermarks(self._times, {uid: list(self._times)}, reached, self._now_us, lateness_us=lateness)

    def _restore(self, parallelism: int) -> None:
        saved = self._checkpoint
        self._subtasks.restore(saved.state, parallelism)
        self._watermarks = self._at(saved.time)
        for tag, batches in self._outputs.items():
            del batches[saved.output_lengths.get(tag, 0) :]
