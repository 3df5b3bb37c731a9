"""How a sink is called from the driver: one call after another, transactions in the order of their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from penstock.checkpoint.completed import PreCommitted
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink


@dataclass(frozen=True)
class SinkCall:
    """Work that calls one sink. What calls one sink is done one after another, in the order in which it comes."""

    sink: str
    work: Callable[[], None]

    def __call__(self) -> None:
        """Do it."""
        self.work()


RunCommit = Callable[[SinkCall], None]


def run_now(call: SinkCall) -> None:
    """Perform it in the calling thread."""
    call()


def commit_in_order(sinks: Mapping[str, TwoPhaseCommitSink], transactions: Iterable[PreCommitted]) -> None:
    """Commit per sink, oldest batch first. A sink that the job no longer has cannot commit: the caller has refused that before."""
    ordered = sorted(transactions, key=lambda one: (one.sink, one.checkpoint, one.subtask))
    for uid, group in groupby(ordered, key=lambda one: one.sink):
        sinks[uid].commit_all([one.transaction for one in group])
