"""Bring the rows of a task into the order of their keys, exactly, also where two keys share a sort key. Executors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError, InternalError
from penstock.operators.row_order import stable_order
from penstock.operators.wide_columns import narrowed, widened
from penstock.state.backends.equality import rows_equal
from penstock.state.keys import KeyBatch, SortKeys, key_groups, owners

SORT_KEY = "__sort_key"


@dataclass(frozen=True)
class Grouped:
    """Rows ordered by key: key i has the rows `starts[i]` to `starts[i + 1]` of `table` (which lacks the sort key)."""

    keys: KeyBatch
    starts: npt.NDArray[np.int64]
    table: pa.Table


def group_rows(table: pa.Table, key_names: list[str]) -> Grouped:
    """Order rows by key; rows of one key keep the order they came in."""
    sort_keys = _sort_keys(table)
    order = stable_order(sort_keys)
    table = widened(table.drop_columns([SORT_KEY]))
    if not _is_identity(order):
        table, sort_keys = table.take(pa.array(order)), sort_keys[order]
    table = table.combine_chunks()
    first = _first_rows(sort_keys, _key_columns(table, key_names))
    if first is None:
        order = _order_with_collisions(sort_keys, _key_columns(table, key_names))
        table = table.take(pa.array(order)).combine_chunks()
        first = _first_rows(sort_keys, _key_columns(table, key_names), ordered=True)
        if first is None:
            raise InternalError("rows with colliding sort keys could not be ordered")
    keys = KeyBatch(sort_keys[first], _record_batch(narrowed(table.select(key_names).take(pa.array(first)))))
    return Grouped(keys, np.append(first, len(sort_keys)), table)


def distinct_keys(table: pa.Table, key_names: list[str]) -> tuple[KeyBatch, pa.RecordBatch]:
    """For one row a key: the keys in order, and the other columns in the same order."""
    grouped = group_rows(table, key_names)
    if len(grouped.keys) != table.num_rows:
        raise InternalError(f"{table.num_rows - len(grouped.keys)} keys came in more than one row")
    rest = [name for name in grouped.table.column_names if name not in key_names]
    return grouped.keys, _record_batch(narrowed(grouped.table.select(rest)))


def check_rows(
    table: pa.Table, key_names: list[str], *, operator: str, subtask: int, parallelism: int
) -> None:
    """Refuse null keys, and rows that belong to another subtask (which would split a key's state in two)."""
    for name in key_names:
        nulls = table.column(name).null_count
        if nulls:
            raise BadRecordError(
                f"operator {operator}: {nulls} rows have no value in the key column {name!r}; nothing of this batch is "
                f"kept; filter them out before key_by, or replace null, for instance with coalesce({name}, ...)",
                operator=operator,
                column=name,
            )
    groups = key_groups(_sort_keys(table))
    if len(groups) and not bool((owners(groups, parallelism) == subtask).all()):
        raise InternalError(f"operator {operator}: rows of other subtasks arrived at subtask {subtask}")


def _sort_keys(table: pa.Table) -> SortKeys:
    numbers: SortKeys = table.column(SORT_KEY).to_numpy()
    return numbers


def _is_identity(order: npt.NDArray[np.intp]) -> bool:
    return bool((order == np.arange(len(order))).all())


def _key_columns(table: pa.Table, key_names: list[str]) -> list[pa.Array]:
    return [_one_chunk(table.column(name)) for name in key_names]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _record_batch(table: pa.Table) -> pa.RecordBatch:
    columns = [
        _one_chunk(column) if column.num_chunks else pa.array([], column.type) for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _first_rows(
    sort_keys: SortKeys, keys: list[pa.Array], *, ordered: bool = False
) -> npt.NDArray[np.int64] | None:
    """The first row of every key; None when rows of colliding keys may be interleaved."""
    if not len(sort_keys):
        return np.zeros(0, dtype=np.int64)
    same_number = sort_keys[1:] == sort_keys[:-1]
    changes = ~same_number
    if same_number.any():
        before, after = [key.slice(0, len(key) - 1) for key in keys], [key.slice(1) for key in keys]
        differs = same_number & ~rows_equal(before, after)
        if differs.any() and not ordered:
            return None
        changes |= differs
    return np.concatenate(([0], np.flatnonzero(changes) + 1)).astype(np.int64)


def _order_with_collisions(sort_keys: SortKeys, keys: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Within each run of equal sort keys put equal keys together, in the order of their first row. Rare, so plain Python will do."""
    bounds = np.concatenate(([0], np.flatnonzero(sort_keys[1:] != sort_keys[:-1]) + 1, [len(sort_keys)]))
    order = np.arange(len(sort_keys), dtype=np.int64)
    for start, stop in pairwise(bounds):
        if stop - start > 1:
            order[start:stop] = _together(int(start), int(stop), keys)
    return order


def _together(start: int, stop: int, keys: list[pa.Array]) -> list[int]:
    groups: dict[str, list[int]] = {}
    for row in range(start, stop):
        groups.setdefault(repr([key[row].as_py() for key in keys]), []).append(row)
    return [row for rows in groups.values() for row in rows]
