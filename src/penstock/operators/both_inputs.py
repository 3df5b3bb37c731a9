"""The rows of two inputs grouped by their key together. Executors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.operators.grouping import Grouped, group_rows
from penstock.state.keys import SORT_KEY

ROW = "__penstock_row"
"""The number of a row: those of the left input first, then those of the right one."""

OneInput = tuple[pa.Table, tuple[str, ...]]
"""Rows with their sort keys, and their key columns."""


def grouped_inputs(key: pa.Schema, left: OneInput, right: OneInput) -> Grouped:
    """Keys, and for each the numbers of its rows, in the order in which they came. Only keys are put in order, not whole rows."""
    rows = pa.concat_tables(
        [
            table.select([SORT_KEY, *keys]).rename_columns([SORT_KEY, *key.names])
            for table, keys in (left, right)
        ]
    ).cast(pa.schema([(SORT_KEY, pa.int64()), *key]))
    numbers = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    return group_rows(rows.append_column(ROW, numbers), key.names)
