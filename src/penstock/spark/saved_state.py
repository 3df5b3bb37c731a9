"""State as DataFrames: `read_savepoint`, and `read_state` for the newest checkpoint of a job. Driver; rows are read in tasks.

Each task reads one part, the rows of one former subtask, through Penstock's own code. So every file is checked before its rows are used,
expired state is left out, and the storage need not be accessible to Spark itself. The state of a running job is read in place, without a
copy, and only for the requested operators and keys. A hold keeps the files until the object is closed.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.ids import checked_name
from penstock.operators.views import View
from penstock.savepoint.contents import (
    Contents,
    OperatorContents,
    held_checkpoint,
    savepoint_contents,
)
from penstock.savepoint.stored_rows import Part, owning
from penstock.spark.key_columns import float_keys, normalised, quoted, sort_key
from penstock.state.keys import SORT_KEY, SortKeys
from penstock.storage import open_job_storage


def read_savepoint(spark: SparkSession, path: str | Path) -> SavedState:
    """Open the savepoint at a path: its properties, and each of its states as a DataFrame.

    The manifest is read and checked now. Rows are read when Spark runs, after the checksum of their file was verified.
    """
    return SavedState(spark, savepoint_contents(path), ExitStack())


def read_state(
    spark: SparkSession, storage: str | Path, job: str, *, checkpoint: int | None = None
) -> SavedState:
    """Open the newest completed checkpoint of a job, running or not, or another retained one.

    Use it in a `with` block, or call `close()`: until then none of the job's checkpoints is deleted. The job itself is not affected.
    """
    held = ExitStack()
    folder = open_job_storage(storage, checked_name("job name", job))
    return SavedState(spark, held.enter_context(held_checkpoint(folder, checkpoint)), held)


class SavedState:
    """The content of a savepoint or checkpoint. `state("views", "pv")` is the state `pv` of the operator `views`, as a DataFrame."""

    def __init__(self, spark: SparkSession, contents: Contents, held: ExitStack) -> None:
        self._spark = spark
        self._contents = contents
        self._held: ExitStack | None = held
        # not when this object is garbage-collected: a DataFrame that was made from it may still be read
        atexit.register(held.close)

    # ── what it is ─────────────────────────────────────────────────────────────────────────────

    @property
    def job(self) -> str:
        """The name of the job whose state it is."""
        return self._contents.job

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint."""
        return self._contents.checkpoint

    @property
    def made_at(self) -> datetime:
        """When the savepoint was made, or the checkpoint was completed."""
        return self._contents.made_at

    @property
    def made_by(self) -> str:
        """The version of Penstock that made a savepoint; '' for a checkpoint."""
        return self._contents.made_by

    @property
    def mode(self) -> str:
        """The delivery mode of the job: exactly-once, at-least-once or at-most-once."""
        return self._contents.mode

    @property
    def parallelism(self) -> int:
        """The number of subtasks that share the state."""
        return self._contents.parallelism

    @property
    def max_parallelism(self) -> int:
        """The largest possible number of subtasks."""
        return self._contents.max_parallelism

    @property
    def positions(self) -> dict[str, Any]:
        """The positions where sources continue, by uid."""
        return self._contents.positions

    @property
    def watermarks(self) -> dict[str, datetime | None]:
        """The watermarks by operator and by source; None where there is none yet."""
        return {**self._contents.source_watermarks, **self._contents.watermarks}

    @property
    def operators(self) -> Mapping[str, OperatorContents]:
        """The operators with state, by uid: their keys, states, tables, rows and sizes."""
        return self._contents.operators

    @property
    def size(self) -> int:
        """The size of all state in bytes."""
        return self._contents.size

    def __repr__(self) -> str:
        return "\n".join(self._contents.described())

    # ── how long ───────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Release the files: checkpoints of the job may be deleted again. A savepoint needs no closing."""
        held, self._held = self._held, None
        if held is not None:
            atexit.unregister(held.close)
            held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── its rows ───────────────────────────────────────────────────────────────────────────────

    def state(
        self,
        operator: str,
        name: str | None = None,
        *,
        keys: Iterable[Any] | None = None,
        internal: bool = False,
    ) -> DataFrame:
        """A state of an operator as a DataFrame: the columns of the key, then those of the state.

        Without a name: one row for each key, with all its values. `keys`: only these keys, each a value, or a tuple or dictionary if the
        key has several columns; only files and row groups that can contain them are read. (Aggregates of tumbling windows are stored by
        key and window, so all their files are read.) Timestamps may be given as `collect` shows them. `internal`: the table as it is
        stored, with sort numbers, and with parts of aggregates instead of their results.
        """
        self._check_open()
        contents = self._contents.operator(operator)
        view = contents.find(name, internal=internal)
        parts = contents.parts_of(view)
        if keys is None:
            return self._frame(view, parts, None)
        if not contents.key or not set(contents.key) <= {column.name for column in view.identity}:
            raise ConfigError(
                f"the state {view.name!r} of {operator!r} belongs to subtasks and not to keys, so it cannot be read by key; leave out "
                "keys=",
                operator=operator,
                state=view.name,
            )
        wanted = self._wanted(view, contents, list(keys))
        if contents.is_placed_by_key(view):
            found = wanted.select(SORT_KEY).collect()
            numbers = np.unique(np.array([row[0] for row in found], dtype=np.int64))
            rows = self._frame(view, owning(parts, numbers, self.parallelism), numbers)
        else:
            rows = self._frame(view, parts, None)
        same = [rows[quoted(key)].eqNullSafe(wanted[quoted(key)]) for key in contents.key]
        return rows.join(F.broadcast(wanted), same, "left_semi")  # two keys may share a sort key

    def _check_open(self) -> None:
        if self._held is None:
            raise ConfigError(
                f"{self._contents} was closed, and its files may be gone; call read_state(...) again"
                if self._contents.what == "checkpoint"
                else f"{self._contents} was closed; call read_savepoint(...) again"
            )

    def _frame(self, view: View, parts: Sequence[Part], sort_keys: SortKeys | None) -> DataFrame:
        schema: StructType = from_arrow_schema(view.schema, prefer_timestamp_ntz=True)
        if not parts:
            return self._spark.createDataFrame([], schema)
        numbered = self._spark.range(0, len(parts), 1, len(parts))
        return numbered.mapInArrow(_Read(view, tuple(parts), sort_keys), schema)

    def _wanted(self, view: View, contents: OperatorContents, keys: Sequence[Any]) -> DataFrame:
        """The keys as rows, with their sort keys, computed as for rows of the stream."""
        names = tuple(contents.key)
        kinds = {one.name: one.type for one in view.identity}
        schema = pa.schema([(name, kinds[name]) for name in names])
        rows = [_as_key(key, names) for key in keys]
        try:
            columns = [_values([row[at] for row in rows], kinds[name]) for at, name in enumerate(names)]
            frame = self._spark.createDataFrame(
                list(zip(*columns, strict=True)), from_arrow_schema(schema, prefer_timestamp_ntz=True)
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            columns_shown = ", ".join(f"{name} {kind}" for name, kind in contents.key.items())
            raise ConfigError(
                f"keys={list(keys[:3])!r} do not fit the key ({columns_shown}): {error}"
            ) from error
        frame = normalised(frame, float_keys(frame, names))
        return frame.select(*map(quoted, names), sort_key(names, self.max_parallelism))


def _as_key(key: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """One key as the user gives it."""
    if isinstance(key, Row):
        key = key.asDict()
    if isinstance(key, Mapping):
        found = tuple(key.get(name) for name in names)
        fits = set(key) == set(names)
    elif len(names) == 1 and not isinstance(key, tuple):
        return (key,)
    else:
        fits = isinstance(key, tuple | list) and len(key) == len(names)
        found = tuple(key) if fits else ()
    if not fits:
        raise ConfigError(
            f"{key!r} is no key: give a value for each of {', '.join(names)}, as a tuple or dictionary",
            key=key,
        )
    return found


def _values(given: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """A column of keys as Spark takes it. Arrow turns 2 into 2.0 and reports what does not fit; Spark checks nested values itself."""
    if pa.types.is_nested(kind):
        return list(given)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        given = [_moment(one) for one in given]
    found: list[Any] = pa.array(given, kind).to_pylist()
    return found


def _moment(given: Any) -> Any:
    """A moment with its time zone. Spark shows moments in the machine's zone without naming it; Arrow would take them for UTC."""
    is_local = isinstance(given, datetime) and given.tzinfo is None
    return given.astimezone(UTC) if is_local else given


@dataclass(frozen=True)
class _Read:
    """The task that reads parts: numbers of parts in, their rows out."""

    view: View
    parts: tuple[Part, ...]
    sort_keys: SortKeys | None

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.view.rows(self.parts[number].rows(self.sort_keys))
