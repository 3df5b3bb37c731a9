"""The rules of the sink contract, as an author reads them: what must hold, and what to do where it does not. Runs wherever tests run."""

from __future__ import annotations

import enum


class Rule(enum.Enum):
    """A rule, and what to look at in a sink that breaks it."""

    HIDDEN_UNTIL_COMMIT = (
        "rows become visible with commit(), and not before",
        "let write() and pre_commit() put rows where no reader looks; only commit() may move or publish them",
    )
    COMMIT_SHOWS_EVERYTHING = (
        "commit() makes all rows of its transaction visible, each once, and no others",
        (
            "look at what write() does with several batches and with an empty one, and at how commit() finds what was staged: the "
            "instance that commits is another than the one that wrote, all it knows is the transaction"
        ),
    )
    COMMIT_MAY_COME_AGAIN = (
        "a commit that is repeated changes nothing, however late",
        (
            "commit() is called again after a crash: record in the target, in the same step that shows the rows, that this very "
            "transaction is committed, and return at once where the record is"
        ),
    )
    ABORT_LEAVES_NOTHING = (
        "abort() removes what a transaction has staged, also when it is called twice, or before pre_commit()",
        "delete by the content of the transaction, not by what the instance remembers; data that is already gone is not an error",
    )
    GONE_IS_NOT_COMMITTED = (
        "commit() of a transaction whose rows are gone raises CommitLostError",
        "where commit() finds neither staged rows nor a record that they are committed, raise CommitLostError and not a success",
    )
    FIND_LISTS_THE_UNFINISHED = (
        "find_transactions() lists what was begun or pre-committed and is neither committed nor aborted, of this job and sink alone",
        (
            "return for each what abort() needs, with run, checkpoint, subtask and attempt of the context it was begun with; compare job "
            "and sink as a whole: 'a' is not 'a-b'"
        ),
    )
    NOTHING_IS_SHARED = (
        "no two transactions disturb each other: other jobs, sinks, runs, subtasks and attempts may have the same numbers",
        (
            "name what is staged, and the record of its commit, by job, sink, run, checkpoint, subtask, attempt and a token that is drawn "
            "when the transaction begins: when a job's storage was deleted all numbers come again"
        ),
    )
    IS_DATA = (
        "a transaction is a dictionary of plain values that survives JSON",
        "keep numbers, text, lists and dictionaries in it; connections and open files belong to the instance",
    )
    TRAVELS = (
        "a sink can be pickled after validate(): that is how tasks get it",
        "leave connections, locks and open files out of what is pickled (__getstate__), and make them where they are first used",
    )
    SURVIVES_DEATHS = (
        "wherever a job dies, it comes to its end with every row visible once and nothing left over",
        "find the first of the other rules that fails: they are the same steps one by one",
    )

    def __init__(self, text: str, advice: str) -> None:
        self.text = text
        self.advice = advice


def broken(rule: Rule, seen: str) -> AssertionError:
    """The failure of a test: which rule, what was seen, what to do."""
    return AssertionError(f"the sink breaks a rule: {rule.text}\n  seen: {seen}\n  to do: {rule.advice}")
