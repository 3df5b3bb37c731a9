"""The broadcast side of an operator: what user code writes to take its rows, and how it is called. Driver (declared) and executors (run).

Every subtask is given all rows of the broadcast side in a batch, in the same order, before any row of its own. So all of them come to the
same state, whatever is done again after a failure.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from penstock.errors import ConfigError, UserCodeError
from penstock.operators.outputs import SideRows
from penstock.operators.state.cells import shown

if TYPE_CHECKING:
    from penstock.operators.process.keyed import Context
    from penstock.operators.rows import Rows


class TakesBroadcast:
    """What every kind of operator may have besides its own function."""

    def process_broadcast(self, rows: Rows, ctx: Context) -> None:
        """Put what the rows of the broadcast side say into a `BroadcastState`, which `process` then reads.

        Called once per subtask and batch that has such rows, before any other function of the batch; with all of them, in the same
        order in every subtask. Called again after a recovery, on the state as it was at the checkpoint. It has no results.
        The classic mistake: to do something that depends on the subtask, on time or on chance. The copies would differ, and after a
        change of parallelism nobody knows which of them is kept.
        """
        raise NotImplementedError


def takes_broadcast(operator: TakesBroadcast) -> bool:
    """Whether the class says what to do with rows of a broadcast side."""
    return type(operator).process_broadcast is not TakesBroadcast.process_broadcast


def refuse_results(operator: TakesBroadcast, uid: str) -> None:
    """Before anything starts: a function with `yield` in it does nothing until somebody asks for its results."""
    if inspect.isgeneratorfunction(operator.process_broadcast):
        raise ConfigError(
            f"operator {uid!r}: process_broadcast() of {type(operator).__name__} yields results; every subtask would give the same ones. "
            "Put what it learns into a BroadcastState, and yield in process()",
            operator=uid,
        )


def check_no_results(given: Any, context: Context) -> None:
    """The same when it was called."""
    if given is not None:
        raise UserCodeError(
            f"operator {context.operator}: process_broadcast() returned {shown(given)}, but it can have no results: every subtask would "
            "give the same ones; put what it learns into a BroadcastState",
            operator=context.operator,
        )


class NoSides(SideRows):
    """In place of side outputs, while the rows of the broadcast side are processed."""

    call = "process_broadcast()"

    def __init__(self, operator: str) -> None:
        super().__init__(operator, {})

    @override
    def take(self, name: str, given: Any) -> None:
        raise UserCodeError(
            f"operator {self.operator}: process_broadcast() emits {shown(given)} to {name!r}; every subtask would emit the same row. Put "
            "what it learns into a BroadcastState, and emit in process()",
            operator=self.operator,
        )
