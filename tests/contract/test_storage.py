"""What every storage promises, over each implementation that can run here, and what a faulty one does on plan."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import ConfigError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.storage import LocalStorage, Storage, open_job_storage, open_storage
from penstock.storage.file_system import temporary_name
from penstock.storage.forwarding import Subfolder
from penstock.storage.hdfs import HdfsStorage
from penstock.testing.faulty_storage import (
    FaultPlan,
    FaultyStorage,
    KillingStorage,
    KillMoment,
    KillPoint,
    PlannedFailure,
    SimulatedCrash,
    SlowStorage,
)
from penstock.testing.virtual import VirtualStorage
from services.patience import PATIENCE_S
from services.s3_server import BUCKET

MAKERS: dict[str, Callable[[Path], Storage]] = {
    "local": LocalStorage,
    "faultless": lambda root: FaultyStorage(LocalStorage(root)),
    "virtual": lambda _: VirtualStorage(),
    "subfolder": lambda root: Subfolder(LocalStorage(root), "state/below"),
    "slow": lambda root: SlowStorage(LocalStorage(root), seconds=0.0),
    "killing": lambda root: KillingStorage(
        LocalStorage(root), KillPoint(moment=KillMoment.BEFORE_COMPLETE, first=10**9)
    ),
}


REMOTE = ("s3", pytest.param("hdfs", marks=pytest.mark.full))


@pytest.fixture(params=[*MAKERS, *REMOTE])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param in MAKERS:
        return MAKERS[request.param](tmp_path / "root")
    if request.param == "s3":
        request.getfixturevalue("s3")
        return open_job_storage(f"s3://{BUCKET}", f"{SYSTEM_RANDOMNESS.token()}/chk-2")
    return open_job_storage(request.getfixturevalue("hdfs_server"), f"{SYSTEM_RANDOMNESS.token()}/chk-2")


def rounds(storage: Storage, most: int) -> int:
    """How often a race is run: a small file costs HDFS half a second."""
    return min(most, 3) if isinstance(storage, HdfsStorage) else most


def create_and_report(storage: Storage, who: int, go: object, won: object) -> None:
    go.wait()  # type: ignore[attr-defined]
    for round_number in range(20):
        if storage.create(f"runs/{round_number}.json", str(who).encode()):
            won.put((round_number, who))  # type: ignore[attr-defined]


def test_files_of_a_local_storage_are_for_their_owner_alone(tmp_path: Path) -> None:
    """However they come into being, and whatever the umask: state and journal have rows of users in them."""
    before = os.umask(0)
    try:
        storage = LocalStorage(tmp_path / "above" / "root")
        storage.put("events/1", b"x")
        storage.create("runs/1.json", b"x")
        (tmp_path / "made").write_bytes(b"x")
        storage.upload(tmp_path / "made", "state/deep/1")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in storage.root.rglob("*")}
    assert modes == {
        "events": 0o700,
        "runs": 0o700,
        "state": 0o700,
        "deep": 0o700,
        "1": 0o600,
        "1.json": 0o600,
    }
    assert storage.root.stat().st_mode & 0o777 == 0o700


def test_what_was_put_is_read_back_and_replaced(storage: Storage) -> None:
    """A file holds the bytes of the last put, also none."""
    storage.put("a/b/c", b"one")
    storage.put("a/b/c", b"")
    assert storage.get("a/b/c") == b""
    storage.put("a/b/c", b"three")
    assert storage.get("a/b/c") == b"three"


def test_a_missing_file_is_file_not_found(storage: Storage, tmp_path: Path) -> None:
    """Get and download of what is not there raise FileNotFoundError, and download leaves nothing."""
    with pytest.raises(FileNotFoundError):
        storage.get("nothing/here")
    with pytest.raises(FileNotFoundError):
        storage.download("nothing/here", tmp_path / "copy")
    with pytest.raises(FileNotFoundError):
        storage.upload(tmp_path / "no-such-file", "x")
    assert list(tmp_path.glob("*copy*")) == []
    assert storage.names() == []


def test_size_says_whether_a_file_is_there(storage: Storage, tmp_path: Path) -> None:
    """The size of a whole file, and None for what was never written, is a folder, or was deleted."""
    (tmp_path / "run").write_bytes(b"12345")
    assert storage.size("state/run") is None
    storage.upload(tmp_path / "run", "state/run")
    storage.put("state/empty", b"")
    assert storage.size("state/run") == 5
    assert storage.size("state/empty") == 0
    assert storage.size("state") is None
    storage.delete(["state/run"])
    assert storage.size("state/run") is None
    with pytest.raises(ConfigError, match="not allowed"):
        storage.size("../x")


def test_names_lists_below_a_folder_in_order(storage: Storage) -> None:
    """Names are relative to the root, sorted, only of files below the folder, and of no write under way."""
    for name in ("chk-2/_metadata", "chk-10/_metadata", "chk-2x/y", "top", "chk-2/state/r1"):
        storage.put(name, b"x")
    assert storage.names() == ["chk-10/_metadata", "chk-2/_metadata", "chk-2/state/r1", "chk-2x/y", "top"]
    assert storage.names("chk-2") == ["chk-2/_metadata", "chk-2/state/r1"]
    assert storage.names("chk-2/") == storage.names("chk-2")
    assert storage.names("none") == []
    assert storage.names("top") == []


@pytest.mark.parametrize("storage", sorted(MAKERS.keys() - {"virtual", "subfolder"}), indirect=True)
def test_names_hides_writes_under_way(tmp_path: Path, storage: Storage) -> None:
    """A temporary file, of a live or a dead writer, is not listed."""
    storage.put("a/b", b"x")
    (tmp_path / "root" / "a" / temporary_name()).write_bytes(b"half")
    assert storage.names() == ["a/b"]


def test_delete_is_repeatable(storage: Storage) -> None:
    """Deleted names are gone, others stay, and a second delete is no error."""
    for name in ("a/1", "a/2", "b/1"):
        storage.put(name, b"x")
    storage.delete(["a/1", "a/2", "never/was"])
    storage.delete(iter(["a/1"]))
    assert storage.names() == ["b/1"]


@pytest.mark.parametrize("size", [0, 1, 20_000_000])
def test_upload_and_download_copy_content(storage: Storage, tmp_path: Path, size: int) -> None:
    """A file goes there and back unchanged, twice over the same name, and leaves no temporary file."""
    work = tmp_path / "work"
    work.mkdir()
    content = bytes(range(251)) * (size // 251) + b"z" * (size % 251)
    (work / "run").write_bytes(content)
    storage.upload(work / "run", "state/run")
    storage.upload(work / "run", "state/run")
    storage.download("state/run", work / "copy")
    storage.download("state/run", work / "copy")
    assert (work / "copy").read_bytes() == content
    assert sorted(path.name for path in work.iterdir()) == ["copy", "run"]
    assert storage.names() == ["state/run"]
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file() and path.name != "run"] == []


def test_a_put_over_an_uploaded_file_leaves_the_local_one_alone(storage: Storage, tmp_path: Path) -> None:
    """Replacing a name never changes the content of a file that was uploaded or downloaded."""
    (tmp_path / "run").write_bytes(b"old")
    storage.upload(tmp_path / "run", "f")
    storage.download("f", tmp_path / "copy")
    storage.put("f", b"newer")
    assert (tmp_path / "run").read_bytes() == b"old"
    assert (tmp_path / "copy").read_bytes() == b"old"


def test_a_deleted_local_file_stays_in_storage(storage: Storage, tmp_path: Path) -> None:
    """What was uploaded survives the loss of the working directory."""
    (tmp_path / "run").write_bytes(b"content")
    storage.upload(tmp_path / "run", "f")
    (tmp_path / "run").unlink()
    assert storage.get("f") == b"content"


def test_a_reader_never_sees_a_part(storage: Storage, tmp_path: Path) -> None:
    """While two sizes of content replace each other, a reader sees one of them whole."""
    versions = [b"a" * 200_000, b"b" * 500_000]
    storage.put("f", versions[0])
    stop = threading.Event()
    wrong: list[int] = []

    def look() -> None:
        while not stop.is_set():
            seen = storage.get("f")
            if seen not in versions:
                wrong.append(len(seen))
            storage.download("f", tmp_path / "copy")
            if (tmp_path / "copy").read_bytes() not in versions:
                wrong.append(-1)

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(rounds(storage, 100)):
        storage.put("f", versions[number % 2])
    stop.set()
    reader.join()
    assert wrong == []


def test_a_name_that_is_replaced_while_it_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux then says that there is no such file; the one that is there now is brought. A missing one is missing."""
    storage = LocalStorage(tmp_path / "root")
    storage.put("f", b"new")

    def replaced(source: Path, target: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "replaced", str(source))

    monkeypatch.setattr("penstock.storage.file_system.os.link", replaced)
    storage.download("f", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        storage.download("g", tmp_path / "copy")


def test_create_has_one_winner_among_threads(storage: Storage) -> None:
    """Of eight threads that create the same name, one is told so, and its content stays."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(rounds(storage, 25)):
            name = f"runs/{number}.json"
            answers = list(pool.map(lambda who, name=name: storage.create(name, str(who).encode()), range(8)))
            assert answers.count(True) == 1
            assert storage.get(name) == str(answers.index(True)).encode()
    assert len(storage.names()) == rounds(storage, 25)


def test_create_has_one_winner_among_processes(tmp_path: Path) -> None:
    """Two processes that race for twenty names win each name once between them."""
    context = multiprocessing.get_context("spawn")
    go, won = context.Event(), context.Queue()
    storage = LocalStorage(tmp_path)
    racers = [context.Process(target=create_and_report, args=(storage, who, go, won)) for who in range(2)]
    for racer in racers:
        racer.start()
    go.set()
    winners = dict(won.get(timeout=PATIENCE_S) for _ in range(20))
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    assert won.empty()
    assert {number: storage.get(f"runs/{number}.json") for number in range(20)} == {
        number: str(who).encode() for number, who in winners.items()
    }


def test_it_is_pickled_by_settings(storage: Storage) -> None:
    """A copy in another process reads what this one wrote."""
    storage.put("f", b"x")
    assert pickle.loads(pickle.dumps(storage)).get("f") == b"x"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "a/",
        "./a",
        "a\0b",
        pytest.param(temporary_name(), id="temporary"),
    ],
)
def test_names_stay_below_the_root(storage: Storage, name: str) -> None:
    """A name that could leave the root, or hide from listing, is refused."""
    for call in (
        storage.get,
        lambda n: storage.put(n, b""),
        lambda n: storage.create(n, b""),
        lambda n: storage.delete([n]),
    ):
        with pytest.raises(ConfigError, match="not allowed"):
            call(name)


def test_an_unusable_place_is_unavailable(tmp_path: Path) -> None:
    """A root below a regular file is reported as unavailable, with operation, name and cause."""
    (tmp_path / "file").write_bytes(b"")
    storage = LocalStorage(tmp_path / "file" / "root")
    with pytest.raises(UnavailableError, match="could not put 'a/f'") as raised:
        storage.put("a/f", b"")
    assert raised.value.facts["operation"] == "put"
    with pytest.raises(UnavailableError, match="a part of the path is a file"):
        LocalStorage(tmp_path / "file" / "root").names()


def test_a_full_disk_is_named() -> None:
    """A disk without space is reported as such."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    storage = LocalStorage("/unused")
    with pytest.raises(UnavailableError, match="disk full") as raised, storage._failures("put", "f"):
        Path("/dev/full").write_bytes(b"x")
    assert raised.value.facts["name"] == "f"


def test_a_usable_place_passes_the_probe(storage: Storage) -> None:
    """The probe leaves nothing behind."""
    storage.check_writable()
    assert storage.names() == []


class TestLocalStorage:
    def test_files_cross_file_systems_by_copy(self, tmp_path: Path) -> None:
        """Where a hard link is impossible, upload and download copy, and leave no temporary file."""
        here, places = tmp_path.stat().st_dev, (Path("/dev/shm"), Path("/var/tmp"), Path("/tmp"))
        elsewhere = next(
            (one for one in places if os.access(one, os.W_OK) and one.stat().st_dev != here), None
        )
        if elsewhere is None:
            pytest.skip("no second file system here")
        storage = LocalStorage(tmp_path)
        with tempfile.TemporaryDirectory(dir=elsewhere) as folder:
            (Path(folder) / "run").write_bytes(b"content")
            storage.upload(Path(folder) / "run", "state/run")
            storage.download("state/run", Path(folder) / "copy")
            assert (Path(folder) / "copy").read_bytes() == b"content"
            assert sorted(path.name for path in Path(folder).iterdir()) == ["copy", "run"]
        assert storage.get("state/run") == b"content"
        assert [path.name for path in (tmp_path / "state").iterdir()] == ["run"]

    def test_empty_folders_go_with_their_last_file(self, tmp_path: Path) -> None:
        """Deleting the last file removes its folders up to the root, which stays."""
        storage = LocalStorage(tmp_path / "root")
        storage.put("a/b/c/1", b"x")
        storage.put("a/2", b"x")
        storage.delete(["a/b/c/1"])
        assert not (tmp_path / "root/a/b").exists()
        storage.delete(["a/2"])
        assert list((tmp_path / "root").iterdir()) == []

    def test_writers_survive_folders_being_removed(self, tmp_path: Path) -> None:
        """A writer into a folder that others keep emptying never fails and never loses a file."""
        storage = LocalStorage(tmp_path)

        def write_and_delete(who: int) -> None:
            for number in range(60):
                name = f"a/b/{who}-{number}"
                assert storage.create(name, b"x")
                assert storage.get(name) == b"x"
                storage.delete([name])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write_and_delete, range(4)))
        assert storage.names() == []

    @pytest.mark.parametrize("leads_to", ["pipe", "zeros", "folder", "circle"])
    def test_what_is_no_file_is_never_read(self, leads_to: str, tmp_path: Path) -> None:
        """Whoever reaches the folder can put it there: a pipe never ends, nor does a link to a device."""
        storage = LocalStorage(tmp_path / "root")
        storage.put("runs/1.json", b"{}")
        odd = storage.root / "runs" / "2.json"
        match leads_to:
            case "pipe":
                os.mkfifo(odd)
            case "zeros":
                odd.symlink_to("/dev/zero")
            case "circle":
                odd.symlink_to(odd)
            case _:
                odd.mkdir()
        assert storage.size("runs/2.json") is None
        with pytest.raises(FileNotFoundError):
            storage.get("runs/2.json")
        with pytest.raises(FileNotFoundError):
            storage.download("runs/2.json", tmp_path / "here")
        assert not (tmp_path / "here").exists()
        (storage.root / "round").symlink_to("round")
        assert storage.folders() == ["runs"]

    def test_stale_temporary_files_are_cleaned(self, tmp_path: Path) -> None:
        """What dead writers left goes when it is old enough; files of live writers and real files stay."""
        storage = LocalStorage(tmp_path)
        storage.put("a/f", b"x")
        for folder in ("a", "dead"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / temporary_name()).write_bytes(b"half")
        assert storage.clean_temporary(older_than_s=3600) == 0
        time.sleep(0.02)  # file systems keep change times in coarse steps
        assert storage.clean_temporary(older_than_s=0) == 2
        assert storage.names() == ["a/f"]
        assert [path.name for path in tmp_path.iterdir()] == ["a"]


class TestAVanishedRoot:
    def test_it_is_not_made_again(self, tmp_path: Path) -> None:
        """A storage whose folder was deleted refuses every write, also in other processes, and makes no part of it anew."""
        storage = LocalStorage(tmp_path / "jobs" / "views")
        storage.check_writable()
        storage.put("job.json", b"")
        sent: LocalStorage = pickle.loads(pickle.dumps(storage))
        shutil.rmtree(tmp_path / "jobs" / "views")
        (tmp_path / "state").write_bytes(b"x")
        for call in (
            lambda: storage.put("runs/1.alive", b""),
            lambda: storage.create("job.json", b""),
            lambda: sent.upload(tmp_path / "state", "state/1/f"),
        ):
            with pytest.raises(UnavailableError, match="is gone: its folder existed"):
                call()
        assert list((tmp_path / "jobs").iterdir()) == []

    def test_a_check_leaves_no_folder(self, tmp_path: Path) -> None:
        """A start that is refused after the check has made nothing; one that goes on makes the folder with its first write."""
        first, second = (LocalStorage(tmp_path / "jobs" / "views") for _ in range(2))
        first.check_writable()
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "jobs" / "views").mkdir(parents=True)
        second.check_writable()
        assert (tmp_path / "jobs" / "views").is_dir()
        (tmp_path / "jobs" / "views").rmdir()  # by a start beside it, that had made it for its own check
        for storage in (first, second):
            assert storage.create(f"{id(storage)}", b"")

    def test_starts_that_check_beside_each_other(self, tmp_path: Path) -> None:
        """Each of them may make the folder and remove it: none of them is refused, and of those that go on one wins."""
        for number in range(50):
            together, won = threading.Barrier(4), []

            def start(root: Path = tmp_path / f"{number}", together=together, won=won) -> None:
                storage = LocalStorage(root)
                together.wait()
                storage.check_writable()
                won.append(storage.create("runs/1.json", b""))

            threads = [threading.Thread(target=start) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(won) == [False, False, False, True]

    def test_a_new_start_may_make_it(self, tmp_path: Path) -> None:
        """A folder that was deleted on purpose is made by the next start of the same job object."""
        storage = LocalStorage(tmp_path / "views")
        storage.put("a", b"")
        shutil.rmtree(tmp_path / "views")
        storage.check_writable()
        storage.put("a", b"")
        assert storage.names() == ["a"]

    def test_a_place_where_no_folder_can_be_made(self) -> None:
        """The kernel's own file systems are refused by name; a write there does not blame others."""
        storage = LocalStorage("/proc/nowhere")
        with pytest.raises(ConfigError, match="storage /proc/nowhere is on proc"):
            storage.check_place()
        with pytest.raises(UnavailableError, match="no folder can be created there"):
            storage.put("a", b"")

    def test_a_link_that_leads_nowhere_has_no_winner(self, tmp_path: Path) -> None:
        """Create says that the place is unusable, never that somebody else was first."""
        (tmp_path / "root").symlink_to(tmp_path / "nothing")
        with pytest.raises(UnavailableError, match="a broken link"):
            LocalStorage(tmp_path / "root").create("runs/1.json", b"")


class TestOpenStorage:
    def test_paths_and_file_uris_are_local(self, tmp_path: Path) -> None:
        """A path, a string and a URI name the same folder, whatever characters it has; its URI has a scheme, and leads there again."""
        folder = tmp_path / "with space, 50%, #1, naïve?"
        opened = [open_storage(folder), open_storage(str(folder)), open_storage(folder.as_uri())]
        opened.append(open_storage(opened[0].uri))
        assert {storage.root for storage in opened if isinstance(storage, LocalStorage)} == {folder}
        assert {storage.uri for storage in opened} == {folder.as_uri()}

    @pytest.mark.parametrize(
        ("uri", "named"),
        [
            ("s3a://bucket/path", "write s3://bucket/path"),
            ("gcs://bucket/path", "write gs://bucket/path"),
            ("abfss://container@account.dfs.core.windows.net/path", "write az://container/path"),
            ("viewfs://cluster/path", "write hdfs://namenode:8020/path"),
            ("dbfs:/jobs", "the scheme 'dbfs'"),
            ("ftp://host/path", "the scheme 'ftp'"),
            ("s3:/bucket", "the scheme 's3'"),
        ],
    )
    def test_what_is_no_folder_is_refused_by_name(
        self, uri: str, named: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another scheme is refused when the job is made, with what can be used instead; nobody is asked for it."""
        monkeypatch.setattr(socket, "socket", None)
        with pytest.raises(ConfigError) as raised:
            open_job_storage(uri, "views")
        assert named in str(raised.value)
        assert "write " in str(raised.value) or "give a path on a local disk" in str(raised.value)

    def test_a_path_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        """A storage that is a file, lies below one, or leads through a link to nothing is refused when the job is made."""
        (tmp_path / "file").write_bytes(b"")
        (tmp_path / "link").symlink_to(tmp_path / "nothing")
        with pytest.raises(ConfigError, match=r"lies below .*file, which is a file: it must be a folder"):
            open_job_storage(tmp_path / "file", "views")
        with pytest.raises(ConfigError, match=r"storage .*file is a file"):
            open_storage(tmp_path / "file")
        with pytest.raises(ConfigError, match=r"which is a link to .*nothing, which does not exist"):
            open_job_storage(str(tmp_path / "link" / "jobs"), "views")

    @pytest.mark.parametrize("uri", ["", "  ", "ftp://host/x", "file://host/x", "jdbc:/x", None, 3])
    def test_what_cannot_be_opened_is_a_config_error(self, uri: object) -> None:
        """A bad address fails at once, with the address in the text."""
        with pytest.raises(ConfigError) as raised:
            open_storage(uri)  # type: ignore[arg-type]
        assert repr(uri) in str(raised.value)


class TestSlowStorage:
    def test_only_writes_of_matching_names_wait(self, tmp_path: Path) -> None:
        """A write waits until the file `until` appears; reading and other names do not wait."""
        go = tmp_path / "go"
        plain = LocalStorage(tmp_path / "root")
        storage = pickle.loads(pickle.dumps(SlowStorage(plain, 3600, pattern="state/*", until=go)))
        storage.put("chk-1/_metadata", b"x")
        (tmp_path / "run").write_bytes(b"x")
        writers = [
            threading.Thread(target=storage.put, args=("state/put", b"x")),
            threading.Thread(target=storage.create, args=("state/create", b"x")),
            threading.Thread(target=storage.upload, args=(tmp_path / "run", "state/upload")),
        ]
        for writer in writers:
            writer.start()
        assert storage.names() == ["chk-1/_metadata"]
        assert storage.size("state/put") is None
        go.touch()
        for writer in writers:
            writer.join()
        assert storage.names("state") == ["state/create", "state/put", "state/upload"]


class TestFaultyStorage:
    def test_a_crash_before_a_call_leaves_it_undone(self, tmp_path: Path) -> None:
        """Call k is not performed, and the dead process performs no other."""
        storage = FaultyStorage(LocalStorage(tmp_path), FaultPlan(crash_before=2))
        storage.put("1", b"x")
        with pytest.raises(SimulatedCrash, match="before call 2: put '2'"):
            storage.put("2", b"x")
        with pytest.raises(SimulatedCrash):
            storage.put("3", b"x")
        assert storage.inner.names() == ["1"]

    def test_a_crash_after_a_call_leaves_it_done(self, tmp_path: Path) -> None:
        """Call k is performed, its answer is lost, and a delete counts each name."""
        storage = FaultyStorage(LocalStorage(tmp_path), FaultPlan(crash_after=4))
        for name in ("1", "2"):
            storage.put(name, b"x")
        with pytest.raises(SimulatedCrash, match="after call 4: delete '2'"):
            storage.delete(["1", "2", "3"])
        assert storage.inner.names() == []
        assert [(call.number, call.operation, call.name) for call in storage.calls[2:]] == [
            (3, "delete", "1"),
            (4, "delete", "2"),
        ]

    def test_matching_calls_fail_so_many_times(self, tmp_path: Path) -> None:
        """A pattern fails its first n calls, done or not done as planned; other names and later calls work."""
        lost = PlannedFailure(pattern="chk-*/_metadata", operation="put", performed=True)
        plan = FaultPlan(failures=(PlannedFailure(pattern="state/*", times=2), lost))
        storage = FaultyStorage(LocalStorage(tmp_path), plan)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="nothing was done"):
                storage.put("state/r", b"x")
        assert storage.inner.names() == []
        storage.put("state/r", b"x")
        with pytest.raises(UnavailableError, match="it was performed"):
            storage.put("chk-1/_metadata", b"x")
        assert storage.get("chk-1/_metadata") == b"x"

    def test_latency_passes_on_its_clock(self, tmp_path: Path) -> None:
        """A slow operation lets time pass on the clock it was given, others do not."""

        class Stopwatch:
            slept = 0.0

            def monotonic(self) -> float:
                return self.slept

            wall = monotonic

            def sleep(self, seconds: float) -> None:
                self.slept += seconds

        clock = Stopwatch()
        storage = FaultyStorage(LocalStorage(tmp_path), FaultPlan(latency_s={"put": 2.5}), clock=clock)
        storage.put("f", b"x")
        storage.get("f")
        assert clock.slept == 2.5
