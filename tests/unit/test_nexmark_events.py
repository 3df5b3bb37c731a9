"""The events of the Nexmark benchmark: each is a function of its number."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module", name="events")
def events_module() -> Iterator[Any]:
    """benchmarks/nexmark/events.py: the benchmarks are scripts beside each other."""
    sys.path.insert(0, BENCHMARKS)
    try:
        yield importlib.import_module("nexmark.events")
    finally:
        sys.path.remove(BENCHMARKS)


def test_batches_and_partitions_change_no_event(events: Any, tmp_path: Path) -> None:
    """Whatever the size of batches, the files of all partitions have the same events together."""
    whole = events.Events(tmp_path).table(np.arange(3_000))
    for size, batches in ((1_000, 3), (300, 10), (50, 60)):
        written = events.Events(tmp_path / str(size))
        written.write(size, batches)
        files = sorted(written.folder.glob("*.parquet"))
        assert len(files) == batches * 2
        assert rows(pa.concat_tables(map(pq.read_table, files))) == rows(whole)


def test_kinds_keys_and_times(events: Any, tmp_path: Path) -> None:
    """Of 50 events 1 is a person and 3 are auctions; ids are dense, bids name auctions that came before, and no event is 5 s late."""
    n = np.arange(20_000)
    table = events.Events(tmp_path, a_second=1_000).table(n)
    kinds = table["event_type"].to_numpy()
    assert [int((kinds == kind).sum()) for kind in (0, 1, 2)] == [400, 1_200, 18_400]
    persons, auctions, bids = (
        pa.Table.from_struct_array(table[name].drop_null()) for name in ("person", "auction", "bid")
    )
    assert persons["id"].to_pylist() == list(range(1_000, 1_400))
    assert auctions["id"].to_pylist() == list(range(1_000, 2_200))
    listed = 1_000 + np.cumsum(kinds == 1)[kinds == 2]
    assert (bids["auction"].to_numpy() < listed).all()
    late_ms = n[kinds == 2] - (bids["dateTime"].cast(pa.int64()).to_numpy() // 1_000 - events.BEGIN_MS)
    assert late_ms.min() >= 0
    assert 4_900 < late_ms.max() < 5_000
    hottest = pc.value_counts(bids["auction"]).field("counts").to_numpy().max()
    assert hottest > 20 * len(bids) / len(auctions)


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))
