"""Spark's query as far as the protocol sees it: where it goes on, and what it writes into its progress log by itself.

It reads and writes that log as Spark does: without syncing, without asking who owns the job, and without a crash in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from penstock.errors import UnavailableError
from penstock.ids import CheckpointId
from penstock.ownership.claim import newest_run
from penstock.recovery.progress_log import positions
from penstock.storage import Storage
from penstock.testing.simulation.lifeline import Violation
from penstock.testing.simulation.source import Positions, ScriptedSource

COMPACT_EVERY = 3


class SimulatedQuery:
    """Starts on the folder of a run, and goes on after the last batch that is noted there as done.

    Each source lists what it has read, and notes from where it decided to read when it had no position: `sources/<its place>/...`.
    """

    def __init__(self, storage: Storage, folder: str, source: ScriptedSource, uids: Sequence[str]) -> None:
        self._storage = storage
        self._folder = folder
        self._source = source
        self._uids = uids
        """The sources of the query, in its order."""
        last = max((number for number, name in self._numbered("offsets")), default=-1)
        done = last >= 0 and f"{folder}/commits/{last}" in storage.names(f"{folder}/commits")
        self.next_batch = CheckpointId(last + 1 if done else max(last, 0))
        self.end = source.end_of(uids)
        self.positions = self._begin(self._entry(self.next_batch - 1) if self.next_batch else {})
        self._reads = self._read_until(self.next_batch - 1) if self.next_batch else {}
        """How many batches each source has noted; batches of the job that read nothing are not among them."""
        self._noted = self._reads
        self._check_where_it_is()
        self._check_what_was_read()

    def plan(self, choose_end: Callable[[], Positions]) -> None:
        """Note where the next batch ends; one that was noted before is repeated as it was."""
        batch = self.next_batch
        if batch not in dict(self._numbered("offsets")):
            until = dict(zip(self._source.uids, choose_end(), strict=True))
            reads = {uid: self._reads.get(uid, 0) + 1 for uid in self._uids}
            lines = [json.dumps(until[uid]) for uid in self._uids]
            self._put(f"offsets/{batch}", "\n".join(["v1", json.dumps({"reads": reads}), *lines]))
            for place, uid in enumerate(self._uids):
                read = reads[uid] - 1
                compacts = read % COMPACT_EVERY == COMPACT_EVERY - 1
                self._put(f"{_read(place)}/{read}{'.compact' if compacts else ''}", json.dumps(until[uid]))
        self.until, self._noted = self._source.at(self._entry(batch)), self._read_until(batch)

    def done(self) -> None:
        """The batch is over."""
        self._put(f"commits/{self.next_batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        self._reads = self._noted
        self.positions, self.next_batch = self.until, CheckpointId(self.next_batch + 1)

    def _begin(self, entry: Mapping[str, object]) -> Positions:
        """Where each source goes on, or begins."""
        known = {
            uid: self._decide_where_to_begin(place, uid) if entry.get(uid) is None else entry[uid]
            for place, uid in enumerate(self._uids)
        }
        return self._source.at(known)

    def _decide_where_to_begin(self, place: int, uid: str) -> int:
        """As with 'latest': whoever decides again, later, finds himself at the end."""
        name = f"{self._folder}/sources/{place}/start/0"
        if name not in self._storage.names(f"{self._folder}/sources"):
            self._refuse_if_replaced()  # of what a zombie decides nobody hears
            self._storage.put(name, json.dumps(self._source.decide_start(uid)).encode())
        return int(json.loads(self._storage.get(name)))

    def _check_where_it_is(self) -> None:
        """The position of another source may lie where this one has nothing."""
        if any(at > end for at, end in zip(self.positions, self.end, strict=True)):
            raise Violation(f"{self._folder} goes on at {self.positions}, behind the end {self.end}")

    def _check_what_was_read(self) -> None:
        """A file source that misses an entry since the last compacted one would read files again."""
        for place, uid in enumerate(self._uids):
            entries = dict(self._numbered(_read(place)))
            compacted = max(
                (number for number, name in entries.items() if name.endswith(".compact")), default=0
            )
            missing = set(range(compacted, self._reads.get(uid, 0))) - set(entries)
            if missing:
                self._refuse_if_replaced()
                raise Violation(
                    f"{self._folder} goes on with batch {self.next_batch} without {uid}/{missing}"
                )

    def _refuse_if_replaced(self) -> None:
        if newest_run(self._storage) > int(self._folder.rpartition("/")[2]):
            raise UnavailableError(f"{self._folder} is not whole: another run has taken the job over")

    def _read_until(self, batch: int) -> dict[str, int]:
        entry = self._storage.get(f"{self._folder}/offsets/{batch}").decode()
        reads: dict[str, int] = json.loads(entry.splitlines()[1])["reads"]
        return reads

    def _entry(self, batch: int) -> dict[str, object]:
        found = positions(self._storage.get(f"{self._folder}/offsets/{batch}").decode())
        return dict(zip(self._uids, found, strict=True))

    def _numbered(self, folder: str) -> list[tuple[int, str]]:
        names = self._storage.names(f"{self._folder}/{folder}")
        return [(int(name.rpartition("/")[2].removesuffix(".compact")), name) for name in names]

    def _put(self, name: str, text: str) -> None:
        self._storage.put(f"{self._folder}/{name}", text.encode())


def _read(place: int) -> str:
    return f"sources/{place}/read"
