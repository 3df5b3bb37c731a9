"""The contract of `TwoPhaseCommitSink` as a suite that runs against anybody's sink. Runs wherever tests run.

Subclass it, say how to make the sink and how a reader sees the target; every test gets a target of its own::

    class TestMySink(SinkContract):
        @pytest.fixture(autouse=True)
        def target(self, tmp_path):
            self.path = tmp_path / "out"

        def make_sink(self):
            return MySink(self.path)

        def visible_rows(self):
            return read_everything(self.path)

Every `self.sink()` stands for another process: a task and the driver never share an instance, and what passes
between them goes through JSON, as it does through a checkpoint. The tests are plain methods with asserts:
pytest runs them, any other runner can.
"""

from __future__ import annotations

import contextlib
import enum
import json
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import CommitLostError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.testing.simulation.sink_job import SinkJob, Step, sink_job
from penstock.wording import counted


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


JOB = "contract"
SINK = "out"
_MOST_SHOWN = 10


class SinkContract(ABC):
    """The tests that every transactional sink must pass; `schema` and `row` may be overridden."""

    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])

    @abstractmethod
    def make_sink(self) -> TwoPhaseCommitSink:
        """Make a fresh instance on the target of the running test; called several times in a test."""

    @abstractmethod
    def visible_rows(self) -> Iterable[Mapping[str, Any]]:
        """Return what an ordinary reader sees in the target now; nothing if there is no target yet."""

    def row(self, number: int) -> dict[str, Any]:
        """Return row `number`, as `visible_rows` gives it back."""
        return {"id": number, "name": f"name {number}"}

    # The parts that the processes of a job play.

    def sink(self) -> TwoPhaseCommitSink:
        """Return an instance as another process gets it: pickled and unpickled, after `validate`."""
        sink = self.make_sink()
        sink.validate(self.schema)
        try:
            copy: TwoPhaseCommitSink = pickle.loads(pickle.dumps(sink))  # noqa: S301 - our own bytes, a line old
        except Exception as error:
            raise broken(Rule.TRAVELS, f"{type(error).__name__}: {error}") from error
        return copy

    def batch(self, numbers: Iterable[int]) -> pa.RecordBatch:
        """Return rows as a task hands them to the sink."""
        return pa.RecordBatch.from_pylist([self.row(number) for number in numbers], schema=self.schema)

    def context(self, **changes: Any) -> TransactionContext:
        """Return who begins a transaction."""
        usual = {"job": JOB, "sink": SINK, "run": 1, "checkpoint": 1, "subtask": 0, "attempt": 0}
        return TransactionContext(**{**usual, **changes})

    def begun(self, numbers: Iterable[int], **context: Any) -> Transaction:
        """Begin and write in a task that dies before `pre_commit`."""
        sink = self.sink()
        transaction = sink.begin_transaction(self.context(**context))
        sink.write(transaction, self.batch(numbers))
        return through_json(transaction)

    def staged(self, numbers: Iterable[int], **context: Any) -> Transaction:
        """Begin, write and pre-commit in a task; returns what the checkpoint gets."""
        sink = self.sink()
        transaction = sink.begin_transaction(self.context(**context))
        sink.write(transaction, self.batch(numbers))
        return through_json(sink.pre_commit(transaction))

    def unfinished(self, job: str = JOB, sink: str = SINK) -> list[tuple[int, int, int, int]]:
        """Return what a driver that has just started finds, as (run, checkpoint, subtask, attempt)."""
        return sorted(_place(found) for found in self.sink().find_transactions(job, sink))

    def assert_visible(self, *numbers: int, rule: Rule = Rule.COMMIT_SHOWS_EVERYTHING) -> None:
        """Compare what a reader sees with these rows, each once, in any order."""
        seen, expected = self._seen(), self._as_read(numbers)
        differences = {
            "a reader misses": expected - seen,
            "a reader sees, and should not, or sees too often": seen - expected,
        }
        if seen != expected:
            raise broken(
                rule, "; ".join(f"{what} {_shown(rows)}" for what, rows in differences.items() if rows)
            )

    def assert_unfinished(self, *places: tuple[int, int, int, int], rule: Rule) -> None:
        """Compare what a driver that has just started finds with these."""
        _compare(self.unfinished(), places, rule)

    def _seen(self) -> Counter[str]:
        return Counter(repr(sorted(dict(row).items())) for row in self.visible_rows())

    def _as_read(self, numbers: Iterable[int]) -> Counter[str]:
        return Counter(repr(sorted(self.row(number).items())) for number in numbers)

    # The contract.

    def test_rows_are_invisible_until_commit(self) -> None:
        """Neither written nor pre-committed rows are visible; committed ones are."""
        sink = self.sink()
        transaction = sink.begin_transaction(self.context())
        self.assert_visible(rule=Rule.HIDDEN_UNTIL_COMMIT)
        sink.write(transaction, self.batch([1, 2]))
        self.assert_visible(rule=Rule.HIDDEN_UNTIL_COMMIT)
        prepared = through_json(sink.pre_commit(transaction))
        self.assert_visible(rule=Rule.HIDDEN_UNTIL_COMMIT)
        self.sink().commit(prepared)
        self.assert_visible(1, 2)

    def test_several_batches_and_empty_ones(self) -> None:
        """All batches of a transaction become visible, and an empty batch adds nothing."""
        sink = self.sink()
        transaction = sink.begin_transaction(self.context())
        for numbers in ([], [1], [], [2, 3], [4], []):
            sink.write(transaction, self.batch(numbers))
        self.sink().commit(through_json(sink.pre_commit(transaction)))
        self.assert_visible(1, 2, 3, 4)

    def test_a_transaction_without_rows(self) -> None:
        """A transaction that got only an empty batch is committed, again and again, without effect."""
        prepared = self.staged([])
        self.sink().commit(prepared)
        self.sink().commit(prepared)
        self.assert_visible(rule=Rule.COMMIT_MAY_COME_AGAIN)
        self.assert_unfinished(rule=Rule.FIND_LISTS_THE_UNFINISHED)

    def test_commit_twice_is_harmless(self) -> None:
        """A second commit, by the same driver or by the next one, changes nothing."""
        prepared = self.staged([1, 2])
        driver = self.sink()
        driver.commit(prepared)
        driver.commit(prepared)
        self.sink().commit(prepared)
        self.assert_visible(1, 2, rule=Rule.COMMIT_MAY_COME_AGAIN)

    def test_an_old_commit_repeated_is_harmless(self) -> None:
        """A commit repeated after many newer ones, as when an old checkpoint is restored, changes nothing."""
        first = self.staged([0], checkpoint=0)
        driver = self.sink()
        driver.commit(first)
        for checkpoint in range(1, 20):
            driver.commit(self.staged([checkpoint], checkpoint=checkpoint))
        driver.commit(first)
        self.sink().commit(first)
        self.assert_visible(*range(20), rule=Rule.COMMIT_MAY_COME_AGAIN)

    def test_abort_hides_and_leaves_nothing(self) -> None:
        """An aborted transaction is neither visible nor found, however often it is aborted."""
        prepared = self.staged([1, 2])
        self.sink().abort(prepared)
        self.sink().abort(prepared)
        self.assert_visible(rule=Rule.ABORT_LEAVES_NOTHING)
        self.assert_unfinished(rule=Rule.ABORT_LEAVES_NOTHING)

    def test_abort_in_the_task(self) -> None:
        """A task aborts what it began, with the instance that began it, and begins again: as another attempt, or as the same one."""
        sink = self.sink()
        transaction = sink.begin_transaction(self.context())
        sink.write(transaction, self.batch([1]))
        sink.abort(transaction)
        sink.abort(transaction)
        self.assert_unfinished(rule=Rule.ABORT_LEAVES_NOTHING)
        trial = sink.begin_transaction(self.context(attempt=1))
        sink.write(trial, self.batch([3]))
        sink.abort(sink.pre_commit(trial))
        self.assert_unfinished(rule=Rule.ABORT_LEAVES_NOTHING)
        again = sink.begin_transaction(self.context(attempt=1))
        sink.write(again, self.batch([2]))
        self.sink().commit(through_json(sink.pre_commit(again)))
        self.assert_visible(2, rule=Rule.ABORT_LEAVES_NOTHING)

    def test_abort_of_a_task_that_died(self) -> None:
        """The driver aborts a transaction of a dead task that it finds or that the task reported."""
        reported = self.begun([1])
        for found in list(self.sink().find_transactions(JOB, SINK)):
            self.sink().abort(through_json(found))
        self.sink().abort(reported)
        self.assert_visible(rule=Rule.ABORT_LEAVES_NOTHING)
        self.assert_unfinished(rule=Rule.ABORT_LEAVES_NOTHING)

    def test_commit_after_abort_is_an_error(self) -> None:
        """Rows that are gone are never reported as committed."""
        prepared = self.staged([1])
        self.sink().abort(prepared)
        try:
            self.sink().commit(prepared)
        except CommitLostError:
            pass
        except Exception as error:
            raise broken(Rule.GONE_IS_NOT_COMMITTED, f"{type(error).__name__}: {error}") from error
        else:
            raise broken(Rule.GONE_IS_NOT_COMMITTED, "commit() of an aborted transaction returned")
        self.assert_visible(rule=Rule.GONE_IS_NOT_COMMITTED)

    def test_one_of_two_attempts(self) -> None:
        """Of two attempts of one subtask the committed one is visible and the aborted one is not."""
        lost = self.staged([1, 2], attempt=0)
        kept = self.staged([1, 2], attempt=1)
        self.sink().commit(kept)
        self.sink().abort(lost)
        self.sink().commit(kept)
        self.assert_visible(1, 2, rule=Rule.NOTHING_IS_SHARED)
        self.assert_unfinished(rule=Rule.FIND_LISTS_THE_UNFINISHED)

    def test_two_attempts_at_the_same_time(self) -> None:
        """Two running attempts of one subtask do not disturb each other."""
        one, two = self.sink(), self.sink()
        first = one.begin_transaction(self.context(attempt=0))
        second = two.begin_transaction(self.context(attempt=1))
        one.write(first, self.batch([1]))
        two.write(second, self.batch([2]))
        one.abort(first)
        prepared = through_json(two.pre_commit(second))
        self.sink().commit(prepared)
        self.assert_visible(2, rule=Rule.NOTHING_IS_SHARED)

    def test_find_lists_what_is_unfinished(self) -> None:
        """Committed and aborted transactions are not listed, pre-committed ones are, with their place."""
        self.sink().commit(self.staged([1], checkpoint=4))
        self.sink().abort(self.staged([2], checkpoint=5))
        self.staged([3], run=2, checkpoint=6, subtask=3, attempt=17)
        self.staged([4], run=2, checkpoint=10, subtask=1, attempt=0)
        self.assert_unfinished((2, 6, 3, 17), (2, 10, 1, 0), rule=Rule.FIND_LISTS_THE_UNFINISHED)

    def test_found_transactions_can_be_aborted(self) -> None:
        """`abort` works with the transactions that `find_transactions` lists."""
        self.staged([1], checkpoint=1)
        self.staged([2], checkpoint=2)
        for found in list(self.sink().find_transactions(JOB, SINK)):
            self.sink().abort(through_json(found))
        self.assert_unfinished(rule=Rule.FIND_LISTS_THE_UNFINISHED)
        self.assert_visible(rule=Rule.ABORT_LEAVES_NOTHING)

    def test_find_ignores_other_jobs_and_sinks(self) -> None:
        """A job finds its own transactions only, also when names are alike and all share one target."""
        owners = [("a", "b"), ("a-b", "c"), ("a", "b-c"), ("a", "bb"), ("aa", "b"), ("a_b", "c"), ("b", "a")]
        for checkpoint, (job, sink) in enumerate(owners):
            self.staged([checkpoint], job=job, sink=sink, checkpoint=checkpoint)
        for checkpoint, (job, sink) in enumerate(owners):
            _compare(
                self.unfinished(job, sink), [(1, checkpoint, 0, 0)], Rule.FIND_LISTS_THE_UNFINISHED, job, sink
            )
        self.assert_unfinished(rule=Rule.FIND_LISTS_THE_UNFINISHED)

    def test_jobs_that_share_a_target(self) -> None:
        """Two jobs and two sinks with the same numbers write to one target without losing a row."""
        owners = [("a", "b"), ("a-b", "c"), ("a", "b-c")]
        prepared = [self.staged([n], job=job, sink=sink) for n, (job, sink) in enumerate(owners)]
        for transaction in prepared:
            self.sink().commit(transaction)
        self.assert_visible(0, 1, 2, rule=Rule.NOTHING_IS_SHARED)

    def test_another_run_with_the_same_numbers(self) -> None:
        """Two runs may write under one checkpoint number, as when an older checkpoint is restored: no row is taken for another's."""
        self.sink().commit(self.staged([1], run=1, checkpoint=3))
        self.sink().commit(self.staged([2], run=2, checkpoint=3))
        self.assert_visible(1, 2, rule=Rule.NOTHING_IS_SHARED)

    def test_another_life_of_the_job(self) -> None:
        """When the job's storage was deleted all numbers begin again: new rows under old numbers are new rows."""
        self.sink().commit(self.staged([1]))
        self.sink().commit(self.staged([2]))
        self.assert_visible(1, 2, rule=Rule.NOTHING_IS_SHARED)

    def test_commit_all_over_checkpoints(self) -> None:
        """`commit_all` makes all its transactions visible, and no other."""
        first = self.staged([1], checkpoint=1)
        prepared = [self.staged([10 * c + s], checkpoint=c, subtask=s) for c in (2, 3, 4) for s in (0, 1)]
        later = self.staged([99], checkpoint=5)
        self.sink().commit_all([first])
        self.assert_visible(1)
        self.sink().commit_all(prepared)
        self.assert_visible(1, 20, 21, 30, 31, 40, 41)
        self.sink().commit_all([])
        self.sink().commit_all([later])
        self.assert_visible(1, 20, 21, 30, 31, 40, 41, 99)

    def test_commit_all_after_a_crash_half_way(self) -> None:
        """`commit_all` finishes what an earlier call had begun, and repeating it changes nothing."""
        prepared = [self.staged([checkpoint], checkpoint=checkpoint) for checkpoint in range(1, 6)]
        self.sink().commit(prepared[0])
        self.sink().commit(prepared[1])
        with contextlib.suppress(KeyboardInterrupt):
            self.sink().commit_all(_breaking_off(prepared))
        self.sink().commit_all(prepared)
        self.sink().commit_all(prepared)
        self.assert_visible(1, 2, 3, 4, 5, rule=Rule.COMMIT_MAY_COME_AGAIN)
        self.assert_unfinished(rule=Rule.FIND_LISTS_THE_UNFINISHED)

    # A whole job, without Spark: the real coordinator and recovery, on the real target.

    def test_a_job_dies_after_begin_transaction(self) -> None:
        """A driver that dies when a task has begun leaves nothing, and the job comes to its end."""
        self._job_dies(Step.BEGIN, times=3)

    def test_a_job_dies_after_write(self) -> None:
        """The same when a task has written."""
        self._job_dies(Step.WRITE, times=3)

    def test_a_job_dies_after_pre_commit(self) -> None:
        """The same when a task has pre-committed and no checkpoint names its rows."""
        self._job_dies(Step.PRE_COMMIT, times=3)

    def test_a_job_dies_after_the_checkpoint_completed(self) -> None:
        """A checkpoint that completed is committed by the next run."""
        self._job_dies(Step.COMPLETE, times=2)

    def test_a_job_dies_after_half_of_the_commits(self) -> None:
        """The next run commits the other half, and the first one once."""
        self._job_dies(Step.HALF_OF_THE_COMMITS)

    def test_a_job_dies_after_commit(self) -> None:
        """A committed transaction is not committed a second time."""
        self._job_dies(Step.COMMIT)

    def test_a_job_dies_in_its_recovery(self) -> None:
        """A recovery that dies when it has looked, and one that dies when it has aborted, change nothing either."""
        with sink_job(self.sink, self.batch) as job:
            job.dies_after(Step.PRE_COMMIT, times=2)
            job.dies_after(Step.FIND)
            job.dies_after(Step.ABORT)
            self._comes_to_its_end(job)

    def test_a_job_whose_tasks_are_attempted_twice(self) -> None:
        """The output of an attempt that Spark did not keep never becomes visible, and is removed."""
        with sink_job(self.sink, self.batch, drops_attempts=0.5) as job:
            self._comes_to_its_end(job)

    def _job_dies(self, step: Step, *, times: int = 1) -> None:
        with sink_job(self.sink, self.batch) as job:
            job.dies_after(step, times=times)
            early = self._seen() - self._as_read(job.promised())
            if early:
                seen = f"a reader sees rows that no completed checkpoint stands for: {_shown(early)}"
                raise broken(Rule.HIDDEN_UNTIL_COMMIT, f"after a death after {step.name}, {seen}")
            self._comes_to_its_end(job)

    def _comes_to_its_end(self, job: SinkJob) -> None:
        job.comes_to_its_end()
        self.assert_visible(*job.all_rows(), rule=Rule.SURVIVES_DEATHS)
        _compare(job.unfinished(), [], Rule.SURVIVES_DEATHS)
        job.comes_to_its_end()
        self.assert_visible(*job.all_rows(), rule=Rule.COMMIT_MAY_COME_AGAIN)


def through_json(transaction: Transaction) -> Transaction:
    """Return a transaction as it comes back from a checkpoint."""
    try:
        back: Transaction = json.loads(json.dumps(transaction))
    except (TypeError, ValueError) as error:
        raise broken(Rule.IS_DATA, f"{transaction!r}: {error}") from error
    return back


def _place(transaction: Transaction) -> tuple[int, int, int, int]:
    try:
        return transaction["run"], transaction["checkpoint"], transaction["subtask"], transaction["attempt"]
    except (KeyError, TypeError) as error:
        seen = f"a transaction without {error}: {transaction!r}"
        raise broken(Rule.FIND_LISTS_THE_UNFINISHED, seen) from error


def _compare(found: Sequence[object], expected: Sequence[object], rule: Rule, *owner: str) -> None:
    if list(found) != list(expected):
        asked = f"({', '.join(map(repr, owner))})" if owner else "()"
        raise broken(
            rule,
            f"find_transactions{asked} lists (run, checkpoint, subtask, attempt) {list(found)}, and should list {list(expected)}",
        )


def _shown(rows: Counter[str]) -> str:
    """The rows, each as often as it is there; of many the first."""
    listed = sorted(rows.elements())
    more = f" and {counted(len(listed) - _MOST_SHOWN, 'more row')}" if len(listed) > _MOST_SHOWN else ""
    return ", ".join(listed[:_MOST_SHOWN]) + more


def _breaking_off(transactions: list[Transaction]) -> Iterator[Transaction]:
    """Yield three transactions, then interrupt the process."""
    yield from transactions[:3]
    raise KeyboardInterrupt
