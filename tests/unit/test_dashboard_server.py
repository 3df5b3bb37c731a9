"""The server as a process, over sockets: clients that are slow, greedy, many or hostile, and what is left of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from builders.dashboard_site import TOKEN, StoredJob, connect, get, port_of, raw, served
from penstock.dashboard.access import MOST_STREAMS
from penstock.dashboard.web_server import ServerProcess
from services.patience import PATIENCE_S, tries


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredJob]:
    """One that runs."""
    made = StoredJob(tmp_path_factory.mktemp("storage"))
    made.complete(3)
    with made.running():
        yield made


@pytest.fixture(scope="module")
def server(job: StoredJob) -> Iterator[ServerProcess]:
    """Its server."""
    with served(job) as beside:
        yield beside


def healthy(server: ServerProcess) -> None:
    """It is the same process, and answers."""
    status, said = get(server, "/healthz")
    assert (status, said["pid"]) == (200, server.pid)


def post(server: ServerProcess, path: str, length: int, *headers: str) -> str:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port_of(server)}",
        f"Content-Length: {length}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""])


def test_a_job_is_shown(server: ServerProcess) -> None:
    """The child process shows the one job."""
    status, said = get(server, "/index.json")
    assert status == 200
    assert [(one["name"], one["state"], one["checkpoint"]) for one in said["jobs"]] == [
        ("views", "running", 3)
    ]


def test_only_its_own_job_is_shown(server: ServerProcess, job: StoredJob) -> None:
    """Another one in the same storage is not its business."""
    StoredJob(job.place, "other")
    assert get(server, "/jobs/other.json")[0] == 404


def test_ten_megabytes_are_refused_before_they_come(server: ServerProcess) -> None:
    """413 for the header alone: nothing of the body is waited for."""
    status, answer = raw(server, post(server, "/jobs/views/actions/stop", 10_000_000))
    assert status == 413
    assert b"connection: close" in answer.lower()
    healthy(server)


def test_ten_megabytes_without_a_length_are_not_read(server: ServerProcess, job: StoredJob) -> None:
    """The server has let go of the client long before all is sent, and its memory does not grow by that."""
    before = psutil.Process(server.pid).memory_info().rss
    with connect(server) as client:
        head = f"POST /jobs/views/actions/stop HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head.encode())
        sent = 0
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            while sent < 1_000_000_000:
                sent += client.send(chunk)
        except OSError:
            pass
    assert sent < 20_000_000
    assert psutil.Process(server.pid).memory_info().rss - before < 20_000_000
    assert job.storage.names("requests") == []
    healthy(server)


def test_two_hundred_streams(server: ServerProcess) -> None:
    """So many are open as are allowed; further ones are told to come later, and pages are answered all the same."""
    ask = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n\r\n".encode()
    statuses = []
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(connect(server))
            client.sendall(ask)
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1000)
            statuses.append(head.split(b" ", 2)[1])
            if statuses[-1] == b"503":
                assert b"retry-after: " in head.lower()
        assert statuses.count(b"200") == MOST_STREAMS
        assert statuses.count(b"503") == 200 - MOST_STREAMS
        assert get(server, "/index.json")[0] == 200
    for _ in tries(0.1):  # those that are gone make room
        with connect(server) as client:
            client.sendall(ask)
            if client.recv(1000).startswith(b"HTTP/1.1 200"):
                return
    pytest.fail("no stream is free")


def test_the_head_of_a_stream_ends(server: ServerProcess) -> None:
    """Somebody who only looks whether it is there takes no place."""
    status, answer = raw(
        server, f"HEAD /events HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\nConnection: close\r\n\r\n"
    )
    assert status == 200
    assert b"text/event-stream" in answer


def test_a_stream_tells_what_is_new(server: ServerProcess, job: StoredJob) -> None:
    """First how the job is, then each change, with a revision that grows."""
    with connect(server) as client, client.makefile("rb") as lines:
        client.sendall(
            f"GET /jobs/views/events HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n\r\n".encode()
        )
        told = (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))
        first = next(told)
        assert first["jobs"][0]["state"] == "running"
        job.complete(4)
        for change in told:
            if change["jobs"][0]["checkpoint"] == 4:
                assert change["revision"] > first["revision"]
                break


@pytest.mark.parametrize(
    "text",
    [
        "GET / HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        "GET /" + "a" * 100_000 + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + "".join(f"X-{n}: {'y' * 90}\r\n" for n in range(1000))
        + "\r\n",
        "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.com\r\n\r\n",
        "GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        "GET /../../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        "GET /static/../../access.py HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        "GET /static/%2e%2e/access.py HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        "GET /static//etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ],
)
def test_nonsense_is_refused(server: ServerProcess, text: str) -> None:
    """With a status of 400 or above, or no answer at all; the server goes on."""
    status, answer = raw(server, text)
    assert status == 0 or status >= 400
    assert b"root:" not in answer
    healthy(server)


def test_a_foreign_name_is_refused(server: ServerProcess) -> None:
    """421, as somebody would see it whose name was made to lead here."""
    status, answer = raw(server, "GET /index.json HTTP/1.1\r\nHost: evil.com:80\r\nConnection: close\r\n\r\n")
    assert status == 421
    assert b"views" not in answer


def test_with_a_token(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong and right over the wire; it is on no command line, in no environment, and in no answer."""
    monkeypatch.setenv("PENSTOCK_UI_TOKEN", TOKEN)
    with served(job, token=TOKEN) as server:
        assert get(server, "/index.json")[0] == 401
        assert get(server, "/index.json", "Authorization: Bearer no")[0] == 401
        status, said = get(server, "/index.json", f"Authorization: Bearer {TOKEN}")
        assert status == 200
        assert TOKEN not in json.dumps(said)
        process = psutil.Process(server.pid)
        assert TOKEN not in " ".join(process.cmdline())
        assert TOKEN not in str(process.environ())


def test_many_at_once(server: ServerProcess) -> None:
    """A hundred clients that ask at the same time are all answered."""
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(get(server, "/jobs/views.json")[0])

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE_S)
    assert statuses == [200] * 100
