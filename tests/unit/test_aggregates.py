"""Merging partials of several batches gives what one batch of everything would have given."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecordError, CorruptStateError, IncompatibleStateError
from penstock.operators.aggregate.columns import (
    AggregateColumn,
    Kind,
    Partial,
    output_schema,
    partial_name,
    state_schema,
)
from penstock.operators.aggregate.merge import finish, merge

INT = st.integers(-(2**40), 2**40)
FLOAT = st.floats(allow_nan=True, allow_infinity=False, width=32).map(lambda x: x + 0.0)
DECIMAL = st.decimals(-10_000, 10_000, places=2, allow_nan=False)
TIME = st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2100, 1, 1))  # noqa: DTZ001  zoned where the type is


def total(values: list[Any]) -> Any:
    return sum(values[1:], values[0])


def largest(values: list[Any]) -> Any:
    return next((v for v in values if isinstance(v, float) and math.isnan(v)), None) or max(values)


def smallest(values: list[Any]) -> Any:
    numbers = [v for v in values if not (isinstance(v, float) and math.isnan(v))]
    return min(numbers) if numbers else values[0]


def fold(function: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
    def reduce(values: list[Any]) -> Any:
        result = values[0]
        for value in values[1:]:
            result = function(result, value)
        return result

    return reduce


CASES: list[tuple[Kind, pa.DataType, st.SearchStrategy[Any], Callable[[list[Any]], Any]]] = [
    (Kind.SUM, pa.int64(), INT, total),
    (Kind.BOOL_AND, pa.bool_(), st.booleans(), all),
    (Kind.BOOL_OR, pa.bool_(), st.booleans(), any),
    (Kind.BIT_AND, pa.int32(), st.integers(-(2**31), 2**31 - 1), fold(lambda a, b: a & b)),
    (Kind.BIT_OR, pa.int16(), st.integers(-(2**15), 2**15 - 1), fold(lambda a, b: a | b)),
    (Kind.BIT_XOR, pa.int64(), INT, fold(lambda a, b: a ^ b)),
]
for _type, _values in [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), INT),
    (pa.float32(), FLOAT),
    (pa.float64(), FLOAT),
    (pa.decimal128(12, 2), DECIMAL),
    (pa.string(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=3)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), TIME),
    (pa.timestamp("us", tz="UTC"), TIME.map(lambda t: t.replace(tzinfo=dt.UTC))),
]:
    CASES += [(Kind.MIN, _type, _values, smallest), (Kind.MAX, _type, _values, largest)]


def spec_of(kind: Kind, type_: pa.DataType, name: str = "x") -> AggregateColumn:
    return AggregateColumn(name, kind, (Partial(partial_name(name, kind), kind, type_),), type_)


def average_of(total_type: pa.DataType, output: pa.DataType, *, ansi: bool = True) -> AggregateColumn:
    parts = _sum_and_count(total_type)
    return AggregateColumn("x", Kind.AVG, parts, output, ansi)


def decimal_sum_of(type_: pa.DataType, *, ansi: bool = True) -> AggregateColumn:
    return AggregateColumn("x", Kind.SUM, _sum_and_count(type_), type_, ansi)


def _sum_and_count(total_type: pa.DataType) -> tuple[Partial, ...]:
    return (
        Partial(partial_name("x", Kind.SUM), Kind.SUM, total_type),
        Partial(partial_name("x", Kind.COUNT), Kind.COUNT, pa.int64()),
    )


def batch(spec: AggregateColumn, *columns: list[Any]) -> pa.RecordBatch:
    schema = state_schema([spec])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def partial_of(values: list[Any], reduce: Callable[[list[Any]], Any]) -> Any:
    known = [v for v in values if v is not None]
    return reduce(known) if known else None


def same(left: Any, right: Any) -> bool:
    both_nan = isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
    return both_nan or left == right


def merge_all(spec: AggregateColumn, batches: list[list[Any]]) -> Any:
    """Merge one key's partials, one batch after the other, starting without state."""
    state = batch(spec, *[[None]] * len(spec.partials))
    for number, row in enumerate(batches):
        state = merge([spec], state, np.array([number > 0]), batch(spec, *[[value] for value in row]))
    return finish([spec], state).column(0)[0].as_py()


@pytest.mark.parametrize(
    ("kind", "type_", "values", "reduce"),
    CASES,
    ids=lambda v: str(v) if isinstance(v, Kind | pa.DataType) else "",
)
@given(data=st.data())
def test_split_is_the_whole(
    kind: Kind,
    type_: pa.DataType,
    values: st.SearchStrategy[Any],
    reduce: Callable[[list[Any]], Any],
    data: st.DataObject,
) -> None:
    """However the input is cut into batches, the merged result is that of the whole input, nulls skipped."""
    batches = data.draw(st.lists(st.lists(st.none() | values, max_size=4), min_size=1, max_size=5))
    whole = partial_of([value for part in batches for value in part], reduce)
    merged = merge_all(spec_of(kind, type_), [[partial_of(part, reduce)] for part in batches])
    assert same(merged, whole), (merged, whole)


@given(parts=st.lists(st.integers(0, 2**40), min_size=1, max_size=6))
def test_counts_add_up(parts: list[int]) -> None:
    """Counts of batches add up, zeros included."""
    assert merge_all(spec_of(Kind.COUNT, pa.int64()), [[part] for part in parts]) == sum(parts)


@given(batches=st.lists(st.lists(st.none() | st.integers(-1000, 1000), max_size=5), min_size=1, max_size=5))
def test_average_of_numbers(batches: list[list[int | None]]) -> None:
    """The average over all batches is the sum of what is not null over its count, or null."""
    spec = average_of(pa.float64(), pa.float64())
    rows = [[partial_of(part, total), sum(v is not None for v in part)] for part in batches]
    known = [v for part in batches for v in part if v is not None]
    assert merge_all(spec, rows) == (sum(known) / len(known) if known else None)


@given(batches=st.lists(st.lists(st.none() | DECIMAL, max_size=5), min_size=1, max_size=5))
def test_average_of_decimals(batches: list[list[Decimal | None]]) -> None:
    """An average of decimals is rounded half away from zero at the scale that Spark gives the result."""
    spec = average_of(pa.decimal128(20, 2), pa.decimal128(14, 6))
    rows = [[partial_of(part, total), sum(v is not None for v in part)] for part in batches]
    known = [v for part in batches for v in part if v is not None]
    exact = (sum(known) / len(known)).quantize(Decimal("0.000001"), ROUND_HALF_UP) if known else None
    assert merge_all(spec, rows) == exact


def test_average_is_rounded_once() -> None:
    """A quotient of ...4245 at the last digit stays ...42, as in Spark; rounding in two steps would give ...43."""
    spec = average_of(pa.decimal128(38, 38), pa.decimal128(38, 38))
    total_ = Decimal("-0.00093336331988334523247120891612894849")
    expected = Decimal("-0.00004666816599416726162356044580644742")
    assert finish([spec], batch(spec, [total_], [20])).column(0)[0].as_py() == expected


def test_unknown_keys_ignore_what_old_holds() -> None:
    """A row that was not found counts as no state, whatever the row of old holds."""
    spec = spec_of(Kind.SUM, pa.int64())
    merged = merge([spec], batch(spec, [7, 7]), np.array([True, False]), batch(spec, [1, 1]))
    assert merged.column(0).to_pylist() == [8, 1]


def test_zones_become_utc() -> None:
    """A partial in the session's time zone is the same moment in the state, in UTC."""
    spec = spec_of(Kind.MAX, pa.timestamp("us", tz="UTC"))
    new = pa.RecordBatch.from_arrays(
        [pa.array([0], pa.timestamp("us", tz="Europe/Paris"))], names=["__x_max"]
    )
    merged = merge([spec], batch(spec, [None]), np.array([False]), new)
    assert merged.schema == state_schema([spec])
    assert merged.column(0)[0].value == 0


def test_long_overflow_names_the_column() -> None:
    """A sum beyond 64 bits is an error with the column and both values, never a wrong number."""
    spec = spec_of(Kind.SUM, pa.int64(), "amount")
    with pytest.raises(BadRecordError, match="'amount' overflows long") as caught:
        merge([spec], batch(spec, [1, 2**63 - 1]), np.array([True, True]), batch(spec, [1, 1]))
    assert caught.value.facts == {"column": "amount", "state": 2**63 - 1, "batch": 1}


@pytest.mark.parametrize("scale", [0, 2])
@given(batches=st.lists(st.lists(st.none() | DECIMAL, max_size=5), min_size=1, max_size=5))
def test_sum_of_decimals(batches: list[list[Decimal | None]], scale: int) -> None:
    """However the input is cut into batches, the sum is that of the whole input; a sum of nothing is null."""
    batches = [[v and v.quantize(Decimal(1).scaleb(-scale)) for v in part] for part in batches]
    rows = [[partial_of(part, total), sum(v is not None for v in part)] for part in batches]
    whole = partial_of([value for part in batches for value in part], total)
    assert merge_all(decimal_sum_of(pa.decimal128(38, scale)), rows) == whole


@pytest.mark.parametrize("precision", [12, 38])
@pytest.mark.parametrize("sign", ["", "-"])
def test_decimal_overflow_names_the_column(precision: int, sign: str) -> None:
    """A decimal sum of 10^p, or of exactly -10^p, outgrows Spark's result type: an error with the column and both values."""
    spec = decimal_sum_of(pa.decimal128(precision, 2))
    most, one = Decimal(f"{sign}{'9' * (precision - 2)}.99"), Decimal(f"{sign}0.01")
    with pytest.raises(BadRecordError, match="'x' overflows decimal") as caught:
        merge([spec], batch(spec, [0, most], [1, 1]), np.array([True, True]), batch(spec, [one, one], [1, 1]))
    assert caught.value.facts == {"column": "x", "state": most, "batch": one}


MOST = Decimal("9" * 38)
OVERFLOWS = {
    "in a batch": [[None, 2], [Decimal(5), 1]],
    "in a later batch": [[Decimal(5), 1], [None, 2]],
    "between batches": [[MOST, 1], [MOST, 1]],
    "and more comes": [[MOST, 1], [MOST, 1], [None, 0], [MOST.copy_negate(), 1]],
}


@pytest.mark.parametrize("batches", OVERFLOWS.values(), ids=OVERFLOWS)
def test_a_decimal_sum_that_overflowed_stays_null_without_ansi(batches: list[list[Any]]) -> None:
    """Without ANSI mode Spark gives null for such a sum and its average; that is never taken for "no value yet"."""
    assert merge_all(decimal_sum_of(pa.decimal128(38, 0), ansi=False), batches) is None
    assert merge_all(average_of(pa.decimal128(38, 0), pa.decimal128(38, 4), ansi=False), batches) is None


def test_without_ansi_long_sums_wrap_and_averages_that_do_not_fit_are_null() -> None:
    """A sum of longs begins again at the other end, between batches as inside one."""
    sums = AggregateColumn("x", Kind.SUM, spec_of(Kind.SUM, pa.int64()).partials, pa.int64(), ansi=False)
    assert merge_all(sums, [[2**62], [2**62], [5]]) == -(2**63) + 5
    spec = average_of(pa.decimal128(38, 0), pa.decimal128(38, 4), ansi=False)
    assert finish([spec], batch(spec, [MOST, Decimal(8), None], [1, 2, 0])).column(0).to_pylist() == [
        None,
        4,
        None,
    ]


def test_decimal_average_overflow() -> None:
    """An average with more whole digits than its type has is an error, as in Spark."""
    spec = average_of(pa.decimal128(38, 0), pa.decimal128(38, 4))
    with pytest.raises(BadRecordError, match="an average does not fit"):
        finish([spec], batch(spec, [Decimal("9" * 38)], [1]))


def test_missing_count_is_corrupt() -> None:
    """A known key without a count is damaged state, not a count of zero."""
    spec = spec_of(Kind.COUNT, pa.int64())
    with pytest.raises(CorruptStateError, match="no count"):
        merge([spec], batch(spec, [None]), np.array([True]), batch(spec, [1]))


def test_changed_type_is_incompatible() -> None:
    """State of another type is refused with both types."""
    was, now = spec_of(Kind.MAX, pa.int32()), spec_of(Kind.MAX, pa.int64())
    with pytest.raises(IncompatibleStateError, match="as int, the job needs long"):
        merge([now], batch(was, [1]), np.array([True]), batch(now, [1]))


def test_empty_batches() -> None:
    """No keys in, no keys out, with the right columns."""
    spec = average_of(pa.decimal128(20, 2), pa.decimal128(14, 6))
    merged = merge([spec], batch(spec, [], []), np.array([], dtype=bool), batch(spec, [], []))
    assert merged.num_rows == 0
    assert finish([spec], merged).schema == output_schema([spec])


def test_state_names_are_unique() -> None:
    """Names that contain a rule's name do not collide with that rule's column of another aggregate."""
    names = [partial_name(a, k) for a in ("x", "x_bool", "x_sum", "x_bit", "_x") for k in Kind]
    assert len(set(names)) == len(names)


def test_specs_travel_to_tasks() -> None:
    """A spec survives the way to a worker unchanged."""
    spec = average_of(pa.decimal128(20, 2), pa.decimal128(14, 6))
    assert pickle.loads(pickle.dumps(spec)) == spec
