"""Rows that user code gives, results and side outputs, as they were when it gave them. Executors.

They are encoded later, many together. What can be changed in place is copied before user code goes on: a dictionary that it fills anew
for every result, a list that it appends to.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.operators.cells import UNCHANGING, kept


def may_change(schema: pa.Schema) -> bool:
    """Whether a tuple for these columns may hold what can be changed in place."""
    return any(pa.types.is_nested(field.type) or pa.types.is_binary(field.type) for field in schema)


def as_given(row: Any) -> Any:
    """The row, with a copy of whatever in it can be changed in place."""
    if type(row) is tuple:
        return row if all(type(value) in UNCHANGING for value in row) else tuple(map(kept, row))
    return kept(row) if isinstance(row, dict | list) else row
