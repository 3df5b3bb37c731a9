"""The first row of each value, against a plain Python model, on every backend, whatever happens in between."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import BuiltIn, OperatorCluster
from penstock.operators import dedupe as dedupe_module
from penstock.operators.dedupe import DedupeSpec, first_apart, run_dedupe
from penstock.operators.event_time import OperatorClock, TimeColumn, Timed, judged_by_time
from penstock.operators.process.user_code import Context
from penstock.operators.state import table_rows as stored_module
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
COLUMNS = arrow_schema("n long, k string, at timestamp")
RAM_DISK = "/dev/shm"
Row = tuple[str, int, int]
"""Key, event time, number."""


class Dedupe(BuiltIn):
    """The operator; late rows are put aside."""

    uses_time = True

    def __init__(self, within_us: int) -> None:
        self.spec = DedupeSpec(COLUMNS, ("k",), TimeColumn("at"), within_us)
        self.late: list[int] = []

    def layout(self, key: pa.Schema) -> StateLayout:
        assert self.spec.layout().key == key
        return self.spec.layout()

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        raise NotImplementedError

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        result = run_dedupe(self.spec, rows, state, clock, operator="op")
        self.late += result.late.column("n").to_pylist()
        return result.passed


def table(rows: list[Row]) -> pa.Table:
    columns = [[row[2] for row in rows], [row[0] for row in rows], [row[1] for row in rows]]
    return pa.table([pa.array(one, f.type) for one, f in zip(columns, COLUMNS, strict=True)], schema=COLUMNS)


class Model:
    """What passes, row by row, with everything ever passed remembered."""

    def __init__(self, within_us: int) -> None:
        self.within_us = within_us
        self.passed: dict[str, list[int]] = {}

    def takes(self, row: Row) -> bool:
        moments = self.passed.setdefault(row[0], [])
        if any(abs(row[1] - moment) < self.within_us for moment in moments):
            return False
        moments.append(row[1])
        return True


ROWS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-5, 5), st.integers(0, 3)), max_size=60)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=share(25), deadline=None)
@given(data=st.data(), steps=ROWS, within_us=st.integers(1, 12))
def test_what_passes_is_what_the_model_lets_pass(
    backend: str, data: st.DataObject, steps: list[tuple[str, int, int]], within_us: int
) -> None:
    """Rows come in any order up to the watermark and are cut anywhere; machines die, parallelism changes, files are merged."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedupe_module, "ROUNDS", data.draw(st.sampled_from([0, 1, 64])))
        patch.setattr(dedupe_module, "PIECE_ROWS", data.draw(st.sampled_from([1, 3, 1000])))
        patch.setattr(stored_module, "FEW_ROWS", data.draw(st.sampled_from([1, 1000])))
        cluster = OperatorCluster(Path(root), COLUMNS, backend)
        operator, model = Dedupe(within_us), Model(within_us)
        waiting: list[Row] = []
        now = 100
        expected: list[int] = []
        got: list[int] = []
        kept: Any = None
        for number, (key, moved, then) in enumerate(steps):
            now += then
            row = (key, now + moved, number)
            waiting.append(row)
            if data.draw(st.integers(0, 3)):
                continue
            watermark = min(now - 5, *(one[1] for one in waiting))
            batch, waiting = waiting, []
            if kept is None and data.draw(st.booleans()):
                kept = (cluster.checkpoint(), len(expected), dict(model.passed), batch, watermark)
            expected += [one[2] for one in batch if model.takes(one)]
            got += [row["n"] for row in cluster.batch(operator, table(batch), watermark)]
            assert sorted(got) == sorted(expected)
            cluster.merge()
            if data.draw(st.integers(0, 4)) == 0:
                cluster.rescale(data.draw(st.integers(1, 3)))
            if kept is not None and data.draw(st.integers(0, 3)) == 0:
                # the same batch again, on what the checkpoint knew
                before = cluster.checkpoint()
                cluster.go_back(kept[0])
                again = [row["n"] for row in cluster.batch(operator, table(kept[3]), kept[4])]
                assert set(again) <= {one[2] for one in kept[3]}
                assert sorted(again) == sorted(expected[kept[1] : kept[1] + len(again)])
                cluster.go_back(before)
        assert operator.late == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_how_long_a_value_is_remembered_may_change(tmp_path: Path, backend: str) -> None:
    """It holds for all that is remembered; what had been forgotten stays so."""
    cluster = OperatorCluster(tmp_path, COLUMNS, backend)

    def passed(within_us: int, rows: list[Row], watermark_us: int) -> list[int]:
        return sorted(row["n"] for row in cluster.batch(Dedupe(within_us), table(rows), watermark_us))

    assert passed(10, [("a", 100, 0), ("b", 115, 1)], 112) == [0, 1]
    assert passed(50, [("a", 120, 2), ("b", 130, 3)], 120) == [2]  # that a passed at 100 was over at 110
    assert passed(50, [("a", 140, 4), ("b", 164, 5)], 120) == []
    assert passed(10, [("a", 141, 6), ("b", 128, 7)], 120) == [6, 7]


def test_late_rows_are_put_aside() -> None:
    """A row before the watermark of the batch before does not pass; nor does one without a time, or with an absurd one."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root:
        cluster = OperatorCluster(Path(root), COLUMNS)
        operator = Dedupe(10)
        cluster.batch(operator, table([("a", 100, 0)]), 90)
        late: Any = [("b", 89, 1), ("c", None, 2), ("d", (1 << 62) + 1, 3)]
        passed = cluster.batch(operator, table([("e", 90, 4), *late]), 90)
        assert [row["n"] for row in passed] == [4]
        assert sorted(operator.late) == [1, 2, 3]


def test_absurd_times_end_the_run_where_asked() -> None:
    """The source may say that a row without a time is an error; it is named."""
    clock, time = OperatorClock(), TimeColumn("at", refuses_absurd=True)
    rows: Any = [("a", 5, 0), ("b", None, 1)]
    with pytest.raises(ps.BadRecordError, match=r"'at'.*no event time"):
        judged_by_time(table(rows), time, clock, operator="op")
    in_time = judged_by_time(table(rows[:1]), time, clock, operator="op")
    assert (in_time.times.tolist(), in_time.late.num_rows) == ([5], 0)


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    """When the watermark is `within` behind a row that passed, its moment is gone."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as root:
        cluster = OperatorCluster(Path(root), COLUMNS)
        operator = Dedupe(10)
        cluster.batch(operator, table([("a", 100, 0)]), 109)
        assert len(cluster.rows_in("passed")) == 1
        cluster.batch(operator, table([]), 110)
        assert cluster.rows_in("passed") == []


@given(
    times=st.lists(st.integers(-30, 30), max_size=40), within_us=st.integers(1, 9), rounds=st.integers(0, 4)
)
def test_rounds_and_row_by_row_agree(times: list[int], within_us: int, rounds: int) -> None:
    """However many rounds there are before rows are looked at one by one."""
    rows = Timed(np.zeros(len(times), dtype=np.int64), np.array(times, dtype=np.int64))
    model = Model(within_us)
    expected = [model.takes(("a", time, 0)) for time in times]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedupe_module, "ROUNDS", rounds)
        assert first_apart(rows, np.ones(len(times), dtype=np.bool_), within_us).tolist() == expected


def test_one_value_with_very_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All apart, they cost about the same in any order as in that of time."""
    monkeypatch.setattr(dedupe_module, "ROUNDS", 0)
    ordered = 10 * np.arange(300_000, dtype=np.int64)
    taken = []
    for times in (ordered, np.random.default_rng(1).permutation(ordered)):
        began = process_time()
        assert first_apart(Timed(np.zeros_like(times), times), np.ones(len(times), dtype=np.bool_), 5).all()
        taken.append(process_time() - began)
    assert taken[1] < 8 * taken[0], taken


def test_times_are_those_of_the_column() -> None:
    """Timestamps with a zone and without are microseconds since the epoch."""
    moment = datetime(2024, 5, 1, tzinfo=UTC)
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        given_ = moment if kind.tz else moment.replace(tzinfo=None)
        rows = pa.table({"at": pa.array([given_], kind)})
        judged = judged_by_time(rows, TimeColumn("at"), OperatorClock(), operator="op")
        assert judged.times.tolist() == [int(moment.timestamp() * 1_000_000)]
