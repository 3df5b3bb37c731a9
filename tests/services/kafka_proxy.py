"""A proxy in front of a broker that can hold a request back until long after its client has given up on it.

It knows only the frames of Kafka's protocol: four bytes of length, then the api key in two.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from services.patience import PATIENCE_S

PRODUCE, END_TXN = 0, 26
_HEAD = 4


class KafkaProxy:
    """Listens on one port of 127.0.0.1 and passes everything on to another; use it as a context."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", port))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._wanted: int | None = None
        self._held: bytes | None = None
        self.holds = threading.Event()
        """A request is held back."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            for one in self._open:
                _cut(one)

    def hold(self, api_key: int) -> None:
        """Keep the next request of this kind, and cut the connection that it came over: its client sends it again over another."""
        self._wanted = api_key

    def release(self) -> None:
        """Let the broker have the request now; returns when it has answered."""
        assert self._held is not None
        with socket.create_connection(("127.0.0.1", self._target), timeout=PATIENCE_S) as late:
            late.sendall(self._held)
            assert _frame(late)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                broker = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with self._lock:
                self._open += [client, broker]
            for work in (self._requests, self._answers):
                threading.Thread(target=work, args=(client, broker), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        while frame := _frame(client):
            if self._is_wanted(frame):
                break
            broker.sendall(frame)
        _cut(client)
        _cut(broker)

    def _is_wanted(self, frame: bytes) -> bool:
        with self._lock:
            if self._wanted != int.from_bytes(frame[_HEAD : _HEAD + 2]):
                return False
            self._wanted, self._held = None, frame
        self.holds.set()
        return True

    def _answers(self, client: socket.socket, broker: socket.socket) -> None:
        while frame := _frame(broker):
            try:
                client.sendall(frame)
            except OSError:
                return


def _frame(connection: socket.socket) -> bytes:
    """One frame with its length; nothing at the end."""
    head = _exactly(connection, _HEAD)
    return head + _exactly(connection, int.from_bytes(head)) if head else b""


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        try:
            part = connection.recv(length - len(found))
        except OSError:
            return b""
        if not part:
            return b""
        found += part
    return found


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
