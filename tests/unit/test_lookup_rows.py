"""The latest row of a key in another stream, against a plain Python model, on every backend, whatever happens in between."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.operator_cluster import BuiltIn, OperatorCluster
from penstock.operators.grouping import PieceLimits
from penstock.operators.join import lookup
from penstock.operators.join.input_rows import InputColumns
from penstock.operators.join.lookup import LookupSpec, run_lookup
from penstock.operators.process.user_code import Context
from penstock.operators.state.ttl import TimeToLive
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
RAM_DISK = "/dev/shm"
LEFT = arrow_schema("n long, key string")
RIGHT = arrow_schema("name string, id string, age long")
TRAVEL = pa.schema([("k", pa.string()), ("side", pa.string()), ("key", pa.string()), ("n", pa.int64())])
SECOND_US = 1_000_000
Row = tuple[str, str | None, int]


class Lookup(BuiltIn):
    """The operator."""

    def __init__(self, *, inner: bool, ttl: TimeToLive | None = None) -> None:
        self.spec = LookupSpec(
            InputColumns(LEFT, ("key",), None), InputColumns(RIGHT, ("id",), None), inner, ttl
        )

    def layout(self, key: pa.Schema) -> StateLayout:
        return self.spec.layout()

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        left, right = (
            rows.filter(pa.array([one == side for one in rows.column("side").to_pylist()]))
            for side in ("l", "r")
        )
        sort_key = "__sort_key"
        numbers = right.column("n")
        names = pa.array([None if n % 3 == 0 else f"name{n}" for n in numbers.to_pylist()], pa.string())
        ages = pa.array([None if n % 3 == 0 else n for n in numbers.to_pylist()], pa.int64())
        one = pa.table(
            [left.column("n"), left.column("key"), left.column(sort_key)], names=["n", "key", sort_key]
        )
        other = pa.table(
            [names, right.column("key"), ages, right.column(sort_key)], names=[*RIGHT.names, sort_key]
        )
        return run_lookup(self.spec, one, other, state)


def table(rows: list[Row]) -> pa.Table:
    columns = [[row[1] or "null" for row in rows], *([row[at] for row in rows] for at in range(3))]
    return pa.table([pa.array(one, f.type) for one, f in zip(columns, TRAVEL, strict=True)], schema=TRAVEL)


BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("lr"), st.sampled_from(["a", "b", "c", None])), max_size=8),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=share(25), deadline=None)
@given(data=st.data(), batches=BATCHES, inner=st.booleans(), expires=st.booleans())
def test_a_lookup_equals_its_model(
    backend: str, data: st.DataObject, batches: Any, inner: bool, expires: bool
) -> None:
    """Right rows of the batch count first, and of those of a key the last one."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "LIMITS", PieceLimits(data.draw(st.sampled_from([1, 100, 1 << 20]))))
        patch.setattr(lookup, "PART_BYTES", data.draw(st.sampled_from([1, 50, 1 << 20])))
        operator = Lookup(inner=inner, ttl=TimeToLive("5s") if expires else None)
        cluster = OperatorCluster(Path(root), operator.spec.output, backend)
        known: dict[str, tuple[int, int]] = {}
        number = 0
        for steps, then in batches:
            rows: list[Row] = []
            for side, key in steps:
                number += 1
                rows.append((side, key, number))
            cluster.now_us += then * SECOND_US
            known |= {key: (n, cluster.now_us) for side, key, n in rows if side == "r" and key}
            expected = []
            for n, key in ((n, key) for side, key, n in rows if side == "l"):
                told, at = known.get(key or "", (None, 0))
                if told is not None and expires and at + 5 * SECOND_US <= cluster.now_us:
                    told = None
                if told is None and inner:
                    continue
                age = None if told is None or told % 3 == 0 else told
                expected.append((n, key, age and f"name{age}", age))
            checkpoint = cluster.checkpoint()
            got = cluster.batch(operator, table(rows))
            assert sorted(tuple(row.values()) for row in got) == sorted(expected)
            if data.draw(st.booleans()):
                cluster.go_back(checkpoint)
                again = cluster.batch(operator, table(rows))
                assert sorted(tuple(row.values()) for row in again) == sorted(expected)
            cluster.merge()
            if data.draw(st.booleans()):
                cluster.rescale(data.draw(st.integers(1, 3)))
