"""The sink `DeltaLake`: rows in a Delta table. Parquet files are staged in tasks; the driver makes one Delta commit per checkpoint.

The files are handled as in `files`: staged below `_penstock`, then moved to their places in the table's folder, where readers of
Delta do not look for them. The Delta commit that names them all comes between the move and the commit log:

    found                                   meaning                       commit             abort
    moved, not in the table                 not committed                 commit to Delta    take the files back
    moved, in the table, no log entry       committed, not recorded       record it          record it, touch no file

Each Delta commit carries an application transaction (the job and sink, and the number of the checkpoint) and the names of Penstock's
transactions. Delta accepts the same application version twice and would duplicate the rows, so the version is read first. A version
that is not older proves nothing: numbers start again when a job's storage is deleted or an older checkpoint is restored. In that
case the table's files and history are searched for the transaction itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import BadRecordError, ConfigError, PenstockError, UnavailableError
from penstock.lazy_imports import optional_package
from penstock.sinks.files import MOVING, Files
from penstock.sinks.staged_files import NULL_VALUE, StagedFile, StagedManifest, name_prefix
from penstock.sinks.staging import StagedTransaction, storage_errors
from penstock.sinks.transaction import refused
from penstock.sinks.two_phase_commit import Transaction
from penstock.state.ddl import spark_type
from penstock.storage.file_system import sync_file, sync_folder
from penstock.wording import counted

_KNOWN_FEATURES = {"appendOnly", "checkConstraints", "invariants", "timestampNtz", "v2Checkpoint"}
"""Writer features that require nothing special of an append of plain Parquet files."""
_PLAIN_WRITER_VERSION = 3
"""From version 3 on a table may have constraints. They are checked separately, because dropping one does not lower the version."""
_FEATURES_WRITER_VERSION = 7


def create_table(deltalake: Any, path: Path, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Create the table if it does not exist."""
    try:
        if not deltalake.DeltaTable.is_deltatable(str(path)):
            deltalake.DeltaTable.create(
                str(path), deltalake.Schema.from_arrow(schema), mode="ignore", partition_by=list(partition_by)
            )
    except Exception as error:
        raise ConfigError(
            f"a Delta table with these columns cannot be created in {path}: {type(error).__name__}: {error}",
            path=str(path),
            schema=str(schema),
        ) from error


def check_table(deltalake: Any, table: Any, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Refuse a table that these columns do not fit, or that asks for more than appending files.

    The columns of `partition_by` may be missing in `schema`: they are in the names of folders.
    """
    found = list(table.metadata().partition_columns)
    if found != list(partition_by):
        raise ConfigError(
            f"the Delta table {table.table_uri} is partitioned by {found}, the sink by {list(partition_by)}; set partition_by={found}",
            partition_by=found,
        )
    _check_features(table)
    _check_columns(deltalake, table, schema, set(partition_by))


def refuse_nulls(
    table: Any, content: pyarrow.parquet.FileMetaData, partition: Mapping[str, str | None]
) -> None:
    """Refuse a file that has nulls where the table allows none."""
    groups = [content.row_group(number) for number in range(content.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    nulls = {
        column.path_in_schema for column in columns if column.statistics and column.statistics.null_count
    }
    nulls |= {name for name, value in partition.items() if value is None}
    forbidden = sorted(nulls & set(never_null(table, list(nulls))))
    if forbidden:
        raise ConfigError(
            f"the Delta table {table.table_uri} allows no null in {forbidden}, but the file has nulls there",
            columns=forbidden,
        )


def never_null(table: Any, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the written columns in which the table allows no null."""
    return tuple(
        field.name for field in table.schema().fields if field.name in columns and not field.nullable
    )


def _check_features(table: Any) -> None:
    protocol, settings = table.protocol(), table.metadata().configuration
    features = set(protocol.writer_features or ())
    plain = protocol.min_writer_version <= _PLAIN_WRITER_VERSION
    listed = protocol.min_writer_version == _FEATURES_WRITER_VERSION and features <= _KNOWN_FEATURES
    rules = sorted(name for name in settings if name.startswith("delta.constraints."))
    if rules or not (plain or listed):
        raise ConfigError(
            f"the Delta table {table.table_uri} requires more of its writers than appending files: writer version "
            f"{protocol.min_writer_version}, features {sorted(features)}, constraints {rules}; write to a plain table",
            features=sorted(features),
        )


def _in_words(kind: Any) -> str:
    """Return the name of a type in Delta, such as 'long'."""
    name = getattr(kind, "type", kind)
    return name if isinstance(name, str) else str(kind)


def _check_columns(deltalake: Any, table: Any, schema: pa.Schema, in_folders: set[str]) -> None:
    try:
        written = {field.name: field for field in deltalake.Schema.from_arrow(schema).fields}
    except Exception as error:
        raise ConfigError(
            f"these columns cannot be stored in Delta: {error}; cast or drop them before write_to",
            schema=str(schema),
        ) from error
    declared = {field.name: field for field in table.schema().fields}
    for name, field in written.items():
        if name not in declared or declared[name].type != field.type:
            there = _in_words(declared[name].type) if name in declared else "missing"
            raise ConfigError(
                f"column {name!r} is {spark_type(schema.field(name).type)} in the stream and {there} in the Delta table "
                f"{table.table_uri}; cast or drop it "
                "before write_to, or change the table",
                column=name,
            )
    needed = sorted(
        name
        for name, field in declared.items()
        if name not in written and name not in in_folders and not field.nullable
    )
    if needed:
        raise ConfigError(
            f"the Delta table {table.table_uri} allows no null in {needed}, which the stream does not have",
            columns=needed,
        )


_NAMES = "penstock.transactions"


class DeltaLake(Files):
    """A Delta table on a file system that the driver and all executors share; a reader sees a commit whole or not at all.

    Rows are appended. A missing table is created before the query starts, with the columns of the stream, partitioned by
    `partition_by`; an existing one must have these columns. `compression` is that of the Parquet files.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, partition_by: Sequence[str] = (), compression: str = "zstd"
    ) -> None:
        _package()
        super().__init__(path, "parquet", partition_by=partition_by, compression=compression)
        self._never_null: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"DeltaLake({str(self.path)!r})"

    def validate(self, schema: pa.Schema) -> None:
        """Refuse columns that Delta cannot hold or the table does not have; create the table if it is missing."""
        super().validate(schema)
        deltalake = _package()
        create_table(deltalake, self.path, schema, self.partition_by)
        with self._table_errors(
            ConfigError, "nothing was started: repair the table, or write to another path"
        ):
            table = deltalake.DeltaTable(self.path)
        check_table(deltalake, table, schema, self.partition_by)
        self._never_null = never_null(table, schema.names)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Add rows; a null that the table does not allow is refused while the job can still go back."""
        for name in self._never_null:
            column = batch.column(name)
            nulls = column.null_count + (_empty_texts(column) if name in self.partition_by else 0)
            if nulls:
                raise BadRecordError(
                    f"column {name!r} of the Delta table {self.path} may not be null, but is in {counted(nulls, 'row')}; filter or fill "
                    "them before write_to (in a column of partition_by an empty string counts as null)",
                    column=name,
                )
        super().write(transaction, batch)

    def _publish(self, moved: Mapping[StagedTransaction, StagedManifest]) -> None:
        """Add all files in one Delta commit, except those of transactions that the table already has."""
        if not moved:
            return
        with self._table_errors():
            table = _package().DeltaTable(self.path)
            fresh = {one: files for one, files in moved.items() if not self._is_in(table, one)}
            adds = [self._add(table, one, file) for one, manifest in fresh.items() for file in manifest.files]
            if adds:
                self._commit_to_delta(table, list(fresh), adds)

    def _commit_to_delta(self, table: Any, fresh: Sequence[StagedTransaction], adds: Sequence[Any]) -> None:
        deltalake = _package()
        before = table.version()
        versions: dict[str, int] = {}
        for one in fresh:
            name = app_id(one.job, one.sink)
            versions[name] = max(one.checkpoint, versions.get(name, 0))
        properties = deltalake.CommitProperties(
            custom_metadata={_NAMES: json.dumps([one.name for one in fresh])},
            app_transactions=[deltalake.Transaction(name, version) for name, version in versions.items()],
        )
        table.create_write_transaction(
            adds,
            "append",
            table.schema(),
            partition_by=list(table.metadata().partition_columns),
            commit_properties=properties,
        )
        self._sync_log(before, deltalake.DeltaTable(self.path).version())

    def _sync_log(self, before: int, after: int) -> None:
        """Sync Delta's log, which its writer does not: the commit log must not be more durable than the commit."""
        log = self.path / "_delta_log"
        with storage_errors("make durable", log):
            for version in range(before + 1, after + 1):
                entry = log / f"{version:020d}.json"
                if entry.exists():
                    sync_file(entry)
            sync_folder(log)

    def _add(self, table: Any, transaction: StagedTransaction, file: StagedFile) -> Any:
        path = self.path / file.final
        with storage_errors("read", path):
            if not path.exists() or path.stat().st_size != file.size_bytes:
                raise self._lost(transaction, f"its file {path} is missing or was changed")
            content = pyarrow.parquet.ParquetFile(path)
        self._refuse_misfit(table, transaction, content, partition_values(file.final))
        return _package().transaction.AddAction(
            path=file.final,
            size=file.size_bytes,
            partition_values=partition_values(file.final),
            modification_time=int(SYSTEM_CLOCK.wall() * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": content.metadata.num_rows}),
        )

    def _refuse_misfit(
        self,
        table: Any,
        transaction: StagedTransaction,
        content: pyarrow.parquet.ParquetFile,
        partition: Mapping[str, str | None],
    ) -> None:
        """Refuse a file that no longer fits the table. Delta does not check this, and would show the rows as nulls or not at all.

        A change of the table after this check makes the Delta commit fail. It is retried, with the check.
        """
        try:
            check_table(_package(), table, content.schema_arrow, tuple(partition))
            refuse_nulls(table, content.metadata, partition)
        except ConfigError as error:
            where = f"the Delta table {self.path}, which was changed since its rows were written"
            raise refused(
                transaction,
                where=where,
                cause=error,
                kept="Its files stay where they are",
                repair="Change the table back",
                path=str(self.path),
            ) from error

    def _is_recorded(self, transaction: StagedTransaction) -> bool:
        if super()._is_recorded(transaction):
            return True
        with self._table_errors():
            deltalake = _package()
            if not deltalake.DeltaTable.is_deltatable(str(self.path)):
                return False
            return self._is_in(deltalake.DeltaTable(self.path), transaction)

    def _take_back(self, transaction: StagedTransaction) -> None:
        """Record a commit that the table has; otherwise delete its files.

        Before files are deleted, the application version is not proof enough: it starts again when the job's storage is deleted.
        """
        with self._table_errors():
            named = (self._staging(transaction) / MOVING).exists() and self._names(
                _package().DeltaTable(self.path), transaction
            )
        if named:
            self._log(transaction.job, transaction.sink).append([transaction])
        else:
            super()._take_back(transaction)

    def _is_in(self, table: Any, transaction: StagedTransaction) -> bool:
        """Return whether a Delta commit has this transaction. Usually the application version answers it."""
        version = table.transaction_version(app_id(transaction.job, transaction.sink))
        return version is not None and version >= transaction.checkpoint and self._names(table, transaction)

    def _names(self, table: Any, transaction: StagedTransaction) -> bool:
        """Return whether the table has the files of a transaction, or had them before they were rewritten."""
        prefix = name_prefix(transaction)
        if any(Path(uri).name.startswith(prefix) for uri in table.file_uris()):
            return True
        return any(transaction.name in _names(entry) for entry in table.history())

    @contextmanager
    def _table_errors(
        self, kind: type[PenstockError] = UnavailableError, follows: str = "check the table and its folder"
    ) -> Iterator[None]:
        """Translate errors of Delta: by default, while the job runs, into `UnavailableError`, which is retried."""
        try:
            yield
        except _package().exceptions.DeltaError as error:
            text = str(error).partition("\n")[0]  # a stack trace of the library follows
            raise kind(
                f"the Delta table {self.path} cannot be used: {type(error).__name__}: {text}; {follows}",
                path=str(self.path),
                cause=text,
            ) from error


def app_id(job: str, sink: str) -> str:
    """Return the id of a sink's application transactions in the table."""
    return f"penstock.{job}.{sink}"


def _empty_texts(column: pa.Array) -> int:
    """Count the empty strings, which become null as the name of a folder."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return 0
    return pc.sum(pc.equal(pc.binary_length(column), 0)).as_py() or 0


def partition_values(final: str) -> dict[str, str | None]:
    """Return the partition values in a path, as Delta writes them."""
    pairs = (folder.partition("=") for folder in PurePosixPath(final).parent.parts)
    return {unquote(name): None if value == NULL_VALUE else unquote(value) for name, _, value in pairs}


def _names(entry: Mapping[str, Any]) -> list[str]:
    try:
        names = json.loads(entry.get(_NAMES, "[]"))
    except (TypeError, ValueError):
        return []
    return names if isinstance(names, list) else []


def _package() -> Any:
    deltalake = optional_package("deltalake", needed_by="sinks.DeltaLake", extra="delta")
    optional_package("deltalake.transaction", needed_by="sinks.DeltaLake", extra="delta")
    optional_package("deltalake.exceptions", needed_by="sinks.DeltaLake", extra="delta")
    return deltalake
