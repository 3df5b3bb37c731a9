"""One aggregate: its kind, its partial values, and their names in the state. Driver and executors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from penstock.state.ddl import arrow_type, spark_type

VALUE, BY, AT = "value", "by", "at"
"""The stored fields of the row that an aggregate has picked: its value, what was compared, and in windows its event time."""
_AVERAGE = b"penstock.average"
"""Metadata of the columns of an average: the type of its result."""


class Kind(StrEnum):
    """An aggregate that can be merged. All but AVG are also the rule by which a partial column is merged."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    COUNT_DISTINCT = "count_distinct"
    MAX_BY = "max_by"
    MIN_BY = "min_by"
    FIRST = "first"
    LAST = "last"


PICKING = (Kind.MAX_BY, Kind.MIN_BY, Kind.FIRST, Kind.LAST)
"""Aggregates that pick the value of one row."""


@dataclass(frozen=True)
class Partial:
    """A column of the state that Spark also computes for every batch, and the rule that merges the two."""

    name: str
    rule: Kind
    type: pa.DataType


@dataclass(frozen=True)
class AggregateColumn:
    """One aggregate: the user's name, what is kept, the type that Spark gives its result, and whether overflow is an error.

    `distinct` are the types of the values of which it counts the distinct ones, with tables of them; empty for all others.
    """

    name: str
    kind: Kind
    partials: tuple[Partial, ...]
    output: pa.DataType
    ansi: bool = True
    distinct: tuple[pa.DataType, ...] = ()


_PARTIAL = re.compile(rf"__(?P<aggregate>.+)_(?P<rule>{'|'.join(Kind)})", re.DOTALL)
"""A name can be parsed in one way only, because no rule is the part of another rule after a `_`."""


def partial_name(aggregate: str, rule: Kind) -> str:
    """The name of a state column. It depends only on its own aggregate, so other aggregates can be added and removed."""
    return f"__{aggregate}_{rule.value}"


def aggregate_of(column: str) -> tuple[str, Kind] | None:
    """The aggregate to which a state column of this name belongs, and the rule of the column."""
    found = _PARTIAL.fullmatch(column)
    return None if found is None else (found["aggregate"], Kind(found["rule"]))


def state_schema(specs: Sequence[AggregateColumn]) -> pa.Schema:
    """The value columns of the state. Metadata marks those of an average, because a sum of decimals is a sum and a count, too."""
    return pa.schema([_field(spec, partial) for spec in specs for partial in spec.partials])


def _field(spec: AggregateColumn, partial: Partial) -> pa.Field:
    said = {_AVERAGE: spark_type(spec.output)} if spec.kind is Kind.AVG else None
    return pa.field(partial.name, partial.type, metadata=said)


def stored_aggregates(state: Sequence[pa.Field]) -> list[AggregateColumn]:
    """The aggregates of stored columns, in their order, for reading state without the job."""
    found: dict[str, list[tuple[Kind, pa.Field]]] = {}
    for field in state:
        whose = aggregate_of(field.name)
        if whose is not None:
            found.setdefault(whose[0], []).append((whose[1], field))
    return [_stored_aggregate(name, columns) for name, columns in found.items()]


def _stored_aggregate(name: str, columns: Sequence[tuple[Kind, pa.Field]]) -> AggregateColumn:
    partials = tuple(Partial(field.name, rule, field.type) for rule, field in columns)
    kind, first = columns[0]
    average = (first.metadata or {}).get(_AVERAGE)
    if average is not None:
        return AggregateColumn(name, Kind.AVG, partials, arrow_type(average.decode()), ansi=False)
    if len(partials) > 1 and pa.types.is_floating(first.type):  # a sum of these would have no count
        return AggregateColumn(name, Kind.AVG, partials, pa.float64(), ansi=False)
    output = first.type.field(0).type if kind in PICKING else first.type
    if pa.types.is_list(first.type) and kind is Kind.COUNT_DISTINCT:
        output = pa.int64()
    return AggregateColumn(name, kind, partials, output)


def output_schema(specs: Sequence[AggregateColumn]) -> pa.Schema:
    """The columns that `finish` returns, with the types of Spark's own results; timestamps are in UTC."""
    return pa.schema([(spec.name, spec.output) for spec in specs])


def picked_type(value: pa.DataType, by: pa.DataType | None, *, timed: bool) -> pa.DataType:
    """The stored type of an aggregate that picks a row. `timed`: whether rows are ordered by their event time."""
    by_field = [] if by is None else [pa.field(BY, by)]
    return pa.struct([pa.field(VALUE, value), *by_field, *([pa.field(AT, pa.int64())] if timed else [])])
