"""Which commits are due: transactions are known by their names."""

from __future__ import annotations

import msgspec
import pytest

from builders.protocol_story import RUN, completed, transaction
from penstock.checkpoint.events import BatchFinished, Commit, MarkCommitted, SweepTransactions
from penstock.checkpoint.model import Barrier, PreCommitted
from penstock.checkpoint.protocol import DueCommits
from penstock.config import Mode
from penstock.ids import CheckpointId, RunId
from penstock.sinks.two_phase_commit import TransactionName


def finished(batch: int, *transactions: PreCommitted) -> BatchFinished:
    return BatchFinished(CheckpointId(batch), Barrier(), {}, transactions)


def copied(one: PreCommitted) -> PreCommitted:
    """The same transaction as another object, with something that the sink has learned since."""
    return msgspec.structs.replace(one, transaction={**one.transaction, "size": 7})


def test_a_commit_is_matched_by_name() -> None:
    """Whoever says that a transaction is committed may hold a copy of it."""
    commits = DueCommits(Mode.EXACTLY_ONCE, RUN)
    commits.batch_finished(finished(0, transaction(0), transaction(0, subtask=1)))
    commits.completed(CheckpointId(0))
    newest = completed(0, transactions=(copied(transaction(0)), copied(transaction(0, subtask=1))))
    assert commits.committed([copied(transaction(0))], [newest]) == []
    assert (len(commits), commits.committing) == (1, 1)
    assert commits.committed([copied(transaction(0, subtask=1))], [newest]) == [MarkCommitted(newest)]
    assert (len(commits), commits.committing) == (0, 0)


def test_the_name_tells_attempts_apart() -> None:
    """Two attempts of one subtask are two transactions."""
    first, second = transaction(0, attempt=0), transaction(0, attempt=1)
    assert first.name == TransactionName("out", RUN, 0, 0, 0)
    assert first.name != second.name
    assert first.name == copied(first).name


def test_no_transaction_is_in_two_actions() -> None:
    """What is being committed is not ordered again by the next checkpoint, and is still promised by it."""
    commits = DueCommits(Mode.EXACTLY_ONCE, RUN)
    assert commits.batch_finished(finished(0, transaction(0))) == []
    first = transaction(0).name
    assert commits.completed(CheckpointId(0)) == [
        Commit("out", (transaction(0),)),
        SweepTransactions(CheckpointId(0), frozenset({first})),
    ]
    commits.batch_finished(finished(1, transaction(1)))
    assert commits.promised(CheckpointId(1)) == (transaction(0), transaction(1))
    assert commits.completed(CheckpointId(1)) == [
        Commit("out", (transaction(1),)),
        SweepTransactions(CheckpointId(1), frozenset({first, transaction(1).name})),
    ]


@pytest.mark.parametrize(
    ("mode", "promised"), [(Mode.AT_LEAST_ONCE, (transaction(0),)), (Mode.AT_MOST_ONCE, ())]
)
def test_the_other_modes_commit_at_the_end_of_the_batch(mode: Mode, promised: tuple) -> None:
    """At least once a commit in doubt is promised, at most once it is not made again."""
    commits = DueCommits(mode, RUN)
    assert commits.batch_finished(finished(0, transaction(0))) == [Commit("out", (transaction(0),))]
    assert commits.promised(CheckpointId(0)) == promised


def test_a_checkpoint_of_an_earlier_run_is_not_marked() -> None:
    """What it promised was committed, or marked, by whoever restored it."""
    commits = DueCommits(Mode.AT_LEAST_ONCE, RUN)
    commits.batch_finished(finished(5, transaction(5)))
    assert commits.committed([transaction(5)], [completed(4, run=RunId(RUN - 1))]) == []
    assert commits.committed([], []) == []
