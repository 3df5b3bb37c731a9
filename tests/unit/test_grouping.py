"""Rows are brought into the order of their keys, exactly, also where keys collide."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecordError, InternalError
from penstock.operators.grouping import check_rows, group_rows, one_row_a_key
from penstock.operators.process.failed_call import failed_call
from penstock.state.keys import SORT_KEY

KEYS = st.sampled_from(["a", "b", "c", "d", "e"])


def table(keys: list[str], sort_keys: list[int]) -> pa.Table:
    return pa.table({"k": keys, "at": list(range(len(keys))), SORT_KEY: pa.array(sort_keys, pa.int64())})


@given(st.lists(KEYS, min_size=1, max_size=60), st.integers(1, 5))
def test_every_key_gets_its_rows_in_order(keys, numbers):
    """Each key appears once, with all its rows in the order they came, however many keys share a sort key."""
    grouped = group_rows(table(keys, [ord(key) % numbers for key in keys]), ["k"])
    found = grouped.keys.columns.column("k").to_pylist()
    assert sorted(found) == sorted(set(keys))
    assert (np.diff(grouped.keys.sort_keys) >= 0).all()
    for index, key in enumerate(found):
        rows = grouped.table.slice(grouped.starts[index], grouped.starts[index + 1] - grouped.starts[index])
        assert set(rows["k"].to_pylist()) == {key}
        assert rows["at"].to_pylist() == [at for at, one in enumerate(keys) if one == key]


def test_a_collision_concerns_only_the_keys_that_share_the_number():
    """Keys that Python cannot even hold are grouped, those in a collision and those beside it: none goes through Python objects."""
    days = pa.array([3_000_000, 3_000_001, 3_000_000, 3_000_002, 3_000_002], pa.int32()).cast(pa.date32())
    rows = pa.table({"k": days, "at": list(range(5)), SORT_KEY: pa.array([7, 7, 7, 9, 9], pa.int64())})
    grouped = group_rows(rows, ["k"])
    assert grouped.starts.tolist() == [0, 2, 3, 5]
    assert grouped.table["at"].to_pylist() == [0, 2, 1, 3, 4]


def test_an_empty_table_has_no_keys():
    """No rows, no keys."""
    assert len(group_rows(table([], []), ["k"]).keys) == 0


def test_a_key_in_two_rows_is_an_error_where_one_is_expected():
    """After an aggregation a key has one row; two would lose one of them."""
    with pytest.raises(InternalError, match="1 row too many: a key came in more than one"):
        one_row_a_key(table(["a", "a"], [1, 1]), ["k"])


def test_null_keys_are_refused_with_the_column():
    """A null has no place; the message says how to avoid it."""
    rows = pa.table({"k": ["a", None], SORT_KEY: pa.array([0, 0], pa.int64())})
    with pytest.raises(BadRecordError, match=r"1 row has no value in the key column 'k'.*coalesce"):
        check_rows(rows, ["k"], operator="views", subtask=0, parallelism=1)


def test_of_rows_without_a_key_the_first_is_said():
    """As far as its columns are to be said; the number is that of all such rows."""
    rows = pa.table({"k": [None, "a", None], "v": [10, 20, 30], SORT_KEY: pa.array([1, 2, 1], pa.int64())})
    with pytest.raises(BadRecordError, match="2 rows have") as refused:
        check_rows(rows, ["k"], operator="views", subtask=0, parallelism=1, shown=["k", "v"])
    assert failed_call(refused.value).row == "k=None, v=10 (the first of 2)"


def test_rows_of_another_subtask_are_found():
    """A row in the wrong place would split the state of its key."""
    with pytest.raises(InternalError, match="rows of other subtasks"):
        check_rows(table(["a"], [1 << 48]), ["k"], operator="views", subtask=0, parallelism=2)
