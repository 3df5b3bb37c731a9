"""The state of a job in its newest checkpoint: tables and sizes, the rows of a key, the largest keys. Without Spark.

Rows are read from the files of the checkpoint, with a hold, so that the job deletes none of them meanwhile. A key is found by reading on
until it is there: where it lies is known to Spark's hash alone. So every reading has limits, and says when it has met one.
Readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoint.model import Completed
from penstock.clock import SYSTEM_CLOCK, Stopwatch
from penstock.errors import ConfigError
from penstock.operators.views import ROW, View
from penstock.recovery.history import retained_checkpoint
from penstock.savepoint.contents import Contents, OperatorContents, checkpoint_contents
from penstock.savepoint.stored_rows import CheckpointedPart, Part
from penstock.state.ddl import spark_type
from penstock.storage import Storage
from penstock.wording import counted, duration, size

Row = dict[str, Any]
ONE_ROW = ("row", "value", "aggregate")
"""Kinds of states of which a key has one row."""
ROW_NAME = "_row"
"""How the row of every key, which has no name, is asked for in an address."""


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a user knows."""

    name: str
    kind: str
    table: str
    columns: dict[str, str]
    """With their types."""


class SubtaskView(msgspec.Struct, frozen=True, kw_only=True):
    """What one subtask has stored."""

    index: int
    state_bytes: int
    files: int
    """Runs: sorted files, of which many want to be merged."""


class OperatorStateView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an operator."""

    uid: str
    key: dict[str, str]
    state_bytes: int
    states: tuple[StateView, ...]
    subtasks: tuple[SubtaskView, ...]
    bad_records: int = 0
    late_rows: int = 0


class StateContents(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known before a row is read."""

    job: str
    checkpoint: int
    run: int
    completed_at: float
    mode: str
    parallelism: int
    max_parallelism: int
    state_bytes: int
    positions: dict[str, Any]
    """Where reading goes on, by source."""
    operators: tuple[OperatorStateView, ...]


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    operator: str
    state: str
    kind: str
    checkpoint: int
    run: int
    columns: dict[str, str]
    looked_at: int
    """Rows that were read for it."""
    complete: bool
    why: str = ""
    """Of one that is not complete: which limit was met."""
    took_s: float = 0.0


class FoundRows(_Reading, frozen=True, kw_only=True):
    """The rows of a key, or the first rows of a state."""

    key: dict[str, str]
    rows: tuple[Row, ...]
    more: bool = False
    """There are more than are shown."""


class KeyRows(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows a key has in a state."""

    key: Row
    rows: int


class LargestKeys(_Reading, frozen=True, kw_only=True):
    """The keys with the most rows, of those that were read."""

    keys: tuple[KeyRows, ...]


@dataclass(frozen=True)
class Limits:
    """How far a reading goes, whatever there is."""

    rows: int = 2_000_000
    seconds: float = 10.0
    fetched_bytes: int = 512 * 1024 * 1024
    """Files of a subtask are fetched before a row of it is read."""
    shown: int = 100


USUAL_LIMITS = Limits()


def state_contents(storage: Storage) -> StateContents:
    """The state in the newest checkpoint of the job in this folder; raises `ConfigError` if it has none."""
    completed = retained_checkpoint(storage)
    contents = checkpoint_contents(storage, completed)
    return StateContents(
        job=completed.job,
        checkpoint=completed.checkpoint,
        run=completed.run,
        completed_at=completed.completed_at,
        mode=completed.mode,
        parallelism=completed.parallelism,
        max_parallelism=completed.max_parallelism,
        state_bytes=contents.size,
        positions=contents.positions,
        operators=tuple(_operator(completed, one) for one in contents.operators.values()),
    )


def _operator(completed: Completed, operator: OperatorContents) -> OperatorStateView:
    handles = sorted(completed.operators[operator.uid].handles, key=lambda handle: handle.subtask.index)
    return OperatorStateView(
        uid=operator.uid,
        key=operator.key,
        state_bytes=operator.size,
        states=tuple(
            StateView(name=name, kind=view.kind, table=view.table.name, columns=_columns(view))
            for name, view in operator.views.items()
        ),
        subtasks=tuple(
            SubtaskView(index=one.subtask.index, state_bytes=one.size, files=len(one.refs)) for one in handles
        ),
        bad_records=completed.bad_records.get(operator.uid, 0),
        late_rows=completed.late_rows.get(operator.uid, 0),
    )


def _columns(view: View) -> dict[str, str]:
    return {column.name: spark_type(column.type) for column in view.columns}


# ── rows ───────────────────────────────────────────────────────────────────────────────────────────


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A query of a state: the rows of a key, or the keys with the most rows."""

    operator: str
    state: str
    key: dict[str, str] | list[str] = []
    """Its values as texts, by column or in their order. Without one, the first rows of the state."""
    largest: int = 0
    """The number of largest keys; 0: rows."""

    @property
    def why(self) -> str:
        """Why a checkpoint is held for it."""
        return "the largest keys are looked up" if self.largest else "a key is looked up"


def check_question(storage: Storage, completed: Completed, question: Question) -> None:
    """Refuse, with `ConfigError`, what cannot be answered, before a row is read."""
    _Asked.by(question, storage, completed)


def answer(
    storage: Storage, completed: Completed, question: Question, limits: Limits = USUAL_LIMITS
) -> FoundRows | LargestKeys:
    """Read this checkpoint, which the caller holds."""
    asked = _Asked.by(question, storage, completed)
    scan = _Scan(limits)
    return _largest_keys(asked, scan) if question.largest else _found_rows(asked, scan)


def _found_rows(asked: _Asked, scan: _Scan) -> FoundRows:
    rows = _rows(asked, scan)
    shown = scan.limits.shown
    return FoundRows(**asked.facts(scan), key=asked.given, rows=tuple(rows[:shown]), more=len(rows) > shown)


def _largest_keys(asked: _Asked, scan: _Scan) -> LargestKeys:
    names = list(asked.view.key)
    counts = [_counts(batch, names) for batch in scan.batches(asked)]
    return LargestKeys(**asked.facts(scan), keys=_largest(counts, names, asked.largest))


@dataclass(frozen=True)
class _Asked:
    """A state of which rows are wanted."""

    contents: Contents
    operator: OperatorContents
    view: View
    given: dict[str, str]
    """The key as it was typed, by column."""
    wanted: tuple[tuple[str, pa.Scalar], ...]
    """The same as the columns have it."""
    largest: int

    @classmethod
    def by(cls, question: Question, storage: Storage, completed: Completed) -> _Asked:
        contents = checkpoint_contents(storage, completed)
        operator = contents.operator(question.operator)
        view = operator.find(None if question.state in (ROW_NAME, ROW) else question.state)
        if question.largest:
            _refuse_one_row(operator, view)
        types = {name: view.table.identity.field(name).type for name in view.key}
        given = _key_of(operator, types, question.key)
        wanted = tuple((name, _value(name, text, types[name])) for name, text in given.items())
        return cls(contents, operator, view, given, wanted, question.largest)

    @property
    def parts(self) -> list[Part]:
        return self.operator.parts_of(self.view)

    @property
    def lies_together(self) -> bool:
        """Whether all rows of a key come one after the other."""
        return self.operator.is_placed_by_key(self.view)

    def facts(self, scan: _Scan) -> dict[str, Any]:
        return {
            "operator": self.operator.uid,
            "state": self.view.name,
            "kind": self.view.kind,
            "checkpoint": self.contents.checkpoint,
            "run": self.contents.run,
            "columns": _columns(self.view),
            "looked_at": scan.rows,
            "complete": not scan.stopped,
            "why": scan.stopped,
            "took_s": round(scan.watch.seconds, 3),
        }


def _key_of(
    operator: OperatorContents, types: Mapping[str, pa.DataType], given: Mapping[str, str] | Sequence[str]
) -> dict[str, str]:
    names = list(types)
    found = dict(given) if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
    if not given or (set(found) == set(names) and len(given) == len(names)):
        return {name: found[name] for name in names if name in found}
    said = ", ".join(f"{name} {spark_type(kind)}" for name, kind in types.items())
    raise ConfigError(
        f"the key of {operator.uid} has {counted(len(names), 'column')} ({said}), and {len(given)} were given; give one "
        "value for each",
        operator=operator.uid,
    )


def _refuse_one_row(operator: OperatorContents, view: View) -> None:
    if view.kind in ONE_ROW or view.one_copy:
        name = view.name or "the row of values"
        raise ConfigError(
            f"a key has one row in {name} of {operator.uid}, so none is larger than another; ask "
            "for a map, list, timers or windows",
            operator=operator.uid,
        )


@dataclass
class _Scan:
    """A walk over stored rows that ends at a limit."""

    limits: Limits
    rows: int = 0
    stopped: str = ""
    watch: Stopwatch = field(default_factory=lambda: Stopwatch(SYSTEM_CLOCK))

    def batches(self, asked: _Asked) -> Iterator[pa.RecordBatch]:
        fetched = 0
        for part in asked.parts:
            fetched += part.subtask.handle.size if isinstance(part, CheckpointedPart) else 0
            if fetched > self.limits.fetched_bytes:
                self.stopped = f"reading ends before more than {size(self.limits.fetched_bytes)} are fetched"
                return
            for batch in asked.view.whole(part.rows()):
                self.rows += batch.num_rows
                yield batch
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        if self.rows >= self.limits.rows:
            self.stopped = f"reading ends after {counted(self.limits.rows, 'row')}"
        elif self.watch.seconds > self.limits.seconds:
            self.stopped = f"reading ends after {duration(self.limits.seconds)}"
        return bool(self.stopped)


def _rows(asked: _Asked, scan: _Scan) -> list[Row]:
    """Those that are shown, and one more where there are more."""
    found: list[Row] = []
    view = asked.view
    for batch in scan.batches(asked):
        mask = _mask(batch, asked.wanted)
        at = np.flatnonzero(mask)
        if not len(at):
            if found and asked.lies_together:
                break
            continue
        shown = view.shown(batch).take(pa.array(at[: scan.limits.shown + 1]))
        if view.without_null:
            shown = shown.filter(shown.column(shown.num_columns - 1).is_valid())
        found += [{name: _as_json(value) for name, value in row.items()} for row in shown.to_pylist()]
        is_whole = view.kind in ONE_ROW and bool(asked.wanted)
        if is_whole or len(found) > scan.limits.shown:
            break
    return found


def _as_json(value: Any) -> Any:
    """JSON has no words for NaN and the infinities, and null would be another value."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items()}
    return [_as_json(one) for one in value] if isinstance(value, list | tuple) else value


def _mask(batch: pa.RecordBatch, wanted: Sequence[tuple[str, pa.Scalar]]) -> npt.NDArray[np.bool_]:
    mask = np.ones(batch.num_rows, np.bool_)
    for name, value in wanted:
        column = batch.column(name)
        same = pc.equal(column, value).fill_null(False) if value.is_valid else column.is_null()  # noqa: FBT003
        mask &= same.to_numpy(zero_copy_only=False)
    return mask


def _value(name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    """Typed text as a value of the column. `null` is a missing value, except where it can be a text."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar(text, kind)
    if text == "null":
        return pa.scalar(None, kind)
    try:
        return pa.array([text]).cast(kind)[0]
    except pa.ArrowException as error:
        raise ConfigError(
            f"{text!r} is no value of the key's column {name}, which is {spark_type(kind)}: {error}",
            column=name,
        ) from error


def _counts(batch: pa.RecordBatch, names: list[str]) -> pa.Table:
    return pa.Table.from_batches([batch]).select(names).group_by(names).aggregate([([], "count_all")])


def _largest(counts: Sequence[pa.Table], names: list[str], most: int) -> tuple[KeyRows, ...]:
    if not counts:
        return ()
    table = pa.concat_tables(counts).group_by(names).aggregate([("count_all", "sum")])
    top = table.take(pc.select_k_unstable(table, most, [("count_all_sum", "descending")]))
    rows = top.rename_columns([*names, "__rows"]).to_pylist()
    return tuple(
        KeyRows(key={name: _as_json(row[name]) for name in names}, rows=row["__rows"]) for row in rows
    )
