"""A savepoint holds what the checkpoint held, whichever backend and parallelism it came from and goes to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import child_process
from penstock.checkpoint.metadata import write_metadata
from penstock.checkpoint.model import Barrier, Completed, OperatorState, SourceFile
from penstock.checkpoint.state_columns import columns_of, stored_layout
from penstock.errors import ConfigError, CorruptStateError, IncompatibleStateError, UnavailableError
from penstock.ids import RunId, SubtaskId
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.recovery.history import check_committed
from penstock.recovery.started_batches import (
    BarrierOverride,
    StartedBatch,
    record_started,
    refuse_if_started_beyond,
)
from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import MAKING, MANIFEST, Manifest, encode, read_manifest
from penstock.savepoint.request import create_in_child_process
from penstock.savepoint.restore import _may_adopt
from penstock.savepoint.table_files import Load
from penstock.state import rewriting
from penstock.state.backends import backend_named
from penstock.state.backends.base import VALUES, OnRescale, StateLayout, TableLayout, Workplace, with_stamps
from penstock.state.ddl import arrow_schema
from penstock.state.handle import Due, StateHandle
from penstock.state.keys import GROUP_SHIFT, KeyBatch, owners
from penstock.state.lifetimes import Lifetime
from penstock.state.subtask_rows import SUBTASK
from penstock.storage import LocalStorage
from services.patience import PATIENCE_S
from services.tiers import share

MAX_PARALLELISM = 8
BACKENDS = ["filesystem", "memory", "rocksdb"]
MORTAL = Lifetime(("seen",), "__touched_seen", 1_000_000_000_000_000)
KEY = arrow_schema("card string, shop long")
LAYOUT = StateLayout(
    KEY,
    with_stamps(arrow_schema("n long, seen struct<at:timestamp,`odd name`:decimal(10,2)>"), (MORTAL,)),
    (
        TableLayout(
            "shops", pa.schema([*KEY, ("shops_key", pa.string())]), arrow_schema("shops array<long>")
        ),
        TableLayout("timers", pa.schema([*KEY, ("at", pa.int64())]), pa.schema([]), by_time=True),
        TableLayout(
            "rules / all",
            pa.schema([SUBTASK, ("place", pa.int64())]),
            arrow_schema("rule string"),
            on_rescale=OnRescale.SPLIT,
        ),
    ),
    (MORTAL,),
)
Tables = dict[str, list[dict[str, Any]]]


def rows_of(numbers: list[int]) -> Tables:
    """Rows of all tables that follow from some numbers."""
    return {
        VALUES: [{"__sort_key": sort_key(n), "card": f"card {n}", "shop": n, "n": n, "seen": None if n % 3 else {"at": n, "odd name": None}, "__touched_seen": None if n % 3 else n} for n in numbers],
        "shops": [{"__sort_key": sort_key(n), "__order": m, "card": f"card {n}", "shop": n, "shops_key": str(m), "shops": [n, m]} for n in numbers for m in range(n % 4)],
        "timers": [{"__sort_key": sort_key(n), "__order": n * 10 - 5, "card": f"card {n}", "shop": n, "at": n * 10 - 5} for n in numbers],
    }  # fmt: skip


def sort_key(number: int) -> int:
    return ((number * 7 % MAX_PARALLELISM) << GROUP_SHIFT) | number // 2


def schema_of(table: TableLayout) -> pa.Schema:
    orders = [pa.field("__order", pa.int64(), nullable=False)] if table.ordered else []
    return pa.schema(
        [pa.field("__sort_key", pa.int64(), nullable=False), *orders, *table.identity, *table.value]
    )


class Site:
    """A job's storage with one checkpoint of one operator."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = LocalStorage(root / "job")
        self.record = check_job_record(self.storage, JobRecord("fraud", MAX_PARALLELISM))

    def checkpoint(self, backend: str, parallelism: int, numbers: list[int]) -> Completed:
        handles = tuple(self._frozen(backend, parallelism, index, numbers) for index in range(parallelism))
        columns = columns_of(LAYOUT)
        state = OperatorState(
            columns.key, columns.value, handles, columns.tables, columns.lifetimes, columns.schema
        )
        self.storage.put("state/_sources/1-0-0", b"v1\nnote")
        note = SourceFile("0/0", "state/_sources/1-0-0", 7, "0e8eeba4ae49a1fe")
        note = msgspec.structs.replace(note, checksum=_hash(b"v1\nnote"))
        return Completed(
            job="fraud",
            checkpoint=5,
            run=2,
            mode="exactly-once",
            max_parallelism=MAX_PARALLELISM,
            parallelism=parallelism,
            barrier=Barrier({"clicks": 3}, "v1\n{}\n3", (note,)),
            operators={"cards": state},
            now_us=17,
        )

    def _frozen(self, backend: str, parallelism: int, index: int, numbers: list[int]) -> StateHandle:
        place = self.place(index, parallelism)
        with closing(backend_named(backend).open(place, LAYOUT, None)) as state:
            for name, rows in rows_of(numbers).items():
                table = LAYOUT.by_name[name]
                batch = pa.RecordBatch.from_pylist(rows, schema_of(table))
                mine = owners(batch["__sort_key"].to_numpy() >> GROUP_SHIFT, parallelism) == index
                write(state, table, batch.filter(pa.array(mine)))
            write(state, LAYOUT.by_name["rules / all"], rules(index, ["a", "b", "c"][: index + 1]))
            handle = state.freeze()
        for name in handle.files:
            self.storage.upload(place.local_path(name), name)
        return msgspec.structs.replace(handle, generation=9, due=Due(event_us=index + 1))

    def place(self, index: int, parallelism: int) -> Workplace:
        return Workplace(
            storage=self.storage,
            local_dir=self.root / "local",
            subtask=SubtaskId("cards", index),
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=5,
            stem=f"2-5-{index}-0",
        )

    def loaded(self, manifest: Manifest, backend: str, parallelism: int) -> list[StateHandle]:
        other = LocalStorage(self.root / "other")
        task = Load(
            LocalStorage(self.root / "saved"), manifest, other, backend_named(backend), self.root / "elsewhere",
            RunId(1), parallelism, MAX_PARALLELISM,
        )  # fmt: skip
        empty = [StateHandle(SubtaskId("cards", index), backend, 5) for index in range(parallelism)]
        return [task(handle, 0).handle for handle in empty]

    def content(self, handles: list[StateHandle]) -> Iterator[tuple[int, str, pa.Table]]:
        """What each subtask of the job that was started elsewhere has."""
        for handle in handles:
            place = Workplace(
                storage=LocalStorage(self.root / "other"),
                local_dir=self.root / "there",
                subtask=handle.subtask,
                parallelism=len(handles),
                max_parallelism=MAX_PARALLELISM,
                version=6,
                stem=f"3-6-{handle.subtask.index}-0",
            )
            with closing(backend_named(handle.backend).open(place, LAYOUT, handle)) as state:
                for name, table in LAYOUT.by_name.items():
                    found = pa.Table.from_batches(state.table(name).numbered(), schema_of(table))
                    yield handle.subtask.index, name, found


def write(state: Any, table: TableLayout, batch: pa.RecordBatch) -> None:
    order = np.lexsort((batch["__sort_key"].to_numpy(),))
    batch = batch.take(pa.array(order))
    orders = batch["__order"].to_numpy() if table.ordered else None
    keys = KeyBatch(batch["__sort_key"].to_numpy(), batch.select(table.identity.names), orders)
    (state if table.name == VALUES else state.table(table.name)).write(keys, batch.select(table.value.names))


def rules(index: int, texts: list[str]) -> pa.RecordBatch:
    rows = [
        {"__sort_key": index << GROUP_SHIFT, "__order": at, "__subtask": index, "place": at, "rule": text}
        for at, text in enumerate(texts)
    ]
    return pa.RecordBatch.from_pylist(rows, schema_of(LAYOUT.by_name["rules / all"]))


def _hash(data: bytes) -> str:
    import xxhash

    return xxhash.xxh3_64_hexdigest(data)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def saved(site: Site) -> LocalStorage:
    folder = LocalStorage(site.root / "saved")
    create_savepoint(site.storage, site.checkpoint("filesystem", 2, list(range(20))), folder, token="t1")
    return folder


@settings(max_examples=share(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    backends=st.tuples(st.sampled_from(BACKENDS), st.sampled_from(BACKENDS)),
    parallelisms=st.tuples(st.integers(1, 5), st.integers(1, 8)),
    numbers=st.lists(st.integers(0, 1000), unique=True, max_size=60),
    portion=st.sampled_from([3, 1000]),
)
def test_what_was_saved_is_loaded(tmp_path_factory, backends, parallelisms, numbers, portion) -> None:
    """Every row of every table arrives once, at the subtask that owns it, on another backend and with another parallelism."""
    site = Site(tmp_path_factory.mktemp("site"))
    (before, after), (former, parallelism) = backends, parallelisms
    manifest = create_savepoint(
        site.storage, site.checkpoint(before, former, numbers), LocalStorage(site.root / "saved"), token="t1"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "PORTION_ROWS", portion)
        handles = site.loaded(manifest, after, parallelism)
    assert {handle.generation >= 9 for handle in handles if handle.refs} <= {True}
    truth = rows_of(numbers)
    found: Tables = {name: [] for name in LAYOUT.by_name}
    for index, name, table in site.content(handles):
        if name != "rules / all":
            groups = table["__sort_key"].to_numpy() >> GROUP_SHIFT
            assert (owners(groups, parallelism) == index).all()
        found[name] += table.to_pylist()
    for name, expected in truth.items():
        wanted = pa.Table.from_pylist(expected, schema_of(LAYOUT.by_name[name])).to_pylist()
        assert sorted(map(repr, found[name])) == sorted(map(repr, wanted)), name
    texts = [row["rule"] for row in found["rules / all"]]
    assert sorted(texts) == sorted(text for index in range(former) for text in ["a", "b", "c"][: index + 1])


def test_a_folder_anybody_can_read(site: Site, saved: LocalStorage) -> None:
    """Each table is Parquet with typed columns, the manifest is JSON, and nothing but relative names is in it."""
    table = pq.read_table(site.root / "saved/state/cards/values")
    assert table.num_rows == 20
    assert table.schema.field("seen").type.field("odd name").type == pa.decimal128(10, 2)
    text = json.loads((site.root / "saved" / MANIFEST).read_text())
    assert text["format"] == 1
    assert str(site.root) not in json.dumps(text)
    assert MAKING not in saved.names()


def test_it_can_be_moved(site: Site, saved: LocalStorage) -> None:
    """The folder works wherever it lies."""
    manifest = read_manifest(saved)
    (site.root / "saved").rename(site.root / "moved")
    (site.root / "moved").rename(site.root / "saved")
    assert read_manifest(LocalStorage(site.root / "saved")) == manifest


def test_made_again_under_its_name(site: Site, saved: LocalStorage) -> None:
    """Who asks again with the same token is given what there is; anybody else is refused."""
    completed = site.checkpoint("filesystem", 2, list(range(20)))
    assert create_savepoint(site.storage, completed, saved, token="t1") == read_manifest(saved)
    with pytest.raises(ConfigError, match="holds a savepoint; choose an empty folder"):
        create_savepoint(site.storage, completed, saved, token="t2")
    assert MAKING not in saved.names()


def test_other_files_stay_what_they_are(site: Site) -> None:
    """A folder with files of somebody else is refused, and they are not touched."""
    folder = LocalStorage(site.root / "mine")
    folder.put("thesis.txt", b"years of work")
    with pytest.raises(ConfigError, match=r"other files, such as thesis\.txt"):
        create_savepoint(site.storage, site.checkpoint("memory", 1, [1]), folder, token="t1")
    assert folder.names() == ["thesis.txt"]


def test_half_a_savepoint_is_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its manifest a folder is no savepoint; the same token goes on, another is refused."""
    folder = LocalStorage(site.root / "half")
    completed = site.checkpoint("filesystem", 2, [1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "create", _refusing(MANIFEST))
        with pytest.raises(OSError, match="the power is gone"):
            create_savepoint(site.storage, completed, folder, token="t1")
    with pytest.raises(ConfigError, match=r"no savepoint.*was never finished"):
        read_manifest(folder)
    with pytest.raises(ConfigError, match="unfinished savepoint of another request"):
        create_savepoint(site.storage, completed, folder, token="t2")
    create_savepoint(site.storage, completed, folder, token="t1")
    assert read_manifest(folder).operators["cards"].rows(VALUES) == 3


def _refusing(name: str) -> Any:
    real = LocalStorage.create

    def create(self: LocalStorage, asked: str, data: bytes) -> bool:
        if asked == name:
            raise OSError("the power is gone")
        return real(self, asked, data)

    return create


def test_promises_must_be_kept_first(site: Site) -> None:
    """A checkpoint with transactions that may not be committed yet is refused: a savepoint promises nothing."""
    from penstock.checkpoint.model import PreCommitted

    completed = msgspec.structs.replace(
        site.checkpoint("memory", 1, [1]), transactions=(PreCommitted("out", 5, 0, {}),)
    )
    folder = LocalStorage(site.root / "early")
    with pytest.raises(ConfigError, match="promises to commit 1 transaction, and it is not known") as refused:
        create_savepoint(site.storage, completed, folder, token="t1")
    assert folder.names() == []
    with pytest.raises(ConfigError) as said_by_the_command:
        check_committed(site.storage, completed)
    assert str(said_by_the_command.value) == str(refused.value)


def test_positions_that_were_set_beside_the_checkpoint(site: Site) -> None:
    """Where a start has set a position by choice, and no checkpoint came since, the savepoint has the position, not that before it."""
    completed = site.checkpoint("memory", 1, [1])
    chosen = BarrierOverride(completed.checkpoint, completed.run, Barrier({"clicks": 900}, "v1\n{}\n900"))
    record_started(site.storage, StartedBatch(completed.run + 1, Barrier(), instead=chosen))
    made = create_savepoint(site.storage, completed, LocalStorage(site.root / "chosen"), token="t1")
    assert made.barrier.positions == {"clicks": 900}


def test_what_was_begun_at_most_once_is_not_read_again(site: Site) -> None:
    """Of a job that does not run, a checkpoint behind which batches were begun is refused; so is a storage with more begun batches."""
    completed = site.checkpoint("memory", 1, [1])
    manifest = create_savepoint(site.storage, completed, LocalStorage(site.root / "early"), token="t1")
    record_started(site.storage, StartedBatch(3, Barrier({"clicks": 900}), completed.checkpoint + 2))
    with pytest.raises(ConfigError, match="has started batch 7 after checkpoint 5"):
        refuse_if_started_beyond(site.storage, completed)
    other = LocalStorage(site.root / "elsewhere")
    record_started(other, StartedBatch(1, Barrier({"clicks": 900}), 3))  # fewer batches, more rows
    with pytest.raises(ConfigError, match="has started batch 3"):
        _may_adopt(other, manifest)


@pytest.mark.parametrize("what", ["flipped", "truncated", "missing", "longer"])
def test_damaged_tables_are_refused(site: Site, saved: LocalStorage, what: str) -> None:
    """A file that is not what the manifest says is corrupt state, by name."""
    (path,) = (site.root / "saved/state/cards/table-shops").glob("0-*.parquet")
    data = path.read_bytes()
    path.unlink()
    if what == "flipped":
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif what == "truncated":
        path.write_bytes(data[:-7])
    elif what == "longer":
        path.write_bytes(data + b"x")
    with pytest.raises(CorruptStateError, match=r"table-shops/0-[0-9a-f]{8}\.parquet"):
        site.loaded(read_manifest(saved), "filesystem", 2)


HOSTILE = {
    "climbs out": "state/../../escaped.parquet",
    "absolute": "/etc/passwd",
    "climbs inside": "state/cards/..",
    "elsewhere": "savepoint.json",
    "dots": "state/./x/y.parquet",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_lead_elsewhere(site: Site, saved: LocalStorage, name: str) -> None:
    """A manifest with right checksums and names outside of the folder is refused before a file is opened."""
    manifest = read_manifest(saved)
    operator = manifest.operators["cards"]
    files = tuple(msgspec.structs.replace(file, path=HOSTILE[name]) for file in operator.files[VALUES][:1])
    hostile = msgspec.structs.replace(operator, files={VALUES: files})
    saved.put(MANIFEST, encode(msgspec.structs.replace(manifest, operators={"cards": hostile})))
    with pytest.raises(CorruptStateError, match="is no file of a savepoint"):
        read_manifest(saved)


def test_uids_and_notes_that_lead_elsewhere(saved: LocalStorage) -> None:
    """Names of operators and of what sources have noted are names of files of the job that adopts it."""
    manifest = read_manifest(saved)
    operator, note = manifest.operators["cards"], manifest.barrier.source_log[0]
    climbing = msgspec.structs.replace(
        manifest.barrier, source_log=(msgspec.structs.replace(note, path="0/../../offsets/5"),)
    )
    for hostile, said in (
        (msgspec.structs.replace(manifest, operators={"../cards": operator}), "is no uid of an operator"),
        (msgspec.structs.replace(manifest, barrier=climbing), "which no source of Spark's makes"),
    ):
        saved.put(MANIFEST, encode(hostile))
        with pytest.raises(CorruptStateError, match=said):
            read_manifest(saved)


@pytest.mark.parametrize(
    "numbers",
    [{"checkpoint": -1}, {"parallelism": 1 << 40, "max_parallelism": 1 << 40}, {"max_parallelism": 0}],
)
def test_numbers_that_cannot_be(saved: LocalStorage, numbers: dict[str, int]) -> None:
    """A checkpoint that no start would find, and more parts than anybody can go through, are refused before anything is done."""
    saved.put(MANIFEST, encode(msgspec.structs.replace(read_manifest(saved), **numbers)))
    with pytest.raises(CorruptStateError, match="cannot be; nothing was changed"):
        read_manifest(saved)


@pytest.mark.parametrize("table", [VALUES, "shops", "timers", "rules / all"])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_files_of_another_part(site: Site, saved: LocalStorage, table: str, parallelism: int) -> None:
    """A manifest with right checksums that takes a file for another part is refused: its rows would be left out without a word."""
    manifest = read_manifest(saved)
    operator = manifest.operators["cards"]
    swapped = tuple(msgspec.structs.replace(file, part=1 - file.part) for file in operator.files[table])
    wrong = msgspec.structs.replace(operator, files={**operator.files, table: swapped})
    with pytest.raises(CorruptStateError, match=r"says that it is part \d of 2, and it has rows of part \d"):
        site.loaded(msgspec.structs.replace(manifest, operators={"cards": wrong}), "filesystem", parallelism)


def test_other_number_of_parts(site: Site, saved: LocalStorage) -> None:
    """The same for a manifest that says that there are more parts than the files were cut into."""
    manifest = msgspec.structs.replace(read_manifest(saved), parallelism=3)
    with pytest.raises(CorruptStateError, match="part 0 of 3, and it has rows of part 2"):
        site.loaded(manifest, "filesystem", 2)


def test_rows_of_another_subtask(site: Site, saved: LocalStorage) -> None:
    """A row of a subtask that lies where that of another belongs is refused as well."""
    manifest = read_manifest(saved)
    operator = manifest.operators["cards"]
    first, *others = operator.files["rules / all"]
    path = site.root / "saved" / first.path
    rows = pq.read_table(path)
    at = rows.schema.get_field_index("__subtask")
    pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array([1], SUBTASK.type)), path)
    forged = msgspec.structs.replace(first, size=path.stat().st_size, checksum=_hash(path.read_bytes()))
    wrong = msgspec.structs.replace(operator, files={**operator.files, "rules / all": (forged, *others)})
    with pytest.raises(CorruptStateError, match="part 0 of 2, and it has rows of part 1"):
        site.loaded(msgspec.structs.replace(manifest, operators={"cards": wrong}), "filesystem", 2)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda data: data[:-20], CorruptStateError, "is corrupt"),
        (lambda data: data.replace(b'"card string', b'"card number').replace(b'"cards"', b'"wards"'), CorruptStateError, "checksum"),
        (lambda data: data.replace(b'"format": 1', b'"format": 2', 1), IncompatibleStateError, "has format 2"),
        (lambda _data: b"\x80\x04\x95", CorruptStateError, "is corrupt"),
        (lambda _data: b"", CorruptStateError, "is corrupt"),
    ],
    ids=["truncated", "changed", "newer", "a pickle", "empty"],
)  # fmt: skip
def test_damaged_manifests(saved: LocalStorage, change: Any, error: type[Exception], said: str) -> None:
    """What is no manifest of ours, or of another format, says so."""
    saved.put(MANIFEST, change(saved.get(MANIFEST)))
    with pytest.raises(error, match=said):
        read_manifest(saved)


def test_layouts_come_back_from_what_is_recorded() -> None:
    """The metadata of a checkpoint describes state so exactly that nobody needs the job to read it."""
    assert stored_layout(columns_of(LAYOUT)) == LAYOUT


def with_metadata(site: Site) -> Completed:
    """A checkpoint as another process finds it."""
    completed = site.checkpoint("filesystem", 2, list(range(20)))
    write_metadata(site.storage, completed)
    return completed


def test_made_by_a_process_beside(site: Site) -> None:
    """Another process makes the same savepoint, and says how far it is."""
    completed, told = with_metadata(site), []
    folder = LocalStorage(site.root / "beside")
    made = create_in_child_process(
        site.storage, completed, folder, token="t1", report=lambda done, of: told.append((done, of))
    )
    assert told == [(1, 2), (2, 2)]
    assert made.operators["cards"].rows(VALUES) == 20
    with pytest.raises(ConfigError, match="holds a savepoint; choose an empty folder"):
        create_in_child_process(site.storage, completed, folder, token="t2")
    site.storage.delete(completed.files)
    with pytest.raises((CorruptStateError, FileNotFoundError), match="state/"):
        create_in_child_process(site.storage, completed, LocalStorage(site.root / "gone"), token="t3")


def test_a_process_beside_that_talks_much(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes to its standard error, as Python itself does with some settings, does not make it stand still."""
    completed = with_metadata(site)
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    made: list[Manifest] = []
    folder = LocalStorage(site.root / "beside")
    work = threading.Thread(
        target=lambda: made.append(create_in_child_process(site.storage, completed, folder, token="t1")),
        daemon=True,
    )
    work.start()
    work.join(PATIENCE_S)
    assert made == [read_manifest(folder)]


def test_the_last_words_of_a_process_beside(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends without an answer is said to have failed, with the end of what it has written."""
    monkeypatch.setattr(
        child_process, "PROGRAM", "import sys; sys.exit('no such module' * 9999 + ', the end')"
    )
    with pytest.raises(UnavailableError, match=r"ended with 1: .*no such module, the end") as failed:
        create_in_child_process(
            site.storage, with_metadata(site), LocalStorage(site.root / "beside"), token="t1"
        )
    assert len(str(failed.value)) < 1000


DRIVER = """
import sys
from penstock.checkpoint.metadata import CheckpointName, read_metadata
from penstock.savepoint import request
from penstock.storage import LocalStorage

def killed(done, of):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)

storage = LocalStorage(sys.argv[1])
completed = read_metadata(storage, CheckpointName(5, 2))
request.create_in_child_process(storage, completed, LocalStorage(sys.argv[2]), token="t1", report=killed)
"""


def test_the_process_beside_ends_with_its_driver(site: Site) -> None:
    """A driver that is killed in the middle leaves no process behind."""
    with_metadata(site)
    to = site.root / "half"
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, str(site.storage.root), str(to)], check=False, timeout=PATIENCE_S
    )
    assert driver.returncode == -signal.SIGKILL
    end = time.monotonic() + PATIENCE_S
    while alive := [one for one in psutil.process_iter(["cmdline"]) if is_beside(one, site.root)]:
        assert time.monotonic() < end, alive
        time.sleep(0.05)


def is_beside(process: psutil.Process, root: Path) -> bool:
    """Only the one that reads this test's storage: other tests run at the same time."""
    try:
        command = " ".join(process.info["cmdline"] or ())
        return "penstock.savepoint" in command and any(
            str(root) in file.path for file in process.open_files()
        )
    except psutil.Error:
        return False
