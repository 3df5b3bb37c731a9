"""What own code does before its first call in a task, and after its last: `open` and `close`. Driver (declared) and executors (run)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.operators.process.keyed import Context


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
