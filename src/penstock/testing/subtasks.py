"""All subtasks of one operator without Spark: the engine's own tasks over a state backend, with restores and changes of parallelism.

`penstock.testing.run` and `penstock.testing.kit` use it. A batch runs one subtask after the other. State is durable as soon as its
task has ended, so that a restore never waits. `StoredState` shows the state in the form in which user code sees it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from penstock.checkpoint.state_columns import columns_of
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError, InternalError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.event_time import OperatorClock
from penstock.operators.inputs import WAKE
from penstock.operators.outputs import RESULTS, Tags, untagged
from penstock.operators.state.timers import CLOCK, EVENT_TIME, Timer, timer_table
from penstock.operators.values.encoding import CANNOT_ENCODE, encoded
from penstock.operators.views import ROW, View
from penstock.recovery.state_migration import StateMigration
from penstock.recovery.state_plan import redistribute
from penstock.run.acknowledgements import Acknowledged, acknowledged
from penstock.run.assignment import Answer, Assignment, Executor, RunPlace
from penstock.savepoint.views import views_of
from penstock.snapshot.mailbox import Address, Message, UploadDone
from penstock.snapshot.merger import Merge
from penstock.snapshot.uploader import Upload
from penstock.snapshot.uploader import perform as store
from penstock.state.backends.base import VALUES, OpenState, StateBackend, StateLayout, Workplace
from penstock.state.ddl import spark_type
from penstock.state.handle import Due, StateHandle
from penstock.state.keys import SORT_KEY
from penstock.state.lifetimes import StateTime
from penstock.state.subtask_rows import subtask_sort_key
from penstock.storage import LocalStorage
from penstock.testing.declared import Row, as_dicts


class RunningTask(Protocol):
    """One operator in one batch, as the engine calls it."""

    @property
    def tags(self) -> Tags:
        """The outputs of the attempt besides its results."""
        ...

    def __call__(self, batches: Sequence[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Run one subtask; which one is known from the rows."""
        ...


class TaskFactory(Protocol):
    """An operator whose subtasks are run."""

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        ...

    def layout(self) -> StateLayout:
        """The layout of its state."""
        ...

    def task(self, plan: Assignment, executor: Executor) -> RunningTask:
        """A new task for one subtask in one batch."""
        ...


@dataclass
class LocalExecutor:
    """An `Executor` that makes state durable at once."""

    number: int
    answers: list[Answer] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        """The real clock: it only measures."""
        return SYSTEM_CLOCK

    def attempt(self) -> int:
        """The number that it was made with."""
        return self.number

    def partition(self) -> int:
        """There is one task at a time."""
        return 0

    def answer(self, answer: Answer) -> None:
        """Every attempt counts, because there are no retries."""
        self.answers.append(answer)

    def upload(self, upload: Upload) -> None:
        """Upload now, and not in the background."""
        done = store(upload)
        if not isinstance(done, UploadDone):
            raise InternalError(f"state could not be stored: {done}")

    def merge(self, merge: Merge) -> None:
        """Merges are never ordered here."""
        raise InternalError(f"a merge was ordered: {merge}")

    def tell(self, message: Message) -> None:
        """The exception itself reaches the caller of the batch."""


@dataclass(frozen=True)
class SubtasksCheckpoint:
    """A completed checkpoint of the operator."""

    batch: int
    handles: Mapping[SubtaskId, StateHandle]
    parallelism: int


class Subtasks:
    """The state continues from batch to batch. `root` is a private folder; a restore keeps only files in storage."""

    def __init__(
        self,
        root: Path,
        operator: TaskFactory,
        *,
        backend: StateBackend,
        parallelism: int = 1,
        max_parallelism: int = 128,
    ) -> None:
        self.parallelism = parallelism
        self.batch = 0
        """The number of the last batch."""
        self.handles: Mapping[SubtaskId, StateHandle] = {}
        self.clock = OperatorClock()
        """Event time and the clock in the last batch."""
        self.rows_given = 0
        """How many rows and timers the last batch had."""
        self.layout = operator.layout()
        self._operator, self._backend, self._max_parallelism = operator, backend, max_parallelism
        self._root, self._storage = root, LocalStorage(root / "storage")
        self._attempts = count()
        self._run = 1

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def run(
        self, tables: Sequence[pa.Table], clock: OperatorClock, *, wake: bool = False, ends: bool = False
    ) -> tuple[list[Mapping[str, Sequence[pa.RecordBatch]]], Acknowledged]:
        """Run a batch: a table of rows with sort keys for each subtask. Returns the outputs of each by tag, and the messages to the driver.

        `wake`: subtasks without rows run, too. `ends`: event time has reached its end. If a task raises, the batch has no effect.
        """
        uid, number = self._operator.uid, self.batch + 1
        plan = self._assignment(number, clock, wake=wake, ends=ends)
        outputs: list[Mapping[str, Sequence[pa.RecordBatch]]] = []
        answers: list[Answer] = []
        for index, table in enumerate(tables):
            executor = LocalExecutor(next(self._attempts))
            task = self._operator.task(plan, executor)
            given = list(task((with_wake_row(table, index) if wake else table).to_batches()))
            outputs.append(_apart(given, task.tags))
            answers += executor.answers
        done = acknowledged(plan, (uid,), answers)
        self.rows_given = sum(answer.bad.of for answer in answers)
        self.batch, self.handles, self.clock = number, done.handles, clock
        return outputs, done

    def _assignment(self, number: int, clock: OperatorClock, *, wake: bool, ends: bool) -> Assignment:
        uid = self._operator.uid
        return Assignment(
            place=self._place(),
            batch=CheckpointId(number),
            handles=self.handles,
            undurable=frozenset(),
            keep=frozenset(),
            merges={},
            merging=frozenset(),
            expecting=frozenset(),
            forget_earlier_runs=False,
            awaited=frozenset(),
            newest_will_do=False,
            now_us=clock.now_us,
            clocks={uid: clock},
            wake=frozenset({uid} if wake else ()),
            ends_event_time=ends,
        )

    def _place(self) -> RunPlace:
        return RunPlace(
            job="job",
            run=RunId(self._run),
            parallelism=self.parallelism,
            max_parallelism=self._max_parallelism,
            storage=self._storage,
            backend=self._backend,
            local_dir=self._root / f"local-{self._run}",
            local_recovery=False,
            mailbox=cast("Address", None),
        )

    # ── checkpoints ────────────────────────────────────────────────────────────────────────────

    def checkpoint(self) -> SubtasksCheckpoint:
        """The checkpoint that `restore` returns to."""
        return SubtasksCheckpoint(self.batch, dict(self.handles), self.parallelism)

    def restore(self, saved: SubtasksCheckpoint, parallelism: int) -> None:
        """Go on from a checkpoint, with this number of subtasks, on machines that have no files."""
        self._forget_local_files()
        self._run += 1
        self.batch, self.handles, self.parallelism = saved.batch, saved.handles, parallelism
        if saved.parallelism != parallelism and saved.handles:
            self.handles = self._redistributed(list(saved.handles.values()))

    def _redistributed(self, former: list[StateHandle]) -> dict[SubtaskId, StateHandle]:
        uid, place, version = self._operator.uid, self._place(), CheckpointId(self.batch)
        handles = redistribute(
            former, uid=uid, parallelism=self.parallelism, version=version, backend=self._backend.name
        )
        migrate = StateMigration(
            place.storage,
            place.backend,
            place.local_dir,
            place.run,
            place.parallelism,
            place.max_parallelism,
            {uid: self.layout},
            frozenset(),
            former={uid: sorted(former, key=lambda handle: handle.subtask)},
        )
        taken = [migrate(handle, next(self._attempts)) for handle in handles.values()]
        self._forget_local_files()
        return {one.handle.subtask: one.handle for one in taken}

    def _forget_local_files(self) -> None:
        shutil.rmtree(self._place().local_dir, ignore_errors=True)

    # ── what is stored ─────────────────────────────────────────────────────────────────────────

    @property
    def due(self) -> Due:
        """The first times at which any subtask is due."""
        return Due.first(handle.due for handle in self.handles.values())

    @contextmanager
    def opened(self, index: int) -> Iterator[OpenState]:
        """The state of a subtask after the last batch, without expired values."""
        subtask = SubtaskId(self._operator.uid, index)
        time = StateTime(self.clock.now_us, {}, self.clock.watermark_us, self.clock.now_us)
        place = Workplace.of(
            self._place(), subtask, version=self.batch + 1, attempt=next(self._attempts), time=time
        )
        with closing(self._backend.open(place, self.layout, self.handles.get(subtask))) as state:
            yield state


def with_wake_row(table: pa.Table, subtask: int) -> pa.Table:
    """The rows of a subtask in a batch that wakes all subtasks, as Spark passes them."""
    wakes = pa.table({SORT_KEY: pa.array([subtask_sort_key(subtask)], pa.int64()), WAKE: [True]})
    return pa.concat_tables([table, wakes], promote_options="default")


def _apart(given: Sequence[pa.RecordBatch], tags: Tags) -> dict[str, list[pa.RecordBatch]]:
    found: dict[str, list[pa.RecordBatch]] = {RESULTS: [], **{tag: [] for tag in tags}}
    for batch in given:
        for tag, rows in untagged(batch, tags).items():
            if rows.num_rows:
                found[tag].append(rows)
    return found


_TIMERS = "timers"
_OF_SUBTASKS = ("operator list", "broadcast")
_BY_EVENT_TIME = timer_table(EVENT_TIME, pa.schema([])).name


@dataclass(frozen=True)
class StoredState:
    """The stored state of the subtasks after their last batch."""

    subtasks: Subtasks

    @cached_property
    def _views(self) -> dict[str, View]:
        views = views_of(columns_of(self.subtasks.layout))
        return {name: view for name, view in views.items() if name != ROW}

    def of_key(self, key: Any) -> dict[str, Any]:
        """The states of a key by name."""
        wanted, found = self._as_key(key), {}
        for name, view in self._views.items():
            if view.kind not in (_TIMERS, *_OF_SUBTASKS):
                found[name] = [own for of, own in self._rows(view) if of == wanted]
        return {name: _as_declared(self._views[name], rows) for name, rows in found.items() if rows}

    def of_subtasks(self) -> dict[str, Any]:
        """The states that belong to subtasks and not to keys, by name."""
        found = {
            name: as_dicts(self._batches(view))
            for name, view in self._views.items()
            if view.kind in _OF_SUBTASKS
        }
        return {name: _as_declared(self._views[name], rows) for name, rows in found.items() if rows}

    def timers(self, key: Any) -> list[Timer]:
        """The timers of a key that have not fired, in order."""
        wanted = self._as_key(key)
        found = [
            Timer(own["at"], EVENT_TIME if view.table.name == _BY_EVENT_TIME else CLOCK)
            for view in self._views.values()
            if view.kind == _TIMERS
            for of, own in self._rows(view)
            if of == wanted
        ]
        return sorted(found)

    def keys(self) -> list[Any]:
        """The keys that have state or timers."""
        views = [one for one in self._views.values() if one.kind not in _OF_SUBTASKS]
        found = dict.fromkeys(key for view in views for key, _ in self._rows(view))
        return [key[0] if len(key) == 1 else key for key in found]

    def _as_key(self, key: Any) -> tuple[Any, ...]:
        """The key as a tuple; raises `ConfigError` for one that no row can have, because such a question is a mistake in the test."""
        columns, parts = self.subtasks.layout.key, key if isinstance(key, tuple) else (key,)
        try:
            for part, field in zip(parts, columns, strict=True):
                encoded([part], field.type)
        except CANNOT_ENCODE as error:
            types = ", ".join(f"{field.name} {spark_type(field.type)}" for field in columns)
            there = f"has the key columns {types}" if types else "has no key; ask for state() without one"
            raise ConfigError(f"{key!r} cannot be a key: the operator {there}", key=key) from error
        return _hashable(parts)

    def _rows(self, view: View) -> Iterator[tuple[tuple[Any, ...], Row]]:
        """The rows of a state: the key of each, and its other columns."""
        keys = len(self.subtasks.layout.key)
        for row in as_dicts(self._batches(view)):
            values = list(row.items())
            yield _hashable([value for _, value in values[:keys]]), dict(values[keys:])

    def _batches(self, view: View) -> Iterator[pa.RecordBatch]:
        for index in range(1 if view.one_copy else self.subtasks.parallelism):
            with self.subtasks.opened(index) as state:
                table = state if view.table.name == VALUES else state.table(view.table.name)
                yield from view.rows(table.scan())


def _as_declared(view: View, rows: list[Row]) -> Any:
    """The rows of a state in the form in which user code sees it."""
    values = [list(row.values()) for row in rows]
    if view.kind in ("value", "aggregate"):
        return values[0][-1]
    if view.kind in ("map", "broadcast"):
        return {_hashable_value(key): value for *_, key, value in values}
    if view.kind in ("list", "operator list"):
        return [one[-1] for one in values]
    return rows


def _hashable(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(_hashable_value, values))


def _hashable_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable_value, value))
    return tuple(map(_hashable_value, value.values())) if isinstance(value, dict) else value
