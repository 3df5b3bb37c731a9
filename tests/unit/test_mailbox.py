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
from penstock.snapshot.mailbox import Address, Mailbox, Message, UploadFailed, places, send, tell
from services.patience import PATIENCE_S

MESSAGE = UploadFailed(1, SubtaskId("views", 0), 3, "the cause")


@pytest.fixture
def letters() -> queue.Queue[Message]:
    return queue.Queue()


@pytest.fixture
def mailbox(letters: queue.Queue[Message]) -> Iterator[Mailbox]:
    box = Mailbox("127.0.0.1", letters.put)
    yield box
    if box._thread.is_alive():
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


def send_raw(box: Mailbox, message: bytes, name: bytes = b"n" * 16) -> bytes:
    """Send any bytes with the right proof."""
    body = name + message
    with connect(box) as connection:
        nonce = connection.recv(16)
        connection.sendall(module._header(box.address.secret, nonce, body) + body)
        return answer(connection)


def test_silent_connections_cost_little(
    mailbox: Mailbox, letters: queue.Queue[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of connections that say nothing make no thread, and hold up no message: silent ones have to go."""
    monkeypatch.setattr(module, "MOST_UNPROVEN", 64)
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    threads = threading.active_count()
    silent = [connect(mailbox) for _ in range(400)]
    send(mailbox.address, MESSAGE)
    assert letters.get(timeout=PATIENCE_S) == MESSAGE
    assert threading.active_count() == threads
    assert len(mailbox._unproven) <= 64
    for connection in silent:
        connection.close()


def test_many_senders_at_once(
    mailbox: Mailbox, letters: queue.Queue[Message], caplog: pytest.LogCaptureFixture
) -> None:
    """Three hundred executors that report at the same moment are all heard, each once."""
    together = threading.Barrier(300)

    def report(index: int) -> None:
        together.wait()
        tell(mailbox.address, UploadFailed(1, SubtaskId("views", index), 3, "the cause"), "it")

    threads = [threading.Thread(target=report, args=(index,)) for index in range(300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heard = [letters.get_nowait() for _ in range(letters.qsize())]
    assert sorted(one.subtask.index for one in heard if isinstance(one, UploadFailed)) == list(range(300))
    assert caplog.messages == []


def test_a_sender_that_is_only_slow_is_not_sent_away(
    mailbox: Mailbox, letters: queue.Queue[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When there are as many connections as may be, a new one has to try again, and those that have just come are heard."""
    monkeypatch.setattr(module, "MOST_UNPROVEN", 2)
    monkeypatch.setattr(module, "SILENT_S", float(PATIENCE_S))
    body = b"n" * 16 + msgspec.json.encode(MESSAGE)
    with connect(mailbox) as slow, connect(mailbox) as slower:
        nonce = slow.recv(16)
        assert len(slower.recv(16)) == 16
        sender = threading.Thread(target=send, args=(mailbox.address, MESSAGE))
        sender.start()
        slow.sendall(module._header(mailbox.address.secret, nonce, body) + body)
        assert answer(slow) == b"+"
        sender.join()
    assert [letters.get(timeout=PATIENCE_S) for _ in range(2)] == [MESSAGE, MESSAGE]


def test_a_message_whose_answer_was_lost_is_taken_once(
    mailbox: Mailbox, letters: queue.Queue[Message]
) -> None:
    """A sender that did not hear that its message was taken sends it again under its name: it is taken, but not handed on twice."""
    message = msgspec.json.encode(MESSAGE)
    assert [send_raw(mailbox, message) for _ in range(2)] == [b"+", b"+"]
    assert send_raw(mailbox, message, b"m" * 16) == b"+"
    assert letters.qsize() == 2


def test_a_broken_connection_is_tried_again() -> None:
    """A connection that ends without an answer costs no message, and every try has the same name."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            for answered in (b"", b"", b"+"):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"0" * 16)
                    heard.append(connection.recv(1 << 16))
                    connection.sendall(answered)

        thread = threading.Thread(target=listen)
        thread.start()
        send(Address("127.0.0.1", listener.getsockname()[1], "secret"), MESSAGE)
        thread.join()
    assert len(heard) == 3
    assert len(set(heard)) == 1


def test_what_is_on_its_way_when_it_closes_is_taken(mailbox: Mailbox, letters: queue.Queue[Message]) -> None:
    """The driver closes while an executor is about to send: the message is taken, and the driver waits for it."""
    body = b"n" * 16 + msgspec.json.encode(MESSAGE)
    with connect(mailbox) as connection:
        nonce = connection.recv(16)
        closing = threading.Thread(target=mailbox.close)
        closing.start()
        while not mailbox._closing.is_set():
            pass
        connection.sendall(module._header(mailbox.address.secret, nonce, body) + body)
        assert answer(connection) == b"+"
        closing.join()
    assert letters.get_nowait() == MESSAGE


def test_what_comes_when_the_run_is_over_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A connection that is broken because the driver closes, and then refused, belongs to the debug log."""
    listener = socket.create_server(("127.0.0.1", 0))

    def end() -> None:
        connection, _ = listener.accept()
        listener.close()
        connection.close()

    thread = threading.Thread(target=end)
    thread.start()
    with caplog.at_level(logging.DEBUG):
        tell(Address("127.0.0.1", listener.getsockname()[1], "secret"), MESSAGE, "an upload")
    thread.join()
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


def test_nothing_is_read_of_a_message_without_proof(mailbox: Mailbox, letters: queue.Queue[Message]) -> None:
    """A large message is cut off after its first bytes when they do not prove that its sender knows the secret."""
    with connect(mailbox) as connection, pytest.raises(ConnectionError):
        connection.sendall(b"x" * module.LONGEST_MESSAGE_BYTES)
    send(mailbox.address, MESSAGE)
    assert letters.get(timeout=PATIENCE_S) == MESSAGE
    assert letters.empty()


@pytest.mark.parametrize("secret", ["guessed", "geheimnis-ü", ""])
def test_a_wrong_secret(
    mailbox: Mailbox, letters: queue.Queue[Message], secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can tell the driver that a file is durable, whatever characters their secret has."""
    monkeypatch.setattr(module, "TRIES", 1)
    with pytest.raises(OSError, match=r"did not accept the message|reset"):
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
    dropped = [record for record in caplog.records if "was dropped" in record.getMessage()]
    assert len(dropped) == 1
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


def test_a_message_that_is_too_long(
    mailbox: Mailbox, letters: queue.Queue[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length is checked before anything of that length is read."""
    monkeypatch.setattr(module, "LONGEST_MESSAGE_BYTES", 10)
    monkeypatch.setattr(module, "TRIES", 1)
    with pytest.raises(OSError, match=r"did not accept the message|reset|pipe"):
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
