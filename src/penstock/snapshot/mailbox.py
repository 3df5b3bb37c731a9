"""A small socket on the driver that executors send messages to. Driver and executors.

One connection per message, served by one thread:

    driver     a nonce
    executor   the length and the hash of the body, and a keyed hash of these and the nonce; then the body: a unique name and JSON
    driver     one byte: accepted

The key is the run's secret, which is never sent. Until the keyed hash is verified, the driver reads only 68 bytes of a connection, waits a
short time, and keeps a limited number of connections: under pressure it closes silent ones. Invalid messages are dropped with a log line;
nothing received is ever executed or unpickled.

A sender whose connection broke tries again with the same name, so that no message is accepted twice. When nothing listens any more, the
run is over.

Acknowledgements that decide about a batch are part of Spark's task results, so they count only for attempts that Spark kept.
The messages here are sent separately: an upload that ended long after its task, or why a task failed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import resource
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.ids import SYSTEM_RANDOMNESS, Randomness, SubtaskId, secret_bytes
from penstock.log_fields import in_context
from penstock.places import Place
from penstock.state.handle import FileRef, StateHandle
from penstock.wording import storable


class UploadDone(msgspec.Struct, frozen=True, tag="upload-done"):
    """Every file of the handle is in storage."""

    run: int
    handle: StateHandle
    async_ms: float


class UploadFailed(msgspec.Struct, frozen=True, tag="upload-failed"):
    """A file of the handle could not be stored; others of `files` may have been. `asked` are the files of the requested handle."""

    run: int
    subtask: SubtaskId
    version: int
    cause: str
    asked: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    tried: int | None = None
    """The version of `files`, if it is newer than the requested one."""


class TaskFailed(msgspec.Struct, frozen=True, tag="task-failed"):
    """A task is about to fail; `error` names the class in `penstock.errors`, or is '' for any other exception.

    For another exception, `place` says where it was raised, and `may_pass` whether it is about the network or the machine.
    """

    run: int
    batch: int
    subtask: SubtaskId
    error: str
    cause: str
    file: str = ""
    place: str = ""
    may_pass: bool = False
    at: Place | None = None
    """The line of the user's code."""
    key: str = ""
    row: str = ""
    names: str = ""
    """The valid names, if the user's code used one that does not exist."""
    is_wrong_name: bool = False
    notes: tuple[str, ...] = ()
    """The notes of the exception."""


@dataclass(frozen=True)
class RepeatedTask:
    """No message, but what the driver makes of `TaskFailed`: an operator or sink whose subtasks needed more than one attempt in a batch."""

    uid: str
    batch: int
    subtasks: tuple[int, ...]
    """The subtasks whose index is known."""
    attempts: int
    """The largest number of attempts of a subtask."""
    why: str
    """The cause that the first failed attempt reported; '' if it reported nothing because its process died."""
    batches_before: int = 0
    """How many batches repeated tasks since the last report."""


class MergeDone(msgspec.Struct, frozen=True, tag="merge-done"):
    """Files were merged in the background and the result is in storage; no result when no row was left."""

    run: int
    subtask: SubtaskId
    replaced: tuple[str, ...]
    merged: FileRef | None
    duration_ms: float


class MergeFailed(msgspec.Struct, frozen=True, tag="merge-failed"):
    """Files could not be merged, or the result could not be stored; the files stay as they are."""

    run: int
    subtask: SubtaskId
    cause: str
    file: str = ""
    """The merged file, which may be in storage."""


Message = UploadDone | UploadFailed | TaskFailed | MergeDone | MergeFailed


def encoded(message: Message) -> bytes:
    """Encode a message. Text that is not UTF-8 is escaped, so that the message still arrives."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(message)))


def _writable(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case list() | tuple():
            return [_writable(each) for each in value]
        case dict():
            return {name: _writable(each) for name, each in value.items()}
    return value


_log = logging.getLogger(__name__)

LONGEST_MESSAGE_BYTES = 64 * 1024 * 1024
_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
MOST_UNPROVEN = 4096 if _FILES == resource.RLIM_INFINITY else min(4096, _FILES // 4)
"""Connections that have not proved that they know the secret. A further one replaces the oldest if that is silent, else it is closed."""
SILENT_S = 2.0
PROOF_TIMEOUT_S = 10.0
TIMEOUT_S = 20.0
CLOSE_S = 1.0
"""How long pending messages may take when the mailbox closes."""
TRIES = 5
TRY_UNTIL_S = 30.0
PAUSE_S = 0.05
MOST_REMEMBERED = 10_000
"""Names of accepted messages."""
LOG_EVERY_S = 60.0
LOOPBACK = "127.0.0.1"

_BACKLOG = 4096
_NONCE_BYTES = 16
_NAME_BYTES = 16
_SECRET_BYTES = 16
_HEADER = struct.Struct(">I32s32s")
_TAKEN = b"+"
_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
"""Made here, not on first use: msgspec (0.22) crashes if two threads use a type for the first time at once."""


class Address(msgspec.Struct, frozen=True):
    """The address and the secret of a mailbox."""

    host: str
    port: int
    secret: str

    def __repr__(self) -> str:
        return f"Address(host={self.host!r}, port={self.port}, secret=...)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("host", self.host), ("port", self.port)]


def places(master: str, driver_host: str | None, bind_address: str | None) -> tuple[str, str]:
    """Return the address to listen on and the host for executors: this machine only, unless Spark has executors elsewhere."""
    if master.startswith("local"):
        return LOOPBACK, LOOPBACK
    host = driver_host or LOOPBACK
    return bind_address or host, host


def send(
    address: Address,
    message: Message,
    *,
    clock: Clock = SYSTEM_CLOCK,
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> None:
    """Deliver one message, with a few retries. Raises OSError if the driver does not accept it, at once if nothing listens."""
    body = secret_bytes(_NAME_BYTES) + encoded(message)
    until = clock.monotonic() + TRY_UNTIL_S
    for left in reversed(range(TRIES)):
        try:
            _send_once(address, body)
            break
        except (ConnectionError, TimeoutError) as error:
            if isinstance(error, ConnectionRefusedError) or not left or clock.monotonic() >= until:
                raise
        clock.sleep(PAUSE_S * 2 ** (TRIES - left) * randomness.between(0.5, 1.5))


def _send_once(address: Address, body: bytes) -> None:
    with socket.create_connection((address.host, address.port), timeout=TIMEOUT_S) as connection:
        nonce = _exactly(connection, _NONCE_BYTES)
        connection.sendall(_header(address.secret, nonce, body) + body)
        if connection.recv(1) != _TAKEN:
            raise ConnectionError("the driver did not accept the message")


def tell(address: Address, message: Message, about: str) -> None:
    """Deliver a message from a background thread; a failure is only logged.

    When nothing listens any more, the run is over and does not need the result of the worker, so that is no warning.
    """
    try:
        send(address, message)
    except ConnectionRefusedError as error:
        _log.debug("the run is over, and the message about %s is dropped: %s", about, error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the background thread must go on
        _log.warning("the driver could not be informed about %s: %s", about, error)


def _header(secret: str, nonce: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(body).digest()
    return _HEADER.pack(len(body), digest, _proof(secret, nonce, len(body), digest))


def _tell_unless_cancelled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A sender that comes while the mailbox closes is cut off, and tries in vain: Python 3.11 and 3.12 take that for a fault of ours."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def _proof(secret: str, nonce: bytes, length: int, digest: bytes) -> bytes:
    return hmac.digest(secret.encode(), nonce + struct.pack(">I", length) + digest, "sha256")


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise ConnectionError("the driver closed the connection")
        received += more
    return received


class Mailbox:
    """Receives messages and hands each to `deliver`, which must not block for long.

    It listens on `bind`; executors reach it as `host`, where that is another name.
    """

    def __init__(self, bind: str, deliver: Callable[[Message], None], *, host: str | None = None) -> None:
        listening = socket.create_server((bind, 0), backlog=_BACKLOG)
        self._deliver = deliver
        self._open: dict[asyncio.StreamWriter, asyncio.Future[None]] = {}
        self._unproven: dict[asyncio.StreamWriter, float] = {}
        self._taken: dict[bytes, None] = {}
        self._dropped = _Dropped()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self.address = Address(host or bind, listening.getsockname()[1], secret_bytes(_SECRET_BYTES).hex())
        self._thread = threading.Thread(
            target=in_context(self._run), args=(listening,), name="penstock-mailbox", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; messages that are on their way are still taken."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self, listening: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen(listening))

    async def _listen(self, listening: socket.socket) -> None:
        self._loop.set_exception_handler(_tell_unless_cancelled)
        server = await asyncio.start_server(self._serve, sock=listening, backlog=_BACKLOG)
        await self._closing.wait()
        server.close()
        if self._open:
            await asyncio.wait(self._open.values(), timeout=CLOSE_S)
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*self._open.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = ended = self._loop.create_future()
        try:
            self._take(await self._received(reader, writer))
            writer.write(_TAKEN)
            await writer.drain()
        except (OSError, EOFError, ValueError, RecursionError) as error:
            if not self._closing.is_set():
                self._dropped.tell(writer.get_extra_info("peername"), error)
        finally:
            self._unproven.pop(writer, None)
            del self._open[writer]
            ended.set_result(None)
            writer.close()

    def _take(self, body: bytes) -> None:
        name, message = body[:_NAME_BYTES], _MESSAGES.decode(body[_NAME_BYTES:])
        if name in self._taken:
            return  # its sender did not hear that it was taken
        self._deliver(message)
        self._taken[name] = None
        if len(self._taken) > MOST_REMEMBERED:
            del self._taken[next(iter(self._taken))]

    async def _received(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        async with asyncio.timeout(PROOF_TIMEOUT_S):
            length, digest = await self._proven(reader, writer)
        async with asyncio.timeout(TIMEOUT_S):
            body = await reader.readexactly(length)
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("it is not the message that was announced")
        return body

    async def _proven(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
        self._make_room()
        self._unproven[writer] = self._loop.time()
        nonce = secret_bytes(_NONCE_BYTES)
        writer.write(nonce)
        length, digest, proof = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if not hmac.compare_digest(proof, _proof(self.address.secret, nonce, length, digest)):
            raise ValueError("the sender does not know the secret of this run")
        self._unproven.pop(writer, None)
        if length > LONGEST_MESSAGE_BYTES:
            raise ValueError(f"it has {length} bytes, the most is {LONGEST_MESSAGE_BYTES}")
        return length, digest

    def _make_room(self) -> None:
        """A sender that is only slow, because many send at once, is not sent away: the next one tries again."""
        if len(self._unproven) < MOST_UNPROVEN:
            return
        oldest, since = next(iter(self._unproven.items()))
        if self._loop.time() - since < SILENT_S:
            raise ConnectionError(
                f"{len(self._unproven)} others are about to prove that they know the secret"
            )
        del self._unproven[oldest]
        oldest.transport.abort()


class _Dropped:
    """One log line at the first dropped message, then at most one a minute."""

    def __init__(self) -> None:
        self._untold = 0
        self._next_at = 0.0

    def tell(self, sender: object, error: Exception) -> None:
        self._untold += 1
        now = SYSTEM_CLOCK.monotonic()
        if now < self._next_at:
            return
        more = f" ({self._untold} since the last line like this)" if self._untold > 1 else ""
        cause = str(error) or type(error).__name__
        _log.warning("a message from %s was dropped%s: %s", sender, more, cause)
        self._untold, self._next_at = 0, now + LOG_EVERY_S
