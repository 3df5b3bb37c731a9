"""A replayable source with partitions, known in full before it starts."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Sequence
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


class ScriptedSource:
    """Partitions of records, the same at every replay."""

    def __init__(self, partitions: int, records: int, keys: int, rng: random.Random) -> None:
        self._asked = False
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

    def decide_start(self) -> Positions:
        """Where reading begins, for one who asks: the first time before the first record, later behind the last."""
        first, self._asked = not self._asked, True
        return self.start if first else self.end

    def forget(self) -> None:
        """Who asks next asks for the first time: the job has begun anew."""
        self._asked = False

    def cut(self, after: Sequence[int], size: int, rng: random.Random) -> Positions:
        """Where the next batch of about `size` records ends; another one at every replay."""
        wanted = rng.randint(1, size)
        positions = list(after)
        while wanted and tuple(positions) != self.end:
            partition = rng.randrange(len(positions))
            if positions[partition] < self.end[partition]:
                positions[partition] += 1
                wanted -= 1
        return tuple(positions)

    def between(self, after: Sequence[int], until: Sequence[int]) -> Iterator[Record]:
        """The records of a batch."""
        for partition, first, last in zip(self._partitions, after, until, strict=True):
            yield from partition[first:last]
