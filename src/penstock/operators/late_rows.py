"""Rows that came too late for an operator, or have no event time that can be believed: counted, and kept where asked. Executors."""

from __future__ import annotations

import pyarrow as pa

from penstock.operators.wide_columns import as_batch
from penstock.state.sizes import PART_BYTES, in_batches


class LateRows:
    """The late rows of one task. An operator gives it every row that it leaves out for its time: none goes without being counted."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self.count = 0
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Take rows as they came to the operator; columns that its input does not have are taken away."""
        self.count += rows.num_rows
        if self._schema is None or not rows.num_rows:
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        for part in in_batches(table.select(self._schema.names), PART_BYTES):
            self._batches.append(as_batch(part, self._schema))

    @property
    def kept(self) -> bool:
        """Whether somebody reads them."""
        return self._schema is not None

    def add_number(self, rows: int) -> None:
        """Take so many rows of which nothing but the number is known, or that go to `late()` in another way."""
        self.count += rows

    def batches(self) -> list[pa.RecordBatch]:
        """Those that somebody reads."""
        return self._batches
