"""What user code gives is what it was when it was given, whatever the code does with it later."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row as SparkRow

import penstock as ps
from builders.operator_cluster import OperatorCluster
from builders.task_cluster import TaskCluster
from penstock.state.ddl import arrow_schema


class Reused(ps.KeyedProcess):
    """One dictionary for all results."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[dict[str, Any]]:
        result: dict[str, Any] = {"k": key}
        for row in rows:
            result["n"] = row.n
            yield result


class Growing(ps.KeyedProcess):
    """One list in all results, as a tuple."""

    def process(
        self, key: str, rows: ps.types.Rows, ctx: ps.types.Context
    ) -> Iterator[tuple[str, list[int]]]:
        seen: list[int] = []
        for row in rows:
            seen.append(row.n)
            yield key, seen


class Assigned(ps.KeyedProcess):
    """What Python's own containers allow."""

    numbers = ps.ListState("long")
    by_number = ps.MapState("long", "long")

    def process(
        self, key: str, rows: ps.types.Rows, ctx: ps.types.Context
    ) -> Iterator[tuple[str, list[int]]]:
        self.numbers += rows.column("n")
        self.by_number |= {row.n: row.n for row in rows}
        yield key, [*self.numbers, *sorted(self.by_number)]


ROWS = pa.table({"k": ["a", "a", "b"], "n": [1, 2, 3]})


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_dictionary_that_is_filled_anew(tmp_path: Path, *, tolerant: bool) -> None:
    """Every result has what the dictionary held when it was yielded."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, n long"), tolerant=tolerant)
    found = sorted((row["k"], row["n"]) for row in cluster.batch(Reused(), ROWS))
    assert found == [("a", 1), ("a", 2), ("b", 3)]


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_list_that_grows(tmp_path: Path, *, tolerant: bool) -> None:
    """The same inside a tuple."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, seen array<long>"), tolerant=tolerant)
    found = sorted((row["k"], row["seen"]) for row in cluster.batch(Growing(), ROWS))
    assert found == [("a", [1]), ("a", [1, 2]), ("b", [3])]


def test_assignments_in_place(tmp_path: Path) -> None:
    """`+=` and `|=` change the state; they are no assignment to it."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, seen array<long>"))
    cluster.batch(Assigned(), ROWS)
    found = {row["k"]: row["seen"] for row in cluster.batch(Assigned(), ROWS)}
    assert found == {"a": [1, 2, 1, 2, 1, 2], "b": [3, 3, 3]}


class Named(ps.KeyedProcess):
    """Results whose names are the columns, in another order, with a list that is changed afterwards."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        seen: list[int] = []
        for row in rows:
            seen.append(row.n)
            yield SeenOfKey(seen, key)
        yield {"k": key, "seen": seen}
        seen.clear()


class SeenOfKey(NamedTuple):
    seen: list[int]
    k: str


@pytest.mark.parametrize("tolerant", [False, True])
def test_names_count_where_they_are_the_columns(tmp_path: Path, *, tolerant: bool) -> None:
    """A named tuple in another order is taken by name, and is what it was; so is a dictionary behind it."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, seen array<long>"), tolerant=tolerant)
    found = sorted((row["k"], row["seen"]) for row in cluster.batch(Named(), ROWS))
    assert found == [("a", [1]), ("a", [1, 2]), ("a", [1, 2]), ("b", [3]), ("b", [3])]


class Everything(ps.KeyedProcess):
    """Sets values in the forms that user code has, and gives what it reads in the same call."""

    pair = ps.ValueState("struct<a:long,b:string>")
    pairs = ps.ListState("struct<a:long,b:string>")
    by_name = ps.MapState("string", "struct<a:long,b:string>")
    small = ps.ValueState("float")
    whole = ps.ValueState("long")
    at = ps.ValueState("timestamp")
    data = ps.ValueState("binary")
    read: ClassVar[list[Any]] = []

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        if self.pair.value is None:
            data = bytearray(b"x")
            self.pair.value = (1, "b")
            self.pairs.append((2, "c"))
            self.by_name["d"] = (3, "d")
            self.small.value = 0.1
            self.whole.value = 2.0
            self.at.value = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - it is what is tested
            self.data.value = data
            data[:] = b"y"
        told = (self.pair.value, list(self.pairs), self.by_name["d"], self.small.value)
        self.read.append((*told, self.whole.value, type(self.whole.value), self.at.value, self.data.value))


def test_what_is_set_is_read_as_it_will_be_in_the_next_batch(tmp_path: Path) -> None:
    """Whether code works does not depend on where a batch ends."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string"))
    Everything.read.clear()
    for _ in range(2):
        cluster.batch(Everything(), ROWS.slice(0, 1))
    first, second = Everything.read
    assert first == second
    assert first[0] == {"a": 1, "b": "b"}


class Shared(ps.BatchProcess):
    """One buffer for all, changed after it was given."""

    total = ps.ValueState("long", default=0)

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Iterator[Any]:
        buffer = np.full(len(keys), 7)
        frame = pd.DataFrame({"k": keys["k"].to_pylist(), "n": 0})
        state["total"] = buffer
        for number in range(2):
            frame["n"] = number
            yield frame
            frame.loc[:, "n"] += 10
        buffer[:] = 99


def test_columns_that_are_changed_afterwards(tmp_path: Path) -> None:
    """NumPy and pandas: results and state are what they were when they were given."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, n long"))
    found = sorted((row["k"], row["n"]) for row in cluster.batch(Shared(), ROWS))
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert {row["total"] for row in cluster.stored().values()} == {7}


class WithoutKey(ps.Process):
    """One dictionary for all results, without a key."""

    def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[dict[str, Any]]:
        result: dict[str, Any] = {}
        for row in rows:
            result["n"] = row.n
            yield result


def test_without_a_key_too(tmp_path: Path) -> None:
    """The same for a `Process`."""
    cluster = TaskCluster(tmp_path, WithoutKey(), rows=arrow_schema("n long"), output=arrow_schema("n long"))
    assert [row["n"] for row in cluster.batch({0: [{"n": 1}, {"n": 2}, {"n": 3}]})] == [1, 2, 3]


class SparksRows(ps.KeyedProcess):
    """What somebody who comes from transformWithState leaves in."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        seen: list[int] = []
        for row in rows:
            seen.append(row.n)
            yield SparkRow(seen=seen, k=key)


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_row_of_pysparks_goes_by_name(tmp_path: Path, *, tolerant: bool) -> None:
    """Its columns are not swapped, and a list in it is what it was."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, seen array<long>"), tolerant=tolerant)
    found = sorted((row["k"], row["seen"]) for row in cluster.batch(SparksRows(), ROWS))
    assert found == [("a", [1]), ("a", [1, 2]), ("b", [3])]
