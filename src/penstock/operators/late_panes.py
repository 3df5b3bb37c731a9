"""Rows that come too late among those that Spark has aggregated: how they are marked, counted and refused. Driver and executors.

In place of the stretch of time in which their windows lie they have a number that is no time. So they are groups of their own, of which
nothing is computed but how many rows they are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.clock import OperatorClock
from penstock.state.lifetimes import LONG_AGO_US
from penstock.wording import counted

LATE = LONG_AGO_US - 1
"""All windows of the row are over."""
ABSURD = LONG_AGO_US - 2
"""The row has no event time, or none that can be believed."""


def without_late_rows(
    rows: pa.Table, pane: str, number: str, clock: OperatorClock, operator: str
) -> tuple[pa.Table, int]:
    """The rows that count, and how many came too late; `number` says of each row for how many it stands."""
    panes = rows.column(pane).to_numpy()
    late = panes < LONG_AGO_US
    if not late.any():
        return rows, 0
    numbers = rows.column(number).to_numpy()
    absurd = int(numbers[panes == ABSURD].sum())
    if absurd and clock.refuses_absurd:
        raise refused(absurd, operator)
    return rows.filter(pa.array(~late)), int(np.sum(numbers[late]))


def refused(rows: int, operator: str) -> BadRecordError:
    """Rows whose event time is missing or absurd, where that ends the run."""
    return BadRecordError(
        f"operator {operator}: {counted(rows, 'row has', 'rows have')} no event time, or one too far ahead of the clock; nothing of this "
        "batch is kept; filter such rows out before, or read them with late()",
        operator=operator,
        rows=rows,
    )
