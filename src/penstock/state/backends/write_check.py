"""What every backend refuses to write: other columns, keys of another subtask, keys out of order. Runs in tasks on executors.

Such writes are bugs of whoever calls; they must never reach a file.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import InternalError
from penstock.state.backends.base import KeyBatch, TableLayout, Workplace
from penstock.state.backends.merge import Ownership
from penstock.state.types import spark_type
from penstock.wording import counted


class WriteCheck:
    """Looks at all writes of one batch."""

    def __init__(self, workplace: Workplace, layout: TableLayout) -> None:
        self._subtask = str(workplace.subtask)
        self._layout = layout
        self._ownership = Ownership(workplace.subtask.index, workplace.parallelism)
        self._last_sort_key = -1
        self._ordered = True

    def check(self, keys: KeyBatch, values: pa.RecordBatch) -> None:
        """Refuse a write that does not fit; only its order is judged later, by `check_order`."""
        for given, wanted in (
            (keys.columns.schema, self._layout.identity),
            (values.schema, self._layout.value),
        ):
            if given.names != wanted.names or given.types != wanted.types:
                raise InternalError(
                    f"{self._subtask} writes columns ({_described(given)}), its state has ({_described(wanted)})",
                    subtask=self._subtask,
                )
        if (keys.orders is not None) != self._layout.ordered:
            raise InternalError(
                f"{self._subtask} writes rows of the table {self._layout.name!r} with{'out' * self._layout.ordered} a second sort number",
                subtask=self._subtask,
            )
        if not len(keys) == keys.columns.num_rows == values.num_rows:
            raise InternalError(
                f"{self._subtask} writes {counted(values.num_rows, 'value')} for {counted(len(keys), 'key')}",
                subtask=self._subtask,
            )
        if not self._ownership.owned(keys.sort_keys).all():
            raise InternalError(
                f"{self._subtask} of {self._ownership.parallelism} writes keys of another subtask",
                subtask=self._subtask,
            )
        self._note_order(keys)

    def check_order(self) -> None:
        """Refuse to end a batch whose keys did not come in ascending order of sort key."""
        if not self._ordered:
            raise InternalError(
                f"{self._subtask} wrote keys out of the order of their sort keys", subtask=self._subtask
            )

    def _note_order(self, keys: KeyBatch) -> None:
        if not len(keys):
            return
        sort_keys = keys.sort_keys
        rising = bool((sort_keys[1:] >= sort_keys[:-1]).all())
        self._ordered &= rising and int(sort_keys[0]) >= self._last_sort_key
        self._last_sort_key = int(sort_keys[-1])


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)
