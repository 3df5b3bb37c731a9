"""How bad rows travel with the results of the operator that met them, and which failures are about a row. Executors.

They are rows of the same output, with a tag: what Spark does with the results (keeps an attempt, drops another, reads them twice) it does
with the dead letters.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.operators.bad_records import LETTER, BadRecords, is_of_the_row
from penstock.recovery.repeated import may_pass

BAD = "__penstock_bad"
"""A column behind those of the results: a dead letter, or null in a result."""
ROWS = "__penstock_rows"
"""Among what Spark has aggregated: how many rows it stands for."""
ROW = "__penstock_row"
"""The same, of rows without a key: the row itself."""


def with_letters(results: list[pa.RecordBatch], bad: BadRecords, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Results and dead letters as rows of one kind."""
    untagged = pa.struct(list(LETTER))
    tagged = [batch.append_column(BAD, pa.nulls(batch.num_rows, untagged)) for batch in results]
    for letters in bad.letters():
        nulls = [pa.nulls(letters.num_rows, field.type) for field in schema]
        names = [*schema.names, BAD]
        tagged.append(pa.RecordBatch.from_arrays([*nulls, letters.to_struct_array()], names=names))
    return tagged


def without_tag(results: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The results and the dead letters of a tagged batch; Spark does the same with its own means."""
    tag = results.column(BAD)
    plain = results.drop_columns([BAD]).filter(tag.is_null())
    return plain, pa.RecordBatch.from_struct_array(tag.filter(tag.is_valid()))


def tolerates(error: Exception) -> bool:
    """Whether an exception of user code is about the row."""
    return is_of_the_row(error, may_pass)
