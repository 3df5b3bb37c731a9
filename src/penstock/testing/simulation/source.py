"""Replayable sources, known in full before they start: each is one of the partitions that all records are dealt out to."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """One record; `id` names its partition and offset, `number` what is counted."""

    id: str
    number: int


class Fault(enum.Enum):
    """Why a record cannot be taken."""

    NO_KEY = "it has no key"
    RAISES = "user code raises on it"
    REFUSED = "the sink refuses what comes of it"


def fault_of(record: str, likelihood: float) -> Fault | None:
    """What is wrong with a record: the same at every replay, whoever asks."""
    rng = random.Random(f"fault of {record}")  # noqa: S311 - replayable on purpose
    return rng.choice(list(Fault)) if rng.random() < likelihood else None


@dataclass(frozen=True)
class Item:
    """What flows into an operator: some records, under a key."""

    key: str | None
    records: tuple[str, ...]


Positions = tuple[int, ...]
"""How many records of each partition have been read."""


def source_of(record: str) -> str:
    """The uid of the source of a record, by its id."""
    return f"source-{record.partition(':')[0]}"


class ScriptedSource:
    """Partitions of records, the same at every replay."""

    def __init__(self, partitions: int, records: int, keys: int, rng: random.Random) -> None:
        self._asked: set[str] = set()
        self._partitions: list[list[Record]] = [[] for _ in range(partitions)]
        for _ in range(records):
            partition, key = rng.randrange(partitions), rng.randrange(keys)
            offset = len(self._partitions[partition])
            self._partitions[partition].append(Record(f"{partition}:{offset}", key))

    @property
    def start(self) -> Positions:
        """Before the first record."""
        return tuple(0 for _ in self._partitions)

    @property
    def end(self) -> Positions:
        """After the last record."""
        return tuple(len(partition) for partition in self._partitions)

    @property
    def uids(self) -> list[str]:
        """One for each partition: it is a source of the job."""
        return [source_of(f"{partition}:") for partition in range(len(self._partitions))]

    def at(self, positions: Mapping[str, object]) -> Positions:
        """How far each of them was read; one that the job did not have yet was not."""
        return tuple(int(str(positions.get(uid) or 0)) for uid in self.uids)

    def decide_start(self, uid: str) -> int:
        """Where reading begins, for one who asks: the first time before the first record, later behind the last."""
        first = uid not in self._asked
        self._asked.add(uid)
        return 0 if first else self.end[self.uids.index(uid)]

    def forget(self) -> None:
        """Who asks next asks for the first time: the job has begun anew."""
        self._asked.clear()

    def end_of(self, uids: Sequence[str]) -> Positions:
        """After the last record of these."""
        return tuple(end if uid in uids else 0 for uid, end in zip(self.uids, self.end, strict=True))

    def cut(self, after: Sequence[int], until: Sequence[int], size: int, rng: random.Random) -> Positions:
        """Where the next batch of about `size` records ends, of all up to `until`; another one at every replay."""
        wanted = rng.randint(1, size)
        positions = list(after)
        while wanted and tuple(positions) != tuple(until):
            partition = rng.randrange(len(positions))
            if positions[partition] < until[partition]:
                positions[partition] += 1
                wanted -= 1
        return tuple(positions)

    def between(self, after: Sequence[int], until: Sequence[int]) -> Iterator[Record]:
        """The records of a batch."""
        for partition, first, last in zip(self._partitions, after, until, strict=True):
            yield from partition[first:last]
