"""One batch of a simulated run: what the tasks on the executors do, step by step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.checkpoint.completed import PreCommitted, SubtaskReport
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.sinks.two_phase_commit import TransactionContext, TwoPhaseCommitSink
from penstock.snapshot.mailbox import Address
from penstock.snapshot.merger import Merge
from penstock.snapshot.uploader import Upload, remember_newest
from penstock.state.backends.base import StateBackend, Workplace
from penstock.state.handle import StateHandle, state_stem
from penstock.state.merge_orders import MergeOrder
from penstock.storage import Storage
from penstock.testing.simulation.counting import LAYOUT, Item, count, subtask_of
from penstock.testing.simulation.site import FIRST, JOB, OPERATORS, SECOND, sink_of
from penstock.testing.simulation.source import Record
from penstock.testing.simulation.workload import MAX_PARALLELISM

NO_MAILBOX = Address("", 0, "")


class Submit(Protocol):
    """Takes an upload that is performed some time later, or never."""

    def __call__(self, upload: Upload) -> None: ...  # noqa: D102


class SubmitMerge(Protocol):
    """Takes a merge of files that is performed some time later, or never."""

    def __call__(self, merge: Merge) -> None: ...  # noqa: D102


@dataclass
class Batch:
    """What the driver hands to the tasks of a batch, and what it collects from them."""

    number: CheckpointId
    run: RunId
    parallelism: int
    storage: Storage
    backend: StateBackend
    local_dir: Path
    sinks: Mapping[str, TwoPhaseCommitSink]
    before: Mapping[SubtaskId, StateHandle]
    undurable: frozenset[str]
    required: bool
    newest_will_do: bool
    in_sequence: bool
    emits_once: bool
    drops_attempts: float
    rng: random.Random
    submit: Submit
    submit_merge: SubmitMerge
    merges: Mapping[SubtaskId, MergeOrder]
    merging: frozenset[str]
    handles: dict[SubtaskId, StateHandle] = field(default_factory=dict)
    transactions: list[PreCommitted] = field(default_factory=list)
    reports: dict[SubtaskId, SubtaskReport] = field(default_factory=dict)
    with_rows: set[SubtaskId] = field(default_factory=set)
    attempts: int = 0

    def steps(self, records: Iterable[Record]) -> Iterator[None]:
        """Perform the batch; others may move at every yield."""
        records = list(records)
        self._carry_over()
        items = [Item(record.key, (record.id,)) for record in records]
        results: list[Item] = []
        yield from self._operator(FIRST, items, results)
        if self.in_sequence:
            items = [Item(group_of(item.key), item.records) for item in results]
        else:
            items = [Item(record.group, (record.id,)) for record in records]
        yield from self._operator(SECOND, items, [])

    def _carry_over(self) -> None:
        """A subtask without rows acknowledges with the handle it had."""
        for uid in OPERATORS:
            for subtask in (SubtaskId(uid, index) for index in range(self.parallelism)):
                old = self.before.get(subtask) or StateHandle(subtask, self.backend.name, self.number)
                self.handles[subtask] = msgspec.structs.replace(old, version=self.number)
                self.reports[subtask] = SubtaskReport(subtask, state_bytes=old.size)

    def _operator(self, uid: str, items: list[Item], results: list[Item]) -> Iterator[None]:
        for index in range(self.parallelism):
            mine = [
                item for item in items if subtask_of(item.key, self.parallelism, MAX_PARALLELISM) == index
            ]
            subtask = SubtaskId(uid, index)
            if not mine:
                continue
            if self.rng.random() < self.drops_attempts:
                self._attempt(subtask, mine)
                yield
            handle, rows, transaction = self._attempt(subtask, mine)
            self.handles[subtask] = handle
            self.with_rows.add(subtask)
            self.reports[subtask] = SubtaskReport(subtask, rows=len(mine), state_bytes=handle.size)
            self.transactions += [transaction] if transaction else []
            emitted = rows.to_pylist() if rows is not None else []
            results += [Item(row["key"], tuple(row["records"])) for row in emitted]
            yield

    def _attempt(
        self, subtask: SubtaskId, items: list[Item]
    ) -> tuple[StateHandle, pa.RecordBatch | None, PreCommitted | None]:
        self.attempts += 1
        before = self.before.get(subtask)
        workplace = self._workplace(subtask)
        with closing(self.backend.open(workplace, LAYOUT, before)) as state:
            rows = count(state, items, MAX_PARALLELISM, self.rng, once=self.emits_once)
            handle = state.freeze()
        self._upload(handle, before)
        if subtask in self.merges:
            order = self.merges[subtask]
            self.submit_merge(Merge(self.backend, workplace, LAYOUT, order, NO_MAILBOX, self.run))
        return handle, rows, self._write(subtask, rows) if rows is not None else None

    def _workplace(self, subtask: SubtaskId) -> Workplace:
        return Workplace(
            storage=self.storage,
            local_dir=self.local_dir,
            subtask=subtask,
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=self.number,
            stem=state_stem(self.run, self.number, subtask.index, self.attempts),
            merging=self.merging,
        )

    def _upload(self, handle: StateHandle, before: StateHandle | None) -> None:
        durable = frozenset() if before is None else before.files - self.undurable
        if handle.files <= durable:
            return
        remember_newest(self.local_dir, handle)
        self.submit(
            Upload(
                self.storage,
                self.local_dir,
                NO_MAILBOX,
                self.run,
                handle,
                durable,
                required=self.required,
                newest_will_do=self.newest_will_do,
            )
        )

    def _write(self, subtask: SubtaskId, rows: pa.RecordBatch) -> PreCommitted:
        uid = sink_of(subtask.uid)
        sink = self.sinks[uid]
        context = TransactionContext(JOB, uid, self.run, self.number, subtask.index, self.attempts)
        transaction = sink.begin_transaction(context)
        sink.write(transaction, rows)
        transaction = sink.pre_commit(transaction)
        return PreCommitted(uid, self.number, subtask.index, dict(transaction), rows.num_rows)


def group_of(key: str) -> str:
    """The key of the second operator for a result of the first."""
    return f"group-{int(key.removeprefix('key-')) % 3}"
