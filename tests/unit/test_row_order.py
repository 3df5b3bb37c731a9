"""Rows are put in order of their sort key, stably, and cut into pieces of whole keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators import wide_columns
from penstock.operators.grouping import SORT_KEY, group_rows
from penstock.operators.pieces import pieces
from penstock.operators.row_order import stable_order

NEIGHBOURS = st.sampled_from([0, 1, 2, 3, 2**62, 2**62 + 1, 2**62 + 2, 2**63 - 1])


@given(st.lists(NEIGHBOURS | st.integers(0, 2**63 - 1), max_size=200))
def test_the_order_is_that_of_a_stable_sort(numbers):
    """Also where sort keys differ only in the bits that do not fit beside a position."""
    sort_keys = np.array(numbers, dtype=np.int64)
    assert stable_order(sort_keys).tolist() == np.argsort(sort_keys, kind="stable").tolist()


def grouped(keys: list[str]):
    """Rows with these keys, in the order of keys."""
    sort_keys = pa.array([ord(key[0]) for key in keys], pa.int64())
    return group_rows(pa.table({"k": keys, "at": list(range(len(keys))), SORT_KEY: sort_keys}), ["k"])


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=60), st.integers(1, 20))
def test_pieces_hold_whole_keys(keys, max_rows):
    """The pieces together are the whole, no key is in two of them, and only a single key may have more rows than asked."""
    whole = grouped(keys)
    found = list(pieces(whole, max_rows))
    assert pa.concat_tables(piece.table for piece in found).equals(whole.table)
    assert [key for piece in found for key in piece.keys.columns["k"].to_pylist()] == sorted(set(keys))
    for piece in found:
        assert len(piece.keys) == 1 or piece.table.num_rows <= max_rows
        assert piece.starts[0] == 0
        assert piece.starts[-1] == piece.table.num_rows
        for key, start in zip(piece.keys.columns["k"].to_pylist(), piece.starts, strict=False):
            assert piece.table["k"][int(start)].as_py() == key
    assert len(found) <= 2 * (len(keys) // max_rows + 1)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_columns_too_large_for_one_array_come_out_in_their_own_type(monkeypatch, kind):
    """More text than one array can hold is put in order all the same, and a piece of it has the type of the column."""
    keys, texts = ["a", "b", "c", "d"] * 25, pa.array([f"text {at}" for at in range(100)]).cast(kind)
    table = pa.table({"k": keys, "text": texts, SORT_KEY: pa.array([ord(key) for key in keys], pa.int64())})
    monkeypatch.setattr(wide_columns, "NARROW_BYTES", 600)
    whole = group_rows(table, ["k"])
    assert whole.table["text"].type in (pa.large_string(), pa.large_binary())
    assert whole.keys.columns["k"].type == pa.string()
    parts = [piece.table["text"] for piece in pieces(whole, 30)]
    assert [part.type for part in parts] == [kind] * 4
    found = [text for part in parts for text in part.to_pylist()]
    assert found == [text for key in range(4) for text in texts[key::4].to_pylist()]
