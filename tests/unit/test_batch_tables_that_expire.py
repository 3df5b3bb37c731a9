"""Maps and lists of a `BatchProcess` with a time to live: each entry and element by itself, from its last write or read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from builders.operator_cluster import OperatorCluster
from penstock.state.ddl import arrow_schema

BACKENDS = ["filesystem", "memory", "rocksdb"]
SECOND_US = 1_000_000


class Entries(ps.BatchProcess):
    """Does what the rows say with the entries, and gives all that there are where a row asks for it."""

    written = ps.MapState("string", "long", ttl="10s")
    read = ps.MapState("string", "long", ttl=ps.TimeToLive("10s", since="read"))
    listed = ps.ListState("long", ttl="10s")

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        sets = pa.compute.equal(batch["op"], "set")
        at = pa.array(batch.key_index).filter(sets)
        for name in ("written", "read"):
            state[name].put(at, batch["name"].filter(sets), batch["n"].filter(sets))
        state["listed"].append(at, batch["n"].filter(sets))
        gets = pa.compute.equal(batch["op"], "get")
        for name in ("written", "read"):
            state[name].get(pa.array(batch.key_index).filter(gets), batch["name"].filter(gets))
        alls = pa.compute.equal(batch["op"], "all")
        if not alls.true_count:
            return None
        shown = [
            sorted(f"{row['key']}={row['value']}" for row in state[name].rows().to_arrow().to_pylist())
            for name in ("written", "read")
        ]
        listed = state["listed"].rows()["value"].to_pylist()
        return {"k": ["k"], "seen": [f"{' '.join(shown[0])} | {' '.join(shown[1])} | {listed}"]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_entries_expire_one_by_one(tmp_path: Path, backend: str) -> None:
    """What was not written for so long is gone, and what was read in between is not, where reading counts."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, seen string"), backend)

    def at(second: int, *rows: tuple[str, str, int]) -> list[str]:
        cluster.now_us = second * SECOND_US
        ops, names, numbers = zip(*rows, strict=True)
        table = pa.table(
            {"k": ["k"] * len(rows), "op": ops, "name": names, "n": pa.array(numbers, pa.int64())}
        )
        return [row["seen"] for row in cluster.batch(Entries(), table)]

    at(1, ("set", "a", 1), ("set", "b", 2), ("set", "c", 3))
    at(5, ("set", "b", 20), ("get", "a", 0))
    assert at(10, ("get", "c", 0)) == []
    assert at(11, ("all", "", 0)) == ["b=20 | a=1 b=20 c=3 | [20]"]
    assert at(15, ("all", "", 0)) == [" | a=1 b=20 c=3 | []"]
    assert at(24, ("get", "a", 0)) == []
    assert at(25, ("all", "", 0)) == [" | a=1 | []"]
