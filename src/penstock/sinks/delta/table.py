"""The table that a `DeltaLake` sink writes to: made when missing, compared when there. Driver only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from penstock.errors import ConfigError
from penstock.state.ddl import spark_type

_KNOWN_FEATURES = {"appendOnly", "checkConstraints", "invariants", "timestampNtz", "v2Checkpoint"}
"""What a table may ask of its writers without asking anything of an append of plain Parquet files."""
_PLAIN_WRITER_VERSION = 3
"""From 3 on a table may have constraints. They are looked for by themselves: one that was dropped leaves the version behind."""
_FEATURES_WRITER_VERSION = 7


def create_table(deltalake: Any, path: Path, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Create the table if there is none."""
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
            f"the Delta table {table.table_uri} is partitioned by {found}, the sink by {list(partition_by)}; say partition_by={found}",
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
            f"the Delta table {table.table_uri} allows no null in {forbidden}, and here are some",
            columns=forbidden,
        )


def never_null(table: Any, columns: Sequence[str]) -> tuple[str, ...]:
    """The written columns in which the table allows no null."""
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
            f"the Delta table {table.table_uri} asks more of its writers than appending files: writer version "
            f"{protocol.min_writer_version}, features {sorted(features)}, constraints {rules}; write to a plain table",
            features=sorted(features),
        )


def _in_words(kind: Any) -> str:
    """What Delta calls a type: 'long' for a primitive one."""
    name = getattr(kind, "type", kind)
    return name if isinstance(name, str) else str(kind)


def _check_columns(deltalake: Any, table: Any, schema: pa.Schema, in_folders: set[str]) -> None:
    try:
        written = {field.name: field for field in deltalake.Schema.from_arrow(schema).fields}
    except Exception as error:
        raise ConfigError(f"these columns have no form in Delta: {error}", schema=str(schema)) from error
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
