"""Rows that user code gives, results and side outputs, as they were when it gave them. Executors.

They are encoded later, many together. What can be changed in place is copied before user code goes on: a dictionary that it fills anew
for every result, a list that it appends to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.operators.cells import UNCHANGING, may_be_changed, safe_copy


def may_change(schema: pa.Schema) -> bool:
    """Whether a tuple for these columns may hold what can be changed in place."""
    return any(may_be_changed(field.type) for field in schema)


def copy_emitted(row: Any) -> Any:
    """The row, with a copy of whatever in it can be changed in place."""
    if isinstance(row, tuple):
        return row if all(type(value) in UNCHANGING for value in row) else _copied(row)
    if isinstance(row, Mapping):
        return {name: safe_copy(value) for name, value in row.items()}
    return safe_copy(row) if isinstance(row, list) else row


def _copied(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """With the names that a named tuple has in its class, and a row of PySpark's in itself."""
    made = tuple.__new__(type(row), map(safe_copy, row))
    if hasattr(row, "__dict__"):
        made.__dict__.update(row.__dict__)
    return made


def as_given_flat(row: Any) -> Any:
    """The same where the columns are such that a tuple holds nothing that can be changed."""
    return row if type(row) is tuple else copy_emitted(row)
