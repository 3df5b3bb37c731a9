"""All subtasks of one operator over any backend, with storage: batches, lost files, another parallelism."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from penstock.engine.dead_letters import tolerates
from penstock.ids import CheckpointId, SubtaskId
from penstock.operators.bad_records import BadRecords
from penstock.operators.batch_process import BatchProcess
from penstock.operators.keyed_process import Context, KeyedProcess
from penstock.operators.run_batch_process import run_batch_process
from penstock.operators.run_process import run_process
from penstock.operators.states import state_layout
from penstock.operators.tolerant_process import run_process_tolerantly
from penstock.recovery.rescale import redistribute
from penstock.state.backends import backend_named
from penstock.state.backends.base import OpenState, StateLayout, Workplace
from penstock.state.handle import StateHandle
from penstock.state.keys import GROUP_SHIFT, SORT_KEY, key_groups, owners
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
        self._handles: list[StateHandle | None] = [None]
        self._layout: StateLayout | None = None

    def batch(self, operator: Operator, rows: pa.Table) -> list[dict[str, Any]]:
        """Run one batch; returns the results."""
        self._version += 1
        key = pa.schema([("k", pa.string())])
        self._layout = operator.layout(key) if isinstance(operator, BuiltIn) else state_layout(operator, key)
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

    def _open(self, index: int) -> OpenState:
        assert self._layout is not None
        place = Workplace(
            storage=self._storage,
            local_dir=self._local,
            subtask=SubtaskId(UID, index),
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=self._version,
            stem=f"1-{self._version}-{index}-{self.parallelism}",
        )
        return self._backend.open(place, self._layout, self._handles[index])

    @property
    def files(self) -> list[int]:
        """How many refs the state of each subtask has: a batch that writes nothing adds none."""
        return [len(handle.refs) if handle else 0 for handle in self._handles]


def sort_key(key: str) -> int:
    """As Spark's, a pure function of the key."""
    digest = xxhash.xxh3_64_intdigest(key.encode())
    return (digest % MAX_PARALLELISM) << GROUP_SHIFT | (digest >> 32) % SORT_KEYS_A_GROUP
