"""The operators of the simulation: user code that counts per key in a real state backend, and says for which records."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import xxhash

from penstock.operators.inputs import WAKE
from penstock.operators.process.keyed import Context, KeyedProcess
from penstock.operators.rows import Rows
from penstock.operators.side_outputs import SideOutput
from penstock.operators.states import ValueState, state_layout
from penstock.operators.timers import KINDS
from penstock.state.backends.base import OpenState
from penstock.state.keys import GROUP_SHIFT, SORT_KEY
from penstock.state.subtask_rows import subtask_sort_key
from penstock.testing.simulation.source import Fault, Item, fault_of

KEY = pa.schema([("key", pa.string())])
INPUT = pa.schema([("key", pa.string()), ("records", pa.list_(pa.string())), (SORT_KEY, pa.int64())])
OUTPUT = pa.schema(
    [
        ("key", pa.string()),
        ("count", pa.int64()),
        ("records", pa.list_(pa.string())),
        ("nonce", pa.int64()),
    ]
)


SET = "set clock"
"""How a row begins that tells of a timer that was set; see `timers.py`."""


def tells_of_timers(records: Sequence[str]) -> bool:
    """Whether a row is about a timer, and not about records."""
    return records[0].startswith((SET, *KINDS)) if records else False


class Counting(KeyedProcess):
    """Emits for every key that a batch touches the new count, the records, and a number that no replay repeats.

    `once`: only when it first sees a key, and never again; output that is lost once is then lost for good.
    Where calls may fail, that number is in a side output too.
    The count has a time to live that is longer than any simulation.
    """

    n = ValueState("long", ttl="3650d")
    echoes = SideOutput("nonce long")

    def __init__(self, rng: random.Random, *, once: bool, faults: float = 0.0) -> None:
        self._rng = rng
        self._once = once
        self._faults = faults

    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        """See `KeyedProcess.process`."""
        records = [record for row in rows for record in row.records]
        before = self.n.value
        self.n.value = (before or 0) + len(records)
        if not self._once:
            nonce = self._rng.getrandbits(60)
            if self._faults:
                ctx.emit("echoes", (nonce,))
            yield key, self.n.value, records, nonce
        elif before is None:
            yield key, self.n.value, [first_sight(key)], self._rng.getrandbits(60)
        for record in records if self._faults else ():
            if (
                fault_of(record, self._faults) is Fault.RAISES
            ):  # after the state was changed and a result was given
                raise ValueError(f"nobody can count {record}")


LAYOUT = state_layout(Counting(random.Random(0), once=False), KEY)  # noqa: S311 - never drawn from


def sort_key(key: str | None, max_parallelism: int) -> int:
    """The number that state is sorted by; its upper part is the key group."""
    hashed = xxhash.xxh3_64_intdigest((key or "").encode())
    return (hashed % max_parallelism) << GROUP_SHIFT | (hashed & ((1 << GROUP_SHIFT) - 1))


def subtask_of(key: str | None, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key."""
    return (sort_key(key, max_parallelism) >> GROUP_SHIFT) % parallelism


def as_rows(items: Iterable[Item], max_parallelism: int) -> list[pa.RecordBatch]:
    """Items as Spark would hand them to a task; none without items."""
    rows = [(item.key, list(item.records), sort_key(item.key, max_parallelism)) for item in items]
    if not rows:
        return []
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), INPUT, strict=True)
    ]
    return [pa.RecordBatch.from_arrays(columns, schema=INPUT)]


def with_wake_row(rows: Iterable[pa.RecordBatch], subtask: int) -> list[pa.RecordBatch]:
    """The same, and what Spark adds for a subtask that is to run whether it has rows or not."""
    schema = INPUT.append(pa.field(WAKE, pa.bool_()))
    columns = {SORT_KEY: pa.array([subtask_sort_key(subtask)]), WAKE: pa.array([True])}
    wakes = [columns.get(field.name, pa.nulls(1, field.type)) for field in schema]
    others = [batch.append_column(WAKE, pa.nulls(batch.num_rows, pa.bool_())) for batch in rows]
    return [*others, pa.RecordBatch.from_arrays(wakes, schema=schema)]


def as_items(results: Iterable[pa.RecordBatch]) -> list[Item]:
    """What an operator has emitted, as the next one sees it; of timers only sinks are told."""
    rows = [row for batch in results for row in batch.to_pylist()]
    return [Item(row["key"], tuple(row["records"])) for row in rows if not tells_of_timers(row["records"])]


def first_sight(key: str) -> str:
    """What an operator that emits once emits as the records of a key, whichever of them it saw first."""
    return f"first of {key}"


def scan(state: OpenState) -> Mapping[str, int]:
    """The counts in the state."""
    found: dict[str, int] = {}
    for batch in state.scan():
        found |= dict(zip(batch.column("key").to_pylist(), batch.column("n").to_pylist(), strict=True))
    return found
