"""What Spark counts and keeps of bad rows when it aggregates, and which failures are about a row. Executors."""

from __future__ import annotations

from penstock.operators.bad_records import is_of_the_row
from penstock.recovery.restart import may_pass

ROWS = "__penstock_rows"
"""Among what Spark has aggregated: how many rows it stands for."""
ROW = "__penstock_row"
"""The same, of rows without a key: the row itself."""


def tolerates(error: Exception) -> bool:
    """Whether an exception of user code is about the row."""
    return is_of_the_row(error, may_pass)
