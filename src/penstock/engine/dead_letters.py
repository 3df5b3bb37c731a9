"""Which failures of user code are about a row. Executors."""

from __future__ import annotations

from penstock.operators.bad_records import is_of_the_row
from penstock.recovery.restart import may_pass


def tolerates(error: Exception) -> bool:
    """Whether an exception of user code is about the row."""
    return is_of_the_row(error, may_pass)
