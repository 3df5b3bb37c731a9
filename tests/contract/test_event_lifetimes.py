"""Rows that end with event time: what every state backend promises about them. Nothing is written when they end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ids import SubtaskId
from penstock.state.backends import FilesystemBackend, MemoryBackend, RocksdbBackend
from penstock.state.backends.base import (
    OpenState,
    StateBackend,
    StateHandle,
    StateLayout,
    TableLayout,
    Workplace,
    with_stamps,
)
from penstock.state.ddl import arrow_schema
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US, Lifetime, Measure, Moment, StateTime
from penstock.state.merge_orders import Merged, MergeOrder, replaced
from penstock.storage import LocalStorage
from services.tiers import share

RAM_DISK = "/dev/shm"
BACKENDS = {"filesystem": FilesystemBackend, "memory": MemoryBackend, "rocksdb": RocksdbBackend}
STAMP = "__event"
LATENESS = 5
OF_WINDOW = Lifetime(("n",), STAMP, LATENESS, Measure.WATERMARK)
OF_TIMER = Lifetime(("set",), "__due", 0, Measure.FIRED)
OF_VALUE = Lifetime(("seen",), "__event_seen", 10, Measure.WATERMARK)
KEY = arrow_schema("card string")
WINDOWS = TableLayout(
    "windows",
    arrow_schema("card string, window_end long"),
    with_stamps(arrow_schema("n long"), (OF_WINDOW,)),
    by_time=True,
    lifetimes=(OF_WINDOW,),
)
TIMERS = TableLayout(
    "timers",
    arrow_schema("card string, at long"),
    with_stamps(arrow_schema("set boolean"), (OF_TIMER,)),
    by_time=True,
    lifetimes=(OF_TIMER,),
)
LAYOUT = StateLayout(KEY, with_stamps(arrow_schema("seen long"), (OF_VALUE,)), (WINDOWS, TIMERS), (OF_VALUE,))
CARDS = ("a", "b", "c")

Row = tuple[str, int]


def rows_of(table: TableLayout, rows: list[Row]) -> KeyBatch:
    numbers = np.array([CARDS.index(card) for card, _ in rows], dtype=np.int64)
    columns = [
        pa.array([card for card, _ in rows], pa.string()),
        pa.array([at for _, at in rows], pa.int64()),
    ]
    identity = pa.RecordBatch.from_arrays(columns, schema=table.identity)
    return KeyBatch(numbers, identity, np.array([at for _, at in rows], dtype=np.int64))


def keys_of(cards: list[str]) -> KeyBatch:
    numbers = np.array([CARDS.index(card) for card in cards], dtype=np.int64)
    return KeyBatch(numbers, pa.RecordBatch.from_arrays([pa.array(cards, pa.string())], schema=KEY))


@dataclass
class Subtask:
    """One subtask, and what it should hold."""

    backend: StateBackend
    root: Path
    version: int = 0
    handle: StateHandle | None = None
    watermark_us: int = LONG_AGO_US
    clock_us: int = LONG_AGO_US
    windows: dict[Row, int] = field(default_factory=dict)
    timers: set[Row] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator[tuple[Workplace, OpenState]]:
        self.version += 1
        workplace = Workplace(
            storage=LocalStorage(self.root / "storage"),
            local_dir=self.root / "local",
            subtask=SubtaskId("w", 0),
            parallelism=1,
            max_parallelism=1,
            version=self.version,
            stem=f"1-{self.version}-0-0",
            time=StateTime(7, {}, self.watermark_us, self.clock_us),
        )
        with closing(self.backend.open(workplace, LAYOUT, self.handle)) as state:
            yield workplace, state

    def batch(self, windows: dict[Row, int], timers: set[Row], seen: dict[str, int], to: int) -> None:
        """Check what is there, write rows, and let both times go on."""
        with self.open() as (workplace, state):
            self._check(state, to)
            if windows:
                stamps = [end for _, end in windows]
                values = pa.RecordBatch.from_arrays(
                    [pa.array(list(windows.values()), pa.int64()), pa.array(stamps, pa.int64())],
                    schema=WINDOWS.value,
                )
                state.table("windows").write(rows_of(WINDOWS, list(windows)), values)
            if timers:
                stamps = [at for _, at in timers]
                values = pa.RecordBatch.from_arrays(
                    [pa.array([True] * len(timers)), pa.array(stamps, pa.int64())], schema=TIMERS.value
                )
                state.table("timers").write(rows_of(TIMERS, list(timers)), values)
            if seen:
                cards = sorted(seen)
                times = pa.array([seen[card] for card in cards], pa.int64())
                values = pa.RecordBatch.from_arrays([times, times], schema=LAYOUT.value)
                state.read(keys_of(cards))
                state.write(keys_of(cards), values)
            self.handle = state.freeze()
        self._store()
        self._merge(workplace)
        self.windows |= windows
        self.timers |= timers
        self.seen |= seen
        self.watermark_us = self.clock_us = to
        self._forget()

    def _check(self, state: OpenState, to: int) -> None:
        stored = list(state.table("windows").until(to, after=self.watermark_us))
        due = [
            (card, end, n)
            for part in stored
            for card, end, n in zip(
                *(part.column(name).to_pylist() for name in ("card", "window_end", "n")), strict=True
            )
        ]
        expected = [
            (card, end, n) for (card, end), n in self.windows.items() if self.watermark_us < end <= to
        ]
        assert due == sorted(expected, key=lambda row: (row[1], row[0]))
        fires = [
            (card, at)
            for part in state.table("timers").until(to, after=self.clock_us)
            for card, at in zip(part.column("card").to_pylist(), part.column("at").to_pylist(), strict=True)
        ]
        assert fires == sorted((row for row in self.timers if row[1] <= to), key=lambda row: row[::-1])
        wanted = sorted({*self.windows, ("a", 3)}, key=lambda row: (row[1], row[0]))
        values, found = state.table("windows").read(rows_of(WINDOWS, wanted))
        assert found.tolist() == [row in self.windows for row in wanted]
        assert [n for n, there in zip(values.column("n").to_pylist(), found, strict=True) if there] == [
            self.windows[row] for row in wanted if row in self.windows
        ]
        for card, end in wanted:
            there = state.table("windows").at(end, CARDS.index(card))
            of_one = [n for part in there for n in part.column("n").to_pylist()]
            assert of_one == ([self.windows[card, end]] if (card, end) in self.windows else [])
        values, found = state.read(keys_of(list(CARDS)))
        assert found.tolist() == [card in self.seen for card in CARDS]
        everything = [row for part in state.table("windows").scan() for row in part.column("n").to_pylist()]
        assert sorted(everything) == sorted(self.windows.values())

    def _forget(self) -> None:
        now = self.watermark_us
        self.windows = {row: n for row, n in self.windows.items() if row[1] + LATENESS > now}
        self.timers = {row for row in self.timers if row[1] > self.clock_us}
        self.seen = {card: at for card, at in self.seen.items() if at + OF_VALUE.ttl_us > now}

    def _store(self) -> None:
        assert self.handle is not None
        storage = LocalStorage(self.root / "storage")
        for name in self.handle.files - set(storage.names()):
            storage.put(name, (self.root / "local" / name).read_bytes())

    def _merge(self, workplace: Workplace) -> None:
        """What the policy chooses at the time that comes next."""
        assert self.handle is not None
        window = self.backend.choose_merge(self.handle.refs, Moment(7, self.watermark_us))
        if window is None:
            return
        refs = self.handle.refs[window.start : window.stop]
        order = MergeOrder(self.handle.subtask, refs, oldest=window.stop == len(self.handle.refs))
        merged = self.backend.merge(workplace, LAYOUT, refs, oldest=order.oldest)
        if merged is not None:
            (self.root / "local" / merged.name).parent.mkdir(parents=True, exist_ok=True)
            workplace.merged_path(merged.name).rename(self.root / "local" / merged.name)
        done = Merged(self.handle.subtask, order.names, merged)
        after = replaced(self.handle, done)
        assert after is not None
        self.handle = after
        self._store()


TIMES = st.integers(-20, 60)
STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.tuples(st.sampled_from(CARDS), TIMES), st.integers(0, 99), max_size=5),
        st.sets(st.tuples(st.sampled_from(CARDS), TIMES), max_size=5),
        st.dictionaries(st.sampled_from(CARDS), TIMES, max_size=2),
        st.integers(0, 15),
    ),
    max_size=12,
)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=share(60), deadline=None)
@given(steps=STEPS)
def test_rows_end_with_time(
    backend: str, steps: list[tuple[dict[Row, int], set[Row], dict[str, int], int]]
) -> None:
    """What is due is found once, in its order; what has ended is not seen again, in whatever way it is asked for."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as folder:
        subtask = Subtask(BACKENDS[backend](), Path(folder))
        to = -20
        for windows, timers, seen, further in steps:
            to += further
            now = subtask.watermark_us
            subtask.batch(
                {row: n for row, n in windows.items() if row[1] + LATENESS > max(now, to)},
                {row for row in timers if row[1] > to},
                {card: at for card, at in seen.items() if at + OF_VALUE.ttl_us > now},
                to,
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_ended_takes_no_room_for_ever(backend: str, tmp_path: Path) -> None:
    """A thousand windows come and go, ten at a time."""
    subtask = Subtask(BACKENDS[backend](), tmp_path)
    for batch in range(100):
        subtask.batch({("a", batch * 10 + i): i for i in range(10)}, set(), {}, batch * 10)
    assert subtask.handle is not None
    if backend != "rocksdb":
        assert sum(ref.rows for ref in subtask.handle.refs) < 200
    else:
        with subtask.open() as (_, state):
            state.purge()
            assert sum(part.num_rows for part in state.table("windows").scan()) <= 15


def test_rocksdb_removes_what_has_expired_also_after_the_end_of_time(tmp_path: Path) -> None:
    """The round of a batch at the end of time says nothing about when the next one is worth it."""
    subtask = Subtask(RocksdbBackend(), tmp_path)
    subtask.batch({}, {("a", 1_000_000)}, {"a": 0}, 5)
    subtask.watermark_us = FAR_AWAY_US
    with subtask.open() as (_, state):
        state.purge()
        subtask.handle = state.freeze()
    subtask._store()
    subtask.watermark_us, subtask.seen = 5, {}
    subtask.batch({}, set(), {"b": 6}, 20)
    subtask.batch({}, set(), {"c": 21}, 21)
    assert subtask.handle is not None
    subtask.watermark_us = LONG_AGO_US  # so that nothing is hidden
    with subtask.open() as (_, state):
        found = state.read(keys_of(list(CARDS)))[1].tolist()
    assert found == [False, False, True]
