"""Where a run reads: the positions of each batch in Spark's progress log, and what must be recorded before the batch runs. Driver."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from penstock.checkpoint.completed import Barrier, SourceFile
from penstock.clock import Clock
from penstock.config import Mode
from penstock.errors import UnavailableError
from penstock.graph import TimeSettings
from penstock.ids import NO_CHECKPOINT, CheckpointId
from penstock.job_spec import Numbers
from penstock.recovery import progress_log
from penstock.recovery.progress_log import ProgressLog, SourceLog
from penstock.recovery.restore_plan import RestorePlan
from penstock.recovery.source_match import without_position
from penstock.recovery.started_batches import BarrierOverride, StartedBatch, record_started

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


@dataclass
class Reading:
    """One per run. Batches begin in Spark's thread; the thread that watches the query looks for the start."""

    log: ProgressLog
    sources: SourceLog
    numbers: Numbers
    """The sources of the job, in order, with the number under which Spark knows each streaming source in them."""
    plan: RestorePlan
    mode: Mode
    hold: Callable[[CheckpointId, frozenset[str]], None]
    """Told what to keep in storage for the next run."""
    clock: Clock
    _start_is_known: bool = field(init=False)
    """Every source has a position, or a batch has begun in this run: until then a source may still decide, after another has."""
    _recorded: frozenset[SourceFile] = field(init=False)
    _last: CheckpointId = field(init=False)
    """Spark's number of the last batch that was read. In this run it falls behind that of the batch by those that read nothing."""
    _barrier: Barrier = field(init=False)
    """Where it ended."""
    _next_look: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        known = self.plan.last_read != NO_CHECKPOINT
        self._start_is_known = known and not without_position(self.plan.barrier)
        self._recorded = frozenset(self.plan.barrier.source_log)
        self._last, self._barrier = self.plan.last_read, self.plan.barrier

    @property
    def barrier(self) -> Barrier:
        """Where the last batch ended that read anything: where one ends that reads nothing."""
        return self._barrier

    def read(self, batch: CheckpointId) -> Barrier:
        """Read where a batch of Spark's ends, by Spark's number."""
        self._check_follows(batch, self._last)
        with self._lock, self._own_log():
            entry = self.log.entry(batch)
            self._keep_start()
            self._start_is_known = True  # Spark asks every source before it plans the first batch
            self._barrier = Barrier(self._positions(entry), entry, self.sources.keep(), numbers=self._numbers)
        self._last = batch
        return self._barrier

    def begin(self, batch: CheckpointId, barrier: Barrier) -> None:
        """Record what a later run must know of a batch even if this one dies now. Called with the number of the job's own."""
        if self.mode is Mode.AT_MOST_ONCE:
            self._record(StartedBatch(self.log.run, barrier, batch))

    def look_for_the_start(self) -> None:
        """Keep where the sources have decided to begin, while no batch comes that would do it."""
        now = self.clock.monotonic()
        if self._start_is_known or now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        try:
            with self._lock, self._own_log():
                self._keep_start()
        except UnavailableError as error:
            _log.warning("where the sources begin could not be recorded yet: %s", error)

    @contextmanager
    def _own_log(self) -> Iterator[None]:
        """Only a run that takes over deletes the log of another. This one is told at its next look at the claims."""
        try:
            yield
        except FileNotFoundError as gone:
            raise UnavailableError(
                f"Spark's progress log {self.log.folder} in {self.log.storage.uri} is not whole any more ({gone}): another run has "
                "taken the job over, or somebody has deleted it",
                folder=self.log.folder,
            ) from gone

    def _keep_start(self) -> None:
        """The next run, should this one complete no checkpoint, must begin where this one did."""
        files = () if self._start_is_known else self.sources.keep()
        if not self._recorded.issuperset(files):
            self._record(self._with_start(files))
            self._recorded = frozenset(files)

    def _with_start(self, files: tuple[SourceFile, ...]) -> StartedBatch:
        """What was recorded when this run began, with what sources have noted since."""
        run, plan = self.log.run, self.plan
        if plan.last_read == NO_CHECKPOINT:
            return StartedBatch(run, Barrier(dict.fromkeys(self.numbers), "", files, numbers=self._numbers))
        started = (
            msgspec.structs.replace(plan.started, run=run) if plan.started else StartedBatch(run, Barrier())
        )
        if plan.resumes_after_started or plan.checkpoint is None:
            return msgspec.structs.replace(
                started, barrier=msgspec.structs.replace(started.barrier, source_log=files)
            )
        barrier = msgspec.structs.replace(plan.barrier, source_log=files)
        return msgspec.structs.replace(
            started, instead=BarrierOverride(plan.checkpoint.checkpoint, plan.checkpoint.run, barrier)
        )

    @property
    def _numbers(self) -> dict[str, tuple[int, ...]]:
        return {uid: tuple(own) for uid, own in self.numbers.items()}

    def _record(self, started: StartedBatch) -> None:
        started = msgspec.structs.replace(started, positions_set=dict(self.plan.options.positions))
        record_started(self.log.storage, started)
        self.hold(started.id, started.files)  # not before: until now the record named others

    def _check_follows(self, batch: CheckpointId, after: CheckpointId) -> None:
        """The log is this run's alone and says which batch was the last: another number means that rows are missing or come twice."""
        if batch != after + 1:
            raise UnavailableError(
                f"batch {batch} came after batch {after}: something else than Spark has changed its progress log {self.log.folder} in "
                f"{self.log.storage.uri}; the job goes back to its checkpoint, with a log of its own",
                batch=batch,
                expected=after + 1,
            )

    def _positions(self, entry: str) -> dict[str, object]:
        """The positions by source; a source with several streams in it has a list."""
        found = iter(progress_log.positions(entry))
        result: dict[str, object] = {}
        for uid, numbers in self.numbers.items():
            own = [next(found, None) for _ in numbers]
            result[uid] = own[0] if len(own) == 1 else own
        return result


ALL_ROWS = "*"
"""The partition of a source whose rows do not tell theirs. No name of a partition is like it."""


def partition_name(parts: Sequence[object]) -> str:
    """How a partition is called: what tells it apart, as texts, in JSON. Two never share a name, whatever is in the columns."""
    texts = [None if part is None else str(part) for part in parts]
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def partition_parts(name: str) -> list[str | None]:
    """What tells the partition of this name apart."""
    parts: list[str | None] = json.loads(name)
    return parts


def moved(before: Mapping[str, object], after: Mapping[str, object]) -> frozenset[str]:
    """The sources of which a batch that ends there may have rows."""
    return frozenset(uid for uid, position in after.items() if uid not in before or before[uid] != position)


def named_partitions(
    positions: Mapping[str, object], event_times: Mapping[str, TimeSettings]
) -> dict[str, frozenset[str]]:
    """The partitions of the sources whose positions name them; Kafka's are `{"topic": {"0": 17}}`, those of a log `{"0": 17}`."""
    return {
        uid: frozenset(map(partition_name, _leaves(position)))
        for uid, settings in event_times.items()
        if settings.in_positions and isinstance(position := positions.get(uid), dict)
    }


def _leaves(position: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in position.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name)
