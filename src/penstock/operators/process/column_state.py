"""The state of many keys as columns, as user code sees it, and what of it has to be written. Executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError, UserCodeError
from penstock.operators.array_like import as_array
from penstock.operators.batch_tables import BatchTable
from penstock.operators.column_timers import ColumnTimers
from penstock.operators.process.keyed import Context
from penstock.operators.stamps import ColumnStamps
from penstock.operators.states import ColumnState
from penstock.operators.timers import EVENT_TIME
from penstock.state.keys import rows_equal
from penstock.wording import counted

Flags = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]


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
        *,
        values: Mapping[str, pa.Array],
        expiring: Mapping[str, ColumnStamps],
        positions: Positions,
        timers: ColumnTimers | None,
        call: str,
    ) -> None:
        self._declared = declared
        self._tables = tables
        self._stored: dict[str, pa.Array] = {name: stored.column(name) for name in declared}
        self._renewed: set[str] = set()
        self._expiring = expiring
        self.values = dict(values)
        """The columns as they are now, by name; an earlier call of the batch may have changed them already."""
        self._assigned: set[str] = set()
        self._keys: int = stored.num_rows
        self.positions = positions
        """Which keys of the piece these are."""
        self._timers = timers
        self._call = call
        self.context = context

    def __len__(self) -> int:
        return self._keys

    def __getitem__(self, name: str) -> Any:
        """The values of all keys; the default where there is none, null where there is no default. Of a map or list its rows."""
        if name in self._tables:
            return self._tables[name]
        values, default = self.values[self._known(name)], self._declared[name].default
        if name in self._expiring and self._expiring[name].renews:
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
                f"operator {self.context.operator}: {self._call} set the state {name!r}, which {self._tables[name].members}; "
                "it cannot be replaced as a whole",
                operator=self.context.operator,
                state=name,
            )
        field = pa.field(self._known(name), self._declared[name].arrow_type)
        what = f"operator {self.context.operator}: {self._call} set the state"
        self.values[name] = self._checked_length(as_array(values, field, what), f"{what} {name!r} to")
        self._assigned.add(name)

    def delete(self, mask: Any) -> None:
        """Forget all that is kept for the keys where the mask is true (null counts as false). What is assigned later counts."""
        what = f"operator {self.context.operator}: {self._call} called delete(): it set"
        gone = as_array(mask, pa.field("mask", pa.bool_()), what)
        gone = _flags(self._checked_length(gone, f"{what} 'mask' to").fill_null(fill_value=False))
        kept = pa.array(np.arange(self._keys, dtype=np.int64), mask=gone)
        self.values = {name: values.take(kept) for name, values in self.values.items()}
        for table in self._tables.values():
            table.clear(gone)

    def set_timers(self, at: Any, key_index: Any = None, by: str = EVENT_TIME) -> None:
        """Have `on_timers` called when event time has come to these moments, or with `by="clock"` the driver's clock.

        One moment for each of `keys`, null for none; or with `key_index` any number, as `batch.key_index` says whose they are. A key has
        one timer for each moment and kind. Those for moments that have passed fire at once, in the same batch.
        """
        self._own_timers("set_timers").change(
            at, key_index, by, self.positions, f"{self._call} called set_timers()", is_set=True
        )

    def delete_timers(self, at: Any, key_index: Any = None, by: str = EVENT_TIME) -> None:
        """Forget the timers for these moments, whether there are such or not."""
        self._own_timers("delete_timers").change(
            at, key_index, by, self.positions, f"{self._call} called delete_timers()", is_set=False
        )

    def _own_timers(self, call: str) -> ColumnTimers:
        if self._timers is None:
            raise UserCodeError(
                f"operator {self.context.operator}: {self._call} called {call}(), but its class does not say what to do when timers fire; "
                "write def on_timers(self, keys, timers, state)",
                operator=self.context.operator,
                is_wrong_name=True,
            )
        return self._timers

    def touched(self, name: str) -> Flags:
        """The keys of which this value is not what is stored. What expires is touched where it is assigned, or read and that counts."""
        values, stored = self.values[name], self._stored[name]
        touched = np.zeros(self._keys, dtype=np.bool_)
        if name in self._renewed:
            touched |= _flags(stored.is_valid())
        if values is stored:
            return touched
        if name in self._assigned and (name in self._expiring or pa.types.is_nested(values.type)):
            # where nothing expires comparing may cost more than writing
            return touched | _flags(values.is_valid()) | _flags(stored.is_valid())
        if pa.types.is_nested(values.type):
            different: Flags = _flags(values.is_null()) != _flags(stored.is_null())
        else:
            different = ~rows_equal([values], [stored])
        return touched | different

    def _known(self, name: str) -> str:
        if name not in self._declared:
            declared = ", ".join(sorted([*self._declared, *self._tables])) or "none"
            raise BadRecordError(
                f"operator {self.context.operator}: {self._call} used the state {name!r}; declared are: {declared}"
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
