"""What the author of a sink reads when it breaks a rule of the contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import CommitLostError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.testing.sink_contract import Rule, SinkContract

STAGED: dict[str, list[Any]] = {}
VISIBLE: list[dict[str, Any]] = []
COMMITTED: set[str] = set()
TOKENS = itertools.count()


class Lists(TwoPhaseCommitSink):
    """A sink into lists of this process, right but for one fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        if fault == "holds a connection":
            self.connection = lambda: None

    def validate(self, schema: pa.Schema) -> None:
        pass

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        numbers = [context.run, context.checkpoint, context.subtask, context.attempt]
        name = "/".join(map(str, [context.job, context.sink, *numbers, next(TOKENS)]))
        STAGED[name] = []
        places = dict(zip(("run", "checkpoint", "subtask", "attempt"), numbers, strict=True))
        token: Any = {1} if self.fault == "not JSON" else 1
        return {"name": name, "token": token, **({} if self.fault == "no numbers" else places)}

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        STAGED[transaction["name"]] += rows
        if self.fault == "shows at once":
            VISIBLE.extend(rows)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        return transaction

    def commit(self, transaction: Transaction) -> None:
        name = transaction["name"]
        if name in COMMITTED and self.fault != "forgets":
            return
        if name not in STAGED:
            if self.fault == "says yes":
                return
            raise CommitLostError("gone")
        VISIBLE.extend(STAGED[name] if self.fault != "loses" else STAGED[name][1:])
        COMMITTED.add(name)
        if self.fault != "forgets":
            del STAGED[name]

    def abort(self, transaction: Transaction) -> None:
        if self.fault != "keeps":
            STAGED.pop(transaction["name"], None)

    def find_transactions(self, job: str, sink: str) -> Iterator[Transaction]:
        for name in list(STAGED):
            if name.startswith(f"{job}/{sink}/") and name not in COMMITTED:
                run, checkpoint, subtask, attempt = map(int, name.split("/")[2:6])
                found = {
                    "run": run,
                    "checkpoint": checkpoint,
                    "subtask": subtask,
                    "attempt": attempt,
                    "name": name,
                }
                yield {"name": name} if self.fault == "no numbers" else found


class Contract(SinkContract):
    """The suite over a faulty sink; not collected, each test is called below."""

    __test__ = False

    def __init__(self, fault: str) -> None:
        self.fault = fault
        for kept in (STAGED, VISIBLE, COMMITTED):
            kept.clear()

    def make_sink(self) -> TwoPhaseCommitSink:
        return Lists(self.fault)

    def visible_rows(self) -> Iterable[Mapping[str, Any]]:
        return VISIBLE


@pytest.mark.parametrize(
    ("fault", "test", "rule", "seen"),
    [
        (
            "shows at once",
            "rows_are_invisible_until_commit",
            Rule.HIDDEN_UNTIL_COMMIT,
            "should not.*'name 1'",
        ),
        ("loses", "commit_twice_is_harmless", Rule.COMMIT_MAY_COME_AGAIN, r"misses \[\('id', 1\)"),
        ("loses", "several_batches_and_empty_ones", Rule.COMMIT_SHOWS_EVERYTHING, "a reader misses"),
        ("forgets", "commit_twice_is_harmless", Rule.COMMIT_MAY_COME_AGAIN, "sees too often"),
        (
            "keeps",
            "abort_hides_and_leaves_nothing",
            Rule.ABORT_LEAVES_NOTHING,
            r"lists .* \[\(1, 1, 0, 0\)\]",
        ),
        (
            "says yes",
            "commit_after_abort_is_an_error",
            Rule.GONE_IS_NOT_COMMITTED,
            "aborted transaction returned",
        ),
        ("no numbers", "find_lists_what_is_unfinished", Rule.FIND_LISTS_THE_UNFINISHED, "without 'run'"),
        ("not JSON", "commit_twice_is_harmless", Rule.IS_DATA, "not JSON serializable"),
        ("holds a connection", "commit_twice_is_harmless", Rule.TRAVELS, "pickle"),
    ],
)
def test_a_broken_rule_is_named_with_what_was_seen_and_what_to_do(
    fault: str, test: str, rule: Rule, seen: str
) -> None:
    """Each failure says which rule, what was seen and what to look at, also where nobody rewrites asserts."""
    with pytest.raises(AssertionError, match=rf"(?s)seen: .*{seen}") as raised:
        getattr(Contract(fault), f"test_{test}")()
    assert rule.text in str(raised.value)
    assert f"to do: {rule.advice}" in str(raised.value)


def test_a_sink_without_a_fault_breaks_no_rule() -> None:
    """What is shown above is the doing of the fault; whole jobs, which take seconds, would show nothing more of it."""
    steps = [name for name in dir(SinkContract) if name.startswith("test_") and "_job_" not in name]
    assert len(steps) > 10
    for test in steps:
        getattr(Contract(""), test)()
