"""The mailbox: nobody without the run's secret gets a message in, or costs the driver more than a little."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from penstock.ids import SubtaskId
from penstock.snapshot import mailbox as module
from penstock.snapshot.mailbox import Address, Mailbox, places, send
from penstock.snapshot.messages import Message, UploadFailed

PATIENCE_S = 60
MESSAGE = UploadFailed(1, SubtaskId("views", 0), 3, "the cause")


@pytest.fixture
def letters() -> queue.Queue[Message]:
    return queue.Queue()


@pytest.fixture
def mailbox(letters: queue.Queue[Message]) -> Iterator[Mailbox]:
    box = Mailbox("127.0.0.1", letters.put)
    yield box
    box.close()


def connect(box: Mailbox) -> socket.socket:
    return socket.create_connection((box.address.host, box.address.port), timeout=PATIENCE_S)


def answer(connection: socket.socket) -> bytes:
    """What the driver says after its number, up to the end of the connection."""
    said = b""
    try:
        while more := connection.recv(100):
            said += more
    except ConnectionError:
        pass
    return said


def send_raw(box: Mailbox, body: bytes) -> bytes:
    """Send what is no message with the right proof."""
    with connect(box) as connection:
        nonce = connection.recv(16)
        connection.sendall(module._header(box.address.secret, nonce, body) + body)
        return answer(connection)


def test_silent_connections_cost_little(mailbox: Mailbox, letters: queue.Queue[Message]) -> None:
    """Hundreds of connections that say nothing make no thread, and hold up no message."""
    threads = threading.active_count()
    silent = [connect(mailbox) for _ in range(400)]
    send(mailbox.address, MESSAGE)
    assert letters.get(timeout=PATIENCE_S) == MESSAGE
    assert threading.active_count() == threads
    assert len(mailbox._unproven) <= module.MOST_UNPROVEN
    for connection in silent:
        connection.close()


def test_nothing_is_read_of_a_message_without_proof(mailbox: Mailbox, letters: queue.Queue[Message]) -> None:
    """A large message is cut off after its first bytes when they do not prove that its sender knows the secret."""
    with connect(mailbox) as connection, pytest.raises(ConnectionError):
        connection.sendall(b"x" * module.LONGEST_MESSAGE_BYTES)
    send(mailbox.address, MESSAGE)
    assert letters.get(timeout=PATIENCE_S) == MESSAGE
    assert letters.empty()


@pytest.mark.parametrize("secret", ["guessed", "geheimnis-ü", ""])
def test_a_wrong_secret(mailbox: Mailbox, letters: queue.Queue[Message], secret: str) -> None:
    """Nobody else can tell the driver that a file is durable, whatever characters their secret has."""
    with pytest.raises(OSError, match=r"did not take the message|reset"):
        send(Address(mailbox.address.host, mailbox.address.port, secret), MESSAGE)
    assert letters.empty()


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", "{ü".encode(), b'{"type":"x"}', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_is_no_message_is_dropped(
    mailbox: Mailbox, letters: queue.Queue[Message], body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that are no message end in one log line without a traceback, and the next message comes in."""
    with caplog.at_level(logging.DEBUG):
        assert send_raw(mailbox, body) == b""
        send(mailbox.address, MESSAGE)
    assert letters.get(timeout=PATIENCE_S) == MESSAGE
    dropped = [record for record in caplog.records if "was dropped" in record.message]
    assert len(dropped) == 1
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


def test_a_message_that_is_too_long(
    mailbox: Mailbox, letters: queue.Queue[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length is checked before anything of that length is read."""
    monkeypatch.setattr(module, "LONGEST_MESSAGE_BYTES", 10)
    with pytest.raises(OSError, match=r"did not take the message|reset|pipe"):
        send(mailbox.address, MESSAGE)
    assert letters.empty()


def test_a_message_heard_on_the_way_is_of_no_use(mailbox: Mailbox, letters: queue.Queue[Message]) -> None:
    """What an executor sends does not hold the secret, and is not taken a second time."""
    nonce, heard = b"0" * 16, []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(nonce)
                heard.append(connection.recv(1 << 16))
                connection.sendall(b"+")

        thread = threading.Thread(target=listen)
        thread.start()
        send(Address("127.0.0.1", listener.getsockname()[1], mailbox.address.secret), MESSAGE)
        thread.join()
    assert msgspec.json.encode(MESSAGE) in heard[0]
    assert mailbox.address.secret.encode() not in heard[0]
    assert bytes.fromhex(mailbox.address.secret) not in heard[0]
    with connect(mailbox) as connection:
        assert connection.recv(16) != nonce
        connection.sendall(heard[0])
        assert answer(connection) == b""
    assert letters.empty()


def test_the_secret_is_not_shown(mailbox: Mailbox) -> None:
    """A log line or a traceback that shows the address does not show the secret."""
    from rich.pretty import pretty_repr

    shown = f"{mailbox.address!r} {mailbox.address} {pretty_repr(mailbox.address)}"
    assert str(mailbox.address.port) in shown
    assert mailbox.address.secret not in shown


@pytest.mark.parametrize(
    ("master", "host", "bind", "expected"),
    [
        ("local[2,4]", "10.1.2.3", None, ("127.0.0.1", "127.0.0.1")),
        ("local-cluster[2,1,512]", "10.1.2.3", "0.0.0.0", ("127.0.0.1", "127.0.0.1")),
        ("spark://master:7077", "10.1.2.3", None, ("10.1.2.3", "10.1.2.3")),
        ("k8s://cluster", "driver-svc", "0.0.0.0", ("0.0.0.0", "driver-svc")),
        ("yarn", None, None, ("127.0.0.1", "127.0.0.1")),
    ],
)
def test_where_it_listens(master: str, host: str | None, bind: str | None, expected: tuple[str, str]) -> None:
    """It is reached from other machines only where Spark has executors on them."""
    assert places(master, host, bind) == expected
