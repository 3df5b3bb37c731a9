"""What a user writes to process all rows of a batch at once, in columns. Driver (declared) and executors (run)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock.operators.batch_columns import BatchKeys, BatchRows
from penstock.operators.batch_state import BatchState
from penstock.operators.keyed_process import refuse_state_assignment


class BatchProcess(ABC):
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
