"""Which function compiles which operator: the only place that knows all kinds. Driver.

To add an operator from outside Penstock: a class of `operators.base.Operator` with its `Spec` and `Task`; a function that compiles it,
given to `register` before the job starts; and `stream.apply(lambda upstream: MyOperator("uid", upstream, ("key",)))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import ConfigError
from penstock.operators.aggregate.operator import Aggregate
from penstock.operators.base import Operator
from penstock.operators.dedupe import Dedupe
from penstock.operators.join.lookup import Lookup
from penstock.operators.join.spec import Join
from penstock.operators.process.operator import ProcessOperator
from penstock.operators.top import Top
from penstock.operators.window.operator import Window
from penstock.spark.operators.aggregate import compile_aggregate
from penstock.spark.operators.base import CompiledOperator, OperatorInput
from penstock.spark.operators.dedupe import compile_dedupe
from penstock.spark.operators.join import compile_join, compile_lookup
from penstock.spark.operators.process import compile_process
from penstock.spark.operators.top import compile_top
from penstock.spark.operators.window import compile_window

_O = TypeVar("_O", bound=Operator)

_COMPILES: dict[type[Operator], Callable[[Any, OperatorInput], CompiledOperator]] = {
    Aggregate: compile_aggregate,
    Dedupe: compile_dedupe,
    Join: compile_join,
    Lookup: compile_lookup,
    ProcessOperator: compile_process,
    Top: compile_top,
    Window: compile_window,
}


def register(kind: type[_O], compiles: Callable[[_O, OperatorInput], CompiledOperator]) -> None:
    """Add an operator: its class, and the function that compiles it."""
    _COMPILES[kind] = compiles


def compile_operator(given: OperatorInput) -> CompiledOperator:
    """An operator with its types; raises `ConfigError` where it does not fit its input."""
    node = given.node
    for kind in type(node).__mro__:
        if kind in _COMPILES:
            return _COMPILES[kind](node, given)
    raise ConfigError(
        f"operator {node.uid!r}: no function is registered that compiles the class {type(node).__name__}; import the module that calls "
        f"penstock.spark.operators.registry.register({type(node).__name__}, ...) before the job begins",
        operator=node.uid,
    )
