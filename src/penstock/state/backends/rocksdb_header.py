"""What a database of state says about itself: who wrote it, and which columns its rows have. Runs in tasks on executors.

It is one record under a key that no row can have, written when the database is made. Another such record is the cursor of
`rocksdb_expiry`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.state.backends.base import StateLayout, TableLayout, Workplace
from penstock.state.backends.sorted_file import other_columns

HEADER_KEY = b"\xffpenstock"
"""Behind all rows: they begin with the number of their table, which is at most `MOST_TABLES`."""

CURSOR_KEY = b"\xffcursor"
"""Where the search for expired rows goes on; before the header, behind all rows."""

MOST_TABLES = 127
FORMAT_VERSION = 2


class StoredTable(msgspec.Struct, frozen=True):
    """A table, with its columns as Arrow's own schema messages."""

    name: str
    identity: bytes
    value: bytes
    ordered: bool
    by_time: bool
    stamps: tuple[str, ...] = ()
    """The last columns of the values, which are stamps of values with a time to live."""


class DatabaseHeader(msgspec.Struct, frozen=True):
    """The writer, and the tables in the order of their numbers."""

    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    tables: tuple[StoredTable, ...] = ()
    format: int = FORMAT_VERSION


_HEADERS = msgspec.msgpack.Decoder(DatabaseHeader)


def new_header(workplace: Workplace, layout: StateLayout) -> bytes:
    """The record of a database that this attempt makes."""
    return msgspec.msgpack.encode(
        DatabaseHeader(
            uid=workplace.subtask.uid,
            subtask=workplace.subtask.index,
            parallelism=workplace.parallelism,
            max_parallelism=workplace.max_parallelism,
            tables=tuple(_stored(table) for table in layout.by_name.values()),
        )
    )


def _stored(table: TableLayout) -> StoredTable:
    identity, value = (
        schema.remove_metadata().serialize().to_pybytes() for schema in (table.identity, table.value)
    )
    return StoredTable(table.name, identity, value, table.ordered, table.by_time, _stamps(table))


def _stamps(table: TableLayout) -> tuple[str, ...]:
    return tuple(lifetime.stamp for lifetime in table.lifetimes)


def read_header(record: bytes | None, label: str, layout: StateLayout) -> DatabaseHeader:
    """The header, if this is state of these columns; `label` names the database in errors."""
    if record is None:
        raise CorruptStateError(
            f"the database of {label} has no header, so it is no state of Penstock; restore an older checkpoint",
            file=label,
        )
    try:
        header = _HEADERS.decode(record)
        stored = {table.name: _layout(table) for table in header.tables}
    except (msgspec.MsgspecError, pa.ArrowException, OSError) as cause:
        raise CorruptStateError(
            f"the header of the database of {label} cannot be read: {cause!r}; restore an older checkpoint",
            file=label,
        ) from cause
    if header.format != FORMAT_VERSION:
        raise IncompatibleStateError(
            f"the database of {label} has format {header.format}, this version of Penstock reads format "
            f"{FORMAT_VERSION}; use the version that wrote it, or start from another checkpoint",
            file=label,
            expected=FORMAT_VERSION,
            found=header.format,
        )
    wanted = layout.by_name
    for name, table in stored.items():
        if not _same(table, wanted.get(name)):
            columns = [*table.identity, *table.visible]
            raise other_columns(label, columns, len(table.identity), wanted.get(name), name)
    if list(stored) != list(wanted):
        raise IncompatibleStateError(
            f"the database of {label} has the tables {', '.join(stored)}, the job has {', '.join(wanted)}; "
            "change the job back, or start from another checkpoint",
            file=label,
        )
    return header


def same_stamps(header: DatabaseHeader, layout: StateLayout) -> bool:
    """Whether rows are written as they are stored. Otherwise a time to live was switched on or off."""
    return all(table.stamps == _stamps(layout.by_name[table.name]) for table in header.tables)


def _layout(table: StoredTable) -> StoredColumns:
    identity, value = (pa.ipc.read_schema(pa.py_buffer(schema)) for schema in (table.identity, table.value))
    visible = pa.schema(list(value)[: len(value) - len(table.stamps)])
    return StoredColumns(identity, visible, (table.ordered, table.by_time))


@dataclass(frozen=True)
class StoredColumns:
    """What tells the rows of a stored table apart, their values without stamps, and how they are ordered."""

    identity: pa.Schema
    visible: pa.Schema
    order: tuple[bool, bool]


def _same(stored: StoredColumns, wanted: TableLayout | None) -> bool:
    if wanted is None or stored.order != (wanted.ordered, wanted.by_time):
        return False
    pairs = ((stored.identity, wanted.identity), (stored.visible, wanted.visible))
    return all(one.names == other.names and one.types == other.types for one, other in pairs)
