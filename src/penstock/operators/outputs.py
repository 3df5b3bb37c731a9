"""How rows of other outputs travel with the results of the operator that gives them: dead letters, and side outputs. Executors.

They are rows of the same output, with a tag: what Spark does with the results (keeps an attempt, drops another, reads them twice) it does
with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

RESULTS = ""
"""In place of a tag: rows that have none."""
BAD = "__penstock_bad"
"""The tag of dead letters."""
LATE = "__penstock_late"
"""The tag of rows that came too late; they have the columns of the operator's input."""
LATE_RIGHT = "__penstock_late_right"
"""The same for those of its second input."""

Tags = Mapping[str, pa.Schema]
"""Columns behind those of the results, in this order. Each is a row of its output, or null; a result has null in all."""
Outputs = Mapping[str, Sequence[pa.RecordBatch]]
"""Rows by tag."""


def side_tags(names: Iterable[str]) -> dict[str, str]:
    """The tags of an operator's side outputs, by name. They are numbered: to Spark, names that differ only in case are one."""
    return {name: f"__penstock_side_{at}" for at, name in enumerate(names)}


def tagged(outputs: Outputs, schema: pa.Schema, tags: Tags) -> list[pa.RecordBatch]:
    """All rows as rows of one kind; as they are where there are no tags. `schema` is that of the results."""
    if not tags:
        return list(outputs.get(RESULTS, ()))
    kinds = {RESULTS: schema, **tags}
    return [_with_tags(batch, own, kinds) for own in kinds for batch in outputs.get(own, ())]


def _with_tags(batch: pa.RecordBatch, own: str, kinds: Tags) -> pa.RecordBatch:
    rows = batch.num_rows
    columns = [*batch.columns] if own == RESULTS else [pa.nulls(rows, field.type) for field in kinds[RESULTS]]
    names = list(kinds[RESULTS].names)
    for tag, schema in kinds.items():
        if tag != RESULTS:
            columns.append(batch.to_struct_array() if tag == own else pa.nulls(rows, pa.struct(list(schema))))
            names.append(tag)
    return pa.RecordBatch.from_arrays(columns, names=names)


def untagged(rows: pa.RecordBatch, tags: Tags) -> dict[str, pa.RecordBatch]:
    """The rows of a tagged batch by tag; Spark does the same with its own means."""
    apart = {}
    is_result = pa.repeat(pa.scalar(value=True), rows.num_rows)
    for tag in tags:
        own = rows.column(tag)
        is_result = pc.and_(is_result, own.is_null())
        apart[tag] = pa.RecordBatch.from_struct_array(own.filter(own.is_valid()))
    return {RESULTS: rows.drop_columns(list(tags)).filter(is_result), **apart}
