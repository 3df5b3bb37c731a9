"""What a database of state says about itself: who wrote it, and which columns its rows have. Runs in tasks on executors.

It is one record under a key that no row can have, written when the database is made.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.state.backends.base import StateLayout, Workplace
from penstock.state.backends.sorted_file import other_columns

HEADER_KEY = b"\xffpenstock"
"""Behind all rows: a sort key is never negative, so no row begins with a byte above 0x7f."""

FORMAT_VERSION = 1


class DatabaseHeader(msgspec.Struct, frozen=True):
    """The writer, and the columns as Arrow's own schema messages."""

    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    key: bytes
    value: bytes
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
            key=layout.key.remove_metadata().serialize().to_pybytes(),
            value=layout.value.remove_metadata().serialize().to_pybytes(),
        )
    )


def read_header(record: bytes | None, label: str, layout: StateLayout) -> DatabaseHeader:
    """The header, if this is state of these columns; `label` names the database in errors."""
    if record is None:
        raise CorruptStateError(
            f"the database of {label} has no header, so it is no state of Penstock; restore an older checkpoint",
            file=label,
        )
    try:
        header = _HEADERS.decode(record)
        key, value = (pa.ipc.read_schema(pa.py_buffer(schema)) for schema in (header.key, header.value))
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
    if not (_same_columns(key, layout.key) and _same_columns(value, layout.value)):
        raise other_columns(label, [*key, *value], len(key), layout)
    return header


def _same_columns(stored: pa.Schema, wanted: pa.Schema) -> bool:
    return bool(stored.names == wanted.names and stored.types == wanted.types)
