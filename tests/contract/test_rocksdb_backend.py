"""What the backend `rocksdb` promises beyond the suite over all backends: its files, its merges, its errors."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from test_backends import RAM_DISK, Cluster, Truth, Value, apply, flip, rot

from penstock.errors import (
    ConfigError,
    CorruptStateError,
    IncompatibleStateError,
    InternalError,
    UnavailableError,
)
from penstock.state.backends import RocksdbBackend, backend_named, rocksdb_table
from penstock.state.backends.base import OpenState, StateHandle
from penstock.state.backends.rocksdb_database import (
    HEADER_KEY,
    MAX_SORTED_RUNS,
    Database,
    DatabaseHeader,
    DatabaseTable,
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(dir=RAM_DISK if RAM_DISK.is_dir() else None) as root:
        yield Cluster(RocksdbBackend(), Path(root))


def handle_of(cluster: Cluster) -> StateHandle:
    handle = cluster.handles[0]
    assert handle is not None
    return handle


def stored(cluster: Cluster, suffix: str = "") -> set[str]:
    return {name for name in cluster.storage.names() if name.endswith(suffix)}


def working_folders(cluster: Cluster) -> list[Path]:
    return list((cluster.local_dir / "rocksdb").glob("*/*/*"))


def attempt(cluster: Cluster, stem: str) -> OpenState:
    """Another attempt at the present batch."""
    return cluster.backend.open(cluster.workplace(0, stem), cluster.layout, cluster.handles[0])


def test_unchanged_tables_are_not_uploaded_again(cluster: Cluster) -> None:
    """A batch uploads one table with the changed rows and a manifest; older tables keep their names."""
    cluster.batch({p: (p, None) for p in range(20)})
    first = handle_of(cluster)
    before = stored(cluster)
    cluster.batch({1: (100, None), 2: None})
    second = handle_of(cluster)
    assert len(stored(cluster) - before) == 2
    assert second.refs[2:] == first.refs[1:]
    assert [(ref.rows, ref.tombstones) for ref in second.refs] == [(0, 0), (2, 1), (20, 0)]
    assert second.refs[1].size < first.refs[1].size
    assert second.size == sum((cluster.root / "storage" / name).stat().st_size for name in second.files)


def test_two_attempts_do_not_disturb_each_other(cluster: Cluster) -> None:
    """Two attempts at the same batch work side by side from one version, and each handle reads as its own attempt wrote."""
    cluster.batch({1: (1, None), 2: (2, None)})
    cluster.version += 1
    base = handle_of(cluster)
    left, right = attempt(cluster, "1-2-0-7"), attempt(cluster, "1-2-0-8")
    cluster.write(left, {1: (10, None)})
    cluster.write(right, {1: None})
    left_handle = left.freeze()
    left.close()
    right_handle = right.freeze()
    right.close()
    assert not (left_handle.files & right_handle.files) - base.files
    cluster.upload(left_handle)
    cluster.upload(right_handle)
    for lose in (False, True):
        if lose:
            cluster.lose_local_files()
        assert cluster.looked_up([left_handle]) == {1: (10, None), 2: (2, None)}
        assert cluster.looked_up([right_handle]) == {2: (2, None)}
        assert cluster.looked_up([base]) == {1: (1, None), 2: (2, None)}


def test_working_folders_are_removed(cluster: Cluster) -> None:
    """Nothing is left of a batch but its named files; what a killed attempt left goes with the next batch."""
    cluster.batch({1: (1, None)})
    assert working_folders(cluster) == []
    cluster.version += 1
    killed = attempt(cluster, "1-2-0-7")
    assert len(working_folders(cluster)) == 1
    cluster.batch({2: (2, None)})
    assert working_folders(cluster) == []
    killed.close()


def test_an_open_that_fails_leaves_no_folder(cluster: Cluster) -> None:
    """When state cannot be opened, also after a rescale, the working folder is gone with the error."""
    cluster.batch({1: (1, None)})
    cluster.layout = replace(cluster.layout, value=cluster.layout.key)
    for parallelism in (1, 2):
        cluster.rescale(parallelism)
        with pytest.raises(IncompatibleStateError, match=r"values \(n long, .* wants .* values \(id long\)"):
            cluster.open(0, cluster.handles[0])
        assert working_folders(cluster) == []


@pytest.mark.parametrize("kind", [".sst", "MANIFEST"])
def test_a_damaged_file_is_detected(cluster: Cluster, kind: str) -> None:
    """A flipped bit, a cut or a loss of any file in storage is corrupt state that names the file."""
    cluster.batch({p: (p, ["x"]) for p in range(20)})
    cluster.lose_local_files()
    (name,) = (name for name in stored(cluster) if kind in name)
    path = cluster.root / "storage" / name
    good = path.read_bytes()
    damaged = [flip(good, bit) for bit in range(0, 8 * len(good), 8 * len(good) // 10 + 1)]
    for bad in (*damaged, b"", good[:-1], good + b"x"):
        path.write_bytes(bad)
        with pytest.raises(CorruptStateError, match=r"is not what was written.*restore an older") as caught:
            cluster.looked_up()
        assert caught.value.facts["file"] == name
        assert working_folders(cluster) == []
    path.unlink()
    with pytest.raises(CorruptStateError, match=f"{name} is missing in"):
        cluster.looked_up()
    path.write_bytes(good)
    assert len(cluster.looked_up()) == 20


def test_a_block_that_cannot_be_read_does_not_end_a_scan(cluster: Cluster) -> None:
    """A table that is damaged after this process hashed it fails lookup, scan and rescale, instead of hiding rows; the next try fetches it."""
    cluster.batch(
        {p: (p, ["x" * 5000]) for p in range(20)}
    )  # a block for each row, so that opening reads another
    (name,) = stored(cluster, ".sst")
    damage = pytest.raises(UnavailableError, match=rf"{name} changed on this machine .*checksum mismatch")
    for look in (cluster.looked_up, cluster.scanned):
        rot(cluster.local_dir / name, 100)
        with damage:
            look()
        assert len(look()) == 20
        cluster.unlink_from_storage()
    cluster.rescale(2)
    rot(cluster.local_dir / name, 100)
    with damage:
        cluster.open(0, cluster.handles[0])
    assert len(cluster.looked_up()) == 20


def test_a_manifest_that_lists_other_tables_is_detected(cluster: Cluster) -> None:
    """A handle that lacks a table its manifest lists is corrupt state, also where every named file is right."""
    cluster.batch({1: (1, None)})
    cluster.batch({2: (2, None)})
    handle = handle_of(cluster)
    cluster.handles[0] = msgspec.structs.replace(handle, refs=handle.refs[:-1])
    with pytest.raises(
        CorruptStateError, match=f"database of {handle.refs[0].name} cannot be read.*No such file"
    ):
        cluster.looked_up()


@pytest.mark.parametrize("file", ["../../escape.sst", "CURRENT", "", "000001.log"])
def test_file_names_in_a_handle_are_checked(cluster: Cluster, file: str) -> None:
    """A checkpoint cannot make Penstock write outside the working folder, or over RocksDB's own files."""
    cluster.batch({1: (1, None)})
    manifest, table = handle_of(cluster).refs
    for refs in ((manifest, msgspec.structs.replace(table, file=file)), (table, manifest)):
        cluster.handles[0] = msgspec.structs.replace(handle_of(cluster), refs=refs)
        with pytest.raises(CorruptStateError, match="no file of a database"):
            cluster.looked_up()


def test_the_number_of_tables_is_bounded(cluster: Cluster) -> None:
    """Over 100 batches tables are merged all the time, deleted rows vanish, and every version in between is right."""
    truth: Truth = {}
    sizes = []
    for step in range(100):
        changes: dict[int, Value | None] = {(step + i) % 25: (step, ["x" * 50]) for i in range(4)}
        changes[(step * 7) % 25] = None
        cluster.batch(changes)
        apply(truth, changes)
        tables = handle_of(cluster).refs[1:]
        assert 1 <= len(tables) <= MAX_SORTED_RUNS
        sizes.append(sum(table.rows for table in tables))
    assert cluster.looked_up() == cluster.scanned() == truth
    assert max(sizes) <= 100  # 500 rows were written, 25 keys exist


def test_settling_waits_for_merges(tmp_path: Path) -> None:
    """After settling what was written lies in tables, and there are never more sorted runs than allowed, however large they are."""
    rng = random.Random(7)
    database = Database(tmp_path / "db", "views", create=True)
    for _ in range(12):
        database.put([rng.randbytes(8) for _ in range(200)], [rng.randbytes(10_000) for _ in range(200)])
        database.settle()
        assert 1 <= database._sorted_runs() <= MAX_SORTED_RUNS
    tables = database.snapshot(tmp_path / "snapshot")
    assert sum(rows for rows, _ in tables.values()) == 12 * 200
    database.close()


def test_values_of_a_megabyte(cluster: Cluster) -> None:
    """Large values come back whole, from storage too, and a batch that changes another key does not upload them again."""
    truth: Truth = {p: (p, [chr(97 + p) * 1_000_000, "end"]) for p in range(10)}
    cluster.batch(dict(truth))
    cluster.batch({0: None})
    truth.pop(0)
    assert handle_of(cluster).refs[1].size < 10_000
    cluster.lose_local_files()
    assert cluster.looked_up() == cluster.scanned() == truth


def test_more_keys_than_are_handled_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads, writes, deletes and scans work in parts of any size."""
    monkeypatch.setattr(rocksdb_table, "ROWS_AT_ONCE", 3)
    truth: Truth = {p: (p, [str(p)]) for p in range(20)}
    cluster.batch(dict(truth))
    gone: dict[int, Value | None] = dict.fromkeys(range(5, 12))
    cluster.batch(gone)
    apply(truth, gone)
    assert cluster.looked_up() == cluster.scanned() == truth


def test_no_keys_at_all(cluster: Cluster) -> None:
    """A read of no keys has the value columns and no rows."""
    state = cluster.open(0, None)
    values, found = state.read(cluster.keys([]))
    state.close()
    assert (values.schema, values.num_rows, len(found)) == (cluster.layout.value, 0, 0)


def test_state_that_becomes_empty_and_comes_back(cluster: Cluster) -> None:
    """When the last key is deleted no file is left, and a new database begins with the next write."""
    cluster.batch({1: (1, None), 2: (2, None)})
    cluster.batch({1: None, 2: None})
    assert handle_of(cluster).refs == ()
    cluster.batch({3: (3, None)})
    assert cluster.looked_up() == cluster.scanned() == {3: (3, None)}


def test_two_databases_of_one_subtask_do_not_mix(cluster: Cluster) -> None:
    """A handle that names two versions of the same database is refused, never read."""
    cluster.batch({1: (1, None)})
    first = handle_of(cluster)
    cluster.batch({1: (2, None)})
    both = msgspec.structs.replace(first, refs=first.refs + handle_of(cluster).refs)
    with pytest.raises(InternalError, match="two databases of the same former subtask"):
        cluster.open(0, both)


def rewritten(cluster: Cluster, key: bytes, value: bytes | None) -> None:
    """Put a record of our own into the database, with right checksums."""
    cluster.version += 1
    state = attempt(cluster, "rewritten")
    state._version.put([key], [value])  # type: ignore[attr-defined]
    cluster.handles[0] = state.freeze()
    state.close()


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"\x91\x01", b"\x92\xa1x\xc0", b"\x92\x01\x91\x05", b"\x93\x01\xc0\xc0", b"\x01"]
)
def test_a_value_that_does_not_decode_is_corrupt_state(cluster: Cluster, value: bytes) -> None:
    """Bytes that are no row of this state are refused when they are read or scanned, naming the database."""
    cluster.batch({1: (1, None)})
    state = cluster.open(0, cluster.handles[0])
    ((key, _),) = state._version.rows()  # type: ignore[attr-defined]
    state.close()
    rewritten(cluster, key, value)
    for look in (cluster.looked_up, cluster.scanned):
        with pytest.raises(CorruptStateError, match="holds no rows of this state") as caught:
            look()
        assert caught.value.facts["file"] == handle_of(cluster).refs[0].name


def test_a_key_that_does_not_decode_is_corrupt_state(cluster: Cluster) -> None:
    """A key that is no key of this state is refused in a scan."""
    cluster.batch({1: (1, None)})
    for key in (b"\x00", bytes(9), bytes(9) + b"\x92\x01\x01"):
        rewritten(cluster, key, b"\x92\x01\xc0")
        with pytest.raises(CorruptStateError, match="holds no rows of this state"):
            cluster.scanned()
        rewritten(cluster, key, None)


def test_a_database_of_something_else_is_refused(cluster: Cluster) -> None:
    """Without a header that fits, a database is not read: none, garbage, or one of a later format."""
    cluster.batch({1: (1, None)})
    good = handle_of(cluster)
    for header, error, text in (
        (None, CorruptStateError, "has no header"),
        (b"\xc1", CorruptStateError, "header .* cannot be read"),
        (
            msgspec.msgpack.encode(
                DatabaseHeader("views", 0, 1, 8, (DatabaseTable("t", b"", b"", False, False),))
            ),
            CorruptStateError,
            "header .* cannot be read",
        ),
        (msgspec.msgpack.encode({"subtask": 0}), CorruptStateError, "header .* cannot be read"),
    ):
        cluster.handles[0] = good
        rewritten(cluster, HEADER_KEY, header)
        with pytest.raises(error, match=text):
            cluster.looked_up()


def test_another_format_is_refused(cluster: Cluster) -> None:
    """A database of a later format is refused with both numbers."""
    cluster.batch({1: (1, None)})
    state = cluster.open(0, cluster.handles[0])
    (record,) = state._version.database.get([HEADER_KEY])  # type: ignore[attr-defined]
    state.close()
    header = msgspec.msgpack.decode(record) | {"format": 3}
    rewritten(cluster, HEADER_KEY, msgspec.msgpack.encode(header))
    with pytest.raises(IncompatibleStateError, match="has format 3, this version of Penstock reads format 2"):
        cluster.looked_up()


def test_a_disk_without_hard_links(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the working folder cannot have hard links its files are copied."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    cluster.batch({1: (1, None)})
    cluster.batch({2: (2, None)})
    assert cluster.looked_up() == {1: (1, None), 2: (2, None)}


def test_a_local_dir_that_cannot_be_used(cluster: Cluster) -> None:
    """A working folder that cannot be made is an error that is retried, with the path."""
    cluster.local_dir.write_text("a file")
    with pytest.raises(UnavailableError, match=f"cannot use the working folder {cluster.local_dir}"):
        cluster.open(0, None)


def test_rocksdb_says_what_it_cannot_do(tmp_path: Path) -> None:
    """A folder that holds something else is corrupt state; one that is gone, or cannot be made, is unavailable."""
    (tmp_path / "CURRENT").write_text("nothing of the kind")
    with pytest.raises(CorruptStateError, match="database of views cannot be read"):
        Database(tmp_path, "views")
    with pytest.raises(UnavailableError, match="RocksDB cannot work in"):
        Database(tmp_path / "gone", "views")
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="RocksDB cannot work in"):
        Database(tmp_path / "file" / "x", "views", create=True)


def test_the_package_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rocksdict the backend is refused at once, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[rocksdb\]'"):
        backend_named("rocksdb")
