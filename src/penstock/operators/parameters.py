"""Whether an operator's function can be called as Penstock calls it. Driver, before anything is started."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from penstock.errors import ConfigError
from penstock.operators.batch_process import BatchProcess
from penstock.operators.broadcast import takes_broadcast
from penstock.operators.keyed_process import KeyedProcess
from penstock.operators.process import Process
from penstock.places import AT, place_of_function

_KEYED = ("key", "rows", "ctx")
_UNKEYED = ("rows", "ctx")
_BATCH = ("keys", "batch", "state")


def check_parameters(operator: KeyedProcess | BatchProcess | Process, uid: str) -> None:
    """Refuse a `process`, `process_batch` or `process_broadcast` that cannot take what it is given: every call of it would fail."""
    if isinstance(operator, BatchProcess):
        _check(operator, operator.process_batch, _BATCH, uid)
    else:
        _check(operator, operator.process, _KEYED if isinstance(operator, KeyedProcess) else _UNKEYED, uid)
    if takes_broadcast(operator):
        _check(operator, operator.process_broadcast, _UNKEYED, uid)


def _check(operator: object, function: Callable[..., object], given: tuple[str, ...], uid: str) -> None:
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
