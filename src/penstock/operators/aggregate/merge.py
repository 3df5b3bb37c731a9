"""Merge what Spark aggregated inside one batch into the state, column by column. Runs in tasks on executors.

    rows of a batch --(Spark, JVM)--> partials, one row a key --merge--> state --finish--> output columns

A partial is a value that can be merged with another of its kind without the rows behind it. Every aggregate is its own partial, but the
average and the sum of decimals, which are a sum and a count, and those that pick the value of one row (`max_by`, `min_by`, `first` and
`last`). Null and NaN follow Spark, so that the result is what Spark's `groupBy` says about the whole input: null is skipped, a sum of
nothing is null, a count is never null, NaN is larger than any number.

Overflow follows Spark too. In its ANSI mode it is an error. Without, a sum of integers begins again at the other
end, and a sum of decimals is null from then on: the count tells such a null from that of a sum of nothing.

An average of integers is a sum of doubles in Spark, and here; so beyond 2**53, and for floating sums, the
last digits depend on the order of additions, in Spark as well.

An aggregate that picks the value of one row keeps a struct: the `value`, the `by` of `max_by` and `min_by`, and in windows of time the
event time of the row, `at`. There rows are ordered by their event time, elsewhere by the order in which they come. Null stands for "no row
yet": the value of a row may be null. Of rows that are equal in `by` the last one counts, as in Spark where a single task reads all rows in
order.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError, CorruptStateError, IncompatibleStateError
from penstock.operators.aggregate.columns import (
    AT,
    BY,
    PICKING,
    VALUE,
    AggregateColumn,
    Kind,
    Partial,
    output_schema,
    state_schema,
)
from penstock.operators.aggregate.distinct import set_sizes, united
from penstock.operators.values.row_order import compare
from penstock.state.ddl import spark_type


def value_of(picked: pa.Array) -> pa.Array:
    """The values of picked rows."""
    return pc.struct_field(picked, VALUE)


def chosen(before: pa.Array, added: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """For each row, `before` where `keep` is true, else `added`. Where one of them is null, the other one."""
    has_before, has_added = (side.is_valid().to_numpy(zero_copy_only=False) for side in (before, added))
    keep = np.where(has_before & has_added, keep, has_before)
    if keep.all():
        return before
    at = np.arange(len(before))
    return pa.concat_arrays([before, added]).take(pa.array(np.where(keep, at, at + len(before))))


def picked_by(before: pa.Array, added: pa.Array, *, largest: bool) -> pa.Array:
    """The row with the larger, or smaller, `by`; of equal ones the later."""
    by = compare(pc.struct_field(before, BY), pc.struct_field(added, BY))
    better = by > 0 if largest else by < 0
    return chosen(before, added, better | ((by == 0) & (_places(before, added) > 0)))


def picked_first(before: pa.Array, added: pa.Array) -> pa.Array:
    """The earlier row; where rows have no event time, or the same, `before`."""
    return chosen(before, added, _places(before, added) <= 0)


def picked_last(before: pa.Array, added: pa.Array) -> pa.Array:
    """The later row; where rows have no event time, or the same, `added`."""
    return chosen(before, added, _places(before, added) > 0)


def _places(before: pa.Array, added: pa.Array) -> npt.NDArray[np.int8]:
    if before.type.get_field_index(AT) < 0:
        return np.zeros(len(before), dtype=np.int8)
    return compare(pc.struct_field(before, AT), pc.struct_field(added, AT))


_COUNT_AS_DECIMAL = pa.decimal256(19, 0)


Rule = Callable[[pa.Array, pa.Array, AggregateColumn], pa.Array]


def merge(
    specs: Sequence[AggregateColumn], old: pa.RecordBatch, found: npt.NDArray[np.bool_], new: pa.RecordBatch
) -> pa.RecordBatch:
    """The new state of some keys: row i of `old` (where `found`) and row i of `new` belong to the same key.

    Both are read by column name and may have more columns. Raises `BadRecordError` when a sum does not fit.
    """
    known = None if found.all() else pa.array(found)
    merged: list[pa.Array] = []
    for spec in specs:
        before = [_known(_stored(old, partial), known) for partial in spec.partials]
        _check_counts(spec, before, int(np.count_nonzero(~found)))
        added = [new.column(partial.name).cast(partial.type) for partial in spec.partials]
        merged.extend(_merged(spec, before, added))
    return pa.RecordBatch.from_arrays(merged, schema=state_schema(specs))


def _known(before: pa.Array, known: pa.Array | None) -> pa.Array:
    """Values of `old` mean nothing for keys that were not found, and become null."""
    if known is None:
        return before
    if pa.types.is_nested(before.type):
        return before.take(pc.if_else(known, pa.array(np.arange(len(before))), pa.scalar(None, pa.int64())))
    return pc.if_else(known, before, pa.scalar(None, before.type))


def _check_counts(spec: AggregateColumn, before: Sequence[pa.Array], unknown: int) -> None:
    for partial, column in zip(spec.partials, before, strict=True):
        if partial.rule is Kind.COUNT and column.null_count != unknown:
            raise CorruptStateError(
                f"aggregate {spec.name!r}: a known key has no count in state column {partial.name!r}; "
                "restore an older checkpoint",
                column=spec.name,
            )


def finish(specs: Sequence[AggregateColumn], state: pa.RecordBatch) -> pa.RecordBatch:
    """The results of a state, one column for each aggregate."""
    columns = [_result(spec, [state.column(partial.name) for partial in spec.partials]) for spec in specs]
    return pa.RecordBatch.from_arrays(columns, schema=output_schema(specs))


def _stored(old: pa.RecordBatch, partial: Partial) -> pa.Array:
    index = old.schema.get_field_index(partial.name)
    stored = old.schema.field(index).type if index >= 0 else None
    if stored != partial.type:
        raise IncompatibleStateError(
            f"the state has {partial.name!r} as {spark_type(stored) if stored else 'no column'}, the job needs {spark_type(partial.type)}; "
            "the type of the aggregate's input changed: change it back, or give the aggregate another name",
            column=partial.name,
            stored=str(stored),
            needed=str(partial.type),
        )
    return old.column(index)


# --- how two values of a partial become one; null stands for "no value yet" ---


def _either(both: pa.Array, before: pa.Array, added: pa.Array) -> pa.Array:
    """`both` where there are two values, else the only one."""
    return pc.coalesce(both, before, added)


def _merged(
    spec: AggregateColumn, before: Sequence[pa.Array], added: Sequence[pa.Array]
) -> Sequence[pa.Array]:
    if [partial.rule for partial in spec.partials] == [Kind.SUM, Kind.COUNT] and pa.types.is_decimal(
        spec.partials[0].type
    ):
        return _decimal_total(spec, before, added)
    return [
        _RULES[partial.rule](kept, batch, spec)
        for partial, kept, batch in zip(spec.partials, before, added, strict=True)
    ]


def _sum(before: pa.Array, added: pa.Array, spec: AggregateColumn) -> pa.Array:
    if not spec.ansi:
        return _either(pc.add(before, added), before, added)
    try:
        return _either(pc.add_checked(before, added), before, added)
    except pa.ArrowInvalid as error:
        limit = 1 << (before.type.bit_width - 1)
        raise _overflow(spec, before, added, lambda total: -limit <= total < limit) from error


def _decimal_total(
    spec: AggregateColumn, before: Sequence[pa.Array], added: Sequence[pa.Array]
) -> Sequence[pa.Array]:
    """Merge a sum and a count. A sum that overflowed is null although there is a count, and stays null."""
    kind = before[0].type
    limit = decimal.Decimal(10) ** (kind.precision - kind.scale)
    wide = pa.decimal256(kind.precision, kind.scale)
    both = pc.add(before[0].cast(wide), added[0].cast(wide))
    bound = pa.scalar(limit, pa.decimal256(kind.precision + 1, kind.scale))
    too_large = pc.greater_equal(pc.abs(both), bound).fill_null(fill_value=False)
    if spec.ansi and too_large.true_count:
        raise _overflow(spec, before[0], added[0], lambda total: abs(total) < limit)
    lost = pc.or_(too_large, pc.or_(_overflowed(*before), _overflowed(*added)))
    fitting = pc.if_else(too_large, pa.scalar(None, both.type), both).cast(kind)
    total = pc.if_else(lost, pa.scalar(None, kind), _either(fitting, before[0], added[0]))
    return total, _count(before[1], added[1], spec)


def _overflowed(total: pa.Array, count: pa.Array) -> pa.Array:
    return pc.and_(total.is_null(), pc.greater(count, 0).fill_null(fill_value=False))


def _overflow(
    spec: AggregateColumn, before: pa.Array, added: pa.Array, fits: Callable[[Any], bool]
) -> BadRecordError:
    """The error, with the first pair whose sum does not fit. It is made only for a failure, so a loop is fast enough."""
    pairs = zip(before.to_pylist(), added.to_pylist(), strict=True)
    with decimal.localcontext(prec=100):
        kept, batch = next((a, b) for a, b in pairs if None not in (a, b) and not fits(a + b))
    return BadRecordError(
        f"aggregate {spec.name!r} overflows {spark_type(before.type)}: the state holds {kept} and the batch adds {batch}; "
        "a restart would meet it again: aggregate a wider type, for example a decimal or a double",
        column=spec.name,
        state=kept,
        batch=batch,
    )


def _count(before: pa.Array, added: pa.Array, spec: AggregateColumn) -> pa.Array:
    return _sum(before.fill_null(0), added, spec)


def _extreme(before: pa.Array, added: pa.Array, *, smallest: bool) -> pa.Array:
    """The smaller or larger value. Arrow's own functions lack booleans and zoned timestamps, and treat NaN as null."""
    if pa.types.is_nested(before.type):
        signs = compare(before, added)
        return chosen(before, added, signs <= 0 if smallest else signs >= 0)
    keep = pc.less_equal(before, added) if smallest else pc.greater_equal(before, added)
    if pa.types.is_floating(before.type):
        keep = pc.or_(keep, pc.is_nan(added if smallest else before))
    return _either(pc.if_else(keep, before, added), before, added)


def _by(function: Callable[[pa.Array, pa.Array], pa.Array]) -> Rule:
    """Make a rule of a function that returns null where either value is null."""
    return lambda before, added, _spec: _either(function(before, added), before, added)


_RULES: dict[Kind, Rule] = {
    Kind.COUNT: _count,
    Kind.SUM: _sum,
    Kind.MIN: lambda before, added, _spec: _extreme(before, added, smallest=True),
    Kind.MAX: lambda before, added, _spec: _extreme(before, added, smallest=False),
    Kind.BOOL_AND: _by(pc.and_),
    Kind.BOOL_OR: _by(pc.or_),
    Kind.BIT_AND: _by(pc.bit_wise_and),
    Kind.BIT_OR: _by(pc.bit_wise_or),
    Kind.BIT_XOR: _by(pc.bit_wise_xor),
    Kind.MAX_BY: lambda before, added, _spec: picked_by(before, added, largest=True),
    Kind.MIN_BY: lambda before, added, _spec: picked_by(before, added, largest=False),
    Kind.FIRST: lambda before, added, _spec: picked_first(before, added),
    Kind.LAST: lambda before, added, _spec: picked_last(before, added),
    Kind.COUNT_DISTINCT: lambda before, added, _spec: united(before, added),
}


# --- results ---


def _result(spec: AggregateColumn, columns: list[pa.Array]) -> pa.Array:
    if spec.kind in PICKING:
        return value_of(columns[0]).cast(spec.output)
    if spec.kind is Kind.COUNT_DISTINCT and pa.types.is_list(columns[0].type):
        return set_sizes(columns[0]).cast(spec.output)
    if spec.kind is not Kind.AVG:
        return columns[0].cast(spec.output)
    total, count = columns
    if pa.types.is_decimal(spec.output):
        return _decimal_average(spec, total, count)
    return pc.divide(total, count.cast(pa.float64()))


def _decimal_average(spec: AggregateColumn, total: pa.Array, count: pa.Array) -> pa.Array:
    """Round as Spark does: once, half away from zero, at the scale of the result."""
    at_least_one = pc.if_else(pc.equal(count, 0), pa.scalar(None, count.type), count)
    wide = pa.decimal256(total.type.precision, total.type.scale)
    # Arrow truncates 20 digits after the last of `total`, so the next digit alone decides
    truncated = pc.divide(total.cast(wide), at_least_one.cast(_COUNT_AS_DECIMAL))
    quotient = pc.round(truncated, ndigits=spec.output.scale, round_mode="half_towards_infinity")
    try:
        return quotient.cast(spec.output)
    except pa.ArrowInvalid as error:
        if spec.ansi:
            raise BadRecordError(
                f"aggregate {spec.name!r}: an average does not fit {spec.output}; "
                "a restart would meet it again: average a decimal with fewer whole digits, or a double",
                column=spec.name,
            ) from error
    limit = decimal.Decimal(10) ** (spec.output.precision - spec.output.scale)
    fitting = [None if value is None or abs(value) >= limit else value for value in quotient.to_pylist()]
    return pa.array(fitting, quotient.type).cast(spec.output)


Positions = npt.NDArray[np.int64]


def merged_groups(
    specs: Sequence[AggregateColumn], partials: pa.RecordBatch, starts: Positions
) -> pa.RecordBatch:
    """One row for each group: group i has the rows `starts[i]` up to `starts[i + 1]`, at least one.

    Neighbours are merged in pairs, in as many rounds as the largest group can be halved, in the order of the rows.
    """
    sizes = np.diff(starts)
    while len(sizes) and sizes.max() > 1:
        within = np.arange(len(partials)) - np.repeat(starts[:-1], sizes)
        left = np.flatnonzero(within % 2 == 0)
        has_right = within[left] + 1 < np.repeat(sizes, (sizes + 1) // 2)
        pairs = left[has_right]
        known = np.ones(len(pairs), dtype=np.bool_)
        merged = merge(specs, partials.take(pa.array(pairs)), known, partials.take(pa.array(pairs + 1)))
        at = left.copy()
        at[has_right] = len(partials) + np.arange(len(pairs))
        both = pa.Table.from_batches([partials.select(merged.schema.names), merged])
        (partials,) = both.take(pa.array(at)).combine_chunks().to_batches()
        sizes = (sizes + 1) // 2
        starts = np.concatenate(([0], np.cumsum(sizes)))
    return partials
