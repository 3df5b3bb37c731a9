"""`write_savepoint`: makes a savepoint from DataFrames, from which a new job starts as if it had read the past itself. Driver.

First it checks everything that can be checked without a Spark job. Then it writes the tables one by one, with one task for each part, and
the manifest last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from penstock.checkpoint.model import Barrier
from penstock.checkpoint.state_columns import columns_of
from penstock.clock import SYSTEM_CLOCK
from penstock.config import whole_number
from penstock.errors import ConfigError, CorruptStateError, PenstockError, shown_alone
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.long_work import each
from penstock.operators.state.timers import KINDS, timer_table
from penstock.recovery.progress_log import NO_POSITION
from penstock.savepoint.create import Attempt, attempting
from penstock.savepoint.manifest import Manifest, SavedOperator
from penstock.spark.compiled import compile_job
from penstock.spark.failure_messages import in_brief
from penstock.spark.inspection import leaves, referenced_columns
from penstock.spark.operators.base import CompiledOperator
from penstock.spark.positions import check_position
from penstock.spark.quiet_logs import quiet_logs_for
from penstock.spark.savepoint_files import OperatorTable, Target, WrittenPart, store_rows
from penstock.spark.savepoint_rows import Given, OperatorRows, joined, safely_cast
from penstock.state.backends.base import VALUES, StateLayout
from penstock.state.handle import Due
from penstock.state.lifetimes import LONG_AGO_US, Measure, in_microseconds
from penstock.storage import Storage, open_storage
from penstock.version import __version__
from penstock.wording import did_you_mean, named

if TYPE_CHECKING:
    from penstock.job import Job

Counts = dict[str, dict[str, int]]
"""Rows by operator and table."""

FIRST_CHECKPOINT = 0
"""The checkpoint number of such a savepoint: the job has read no batch yet, and its first batch is the next number."""
_NOTES = "FileSource"
"""The kind of source whose position is useless without the list of files that it has read."""
_CORRUPT = re.compile(rf"^(?:[\w.]+\.)?{CorruptStateError.__name__}: (.*)$", re.MULTILINE)
_VALUES_SHOWN = "values"


def write_savepoint(
    path: str | Path,
    job: Job,
    state: Mapping[str, Given] | None = None,
    *,
    history: Mapping[str, DataFrame] | None = None,
    positions: Mapping[str, Any] | None = None,
    parallelism: int | None = None,
) -> Counts:
    """Write a savepoint into the empty folder `path`, with which `job.start(savepoint=path)` begins.

    `state`: the state of operators by uid, as a DataFrame with key and values, or a dictionary with a DataFrame for each state:
    `{"visits": {"count": counts, "by_shop": entries}}`. `history`: past rows by the uid of an `aggregate`, as a batch DataFrame with the
    columns of the operator's input; the job's own aggregates are computed over them. `positions`: where sources continue, by uid, as Spark
    writes it: for Kafka `{"topic": {"0": 17}}`, for a `PartitionedLog` `{0: 17, 1: 12}`. Other sources begin at their own start.
    `parallelism`: the number of parts of each table, by default that of the job.

    Other operators begin empty. Returns the number of rows in each table. Input that does not fit is refused, and the folder stays
    empty: an unknown operator or state, another type, a null key, a duplicate key.
    """
    try:
        return _written(
            path, job, state or {}, history or {}, positions=positions or {}, parallelism=parallelism
        )
    except PenstockError as error:
        failure = shown_alone(error)
    raise failure


def _written(
    path: str | Path,
    job: Job,
    state: Mapping[str, Given],
    history: Mapping[str, DataFrame],
    *,
    positions: Mapping[str, Any],
    parallelism: int | None,
) -> Counts:
    to = open_storage(path)
    parts = whole_number(
        "parallelism", parallelism or job.parallelism, minimum=1, maximum=job.max_parallelism
    )
    with quiet_logs_for(job.graph.sources):
        operators = compile_job(job.graph).operators
    _check_operators(operators, state, history)
    filling = [_Filling.of(uid, operators[uid], job.max_parallelism) for uid in (*state, *history)]
    tables = {
        one.uid: one.from_history(history[one.uid]) if one.uid in history else one.from_state(state[one.uid])
        for one in filling
    }
    barrier = barrier_at(job, positions)
    now_us = in_microseconds(SYSTEM_CLOCK.wall())
    token = SYSTEM_RANDOMNESS.token()
    with being_made(to, token) as attempt:
        target = Target(to, parts, attempt.mark)
        saved = {
            one.uid: one.saved(tables[one.uid], target, now_us)
            for one in each(filling, "writing the savepoint", "operator")
        }
        manifest = Manifest(
            id=token,
            checkpoint=FIRST_CHECKPOINT,
            mode=job.checkpoint.delivery_mode.value,
            parallelism=parts,
            max_parallelism=job.max_parallelism,
            made_at=SYSTEM_CLOCK.wall(),
            made_by=__version__,
            now_us=now_us,
            barrier=barrier,
            operators=saved,
        )
        attempt.finish(manifest)
    return counts_of(manifest)


def counts_of(manifest: Manifest) -> Counts:
    """The number of rows in each table."""
    return {
        uid: {_VALUES_SHOWN if name == VALUES else name: operator.rows(name) for name in operator.files}
        for uid, operator in manifest.operators.items()
    }


@contextmanager
def being_made(to: Storage, token: str) -> Iterator[Attempt]:
    """Claim the folder. If something fails, the folder is empty again, and Spark's error is shortened."""
    with attempting(to, token) as attempt:
        try:
            yield attempt
        except PenstockError:
            raise
        except Exception as error:
            raise _in_brief(error) from error


def _in_brief(error: Exception) -> BaseException:
    """The error of a task about a corrupt file, or Spark's error, shortened."""
    found = _CORRUPT.search(str(error))
    return CorruptStateError(found[1]) if found else in_brief(error)


def _check_operators(
    operators: Mapping[str, CompiledOperator], state: Mapping[str, object], history: Mapping[str, object]
) -> None:
    for uid in (*state, *history):
        if uid not in operators:
            close = did_you_mean(str(uid), operators)
            raise ConfigError(
                f"the job has no operator {uid!r}; it has the {named(list(operators), 'operator')}{f'; {close}' if close else ''}",
                operator=uid,
            )
    both = sorted(set(state) & set(history))
    if both:
        raise ConfigError(
            f"operator {both[0]!r} is in state and in history; give one of them", operator=both[0]
        )


# ── one operator ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Filling:
    """An operator whose state is written."""

    uid: str
    operator: CompiledOperator
    rows: OperatorRows

    @classmethod
    def of(cls, uid: str, operator: CompiledOperator, max_parallelism: int) -> _Filling:
        return cls(uid, operator, OperatorRows(uid, operator.layout, max_parallelism))

    @property
    def layout(self) -> StateLayout:
        return self.operator.layout

    def from_state(self, given: Given) -> dict[str, DataFrame]:
        """Rows of tables, with their sort keys, from given state."""
        values = OperatorTable.of(self.uid, self.layout, VALUES)
        return self._placed(
            {
                name: joined(parts, values, self.layout.parts) if name == VALUES else parts[0]
                for name, parts in self.rows.tables(given).items()
            }
        )

    def from_history(self, frame: DataFrame) -> dict[str, DataFrame]:
        """Rows of tables, with their sort keys, from the past rows of an aggregate."""
        if not self.operator.takes_history:
            raise ConfigError(
                f"operator {self.uid!r} is no aggregate, so that its state cannot be computed from history; compute it yourself, and "
                f"give it as state={{{self.uid!r}: ...}}",
                operator=self.uid,
            )
        if not isinstance(frame, DataFrame) or frame.isStreaming:
            raise ConfigError(
                f"operator {self.uid!r}: its history is {'a stream' if isinstance(frame, DataFrame) else repr(frame)}, and has to be a "
                "DataFrame of a batch: spark.read",
                operator=self.uid,
            )
        grouped = self.operator.grouped_history(self._needed(frame))
        return self._placed(
            {name: self._prepared(name, rows) for name, rows in self.operator.history_tables(grouped).items()}
        )

    def _prepared(self, name: str, rows: DataFrame) -> DataFrame:
        table = OperatorTable.of(self.uid, self.layout, name)
        fields = table.layout.visible if name == VALUES else table.fields
        return self.rows.prepared(rows, table, {field.name: field.name for field in fields})

    def _needed(self, frame: DataFrame) -> DataFrame:
        """The columns of the past rows that the aggregates use, with the types of the stream.

        A missing name must not be left to Spark, which may take it for a function, such as `user`.
        """
        empty = frame.sparkSession.createDataFrame(
            frame.sparkSession.sparkContext.emptyRDD(), self.operator.columns
        )
        needed = referenced_columns(self.operator.grouped_history(empty))
        names = [name for name in self.operator.columns.names if name in needed]
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise ConfigError(
                f"operator {self.uid!r}: its history has no column {missing[0]!r}, which it aggregates; it has "
                f"{', '.join(frame.columns)}",
                operator=self.uid,
                column=missing[0],
            )
        return frame.select(
            *(
                safely_cast(frame, name, self.operator.columns[name].dataType, self.uid).alias(name)
                for name in names
            )
        )

    def _placed(self, tables: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return {
            name: self.rows.placed(rows, OperatorTable.of(self.uid, self.layout, name))
            for name, rows in tables.items()
        }

    def saved(self, tables: Mapping[str, DataFrame], to: Target, now_us: int) -> SavedOperator:
        """Write the tables of the operator."""
        written = {
            name: checked_answers(
                store_rows(rows, to, OperatorTable.of(self.uid, self.layout, name)), self.uid, name
            )
            for name, rows in tables.items()
        }
        files = {name: tuple(one.file for one in found if one.file) for name, found in written.items()}
        return SavedOperator(
            columns_of(self.layout, _switched_on(self.layout, now_us)),
            {name: found for name, found in files.items() if found},
            generation=1,
            due=first_timers(written, self.layout),
        )


def first_timers(written: Mapping[str, Sequence[WrittenPart]], layout: StateLayout) -> Due:
    """The earliest moments of the timers that were written."""
    moments = {
        name: min((one.first for one in answers if one.first is not None), default=None)
        for name, answers in written.items()
    }
    return Due(*(moments.get(timer_table(by, layout.key).name) for by in KINDS))


def checked_answers(answers: Sequence[WrittenPart], uid: str, table: str) -> Sequence[WrittenPart]:
    """The answers, unless a task reported a problem: then raise it."""
    problem = next((answer.problem for answer in answers if answer.problem), "")
    if problem:
        what = "its values" if table == VALUES else f"the state {table!r}"
        raise ConfigError(
            f"operator {uid!r}, {what}: {problem}. Nothing was written", operator=uid, state=table
        )
    return answers


def _switched_on(layout: StateLayout, now_us: int) -> dict[str, int]:
    """State that expires counts from now; in event time it stays until it is accessed."""
    return {
        one.stamp: now_us if one.measure is Measure.CLOCK else LONG_AGO_US
        for table in layout.by_name.values()
        for one in table.lifetimes
    }


# ── positions ──────────────────────────────────────────────────────────────────────────────────


def barrier_at(job: Job, positions: Mapping[str, Any]) -> Barrier:
    """Where every source of the job continues, as an entry of Spark's progress log."""
    sources = job.graph.sources
    unknown = sorted(set(positions) - {source.uid for source in sources})
    if unknown:
        uids = [source.uid for source in sources]
        close = did_you_mean(unknown[0], uids)
        raise ConfigError(
            f"positions names {unknown[0]!r}, and the job has the {named(uids, 'source')}{f'; {close}' if close else ''}",
            source=unknown[0],
        )
    lines: list[str] = []
    shown: dict[str, Any] = {}
    for source in sources:
        kinds = [leaf.kind for leaf in leaves(source.frame)]
        own = _lines(source.uid, kinds, positions.get(source.uid))
        lines += own
        values = [None if line == NO_POSITION else json.loads(line) for line in own]
        shown[source.uid] = values[0] if len(values) == 1 else values
        check_position(source, shown[source.uid])
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    return Barrier(shown, "\n".join(["v1", metadata, *lines]))


def _lines(uid: str, kinds: Sequence[str], position: Any) -> list[str]:
    """The lines of one source: one for each of its streams."""
    if position is None:
        return [NO_POSITION] * len(kinds)
    if any(kind.startswith(_NOTES) for kind in kinds):
        raise ConfigError(
            f"source {uid!r} reads files, of which a position says nothing without the list of those that were read; leave it out, and "
            "keep the files of the past elsewhere",
            source=uid,
        )
    several = position if len(kinds) > 1 else [position]
    if not isinstance(several, Sequence) or isinstance(several, str) or len(several) != len(kinds):
        raise ConfigError(
            f"source {uid!r} is made of {len(kinds)} streams ({', '.join(kinds)}): give a list with a position for each",
            source=uid,
        )
    return [NO_POSITION if one is None else position_line(uid, one) for one in several]


def position_line(uid: str, position: Any) -> str:
    """A position as Spark writes it: JSON in one line, from text or from a value."""
    try:
        value = json.loads(position) if isinstance(position, str) else position
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"source {uid!r}: {position!r} is no position: give what Spark writes into its log, as JSON or as a dictionary ({error})",
            source=uid,
        ) from error
