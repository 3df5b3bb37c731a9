"""Columns of equal length, as user code is given them. Executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.lazy_imports import optional_package

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class BatchColumns:
    """Columns of equal length: `columns["app"]` is an Arrow array, `to_pandas()` and `to_polars()` are a DataFrame."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        rows: int = self._table.num_rows
        return rows

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self._table.column_names:
            raise BadRecordError(
                f"process_batch() asked for the column {name!r}; there are {', '.join(self._table.column_names)}"
            )
        column = self._table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self._table.column_names
        return names

    def to_arrow(self) -> pa.Table:
        """All columns as an Arrow table, without copying."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a pandas DataFrame. pandas has no null for whole numbers: a column with nulls becomes one of floats."""
        frame: pd.DataFrame = self._table.to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """All columns as a polars DataFrame, mostly without copying; needs the extra `polars`."""
        polars = optional_package("polars", needed_by="to_polars()", extra="polars")
        frame: Any = polars.from_arrow(self._table)
        return frame  # type: ignore[no-any-return]
