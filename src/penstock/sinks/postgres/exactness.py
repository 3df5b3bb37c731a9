"""Values that PostgreSQL would change without a word, found before they are sent. Executors.

    varchar(n)      spaces beyond n are dropped
    char(n)         spaces at the end mean nothing: 'a' and 'a ' are one value, and one key

What a column would change by its type alone (`name`, `"char"`, too small a scale) is refused before the job starts, see `table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.postgres.table import Column
from penstock.sinks.sql.bad_rows import Change
from penstock.sinks.sql.values import plain_texts


def changed_values(batch: pa.RecordBatch, columns: Sequence[Column]) -> Iterator[Change]:
    """Which values would not come back as they are."""
    for values, column in zip(batch.columns, columns, strict=True):
        texts = plain_texts(values) if column.type in {"varchar", "bpchar"} else None
        if texts is None:
            continue
        if column.type == "bpchar":
            yield (
                column.name,
                pc.ends_with(texts, " "),
                f"{column.declared} does not keep spaces at the end of a text",
            )
        if column.longest is not None:
            spaces = pc.and_(pc.greater(pc.utf8_length(texts), column.longest), pc.ends_with(texts, " "))
            yield (
                column.name,
                spaces,
                f"value too long for {column.declared}, which drops spaces beyond its length",
            )
