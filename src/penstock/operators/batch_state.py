"""The state of many keys as columns, as user code sees it, and what of it has to be written. Executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.array_like import as_array
from penstock.operators.batch_tables import BatchTable
from penstock.operators.keyed_process import Context
from penstock.operators.stamps import ColumnStamps
from penstock.operators.states import ColumnState
from penstock.state.backends.equality import rows_equal
from penstock.wording import counted

Flags = npt.NDArray[np.bool_]


class BatchState:
    """One value per key and state: `state["count"]` is an Arrow array in the order of `keys`, `state["count"] = ...` replaces it.

    `state["by_shop"]` of a map or list has the rows of all keys: see `BatchMap` and `BatchList`.
    What is assigned or deleted is written when `process_batch` has returned, except for keys whose values are what they were.
    `context` says where the call happens.
    """

    def __init__(
        self,
        declared: dict[str, ColumnState],
        stored: pa.RecordBatch,
        context: Context,
        tables: Mapping[str, BatchTable],
        now_us: int = 0,
    ) -> None:
        self._declared = declared
        self._tables = tables
        self._stored: dict[str, pa.Array] = {name: stored.column(name) for name in declared}
        self._now_us = now_us
        self._renewed: set[str] = set()
        self._stamps = {
            name: ColumnStamps(lifetime, renews=state.ttl is not None and state.ttl.renews)
            for name, state in declared.items()
            for lifetime in state.lifetimes(name)
        }
        for stamps in self._stamps.values():
            stamps.load(stored)
        self._values = dict(self._stored)
        self._assigned: set[str] = set()
        self._keys: int = stored.num_rows
        self.context = context

    def __len__(self) -> int:
        return self._keys

    def __getitem__(self, name: str) -> Any:
        """The values of all keys; the default where there is none, null where there is no default. Of a map or list its rows."""
        if name in self._tables:
            return self._tables[name]
        values, default = self._values[self._known(name)], self._declared[name].default
        if name in self._stamps and self._stamps[name].renews:
            self._renewed.add(name)
        if default is None or not values.null_count:
            return values
        filled = pa.concat_arrays([values, pa.array([default], type=values.type)])
        at = np.arange(len(values), dtype=np.int64)
        at[_flags(values.is_null())] = len(values)
        return filled.take(pa.array(at))

    def __setitem__(self, name: str, values: Any) -> None:
        if name in self._tables:
            raise BadRecordError(
                f"operator {self.context.operator}: process_batch() set the state {name!r}, which {self._tables[name].members}; "
                "it cannot be replaced as a whole",
                operator=self.context.operator,
                state=name,
            )
        field = pa.field(self._known(name), self._declared[name].arrow_type)
        what = f"operator {self.context.operator}: process_batch() set the state"
        self._values[name] = self._checked_length(as_array(values, field, what), f"{what} {name!r} to")
        self._assigned.add(name)

    def delete(self, mask: Any) -> None:
        """Forget all that is kept for the keys where the mask is true (null counts as false). What is assigned later counts."""
        what = f"operator {self.context.operator}: process_batch() called delete(): it set"
        gone = as_array(mask, pa.field("mask", pa.bool_()), what)
        gone = _flags(self._checked_length(gone, f"{what} 'mask' to").fill_null(fill_value=False))
        kept = pa.array(np.arange(self._keys, dtype=np.int64), mask=gone)
        self._values = {name: values.take(kept) for name, values in self._values.items()}
        for table in self._tables.values():
            table.clear(gone)

    def changed(self) -> Flags:
        """The keys of which some value is not what is stored, or was touched."""
        changed = np.zeros(self._keys, dtype=np.bool_)
        for name in self._declared:
            changed |= self._touched(name)
        return changed

    def _touched(self, name: str) -> Flags:
        """The keys of which this value is not what is stored. What expires is touched where it is assigned, or read and that counts."""
        values, stored = self._values[name], self._stored[name]
        touched = np.zeros(self._keys, dtype=np.bool_)
        if name in self._renewed:
            touched |= _flags(stored.is_valid())
        if values is stored:
            return touched
        if name in self._assigned and (name in self._stamps or pa.types.is_nested(values.type)):
            # where nothing expires comparing may cost more than writing
            return touched | _flags(values.is_valid()) | _flags(stored.is_valid())
        if pa.types.is_nested(values.type):
            different: Flags = _flags(values.is_null()) != _flags(stored.is_null())
        else:
            different = ~rows_equal([values], [stored])
        return touched | different

    def values(self) -> list[pa.Array]:
        """The columns as they are now, in the order of the state's schema, and their stamps."""
        stamps = (
            stamp.column(self._values[name], self._touched(name), self._now_us)
            for name, stamp in self._stamps.items()
        )
        return [*(self._values[name] for name in self._declared), *stamps]

    def _known(self, name: str) -> str:
        if name not in self._declared:
            declared = ", ".join(sorted([*self._declared, *self._tables])) or "none"
            raise BadRecordError(
                f"operator {self.context.operator}: process_batch() used the state {name!r}; declared are: {declared}"
            )
        return name

    def _checked_length(self, values: pa.Array, what: str) -> pa.Array:
        if len(values) != self._keys:
            raise BadRecordError(
                f"{what} {counted(len(values), 'value')} for {counted(self._keys, 'key')}; give one value for each of `keys`, in that order"
            )
        return values


def _flags(array: pa.Array) -> Flags:
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags
