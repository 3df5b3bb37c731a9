"""`rewrite_savepoint`: makes a savepoint from another one, corrected, renamed or with other key groups. Driver and executors.

Unchanged tables are copied file by file. A changed table is read, joined with the corrections, and written anew. Another `max_parallelism`
changes every table of keys, because the sort key contains the key group. The hash of each key is compared with the stored one: if the job
would look for a key elsewhere, nothing is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructField, StructType

from penstock.checkpoint.model import Barrier, SourceFile
from penstock.checkpoint.state_columns import stored_layout
from penstock.clock import SYSTEM_CLOCK
from penstock.config import whole_number
from penstock.errors import ConfigError, PenstockError, shown_alone
from penstock.ids import SYSTEM_RANDOMNESS, checked_name
from penstock.long_work import each
from penstock.recovery.restore_options import LATEST, START, checked_positions, choose_position
from penstock.recovery.source_match import for_sources, lines_by_source, numbers_of
from penstock.savepoint.create import new_mark
from penstock.savepoint.manifest import Manifest, SavedFile, SavedOperator, read_manifest
from penstock.savepoint.table_files import (
    checked_bytes,
    fetched,
    note_file,
    read_table,
    table_file,
    write_table,
)
from penstock.spark.savepoint_files import OperatorTable, Target, WrittenPart, store_rows, stored_rows
from penstock.spark.savepoint_rows import Given, OperatorRows, has_values, is_list, spark_type
from penstock.spark.savepoint_writing import (
    Counts,
    being_made,
    checked_answers,
    counts_of,
    first_timers,
)
from penstock.spark.tasks import readable_errors
from penstock.state.backends.base import VALUES, OnRescale
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.handle import Due
from penstock.state.keys import MAX_KEY_GROUPS, order_numbers
from penstock.state.lifetimes import LONG_AGO_US, Measure
from penstock.state.subtask_rows import share_of, subtask_sort_key
from penstock.storage import Storage, open_storage
from penstock.version import __version__
from penstock.wording import did_you_mean, named, start_option

_GIVEN, _NEW = "given", "new_"
"""Temporary columns: whether a row is corrected, and its corrected values."""

Keys = DataFrame | Sequence[Any]
"""Keys of an operator: a DataFrame with its key columns, or a list of tuples, dictionaries or, for a key of one column, values."""


def rewrite_savepoint(
    spark: SparkSession,
    source: str | Path,
    target: str | Path,
    *,
    delete: Mapping[str, Keys] | None = None,
    state: Mapping[str, Given] | None = None,
    rename: Mapping[str, str] | None = None,
    max_parallelism: int | None = None,
    positions: Mapping[str, Any] | None = None,
) -> Counts:
    """Write a changed copy of the savepoint `source` into the empty folder `target`. `source` stays as it is.

    `delete`: keys whose state is deleted, by the uid of their operator: `{"views": ["app1", "app2"]}`, or a DataFrame. `state`: corrected
    state by the uid of an operator, in the form of `write_savepoint`: given values and map entries are set, given lists are replaced, new
    keys are added. `rename`: new uids of operators. `max_parallelism`: another number of key groups. `positions`: where sources continue
    instead, by uid, in the form of their stored position, with every partition; with None or `"start"` a source begins where its own
    options say.

    The result has its own id. Like `source`, it can be started in the storage of the job that was saved, unless that job has continued
    since. Returns the number of rows in each table.
    """
    try:
        folder = open_storage(source)
        manifest = read_manifest(folder)
        changes = _Changes(spark, manifest, delete or {}, state or {}, dict(rename or {}))
        groups = manifest.max_parallelism if max_parallelism is None else max_parallelism
        whole_number("max_parallelism", groups, minimum=1, maximum=MAX_KEY_GROUPS)
        barrier = moved_to(manifest.barrier, positions or {})
        return _rewritten(folder, open_storage(target), changes, groups, barrier)
    except PenstockError as error:
        failure = shown_alone(error)
    raise failure


def _rewritten(folder: Storage, to: Storage, changes: _Changes, groups: int, barrier: Barrier) -> Counts:
    manifest, token = changes.manifest, SYSTEM_RANDOMNESS.token()
    rewriting = SavepointRewrite(changes.session, folder, manifest, to, groups, changes)
    plans = rewriting.plans()
    with being_made(to, token) as attempt:
        made = msgspec.structs.replace(
            renamed(rewriting.written(plans, attempt.mark), changes.rename),
            id=token,
            made_at=SYSTEM_CLOCK.wall(),
            made_by=__version__,
            barrier=msgspec.structs.replace(
                renamed_time(barrier, changes.rename),
                source_log=tuple(_noted(folder, to, barrier.source_log, attempt.mark)),
            ),
        )
        attempt.finish(made)
    return counts_of(made)


def rekeyed(
    session: SparkSession, folder: Storage, manifest: Manifest, to: Storage, max_parallelism: int
) -> Manifest:
    """Write the tables for another number of key groups into `to`. The savepoint stays the same; files of sources are not copied."""
    rewriting = SavepointRewrite(session, folder, manifest, to, max_parallelism, _Changes(session, manifest))
    return rewriting.written(rewriting.plans(), new_mark())


def _noted(folder: Storage, to: Storage, notes: Sequence[SourceFile], mark: str) -> Iterator[SourceFile]:
    for number, note in enumerate(notes):
        name = note_file(number, mark)
        to.put(name, checked_bytes(folder, SavedFile(note.name, note.size, note.checksum)))
        yield msgspec.structs.replace(note, name=name)


# ── what is asked for ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Changes:
    """The requested changes, checked against the operators of the savepoint."""

    session: SparkSession
    manifest: Manifest
    delete: Mapping[str, Keys] = field(default_factory=dict)
    state: Mapping[str, Given] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        there = self.manifest.operators
        for uid in (*self.delete, *self.state, *self.rename):
            if uid not in there:
                close = did_you_mean(str(uid), there)
                raise ConfigError(
                    f"the savepoint has no operator {uid!r}; it has the {named(list(there), 'operator')}{f'; {close}' if close else ''}",
                    operator=uid,
                )
        for uid, new in self.rename.items():
            checked_name("uid", new)
            taken = new in there and new not in self.rename
            if taken or list(self.rename.values()).count(new) > 1:
                raise ConfigError(
                    f"rename: two operators would be called {new!r}; choose another uid for {uid!r}",
                    operator=uid,
                )


@dataclass(frozen=True)
class SavepointRewrite:
    """The rewriting of one savepoint from one folder into another."""

    session: SparkSession
    folder: Storage
    manifest: Manifest
    to: Storage
    max_parallelism: int
    changes: _Changes

    @property
    def parallelism(self) -> int:
        """The number of parts: as before, unless there are fewer key groups now."""
        return min(self.manifest.parallelism, self.max_parallelism)

    def plans(self) -> dict[str, dict[str, DataFrame]]:
        """The tables to write anew, with their rows. Nothing runs yet; input that does not fit is refused here."""
        return {uid: dict(self._plans(uid, saved)) for uid, saved in self.manifest.operators.items()}

    def _plans(self, uid: str, saved: SavedOperator) -> Iterator[tuple[str, DataFrame]]:
        layout = stored_layout(saved.columns)
        operator = OperatorRows(uid, layout, self.max_parallelism)
        given = operator.tables(self.changes.state[uid]) if uid in self.changes.state else {}
        gone = self._gone(operator) if uid in self.changes.delete else None
        other_groups = self.max_parallelism != self.manifest.max_parallelism
        for name, kind in layout.by_name.items():
            there = bool(saved.files.get(name))
            changed = other_groups or gone is not None
            if kind.on_rescale is not OnRescale.BY_KEY or not (name in given or (there and changed)):
                continue
            table = OperatorTable.of(uid, layout, name)
            rows = stored_rows(self.session, self.folder, saved.files.get(name, ()), table)
            if gone is not None:
                rows = rows.join(gone, on=table.names[: table.keys], how="left_anti")
            for part in given.get(name, ()):
                rows = self._corrected(rows, part, table)
            yield name, operator.placed(rows, table)

    def _gone(self, operator: OperatorRows) -> DataFrame:
        """The keys to delete, under the internal names of key columns."""
        given, table = (
            self.changes.delete[operator.uid],
            OperatorTable.of(operator.uid, operator.layout, VALUES),
        )
        key = operator.layout.key
        if not isinstance(given, DataFrame):
            schema = StructType([StructField(one.name, spark_type(one.type)) for one in key])
            given = self.session.createDataFrame(
                [_as_key(one, key.names, operator.uid) for one in given], schema
            )
        operator.check_keys(given, "")
        return operator.prepared(given, table, {}).distinct()

    def _corrected(self, rows: DataFrame, given: DataFrame, table: OperatorTable) -> DataFrame:
        """The rows with corrections applied. Lists of the given keys are replaced as a whole."""
        stamps = self._stamps(table)
        if is_list(table.layout):
            keys = table.names[: table.keys]
            kept = rows.join(given.select(*keys).distinct(), on=keys, how="left_anti")
            new = given.withColumns({name: F.lit(moment).cast("long") for name, moment in stamps.items()})
            return kept.unionByName(new, allowMissingColumns=True)
        values = {name: F.col(name) for name in given.columns if name not in table.identity}
        values |= {
            name: F.lit(moment).cast("long")
            for name, moment in stamps.items()
            if name not in values and self._concerns(table, name, values)
        }
        new = given.select(
            *table.identity,
            *(value.alias(_NEW + name) for name, value in values.items()),
            F.lit(True).alias(_GIVEN),  # noqa: FBT003
        )
        both = rows.join(new, on=table.identity, how="outer")
        is_given = F.coalesce(F.col(_GIVEN), F.lit(False))  # noqa: FBT003
        corrected = [
            F.when(F.col(_GIVEN), F.col(_NEW + name)).otherwise(F.col(name)).alias(name)
            if name in values
            else F.col(name)
            for name in table.names[len(table.identity) :]
        ]
        rows = both.select(is_given.alias(_GIVEN), *table.numbers, *table.identity, *corrected)
        if (
            table.layout.name == VALUES
        ):  # a key whose values were all set to null is removed; rows without corrections stay
            rows = rows.where(~F.col(_GIVEN) | has_values(rows, table))
        return rows.drop(_GIVEN)

    def _stamps(self, table: OperatorTable) -> dict[str, int | None]:
        """The access times of corrected state: the moment of the savepoint."""
        watermark = self.manifest.barrier.time.counted_from_us.get(table.uid, LONG_AGO_US)
        by_event = None if watermark <= LONG_AGO_US else watermark
        plain = dict(zip((one.name for one in table.fields), table.names, strict=True))
        return {
            plain[one.stamp]: self.manifest.now_us if one.measure is Measure.CLOCK else by_event
            for one in table.layout.lifetimes
        }

    @staticmethod
    def _concerns(table: OperatorTable, stamp: str, values: Mapping[str, object]) -> bool:
        names = dict(zip(table.names, (one.name for one in table.fields), strict=True))
        corrected = {names[value] for value in values}
        return any(
            one.stamp == names[stamp] and corrected & set(one.columns) for one in table.layout.lifetimes
        )

    # ── writing ────────────────────────────────────────────────────────────────────────────────

    def written(self, plans: Mapping[str, Mapping[str, DataFrame]], mark: str) -> Manifest:
        """Write all files, with this mark in their names. Returns their manifest, with the id of the original savepoint."""
        target = Target(self.to, self.parallelism, mark)
        operators = {
            uid: self._operator(uid, saved, plans[uid], target)
            for uid, saved in each(self.manifest.operators.items(), "writing the savepoint", "operator")
        }
        return msgspec.structs.replace(
            self.manifest,
            operators=operators,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
        )

    def _operator(
        self, uid: str, saved: SavedOperator, plans: Mapping[str, DataFrame], target: Target
    ) -> SavedOperator:
        layout, new_uid = stored_layout(saved.columns), self.changes.rename.get(uid, uid)
        files: dict[str, tuple[SavedFile, ...]] = {}
        written: dict[str, Sequence[WrittenPart]] = {}
        for name, kind in layout.by_name.items():
            if name in plans:
                table = OperatorTable.of(new_uid, layout, name)
                written[name] = checked_answers(store_rows(plans[name], target, table), uid, name)
                files[name] = tuple(one.file for one in written[name] if one.file is not None)
            elif kind.on_rescale is OnRescale.BY_KEY or self.parallelism == self.manifest.parallelism:
                files[name] = self._copied(new_uid, name, saved.files.get(name, ()), target.mark)
            else:
                table = OperatorTable.of(new_uid, layout, name)
                files[name] = tuple(self._dealt_out(table, saved.files.get(name, ()), target.mark))
        due = Due.first([saved.due, first_timers(written, layout)])
        kept = {name: found for name, found in files.items() if found}
        return msgspec.structs.replace(saved, files=kept, due=due, generation=max(saved.generation, 1))

    def _copied(self, uid: str, name: str, files: Sequence[SavedFile], mark: str) -> tuple[SavedFile, ...]:
        """Copies of the files, made by one task each."""
        if not files:
            return ()
        copies = [
            msgspec.structs.replace(file, path=table_file(uid, name, file.part, mark, number))
            for number, file in enumerate(files)
        ]
        pairs = [(msgspec.json.encode(one), two.path) for one, two in zip(files, copies, strict=True)]
        spread = self.session.sparkContext.parallelize(pairs, len(pairs))
        spread.map(_Copying(self.folder, self.to)).collect()
        return tuple(copies)

    def _dealt_out(self, table: OperatorTable, files: Sequence[SavedFile], mark: str) -> Iterator[SavedFile]:
        """Redistribute rows of subtasks when there are fewer subtasks now. They are small."""
        kind = table.layout
        schema = pa.schema([*kind.identity, *kind.value])
        with tempfile.TemporaryDirectory(prefix="penstock-savepoint-") as scratch:
            former = [
                pa.Table.from_batches(
                    [
                        batch.select(schema.names)
                        for file in files
                        if file.part == part
                        for batch in read_table(self.folder, file, kind, Path(scratch))
                    ],
                    schema,
                )
                for part in range(self.manifest.parallelism)
            ]
            for part in range(self.parallelism):
                share = share_of(kind, former, part, self.parallelism).combine_chunks()
                columns = [column.chunk(0) for column in share.columns] if share.num_rows else []
                if not columns:
                    continue
                numbers = [np.full(share.num_rows, subtask_sort_key(part)), order_numbers(columns[1])]
                batch = pa.RecordBatch.from_arrays(
                    [*map(pa.array, numbers), *columns], schema=numbered_schema(kind)
                )
                path = table_file(table.uid, kind.name, part, mark)
                file = write_table(self.to, path, [batch], kind, part=part, scratch=Path(scratch))
                if file is not None:
                    yield file


_FILES = msgspec.json.Decoder(SavedFile)


@dataclass(frozen=True)
class _Copying:
    """Copies a file of a savepoint after checking its checksum. In a task."""

    folder: Storage
    to: Storage

    def __call__(self, pair: tuple[bytes, str]) -> None:
        encoded, path = pair
        with readable_errors(), tempfile.TemporaryDirectory(prefix="penstock-savepoint-") as scratch:
            self.to.upload(fetched(self.folder, _FILES.decode(encoded), Path(scratch)), path)


def _as_key(given: Any, names: Sequence[str], uid: str) -> tuple[Any, ...]:
    if isinstance(given, Mapping) and set(given) == set(names):
        return tuple(given[name] for name in names)
    if isinstance(given, tuple | list) and len(given) == len(names):
        return tuple(given)
    if len(names) == 1 and not isinstance(given, Mapping | tuple | list):
        return (given,)
    raise ConfigError(
        f"operator {uid!r}: {given!r} is no key of it; its key is ({', '.join(names)})", operator=uid
    )


# ── names and positions ────────────────────────────────────────────────────────────────────────


def renamed(manifest: Manifest, rename: Mapping[str, str]) -> Manifest:
    """The manifest with operators under their new uids."""
    return msgspec.structs.replace(
        manifest,
        operators=_under(manifest.operators, rename),
        bad_records=_under(manifest.bad_records, rename),
        late_rows=_under(manifest.late_rows, rename),
    )


def renamed_time(barrier: Barrier, rename: Mapping[str, str]) -> Barrier:
    """The barrier with event times under new uids; sources keep theirs."""
    time = barrier.time
    kept = msgspec.structs.replace(time.renamed(rename), sources=time.sources)
    return msgspec.structs.replace(barrier, time=kept)


def _under(by_uid: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    return {rename.get(uid, uid): one for uid, one in by_uid.items()}


def moved_to(barrier: Barrier, positions: Mapping[str, Any]) -> Barrier:
    """The barrier with other positions of some sources, checked like those of a start.

    Further facts about such a source are dropped: its event time, and its files if it begins anew.
    """
    if not positions:
        return barrier
    unknown = sorted(set(positions) - set(barrier.positions))
    if unknown:
        raise ConfigError(
            f"positions names {unknown[0]!r}, and the savepoint has the {named(list(barrier.positions), 'source')}",
            source=unknown[0],
        )
    asked = {uid: START if one is None else one for uid, one in positions.items()}
    sources, stored = numbers_of(barrier), lines_by_source(barrier)
    choices = {
        uid: choose_position(uid, one, stored[uid], len(sources[uid]), _no_latest)
        for uid, one in checked_positions(asked).items()
    }
    return for_sources(barrier, sources, set_to={uid: choice.lines for uid, choice in choices.items()})


def _no_latest(uid: str) -> Sequence[str]:
    raise ConfigError(
        f"{start_option(positions={uid: LATEST})}: only a job can ask a source where it ends; say it when the job is started with the "
        "savepoint, or give the position itself",
        source=uid,
    )
