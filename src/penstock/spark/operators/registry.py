"""Which function compiles which operator: the only place that knows all kinds. Driver.

`dedupe` and `top` are compiled here, because Spark does nothing for them: their rows go to tasks as they are. The other operators have a
module each, with the name that it has in `penstock.operators`.

To add an operator from outside Penstock: a class of `operators.base.Operator` with its `Spec` and `Task`; a function that compiles it,
given to `register` before the job starts; and `stream.apply(lambda upstream: MyOperator("uid", upstream, ("key",)))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from penstock.errors import ConfigError
from penstock.operators.aggregate.operator import Aggregate
from penstock.operators.base import Operator
from penstock.operators.dedupe import Dedupe, DedupeSpec
from penstock.operators.join.lookup import Lookup
from penstock.operators.join.spec import Join
from penstock.operators.process.operator import ProcessOperator
from penstock.operators.top import RANK, Top, TopSpec
from penstock.operators.window.operator import Window
from penstock.spark.dead_letters import all_nullable
from penstock.spark.event_times import event_time_of
from penstock.spark.operators.aggregate import compile_aggregate
from penstock.spark.operators.aggregate_columns import is_plain
from penstock.spark.operators.base import CompiledOperator, OperatorInput, check_names, compiled
from penstock.spark.operators.join import compile_join, compile_lookup
from penstock.spark.operators.process import compile_process
from penstock.spark.operators.window import compile_window
from penstock.wording import with_article


def compile_top(node: Top, given: OperatorInput) -> CompiledOperator:
    """Type it against the columns of its stream; raises `ConfigError` for columns that are missing, or cannot be ordered as Spark does."""
    frame = given.frame
    _check_names(node, frame)
    for argument, names in (
        ("by", [order.column for order in node.by]),
        ("of", node.of),
        ("order_by", [order.column for order in node.newest]),
    ):
        for name in names:
            _check_column(node, frame, argument, name)
    spec = TopSpec(given.columns, node.keys, node.n, node.by, node.of, node.newest)
    result = StructType([*frame.schema.fields, StructField(RANK.name, IntegerType())])
    return compiled(given, spec, all_nullable(result))


def _check_names(node: Top, frame: DataFrame) -> None:
    check_names(node.uid, "only", frame)
    if RANK.name in map(str.lower, frame.columns):
        raise ConfigError(
            f"operator {node.uid!r}: the rows have a column {RANK.name!r}, and top() adds one of this name; rename it before",
            operator=node.uid,
            column=RANK.name,
        )


def _check_column(node: Top, frame: DataFrame, argument: str, name: str) -> None:
    if name not in frame.columns:
        raise ConfigError(
            f"operator {node.uid!r}: {argument} names {name}; there are {', '.join(frame.columns)}",
            operator=node.uid,
            column=name,
        )
    kind = frame.schema[name].dataType
    if not is_plain(kind):
        raise ConfigError(
            f"operator {node.uid!r}: {argument} names {name}, {with_article(kind.simpleString())}, which top() cannot put in order; "
            "name numbers, plain strings, bytes, dates or timestamps",
            operator=node.uid,
            column=name,
            type=kind.simpleString(),
        )


def compile_dedupe(node: Dedupe, given: OperatorInput) -> CompiledOperator:
    """Type it against the columns of its stream; raises `ConfigError`."""
    check_names(node.uid, "only", given.frame)
    time = event_time_of(node.upstream, given.frame, uid=node.uid, named=node.event_time)
    spec = DedupeSpec(given.columns, node.keys, time, node.within_us)
    return compiled(given, spec, all_nullable(given.frame.schema))


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
    """Register the function that compiles a class of operators."""
    _COMPILES[kind] = compiles


def compile_operator(given: OperatorInput) -> CompiledOperator:
    """Compile an operator; raises `ConfigError` where it does not fit its input."""
    node = given.node
    for kind in type(node).__mro__:
        if kind in _COMPILES:
            return _COMPILES[kind](node, given)
    raise ConfigError(
        f"operator {node.uid!r}: no function is registered that compiles the class {type(node).__name__}; import the module that calls "
        f"penstock.spark.operators.registry.register({type(node).__name__}, ...) before the job begins",
        operator=node.uid,
    )
