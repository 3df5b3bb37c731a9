"""Tables with many rows a key, and tables by time: what every state backend promises about them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, IncompatibleStateError, InternalError
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.state_plan import redistribute
from penstock.state.backends import FilesystemBackend, MemoryBackend, RocksdbBackend, sorted_rows
from penstock.state.backends.base import (
    OpenState,
    StateBackend,
    StateHandle,
    StateLayout,
    TableLayout,
    Workplace,
)
from penstock.state.ddl import arrow_schema
from penstock.state.keys import GROUP_SHIFT, KeyBatch, order_numbers, owner
from penstock.state.lifetimes import Moment
from penstock.state.merge_orders import Merged, MergeOrder, replaced
from penstock.storage import LocalStorage
from services.tiers import share

MAX_PARALLELISM = 8
RAM_DISK = "/dev/shm"
KEYS = [f"key{i}" for i in range(7)]
KEY = arrow_schema("card string")
MAP = TableLayout("shops", arrow_schema("card string, shops_key string"), arrow_schema("shops long"))
LIST = TableLayout("recent", arrow_schema("card string, recent_position long"), arrow_schema("recent string"))
TIMERS = TableLayout("timers", arrow_schema("card string, at long"), pa.schema([]), by_time=True)
LAYOUT = StateLayout(KEY, arrow_schema("n long"), (MAP, LIST, TIMERS))
BACKENDS = {"filesystem": FilesystemBackend, "memory": MemoryBackend, "rocksdb": RocksdbBackend}

Row = tuple[str, str | int]
"""A key, and what tells its rows apart."""


def sort_key(key: str) -> int:
    """Few of them, so that keys collide all the time."""
    digest = xxhash.xxh3_64_intdigest(key.encode())
    return ((digest % 3) << GROUP_SHIFT) | (digest >> 32) % 2


def group(key: str) -> int:
    return sort_key(key) >> GROUP_SHIFT


def keys_of(keys: list[str]) -> KeyBatch:
    keys = sorted(keys, key=sort_key)
    numbers = np.array([sort_key(key) for key in keys], dtype=np.int64)
    return KeyBatch(numbers, pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], schema=KEY))


def rows_of(table: TableLayout, rows: list[Row]) -> KeyBatch:
    columns = [
        pa.array(list(column), f.type)
        for column, f in zip(zip(*rows, strict=True), table.identity, strict=True)
    ]
    numbers = np.array([sort_key(key) for key, _ in rows], dtype=np.int64)
    batch = pa.RecordBatch.from_arrays(columns, schema=table.identity)
    return KeyBatch(numbers, batch, order_numbers(columns[1]))


@dataclass
class Job:
    """All subtasks of one operator, and a plain dictionary a table that knows what they should hold."""

    backend: StateBackend
    root: Path
    parallelism: int = 1
    version: int = 0
    handles: list[StateHandle | None] = field(default_factory=lambda: [None])
    truth: dict[str, dict[Row, object]] = field(
        default_factory=lambda: {table.name: {} for table in LAYOUT.tables}
    )

    def workplace(self, index: int) -> Workplace:
        return Workplace(
            storage=LocalStorage(self.root / "storage"),
            local_dir=self.root / "local",
            subtask=SubtaskId("fraud", index),
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=self.version,
            stem=f"1-{self.version}-{index}-{self.parallelism}",
        )

    @contextmanager
    def open(self, index: int) -> Iterator[OpenState]:
        with closing(self.backend.open(self.workplace(index), LAYOUT, self.handles[index])) as state:
            yield state

    def mine(self, index: int, key: str) -> bool:
        return owner(group(key), self.parallelism) == index

    def batch(self, changes: dict[str, dict[Row, object]]) -> None:
        """Set rows, or forget them where the value is None, in all tables."""
        self.version += 1
        for index in range(self.parallelism):
            with self.open(index) as state:
                for table in LAYOUT.tables:
                    own = {
                        row: value
                        for row, value in changes.get(table.name, {}).items()
                        if self.mine(index, row[0])
                    }
                    if own:
                        self.write(state, table, own)
                self.handles[index] = handle = state.freeze()
            storage = LocalStorage(self.root / "storage")
            for name in handle.files - set(storage.names()):
                storage.put(name, (self.root / "local" / name).read_bytes())
            self.merge(index)
        for name, rows in changes.items():
            known = self.truth[name] | rows
            self.truth[name] = {row: value for row, value in known.items() if value is not None}

    def write(self, state: OpenState, table: TableLayout, rows: dict[Row, object]) -> None:
        deleted = np.array([value is None for value in rows.values()], dtype=np.bool_)
        columns = [pa.array(list(rows.values()), f.type) for f in table.value]
        values = (
            pa.RecordBatch.from_arrays(columns, schema=table.value)
            if columns
            else pa.RecordBatch.from_struct_array(pa.nulls(len(rows), pa.struct([])))
        )
        state.table(table.name).write(rows_of(table, list(rows)), values, deleted)

    def merge(self, index: int, *, everything: bool = False) -> None:
        handle = self.handles[index]
        assert handle is not None
        window = range(len(handle.refs)) if everything else self.backend.choose_merge(handle.refs, Moment())
        if window is None or not isinstance(self.backend, FilesystemBackend):
            return
        refs = handle.refs[window.start : window.stop]
        order = MergeOrder(handle.subtask, refs, oldest=window.stop == len(handle.refs))
        workplace = self.workplace(index)
        result = self.backend.merge(workplace, LAYOUT, order.refs, oldest=order.oldest)
        if result is not None:
            workplace.storage.put(result.name, workplace.merged_path(result.name).read_bytes())
        self.handles[index] = replaced(handle, Merged(handle.subtask, order.names, result))

    def rescale(self, parallelism: int) -> None:
        former = [handle for handle in self.handles if handle]
        taken = redistribute(
            former,
            uid="fraud",
            parallelism=parallelism,
            version=CheckpointId(self.version),
            backend=self.backend.name,
        )
        self.parallelism = parallelism
        self.handles = [taken[SubtaskId("fraud", index)] for index in range(parallelism)]
        self.version += 1
        for index in range(parallelism):
            with self.open(index) as state:
                self.handles[index] = handle = state.freeze()
            storage = LocalStorage(self.root / "storage")
            for name in handle.files - set(storage.names()):
                storage.put(name, (self.root / "local" / name).read_bytes())

    # ── what there is, asked in every way ──────────────────────────────────────────────────────

    def check(self) -> None:
        for index in range(self.parallelism):
            own = [key for key in KEYS if self.mine(index, key)]
            with self.open(index) as state:
                for table in (MAP, LIST):
                    expected = {key: self.expected(table, key) for key in own}
                    self.check_rows_of(state, table, own, expected)
                    self.check_one_by_one(state, table, expected)
                self.check_timers(state, own)

    def expected(self, table: TableLayout, key: str) -> list[tuple[str | int, object]]:
        """The rows of a key, in the order of their second sort number."""
        rows = {row[1]: value for row, value in self.truth[table.name].items() if row[0] == key}
        numbers = (
            dict(zip(rows, order_numbers(pa.array(list(rows), table.identity[1].type)).tolist(), strict=True))
            if rows
            else {}
        )
        return sorted(rows.items(), key=lambda item: numbers[item[0]])

    def check_rows_of(
        self,
        state: OpenState,
        table: TableLayout,
        own: list[str],
        expected: dict[str, list[tuple[str | int, object]]],
    ) -> None:
        asked = keys_of(own)
        for at_most, max_bytes in ((1000, 1 << 20), (3, 1 << 20), (1000, 100)):
            found = state.table(table.name).rows_of(asked, at_most, max_bytes)
            assert min(1, len(asked)) <= len(found) <= len(asked)
            assert len(found) == len(asked) or max_bytes == 100
            rows = [tuple(row.values()) for row in found.rows.to_pylist()]
            for at, key in enumerate(asked.columns.column(0).to_pylist()[: len(found)]):
                got = [row[1:] for row in rows[found.starts[at] : found.starts[at + 1]]]
                if found.left_out[at]:
                    assert (at_most, max_bytes) != (1000, 1 << 20)
                    assert got == []
                else:
                    assert got == expected[key]
                    assert all(row[0] == key for row in rows[found.starts[at] : found.starts[at + 1]])

    def check_one_by_one(
        self, state: OpenState, table: TableLayout, expected: dict[str, list[tuple[str | int, object]]]
    ) -> None:
        opened = state.table(table.name)
        for key, rows in expected.items():
            one = opened.one_key(keys_of([key]))
            scanned = [tuple(row.values()) for part in one.scan() for row in part.to_pylist()]
            assert scanned == [(key, *row) for row in rows]
            for sub, value in (*rows, ("nobody" if table is MAP else 10**9, None)):
                asked = rows_of(table, [(key, sub)])
                values, flags = opened.read(asked)
                got = one.get(asked.columns.column(1), int(order_numbers(asked.columns.column(1))[0]))
                if value is None:
                    assert (got, flags.tolist()) == (None, [False])
                else:
                    assert got is not None
                    assert got.column(0).to_pylist() == values.column(0).to_pylist() == [value]

    def check_timers(self, state: OpenState, own: list[str]) -> None:
        mine = [row for row in self.truth["timers"] if row[0] in own]
        ordered = sorted(mine, key=lambda row: (row[1], sort_key(row[0]), row[0]))
        assert self.fired(state, 2**62) == ordered
        for until in (-1, 0, 3):
            assert self.fired(state, until) == [row for row in ordered if int(row[1]) <= until]

    @staticmethod
    def fired(state: OpenState, until: int) -> list[Row]:
        rows = [row for part in state.table("timers").until(until) for row in part.to_pylist()]
        assert all(row["__sort_key"] == sort_key(row["card"]) for row in rows)
        return sorted(
            ((row["card"], row["at"]) for row in rows), key=lambda row: (row[1], sort_key(row[0]), row[0])
        )


names, places = (
    st.sampled_from(KEYS),
    st.sampled_from(["", "a", "b", "ä", "x" * 70, "y" * 9, *map(str, range(8))]),
)
maps = st.dictionaries(st.tuples(names, places), st.none() | st.integers(0, 9), max_size=12)
lists = st.dictionaries(st.tuples(names, st.integers(0, 9)), st.none() | st.sampled_from("abc"), max_size=12)
timers = st.dictionaries(st.tuples(names, st.integers(-4, 8)), st.none() | st.just(1), max_size=8)
batches = st.fixed_dictionaries({"shops": maps, "recent": lists, "timers": timers})
steps = st.lists(batches | st.sampled_from([1, 2, 3, 5]), max_size=8)


@pytest.mark.parametrize("backend", BACKENDS)
@given(steps=steps, piece_bytes=st.sampled_from([1, 1 << 20]))
@settings(max_examples=share(25))
def test_tables_equal_dictionaries(backend: str, steps: list[Any], piece_bytes: int) -> None:
    """Whatever is written, forgotten, merged and rescaled: every way to ask finds what a dictionary would."""
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_rows, "PIECE_BYTES", piece_bytes)
        job = Job(BACKENDS[backend](), Path(folder))
        for step in steps:
            if isinstance(step, int):
                job.rescale(step)
            else:
                job.batch(step)
        job.check()


@pytest.fixture(params=BACKENDS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(BACKENDS[request.param](), tmp_path)


def test_many_files_and_one_merge(tmp_path: Path) -> None:
    """After everything was merged into one file nothing of what was forgotten is in it, and all ways to ask agree."""
    job = Job(FilesystemBackend(), tmp_path)
    for n in range(30):
        job.batch(
            {
                "shops": {(key, str(n % 7)): n for key in KEYS[:4]},
                "recent": {("key0", n): "x"},
                "timers": {("key1", n): 1},
            }
        )
    job.batch(
        {"shops": {(key, "3"): None for key in KEYS[:4]}, "timers": {("key1", n): None for n in range(20)}}
    )
    job.merge(0, everything=True)
    handle = job.handles[0]
    assert handle is not None
    assert [ref.tombstones for ref in handle.refs] == [0]
    assert handle.refs[0].rows == 4 * 6 + 30 + 10
    job.check()


def test_one_file_a_batch_however_many_tables(tmp_path: Path) -> None:
    """A batch that writes all tables adds one file, which Arrow reads without Penstock, a column a table."""
    job = Job(FilesystemBackend(), tmp_path)
    job.batch({"shops": {("key0", "a"): 1}, "recent": {("key0", 0): "x"}, "timers": {("key1", 5): 1}})
    handle = job.handles[0]
    assert handle is not None
    (name,) = handle.files
    with pa.memory_map(str(tmp_path / "local" / name)) as file:
        tables = pa.ipc.open_file(file).read_all()
    assert tables.column_names == ["shops", "recent", "timers"]
    (row,) = tables.column("shops").to_pylist()[0]
    assert (row["card"], row["shops_key"], row["shops"]) == ("key0", "a", 1)


def test_a_large_key_is_scanned_in_parts(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of one key come in parts that do not grow with it."""
    monkeypatch.setattr(sorted_rows, "PIECE_BYTES", 1 << 14)
    job.batch({"recent": {("key0", n): "x" * 10 for n in range(20_000)}})
    job.batch({"recent": {("key0", n): "y" * 10 for n in range(0, 20_000, 3)}})
    with job.open(0) as state:
        parts = list(state.table("recent").one_key(keys_of(["key0"])).scan())
    assert sum(part.num_rows for part in parts) == 20_000
    assert len(parts) > 2
    assert [n for part in parts for n in part.column("recent_position").to_pylist()] == list(range(20_000))


def test_a_row_is_found_in_whichever_record_batch_it_lies(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many record batches: keys that share one, keys that go on in the next, and keys with the sort key of their neighbour."""
    monkeypatch.setattr(sorted_rows, "PIECE_BYTES", 64)
    for start in (0, 3):
        job.batch(
            {
                "shops": {(key, f"shop{n}"): n for key in KEYS for n in range(start, start + 6)},
                "recent": {(key, n): f"{key}-{start}" for key in KEYS for n in range(start, start + 6)},
            }
        )
    job.merge(0, everything=True)
    job.batch({"shops": {(KEYS[0], "shop1"): None, (KEYS[3], "shop8"): 80}})
    job.check()


def test_the_greatest_and_the_least_number(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row behind which no number comes is found, fires, and does not keep a merge in small pieces from ending."""
    monkeypatch.setattr(sorted_rows, "PIECE_BYTES", 1)
    extremes = (2**63 - 1, -(2**63))
    for number in extremes:
        job.batch(
            {
                "recent": {(key, number): "x" for key in KEYS[:2]},
                "timers": {(key, number): 1 for key in KEYS[:2]},
            }
        )
    job.merge(0, everything=True)
    with job.open(0) as state:
        assert len(job.fired(state, 2**63 - 1)) == len(extremes) * len(KEYS[:2])
        assert {at for _, at in job.fired(state, 2**63 - 2)} == {-(2**63)}
        one = state.table("recent").one_key(keys_of(KEYS[:1]))
        found = [row for part in one.scan() for row in part.to_pylist()]
        assert [row["recent_position"] for row in found] == sorted(extremes)


@pytest.mark.parametrize("tables", [127, 128])
def test_the_last_of_very_many_tables(tmp_path: Path, tables: int) -> None:
    """What the last one holds is there in the next batch; more tables than a database can tell apart are refused."""
    last = f"t{tables - 1}"
    layout = StateLayout(
        KEY,
        arrow_schema("n long"),
        tuple(
            TableLayout(f"t{n}", arrow_schema("card string, t_key string"), arrow_schema("v long"))
            for n in range(tables)
        ),
    )
    job, table = Job(RocksdbBackend(), tmp_path, version=1), layout.by_name[last]
    if tables > 127:
        with pytest.raises(ConfigError, match="has 128 states with many rows a key"):
            job.backend.open(job.workplace(0), layout, None)
        return
    with closing(job.backend.open(job.workplace(0), layout, None)) as state:
        job.write(state, table, {("key0", "x"): 7, ("key0", "y"): None})
        handle = state.freeze()
    job.version += 1
    with closing(job.backend.open(job.workplace(0), layout, handle)) as state:
        assert [row["v"] for part in state.table(last).scan() for row in part.to_pylist()] == [7]


def test_a_table_that_the_job_lacks_is_refused(job: Job) -> None:
    """State with a table that the job no longer has is refused by its name."""
    job.batch({"shops": {("key0", "a"): 1}})
    with pytest.raises(IncompatibleStateError, match="shops"):
        job.backend.open(job.workplace(0), StateLayout(KEY, LAYOUT.value, (LIST, TIMERS)), job.handles[0])


def test_rows_without_their_second_number_are_refused(job: Job) -> None:
    """A write that would put rows of one key in no order never reaches a file."""
    rows = rows_of(MAP, [("key0", "a")])
    values = pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], schema=MAP.value)
    with job.open(0) as state, pytest.raises(InternalError, match="without a second sort number"):
        state.table("shops").write(KeyBatch(rows.sort_keys, rows.columns), values)
