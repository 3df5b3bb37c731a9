"""What a user writes to process the rows of a key with state of their own. Driver (declared) and executors (run)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.operators.cells import Cells
from penstock.operators.rows import Rows
from penstock.operators.side_outputs import SideRows, no_such_side
from penstock.operators.states import OperatorType, declared_state, refuse_state_assignment

Output = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """Where the call happens. `checkpoint` is the barrier that ends the batch the rows belong to."""

    operator: str
    checkpoint: int
    subtask: int
    parallelism: int
    _sides: SideRows | None = field(default=None, repr=False, compare=False, kw_only=True)

    def emit(self, name: str, row: Any) -> None:
        """Give a row to a side output that the operator's class declares: a tuple or a dictionary, in `process_batch` columns.

        It is part of the same batch as the results, whatever becomes of that. Only inside the call that got the context.
        """
        if self._sides is None:
            raise no_such_side(self.operator, name, ())
        self._sides.take(name, row)


class KeyedProcess(metaclass=OperatorType):
    """Own Python code that sees the rows of one key at a time and remembers what it likes about the key.

    An instance is pickled into tasks: keep settings in it. What must survive belongs into state; anything else an
    instance remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key in one batch, and yield results (tuples in the order of the schema, or dictionaries).

        Called once per key and batch, for keys that have rows; called again with the same or other rows after a recovery, on the
        state as it was at the checkpoint. `key` is the value of the key column, a tuple for several. `rows` has a length, can
        be iterated (each row acts as a named tuple) and indexed. In no promised order, unless `order_by` is given.
        `ctx.emit` gives rows to a declared `SideOutput`.
        The classic mistake: changing the outside world here. After a failure that happens again; use a sink.
        """

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_state_assignment(self, name)
        super().__setattr__(name, value)


def bind(operator: KeyedProcess) -> Cells:
    """Put a cell in place of every declared state."""
    cells = {name: state.make_cell(name) for name, state in declared_state(operator).items()}
    operator.__dict__.update(cells)
    return Cells(cells)
