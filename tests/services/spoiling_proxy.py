"""A proxy in front of an S3 server that spoils the first answers to conditional puts: what is stored is denied, or never said."""

from __future__ import annotations

import http.client
import http.server
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HOWS = ("close", "500", "503", "503-not-stored", "409", "late")
"""Stored, and: the connection is closed, 500, 503, answered too late. Not stored: 503, 409 (another writer is at it)."""

IGNORES = "ignores"
"""Answers as a store that knows no conditional puts, which says of every put that it is stored."""

_CODES = {"500": "InternalError", "503": "SlowDown", "409": "ConditionalRequestConflict"}


class SpoilingProxy(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Spoils the first `times` conditional puts of each key. `late_s`: how late a late answer is."""

    daemon_threads = True

    def __init__(self, port: int, how: str, *, times: int, late_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.to = port
        self.how = how
        self.times = times
        self.late_s = late_s
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spoiled(self) -> int:
        """How many answers were spoiled so far."""
        return sum(min(seen, self.times) for seen in self._seen.values())

    def spoils(self, path: str) -> bool:
        """Whether the answer to this conditional put is spoiled."""
        with self._lock:
            self._seen[path] += 1
            return self._seen[path] <= self.times

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that no longer listens is wanted here."""


@contextmanager
def spoiling(port: int, how: str, *, times: int = 1, late_s: float = 2.0) -> Iterator[SpoilingProxy]:
    """Run one before the server at this port."""
    with SpoilingProxy(port, how, times=times, late_s=late_s) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SpoilingProxy

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        conditional = self.command == "PUT" and self.headers.get("if-none-match") == "*"
        how = self.server.how if conditional and self.server.spoils(self.path) else ""
        if how in ("409", "503-not-stored"):
            self._say(int(how[:3]))
            return
        status, headers, data = self._forwarded(body)
        if how == "close":
            self.close_connection = True
            self.connection.close()
        elif how in ("500", "503"):
            self._say(int(how))
        elif self.server.how == IGNORES and status == http.HTTPStatus.PRECONDITION_FAILED:
            self._answer(200, [("etag", '"replaced"')], b"")
        else:
            if how == "late":
                time.sleep(self.server.late_s)
            self._answer(status, headers, data)

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        to = http.client.HTTPConnection("127.0.0.1", self.server.to)
        try:
            to.request(self.command, self.path, body, dict(self.headers))
            answer = to.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            to.close()

    def _say(self, status: int) -> None:
        code = _CODES[str(status)]
        self._answer(status, [], f"<Error><Code>{code}</Code><Message>spoiled</Message></Error>".encode())

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        known = {name.lower(): value for name, value in headers}
        length = known.get("content-length", "0") if self.command == "HEAD" else str(len(data))
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _do  # noqa: N815 - names of the standard library
