"""What a user writes to process rows without a key. Driver (declared) and executors (run)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from penstock.operators.broadcast import TakesBroadcast
from penstock.operators.keyed_process import Context, Output
from penstock.operators.rows import Rows
from penstock.operators.states import OperatorType, refuse_state_assignment


class Process(TakesBroadcast, metaclass=OperatorType):
    """Own Python code that sees the rows of a subtask, whatever they are about, and remembers what it likes in an `OperatorListState`.

    An instance is pickled into tasks: keep settings in it. What must survive belongs into state; anything else an
    instance remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(self, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one subtask in one batch, and yield results (tuples in the order of the schema, or dictionaries).

        Called once per subtask and batch that has rows; with a very large batch several times, each time with other rows. Called
        again with the same or other rows after a recovery, on the state as it was at the checkpoint. Rows of one partition
        of the input come to one subtask, and in their order, unless `order_by` gives another. `rows` has a length, can be iterated
        (each row acts as a named tuple) and indexed. `ctx.emit` gives rows to a declared `SideOutput`.
        The classic mistake: state about something that many subtasks see rows of. That needs `key_by` and a `KeyedProcess`.
        """

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_state_assignment(self, name)
        super().__setattr__(name, value)
