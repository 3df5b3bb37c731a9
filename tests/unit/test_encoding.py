"""What user code yields or stores is kept as it is, or refused by name."""

# ruff: noqa: DTZ001 - moments without a zone are among the cases

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.errors import BadRecordError, ConfigError
from penstock.operators.state.declarations import ValueState
from penstock.operators.values.encoding import to_array
from penstock.state.ddl import arrow_type, spark_type

AT_NOON = datetime(2024, 5, 1, 12)

CHANGED = [
    ("long", 1.5),
    ("long", Decimal("1.5")),
    ("long", Fraction(3, 2)),
    ("long", np.float64(1.5)),
    ("long", np.True_),
    ("long", True),
    ("long", float("nan")),
    ("byte", 128),
    ("int", 3e9),
    ("double", True),
    ("double", 2**53 + 1),
    ("double", np.longdouble(1) / 3),
    ("float", 1e300),
    ("float", -1e300),
    ("decimal(4,2)", 1.5),
    ("decimal(4,2)", Decimal("1.234")),
    ("decimal(4,2)", Decimal("NaN")),
    ("string", b"abc"),
    ("string", 5),
    ("string", "\ud800"),
    ("binary", "abc"),
    ("boolean", 1),
    ("date", AT_NOON),
    ("date", datetime(2024, 5, 1, tzinfo=UTC)),
    ("date", 5),
    ("timestamp", 5),
    ("timestamp", 5.5),
    ("timestamp", date(2024, 5, 1)),
    ("timestamp", np.datetime64("2024-05-01T12:00", "ns")),
    ("timestamp", pd.Timestamp("2024-05-01T12:00:00.123456789")),
    ("timestamp_ntz", AT_NOON.replace(tzinfo=UTC)),
    ("array<long>", [1, 1.5]),
    ("array<long>", np.array([1.5])),
    ("array<float>", [1.0, None, 1e300]),
    ("array<array<long>>", [[1], [1.5]]),
    ("map<string,long>", {"x": 1.5}),
    ("map<long,string>", {1.5: "x"}),
    ("array<string>", "ab"),
    ("array<long>", b"ab"),
    ("array<long>", bytearray(b"ab")),
    ("array<array<string>>", [["a"], "ab"]),
    ("map<string,array<string>>", {"x": "ab"}),
    ("map<string,long>", [("x", 1.5)]),
    ("map<string,long>", [("x", 1.5), ("x", 2)]),
    ("map<string,long>", [{"key": "x", "value": 1.5}]),
    ("map<string,long>", [{"key": "x", "value": 1, "misspelt": 2}]),
    ("map<string,long>", [None]),
    ("map<string,long>", [("x", 1, 2)]),
    ("map<string,long>", "ab"),
    ("map<string,long>", {None: 1}),
    ("array<map<string,long>>", [[None]]),
    ("struct<m:map<string,long>>", {"m": [None]}),
    ("struct<a:long,b:string>", {"a": 1.5, "b": "x"}),
    ("struct<a:long,b:string>", (1.5, "x")),
    ("struct<a:long>", [("a", 1.5)]),
    ("struct<a:long>", [("a", 1.5), ("a", 1)]),
    ("struct<a:long>", {"a": 1, "misspelt": 2}),
    ("array<struct<m:map<string,long>>>", [{"m": {"x": 1.5}}]),
]


@pytest.mark.parametrize(("ddl", "value"), CHANGED, ids=str)
def test_a_value_that_would_be_changed_is_refused(ddl, value):
    """The refusal names the value and the column, also among values that fit; a default is refused before the job starts."""
    field = pa.field("n", arrow_type(ddl))
    with pytest.raises(BadRecordError) as refused:
        to_array([None, value], field, "operator op: process() yielded")
    assert f"yielded {value!r} for 'n', which is not of type {spark_type(field.type)}" in str(refused.value)
    with pytest.raises(ConfigError):
        ValueState(ddl, default=value)


def test_a_large_value_is_named_by_its_beginning():
    """One value may be megabytes; a message is not."""
    with pytest.raises(BadRecordError) as refused:
        to_array(["x" * 1000], pa.field("n", pa.int64()), "operator op: process() yielded")
    assert len(str(refused.value)) < 1000


KEPT = [
    ("long", 2.0, 2),
    ("long", Decimal(2), 2),
    ("long", np.int32(3), 3),
    ("int", np.float32(2), 2),
    ("double", 5, 5.0),
    ("double", np.float32(0.5), 0.5),
    ("double", math.inf, math.inf),
    ("float", -math.inf, -math.inf),
    ("float", 0.1, np.float32(0.1).item()),
    ("float", 7, 7.0),
    ("decimal(4,2)", 1, Decimal("1.00")),
    ("string", np.str_("x"), "x"),
    ("binary", bytearray(b"x"), b"x"),
    ("boolean", np.True_, True),
    ("date", datetime(2024, 5, 1), date(2024, 5, 1)),
    ("timestamp", AT_NOON, AT_NOON.replace(tzinfo=UTC)),
    ("timestamp", pd.Timestamp(AT_NOON), AT_NOON.replace(tzinfo=UTC)),
    ("timestamp_ntz", AT_NOON, AT_NOON),
    ("array<long>", (1, None, 2.0), [1, None, 2]),
    ("array<float>", np.array([0.5, math.inf]), [0.5, math.inf]),
    ("map<string,long>", {"x": None}, [("x", None)]),
    ("map<string,long>", [("x", 1)], [("x", 1)]),
    ("map<string,long>", [{"key": "x", "value": 1}], [("x", 1)]),
    ("map<string,long>", Counter("x"), [("x", 1)]),
    ("map<array<long>,long>", {(1, 2): 3}, [([1, 2], 3)]),
    ("struct<a:long,b:string>", {"a": 1}, {"a": 1, "b": None}),
    ("struct<a:long,b:string>", (1, "x"), {"a": 1, "b": "x"}),
    (
        "array<struct<m:map<long,date>>>",
        [{"m": {1: date(2024, 5, 1)}}, None],
        [{"m": [(1, date(2024, 5, 1))]}, None],
    ),
]


@pytest.mark.parametrize(("ddl", "value", "stored"), KEPT, ids=str)
def test_what_loses_nothing_is_taken(ddl, value, stored):
    """Whole numbers of any kind, containers of any kind, nulls anywhere."""
    column = to_array([None, value], pa.field("n", arrow_type(ddl)), "operator op: process() yielded")
    assert column.to_pylist() == [None, stored]
