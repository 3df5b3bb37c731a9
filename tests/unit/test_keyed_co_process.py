"""Own code over two streams with one state, against a plain Python model, on every backend, whatever happens in between."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import OperatorCluster
from penstock.operators.process.co import in_one_table
from penstock.state.ddl import arrow_schema
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
LEFT = arrow_schema("n long, k string")
RIGHT = arrow_schema("id string, word string")
OUTPUT = arrow_schema("k string, said string")
RAM_DISK = "/dev/shm"


class Both(ps.KeyedCoProcess):
    """Puts what comes from either side into one list, and gives the list whenever something comes."""

    seen = ps.ListState("string")
    lefts = ps.ValueState("long", default=0)

    def process_left(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        assert rows.to_arrow().column_names == ["n", "k"]
        for row in rows:
            assert row.k == key
            self.seen.append(f"left {row.n}")
        self.lefts.value += len(rows)
        yield key, f"left {self.lefts.value}"

    def process_right(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> list[tuple[str, str]]:
        assert rows.to_arrow().column_names == ["id", "word"]
        assert set(rows.column("id")) == {key}
        for word in rows.column("word"):
            if word == "bad":
                raise ValueError("a bad word")
            self.seen.append(f"right {word}")
        return [(key, f"{list(self.seen)} {self.lefts.value}")]


def table(lefts: list[tuple[int, str]], rights: list[tuple[str, str]]) -> pa.Table:
    left = pa.table([pa.array([row[at] for row in lefts], LEFT.field(at).type) for at in (0, 1)], schema=LEFT)
    right = pa.table(
        [pa.array([row[at] for row in rights], RIGHT.field(at).type) for at in (0, 1)], schema=RIGHT
    )
    return in_one_table(left, right, ["k"], ["id"])


KEYS = st.sampled_from("abcd")
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 9), KEYS), max_size=5),
        st.lists(st.tuples(KEYS, st.sampled_from(["x", "y"])), max_size=5),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=share(15), deadline=None)
@given(data=st.data(), batches=BATCHES)
def test_left_rows_come_first_and_both_share_the_state(
    backend: str, tolerant: bool, data: st.DataObject, batches: Any
) -> None:
    """In every batch a key sees its left rows, then its right rows, whatever happens between batches."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root:
        cluster = OperatorCluster(Path(root), OUTPUT, backend, tolerant=tolerant)
        seen: dict[str, list[str]] = {}
        for lefts, rights in batches:
            expected = []
            for key in "abcd":
                before = seen.setdefault(key, [])
                own = [f"left {n}" for n, k in lefts if k == key]
                before += own
                count = sum(one.startswith("left") for one in before)
                if own:
                    expected.append((key, f"left {count}"))
                words = [f"right {word}" for k, word in rights if k == key]
                before += words
                if words:
                    expected.append((key, f"{before} {count}"))
            checkpoint = cluster.checkpoint()
            got = cluster.batch(Both(), table(lefts, rights))
            assert sorted((row["k"], row["said"]) for row in got) == sorted(expected)
            if data.draw(st.booleans()):
                cluster.go_back(checkpoint)
                again = cluster.batch(Both(), table(lefts, rights))
                assert sorted((row["k"], row["said"]) for row in again) == sorted(expected)
            cluster.merge()
            if data.draw(st.booleans()):
                cluster.rescale(data.draw(st.integers(1, 3)))


def test_bad_rows_of_both_streams_are_letters_as_they_came() -> None:
    """A row for which a call raises is bad, on either side; each letter has the columns of its own stream."""

    class Strict(Both):
        def process_left(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
            yield from super().process_left(key, rows, ctx)
            if 9 in rows.column("n"):
                raise ValueError("a bad number")

    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root:
        cluster = OperatorCluster(Path(root), OUTPUT, tolerant=True)
        rows = table([(1, "a"), (9, "a"), (2, "b")], [("a", "x"), ("a", "bad"), ("b", "y")])
        got = cluster.batch(Strict(), rows)
        assert sorted((row["k"], row["said"]) for row in got) == [
            ("a", "['left 1', 'right x'] 1"),
            ("a", "left 1"),
            ("b", "['left 2', 'right y'] 1"),
            ("b", "left 1"),
        ]
        letters = pa.Table.from_batches(cluster.bad.letters()).to_pylist()
        assert [json.loads(one["row"]) for one in letters] == [
            {"n": 9, "k": "a"},
            {"id": "a", "word": "bad"},
        ]
        assert [json.loads(one["key"]) for one in letters] == [{"k": "a"}, {"id": "a"}]
        assert "a bad number" in cluster.bad.first_reason


class WithTimers(ps.KeyedCoProcess):
    """A left row waits for a right one, for ten seconds."""

    waits = ps.ValueState("long")

    def process_left(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        self.waits.value = rows[0].n
        ctx.set_timer(datetime.fromtimestamp(rows[0].n, UTC) + timedelta(seconds=10))

    def process_right(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        yield key, f"{self.waits.value} {rows[0].word}"
        self.waits.clear()

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[Any]:
        if self.waits.value is not None:
            yield key, f"nobody came for {self.waits.value}"


def test_it_may_have_timers() -> None:
    """They fire after the rows of both streams, on the same state."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root:
        cluster = OperatorCluster(Path(root), OUTPUT)
        operator = WithTimers()
        assert cluster.batch(operator, table([(100, "a"), (100, "b")], []), 100_000_000) == []
        got = cluster.batch(operator, table([], [("a", "x")]), 110_000_000)
        assert sorted((row["k"], row["said"]) for row in got) == [
            ("a", "100 x"),
            ("b", "nobody came for 100"),
        ]
