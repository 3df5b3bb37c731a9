"""All subtasks of one operator over any backend, with storage: batches, lost files, another parallelism."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from msgspec.structs import replace

from penstock.checkpoint.completed import StoredLifetime
from penstock.engine.dead_letters import tolerates
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.bad_records import BadRecords
from penstock.operators.batch_process import BatchProcess
from penstock.operators.keyed_process import Context, KeyedProcess
from penstock.operators.run_batch_process import run_batch_process
from penstock.operators.run_process import run_process
from penstock.operators.states import state_layout
from penstock.operators.tolerant_process import run_process_tolerantly
from penstock.recovery.lifetimes import Lifetimes, described
from penstock.recovery.rescale import redistribute
from penstock.recovery.taking_over import TakeOver
from penstock.state.backends import backend_named
from penstock.state.backends.base import OpenState, StateLayout, Workplace
from penstock.state.handle import FileRef, StateHandle
from penstock.state.keys import GROUP_SHIFT, SORT_KEY, key_groups, owners
from penstock.state.lifetimes import TIMELESS, StateTime
from penstock.state.merge_orders import Merged, replaced
from penstock.storage import LocalStorage

UID = "op"
MAX_PARALLELISM = 8
SORT_KEYS_A_GROUP = 2  # so few that keys collide all the time


class BuiltIn(ABC):
    """An operator of Penstock's own, as a cluster runs it."""

    @abstractmethod
    def layout(self, key: pa.Schema) -> StateLayout:
        """What it keeps."""

    @abstractmethod
    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        """One subtask in one batch."""


Operator = KeyedProcess | BatchProcess | BuiltIn


class OperatorCluster:
    """Rows are keyed by the text in their column `k`. The state goes on from batch to batch, whichever operator is run."""

    def __init__(
        self, root: Path, output: pa.Schema, backend: str = "memory", *, tolerant: bool = False
    ) -> None:
        self.output = output
        self.bad = BadRecords(UID, 0, kept=True)
        self.parallelism = 1
        self._backend = backend_named(backend)
        self._tolerant = tolerant
        self._storage = LocalStorage(root / "storage")
        self._local = root / "local"
        self._version = 0
        self._run_number = 1
        self._handles: list[StateHandle | None] = [None]
        self._layout: StateLayout | None = None
        self.now_us = 0
        self._lifetimes: dict[str, StoredLifetime] = {}

    def batch(self, operator: Operator, rows: pa.Table) -> list[dict[str, Any]]:
        """Run one batch; returns the results."""
        self._version += 1
        self.declare(operator)
        sort_keys = np.array([sort_key(key) for key in rows.column("k").to_pylist()], dtype=np.int64)
        rows = rows.append_column(SORT_KEY, pa.array(sort_keys))
        owner = owners(key_groups(sort_keys), self.parallelism)
        results: list[dict[str, Any]] = []
        for index in range(self.parallelism):
            mine = rows.filter(pa.array(owner == index))
            with closing(self._open(index)) as state:
                if mine.num_rows:
                    given = self._run(operator, mine, state, index)
                    results += pa.Table.from_batches(given, self.output).to_pylist()
                self._handles[index] = handle = state.freeze()
            for name in handle.files - set(self._storage.names()):
                self._storage.put(name, (self._local / name).read_bytes())
        return results

    def declare(self, operator: Operator) -> None:
        """Go on with the states of this operator. Another time to live is dealt with as at the start of a run."""
        key = pa.schema([("k", pa.string())])
        self._layout = operator.layout(key) if isinstance(operator, BuiltIn) else state_layout(operator, key)
        lifetimes = Lifetimes({UID: self._layout}, {UID: self._lifetimes}, self.now_us)
        now = described(self._layout, lifetimes.switched_on[UID]).lifetimes
        if now == self._lifetimes:
            return
        if lifetimes.brings_back:
            self._take_over(lifetimes)
        self._handles = [
            handle and lifetimes.fading({handle.subtask: handle})[handle.subtask] for handle in self._handles
        ]
        self._lifetimes = now

    def _take_over(self, lifetimes: Lifetimes) -> None:
        layouts, since = lifetimes.former
        take_over = TakeOver(
            self._storage,
            self._backend,
            self._local,
            RunId(2),
            self.parallelism,
            MAX_PARALLELISM,
            layouts,
            frozenset(),
            self.now_us,
            since,
            lifetimes.brings_back,
        )
        self._version += 1
        for index, handle in enumerate(self._handles):
            if handle is not None:
                self._handles[index] = take_over(replace(handle, version=self._version), 0).handle

    def merge(self, choose: Callable[[Sequence[FileRef], int], range | None] | None = None) -> int:
        """Merge in the background what the backend chooses, or somebody else; returns how many merges there were."""
        merges = 0
        for index, handle in enumerate(self._handles):
            window = (choose or self._backend.choose_merge)(handle.refs, self.now_us) if handle else None
            if handle is None or window is None or self._backend.name != "filesystem":
                continue
            assert self._layout is not None
            refs, oldest = handle.refs[window.start : window.stop], window.stop == len(handle.refs)
            self._version += 1
            place = self._place(index)
            result = self._backend.merge(place, self._layout, refs, oldest=oldest)
            if result is not None:
                self._storage.put(result.name, place.merged_path(result.name).read_bytes())
            names = tuple(ref.name for ref in refs)
            self._handles[index] = replaced(handle, Merged(handle.subtask, names, result))
            merges += 1
        return merges

    def checkpoint(self) -> tuple[Any, ...]:
        """What `go_back` takes."""
        return list(self._handles), self.parallelism, self._lifetimes, self._layout

    def go_back(self, checkpoint: tuple[Any, ...]) -> None:
        """All machines die, and their files with them; the job goes on from the checkpoint."""
        self._handles, self.parallelism, self._lifetimes, self._layout = list(checkpoint[0]), *checkpoint[1:]
        shutil.rmtree(self._local, ignore_errors=True)

    def stored_rows(self) -> list[dict[str, Any]]:
        """Every row of every table that is in the files, seen or not, tombstones left out."""
        rows: list[dict[str, Any]] = []
        for index in range(self.parallelism):
            handle = self._handles[index]
            if self._backend.name == "rocksdb":
                rows += self._database_rows(index)
                continue
            for ref in handle.refs if handle else ():
                data = ref.inline or self._storage.get(ref.name)
                table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
                lists = [one for column in table.columns for one in column.to_pylist()]
                rows += [row for one in lists for row in one if not row.get("__deleted")]
        return rows

    def _database_rows(self, index: int) -> list[dict[str, Any]]:
        """At a time when nothing has expired, so that all is seen that is there."""
        assert self._layout is not None
        self._version += 1
        place = replace_field(self._place(index), time=TIMELESS)
        with closing(self._backend.open(place, self._layout, self._handles[index])) as state:
            tables: list[Any] = [state, *(state.table(table.name) for table in self._layout.tables)]
            return [row for table in tables for batch in table.scan() for row in batch.to_pylist()]

    def _run(self, operator: Operator, rows: pa.Table, state: OpenState, index: int) -> list[pa.RecordBatch]:
        context = Context(UID, self._version, index, self.parallelism)
        if isinstance(operator, BuiltIn):
            return operator.run(rows, state, context)
        common: dict[str, Any] = {"key_names": ["k"], "output": self.output, "context": context}
        if isinstance(operator, BatchProcess):
            return run_batch_process(operator, rows, state, **common)
        if not self._tolerant:
            return run_process(operator, rows, state, **common)
        return run_process_tolerantly(operator, rows, state, **common, bad=self.bad, tolerates=tolerates)

    def number_back(self, batches: int) -> None:
        """Go on with the state as it is, in batches that begin so many earlier: at least once, after a failure."""
        self._version -= batches
        self._run_number += 1

    def rescale(self, parallelism: int) -> None:
        """Go on with so many subtasks, on machines that have no files."""
        taken = redistribute(
            [handle for handle in self._handles if handle],
            uid=UID,
            parallelism=parallelism,
            version=CheckpointId(self._version),
            backend=self._backend.name,
        )
        self.parallelism = parallelism
        self._handles = [taken[SubtaskId(UID, index)] for index in range(parallelism)]
        shutil.rmtree(self._local, ignore_errors=True)

    def stored(self) -> dict[str, dict[str, Any]]:
        """Everything that is stored, by key; a map is a list of pairs."""
        found: dict[str, dict[str, Any]] = {}
        for row in self._scan():
            del row[SORT_KEY]
            key = row.pop("k")
            assert key not in found
            found[key] = row
        return found

    def rows_in(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table."""
        self._version += 1
        found: list[dict[str, Any]] = []
        for index in range(self.parallelism):
            with closing(self._open(index)) as state:
                found += [row for batch in state.table(table).scan() for row in batch.to_pylist()]
        return found

    def _scan(self) -> Iterator[dict[str, Any]]:
        self._version += 1
        for index in range(self.parallelism):
            with closing(self._open(index)) as state:
                for batch in state.scan():
                    yield from batch.to_pylist()

    def _place(self, index: int) -> Workplace:
        since = {stamp: one.switched_on_us for stamp, one in self._lifetimes.items()}
        return Workplace(
            storage=self._storage,
            local_dir=self._local,
            subtask=SubtaskId(UID, index),
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=self._version,
            stem=f"{self._run_number}-{self._version}-{index}-{self.parallelism}",
            time=StateTime(self.now_us, since),
        )

    def _open(self, index: int) -> OpenState:
        assert self._layout is not None
        return self._backend.open(self._place(index), self._layout, self._handles[index])

    @property
    def files(self) -> list[int]:
        """How many refs the state of each subtask has: a batch that writes nothing adds none."""
        return [len(handle.refs) if handle else 0 for handle in self._handles]


def sort_key(key: str) -> int:
    """As Spark's, a pure function of the key."""
    digest = xxhash.xxh3_64_intdigest(key.encode())
    return (digest % MAX_PARALLELISM) << GROUP_SHIFT | (digest >> 32) % SORT_KEYS_A_GROUP
