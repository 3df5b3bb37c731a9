"""Spark's query as far as the protocol sees it: where it goes on, and what it writes into its progress log by itself.

It reads and writes that log as Spark does: without syncing, without asking who owns the job, and without a crash in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.errors import UnavailableError
from penstock.ids import CheckpointId
from penstock.ownership.claim import newest_run
from penstock.recovery.progress_log import positions
from penstock.storage import Storage
from penstock.testing.simulation.source import Positions, ScriptedSource
from penstock.testing.simulation.violation import Violation

COMPACT_EVERY = 3
READ = "sources/0"
"""Where the source lists what it has read; a query that goes on needs all of it."""
START = "sources/1/0"
"""Where the source notes from where it decided to read, at the first start."""


class SimulatedQuery:
    """Starts on the folder of a run, and goes on after the last batch that is noted there as done."""

    def __init__(self, storage: Storage, folder: str, source: ScriptedSource) -> None:
        self._storage = storage
        self._folder = folder
        self._source = source
        last = max((number for number, name in self._numbered("offsets")), default=-1)
        done = last >= 0 and f"{folder}/commits/{last}" in storage.names(f"{folder}/commits")
        self.next_batch = CheckpointId(last + 1 if done else max(last, 0))
        start = self._decide_where_to_begin()
        self.positions = self._end_of(self.next_batch - 1) if self.next_batch else start
        self._reads = self._read_until(self.next_batch - 1) if self.next_batch else 0
        """How many batches the source has noted; batches of the job that read nothing are not among them."""
        self._noted = self._reads
        self._check_what_was_read()

    def plan(self, choose_end: Callable[[], Positions]) -> None:
        """Note where the next batch ends; one that was noted before is repeated as it was."""
        batch = self.next_batch
        if batch not in dict(self._numbered("offsets")):
            until = choose_end()
            self._put(f"offsets/{batch}", f'v1\n{{"reads":{self._reads + 1}}}\n{json.dumps(until)}')
            compacts = self._reads % COMPACT_EVERY == COMPACT_EVERY - 1
            self._put(f"{READ}/{self._reads}{'.compact' if compacts else ''}", json.dumps(until))
        self.until, self._noted = self._end_of(batch), self._read_until(batch)

    def done(self) -> None:
        """The batch is over."""
        self._put(f"commits/{self.next_batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        self._reads = self._noted
        self.positions, self.next_batch = self.until, CheckpointId(self.next_batch + 1)

    def _decide_where_to_begin(self) -> Positions:
        """As with 'latest': whoever decides again, later, finds himself at the end."""
        name = f"{self._folder}/{START}"
        if name not in self._storage.names(f"{self._folder}/sources"):
            self._storage.put(name, json.dumps(self._source.decide_start()).encode())
        return tuple(json.loads(self._storage.get(name)))

    def _check_what_was_read(self) -> None:
        """A file source that misses an entry since the last compacted one would read files again."""
        entries = dict(self._numbered(READ))
        compacted = max((number for number, name in entries.items() if name.endswith(".compact")), default=0)
        missing = set(range(compacted, self._reads)) - set(entries)
        if missing and newest_run(self._storage) > int(self._folder.rpartition("/")[2]):
            raise UnavailableError(f"{self._folder} is not whole: another run has taken the job over")
        if missing:
            raise Violation(f"{self._folder} goes on with batch {self.next_batch} without {READ}/{missing}")

    def _read_until(self, batch: int) -> int:
        entry = self._storage.get(f"{self._folder}/offsets/{batch}").decode()
        return int(json.loads(entry.splitlines()[1])["reads"])

    def _end_of(self, batch: int) -> Positions:
        [found] = positions(self._storage.get(f"{self._folder}/offsets/{batch}").decode())
        return tuple(found)  # type: ignore[arg-type]

    def _numbered(self, folder: str) -> list[tuple[int, str]]:
        names = self._storage.names(f"{self._folder}/{folder}")
        return [(int(name.rpartition("/")[2].removesuffix(".compact")), name) for name in names]

    def _put(self, name: str, text: str) -> None:
        self._storage.put(f"{self._folder}/{name}", text.encode())
