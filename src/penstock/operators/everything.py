"""Operators that aggregate all rows together: rows have a key that is the same for all, and that nobody sees. Driver and executors.

Spark reduces the rows of a batch in all its tasks before that key brings them together. So what reaches the one subtask are a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

EVERYTHING = "__penstock_everything"
"""The key column."""


def shown_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The key columns that a user knows."""
    return tuple(key for key in keys if key != EVERYTHING)


def shown_key(key: pa.Schema) -> pa.Schema:
    """The same as a schema."""
    return pa.schema([field for field in key if field.name != EVERYTHING])
