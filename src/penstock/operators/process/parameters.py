"""Whether an operator's function can be called as Penstock calls it. Driver, before anything is started."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from penstock.errors import ConfigError
from penstock.operators.process.broadcast import takes_broadcast
from penstock.operators.process.co import KeyedCoProcess
from penstock.operators.process.columns import BatchProcess
from penstock.operators.process.keyed import KeyedCode
from penstock.operators.process.lifecycle import OpensAndCloses, overrides
from penstock.operators.process.unkeyed import Process
from penstock.operators.state.timers import takes_timers
from penstock.places import AT, place_of_function

_KEYED = ("key", "rows", "ctx")
_UNKEYED = ("rows", "ctx")
_BATCH = ("keys", "batch", "state")
_TIMER = ("key", "timer", "ctx")
_TIMERS = ("keys", "timers", "state")


def check_parameters(operator: KeyedCode | BatchProcess | Process, uid: str) -> None:
    """Refuse a function of an operator that cannot take what it is given: every call of it would fail."""
    if isinstance(operator, BatchProcess):
        check_call(operator, operator.process_batch, _BATCH, uid)
    elif isinstance(operator, KeyedCoProcess):
        check_call(operator, operator.process_left, _KEYED, uid)
        check_call(operator, operator.process_right, _KEYED, uid)
    else:
        check_call(operator, operator.process, _KEYED if isinstance(operator, KeyedCode) else _UNKEYED, uid)
    if isinstance(operator, KeyedCode) and takes_timers(operator):
        check_call(operator, operator.on_timer, _TIMER, uid)
    if isinstance(operator, BatchProcess) and takes_timers(operator):
        check_call(operator, operator.on_timers, _TIMERS, uid)
    check_open_and_close(operator, uid)
    if takes_broadcast(operator):
        check_call(operator, operator.process_broadcast, _UNKEYED, uid)


def check_open_and_close(operator: OpensAndCloses, uid: str) -> None:
    """The same of the methods that any kind of own code may have."""
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
