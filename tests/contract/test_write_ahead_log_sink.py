"""`sinks.WriteAheadLog`: the contract of all sinks over a target without transactions, and what repeats when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_sink_crashes import CRASHES

from penstock.config import Mode
from penstock.errors import CommitLostError, ConfigError, CorruptStateError, InternalError, UnavailableError
from penstock.guarantee import SinkFacts, derive
from penstock.sinks import Delivery, WriteAheadLog
from penstock.testing.sink_contract import JOB, SINK, SinkContract
from services.patience import PATIENCE_S


class Ahead(SinkContract):
    """The target is a file to which a function appends lines: no transactions, no keys."""

    def use(self, folder: Path) -> Ahead:
        self.path, self.staging = folder / "target.json", folder / "staging"
        return self

    def append(self, table: pa.Table, checkpoint: int, transaction: str) -> None:
        calls = [{"rows": table.to_pylist(), "checkpoint": checkpoint, "transaction": transaction}]
        text = "".join(json.dumps(call) + "\n" for call in calls)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, text.encode())
        os.close(descriptor)

    def make_sink(self) -> WriteAheadLog:
        return WriteAheadLog(self.append, staging=self.staging)

    def sink(self) -> WriteAheadLog:
        """Tasks get no function; a driver makes its own."""
        copy = super().sink()
        assert isinstance(copy, WriteAheadLog)
        assert copy.function is None
        copy.function = self.append
        return copy

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.open()] if self.path.exists() else []

    def visible_rows(self) -> list[dict[str, Any]]:
        return [row for call in self.calls() for row in call["rows"]]


class TestWriteAheadLog(Ahead):
    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.use(tmp_path)


@pytest.fixture
def ahead(tmp_path: Path) -> Ahead:
    return Ahead().use(tmp_path)


def test_the_function_is_told_what_it_gets(ahead: Ahead) -> None:
    """One call a transaction, in order, with the checkpoint and an id that is unique; nothing stays staged."""
    staged = [ahead.staged([10 * c + s], checkpoint=c, subtask=s) for c in (1, 2) for s in (0, 1)]
    ahead.sink().commit_all(staged)
    calls = ahead.calls()
    assert [call["checkpoint"] for call in calls] == [1, 1, 2, 2]
    assert [call["rows"][0]["id"] for call in calls] == [10, 11, 20, 21]
    assert len({call["transaction"] for call in calls}) == 4
    assert calls[0]["transaction"].startswith(f"{JOB}.{SINK}.1.1.0.0.")
    assert list(ahead.staging.rglob("*.arrow")) == []


def test_a_crash_anywhere_repeats_at_most_one_call(tmp_path: Path) -> None:
    """Wherever commit_all stops, the next one hands over the rest in order; only the call under way is repeated, under its own id."""
    repeated = set()
    for changes in range(100):
        ahead = Ahead().use(tmp_path / str(changes))
        ahead.path.parent.mkdir()
        staged = [ahead.staged([c], checkpoint=c) for c in (1, 2, 3)]
        stopped = CRASHES.run(lambda: ahead.sink().commit_all(staged), changes=changes)  # noqa: B023 - called at once
        ahead.sink().commit_all(staged)
        ahead.sink().commit_all(staged)
        order = [call["checkpoint"] for call in ahead.calls()]
        times = Counter(call["transaction"] for call in ahead.calls())
        assert order == sorted(order)
        assert set(order) == {1, 2, 3}
        assert sum(times.values()) <= 4
        assert ahead.unfinished() == []
        assert list(ahead.staging.rglob("*.arrow")) == []
        repeated.add(sum(times.values()) - 3)
        if not stopped:
            break
    assert repeated == {0, 1}


KILLED = """
import json, os, signal, sys
from penstock.sinks import WriteAheadLog

def hand_over(table, checkpoint, transaction):
    if when == "before" and checkpoint == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(path, "a") as file:
        row = {"rows": table.to_pylist(), "checkpoint": checkpoint, "transaction": transaction}
        file.write(json.dumps(row) + "\\n")
    if when == "after" and checkpoint == 2:
        os.kill(os.getpid(), signal.SIGKILL)

staging, path, when, transactions = *sys.argv[1:4], json.loads(sys.argv[4])
WriteAheadLog(hand_over, staging=staging).commit_all(transactions)
"""


@pytest.mark.parametrize(("when", "order"), [("before", [1, 2, 3]), ("after", [1, 2, 2, 3])])
def test_killed_around_a_call(when: str, order: list[int], ahead: Ahead) -> None:
    """Killed before the call nothing repeats; killed between the call and the note of it, that one call does."""
    staged = [ahead.staged([c], checkpoint=c) for c in (1, 2, 3)]
    command = [sys.executable, "-c", KILLED, str(ahead.staging), str(ahead.path), when, json.dumps(staged)]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    ahead.sink().commit_all(staged)
    calls = ahead.calls()
    assert [call["checkpoint"] for call in calls] == order
    assert len({call["transaction"] for call in calls}) == 3


def test_a_function_that_raises_is_asked_again(ahead: Ahead) -> None:
    """An error of the function is the error of the commit, which is retried; calls before it are not repeated."""
    staged = [ahead.staged([c], checkpoint=c) for c in (1, 2, 3)]
    driver, trouble = ahead.sink(), [ConnectionError("no route to host"), ConnectionError("again")]

    def troubled(table: pa.Table, checkpoint: int, transaction: str) -> None:
        if checkpoint == 2 and trouble:
            raise trouble.pop()
        ahead.append(table, checkpoint, transaction)

    driver.function = troubled
    for _ in range(2):
        with pytest.raises(ConnectionError):
            driver.commit_all(staged)
        assert [call["checkpoint"] for call in ahead.calls()] == [1]
    driver.commit_all(staged)
    assert [call["checkpoint"] for call in ahead.calls()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("idempotent", "level", "limited_by"),
    [(False, Mode.AT_LEAST_ONCE, "log"), (True, Mode.EXACTLY_ONCE, None)],
)
def test_the_guarantee_says_what_may_repeat(
    idempotent: bool, level: Mode, limited_by: str | None, tmp_path: Path
) -> None:
    """The reason names the two cases in which a call is repeated; an idempotent function is the user's word."""
    sink = WriteAheadLog(lambda table, checkpoint, transaction: None, staging=tmp_path, idempotent=idempotent)
    guarantee = derive(
        Mode.EXACTLY_ONCE, [], [SinkFacts("log", "WriteAheadLog", sink.delivery, sink.explanation)]
    )
    assert (guarantee.level, guarantee.limited_by) == (level, limited_by)
    assert "died between the call and its entry in the commit log" in guarantee.reason
    assert "the function raised" in guarantee.reason
    assert ("idempotent=True" in guarantee.reason) == idempotent
    assert sink.delivery is (Delivery.IDEMPOTENT if idempotent else Delivery.AT_LEAST_ONCE)


def test_the_function_is_not_sent_to_tasks(tmp_path: Path) -> None:
    """A function that holds what no pickle can carry is fine, and a copy in a task cannot commit."""
    import pickle
    import threading

    lock = threading.Lock()
    sink = WriteAheadLog(lambda table, checkpoint, transaction: lock.locked(), staging=tmp_path / "staging")
    copy = pickle.loads(pickle.dumps(sink))
    staged = Ahead().use(tmp_path).staged([1])
    with pytest.raises(InternalError, match="in a task"):
        copy.commit(staged)


def test_staged_rows_that_are_gone_or_damaged(tmp_path: Path) -> None:
    """Rows that cannot be read whole are never handed over as if they were all."""
    for number, damage in enumerate((Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-100]))):
        ahead = Ahead().use(tmp_path / str(number))
        ahead.path.parent.mkdir()
        prepared = ahead.staged(range(1000))
        for path in ahead.staging.rglob("*.arrow"):
            damage(path)
        with pytest.raises(CommitLostError, match="1,000 rows"):
            ahead.sink().commit(prepared)
        ahead.assert_visible()


@pytest.mark.parametrize("change", [{"token": "../../../x"}, {"job": "../other"}, {"run": "one"}])
def test_nonsense_from_a_checkpoint(change: dict[str, Any], ahead: Ahead) -> None:
    """A transaction that was changed in storage becomes no path."""
    nonsense = {**ahead.staged([1]), **change}
    for call in (ahead.sink().commit, ahead.sink().abort):
        with pytest.raises(CorruptStateError):
            call(nonsense)


def test_a_zombie_cannot_pre_commit_what_was_aborted(ahead: Ahead) -> None:
    """An attempt that goes on after the driver has aborted it fails at pre_commit and leaves nothing."""
    zombie = ahead.sink()
    transaction = zombie.begin_transaction(ahead.context())
    zombie.write(transaction, ahead.batch([1]))
    ahead.sink().abort(transaction)
    with pytest.raises(UnavailableError):
        zombie.pre_commit(transaction)
    assert ahead.unfinished() == []


@pytest.mark.parametrize("staging", ["s3://bucket/x", "", "a\0b"])
def test_staging_must_be_a_path(staging: str) -> None:
    """A staging folder elsewhere is refused when the sink is made."""
    with pytest.raises(ConfigError):
        WriteAheadLog(lambda table, checkpoint, transaction: None, staging=staging)


def test_staging_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the way is found before the query starts."""
    (tmp_path / "file").write_text("")
    sink = WriteAheadLog(lambda table, checkpoint, transaction: None, staging=tmp_path / "file" / "staging")
    with pytest.raises(ConfigError, match="cannot be written"):
        sink.validate(pa.schema([]))


@pytest.mark.parametrize("function", [None, len, lambda table: None])
def test_what_is_no_function_of_a_table(function: Any, tmp_path: Path) -> None:
    """What cannot be called with table, checkpoint and transaction is refused when the sink is made."""
    with pytest.raises(ConfigError, match=r"\(table, checkpoint, transaction\)"):
        WriteAheadLog(function, staging=tmp_path)
