"""What a simulated job is: its replayable sources, its settings, and how much may go wrong.

Sources are known in full before they start. Each is one of the partitions among which all records are divided.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from penstock.config import Checkpointing, Mode

MAX_PARALLELISM = 8
MOST_KEEP_THEIR_MODE = 0.75
MOST_ARE_LEFT_ALONE = 0.85
MOST_KEEP_THEIR_SOURCES = 0.5


class SinkKind(enum.Enum):
    """The kind of sink of each operator."""

    TRANSACTIONS = "out"
    BY_KEY_AT_ONCE = "at-once"
    BY_KEY_STAGED = "staged"
    CALLS = "calls"


class Intervention(enum.Enum):
    """An action of a person between two runs of the job."""

    GO_FAR_BACK = "start it from the oldest checkpoint that is retained"
    FORGET = "cancel it, with all that it has kept"


BACKENDS = ("filesystem", "memory", "rocksdb")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One job of counting operators, each with its sinks, and the trouble it gets into."""

    checkpoint: Checkpointing
    backend: str = "filesystem"
    partitions: int = 2
    records: int = 24
    keys: int = 5
    batch_size: int = 6
    operators: int = 2
    in_sequence: bool = True
    """Each operator counts what the one before it emits; otherwise all read the source."""
    emits_once: bool = False
    """The operators emit a key when they first see it, and never again: output that is lost once is lost for good."""
    parallelisms: tuple[int, ...] = (2,)
    """Of the first run, the second, ...; the last one stays."""
    troubled_runs: int = 0
    """How many runs, from the first, crash, stand still or get errors; the ones after them do not."""
    flakiness: float = 0.0
    """How likely an I/O call of a troubled run fails."""
    mischief: float = 0.0
    """How likely, in a troubled run, Spark drops an attempt, a worker loses an upload, a machine its files."""
    upload_pace: float = 3.0
    """How soon uploads are performed, as a weight among everything that may happen next. A batch has 8."""
    commit_pace: float = 4.0
    """The same for what a sink does on the driver."""

    message_pace: float = 6.0
    """The same for messages from executors to the driver."""
    sinks: tuple[SinkKind, ...] = (SinkKind.TRANSACTIONS,)
    """Behind each operator."""
    every_kind: bool = False
    """The operators count in every kind of state, not only in one value."""
    changes: bool = False
    """Every other run keeps more than those between them, and each has another backend than the one before."""
    bad_records: float = 0.0
    """How likely a record is one that user code, or a sink, cannot take; it goes to dead letters then."""
    wakes_every: int = 0
    """The number of batches after which all subtasks run once, also those without rows; 0 for never."""
    timers: bool = False
    """The operators set timers, by event time and by the clock, and batches that read nothing come between the others."""
    drains: bool = False
    """In the end event time comes to its end, too: all timers by it fire."""
    savepoints: bool = False
    """Every run but the first, unless it is a restart, begins with a savepoint of the newest checkpoint."""
    machines: int = 1
    local_recovery: bool = True
    modes: tuple[Mode, ...] = ()
    """Of the first run, the second, ...; after them that of `checkpoint`."""
    retained: tuple[int, ...] = ()
    """The same for how many checkpoints are kept."""
    intervals_s: tuple[int, ...] = ()
    """The same for the time between checkpoints."""
    restarts: float = 0.0
    """How likely a driver whose run failed starts the next run itself; otherwise another driver is started."""
    joins: tuple[int, ...] = ()
    """Of each source but the first: the index of the run at which it joins the job; those not named here are there from the first."""
    reorders: int = 0
    """In which orders the sources come; 0: always in the same."""
    interventions: tuple[Intervention | None, ...] = ()
    """Before the first run, the second, ...; never in a job at most once."""
    object_store: bool = False
    """The storage is an object store, and Spark's log lies on the driver's machine, which is another one in some runs."""
    lost_answers: float = 0.0
    """How likely, in a troubled run, the answer to a conditional put of it is wrong."""
    wants: float = 0.0
    """The weight of a request for an immediate checkpoint among the possible next steps."""
    readers: float = 0.0
    """How likely a reader begins to read the newest checkpoint with a hold at an I/O call, one reader at a time."""

    @property
    def promise(self) -> Mode:
        """The guarantee that holds in the end: that of the job, or of its weaker runs, which are never of both weaker modes.

        A restart from an earlier point repeats output that was visible.
        """
        if any(self.interventions):
            return Mode.AT_LEAST_ONCE
        return self.promise_of_state

    @property
    def promise_of_state(self) -> Mode:
        """The same for the state, which interventions do not touch."""
        weaker = {*self.modes, self.checkpoint.delivery_mode} - {Mode.EXACTLY_ONCE}
        return weaker.pop() if weaker else Mode.EXACTLY_ONCE

    def intervention(self, run: int) -> Intervention | None:
        """Before the run with this index, from 0."""
        return self.interventions[run] if run < len(self.interventions) else None

    @property
    def most_retained(self) -> int:
        """How many checkpoints there may be."""
        return max(self.checkpoint.retained, *self.retained, 0)

    def settings(self, run: int) -> Checkpointing:
        """Of the run with this index, from 0."""
        changed: dict[str, Any] = {}
        if run < len(self.modes):
            changed["mode"] = self.modes[run]
        if run < len(self.retained):
            changed["retained"] = self.retained[run]
        if run < len(self.intervals_s):
            changed["interval"] = f"{self.intervals_s[run]}s"
        return replace(self.checkpoint, **changed)

    def backend_of(self, run: int) -> str:
        """Of the run with this index, from 0."""
        return (
            BACKENDS[(BACKENDS.index(self.backend) + run) % len(BACKENDS)] if self.changes else self.backend
        )

    def parallelism(self, run: int) -> int:
        """Of the run with this index, from 0."""
        return self.parallelisms[min(run, len(self.parallelisms) - 1)]

    def sources(self, run: int, uids: Sequence[str]) -> list[str]:
        """Those of the run with this index, in its order."""
        since = dict(zip(uids[1:], self.joins, strict=False))
        joined = [uid for uid in uids if since.get(uid, 0) <= run]
        if self.reorders:
            random.Random(f"order {self.reorders} of {run}").shuffle(joined)  # noqa: S311 - replayable on purpose
        return joined


def random_workload(seed: int) -> Workload:
    """A workload that follows from the seed."""
    rng = random.Random(f"workload {seed}")  # noqa: S311 - replayable on purpose
    checkpoint = Checkpointing(
        interval=f"{rng.choice([1, 2, 5, 10])}s",
        mode=rng.choices(list(Mode), weights=[4, 1, 1])[0],
        timeout=f"{rng.choice([20, 60])}s",
        min_pause=f"{rng.choice([0, 0, 3])}s",
        max_concurrent=rng.choice([1, 1, 2, 3]),
        tolerable_failures=rng.choice([0, 1, 3]),
        retained=rng.choice([1, 1, 2, 3]),
    )
    drawn = Workload(
        checkpoint=checkpoint,
        modes=_modes(checkpoint.delivery_mode, seed),
        restarts=random.Random(f"restarts {seed}").choice([0.0, 0.0, 0.8]),  # noqa: S311 - replayable on purpose
        backend=rng.choices(BACKENDS, [6, 3, 1])[0],
        partitions=rng.randint(1, 3),
        records=rng.randint(5, 60),
        keys=rng.randint(1, 8),
        batch_size=rng.randint(2, 12),
        in_sequence=rng.choice([True, False]),
        parallelisms=tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 4))),
        troubled_runs=rng.randint(0, 5),
        flakiness=rng.choice([0.0, 0.0, 0.01, 0.05]),
        mischief=rng.choice([0.0, 0.02, 0.1]),
        emits_once=rng.choice([True, False]),
        upload_pace=rng.choice([3.0, 3.0, 0.5]),
        commit_pace=rng.choice([4.0, 4.0, 0.2]),
        message_pace=rng.choice([6.0, 6.0, 0.7]),
        operators=rng.choice([1, 2, 2, 3]),
        sinks=_sinks(rng),
        machines=rng.choice([1, 2, 3]),
        local_recovery=rng.choice([True, True, False]),
        retained=tuple(rng.randint(1, 3) for _ in range(rng.choice([0, 0, 3]))),
        intervals_s=tuple(rng.choice([1, 5]) for _ in range(rng.choice([0, 0, 3]))),
    )
    # with a short time-out no checkpoint would ever be complete
    if drawn.upload_pace < 1 or drawn.message_pace < 1:
        drawn = msgspec.structs.replace(drawn, checkpoint=replace(drawn.checkpoint, timeout="10min"))
    drawn = _with_other_sources(_with_interventions(drawn, seed), seed)
    if drawn.emits_once:  # which tests little if every key is seen in the first batch
        return msgspec.structs.replace(drawn, keys=rng.choice([drawn.keys, drawn.records]))
    return drawn


def on_an_object_store(drawn: Workload, seed: int) -> Workload:
    """The same job with an object store for its storage, which loses answers as the seed says."""
    rng = random.Random(f"object store {seed}")  # noqa: S311 - replayable on purpose
    return msgspec.structs.replace(drawn, object_store=True, lost_answers=rng.choice([0.05, 0.3, 0.6]))


def _with_other_sources(drawn: Workload, seed: int) -> Workload:
    """Sometimes the sources change between runs. A source that is missing in the restored checkpoint starts again, at the end."""
    rng = random.Random(f"sources {seed}")  # noqa: S311 - replayable on purpose
    if rng.random() < MOST_KEEP_THEIR_SOURCES:
        return drawn
    joins = (
        ()
        if any(drawn.interventions)
        else tuple(rng.choice([0, 1, 2, 3]) for _ in range(drawn.partitions - 1))
    )
    return msgspec.structs.replace(drawn, joins=joins, reorders=rng.randint(1, 1000))


def _with_interventions(drawn: Workload, seed: int) -> Workload:
    """Sometimes a person intervenes. Not at most once, where records that are read again would be counted twice."""
    rng = random.Random(f"interventions {seed}")  # noqa: S311 - replayable on purpose
    if rng.random() < MOST_ARE_LEFT_ALONE or drawn.promise is Mode.AT_MOST_ONCE:
        return drawn
    return msgspec.structs.replace(
        drawn,
        interventions=tuple(rng.choice([None, *Intervention]) for _ in range(5)),
        checkpoint=replace(drawn.checkpoint, retained=3),
        retained=(),
        troubled_runs=5,
        flakiness=0.004,  # runs come so far that they retain checkpoints, and then fail in a driver that lives on
    )


def _sinks(rng: random.Random) -> tuple[SinkKind, ...]:
    others = [kind for kind in SinkKind if kind is not SinkKind.TRANSACTIONS]
    return (SinkKind.TRANSACTIONS, *rng.sample(others, rng.choice([0, 0, 1, 3])))


def _modes(last: Mode, seed: int) -> tuple[Mode, ...]:
    """Sometimes the mode changes between runs: from exactly once to a weaker one, and back."""
    rng = random.Random(f"modes {seed}")  # noqa: S311 - replayable on purpose
    if rng.random() < MOST_KEEP_THEIR_MODE:
        return ()
    weaker = rng.choice([Mode.AT_LEAST_ONCE, Mode.AT_MOST_ONCE]) if last is Mode.EXACTLY_ONCE else last
    return tuple(rng.choice([Mode.EXACTLY_ONCE, weaker]) for _ in range(4))


@dataclass(frozen=True)
class Record:
    """One record; `id` names its partition and offset, `number` what is counted."""

    id: str
    number: int


class Fault(enum.Enum):
    """Why a record cannot be taken."""

    NO_KEY = "it has no key"
    RAISES = "user code raises on it"
    REFUSED = "the sink refuses the row"


def fault_of(record: str, likelihood: float) -> Fault | None:
    """The fault of a record, the same at every replay."""
    rng = random.Random(f"fault of {record}")  # noqa: S311 - replayable on purpose
    return rng.choice(list(Fault)) if rng.random() < likelihood else None


@dataclass(frozen=True)
class Item:
    """An input row of an operator: some records under a key."""

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
        """The position before the first record."""
        return tuple(0 for _ in self._partitions)

    @property
    def end(self) -> Positions:
        """The position after the last record."""
        return tuple(len(partition) for partition in self._partitions)

    @property
    def uids(self) -> list[str]:
        """One for each partition: it is a source of the job."""
        return [source_of(f"{partition}:") for partition in range(len(self._partitions))]

    def at(self, positions: Mapping[str, object]) -> Positions:
        """The positions of all sources; a source that the job did not have yet is at its start."""
        return tuple(int(str(positions.get(uid) or 0)) for uid in self.uids)

    def decide_start(self, uid: str) -> int:
        """The position at which reading begins: before the first record on the first call, after the last on later calls."""
        first = uid not in self._asked
        self._asked.add(uid)
        return 0 if first else self.end[self.uids.index(uid)]

    def next_start(self, uid: str) -> int:
        """What `decide_start` would return, for a choice that does not count yet."""
        return self.end[self.uids.index(uid)] if uid in self._asked else 0

    def forget(self) -> None:
        """Treat the next call as the first: the job has started with new state."""
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
