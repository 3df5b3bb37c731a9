"""After a change of parallelism: every new subtask makes the state it took over its own, before the first batch. Driver and executors.

Files of several former subtasks may hold keys of others. Each subtask therefore merges what it was handed into files of its own keys,
as one Spark job, and the run starts from those.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.checkpoint.completed import SubtaskReport
from penstock.ids import SubtaskId
from penstock.spark.observer import tell_origins
from penstock.state.backends.base import StateBackend, StateLayout, Workplace
from penstock.state.handle import StateHandle, state_stem
from penstock.storage import Storage


class _Taken(msgspec.Struct, frozen=True):
    handle: StateHandle
    report: SubtaskReport


_HANDLES = msgspec.json.Decoder(StateHandle)
_TAKEN = msgspec.json.Decoder(_Taken)


@dataclass(frozen=True)
class Rescaling:
    """What the tasks need to know."""

    storage: Storage
    backend: StateBackend
    local_dir: Path
    run: int
    parallelism: int
    max_parallelism: int
    layouts: dict[str, StateLayout]

    def perform(
        self, session: SparkSession, handles: Mapping[SubtaskId, StateHandle]
    ) -> dict[SubtaskId, StateHandle]:
        """Let every subtask take its state over; the new handles name files that are already in storage."""
        items = [msgspec.json.encode(handle) for handle in handles.values()]
        if not items:
            return {}
        results = session.sparkContext.parallelize(items, len(items)).map(self._take_over).collect()
        taken = [_TAKEN.decode(result) for result in results]
        for one in taken:
            tell_origins(one.report)
        return {one.handle.subtask: one.handle for one in taken}

    def _take_over(self, encoded: bytes) -> bytes:
        handle = _HANDLES.decode(encoded)
        workplace = self._workplace(handle)
        with closing(self.backend.open(workplace, self.layouts[handle.subtask.uid], handle)) as state:
            taken = state.freeze()
        for name in sorted(taken.files - handle.files):
            self.storage.upload(workplace.local_path(name), name)
        report = SubtaskReport(handle.subtask, host=socket.gethostname(), **asdict(workplace.origins))
        return msgspec.json.encode(_Taken(taken, report))

    def _workplace(self, handle: StateHandle) -> Workplace:
        task = TaskContext.get()
        attempt = task.taskAttemptId() if task else 0
        return Workplace(
            storage=self.storage,
            local_dir=self.local_dir,
            subtask=handle.subtask,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            version=handle.version,
            stem=state_stem(self.run, handle.version, handle.subtask.index, attempt),
        )
