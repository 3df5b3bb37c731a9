"""What every kind of own code has: its context, `open` and `close`, and the broadcast side. Driver (declared) and executors (run).

Every subtask receives all rows of the broadcast side in a batch, in the same order, before any row of its own. So all subtasks arrive at
the same state, also when calls are repeated after a failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from penstock.errors import ConfigError, UserCodeError
from penstock.operators.bad_records import RejectedRows, nothing_to_reject
from penstock.operators.outputs import SideRows, no_such_side
from penstock.operators.state.cells import shown
from penstock.operators.state.timer_cell import TimersCell
from penstock.operators.state.timers import EVENT_TIME, NoTimers, moment, watermark
from penstock.operators.values.rows import Rows
from penstock.places import AT, place_of_function
from penstock.state.lifetimes import LONG_AGO_US

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.operators.values.rows import Rows


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
        except Exception as second:  # noqa: BLE001 - user code may raise anything; the first error is the cause
            error.add_note(f"close() raised, too: {type(second).__name__}: {second}")


# ── the broadcast side ─────────────────────────────────────────────────────────────────────────────


class TakesBroadcast:
    """The method for the broadcast side, which every kind of own code may have."""

    def process_broadcast(self, rows: Rows, ctx: Context) -> None:
        """Put what the rows of the broadcast side say into a `BroadcastState`, which `process` then reads.

        Called once per subtask and batch that has such rows, before any other function of the batch; with all of them, in the same
        order in every subtask. Called again after a recovery, on the state as it was at the checkpoint. It has no results.
        The classic mistake: to do something that depends on the subtask, on time or on chance. The copies would differ, and after a
        change of parallelism any one of them is kept.
        """
        raise NotImplementedError


def takes_broadcast(operator: TakesBroadcast) -> bool:
    """Whether the class says what to do with rows of a broadcast side."""
    return type(operator).process_broadcast is not TakesBroadcast.process_broadcast


def refuse_results(operator: TakesBroadcast, uid: str) -> None:
    """Before anything starts: a function with `yield` in it does nothing until its results are read."""
    if inspect.isgeneratorfunction(operator.process_broadcast):
        raise ConfigError(
            f"operator {uid!r}: process_broadcast() of {type(operator).__name__} yields results; every subtask would give the same ones. "
            "Put what it learns into a BroadcastState, and yield in process()",
            operator=uid,
        )


def check_no_results(given: Any, context: Context) -> None:
    """Refuse results of `process_broadcast` after a call."""
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


# ── the context of a call ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Context:
    """The place and time of a call. `checkpoint` is the barrier that ends the batch the rows belong to."""

    operator: str
    checkpoint: int
    subtask: int
    parallelism: int
    _sides: SideRows | None = field(default=None, repr=False, compare=False, kw_only=True)
    _timers: TimersCell | NoTimers | None = field(default=None, repr=False, compare=False, kw_only=True)
    _watermark_us: int = field(default=LONG_AGO_US, repr=False, compare=False, kw_only=True)
    _now_us: int = field(default=0, repr=False, compare=False, kw_only=True)
    _rejected: RejectedRows | None = field(default=None, repr=False, compare=False, kw_only=True)
    _opened: OpenedCode | None = field(default=None, repr=False, compare=False, kw_only=True)

    @cached_property
    def watermark(self) -> datetime | None:
        """How far event time has come here, with the zone UTC; None before the first row, or where no source has event time.

        In `process` as it was when the batch began; in `on_timer`, and when a window closes, where it has come to. When a drained input
        has ended: `datetime.max`.
        """
        return watermark(self._watermark_us)

    @cached_property
    def now(self) -> datetime:
        """The time of the batch by the driver's clock, with the zone UTC: the same in all its calls. It never goes back."""
        return moment(self._now_us)

    def set_timer(self, at: datetime, by: str = EVENT_TIME) -> None:
        """Have `on_timer` called for this key when event time has come to this moment, or with `by="clock"` the driver's clock.

        A key has one timer for each moment and kind: to set it once more changes nothing. One for a moment that has passed fires at
        once, in the same batch. Without a zone the moment is taken for UTC. Only inside the call that got the context.
        """
        (self._timers or self._no_timers()).set(at, by)

    def delete_timer(self, at: datetime, by: str = EVENT_TIME) -> None:
        """Forget the timer of this key for this moment, whether there is one or not."""
        (self._timers or self._no_timers()).delete(at, by)

    def before_calls(self) -> None:
        """Open own code, where that has not happened in this task."""
        if self._opened is not None:
            self._opened.open()

    def when_timers_fire(self, watermark_us: int) -> Context:
        """This context, after event time has advanced."""
        return replace(self, _watermark_us=watermark_us)

    def _no_timers(self) -> NoTimers:
        return NoTimers(
            self.operator,
            "but its class does not say what to do when it fires; write def on_timer(self, key, timer, ctx)",
        )

    def emit(self, name: str, row: Any) -> None:
        """Give a row to a side output that the operator's class declares: a tuple or a dictionary, in `process_batch` columns.

        It is part of the same batch as the results, and is kept or dropped with it. Only inside the call that got the context.
        """
        if self._sides is None:
            raise no_such_side(self.operator, name, ())
        self._sides.take(name, row)

    def reject(self, row: Any, reason: object = "rejected") -> None:
        """Take one of the rows of this call for a bad row, and go on with the others: it goes to `bad_records()`, or is only counted.

        What the call has done with the row so far stays: reject it before anything of it is in state or results. Where a bad row ends the
        run, this does. Only inside the call of `process` that got the context, in a `KeyedProcess`, `KeyedCoProcess` or `Process`.
        """
        if self._rejected is None:
            raise nothing_to_reject(self.operator)
        self._rejected.take(row, reason)


# ── checks before the start ────────────────────────────────────────────────────────────────────────


def check_open_and_close(operator: OpensAndCloses, uid: str) -> None:
    """Refuse an `open` or `close` that cannot be called."""
    if overrides(operator, "open"):
        check_call(operator, operator.open, ("ctx",), uid)
    if overrides(operator, "close"):
        check_call(operator, operator.close, (), uid)


def check_call(operator: object, function: Callable[..., object], given: tuple[str, ...], uid: str) -> None:
    """Refuse one function that cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python: nothing is known of it
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        name, has = function.__name__, ", ".join(map(str, signature.parameters.values()))
        refusal = ConfigError(
            f"operator {uid!r}: {type(operator).__name__}.{name}({', '.join(filter(None, ('self', has)))}) cannot be called with "
            f"{', '.join(given)}: {error}; write def {name}(self, {', '.join(given)})",
            uid=uid,
        )
        place = place_of_function(function)
        if place is not None:
            refusal.add_note(f"{AT}{place}")
        raise refusal from None
