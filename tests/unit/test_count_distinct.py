"""Exact counts of distinct values, without Spark: what it gives of a batch is made here."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cluster import BuiltIn, OperatorCluster

from penstock.errors import InternalError
from penstock.operators import distinct_values, wide_columns
from penstock.operators import run_aggregate as run_module
from penstock.operators.aggregates import AggregateSpec, Kind, Partial, output_schema, partial_name
from penstock.operators.distinct_values import WHOSE, aggregate_layout, counting_distinct, value_names
from penstock.operators.keyed_process import Context
from penstock.operators.pieces import PieceLimits
from penstock.operators.run_aggregate import run_aggregate
from penstock.state.backends.base import OpenState, StateLayout

BACKENDS = ["filesystem", "memory", "rocksdb"]
TEXT, NUMBER = pa.string(), pa.float64()


class Click(NamedTuple):
    k: str
    user: str | None
    x: float | None


def counting(name: str, *types: pa.DataType) -> AggregateSpec:
    count = Partial(partial_name(name, Kind.COUNT_DISTINCT), Kind.COUNT, pa.int64())
    return AggregateSpec(name, Kind.COUNT_DISTINCT, (count,), pa.int64(), distinct=types)


ROWS = AggregateSpec(
    "n", Kind.COUNT, (Partial(partial_name("n", Kind.COUNT), Kind.COUNT, pa.int64()),), pa.int64()
)
SPECS = [counting("users", TEXT), ROWS, counting("both", TEXT, NUMBER), counting("numbers", NUMBER)]
VALUES = {
    "users": lambda row: (row.user,),
    "both": lambda row: (row.user, row.x),
    "numbers": lambda row: (row.x,),
}
OUTPUT = pa.schema([("k", TEXT), *output_schema(SPECS)])


class Counts(BuiltIn):
    """The operator."""

    def layout(self, key: pa.Schema) -> StateLayout:
        return aggregate_layout(SPECS, key)

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        return run_aggregate(SPECS, rows, state, key_names=["k"])


def grouped(rows: list[Click]) -> pa.Table:
    """What Spark makes of a batch: a row a key, and a row a distinct value."""
    schema = [("k", TEXT), (WHOSE, pa.int32()), (ROWS.partials[0].name, pa.int64())]
    for spec in counting_distinct(SPECS):
        schema += list(zip(value_names(spec), spec.distinct, strict=True))
    made: list[dict[str, Any]] = [
        {"k": key, WHOSE: 0, ROWS.partials[0].name: sum(row.k == key for row in rows)}
        for key in sorted({row.k for row in rows})
    ]
    for number, spec in enumerate(counting_distinct(SPECS), 1):
        values = {(row.k, known(VALUES[spec.name](row))) for row in rows}
        made += [
            {"k": key, WHOSE: number, **dict(zip(value_names(spec), value, strict=True))}
            for key, value in values
            if value is not None
        ]
    return pa.Table.from_pylist(made, pa.schema(schema))


def known(value: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """As Spark compares it, one zero and one NaN; None where a part is missing."""
    if None in value:
        return None
    return tuple(_number(part) if isinstance(part, float) else part for part in value)


def _number(value: float) -> float:
    return math.nan if math.isnan(value) else value + 0.0


clicks = st.builds(
    Click,
    st.sampled_from("pqr"),
    st.none() | st.sampled_from(["", "ada", "bob", "eve", "x" * 80]),
    st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5, -2.0]),
)
batches = st.lists(clicks, min_size=1, max_size=12)
events = st.lists(batches | batches | st.sampled_from([1, 2, 3]), min_size=2, max_size=7)


@pytest.mark.parametrize("backend", BACKENDS)
@given(events=events, rows=st.sampled_from([1, 100]), at_once=st.sampled_from([1, 1 << 20]))
@settings(max_examples=30)
def test_counts_equal_sets(backend: str, events: list[Any], rows: int, at_once: int) -> None:
    """Over random batches, lost machines and rescales the counts are those of the sets of all values so far."""
    seen: dict[tuple[str, str], set[Any]] = {}
    number: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "LIMITS", PieceLimits(bytes=1 << 20, rows=rows))
        patch.setattr(distinct_values, "VALUES_BYTES", at_once)
        patch.setattr(wide_columns, "NARROW_BYTES", 40 if at_once == 1 else 1 << 20)
        cluster = OperatorCluster(Path(folder), OUTPUT, backend)
        for event in events:
            if isinstance(event, int):
                cluster.rescale(event)
                cluster.batch(Counts(), grouped([]))
                continue
            for row in event:
                number[row.k] = number.get(row.k, 0) + 1
                for name, values in VALUES.items():
                    value = known(values(row))
                    if value is not None:
                        seen.setdefault((row.k, name), set()).add(str(value))
            expected = [
                {"k": key, "n": number[key], **{name: len(seen.get((key, name), ())) for name in VALUES}}
                for key in sorted({row.k for row in event})
            ]
            results = cluster.batch(Counts(), grouped(event))
            assert sorted(results, key=lambda row: row["k"]) == [
                {name: row[name] for name in OUTPUT.names} for row in expected
            ]


def test_values_are_cut_before_they_become_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key may have more in a batch than an array holds."""
    sizes: list[int] = []
    as_batch = distinct_values.as_batch

    def measured(part: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        sizes.append(part.nbytes)
        return as_batch(part, schema)

    monkeypatch.setattr(distinct_values, "as_batch", measured)
    monkeypatch.setattr(distinct_values, "VALUES_BYTES", 1000)
    monkeypatch.setattr(wide_columns, "NARROW_BYTES", 2000)
    clicks = [Click("p", f"{at}" + "x" * 80, 1.0) for at in range(100)]
    (result,) = OperatorCluster(tmp_path, OUTPUT).batch(Counts(), grouped(clicks))
    assert (result["users"], result["both"]) == (100, 100)
    assert sum(sizes) > 8000
    assert max(sizes) < 1500


def test_values_without_their_key_are_a_bug(tmp_path: Path) -> None:
    """Each key has one row with its aggregates; values of a key that has none are refused, and nothing is written."""
    rows = grouped([Click("p", "ada", 1.0)])
    with pytest.raises(InternalError, match="0 rows with aggregates for 1 key"):
        OperatorCluster(tmp_path, OUTPUT).batch(Counts(), rows.filter(pa.compute.greater(rows[WHOSE], 0)))
