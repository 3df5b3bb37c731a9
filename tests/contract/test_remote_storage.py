"""What `ObjectStorage` and `HdfsStorage` promise beyond other storages: one winner whatever is answered, short errors, no secrets."""

from __future__ import annotations

import http.server
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest

from penstock import lazy_imports
from penstock.errors import ConfigError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.storage import Storage, exclusive_create, open_job_storage, open_storage
from penstock.storage import object as object_module
from penstock.storage.hdfs import HdfsStorage
from penstock.storage.object import ObjectStorage
from penstock.storage.store_errors import failure_of
from services.patience import PATIENCE_S
from services.s3_server import BUCKET, KEY, SECRET, S3Server
from services.spoiling_proxy import HOWS, IGNORES, spoiling

Patch = pytest.MonkeyPatch


def a_storage() -> ObjectStorage:
    opened = open_job_storage(f"s3://{BUCKET}/{SYSTEM_RANDOMNESS.token()}", "views")
    assert isinstance(opened, ObjectStorage)
    return opened


@pytest.fixture
def impatient(monkeypatch: Patch) -> None:
    """Waits little for an answer and between attempts."""
    monkeypatch.setattr(object_module, "REQUEST_TIMEOUT", timedelta(seconds=0.5))
    monkeypatch.setattr(object_module, "RETRIES", 2)
    monkeypatch.setattr(exclusive_create, "PAUSES_S", (0.01, 0.05, 0.2, 0.5))


@contextmanager
def behind_a_proxy(s3: S3Server, monkeypatch: Patch, how: str, times: int) -> Iterator[Any]:
    with spoiling(s3.port, how, times=times, late_s=1.0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("how", HOWS)
def test_a_lone_creator_wins_whatever_is_answered(
    s3: S3Server, monkeypatch: Patch, how: str, times: int
) -> None:
    """It is told so, its bytes are stored, and a second create of the name loses. The client retries most of it by itself."""
    with behind_a_proxy(s3, monkeypatch, how, times) as proxy:
        if how == "late" and times > 1:
            times = proxy.times = 2
        storage = a_storage()
        assert storage.create("runs/1.json", b"mine")
        assert proxy.spoiled > 0
        assert storage.get("runs/1.json") == b"mine"
        assert not storage.create("runs/1.json", b"mine"), "equal bytes, but another create"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", HOWS)
def test_one_of_eight_creators_wins_whatever_is_answered(s3: S3Server, monkeypatch: Patch, how: str) -> None:
    """All of them write the same bytes; each has a client of its own, as processes on eight machines have."""
    with behind_a_proxy(s3, monkeypatch, how, 3):
        first = a_storage()
        storages = [ObjectStorage(first.uri) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            for number in range(2 if how == "late" else 5):
                won = list(
                    pool.map(lambda one, number=number: one.create(f"runs/{number}", b"same"), storages)
                )
                assert won.count(True) == 1
                assert first.get(f"runs/{number}") == b"same"


@pytest.mark.usefixtures("impatient")
def test_a_create_that_never_succeeds_is_unavailable(s3: S3Server, monkeypatch: Patch) -> None:
    """After a bounded number of attempts, with nothing stored."""
    with behind_a_proxy(s3, monkeypatch, "503-not-stored", 10_000):
        storage = a_storage()
        with pytest.raises(UnavailableError, match="asks for fewer requests") as raised:
            storage.create("runs/1.json", b"x")
        assert storage.names() == []
        assert not raised.value.facts["denied"]


def test_a_store_that_knows_no_conditional_put_is_refused(s3: S3Server, monkeypatch: Patch) -> None:
    """Before a job starts, with the reason; nothing is left behind."""
    with behind_a_proxy(s3, monkeypatch, IGNORES, 0):
        storage = a_storage()
        with pytest.raises(ConfigError, match="a second create of one name replaces the first"):
            storage.check_writable()
        assert storage.names() == []


def create_and_report(storage: Storage, who: int, go: Any, won: Any) -> None:
    go.wait()
    for number in range(10):
        if storage.create(f"runs/{number}.json", str(who).encode()):
            won.put((number, who))


def test_create_has_one_winner_among_processes(s3: S3Server) -> None:
    """They get the storage as tasks do, pickled, and open clients of their own."""
    context = multiprocessing.get_context("spawn")
    go, won = context.Event(), context.Queue()
    storage = a_storage()
    storage.put("warm", b"")
    racers = [context.Process(target=create_and_report, args=(storage, who, go, won)) for who in range(2)]
    for racer in racers:
        racer.start()
    go.set()
    winners = dict(won.get(timeout=PATIENCE_S) for _ in range(10))
    for racer in racers:
        racer.join()
    assert won.empty()
    assert {number: storage.get(f"runs/{number}.json") for number in range(10)} == {
        number: str(who).encode() for number, who in winners.items()
    }


def test_a_fork_says_that_it_cannot_go_on(s3: S3Server) -> None:
    """Threads of the client do not survive a fork: a call would wait forever. Spark's Python workers fork before they use it."""
    storage = a_storage()
    storage.put("f", b"x")
    child = os.fork()
    if child == 0:
        try:
            storage.get("f")
        except UnavailableError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


NAMES = (
    "a b/%41#ü?*[x]~.x",
    "a=1/b+c&d/e'f\"g",
    "state/op;1/0-0-0.arrow",
    "é/é",
    "x/_metadata",
    ".hidden/.x",
)


def test_names_with_special_characters(s3: S3Server, tmp_path: Path) -> None:
    """They come back as they were, by every call."""
    storage = a_storage()
    (tmp_path / "local").write_bytes(b"uploaded")
    for name in NAMES:
        assert storage.create(name, name.encode())
        storage.upload(tmp_path / "local", f"{name}.up")
        storage.download(name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == name.encode() == storage.get(name)
        assert storage.size(name) == len(name.encode())
    assert storage.names() == sorted([*NAMES, *(f"{name}.up" for name in NAMES)])
    storage.delete(storage.names())
    assert storage.names() == []


def test_folders_and_names_stop_at_the_slash(s3: S3Server, monkeypatch: Patch) -> None:
    """A folder is no prefix of another one's name, and a listing or a delete of many takes several requests."""
    monkeypatch.setattr(object_module, "LISTED_AT_ONCE", 2)
    monkeypatch.setattr(object_module, "DELETED_AT_ONCE", 2)
    storage = a_storage()
    beside = open_storage(f"{storage.uri}x")
    beside.put("of another job", b"")
    for name in ("chk-2/a", "chk-2/b/c", "chk-2x/a", "chk-20/a", "top"):
        storage.put(name, b"")
    assert storage.folders() == ["chk-2", "chk-20", "chk-2x"]
    assert storage.folders("chk-2") == ["b"]
    assert storage.folders("none") == []
    assert storage.names("chk-2") == ["chk-2/a", "chk-2/b/c"]
    storage.delete([*storage.names(), "never/was"])
    assert storage.names() == storage.folders() == []
    assert beside.names() == ["of another job"]


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 10_500])
def test_a_download_in_ranges(s3: S3Server, monkeypatch: Patch, tmp_path: Path, size: int) -> None:
    """It has every byte, whatever the last range is."""
    monkeypatch.setattr(object_module, "PART_BYTES", 1000)
    storage = a_storage()
    data = os.urandom(size)
    storage.put("f", data)
    storage.download("f", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_an_object_that_is_replaced_between_two_ranges(
    s3: S3Server, monkeypatch: Patch, tmp_path: Path
) -> None:
    """What arrives is one of the versions."""
    monkeypatch.setattr(object_module, "PART_BYTES", 1000)
    storage = a_storage()
    storage.put("f", b"a" * 5_000)
    get, calls = obstore.get, []

    def replaced(store: Any, path: str, **options: Any) -> Any:
        calls.append(path)
        if len(calls) == 2:
            storage.put("f", b"b" * 5_000)
        return get(store, path, **options)

    monkeypatch.setattr(obstore, "get", replaced)
    storage.download("f", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"b" * 5_000


def test_a_full_local_disk_is_no_fault_of_the_store(s3: S3Server, tmp_path: Path) -> None:
    """The error names the local file."""
    storage = a_storage()
    storage.put("f", b"x")
    with pytest.raises(UnavailableError, match="No such file or directory"):
        storage.download("f", tmp_path / "no folder" / "copy")


# ── errors ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    """A server that answers everything in one way."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            text = f"<Error><Code>{code}</Code><Message>told by the server</Message><StringToSign>{SECRET}</StringToSign></Error>"
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_DELETE = do_POST = do_PUT  # noqa: N815 - names of the standard library

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        (403, "AccessDenied", "permission denied; the credentials need the rights to", True),
        (403, "RequestTimeTooSkewed", "the clock of this machine differs", True),
        (403, "SignatureDoesNotMatch", "the credentials are refused", True),
        (400, "ExpiredToken", "the credentials have expired", True),
        (400, "AuthorizationHeaderMalformed", "the bucket is in another region", True),
        (301, "PermanentRedirect", "the bucket is in another region", True),
        (404, "NoSuchBucket", "the bucket does not exist", True),
        (429, "TooManyRequests", "asks for fewer requests", False),
        (503, "SlowDown", "asks for fewer requests", False),
        (500, "InternalError", "the store answered InternalError: told by the server", False),
    ],
)
def test_every_refusal_is_one_line_with_what_to_do(
    s3: S3Server, monkeypatch: Patch, answer: tuple[int, str, str, bool]
) -> None:
    """It comes before a job starts; nothing of the request is in it, nor in what it is chained to."""
    status, code, says, denied = answer
    monkeypatch.setattr(object_module, "RETRIES", 0)
    monkeypatch.setattr(exclusive_create, "PAUSES_S", (0.01,))
    with answering(status, code) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        storage = a_storage()
        for call in (
            storage.check_writable,
            storage.names,
            lambda: storage.create("a", b"x"),
            lambda: storage.delete(["a"]),
        ):
            with pytest.raises(UnavailableError) as raised:
                call()
            text = f"{raised.value} {raised.value.__cause__}"
            assert says in text
            assert "\n" not in text
            assert len(str(raised.value)) < 420
            assert SECRET not in text
            assert raised.value.facts["denied"] is denied


def test_a_wrong_key_is_refused(s3: S3Server, monkeypatch: Patch) -> None:
    """By a server that looks at keys, which moto does not."""
    if s3.name.startswith("moto"):
        pytest.skip("S3: moto takes every key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UnavailableError, match="the credentials are refused"):
        a_storage().check_writable()


def test_a_bucket_that_is_not_there(s3: S3Server) -> None:
    """It is never taken for an empty one."""
    storage = open_job_storage("s3://no-such-bucket", "views")
    for call in (
        storage.check_writable,
        storage.names,
        lambda: storage.get("a"),
        lambda: storage.delete(["a"]),
    ):
        with pytest.raises(UnavailableError, match="the bucket does not exist"):
            call()


def test_a_server_that_is_not_there(monkeypatch: Patch, s3: S3Server) -> None:
    """The reason is the network's."""
    monkeypatch.setattr(object_module, "RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match=r"it cannot be reached \(Connection refused\)"):
        a_storage().names()


def test_a_server_that_does_not_answer(monkeypatch: Patch, s3: S3Server) -> None:
    """A time-out is called so."""
    monkeypatch.setattr(object_module, "RETRIES", 0)
    monkeypatch.setattr(object_module, "REQUEST_TIMEOUT", timedelta(seconds=0.3))
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.server_address[1]}")
        with pytest.raises(UnavailableError, match="no answer in time"):
            a_storage().names()


def test_no_credentials_at_all() -> None:
    """The client then asks the machine's own metadata service; what it says is no help."""
    error = RuntimeError(
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 5s - HTTP error"
    )
    assert failure_of(error).denied
    assert "no credentials were found" in failure_of(error).text


# ── addresses ──────────────────────────────────────────────────────────────────────────────────


def test_credentials_are_nowhere_but_in_the_environment(s3: S3Server) -> None:
    """Not in the pickle that goes to tasks, not in the address, not in what is printed."""
    storage = a_storage()
    storage.put("f", b"x")
    shown = pickle.dumps(storage) + repr(storage).encode() + storage.uri.encode()
    assert KEY.encode() not in shown
    assert SECRET.encode() not in shown
    assert pickle.loads(pickle.dumps(storage)).get("f") == b"x"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:swordfish@bucket/jobs",
        "s3://swordfish@bucket/jobs",
        "gs://swordfish@bucket",
        "az://account:swordfish@container/x",
        "hdfs://user:swordfish@namenode:8020/x",
        "ftp://user:swordfish@host/x",
    ],
)
def test_an_address_with_a_key_in_it_is_refused_and_not_repeated(uri: str) -> None:
    """Addresses are logged, shown and stored."""
    with pytest.raises(ConfigError, match="leave it out") as raised:
        open_job_storage(uri, "views")
    assert "swordfish" not in f"{raised.value} {raised.value.facts}"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a?region=x",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bu cket/x",
        "s3:///x",
        "hdfs://host:8020",
        "gs://b/#x",
    ],
)
def test_an_address_that_is_none(uri: str) -> None:
    """The form is in the error."""
    with pytest.raises(ConfigError, match=r"write (s3|gs|hdfs)://"):
        open_storage(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket",
        "s3://bucket/a b/ü%41",
        "gs://b/x",
        "az://c/x",
        "hdfs://ns/x",
        "hdfs://h:1/x",
        "hdfs:///x",
    ],
)
def test_an_address_leads_to_the_same_place_again(uri: str) -> None:
    """Written as it was given; a slash at its end means nothing."""
    assert open_storage(uri).uri == open_storage(f"{uri}/").uri == uri
    assert open_job_storage(uri, "views").uri == f"{uri}/views"


@pytest.mark.parametrize(
    ("uri", "package", "extra"), [("s3://b/x", "obstore", "s3"), ("hdfs://h/x", "hdfs_native", "hdfs")]
)
def test_a_missing_package_is_named_with_the_command(
    monkeypatch: Patch, uri: str, package: str, extra: str
) -> None:
    """When the job is made, not in a task."""
    real = lazy_imports.import_module

    def missing(name: str) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(lazy_imports, "import_module", missing)
    with pytest.raises(ConfigError, match=rf"pip install '\.\[{extra}\]'"):
        open_storage(uri)


# ── HDFS ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.full
def test_a_create_on_hdfs_whose_answer_is_lost(hdfs_server: str, monkeypatch: Patch) -> None:
    """Performed or not, the temporary file tells; one of two wins, also with equal bytes, and no temporary file stays."""
    storage = open_job_storage(hdfs_server, SYSTEM_RANDOMNESS.token())
    assert isinstance(storage, HdfsStorage)
    rename = HdfsStorage.rename
    failures = iter(("before", "after", "never", "after"))

    def spoiled(self: HdfsStorage, temporary: str, name: str, *, overwrite: bool) -> None:
        when = next(failures, "never")
        if when == "before":
            raise OSError("the connection broke")
        rename(self, temporary, name, overwrite=overwrite)
        if when == "after":
            raise OSError("the connection broke")

    monkeypatch.setattr(HdfsStorage, "rename", spoiled)
    monkeypatch.setattr(exclusive_create, "PAUSES_S", (0.01, 0.01))
    assert storage.create("runs/1", b"same")
    assert not storage.create("runs/1", b"same")
    assert storage.create("runs/2", b"same")
    assert storage.create("runs/3", b"same")
    names = [
        one.path.rpartition("/")[2]
        for one in storage.client.list_status(f"/{storage.uri.rpartition('/')[2]}/runs")
    ]
    assert sorted(names) == ["1", "2", "3"]


@pytest.mark.full
def test_hdfs_refuses_in_one_line(hdfs_server: str) -> None:
    """Without Java's trace; unknown name nodes say what to set."""
    storage = open_job_storage(hdfs_server, "views")
    with pytest.raises(UnavailableError, match="a colon is not allowed") as raised:
        storage.put("a:b", b"")
    assert "\n" not in str(raised.value)
    with pytest.raises(UnavailableError, match="set HADOOP_CONF_DIR"):
        open_storage("hdfs://nameservice/x").names()
