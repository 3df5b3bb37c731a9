"""Rows are put in order of their sort key, stably, and cut into pieces of whole keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators import columns
from penstock.operators.grouping import PieceLimits, group_rows, pieces, stable_order
from penstock.operators.values.array_like import as_column
from penstock.state.keys import SORT_KEY

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
    found = list(pieces(whole, PieceLimits(1 << 20, max_rows)))
    assert pa.concat_tables(piece.table for piece in found).equals(whole.table)
    assert [key for piece in found for key in piece.keys.columns["k"].to_pylist()] == sorted(set(keys))
    for piece in found:
        assert len(piece.keys) == 1 or piece.table.num_rows <= max_rows
        assert piece.starts[0] == 0
        assert piece.starts[-1] == piece.table.num_rows
        for key, start in zip(piece.keys.columns["k"].to_pylist(), piece.starts, strict=False):
            assert piece.table["k"][int(start)].as_py() == key
    assert len(found) <= 2 * (len(keys) // max_rows + 1)


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 60)), min_size=1, max_size=60))
def test_pieces_are_counted_in_bytes_too(rows):
    """Wherever the long texts are, only a single key takes more bytes than asked."""
    numbers = pa.array([ord(key) for key, _ in rows], pa.int64())
    table = pa.table({"k": [k for k, _ in rows], "t": ["x" * n for _, n in rows], SORT_KEY: numbers})
    whole = group_rows(table, ["k"])
    found = list(pieces(whole, PieceLimits(200)))
    assert pa.concat_tables(piece.table for piece in found).equals(whole.table)
    for piece in found:
        text = sum(map(len, piece.table["t"].to_pylist()))
        assert len(piece.keys) == 1 or text + 9 * piece.table.num_rows <= 200


WIDE = {
    pa.string(): str,
    pa.binary(): str.encode,
    pa.list_(pa.string()): lambda text: [text, None],
    pa.struct([("a", pa.struct([("b", pa.string())]))]): lambda text: {"a": {"b": text}},
    pa.map_(pa.string(), pa.binary()): lambda text: [(text, text.encode())],
}


@pytest.mark.parametrize("kind", WIDE, ids=str)
def test_columns_too_large_for_one_array_come_out_in_their_own_type(monkeypatch, kind):
    """More text than one array can hold is put in order all the same, and a piece of it has the type of the column."""
    keys, texts = ["a", "b", "c", "d"] * 25, pa.array([WIDE[kind](f"text {at}") for at in range(100)], kind)
    table = pa.table({"k": keys, "text": texts, SORT_KEY: pa.array([ord(key) for key in keys], pa.int64())})
    monkeypatch.setattr(columns, "NARROW_BYTES", texts.nbytes // 2)
    whole = group_rows(table, ["k"])
    assert "large_" in str(whole.table["text"].type)
    parts = [piece.table["text"] for piece in pieces(whole, PieceLimits(1 << 20, 30))]
    assert [part.type for part in parts] == [kind] * 4
    found = [text for part in parts for text in part.to_pylist()]
    assert found == [text for key in range(4) for text in texts[key::4].to_pylist()]


def test_keys_too_large_for_one_array_come_out_in_their_own_type(monkeypatch):
    """The keys of a piece have the type of the column, whatever all keys together take."""
    monkeypatch.setattr(columns, "NARROW_BYTES", 30)
    whole = grouped(["a" * 20, "b" * 20, "c" * 20])
    assert whole.keys.columns["k"].type == pa.large_string()
    found = list(pieces(whole, PieceLimits(1 << 20, 1)))
    assert [piece.keys.columns["k"].type for piece in found] == [pa.string()] * 3


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_list(pa.large_string())], ids=str)
def test_text_behind_the_first_two_gigabytes_is_narrowed(tmp_path, kind):
    """A piece of a wide column comes out in its own type wherever it lies in the column: here at the end of an empty file of 2 GB."""
    with (tmp_path / "text").open("wb") as file:
        file.seek(1 << 31)
        file.write(b"onetwo")
    data = pa.memory_map(str(tmp_path / "text")).read_buffer()
    ends = pa.array([0, (1 << 31), (1 << 31) + 3, (1 << 31) + 6], pa.int64()).buffers()[1]
    column = pa.LargeStringArray.from_buffers(3, ends, data)
    if pa.types.is_large_list(kind):
        column = pa.LargeListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int64()), column)
    part = pa.table({"text": column}).slice(1)
    found = columns.narrowed(part)["text"]
    assert str(found.type).replace("item", "element") in ("string", "list<element: string>")
    assert found.to_pylist() == column.slice(1).to_pylist()
    wide = as_column(part["text"], pa.field("text", found.type), "test")
    assert (wide.type, wide.to_pylist()) == (found.type, found.to_pylist())
