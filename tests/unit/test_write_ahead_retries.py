"""A write-ahead function that raises is called again by the coordinator, with a growing pause."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from builders.protocol_story import JOB
from penstock.checkpoint.commits import Committer
from penstock.checkpoint.events import CheckpointListener, Commit, SweepTransactions
from penstock.checkpoint.model import PreCommitted
from penstock.checkpoint.sink_lanes import RecoveryCalls
from penstock.errors import (
    BadRecordError,
    CommitLostError,
    ConfigError,
    PenstockError,
    UnavailableError,
    refuses_login,
)
from penstock.ids import CheckpointId
from penstock.ownership.claim import claim
from penstock.sinks import TransactionContext, WriteAheadLog
from penstock.storage import LocalStorage
from penstock.testing.virtual import VirtualClock


def test_a_function_that_raises_is_retried_with_a_growing_pause(tmp_path: Path) -> None:
    """Three failures of the second call: it is repeated after 0.1, 0.2 and 0.4 s, and the first call is not."""
    trouble, calls = [OSError("down")] * 3, []

    def hand_over(table: pa.Table, checkpoint: int, transaction: str) -> None:
        calls.append(checkpoint)
        if checkpoint == 2 and trouble:
            raise trouble.pop()

    sink = WriteAheadLog(hand_over, staging=tmp_path / "staging")
    storage, clock = LocalStorage(tmp_path / "storage"), VirtualClock()
    mine = claim(storage, 0.0)
    committer = Committer({"out": sink}, claim=mine, owner=JOB, clock=clock, post=lambda event: None)
    committer.commit(Commit("out", tuple(staged(sink, mine.run, checkpoint) for checkpoint in (1, 2, 3))))
    assert calls == [1, 2, 2, 2, 2, 3]
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4])


@pytest.mark.parametrize("shows_rows", [True, False])
def test_errors_of_a_sink_show_no_rows_where_none_may_be_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, shows_rows: bool
) -> None:
    """With `show_rows=False` the log and the journal have the class of a sink's error, and not its text, while commits are retried."""
    trouble, heard = [ValueError("duplicate key: (email)=(ann@example.org)")], []

    class Listener(CheckpointListener):
        def sink_down(self, sink: str, cause: str, waiting: int) -> None:
            heard.append(cause)

    def hand_over(table: pa.Table, checkpoint: int, transaction: str) -> None:
        if trouble:
            raise trouble.pop()

    sink = WriteAheadLog(hand_over, staging=tmp_path / "staging")
    mine = claim(LocalStorage(tmp_path / "storage"), 0.0)
    committer = Committer(
        {"out": sink},
        claim=mine,
        owner=JOB,
        clock=VirtualClock(),
        post=lambda event: None,
        listener=Listener(),
        shows_rows=shows_rows,
    )
    committer.commit(Commit("out", (staged(sink, mine.run, 1),)))
    assert "ValueError" in heard[0]
    assert ("ann@example.org" in heard[0]) is shows_rows
    assert ("ann@example.org" in caplog.text) is shows_rows


def test_a_sweep_shows_no_rows_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a sink says about transactions that nobody commits is told by its class alone."""

    class Away(WriteAheadLog):
        def find_transactions(self, job: str, sink: str) -> list[Any]:
            raise UnavailableError("cannot list /out/email=ann@example.org")

    sink = Away(lambda *_: None, staging=tmp_path / "staging")
    mine = claim(LocalStorage(tmp_path / "storage"), 0.0)
    committer = Committer(
        {"out": sink}, claim=mine, owner=JOB, clock=VirtualClock(), post=lambda event: None, shows_rows=False
    )
    committer.sweep(SweepTransactions(CheckpointId(1), frozenset()))
    assert "UnavailableError" in caplog.text
    assert "ann@example.org" not in caplog.text


class OwnError(BadRecordError):
    """One that cannot be made of a text alone."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(f"{row}: {text}", denied=True)


def test_what_is_hidden_keeps_what_decides() -> None:
    """An error that ends the job ends it also without its text, and a refused login stays one."""
    with RecoveryCalls(shows_rows=False) as calls, pytest.raises(BadRecordError) as raised:
        calls("out", lambda: (_ for _ in ()).throw(OwnError(7, "ann@example.org")))
    assert "ann@example.org" not in str(raised.value)
    assert refuses_login(raised.value)


@pytest.mark.parametrize("kind", [BadRecordError, CommitLostError, ConfigError, UnavailableError, ValueError])
def test_a_restore_shows_no_rows_either(kind: type[Exception]) -> None:
    """What a sink raises while a run is restored is told by its class alone; what ends the job keeps its class."""

    def call() -> None:
        raise kind("row (7, 'ann@example.org')")

    with RecoveryCalls(shows_rows=False) as calls, pytest.raises(PenstockError) as raised:
        calls("out", call)
    assert "ann@example.org" not in str(raised.value)
    assert raised.value.__context__ is None
    assert kind.__name__ in str(raised.value)
    assert type(raised.value) is (UnavailableError if kind is ValueError else kind)


@pytest.mark.parametrize("kind", [CommitLostError, UnavailableError, ConnectionError])
def test_passwords_in_an_error_of_a_sink_are_masked(kind: type[Exception]) -> None:
    """An address with a password, and a password by name, are masked; the rest of the text and the class remain."""

    def call() -> None:
        raise kind("connect to postgresql://app:hunter2@db/shop failed, password=s3cret")

    with RecoveryCalls() as calls, pytest.raises(PenstockError) as raised:
        calls("out", call)
    assert "hunter2" not in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert "connect to postgresql://app:...@db/shop failed" in str(raised.value)
    assert raised.value.__context__ is None
    assert type(raised.value) is (UnavailableError if kind is ConnectionError else kind)


def noted(error: Exception) -> Exception:
    error.add_note("tried postgresql://app:hunter2@db/shop")
    return error


def caused(error: Exception) -> Exception:
    error.__cause__ = noted(ValueError("password=hunter2"))
    return error


def met_before(error: Exception) -> Exception:
    error.__context__ = ValueError("postgresql://app:hunter2@db/shop")
    return error


@pytest.mark.parametrize("made", [noted, caused, met_before])
def test_passwords_in_notes_and_causes_of_an_error_of_a_sink_are_masked(
    made: Callable[[Exception], Exception],
) -> None:
    """A trace shows them too, so the error is replaced by one without them; its text, class and notes remain."""

    def call() -> None:
        raise made(CommitLostError("the broker is gone"))

    with RecoveryCalls() as calls, pytest.raises(CommitLostError, match="the broker is gone") as raised:
        calls("out", call)
    shown = "".join(traceback.format_exception(raised.value))
    assert "hunter2" not in shown
    assert made is not noted or "tried postgresql://app:...@db/shop" in shown


def staged(sink: WriteAheadLog, run: int, checkpoint: int) -> PreCommitted:
    context = TransactionContext(job=JOB, sink="out", run=run, checkpoint=checkpoint, subtask=0, attempt=0)
    transaction = sink.begin_transaction(context)
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": [checkpoint]}))
    return PreCommitted("out", checkpoint, 0, dict(sink.pre_commit(transaction)), 1)
