"""A write-ahead function that raises is called again by the coordinator, with a growing pause."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from builders.protocol_story import JOB
from penstock.checkpoint.commits import Committer
from penstock.checkpoint.completed import PreCommitted
from penstock.checkpoint.events import Commit
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


def staged(sink: WriteAheadLog, run: int, checkpoint: int) -> PreCommitted:
    context = TransactionContext(job=JOB, sink="out", run=run, checkpoint=checkpoint, subtask=0, attempt=0)
    transaction = sink.begin_transaction(context)
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": [checkpoint]}))
    return PreCommitted("out", checkpoint, 0, dict(sink.pre_commit(transaction)), 1)
