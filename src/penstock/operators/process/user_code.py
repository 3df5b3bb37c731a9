"""What own code does before its first call in a task, and after its last: `open` and `close`. Driver (declared) and executors (run).

The broadcast side of an operator: what user code writes to take its rows, and how it is called. Driver (declared) and executors (run).

Every subtask is given all rows of the broadcast side in a batch, in the same order, before any row of its own. So all of them come to the
same state, whatever is done again after a failure.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from penstock.errors import ConfigError, UserCodeError
from penstock.operators.outputs import SideRows
from penstock.operators.state.cells import shown

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.operators.process.keyed import Context
    from penstock.operators.rows import Rows


class OpensAndCloses:
    """The methods that every kind of own code may override. Those that it does not override are not called."""

    def open(self, ctx: Context) -> None:
        """Make what the calls of one task need and what cannot be pickled, such as a client: `self.client = Client(self.url)`.

        Called once in every attempt of a task that calls this code, before the first call. A task is one subtask in one batch, so this
        is called again in every batch: what takes long to load belongs in a function with `functools.cache`, which a Python worker keeps.
        It sees no state. What it raises ends the run.
        """

    def close(self) -> None:
        """Release what `open` made. Called after the last call, also when a call raised; not when `open` itself raised.

        Results are not committed then, and may be thrown away: this is no place to send something.
        """


def overrides(code: OpensAndCloses, name: str) -> bool:
    """Whether the class has an `open` or `close` of its own. A state may have that name, and is no method."""
    own = getattr(type(code), name)
    return own is not getattr(OpensAndCloses, name) and callable(own)


class OpenedCode:
    """Own code in one attempt of a task. It is opened when it is first needed, and closed when the block ends."""

    def __init__(self, code: OpensAndCloses, context: Context) -> None:
        self._code, self._context = code, context
        self._opens, self._closes = overrides(code, "open"), overrides(code, "close")
        self._is_open = False

    def open(self) -> None:
        """Called before any other function of the code; the first time counts."""
        if not self._is_open:
            if self._opens:
                self._code.open(self._context)
            self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not (self._is_open and self._closes):
            return
        if error is None:
            self._code.close()
            return
        try:
            self._code.close()
        except Exception as second:  # noqa: BLE001 - whatever the user's code raises: the first error is the cause
            error.add_note(f"close() raised, too: {type(second).__name__}: {second}")


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
