"""Timers that fire among very many that wait, beside the same among few: the time of a task in which 1,000 fire. Executors' code, no Spark.

The state is built as a job builds it: files of one batch each, merged as the driver orders it. Then batches without rows follow, in turn
over each state, in each of which the watermark goes on so far that 1,000 timers are due. What is measured is what a task does: open the
state, find what is due, call `on_timer`, write the state of these keys, find out what is waited for next, and freeze.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench import Bench
from measure import Found

import penstock as ps
from penstock.ids import SubtaskId
from penstock.operators.event_time import OperatorClock
from penstock.operators.process.run_keyed import run_process
from penstock.operators.process.user_code import Context
from penstock.operators.state.declarations import state_layout
from penstock.operators.state.task_time import TaskTime, Timers
from penstock.state.backends.base import KeyBatch, OpenState, StateHandle, Workplace
from penstock.state.keys import GROUP_SHIFT, SORT_KEY
from penstock.state.lifetimes import Moment, StateTime
from penstock.state.merge_orders import Merged, replaced
from penstock.storage import LocalStorage

FIRING = 1_000
AT_ONCE = 250_000
"""Timers that a batch sets while the state is built."""
GAP_US = 1_000
"""Between two timers."""
WARM_UP = 3
KEY = pa.schema([("user", pa.int64())])
OUTPUT = pa.schema([("user", pa.int64()), ("n", pa.int64())])
NOTHING = pa.table(
    {"user": pa.array([], pa.int64()), "amount": pa.array([], pa.int64()), SORT_KEY: pa.array([], pa.int64())}
)


class Reminders(ps.KeyedProcess):
    """Counts how often each user was reminded."""

    reminded = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        """No rows come."""

    def on_timer(self, key, timer, ctx):
        self.reminded.value += 1
        yield key, self.reminded.value


@dataclass
class Waiting:
    """The state of a subtask with so many timers, each of another user."""

    root: Path
    timers: int
    batch: int = 0
    handle: StateHandle | None = None
    watermark_us: int = 0
    seconds: list[float] = field(default_factory=list)
    merges: int = 0

    def __post_init__(self) -> None:
        self._backend = ps.FilesystemBackend()
        self._storage = LocalStorage(self.root / "storage")
        self._layout = state_layout(Reminders(), KEY)

    def grow(self) -> None:
        """Set all timers, in the order in which keys come: at random."""
        moments = np.random.default_rng(7).permutation(self.timers).astype(np.int64) * GAP_US + GAP_US
        for start in range(0, self.timers, AT_ONCE):
            users = np.arange(start, min(start + AT_ONCE, self.timers), dtype=np.int64)
            self._set(users, moments)

    def refill(self) -> None:
        """Set as many as have fired, behind all others, so that the number that waits stays what it is."""
        users = np.arange(self.timers, self.timers + FIRING, dtype=np.int64)
        self.timers += FIRING
        self._set(users, np.arange(self.timers, dtype=np.int64) * GAP_US + GAP_US)

    def _set(self, users: np.ndarray, moments: np.ndarray) -> None:
        """One batch: the timer of each user is at the moment with the user's number."""
        keys = _keys(users)
        clock = OperatorClock(self.watermark_us, self.watermark_us)
        with self._batch(clock) as state:
            timers = Timers(state, clock, KEY, has_event_time=True)
            at_us = moments[keys.columns.column(0).to_numpy()]
            timers.write(keys, 0, np.arange(len(keys)), at_us, np.zeros(len(keys), dtype=np.bool_))
            self.handle = state.freeze()
        self._merge()

    def fire(self) -> None:
        """Let the next timers fire, and keep the time."""
        clock = OperatorClock(self.watermark_us, self.watermark_us + FIRING * GAP_US)
        began = time.perf_counter()
        with self._batch(clock) as state:
            timers = Timers(state, clock, KEY, has_event_time=True)
            context = Context("reminders", self.batch, 0, 1)
            results = run_process(
                Reminders(),
                NOTHING,
                state,
                key_names=["user"],
                output=OUTPUT,
                context=context,
                time=TaskTime(clock, None, timers),
            )
            due = timers.due()
            self.handle = state.freeze()
        self.seconds.append(time.perf_counter() - began)
        if sum(one.num_rows for one in results) != FIRING or due.event_us != clock.watermark_us + GAP_US:
            raise RuntimeError(f"{FIRING} timers were to fire, and the next to wait: {results}, {due}")
        self.watermark_us = clock.watermark_us
        self._merge()

    def _batch(self, clock: OperatorClock) -> closing[OpenState]:
        self.batch += 1
        return closing(self._backend.open(self._place(clock), self._layout, self.handle))

    def _place(self, clock: OperatorClock) -> Workplace:
        return Workplace(
            storage=self._storage,
            local_dir=self.root / "local",
            subtask=SubtaskId("reminders", 0),
            parallelism=1,
            max_parallelism=128,
            version=self.batch,
            stem=f"1-{self.batch}-0-0",
            time=StateTime(watermark_us=clock.before_us),
        )

    def _merge(self) -> None:
        """What a worker does in the background, on the driver's order."""
        for handle in self._chosen():
            window = self._backend.choose_merge(handle.refs, Moment(0, self.watermark_us))
            if window is None:
                return
            self.batch += 1
            refs, oldest = handle.refs[window.start : window.stop], window.stop == len(handle.refs)
            place = self._place(OperatorClock(self.watermark_us, self.watermark_us))
            merged = self._backend.merge(place, self._layout, refs, oldest=oldest)
            if merged is not None:
                place.local_path(merged.name).parent.mkdir(parents=True, exist_ok=True)
                place.merged_path(merged.name).rename(place.local_path(merged.name))
            self.handle = replaced(handle, Merged(handle.subtask, tuple(ref.name for ref in refs), merged))
            self.merges += 1

    def _chosen(self) -> Iterator[StateHandle]:
        while self.handle is not None:
            yield self.handle


def measure(bench: Bench) -> Found:
    """Fire 1,000 at a time, in turns."""
    few, many = 10_000, bench.size(10_000_000, 100_000)
    rounds = bench.size(30, 3)
    with bench.scratch() as root:
        small, large = Waiting(root / "small", few), Waiting(root / "large", many)
        for state in (small, large):
            state.grow()
        for _ in range(rounds + WARM_UP):
            for state in (small, large):
                state.fire()
                state.refill()
    small_s, large_s = (statistics.median(one.seconds[WARM_UP:]) for one in (small, large))
    return {
        "small_s": small_s,
        "large_s": large_s,
        "ratio": large_s / small_s,
        "slowest_large_s": max(large.seconds[WARM_UP:]),
        "waiting": many,
        "files": 0 if large.handle is None else len(large.handle.refs),
        "state_gib": 0 if large.handle is None else large.handle.size / 2**30,
    }


def _keys(users: np.ndarray) -> KeyBatch:
    """In the order of their sort keys, which are spread as Spark spreads them."""
    mixed = users.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (
        (mixed >> np.uint64(57)) << np.uint64(GROUP_SHIFT) | (mixed & np.uint64((1 << 48) - 1))
    ).astype(np.int64)
    order = np.argsort(numbers)
    columns = pa.RecordBatch.from_arrays([pa.array(users[order])], schema=KEY)
    return KeyBatch(numbers[order], columns)
