"""Clients that do not send, or do not read: each loses its connection at a deadline, and nobody else notices."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.dashboard_site import TOKEN, InThread, StoredJob, connect, get, port_of, rest_of, ui_options
from penstock.dashboard import gate
from services.patience import tries


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    """One with a long history: its JSON is larger than what waits in sockets."""
    made = StoredJob(tmp_path)
    for checkpoint in range(200):
        made.complete(checkpoint)
    return made


@pytest.fixture
def server(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> Iterator[InThread]:
    """One that waits for half a second."""
    monkeypatch.setattr(gate, "REQUEST_S", 0.5)
    monkeypatch.setattr(gate, "READING_S", 0.5)
    made = InThread(job.place, ui_options("127.0.0.1:0"))
    yield made
    made.close()


@pytest.mark.parametrize(
    "begun",
    [
        "",
        "GET / HTT",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        "POST /jobs/views/actions/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\n{",
    ],
)
def test_a_client_that_does_not_send_is_let_go(server: InThread, job: StoredJob, begun: str) -> None:
    """The connection is closed without an answer, whatever it waited for; others are answered meanwhile."""
    with connect(server) as client, job.running():
        client.sendall(begun.encode())
        assert get(server, "/healthz")[0] == 200
        assert rest_of(client) == b""
        assert job.storage.names("requests") == []


def test_a_body_that_nobody_wants_is_not_waited_for(server: InThread) -> None:
    """A client that is answered before its body has come loses its connection, too."""
    with connect(server) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\n{")
        assert rest_of(client).startswith(b"HTTP/1.1 200")


def test_bytes_that_drip_do_not_move_the_deadline(server: InThread) -> None:
    """It is one for the whole request."""
    ended = threading.Event()
    with connect(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(0.05):
                    client.send(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert rest_of(client) == b""
        ended.set()
        dripping.join()
    assert get(server, "/healthz")[0] == 200


def test_a_client_that_does_not_read_is_let_go(server: InThread) -> None:
    """One that asks and asks and never reads: in the end nothing can be sent to the server any more."""
    line = f"GET /jobs/views/checkpoints.json HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n\r\n".encode()

    def ask_for_ever() -> None:
        while True:
            client.sendall(line * 50)

    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", port_of(server)))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            ask_for_ever()
    assert get(server, "/healthz")[0] == 200


def test_a_quick_client_keeps_its_connection(server: InThread) -> None:
    """Several requests one after the other, on one connection."""
    with connect(server) as client:
        for _ in range(3):
            client.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n\r\n".encode())
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")


def test_clients_that_do_not_read_cost_so_much_together(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond that, who has waited longest is cut off, although the deadline is far away; who reads gets all of it."""
    monkeypatch.setattr(gate, "MOST_UNREAD_BYTES", 300_000)
    monkeypatch.setattr(gate, "READING_S", 1e6)
    server = InThread(job.place, ui_options("127.0.0.1:0"))
    path = "/jobs/views/checkpoints.json"
    asked = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n\r\n" * 100
    clients = [connect(server) for _ in range(10)]
    ports = {client.getsockname()[1] for client in clients}
    try:
        for _ in tries(0.02):
            if ports <= {one.client[1] for one in server.connections}:
                break
        for client in clients:
            client.sendall(asked.encode())
        for _ in tries(0.02):
            if len(ports & {one.client[1] for one in server.connections}) < len(clients):
                break
        assert len(get(server, path)[1]["checkpoints"]) == 200
    finally:
        for client in clients:
            client.close()
        server.close()


def test_strangers_lock_nobody_out(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no token may hold so many connections; the oldest of them goes, and never one on which a token was shown."""
    monkeypatch.setattr(gate, "MOST_STRANGERS", 20)
    monkeypatch.setattr("penstock.dashboard.web_server.MOST_CONNECTIONS", 30)
    server = InThread(job.place, ui_options("127.0.0.1:0", TOKEN))
    bearer = f"Authorization: Bearer {TOKEN}"
    strangers: list[socket.socket] = []
    try:
        with connect(server) as friend:
            stream = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n{bearer}\r\n\r\n"
            friend.sendall(stream.encode())
            assert friend.recv(65536).startswith(b"HTTP/1.1 200")
            strangers.extend(connect(server) for _ in range(60))
            assert get(server, "/index.json", bearer)[0] == 200
            assert rest_of(strangers[0]) == b""
            job.complete(999)
            assert friend.recv(65536)
    finally:
        for one in strangers:
            one.close()
        server.close()
