"""What user code gives is what it was when it was given, whatever the code does with it later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operator_cluster import OperatorCluster

import penstock as ps
from penstock.state.types import arrow_schema


class Reused(ps.KeyedProcess):
    """One dictionary for all results."""

    def process(self, key: str, rows: ps.Rows, ctx: ps.Context) -> Iterator[dict[str, Any]]:
        result: dict[str, Any] = {"k": key}
        for row in rows:
            result["n"] = row.n
            yield result


class Growing(ps.KeyedProcess):
    """One list in all results, as a tuple."""

    def process(self, key: str, rows: ps.Rows, ctx: ps.Context) -> Iterator[tuple[str, list[int]]]:
        seen: list[int] = []
        for row in rows:
            seen.append(row.n)
            yield key, seen


class Assigned(ps.KeyedProcess):
    """What Python's own containers allow."""

    numbers = ps.ListState("long")
    by_number = ps.MapState("long", "long")

    def process(self, key: str, rows: ps.Rows, ctx: ps.Context) -> Iterator[tuple[str, list[int]]]:
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
