"""Analyses the aggregate columns that a user writes, and derives what to compute in a batch. Driver.

`stream.aggregate(pv=F.count("*"))` passes opaque PySpark columns. Their expressions are read through py4j, and Spark itself is asked for
their types, so that a result has the type that `groupBy` gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, NoReturn

from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every PySpark program uses
from pyspark.sql import types as T  # noqa: N812  the same
from pyspark.sql.classic.column import Column as ClassicColumn

from penstock.errors import ConfigError
from penstock.operators.aggregate.columns import (
    PICKING,
    AggregateColumn,
    Kind,
    Partial,
    partial_name,
    picked_type,
)
from penstock.operators.aggregate.distinct import part_names, value_names
from penstock.spark.key_columns import normal
from penstock.spark.operators.aggregate_values import DistinctValues, Picked
from penstock.spark.versions import arrow_type
from penstock.state.ddl import canonical

_KINDS = {
    "count": Kind.COUNT,
    "count_if": Kind.COUNT,
    "sum": Kind.SUM,
    "min": Kind.MIN,
    "max": Kind.MAX,
    "avg": Kind.AVG,
    "mean": Kind.AVG,
    "bool_and": Kind.BOOL_AND,
    "every": Kind.BOOL_AND,
    "bool_or": Kind.BOOL_OR,
    "some": Kind.BOOL_OR,
    "any": Kind.BOOL_OR,
    "bit_and": Kind.BIT_AND,
    "bit_or": Kind.BIT_OR,
    "bit_xor": Kind.BIT_XOR,
    "max_by": Kind.MAX_BY,
    "min_by": Kind.MIN_BY,
    "first": Kind.FIRST,
    "first_value": Kind.FIRST,
    "any_value": Kind.FIRST,
    "last": Kind.LAST,
    "last_value": Kind.LAST,
}
SUPPORTED = (*_KINDS, "count_distinct")

_ORDERED = (
    T.BooleanType,
    T.IntegralType,
    T.FractionalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)
_TOTALS = (T.LongType, T.DoubleType, T.DecimalType)


def describe(name: str, column: Column, frame: DataFrame, *, timed: bool = False) -> AggregateColumn:
    """Describe what `column` aggregates; raises `ConfigError` when it cannot be merged. `timed`: rows are ordered by event time."""
    call = _call(name, column, frame)
    result = _result_type(name, column, frame)
    if call.distinct:
        return _counting_distinct(name, call, result, frame)
    kind = _KINDS[call.function]
    if kind in PICKING:
        return _picking(name, call, kind, frame, timed=timed)
    _check_type(name, call.function, kind, result)
    kept = _kept(kind, call.arguments[0], column, result)
    return AggregateColumn(
        name=name,
        kind=kind,
        partials=tuple(
            Partial(partial_name(name, rule), rule, canonical(arrow_type(_result_type(name, part, frame))))
            for rule, part in kept
        ),
        output=canonical(arrow_type(result)),
        ansi=_is_true(frame.sparkSession.conf.get("spark.sql.ansi.enabled")),
    )


def _is_true(setting: str | None) -> bool:
    """Read a boolean setting as Spark does: it stores the text as the user wrote it."""
    return (setting or "").strip().lower() == "true"


def partials(
    spec: AggregateColumn,
    column: Column,
    frame: DataFrame,
    counts: Column | None = None,
    time: Column | None = None,
) -> list[Column]:
    """The columns for `groupBy(keys).agg(...)` inside a batch, named as the state columns of `spec`.

    They use only rows where `counts` is true, and compute nothing for the others. A count of distinct values has no such column, unless it
    stores a set: only the state tells which values are new. Aggregates that pick a row need its number (see `with_arrival`), and its `time`
    where they are described as timed.
    """
    if spec.distinct:
        return []
    if spec.kind in PICKING:
        picked = _picked(_call(spec.name, column, frame), spec.kind, time)
        return [picked.of_rows(counts).alias(spec.partials[0].name)]
    if spec.kind is Kind.COUNT_DISTINCT:
        value = _value(_call(spec.name, column, frame), frame, counts)
        return [F.collect_set(value).alias(spec.partials[0].name)]
    if counts is None and len(spec.partials) == 1:
        return [column.alias(spec.partials[0].name)]
    call = _call(spec.name, column, frame)
    result = _result_type(spec.name, column, frame)
    if counts is not None:
        call = _only_of(call, counts)
        column = F.call_function(call.function, *call.arguments)
    kept = _kept(spec.kind, call.arguments[0], column, result)
    return [part.alias(partial.name) for partial, (_, part) in zip(spec.partials, kept, strict=True)]


def partials_of_a_row(spec: AggregateColumn, column: Column, frame: DataFrame) -> list[Column]:
    """The same columns for each row alone, without `groupBy`."""
    call = _call(spec.name, column, frame)
    if spec.kind in PICKING:
        return [_picked(call, spec.kind).of_one_row().alias(spec.partials[0].name)]
    if spec.kind is Kind.COUNT_DISTINCT:
        return [F.array_compact(F.array(_value(call, frame))).alias(spec.partials[0].name)]
    result = _result_type(spec.name, column, frame)
    kept = _kept(spec.kind, call.arguments[0], column, result)
    types = [_result_type(spec.name, part, frame) for _, part in kept]
    known = reduce(and_, (argument.isNotNull() for argument in call.arguments))
    if call.function == "count_if":
        known = call.arguments[0].isNotNull() & call.arguments[0]
    return [
        (known.cast("long") if rule is Kind.COUNT else call.arguments[0].cast(kind)).alias(partial.name)
        for partial, (rule, _), kind in zip(spec.partials, kept, types, strict=True)
    ]


def _only_of(call: _Call, counts: Column) -> _Call:
    """The call with arguments that are null where a row does not count.

    It is the arguments, not the columns in them, that are null: coalesce(x, 0) has a value where x is null, and 1 / coalesce(x, 0) fails.
    """
    return replace(call, arguments=tuple(F.when(counts, one) for one in call.arguments))


def _picking(name: str, call: _Call, kind: Kind, frame: DataFrame, *, timed: bool) -> AggregateColumn:
    types = _types(call.arguments, frame)
    for one in types:
        _check_leaves(name, call.function, one)
    if len(types) > 1:
        _check_type(name, call.function, Kind.MAX, types[1])
    value, *by = (canonical(arrow_type(one)) for one in types)
    kept = picked_type(value, by[0] if by else None, timed=timed)
    return AggregateColumn(name, kind, (Partial(partial_name(name, kind), kind, kept),), value)


def _picked(call: _Call, kind: Kind, time: Column | None = None) -> Picked:
    value, *by = call.arguments
    return Picked(kind, value, by[0] if by else None, call.ignore_nulls, time)


def _counting_distinct(name: str, call: _Call, result: T.DataType, frame: DataFrame) -> AggregateColumn:
    types = _types(call.arguments, frame)
    for kind in types:
        _check_value(name, kind)
    count = Partial(partial_name(name, Kind.COUNT_DISTINCT), Kind.COUNT, arrow_type(result))
    return AggregateColumn(
        name=name,
        kind=Kind.COUNT_DISTINCT,
        partials=(count,),
        output=arrow_type(result),
        distinct=tuple(map(arrow_type, types)),
    )


def _value(call: _Call, frame: DataFrame, counts: Column | None = None) -> Column:
    """The value that a row adds to a set of distinct values: null where the row does not count, or one of the columns is null."""
    types = _types(call.arguments, frame)
    arguments = call.arguments if counts is None else _only_of(call, counts).arguments
    columns = [normal(one, kind) for one, kind in zip(arguments, types, strict=True)]
    if len(columns) == 1:
        return columns[0]
    known = reduce(and_, (one.isNotNull() for one in columns))
    names = part_names(len(columns))
    return F.when(known, F.struct(*(one.alias(name) for one, name in zip(columns, names, strict=True))))


def distinct_values(spec: AggregateColumn, column: Column, frame: DataFrame) -> DistinctValues:
    """The values of which `spec` counts the distinct ones, normalised as Spark compares them: one zero and one NaN."""
    arguments = _call(spec.name, column, frame).arguments
    columns = [normal(one, kind) for one, kind in zip(arguments, _types(arguments, frame), strict=True)]
    return DistinctValues(tuple(value_names(spec)), tuple(columns))


def _types(columns: Sequence[Column], frame: DataFrame) -> list[T.DataType]:
    named = [column.alias(str(at)) for at, column in enumerate(columns)]
    return [field.dataType for field in frame.select(*named).schema.fields]


def _check_value(name: str, kind: T.DataType) -> None:
    if not is_plain(kind):
        raise ConfigError(
            f"aggregate {name!r}: distinct values of {kind.simpleString()} cannot be counted; count numbers, plain strings, bytes, dates "
            "or timestamps, for instance to_json(...) of it, or a cast",
            aggregate=name,
            type=kind.simpleString(),
        )


def is_plain(kind: T.DataType) -> bool:
    """Whether Penstock compares and orders values of this type as Spark does."""
    return isinstance(kind, _ORDERED) and not _is_collated(kind)


def _is_collated(kind: T.DataType) -> bool:
    return isinstance(kind, T.StringType) and not kind.isUTF8BinaryCollation()


def _kept(kind: Kind, argument: Column, column: Column, result: T.DataType) -> list[tuple[Kind, Column]]:
    """The columns that represent an aggregate in the state.

    Spark averages decimals as decimals and everything else, integers too, as a sum of doubles. Its sum of decimals is null when it
    overflowed and when there was nothing to add; the count tells which.
    """
    if kind is Kind.SUM and isinstance(result, T.DecimalType):
        return [(Kind.SUM, column), (Kind.COUNT, F.count(argument))]
    if kind is Kind.AVG:
        summed = argument if isinstance(result, T.DecimalType) else argument.cast("double")
        return [(Kind.SUM, F.sum(summed)), (Kind.COUNT, F.count(summed))]
    return [(kind, column)]


# --- the expression of a column ---


@dataclass(frozen=True)
class _Call:
    """A call of one aggregate function."""

    function: str
    arguments: tuple[Column, ...]
    distinct: bool
    ignore_nulls: bool = False
    """Whether `first` and `last` skip nulls."""


def _call(name: str, column: Column, frame: DataFrame) -> _Call:
    if not isinstance(column, Column):
        _refuse(name, f"is {column!r}, not a column")
    if not isinstance(column, ClassicColumn):
        _refuse(name, "is a column of Spark Connect, which cannot be looked into (use a classic session)")
    node = _strip_alias(column._jc.node())
    if node_class(node) == "SqlExpression":
        return _parsed_call(name, node.expression(), frame)
    if node_class(node) != "UnresolvedFunction":
        _refuse(name, f"is {_what(node)}")
    function, distinct = str(node.functionName()).lower(), bool(node.isDistinct())
    _check_function(name, function, distinct=distinct)
    arguments = _arguments(name, function, node, frame, distinct=distinct)
    return _checked_call(name, _Call(function, arguments, distinct), node)


def _parsed_call(name: str, text: str, frame: DataFrame) -> _Call:
    """`F.expr("sum(x)")` is text until Spark parses it."""
    session: Any = frame.sparkSession
    node = _strip_alias(session._jsparkSession.sessionState().sqlParser().parseExpression(text))
    if node_class(node) != "UnresolvedFunction":
        _refuse(name, f"is the expression {text!r}")
    function = ".".join(map(str, _items(node.nameParts()))).lower()
    if node.filter().isDefined():
        _refuse(name, f"has a FILTER clause ({text!r}); aggregate a F.when(...) without otherwise instead")
    distinct = bool(node.isDistinct())
    _check_function(name, function, distinct=distinct)
    arguments = _arguments(name, function, node, frame, distinct=distinct, parsed=True)
    ignores = str(node.ignoreNulls()) in ("true", "Some(true)")
    return _checked_call(name, _Call(function, arguments, distinct, ignores), node)


def _checked_call(name: str, call: _Call, node: Any) -> _Call:
    """Check the arguments of the call, and read those that are no columns: `first(x, true)` skips nulls."""
    kind = _KINDS.get(call.function)
    if kind in (Kind.MAX_BY, Kind.MIN_BY) and len(call.arguments) != 2:  # noqa: PLR2004 - the value, and what is compared
        _refuse(
            name, f"is {call.function}(...) with {len(call.arguments)} arguments (top() keeps several rows)"
        )
    if kind not in (Kind.FIRST, Kind.LAST) or len(call.arguments) == 1:
        return call
    said = str(list(_items(node.arguments()))[1].sql()).lower()
    if len(call.arguments) != 2 or said not in ("true", "false"):  # noqa: PLR2004 - the value, and what is done with nulls
        _refuse(name, f"is {call.function}(...) with an argument that is neither a column nor true or false")
    return replace(call, arguments=call.arguments[:1], ignore_nulls=call.ignore_nulls or said == "true")


def _arguments(
    name: str, function: str, node: Any, frame: DataFrame, *, distinct: bool, parsed: bool = False
) -> tuple[Column, ...]:
    given = list(_items(node.arguments()))
    stars = [text for text in map(_star, given) if text]
    if not stars:
        return tuple(_wrap(frame, one, parsed=parsed) for one in given)
    if distinct:
        _refuse(name, "is count(DISTINCT *), which names no columns (name those whose values you mean)")
    if function != "count" or len(given) > 1 or stars != ["*"]:
        _refuse(name, f"has a * for columns in {function}(...) (name those that you mean)")
    return (F.lit(1),)


def _check_function(name: str, function: str, *, distinct: bool) -> None:
    if distinct and function != "count":
        _refuse(name, f"is {function}(DISTINCT ...), which would have to keep every value")
    if function == "approx_count_distinct":
        _refuse(name, "is approx_count_distinct(...) (count_distinct(...) is exact, and supported)")
    if function not in _KINDS:
        _refuse(
            name, f"is {function}(...)" if function.isidentifier() else f"is an expression with {function!r}"
        )


def _refuse(name: str, what: str) -> NoReturn:
    raise ConfigError(
        f"aggregate {name!r} {what}; it cannot be merged from batch to batch. "
        f"Supported: {', '.join(SUPPORTED)}. "
        "Compute on the results with transform() afterwards, or use process() with state of your own",
        aggregate=name,
        supported=SUPPORTED,
    )


def _what(node: Any) -> str:
    known = {
        "Cast": "a cast of a result",
        "Window": "a window function",
        "UnresolvedAttribute": f"the plain column {node.sql()}",
        "Literal": f"the constant {node.sql()}",
    }
    return known.get(node_class(node), f"the expression {node.sql()}")


def _strip_alias(node: Any) -> Any:
    while node_class(node) == "Alias":
        node = node.child()
    return node


def node_class(node: Any) -> str:
    """The name of the Java class of an expression."""
    return str(node.getClass().getSimpleName())


def _star(node: Any) -> str:
    """`*` for all columns of a row, another text for some of them; '' if the argument is not a star."""
    inner = node.expression() if node_class(node) == "ExpressionColumnNode" else node
    if node_class(inner) == "ResolvedStar":  # frame["*"]
        return "*"
    return str(inner.sql()) if node_class(inner).startswith("UnresolvedStar") else ""


def _items(seq: Any) -> Iterator[Any]:
    return (seq.apply(index) for index in range(seq.size()))


def _wrap(frame: DataFrame, node: Any, *, parsed: bool = False) -> Column:
    """Make a PySpark column of an expression inside another column."""
    session: Any = frame.sparkSession
    sql = session._jvm.org.apache.spark.sql
    return ClassicColumn(sql.classic.ExpressionUtils.column(node) if parsed else sql.Column(node))


# --- types ---


def _result_type(name: str, column: Column, frame: DataFrame) -> T.DataType:
    try:
        return frame.agg(column).schema[0].dataType
    except AnalysisException as error:
        raise ConfigError(
            f"aggregate {name!r} is refused by Spark: {str(error).splitlines()[0]}; "
            f"the input has the columns {', '.join(frame.columns)}",
            aggregate=name,
        ) from error


def _check_type(name: str, function: str, kind: Kind, result: T.DataType) -> None:
    allowed = {
        Kind.MIN: _is_ordered(result),
        Kind.MAX: _is_ordered(result),
        Kind.SUM: isinstance(result, _TOTALS),
        Kind.AVG: isinstance(result, _TOTALS),
    }.get(kind, True)
    if not allowed or _is_collated(result):
        raise _unsupported(name, function, result)


def _check_leaves(name: str, function: str, kind: T.DataType) -> None:
    """Refuse values that cannot be stored unchanged."""
    try:
        arrow_type(kind)
    except PySparkTypeError as error:
        raise _unsupported(name, function, kind) from error
    if _has_collation(kind):
        raise _unsupported(name, function, kind)


def _is_ordered(kind: T.DataType) -> bool:
    """Whether `value_order` orders its values as Spark does."""
    match kind:
        case T.StructType():
            return all(_is_ordered(field.dataType) for field in kind.fields)
        case T.ArrayType():
            return _is_ordered(kind.elementType)
        case _:
            return is_plain(kind)


def _has_collation(kind: T.DataType) -> bool:
    match kind:
        case T.StructType():
            return any(_has_collation(field.dataType) for field in kind.fields)
        case T.ArrayType():
            return _has_collation(kind.elementType)
        case T.MapType():
            return _has_collation(kind.keyType) or _has_collation(kind.valueType)
        case _:
            return _is_collated(kind)


def _unsupported(name: str, function: str, kind: T.DataType) -> ConfigError:
    return ConfigError(
        f"aggregate {name!r}: {function} of {kind.simpleString()} is not supported; "
        "cast the input to a number, a plain string, a date or a timestamp, or use process()",
        aggregate=name,
        type=kind.simpleString(),
    )
