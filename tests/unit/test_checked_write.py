"""What no sink could commit is found before a sink sees it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import BadRecordError
from penstock.run.sink_writer import refuse_broken_values
from penstock.sinks.bad_rows import refuse_large, row_bytes, value_bytes


def strings(*texts: bytes | None) -> pa.Array:
    """Strings that nobody has looked at."""
    return pa.array(texts, pa.binary()).view(pa.string())


BROKEN = strings(b"fine", None, b"\xc3(", b"\xff")
COLUMNS = {
    "text": (BROKEN, 2),
    "list": (pa.ListArray.from_arrays([0, 2, 2, 4], BROKEN), 2),
    "struct": (pa.StructArray.from_arrays([BROKEN], ["a"]), 2),
    "map": (pa.MapArray.from_arrays([0, 1, 2], strings(b"k", b"\xff"), pa.array([1, 2])), 1),
    "dictionary": (pa.DictionaryArray.from_arrays(pa.array([0, 0, 2]), BROKEN), 2),
    "slice": (pa.StructArray.from_arrays([BROKEN], ["a"]).slice(1, 2), 1),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_text_that_is_no_utf8_is_named(kind: str) -> None:
    """Column and row are in the error, however deep the text is."""
    column, row = COLUMNS[kind]
    batch = pa.record_batch([pa.nulls(len(column)), column], names=["other", "broken"])
    with pytest.raises(BadRecordError, match=f"column 'broken' holds, in row {row} of the batch") as raised:
        refuse_broken_values(batch)
    assert raised.value.facts == {"column": "broken", "row": row}


def test_the_bytes_are_shown_but_not_all_of_them() -> None:
    """The error has what helps to find them."""
    batch = pa.record_batch([strings(b"\xff" + b"x" * 1000)], names=["text"])
    with pytest.raises(BadRecordError, match=r"b'\\xffx{39}'\.\.\. \(1001 bytes\)"):
        refuse_broken_values(batch)


def test_rows_behind_a_slice_do_not_count() -> None:
    """A piece of a nested column drags the rest of it along; only its own rows are judged."""
    column = pa.StructArray.from_arrays([BROKEN], ["a"]).slice(0, 2)
    refuse_broken_values(pa.record_batch([column], names=["a"]))


def test_a_value_or_a_row_that_is_too_large() -> None:
    """Sizes are those of texts and bytes, in bytes; null has none."""
    texts, raw = pa.array(["\u00e9", None], pa.large_string()), pa.array([b"xyz", b"x"], pa.large_binary())
    batch = pa.record_batch([texts, raw, pa.array([1, 2])], names=["text", "raw", "n"])
    refuse_large(value_bytes(batch), 3, "a value")
    refuse_large(row_bytes(batch), 5, "a row")
    with pytest.raises(BadRecordError, match="a value may have at most 2 bytes, but one has 3"):
        refuse_large(value_bytes(batch), 2, "a value")
    with pytest.raises(BadRecordError, match="a row may have at most 4 bytes, but one has 5"):
        refuse_large(row_bytes(batch), 4, "a row")
    refuse_large(row_bytes(batch.select(["n"])), 0, "a row of numbers")
