"""The coordinator's threads: what was posted before a drain is part of it, and a failure reaches whoever waits."""

from __future__ import annotations

import pytest

from penstock.checkpoint.completed import Barrier
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import BatchFinished
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.checkpoint.protocol import Identity, Now, Protocol
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Checkpointing
from penstock.errors import FencedError
from penstock.ids import CheckpointId, RunId
from penstock.recovery.fencing import claim
from penstock.storage import LocalStorage


def make_loop(storage, run, failures):
    def make(run_commit):
        identity = Identity("job", run, 1, 128, {})
        protocol = Protocol(Checkpointing(interval="1h"), identity, [], Now(SYSTEM_CLOCK.monotonic(), 0.0))
        return Coordinator(
            protocol, storage=storage, sinks={}, run=run, clock=SYSTEM_CLOCK, run_commit=run_commit
        )

    return CoordinatorLoop(make, storage=storage, run=run, on_failure=failures.append)


def test_drain_completes_every_batch_posted_before_it(tmp_path):
    """A drain right behind a batch waits for that batch's checkpoint, although its event was still in the queue."""
    storage = LocalStorage(tmp_path)
    for number in range(20):
        loop = make_loop(storage, claim(storage, 0.0), [])
        loop.start()
        loop.post(BatchFinished(CheckpointId(number), Barrier(), {}))
        loop.drain()
        assert loop.coordinator.protocol.last_completed == number
        loop.stop()


def test_a_failure_in_the_loop_is_raised_by_drain_and_reported_once(tmp_path):
    """A fenced run learns it when it completes a checkpoint, and whoever waits for the drain gets the error."""
    storage = LocalStorage(tmp_path)
    run = claim(storage, 0.0)
    claim(storage, 0.0)
    failures: list[BaseException] = []
    loop = make_loop(storage, RunId(run), failures)
    loop.start()
    loop.post(BatchFinished(CheckpointId(0), Barrier(), {}))
    with pytest.raises(FencedError):
        loop.drain()
    loop.stop()
    assert len(failures) == 1
    assert not (tmp_path / "chk-0").exists()
