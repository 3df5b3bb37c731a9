"""What every state backend promises, over each of them."""

from __future__ import annotations

import datetime as dt
import math
import os
import pickle
import resource
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoint.metadata import decode, encode
from penstock.checkpoint.model import Barrier, Completed, OperatorState
from penstock.clock import Clock
from penstock.errors import (
    ConfigError,
    CorruptStateError,
    IncompatibleStateError,
    InternalError,
    UnavailableError,
)
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.state_plan import redistribute
from penstock.snapshot.mailbox import Address, MergeDone
from penstock.snapshot.merger import Merge, perform
from penstock.state import local_files
from penstock.state.backends import (
    FilesystemBackend,
    MemoryBackend,
    RocksdbBackend,
    backend_named,
    fetch,
    file_backends,
    sorted_state,
)
from penstock.state.backends.base import OpenState, StateBackend, StateHandle, StateLayout, Workplace
from penstock.state.ddl import arrow_schema
from penstock.state.keys import GROUP_SHIFT, KeyBatch, key_groups, owner
from penstock.state.lifetimes import Moment
from penstock.state.local_files import HashedFiles, fingerprint
from penstock.state.merge_orders import Merged, MergeOrder, replaced
from penstock.storage import LocalStorage
from penstock.testing.virtual import VirtualClock
from services.tiers import share

RAM_DISK = Path("/dev/shm")
MAX_PARALLELISM = 8
SORT_KEYS_A_GROUP = 3  # so few that keys collide all the time

Key = tuple[Any, ...]
Value = tuple[int | None, list[str] | None]
Truth = dict[int, Value]

VALUES = arrow_schema("n long, tags array<string>")

KEY_POOLS: dict[str, tuple[str, list[Key]]] = {
    "int": ("id long", [(i,) for i in (*range(-5, 20), 2**63 - 1, -(2**63), None)]),
    "string": ("name string", [(name,) for name in ("", "a", "aa", "ä", "x" * 300, "null", None, *"bcdefgh")]),
    "two columns": ("app string, day date", [(a, dt.date(2026, 1, d)) for a in ("x", "y", None) for d in range(1, 8)]),
    "binary": ("raw binary", [(bytes([i, 0]),) for i in range(12)] + [(b"",), (b"\0",), (b"\0\0\0",)]),
    "date": ("day date", [(dt.date(1969, 12, 20) + dt.timedelta(days=i),) for i in range(25)]),
    "timestamp": ("at timestamp", [(dt.datetime(2026, 1, 1, 0, 0, 0, i, dt.UTC),) for i in range(20)]),
    "decimal": ("price decimal(20,2)", [(Decimal(i).scaleb(-2),) for i in (*range(-9, 9), 10**17)]),
    "double": ("x double", [(x,) for x in (math.nan, math.inf, -math.inf, 0.0, 5e-324, 0.1, 0.1 + 2**-56, 1.5, None)]),
    "boolean": ("flag boolean, level byte", [(flag, n) for flag in (True, False, None) for n in range(4)]),
    "struct": ("s struct<a:int,b:string>", [({"a": a, "b": b},) for a in range(4) for b in ("x", None)] + [(None,)]),
    "array": ("path array<double>", [(path,) for path in ([], [0.5], [0.5, math.nan], [math.nan], [None], None)]),
}  # fmt: skip


def sort_key(key: Key) -> int:
    """Like Spark's, a pure function of the key, but with few low bits."""
    digest = xxhash.xxh3_64_intdigest(repr(key).encode())
    group = digest % MAX_PARALLELISM
    return (group << GROUP_SHIFT) | (digest >> 32) % SORT_KEYS_A_GROUP


@dataclass
class Cluster:
    """All subtasks of one operator on one machine, with storage; keys are positions in `pool`."""

    backend: StateBackend
    root: Path
    pool_name: str = "int"
    parallelism: int = 1
    version: int = 0
    handles: list[StateHandle | None] = field(default_factory=lambda: [None])

    def __post_init__(self) -> None:
        ddl, self.pool = KEY_POOLS[self.pool_name]
        self.layout = StateLayout(arrow_schema(ddl), VALUES)
        self.storage = LocalStorage(self.root / "storage")
        self.local_dir = self.root / "local"

    def workplace(self, index: int, stem: str = "") -> Workplace:
        return Workplace(
            storage=self.storage,
            local_dir=self.local_dir,
            subtask=SubtaskId("views", index),
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=self.version,
            stem=stem or f"1-{self.version}-{index}-{self.parallelism}",
        )

    def open(self, index: int, handle: StateHandle | None) -> OpenState:
        return self.backend.open(self.workplace(index), self.layout, handle)

    def keys(self, positions: Sequence[int]) -> KeyBatch:
        keys = [self.pool[p] for p in positions]
        columns = [pa.array([key[i] for key in keys], f.type) for i, f in enumerate(self.layout.key)]
        sort_keys = np.array([sort_key(self.pool[p]) for p in positions], dtype=np.int64)
        assert (np.diff(sort_keys) >= 0).all()
        return KeyBatch(sort_keys, pa.RecordBatch.from_arrays(columns, schema=self.layout.key))

    def owned(self, positions: Sequence[int], index: int) -> list[int]:
        """The positions that belong to a subtask, in the order of their sort keys."""
        group = {p: int(key_groups(np.array([sort_key(self.pool[p])]))[0]) for p in positions}
        mine = [p for p in positions if owner(group[p], self.parallelism) == index]
        return sorted(mine, key=lambda p: (sort_key(self.pool[p]), p))

    def batch(self, changes: dict[int, Value | None], steps: int = 1) -> None:
        """One batch: every subtask writes its changes in `steps` parts, freezes, and its files are uploaded."""
        self.version += 1
        for index in range(self.parallelism):
            state = self.open(index, self.handles[index])
            mine = self.owned(list(changes), index)
            size = max(1, -(-len(mine) // steps))
            for start in range(0, len(mine), size):
                part = mine[start : start + size]
                state.read(self.keys(part))
                self.write(state, {p: changes[p] for p in part})
            self.handles[index] = handle = state.freeze()
            state.close()
            self.upload(handle)
            self.merge(index, self.backend.choose_merge(handle.refs, Moment()))

    def merge(self, index: int, window: range | None) -> None:
        """What the background does between two batches."""
        handle = self.handles[index]
        if window is None or handle is None:
            return
        refs = handle.refs[window.start : window.stop]
        order = MergeOrder(handle.subtask, refs, oldest=window.stop == len(handle.refs))
        answer = perform(
            Merge(self.backend, self.workplace(index), self.layout, order, Address("", 0, ""), 1)
        )
        assert isinstance(answer, MergeDone)
        self.handles[index] = replaced(handle, Merged(answer.subtask, answer.replaced, answer.merged))

    def write(self, state: OpenState, changes: dict[int, Value | None]) -> None:
        values = [changes[p] or (7, ["must not be seen"]) for p in changes]
        arrays = [pa.array([value[i] for value in values], f.type) for i, f in enumerate(VALUES)]
        deleted = np.array([value is None for value in changes.values()], dtype=np.bool_)
        marks = deleted if deleted.any() else None
        state.write(self.keys(list(changes)), pa.RecordBatch.from_arrays(arrays, schema=VALUES), marks)

    def upload(self, handle: StateHandle) -> None:
        """As to another disk: `LocalStorage` would link the files."""
        stored = set(self.storage.names())
        for name in handle.files - stored:
            self.storage.put(name, (self.local_dir / name).read_bytes())

    def rescale(self, parallelism: int) -> None:
        """Hand every new subtask the files of the former ones that had keys of its."""
        former = [handle for handle in self.handles if handle]
        at = CheckpointId(self.version)
        taken = redistribute(
            former, uid="views", parallelism=parallelism, version=at, backend=self.backend.name
        )
        self.parallelism = parallelism
        self.handles = [taken[SubtaskId("views", index)] for index in range(parallelism)]

    def take_over(self) -> None:
        """What a job does after a rescale, before its first batch: every subtask makes its state its own."""
        self.version += 1
        for index in range(self.parallelism):
            with closing(self.open(index, self.handles[index])) as state:
                self.handles[index] = handle = state.freeze()
            self.upload(handle)

    def unlink_from_storage(self) -> None:
        """Give the machine copies of its own."""
        for name in self.storage.names():
            self.storage.put(name, self.storage.get(name))

    def lose_local_files(self) -> None:
        shutil.rmtree(self.local_dir, ignore_errors=True)

    def looked_up(self, handles: list[StateHandle | None] | None = None) -> Truth:
        """What lookups of the whole pool find."""
        found: Truth = {}
        for index, handle in enumerate(handles or self.handles):
            positions = self.owned(range(len(self.pool)), index)
            state = self.open(index, handle)
            values, flags = state.read(self.keys(positions))
            state.close()
            assert values.schema == VALUES
            for p, row, flag in zip(positions, values.to_pylist(), flags.tolist(), strict=True):
                if flag:
                    found[p] = (row["n"], row["tags"])
                else:
                    assert row == {"n": None, "tags": None}
        return found

    def scanned(self) -> Truth:
        """What scans of all subtasks hold."""
        position = {repr(self.keys([p]).columns.to_pylist()[0]): p for p in range(len(self.pool))}
        found: Truth = {}
        for index, handle in enumerate(self.handles):
            state = self.open(index, handle)
            for batch in state.scan():
                assert batch.schema.names == ["__sort_key", *self.layout.key.names, "n", "tags"]
                for row in batch.to_pylist():
                    p = position[repr({name: row[name] for name in self.layout.key.names})]
                    assert row["__sort_key"] == sort_key(self.pool[p])
                    assert p not in found
                    found[p] = (row["n"], row["tags"])
            state.close()
        return found


def apply(truth: Truth, changes: dict[int, Value | None]) -> None:
    for p, value in changes.items():
        if value is None:
            truth.pop(p, None)
        else:
            truth[p] = value


@pytest.fixture(params=["memory", "filesystem", "rocksdb"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    return Cluster(backend_named(request.param), tmp_path)


@pytest.fixture(params=["memory", "filesystem"])
def sorted_files(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    """The backends that keep sorted files; a database is read by its own backend only."""
    return Cluster(backend_named(request.param), tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Cluster:
    return Cluster(FilesystemBackend(), tmp_path)


values_of_a_key = st.tuples(
    st.integers(-5, 5) | st.none(), st.lists(st.sampled_from(["a", "b", ""]), max_size=2) | st.none()
)


@pytest.mark.parametrize("pool_name", KEY_POOLS)
@pytest.mark.parametrize("name", ["memory", "filesystem"])
@settings(max_examples=share(10), deadline=None)
@given(data=st.data())
def test_state_equals_a_dictionary(name: str, pool_name: str, data: st.DataObject) -> None:
    """Through inserts, updates, deletes, collisions, merges, lost files and rescales, state equals a dictionary."""
    compare_with_a_dictionary(name, pool_name, data)


@pytest.mark.parametrize("pool_name", KEY_POOLS)
@settings(max_examples=3, deadline=None)  # RocksDB syncs a dozen files a batch
@given(data=st.data())
def test_rocksdb_equals_a_dictionary(pool_name: str, data: st.DataObject) -> None:
    """The same holds for RocksDB, with merges of its own."""
    compare_with_a_dictionary("rocksdb", pool_name, data)


def compare_with_a_dictionary(name: str, pool_name: str, data: st.DataObject) -> None:
    place = RAM_DISK if RAM_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as root, pytest.MonkeyPatch.context() as patch:
        # With levels this small, merges often leave an older file alone.
        patch.setattr(file_backends, "SMALLEST_LEVEL_BYTES", 1)
        cluster = Cluster(backend_named(name), Path(root), pool_name)
        truth: Truth = {}
        positions = st.integers(0, len(cluster.pool) - 1)
        for _ in range(data.draw(st.integers(1, 12), label="batches")):
            changes = data.draw(
                st.dictionaries(positions, values_of_a_key | st.none(), max_size=8), label="changes"
            )
            cluster.batch(changes, steps=data.draw(st.integers(1, 3), label="steps"))
            apply(truth, changes)
            if data.draw(st.booleans(), label="lose local files"):
                cluster.lose_local_files()
            if data.draw(st.integers(0, 4), label="rescale") == 0:
                cluster.rescale(data.draw(st.integers(1, 4), label="parallelism"))
            assert cluster.looked_up() == truth
        assert cluster.scanned() == truth


def test_rescale_and_back(cluster: Cluster) -> None:
    """From two subtasks to three, with writes and deletes there, to three others and back to one, nothing is lost or revived."""
    cluster.rescale(2)
    truth: Truth = {p: (p, ["first"]) for p in range(20)}
    cluster.batch(dict(truth))
    cluster.rescale(3)
    changes: dict[int, Value | None] = {p: (p, ["second"]) for p in range(5, 10)} | dict.fromkeys(
        range(10, 15)
    )
    cluster.batch(changes)
    apply(truth, changes)
    assert cluster.looked_up() == cluster.scanned() == truth
    cluster.rescale(1)
    assert cluster.looked_up() == cluster.scanned() == truth
    cluster.batch({0: None})
    truth.pop(0)
    assert cluster.looked_up() == cluster.scanned() == truth


def test_rescales_without_a_batch_between(cluster: Cluster) -> None:
    """A job that is rescaled again before any batch has run still reads every key once."""
    truth: Truth = {p: (p, None) for p in range(20)}
    cluster.rescale(2)
    cluster.batch(dict(truth))
    cluster.batch({3: None})
    truth.pop(3)
    cluster.rescale(3)
    cluster.take_over()
    cluster.rescale(2)
    assert cluster.looked_up() == cluster.scanned() == truth


def swapped(cluster: Cluster) -> list[StateHandle | None]:
    """The handles of two subtasks, each with the files of the other."""
    cluster.rescale(2)
    cluster.batch({p: (p, None) for p in range(20)})
    first, second = cluster.handles
    assert first is not None
    assert second is not None
    return [
        msgspec.structs.replace(first, refs=second.refs),
        msgspec.structs.replace(second, refs=first.refs),
    ]


@pytest.mark.parametrize("parallelism", [2, 4])
def test_state_of_another_subtask_is_refused(cluster: Cluster, parallelism: int) -> None:
    """State says whose it is: files swapped between subtasks are corrupt state that names both, not state without the keys; after a rescale too."""
    handles = swapped(cluster)
    cluster.parallelism = parallelism
    said = rf"holds state of views-1 of 2, .* for views-0 of {parallelism}"
    with pytest.raises(CorruptStateError, match=said) as caught:
        cluster.open(0, handles[0])
    assert caught.value.facts["found"] == "views-1"


def test_state_of_another_operator_is_refused(cluster: Cluster) -> None:
    """Files swapped between two operators whose state has the same columns are corrupt state that names both."""
    cluster.batch({1: (1, None)})
    clicks = replace(cluster.workplace(0), subtask=SubtaskId("clicks", 0))
    with pytest.raises(CorruptStateError, match=r"holds state of views-0 of 1, .* for clicks-0 of 1"):
        cluster.backend.open(clicks, cluster.layout, cluster.handles[0])


def test_a_checkpoint_whose_handles_are_mixed_up_is_corrupt(cluster: Cluster) -> None:
    """It shows when the metadata is read, before a subtask that was left without its state begins anew; memory, files and databases alike."""
    handles = swapped(cluster)
    right = completed_of(cluster, cluster.handles)
    assert decode(encode(right), "chk-1/_metadata") == right
    with pytest.raises(
        CorruptStateError, match=r"chk-1/_metadata .*written by views-1.* as state of views-0"
    ):
        decode(encode(completed_of(cluster, handles)), "chk-1/_metadata")
    with pytest.raises(
        CorruptStateError, match=r"chk-1/_metadata .*written by views-0.* as state of clicks-0"
    ):
        decode(encode(completed_of(cluster, handles[::-1], "clicks")), "chk-1/_metadata")
    with pytest.raises(CorruptStateError, match="has 1 handles, for 2 subtasks"):
        decode(encode(completed_of(cluster, cluster.handles[:1])), "chk-1/_metadata")


def completed_of(cluster: Cluster, handles: list[StateHandle | None], uid: str = "views") -> Completed:
    """A checkpoint with these files as the state of an operator."""
    mine = tuple(
        msgspec.structs.replace(handle, subtask=SubtaskId(uid, index))
        for index, handle in enumerate(handles)
        if handle
    )
    return Completed(
        job="job",
        checkpoint=1,
        run=1,
        mode="exactly_once",
        max_parallelism=MAX_PARALLELISM,
        parallelism=cluster.parallelism,
        barrier=Barrier(),
        operators={uid: OperatorState({}, {}, mine)},
    )


def test_after_a_rescale_a_handle_holds_own_keys_only(cluster: Cluster) -> None:
    """A subtask that gets no rows after a rescale still drops the keys of others when it freezes."""
    cluster.batch({p: (p, None) for p in range(20)})
    cluster.rescale(2)
    cluster.batch({})
    assert sum(ref.rows for handle in cluster.handles if handle for ref in handle.refs) == 20


def test_files_from_before_and_after_a_rescale_do_not_mix(cluster: Cluster) -> None:
    """A handle in which an old value could stand before a new one is refused, never read."""
    cluster.batch({p: (p, None) for p in range(20)})
    before = cluster.handles[0]
    cluster.rescale(2)
    cluster.batch({p: (p, ["new"]) for p in range(20)})
    cluster.handles[0] = before  # as if subtask 0 had not frozen
    cluster.rescale(1)
    with pytest.raises(InternalError, match=r"mixes files written at parallelism \[1, 2\]"):
        cluster.looked_up()


def test_values_from_nothing_to_a_megabyte(cluster: Cluster) -> None:
    """Values of 8 bytes and of 1 MB live side by side, are replaced by each other, and come back from storage."""
    megabyte = "x" * 1_000_000
    truth: Truth = {p: (p, [megabyte] if p % 8 == 0 else None) for p in range(20)}
    cluster.batch(dict(truth))
    changes: dict[int, Value | None] = {0: (1, []), 1: (2, [megabyte, ""]), 8: None, 16: (3, None)}
    cluster.batch(changes)
    apply(truth, changes)
    cluster.lose_local_files()
    assert cluster.looked_up() == cluster.scanned() == truth


def test_values_are_read_in_parts(cluster: Cluster) -> None:
    """The parts together are what is read at once, in the order of keys; only a single key takes more than asked for."""
    cluster.batch({position: (position, ["x" * position, "y"]) for position in range(0, 20, 2)})
    cluster.batch({position: (position, None) for position in range(0, 20, 3)})
    for index, handle in enumerate(cluster.handles):
        with closing(cluster.open(index, handle)) as state:
            keys = cluster.keys(cluster.owned(range(20), index))
            whole, found = state.read(keys)
            for limit in (1, 100, 1 << 20):
                parts = list(state.read_parts(keys, limit))
                assert pa.Table.from_batches([values for values, _ in parts]).equals(
                    pa.Table.from_batches([whole])
                )
                assert np.concatenate([flags for _, flags in parts]).tolist() == found.tolist()
            assert len(parts) == 1
            assert len(list(state.read_parts(keys, 1))) > 1
            assert len(list(state.read_parts(cluster.keys([]), 1))) == 1


def test_a_frozen_version_never_changes(cluster: Cluster) -> None:
    """Every old handle reads as it was, after many later batches and merges and from storage alone."""
    history: list[tuple[list[StateHandle | None], Truth]] = []
    truth: Truth = {}
    for step in range(25):
        changes: dict[int, Value | None] = {(step + i) % 25: (step, [str(i)]) for i in range(4)}
        changes[(step * 7) % 25] = None
        cluster.batch(changes)
        apply(truth, changes)
        history.append((list(cluster.handles), dict(truth)))
    cluster.lose_local_files()
    for handles, expected in history:
        assert cluster.looked_up(handles) == expected


def test_freeze_without_writes_keeps_the_files(cluster: Cluster) -> None:
    """A batch without writes names the same files under its own version, and writes no file."""
    cluster.batch({1: (1, None)})
    cluster.batch({2: (2, None)})
    before = cluster.handles[0]
    names = cluster.storage.names()
    cluster.batch({})
    after = cluster.handles[0]
    assert before is not None
    assert after is not None
    assert (after.refs, after.version, after.backend) == (before.refs, 3, cluster.backend.name)
    assert cluster.storage.names() == names


def test_state_that_was_deleted_whole_has_no_files(cluster: Cluster) -> None:
    """Empty state has no files: after no writes at all, and after deletes of keys that never were."""
    cluster.batch({})
    assert cluster.handles[0] is not None
    assert cluster.handles[0].refs == ()
    cluster.batch({1: None, 2: None})
    assert cluster.handles[0].refs == ()
    assert cluster.looked_up() == cluster.scanned() == {}


def test_scan_sees_the_writes_of_the_batch(cluster: Cluster) -> None:
    """A scan before the freeze holds what was written in this batch."""
    cluster.batch({1: (1, None), 2: (2, None)})
    state = cluster.open(0, cluster.handles[0])
    cluster.write(state, {p: None if p == 1 else (30, None) for p in cluster.owned([1, 3], 0)})
    assert sorted(row["n"] for batch in state.scan() for row in batch.to_pylist()) == [2, 30]


def test_wrong_writes_are_refused(cluster: Cluster) -> None:
    """Keys of another subtask, keys out of order and columns of another type never reach a file."""
    ordered = cluster.owned(range(20), 0)
    state = cluster.open(0, None)
    cluster.write(state, {ordered[-1]: (1, None)})
    cluster.write(state, {ordered[0]: (1, None)})
    with pytest.raises(InternalError, match="out of the order"):
        state.freeze()
    cluster.rescale(2)
    foreign = cluster.owned(range(20), 1)[0]
    with pytest.raises(InternalError, match="views-0 of 2 writes keys of another subtask"):
        cluster.write(cluster.open(0, None), {foreign: (1, None)})
    with pytest.raises(InternalError, match=r"writes columns \(n string\), its state has \(n long"):
        cluster.open(1, None).write(cluster.keys([foreign]), pa.record_batch([pa.array(["x"])], names=["n"]))


def test_another_layout_is_refused(cluster: Cluster) -> None:
    """State whose columns are not the job's is refused when it is opened, naming both."""
    cluster.batch({1: (1, None)})
    cluster.layout = StateLayout(cluster.layout.key, arrow_schema("n string, tags array<string>"))
    with pytest.raises(IncompatibleStateError, match=r"values \(n long, .* wants .* values \(n string, "):
        cluster.open(0, cluster.handles[0])


def test_another_backend_is_refused(cluster: Cluster) -> None:
    """A handle of a backend that keeps its state in another way is refused by name."""
    other = "filesystem" if isinstance(cluster.backend, RocksdbBackend) else "rocksdb"
    handle = StateHandle(subtask=SubtaskId("views", 0), backend=other, version=1)
    with pytest.raises(IncompatibleStateError, match=f"written by backend '{other}', which keeps no"):
        cluster.open(0, handle)


def test_backends_read_each_other(sorted_files: Cluster) -> None:
    """State in sorted files goes over to the other backend and back by one setting."""
    cluster = sorted_files
    truth: Truth = {p: (p, ["x"]) for p in range(10)}
    cluster.batch(dict(truth))
    other = MemoryBackend() if isinstance(cluster.backend, FilesystemBackend) else FilesystemBackend()
    for backend in (other, cluster.backend):
        cluster.backend = backend
        cluster.lose_local_files()
        assert cluster.looked_up() == truth
        cluster.batch({})
        assert cluster.handles[0] is not None
        assert cluster.handles[0].backend == backend.name
        assert bool(cluster.handles[0].files) == isinstance(backend, FilesystemBackend)
        assert cluster.looked_up() == truth


def test_a_backend_is_pickled_into_tasks(cluster: Cluster) -> None:
    """A backend works the same after a trip through pickle."""
    cluster.backend = pickle.loads(pickle.dumps(cluster.backend))
    cluster.batch({1: (1, None)})
    assert cluster.looked_up() == {1: (1, None)}


def only_file(cluster: Cluster) -> Path:
    cluster.batch({p: (p, ["x"]) for p in range(20)})
    (name,) = cluster.storage.names()
    assert cluster.handles[0] is not None
    assert cluster.handles[0].files == {name}
    cluster.lose_local_files()
    return cluster.root / "storage" / name


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_is_detected(files: Cluster) -> None:
    """Any flipped bit in storage is corrupt state: the error names the file and both checksums, and no copy stays."""
    path = only_file(files)
    assert files.handles[0] is not None
    ref = files.handles[0].refs[0]
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 8 * len(good) // 40 + 1):
        path.write_bytes(flip(good, bit))
        with pytest.raises(CorruptStateError, match="restore an older checkpoint") as caught:
            files.looked_up()
        assert ref.name in str(caught.value)
        assert caught.value.facts["expected"] == (ref.size, ref.checksum)
        assert caught.value.facts["found"] == (ref.size, xxhash.xxh3_64_hexdigest(path.read_bytes()))
        assert [local for local in files.local_dir.rglob("*") if local.is_file()] == []
    path.write_bytes(good)
    assert len(files.looked_up()) == 20


@pytest.mark.parametrize("left", [0, 1, 0.5])
def test_a_truncated_file_is_detected(files: Cluster, left: float) -> None:
    """A file cut short in storage, even to nothing, is corrupt state."""
    path = only_file(files)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left) if left < 1 else -1])
    with pytest.raises(CorruptStateError, match=f"expected {len(data)} bytes"):
        files.looked_up()


def test_a_missing_file_is_detected(files: Cluster) -> None:
    """A file that storage does not have is corrupt state."""
    path = only_file(files)
    path.unlink()
    with pytest.raises(CorruptStateError, match=r"is missing in .*restore an older checkpoint"):
        files.looked_up()


class Arriving(VirtualClock):
    """While somebody waits on this machine, another one stores its files: one at every look."""

    def __init__(self, cluster: Cluster, files: dict[str, bytes]) -> None:
        super().__init__()
        self._cluster = cluster
        self._files = files

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self._files:
            self._cluster.storage.put(*self._files.popitem())


def on_another_machine(cluster: Cluster, arriving: frozenset[str], clock: Clock) -> Workplace:
    cluster.lose_local_files()
    return replace(cluster.workplace(0), arriving=arriving, clock=clock)


def taken_from_storage(cluster: Cluster) -> tuple[StateHandle, dict[str, bytes]]:
    """A version that a machine has frozen and not stored yet."""
    cluster.batch({p: (p, ["x"]) for p in range(20)})
    handle = cluster.handles[0]
    assert handle is not None
    files = {name: cluster.storage.get(name) for name in sorted(handle.files)}
    cluster.storage.delete(files)
    return handle, files


def test_a_task_waits_for_state_that_another_machine_is_storing(on_disk: Cluster) -> None:
    """A subtask moves on before its last version is in storage: its task waits until every file has arrived."""
    handle, files = taken_from_storage(on_disk)
    clock = Arriving(on_disk, dict(files))
    workplace = on_another_machine(on_disk, frozenset(files), clock)
    with closing(on_disk.backend.open(workplace, on_disk.layout, handle)) as state:
        values, found = state.read(on_disk.keys(on_disk.owned(range(20), 0)))
    assert found.all()
    assert values.num_rows == 20
    assert clock.slept


def test_state_that_never_arrives(on_disk: Cluster) -> None:
    """The machine is gone with its files: after a while the task says so, and the job goes back; no person has to restore anything."""
    handle, files = taken_from_storage(on_disk)
    clock = VirtualClock()
    workplace = on_another_machine(on_disk, frozenset(files), clock)
    with pytest.raises(
        UnavailableError, match=r"neither on this machine nor in .* goes back to its checkpoint"
    ):
        on_disk.backend.open(workplace, on_disk.layout, handle)
    assert sum(clock.slept) >= fetch.ARRIVAL_PATIENCE_S


def test_a_truncated_local_file_is_fetched_again(files: Cluster) -> None:
    """A working file of the wrong size is no loss: storage has it."""
    path = only_file(files)
    local = files.local_dir / path.relative_to(files.root / "storage")
    local.parent.mkdir(parents=True)
    local.write_bytes(b"cut")
    assert len(files.looked_up()) == 20
    assert local.read_bytes() == path.read_bytes()


def test_corrupt_inline_bytes_are_detected(tmp_path: Path) -> None:
    """A flipped bit in an inline file is corrupt state."""
    cluster = Cluster(MemoryBackend(), tmp_path)
    cluster.batch({1: (1, None)})
    handle = cluster.handles[0]
    assert handle is not None
    (ref,) = handle.refs
    bad = type(ref)(rows=ref.rows, size=ref.size, checksum=ref.checksum, inline=flip(ref.inline, 800))
    with pytest.raises(CorruptStateError, match="is not what was written"):
        cluster.open(0, StateHandle(subtask=handle.subtask, backend="memory", version=1, refs=(bad,)))


def test_memory_stays_one_file(tmp_path: Path) -> None:
    """The memory backend keeps one inline file and nothing in storage, however many batches there were."""
    cluster = Cluster(MemoryBackend(), tmp_path)
    for step in range(10):
        cluster.batch({step: (step, None), step - 1: None} if step else {0: (0, None)})
        handle = cluster.handles[0]
        assert handle is not None
        assert [ref.rows for ref in handle.refs] == [1]
        assert handle.files == frozenset()
    cluster.batch({9: None})
    assert cluster.handles[0] is not None
    assert cluster.handles[0].refs == ()


def test_memory_has_a_limit(tmp_path: Path) -> None:
    """Too much state for the memory backend fails with operator, subtask, size, limit and the way out."""
    cluster = Cluster(MemoryBackend(limit_bytes=10_000), tmp_path)
    cluster.batch({1: (1, ["x"])})
    with pytest.raises(
        ConfigError, match=r'views-0 .*10000.*choose backend="filesystem" or raise the limit'
    ) as caught:
        cluster.batch({2: (2, ["x" * 10_000])})
    facts = caught.value.facts
    assert (facts["operator"], facts["subtask"], facts["limit_bytes"]) == ("views", 0, 10_000)
    assert isinstance(facts["size"], int)
    assert facts["size"] > 10_000
    assert f"{facts['size']} bytes" in str(caught.value)


def test_memory_limit_must_be_positive() -> None:
    """A limit that nothing fits into is refused at once."""
    with pytest.raises(ConfigError, match="must be positive"):
        MemoryBackend(limit_bytes=0)


def test_filesystem_uploads_changes_only(files: Cluster) -> None:
    """A batch adds one file with the changed rows, and merges keep the number of files small."""
    files.batch(dict.fromkeys(range(20), (0, None)))
    first = files.handles[0]
    files.batch({1: (1, None)})
    second = files.handles[0]
    assert first is not None
    assert second is not None
    assert [ref.rows for ref in second.refs] == [1, 20]
    assert second.refs[1:] == first.refs
    for step in range(40):
        files.batch({step % 20: (step, None)})
        handle = files.handles[0]
        assert handle is not None
        assert len(handle.refs) <= 4


def test_a_merge_forgets_tombstones_only_with_the_oldest_file(files: Cluster) -> None:
    """While an older file holds the key, merged files keep its tombstone; a merge with the oldest file drops both."""
    truth: Truth = dict.fromkeys(range(20), (0, None))
    files.batch(dict(truth))
    for p in range(2):
        files.batch({p: None})
        truth.pop(p)
    files.merge(0, range(2))
    assert files.handles[0] is not None
    merged, first = files.handles[0].refs
    assert merged.name.endswith("-merged.arrow")
    assert (merged.rows, merged.tombstones, first.rows) == (2, 2, 20)
    assert files.looked_up() == files.scanned() == truth
    files.merge(0, range(2))
    (merged,) = files.handles[0].refs
    assert (merged.rows, merged.tombstones) == (18, 0)
    assert files.looked_up() == files.scanned() == truth


def test_a_merge_of_nothing_but_deleted_rows_leaves_no_file(files: Cluster) -> None:
    """When no row is left there is no file either, here or in storage."""
    files.batch(dict.fromkeys(range(5)) | {5: (1, None)})
    files.batch({5: None})
    files.merge(0, range(2))
    assert files.handles[0] is not None
    assert files.handles[0].refs == ()
    assert not [name for name in files.storage.names() if "merged" in name]


def rot(path: Path, bit: int | None = None) -> None:
    """A bit of a file turns over on the disk: it is the same file, which nobody has written to."""
    found = path.stat()
    content = path.read_bytes()
    path.write_bytes(flip(content, len(content) * 4 if bit is None else bit))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def in_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows happens in a process that has not used any file yet."""
    monkeypatch.setattr(fetch, "HASHED_FILES", HashedFiles())


def working_file(cluster: Cluster, position: int) -> Path:
    handle = cluster.handles[0]
    assert handle is not None
    return cluster.local_dir / handle.refs[position].name


@pytest.fixture(params=["filesystem", "rocksdb"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    """The backends that keep files on the machine."""
    return Cluster(backend_named(request.param), tmp_path)


def test_a_damaged_working_file_is_not_read(on_disk: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever bit of an uploaded file turned over, a worker that first uses it finds it, and takes the file from storage."""
    truth: Truth = {p: (p, ["x"]) for p in range(20)}
    on_disk.batch(dict(truth))
    for position in range(len(on_disk.handles[0].refs)):  # type: ignore[union-attr]
        bits = 8 * working_file(on_disk, position).stat().st_size
        for bit in range(0, bits, bits // 10 + 1):
            rot(working_file(on_disk, position), bit)
            in_another_worker(monkeypatch)
            assert on_disk.looked_up() == truth
            on_disk.unlink_from_storage()


def test_a_damaged_working_file_is_not_merged(files: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the background nor while a batch is frozen do damaged rows get a new checksum: storage has the right ones."""
    truth: Truth = {p: (p, ["x"]) for p in range(20)}
    files.batch(dict(truth))
    for step in range(2):
        files.batch({step: (100, None)})
        truth[step] = (100, None)
    rot(working_file(files, 2))
    files.merge(0, range(1, 3))
    files.unlink_from_storage()
    assert files.looked_up() == truth
    rot(working_file(files, 1))
    in_another_worker(monkeypatch)
    for step in range(2, 8):
        files.batch({step: (200, None)})
        truth[step] = (200, None)
    assert len([name for name in files.storage.names() if "merged" in name]) == 1
    files.lose_local_files()
    assert files.looked_up() == truth


def test_a_file_that_rots_in_use_fails_the_merge_and_comes_from_storage(files: Cluster) -> None:
    """A worker that has used a file before hashes it again before it is merged; the batch is tried again with the right file."""
    truth: Truth = {p: (p, ["x"]) for p in range(20)}
    files.batch(dict(truth))
    for step in range(2):
        files.batch({step: (100, None)})
        truth[step] = (100, None)
    rot(working_file(files, 2))
    with pytest.raises(UnavailableError, match="has changed since it was written"):
        files.batch({2: (100, None)})
    files.batch({2: (100, None)})
    truth[2] = (100, None)
    files.lose_local_files()
    assert files.looked_up() == truth


def test_damage_in_storage_too_is_corrupt_state(on_disk: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the working file and the copy in storage are damaged, nothing is made up."""
    on_disk.batch({p: (p, ["x"]) for p in range(20)})
    path = working_file(on_disk, -1)
    stored = on_disk.root / "storage" / path.relative_to(on_disk.local_dir)
    rot(path)
    rot(stored)
    in_another_worker(monkeypatch)
    with pytest.raises(CorruptStateError, match="is not what was written"):
        on_disk.looked_up()


def test_a_file_is_hashed_once_in_a_process(on_disk: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that follow hash what is new, however many files there are; another process begins with all of them."""
    hashed: list[Path] = []

    def counted(path: Path) -> tuple[int, str]:
        hashed.append(path)
        return fingerprint(path)

    monkeypatch.setattr(local_files, "fingerprint", counted)
    on_disk.batch({p: (p, ["x"]) for p in range(20)})
    on_disk.batch({1: (1, None)})
    new = len(hashed)
    for _ in range(3):
        on_disk.looked_up()
    assert len(hashed) == new
    in_another_worker(monkeypatch)
    on_disk.looked_up()
    assert len(hashed) == new + len(on_disk.handles[0].files)  # type: ignore[union-attr]


@contextmanager
def no_more_open_files() -> Iterator[None]:
    """The process may not open another file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("worker", ["the same", "another"])
def test_too_many_open_files_are_no_damage(
    on_disk: Cluster, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes is `UnavailableError`: the job goes on when there are files to be had again."""
    on_disk.batch({1: (1, None)})
    if worker == "another":
        in_another_worker(monkeypatch)
    with no_more_open_files(), pytest.raises(UnavailableError, match="Too many open files"):
        on_disk.looked_up()
    assert on_disk.looked_up() == {1: (1, None)}


class VanishingFolder(LocalStorage):
    """Somebody deletes the working folder while a file is being fetched."""

    def download(self, name: str, local: Path) -> None:
        shutil.rmtree(local.parent)
        super().download(name, local)


def test_a_working_folder_that_vanishes_is_no_damage(on_disk: Cluster) -> None:
    """A file that cannot be put anywhere is not missing in storage: `UnavailableError` with the folder, and the next try works."""
    on_disk.batch({1: (1, None)})
    on_disk.lose_local_files()
    right, on_disk.storage = on_disk.storage, VanishingFolder(on_disk.root / "storage")
    with pytest.raises(UnavailableError, match=f"cannot use the working folder {on_disk.local_dir}"):
        on_disk.looked_up()
    on_disk.storage = right
    assert on_disk.looked_up() == {1: (1, None)}


def test_writes_too_large_for_one_record_batch(files: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of several record batches reads like a file of one."""
    monkeypatch.setattr(sorted_state, "BATCH_BYTES", 100)
    truth: Truth = {p: (p, ["x" * p]) for p in range(20)}
    files.batch(dict(truth), steps=7)
    assert files.handles[0] is not None
    (ref,) = files.handles[0].refs
    with pa.memory_map(str(files.local_dir / ref.name)) as mapped:
        assert pa.ipc.open_file(mapped).num_record_batches > 3
    assert files.looked_up() == files.scanned() == truth


def test_another_max_parallelism_is_refused(cluster: Cluster) -> None:
    """Key groups counted another way make state unreadable, so it is refused with both numbers."""
    cluster.batch({1: (1, None)})
    workplace = Workplace(
        storage=cluster.storage,
        local_dir=cluster.local_dir,
        subtask=SubtaskId("views", 0),
        parallelism=1,
        max_parallelism=MAX_PARALLELISM * 2,
        version=2,
        stem="x",
    )
    with pytest.raises(IncompatibleStateError, match=r"max_parallelism 8, the job now has 16"):
        cluster.backend.open(workplace, cluster.layout, cluster.handles[0])


def test_an_unknown_backend_is_refused() -> None:
    """A backend is chosen by name; another name lists what is allowed."""
    assert isinstance(backend_named("filesystem"), FilesystemBackend)
    with pytest.raises(
        ConfigError, match="'rocks' is not known: allowed are 'filesystem', 'memory', 'rocksdb'"
    ):
        backend_named("rocks")
