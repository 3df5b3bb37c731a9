"""Whether own code and sinks can be sent to tasks, tried before anything is started. Driver."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark import cloudpickle

from penstock.errors import ConfigError
from penstock.graph import Graph


def check_pickles(graph: Graph) -> None:
    """Refuse operators and sinks that cannot be pickled: every attempt of every batch would fail."""
    for node in graph.operators:
        if node.own_code is not None:
            with graph.saying_where(node.uid):
                _check(f"operator {node.uid!r}", node.own_code, node.uid)
    for output in graph.outputs:
        _check(f"sink {output.uid!r}", output.sink, output.uid)


def _check(who: str, given: object, uid: str) -> None:
    error = _refusal(given)
    if error is None:
        return
    attribute, why = next(_at_fault(given), ("", error))
    kind = type(given).__name__
    what = f"its attribute {attribute} cannot" if attribute.startswith("self.") else f"{attribute} cannot"
    raise ConfigError(
        f"{who}: a {kind} is pickled into tasks, and {what if attribute else 'it cannot'} be: {why}. Open connections, locks and files "
        "where they are first used, inside the call, and keep only settings in the object",
        uid=uid,
        attribute=attribute,
    ) from error


def _refusal(value: object) -> Exception | None:
    """Why it cannot be pickled."""
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - whatever an object raises when it is pickled
        return error
    return None


def _at_fault(given: object) -> Iterator[tuple[str, Exception]]:
    """What of it cannot be pickled: an attribute, or a name that its methods use where its class travels with it."""
    for prefix, values in (("self.", _state_of(given)), ("the global ", _globals_of(type(given)))):
        for name, value in values.items():
            error = _refusal(value)
            if error is not None:
                yield f"{prefix}{name} ({type(value).__name__})", error


def _state_of(given: object) -> Mapping[str, Any]:
    state = given.__getstate__()
    return state if isinstance(state, Mapping) else vars(given)


def _globals_of(kind: type) -> dict[str, Any]:
    """The global names that its methods use."""
    found: dict[str, Any] = {}
    for method in vars(kind).values():
        if inspect.isfunction(method):
            closure = inspect.getclosurevars(method)
            found |= {**closure.globals, **closure.nonlocals}
    return found
