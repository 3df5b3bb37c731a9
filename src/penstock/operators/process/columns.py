"""What a user writes to process all rows of a batch at once, in columns, and the keys and rows that it is given.

Nothing is copied until it is asked for. Driver (declared) and executors (run).
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.process.column_state import BatchState
from penstock.operators.process.user_code import OpensAndCloses, TakesBroadcast
from penstock.operators.state.batch_tables import BatchColumns
from penstock.operators.state.declarations import OperatorType, refuse_state_assignment
from penstock.operators.state.timers import TakesTimerColumns


class BatchKeys(BatchColumns):
    """The distinct keys of the rows, under the names of the key columns. State has one value for each of them, in this order."""


class BatchRows(BatchColumns):
    """The rows, ordered by key: those of key i are the rows `starts[i]` up to `starts[i + 1]`, or to the end for the last key."""

    def __init__(self, table: pa.Table, bounds: npt.NDArray[np.int64]) -> None:
        super().__init__(table)
        self._bounds = bounds

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The first row of every key, as `np.add.reduceat(values, starts)` takes it."""
        return self._bounds[:-1]

    @cached_property
    def key_index(self) -> npt.NDArray[np.int64]:
        """For every row the position of its key in `keys`, as `np.bincount(key_index)` takes it."""
        counts = np.diff(self._bounds)
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


class BatchTimers(BatchRows):
    """Timers that fire, ordered by key and moment: `timers["at"]` has the moments, `timers["by"]` is "event_time" or "clock".

    Those of key i are the rows `starts[i]` up to `starts[i + 1]`, or to the end for the last key.
    """


class BatchProcess(OpensAndCloses, TakesBroadcast, TakesTimerColumns, metaclass=OperatorType):
    """Own Python code that sees many keys at once: their rows and their state as columns, for Arrow, NumPy, pandas or polars.

    State is declared as in a `KeyedProcess` and stored the same way, so a job can change from one to the other and keep its state.
    An instance is pickled into tasks: keep settings in it. What must survive belongs into state.
    """

    @abstractmethod
    def process_batch(self, keys: BatchKeys, batch: BatchRows, state: BatchState) -> Any:
        """Handle the rows of many keys, and return or yield results: an Arrow table, a DataFrame of pandas or polars, or a
        dictionary of columns, with the columns of the schema in any order; or None.

        Called once per subtask and batch that has rows; with a very large batch several times, each time with other keys and all
        rows of those keys. Called again with the same or other rows after a recovery, on the state as it was at the checkpoint.
        Rows are ordered by key; within a key in no promised order, unless `order_by` is given.
        The classic mistake: changing the outside world here. After a failure that happens again; use a sink.
        """  # noqa: D205 - the sentence is long

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_state_assignment(self, name, f'state["{name}"] = ...')
        super().__setattr__(name, value)
