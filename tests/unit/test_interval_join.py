"""Joins of two inputs, against a plain Python model, on every backend, whatever happens in between."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.interval_joins import LEFT, RIGHT, Join, Row, left_input, right_input, shown, table
from builders.operator_cluster import OperatorCluster
from penstock.operators.join import input_rows, interval
from penstock.operators.join.input_rows import InputColumns
from penstock.operators.join.spec import How, JoinSpec
from penstock.operators.state import table_rows
from penstock.state.lifetimes import FAR_AWAY_US
from penstock.windows import TimeWindows
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
RAM_DISK = "/dev/shm"
FIRST, LAST = 1_000, 1_060


@dataclass
class Model:
    """All rows that ever came in time; what comes out in which batch."""

    spec: JoinSpec
    how: How
    before: int = -FAR_AWAY_US
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"left": [], "right": []})
    found: set[tuple[Any, ...]] = field(default_factory=set)
    alone: set[tuple[Any, ...]] = field(default_factory=set)
    late: list[int] = field(default_factory=list)

    def batch(self, rows: list[Row], watermark: int) -> Counter[tuple[int | None, int | None, int | None]]:
        """Pairs of numbers, and the window where there are windows."""
        for row in rows:
            windows = [window for window in self.windows(row) if self.is_open(window, row)]
            if windows:
                self.rows[row[0]].append(row)
            else:
                self.late.append(row[3])
        given: Counter[tuple[int | None, int | None, int | None]] = Counter()
        for left in self.rows["left"]:
            for right in self.rows["right"]:
                for window in self.common(left, right):
                    pair = (left[3], right[3], window)
                    if pair not in self.found:
                        self.found |= {pair, (left, window), (right, window)}
                        given[pair] += 1
        for side in ("left", "right"):
            given.update(self.rows_alone(side, watermark))
        self.before = watermark
        return given

    def rows_alone(self, side: str, watermark: int) -> list[tuple[int | None, int | None, int | None]]:
        if self.how.value not in (side, "full"):
            return []
        given: list[tuple[int | None, int | None, int | None]] = []
        for row in self.rows[side]:
            for window in self.windows(row):
                if (row, window) in self.alone or (row, window) in self.found:
                    continue
                if self.is_closed(row, window) or row[1] is None or watermark >= self.deadline(row, window):
                    self.alone.add((row, window))
                    if not self.is_closed(row, window):
                        given.append((row[3], None, window) if side == "left" else (None, row[3], window))
        return given

    def windows(self, row: Row) -> list[int | None]:
        windows = self.spec.windows
        if windows is None:
            return [None]
        begins = range(row[2] - windows.size_us + 1, row[2] + 1)
        return [start for start in begins if (start - windows.offset_us) % windows.every_us == 0]

    def is_open(self, window: int | None, row: Row) -> bool:
        """When the row comes."""
        if window is None or self.spec.windows is None:
            return row[2] >= self.before
        return window + self.spec.windows.size_us - 1 > self.before

    def is_closed(self, row: Row, window: int | None) -> bool:
        """A window of the row that was closed already when it came."""
        return (row, window) in self.closed

    closed: set[tuple[Any, ...]] = field(default_factory=set)

    def deadline(self, row: Row, window: int | None) -> int:
        if window is not None and self.spec.windows is not None:
            return window + self.spec.windows.size_us - 1
        return row[2] + 1 + (self.spec.upper_us if row[0] == "left" else -self.spec.lower_us)

    def common(self, left: Row, right: Row) -> list[int | None]:
        if left[1] is None or left[1] != right[1]:
            return []
        if self.spec.windows is None:
            unbounded = self.spec.left.time is None
            near = self.spec.lower_us <= right[2] - left[2] <= self.spec.upper_us
            return [None] if near or unbounded else []
        shared = set(self.windows(left)) & set(self.windows(right))
        return [one for one in shared if (left, one) not in self.closed and (right, one) not in self.closed]

    def note_closed(self, rows: list[Row]) -> None:
        """Before a batch: which windows of its rows are closed."""
        if self.spec.windows is not None:
            for row in rows:
                self.closed |= {(row, one) for one in self.windows(row) if not self.is_open(one, row)}


BOUNDS = st.tuples(st.integers(-12, 12), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEP = st.tuples(
    st.sampled_from(["left", "right"]),
    st.sampled_from(["a", "b", "c", "d", None]),
    st.integers(0, 60),
)
BATCHES = st.lists(st.tuples(st.lists(STEP, max_size=8), st.integers(0, 25)), min_size=1, max_size=8)


def run(backend: str, spec: JoinSpec, how: How, batches: Any, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(interval, "PIECE_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        patch.setattr(interval, "PAIRS_AT_ONCE", data.draw(st.sampled_from([1, 3, 1000])))
        patch.setattr(interval, "PART_BYTES", data.draw(st.sampled_from([1, 1 << 20])))
        patch.setattr(input_rows, "PART_BYTES", data.draw(st.sampled_from([1, 100, 1 << 20])))
        patch.setattr(interval, "KEYS_AT_ONCE", data.draw(st.sampled_from([1, 1000])))
        patch.setattr(table_rows, "FEW_ROWS", data.draw(st.sampled_from([1, 1000])))
        cluster = OperatorCluster(Path(root), spec.output, backend)
        cluster.skips_idle = data.draw(st.booleans())
        operator, model = Join(spec), Model(spec, how)
        watermark, number = FIRST, 0
        for given_rows, then in [*batches, ([], FAR_AWAY_US)]:
            rows: list[Row] = []
            for side, key, ahead in given_rows:
                number += 1
                rows.append((side, key, FIRST - 10 + ahead, number))
            watermark = FAR_AWAY_US if then == FAR_AWAY_US else watermark + then
            before = cluster.checkpoint()
            model.note_closed(rows)
            expected = model.batch(rows, watermark)
            assert shown(spec, cluster.batch(operator, table(rows), watermark)) == expected
            if data.draw(st.integers(0, 3)) == 0:  # all machines die, and the batch is done again
                cluster.go_back(before)
                operator.late = operator.late[: len(model.late) - sum(row[3] in model.late for row in rows)]
                assert shown(spec, cluster.batch(operator, table(rows), watermark)) == expected
            cluster.merge()
            if data.draw(st.integers(0, 3)) == 0:
                cluster.rescale(data.draw(st.integers(1, 3)))
        assert sorted(operator.late) == sorted(model.late)


@pytest.mark.parametrize("how", list(How))
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=share(15), deadline=None)
@given(data=st.data(), batches=BATCHES, bounds=BOUNDS)
def test_an_interval_join_equals_its_model(
    backend: str, how: How, data: st.DataObject, batches: Any, bounds: tuple[int, int]
) -> None:
    """Pairs come out when the second row comes, rows alone when the watermark has passed all that could match them."""
    run(backend, JoinSpec.by_interval(left_input(), right_input(), *bounds, how), how, batches, data)


WINDOWS = st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(-5, 25)).map(
    lambda numbers: TimeWindows(max(numbers[:2]), min(numbers[:2]), numbers[2])
)


@pytest.mark.parametrize("how", list(How))
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=share(10), deadline=None)
@given(data=st.data(), batches=BATCHES, windows=WINDOWS)
def test_a_join_by_window_equals_its_model(
    backend: str, how: How, data: st.DataObject, batches: Any, windows: TimeWindows
) -> None:
    """Rows match that share a window; a row whose windows are all closed is late."""
    run(backend, JoinSpec.by_window(left_input(), right_input(), windows, how), how, batches, data)


@settings(max_examples=share(15), deadline=None)
@given(data=st.data(), batches=BATCHES)
def test_a_join_without_bounds_keeps_all_rows(data: st.DataObject, batches: Any) -> None:
    """Every pair of a key comes out, whatever the times are, and no row is late."""
    left, right = InputColumns(LEFT, ("key",), None), InputColumns(RIGHT, ("id",), None)
    spec = JoinSpec.unbounded(left, right)
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root:
        cluster = OperatorCluster(Path(root), spec.output)
        operator = Join(spec)
        every: dict[str, list[Row]] = {"left": [], "right": []}
        got: Counter[Any] = Counter()
        for number, (steps, then) in enumerate(batches):
            rows = [(side, key, at, 100 * number + i) for i, (side, key, at) in enumerate(steps)]
            for row in rows:
                every[row[0]].append(row)
            got += shown(spec, cluster.batch(operator, table(rows), 5000 * then))
        pairs = [(a[3], b[3], None) for a in every["left"] for b in every["right"] if a[1] and a[1] == b[1]]
        assert got == Counter(pairs)
        assert operator.late == []
