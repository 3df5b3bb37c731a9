"""Write rows of state elsewhere: to another backend, or in another form. Executors.

Rows carry their sort numbers, so that writing is sorting, not hashing. They are written in portions, each frozen and stored by itself:
what has to fit into memory is a portion, not the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from penstock.state.backends.base import VALUES, StateBackend, StateLayout, TableLayout, Workplace
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.conversions import Conversion
from penstock.state.handle import StateHandle
from penstock.state.keys import ORDER, SORT_KEY, KeyBatch

PORTION_ROWS = 2_000_000
PORTION_BYTES = 256 << 20
"""So much is written before it is frozen as files of its own."""

Portion = dict[str, list[pa.RecordBatch]]
"""Rows by table."""


@dataclass(frozen=True)
class TableChange:
    """How the rows of a stored table become rows of the job's."""

    wanted: TableLayout
    carried: Mapping[str, Conversion]
    """What becomes of each column that goes along; those that tell rows apart are among them."""
    begins_with: Mapping[str, object] = field(default_factory=dict)
    """What a new column has where it is not null."""
    loses_columns: bool = False
    """Whether a row may be left without any value: then there is none any more."""

    def applied(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows in the new form. They have their sort numbers or not, as before."""
        if self.loses_columns:
            rows = self._with_a_value(rows)
        numbers = [name for name in (SORT_KEY, ORDER) if name in rows.schema.names]
        fields = [one for one in numbered_schema(self.wanted) if one.name in numbers]
        fields += [*self.wanted.identity, *self.wanted.value]
        columns = [
            rows.column(one.name) if one.name in numbers else self._column(rows, one) for one in fields
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _column(self, rows: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        how = self.carried.get(wanted.name)
        if how is not None:
            return how(rows.column(wanted.name))
        value = pa.scalar(self.begins_with.get(wanted.name), wanted.type)
        return pa.repeat(value, rows.num_rows)

    def _with_a_value(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        left = np.zeros(rows.num_rows, dtype=np.bool_)
        for name in self.wanted.visible.names:
            if name in self.carried:
                left |= rows.column(name).is_valid().to_numpy(zero_copy_only=False)
        return rows if left.all() else rows.filter(pa.array(left))


@dataclass(frozen=True)
class StateChange:
    """The form that an operator's state has in the checkpoint, the one that the job wants, and how the one becomes the other."""

    stored: StateLayout
    wanted: StateLayout
    tables: Mapping[str, TableChange]
    """Those whose rows go along."""


def write_rows(
    rows: Iterable[tuple[str, pa.RecordBatch]],
    layout: StateLayout,
    backend: StateBackend,
    workplace: Workplace,
) -> StateHandle | None:
    """Write rows, each with the name of its table, to state that is empty, and store it; None where there is no row.

    Rows of one table come one after the other, in any order; of two with the same identity there must be one.
    """
    stored: StateHandle | None = None
    for number, portion in enumerate(_portions(rows)):
        place = replace(workplace, stem=f"{workplace.stem}-{number}")
        with closing(backend.open(place, layout, stored)) as state:
            for name, batches in portion.items():
                table = pa.Table.from_batches(batches).combine_chunks()
                for keys, values in _in_order(table, layout.by_name[name]):
                    (state if name == VALUES else state.table(name)).write(keys, values)
            stored = upload_new(place, state.freeze(), stored)
    return stored


def upload_new(place: Workplace, frozen: StateHandle, before: StateHandle | None) -> StateHandle:
    """Store the files that the state before did not have."""
    for name in sorted(frozen.files - (before.files if before else frozenset())):
        place.storage.upload(place.local_path(name), name)
    return frozen


def _portions(rows: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[Portion]:
    portion: Portion = {}
    count = size = 0
    for name, batch in rows:
        if not batch.num_rows:
            continue
        portion.setdefault(name, []).append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= PORTION_ROWS or size >= PORTION_BYTES:
            yield portion
            portion, count, size = {}, 0, 0
    if portion:
        yield portion


def _in_order(rows: pa.Table, table: TableLayout) -> Iterator[tuple[KeyBatch, pa.RecordBatch]]:
    """The rows as a backend takes them: by their sort numbers, and no more at once than an array can hold."""
    sort_keys = rows.column(SORT_KEY).to_numpy()
    orders = rows.column(ORDER).to_numpy() if table.ordered else None
    positions = np.argsort(sort_keys, kind="stable") if orders is None else np.lexsort((orders, sort_keys))
    if (positions[1:] > positions[:-1]).all():
        sorted_rows = rows
    else:
        sorted_rows = rows.take(pa.array(positions))
        sort_keys, orders = sort_keys[positions], None if orders is None else orders[positions]
    at = 0
    for batch in sorted_rows.to_batches(max_chunksize=256 * 1024):
        behind = at + batch.num_rows
        identity, values = batch.select(table.identity.names), batch.select(table.value.names)
        yield (
            KeyBatch(sort_keys[at:behind], identity, None if orders is None else orders[at:behind]),
            values,
        )
        at = behind
