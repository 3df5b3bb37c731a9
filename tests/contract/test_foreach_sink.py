"""`sinks.Foreach`: what a plain function is called with, when, and what repeats."""

from __future__ import annotations

import functools
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.config import Mode
from penstock.errors import ConfigError, InternalError
from penstock.guarantee import SinkFacts, derive
from penstock.sinks import Foreach, TransactionContext

CONTEXT = TransactionContext(job="contract", sink="hook", run=1, checkpoint=4, subtask=2, attempt=9)


def insert(path: Path, batch: pa.RecordBatch, context: TransactionContext) -> None:
    """What a user writes without a second thought: it commits on its own clock."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE IF NOT EXISTS results (id, checkpoint, subtask)")
        rows = [(number, context.checkpoint, context.subtask) for number in batch["id"].to_pylist()]
        database.executemany("INSERT INTO results VALUES (?, ?, ?)", rows)
    database.close()


def rows_of(path: Path) -> list[tuple[int, int, int]]:
    database = sqlite3.connect(path)
    try:
        return database.execute("SELECT * FROM results ORDER BY rowid").fetchall()
    finally:
        database.close()


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64())})


def task(sink: Foreach, *batches: pa.RecordBatch, context: TransactionContext = CONTEXT) -> Any:
    """One task, on an instance as a task gets it."""
    copy = pickle.loads(pickle.dumps(sink))
    transaction = copy.begin_transaction(context)
    for one in batches:
        copy.write(transaction, one)
    return copy.pre_commit(transaction)


def test_the_function_sees_each_batch_in_the_task(tmp_path: Path) -> None:
    """Every batch with rows is handed over with its context as it comes; the commit adds nothing."""
    path = tmp_path / "out.db"
    sink = Foreach(functools.partial(insert, path))
    sink.validate(batch().schema)
    prepared = task(sink, batch(1, 2), batch(), batch(3))
    assert rows_of(path) == [(1, 4, 2), (2, 4, 2), (3, 4, 2)]
    sink.commit(prepared)
    sink.commit(prepared)
    assert len(rows_of(path)) == 3
    assert list(sink.find_transactions("contract", "hook")) == []


def test_what_was_written_stays_and_is_written_again(tmp_path: Path) -> None:
    """A sink that commits on its own clock cannot take back an aborted batch: its rows are doubled by the next attempt."""
    path = tmp_path / "out.db"
    sink = Foreach(functools.partial(insert, path))
    sink.abort(task(sink, batch(1, 2)))
    sink.commit(task(sink, batch(1, 2)))
    assert [row[0] for row in rows_of(path)] == [1, 2, 1, 2]


def test_the_guarantee_names_it() -> None:
    """A job with a Foreach is at least once, limited by that sink, and the reason says when rows repeat."""
    sink = Foreach(print)
    facts = SinkFacts("hook", type(sink).__name__, sink.delivery, sink.explanation)
    guarantee = derive(Mode.EXACTLY_ONCE, [], [facts])
    assert (guarantee.level, guarantee.limited_by) == (Mode.AT_LEAST_ONCE, "hook")
    assert "the sink 'hook' (Foreach) writes on its own" in guarantee.reason
    assert "rows since the last checkpoint are written again after a failure" in guarantee.reason
    most = derive(Mode.AT_MOST_ONCE, [], [facts])
    assert most.level is None
    assert "but what goes to 'hook'" in most.reason


def refuse(batch: pa.RecordBatch, context: TransactionContext) -> None:
    raise ConnectionError("no route to host")


def test_an_error_of_the_function_stays_what_it_is() -> None:
    """The task fails with the function's own error, with a note that says whose it is; nothing is swallowed."""
    with pytest.raises(ConnectionError, match="no route to host") as failed:
        task(Foreach(refuse), batch(1))
    assert "refuse, the function of the sink 'hook', in checkpoint 4, subtask 2" in failed.value.__notes__[0]


async def later(batch: pa.RecordBatch, context: TransactionContext) -> None: ...


@pytest.mark.parametrize("function", [None, "print", len, lambda: None, lambda a, b, c: None, later])
def test_what_is_no_function_of_a_batch(function: Any) -> None:
    """What cannot be called with a batch and a context is refused when the sink is made."""
    with pytest.raises(ConfigError, match=r"Foreach takes a function of \(batch, context\)"):
        Foreach(function)


def test_an_object_with_a_secret_is_shown_by_its_type() -> None:
    """What a partial or an object holds is not printed."""
    sink = Foreach(functools.partial(insert, "password=swordfish"))
    assert repr(sink) == "Foreach(partial)"


def test_an_instance_writes_only_to_what_it_has_begun() -> None:
    """A transaction of another attempt is refused."""
    sink = Foreach(print)
    with pytest.raises(InternalError, match="did not begin"):
        sink.write({"run": 1}, batch(1))
