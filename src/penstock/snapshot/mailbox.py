"""A small socket on the driver that executors send messages to. Driver and executors.

One connection a message: a line of JSON with the run's secret, answered by one byte. What does not carry the secret or does not
parse is dropped with a log line; nothing received is ever executed or unpickled.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable

import msgspec

from penstock.snapshot.messages import Message

_log = logging.getLogger(__name__)

LONGEST_MESSAGE_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 20.0


class Address(msgspec.Struct, frozen=True):
    """How to reach a mailbox."""

    host: str
    port: int
    secret: str


class _Letter(msgspec.Struct, frozen=True):
    secret: str
    message: Message


_LETTERS = msgspec.json.Decoder(_Letter)
"""Made here, not on first use: two threads that both meet a type for the first time crash msgspec (0.22, SIGSEGV)."""


def send(address: Address, message: Message) -> None:
    """Deliver one message; raises OSError when the driver does not take it."""
    letter = msgspec.json.encode(_Letter(address.secret, message))
    with socket.create_connection((address.host, address.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(letter + b"\n")
        if connection.recv(1) != b"+":
            raise ConnectionError("the driver did not take the message")


def tell(address: Address, message: Message, about: str) -> None:
    """Deliver a message from the background, where nobody waits for it; a failure is only logged.

    When nobody listens any more the run is over, and what a worker still finished is of no use to anybody: that is no warning.
    """
    try:
        send(address, message)
    except ConnectionRefusedError as error:
        _log.debug("the run is over, nobody wants to know about %s: %s", about, error)
    except OSError as error:
        _log.warning("the driver could not be told about %s: %s", about, error)


class Mailbox:
    """Receives messages and hands each to `deliver`, which must not block for long.

    It listens on `bind`; executors reach it as `host`, where that is another name.
    """

    def __init__(self, bind: str, deliver: Callable[[Message], None], *, host: str | None = None) -> None:
        secret = secrets.token_hex(16)

        class Handler(socketserver.StreamRequestHandler):
            timeout = TIMEOUT_S

            def handle(self) -> None:
                try:
                    letter = _LETTERS.decode(self.rfile.readline(LONGEST_MESSAGE_BYTES))
                    if not hmac.compare_digest(letter.secret, secret):
                        raise ValueError("wrong secret")  # noqa: TRY301
                    deliver(letter.message)
                    self.wfile.write(b"+")
                except (OSError, ValueError) as error:
                    _log.warning("a message from %s was dropped: %s", self.client_address, error)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server((bind, 0), Handler)
        self.address = Address(host or bind, self._server.server_address[1], secret)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="penstock-mailbox", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
