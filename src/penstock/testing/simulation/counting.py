"""The keyed operator of the simulation: counts per key in a real state backend, and says for which records."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.keys import GROUP_SHIFT, KeyBatch

LAYOUT = StateLayout(pa.schema([("key", pa.string())]), pa.schema([("n", pa.int64())]))
DESCRIBED_LAYOUT = ({"key": "string"}, {"n": "long"})
OUTPUT = pa.schema(
    [
        ("key", pa.string()),
        ("count", pa.int64()),
        ("records", pa.list_(pa.string())),
        ("nonce", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Item:
    """What flows into an operator: some records, under a key."""

    key: str
    records: tuple[str, ...]


def sort_key(key: str, max_parallelism: int) -> int:
    """The number that state is sorted by; its upper part is the key group."""
    hashed = xxhash.xxh3_64_intdigest(key.encode())
    return (hashed % max_parallelism) << GROUP_SHIFT | (hashed & ((1 << GROUP_SHIFT) - 1))


def subtask_of(key: str, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key."""
    return (sort_key(key, max_parallelism) >> GROUP_SHIFT) % parallelism


def first_sight(key: str) -> str:
    """What an operator that emits once emits as the records of a key, whichever of them it saw first."""
    return f"first of {key}"


def count(
    state: OpenState, items: Iterable[Item], max_parallelism: int, rng: random.Random, *, once: bool
) -> pa.RecordBatch | None:
    """Add the items to the state; return one row a key, with a number that no replay repeats. None without items or results.

    `once`: only keys that the state did not know are in the result.
    """
    by_key: dict[str, list[str]] = {}
    for item in items:
        by_key.setdefault(item.key, []).extend(item.records)
    if not by_key:
        return None
    names = sorted(by_key, key=lambda key: sort_key(key, max_parallelism))
    keys = KeyBatch(
        np.array([sort_key(name, max_parallelism) for name in names], dtype=np.int64),
        pa.record_batch([pa.array(names, pa.string())], schema=LAYOUT.key),
    )
    values, _ = state.read(keys)
    before = values.column(0).to_pylist()
    after = [(old or 0) + len(by_key[name]) for name, old in zip(names, before, strict=True)]
    state.write(keys, pa.record_batch([pa.array(after, pa.int64())], schema=LAYOUT.value))
    records = [[first_sight(name)] if once else by_key[name] for name in names]
    nonces = [rng.getrandbits(60) for _ in names]
    rows = pa.record_batch([names, after, records, nonces], schema=OUTPUT)
    if once:
        rows = rows.filter(pa.array([old is None for old in before]))
    return rows if rows.num_rows else None


def scan(state: OpenState) -> Mapping[str, int]:
    """The counts in the state."""
    found: dict[str, int] = {}
    for batch in state.scan():
        found |= dict(zip(batch.column("key").to_pylist(), batch.column("n").to_pylist(), strict=True))
    return found
