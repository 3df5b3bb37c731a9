"""Rows are measured by their offsets, and cut so that no part is too large."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.sizes import cut, in_batches, row_bytes

COLUMNS = {
    "string": (pa.array(["", "ab", None, "abcd"]), [4, 6, 4, 8]),
    "large": (pa.array(["", "ab"], pa.large_string()), [4, 6]),
    "long": (pa.array([1, None]), [8, 8]),
    "boolean": (pa.array([True, None]), [1, 1]),
    "decimal": (pa.array([1], pa.decimal128(5, 0)), [16]),
    "null": (pa.nulls(2), [1, 1]),
    "list": (pa.array([["a", "bcd"], [], None]), [4 + 5 + 7, 4, 4]),
    "struct": (pa.array([{"a": "xyz", "b": 1}]), [7 + 8]),
    "map": (pa.array([{"k": "xyz"}, {}], pa.map_(pa.string(), pa.string())), [4 + 5 + 7, 4]),
    "sliced": (pa.array([["a"], ["bcd"], ["e", "f"]]).slice(1), [4 + 7, 4 + 10]),
    "sliced struct": (pa.array([{"a": "x"}, {"a": "xyz"}]).slice(1), [7]),
    "empty": (pa.array([], pa.string()), []),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_bytes_of_rows(name):
    """Text counts with its length, whatever it stands in; a part of a column counts as itself."""
    column, sizes = COLUMNS[name]
    assert row_bytes([column]).tolist() == sizes
    assert row_bytes([column, column], np.arange(len(sizes))[::2]).tolist() == [2 * n for n in sizes[::2]]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20))
def test_parts_are_as_large_as_they_may_be(sizes, limit):
    """The parts are the whole in order; only a single row is larger than the limit, and no two neighbours would fit into one part."""
    bounds = list(cut(np.array(sizes, dtype=np.int64), limit))
    assert [at for start, stop in bounds for at in range(start, stop)] == list(range(len(sizes)))
    parts = [sizes[start:stop] for start, stop in bounds]
    assert all(sum(part) <= limit or len(part) == 1 for part in parts)
    assert all(sum(one) + other[0] > limit for one, other in pairwise(parts))


def test_a_table_in_chunks_becomes_batches():
    """Columns may be in different chunks, as Arrow leaves them when an array is full; the rows stay together."""
    table = pa.table(
        {"n": list(range(10)), "t": pa.chunked_array([[f"{at}" for at in range(7)], ["x" * 50] * 3])}
    )
    batches = list(in_batches(table, 60))
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()
    assert [batch.num_rows for batch in batches] == [4, 3, 1, 1, 1]
