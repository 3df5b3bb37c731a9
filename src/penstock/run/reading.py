"""Where a run reads: the positions of each batch in Spark's progress log, and what must be recorded before the batch runs. Driver."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from penstock.checkpoint.model import Barrier, SourceFile
from penstock.clock import Clock
from penstock.config import Mode
from penstock.errors import UnavailableError
from penstock.graph import TimeSettings
from penstock.ids import NO_CHECKPOINT, CheckpointId, SparkBatch
from penstock.job_spec import Numbers
from penstock.recovery import progress_log
from penstock.recovery.progress_log import ProgressLog, SourceLog
from penstock.recovery.restore_plan import RestorePlan
from penstock.recovery.source_match import without_position
from penstock.recovery.started_batches import BarrierOverride, StartedBatch, record_started

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOK_ON_DISK_EVERY_S = 0.1
"""A look at a log on the driver's own disk costs nothing, and what is found there may be lost at any time."""


@dataclass
class Reading:
    """The reading side of one run. Batches begin in Spark's thread; the thread that watches the query calls `look_for_the_start`."""

    log: ProgressLog
    sources: SourceLog
    numbers: Numbers
    """The sources of the job, in order, with the numbers under which Spark knows the streaming sources in each."""
    plan: RestorePlan
    mode: Mode
    hold: Callable[[CheckpointId, frozenset[str]], None]
    """Called with the files to keep in storage for the next run."""
    clock: Clock
    _start_is_known: bool = field(init=False)
    """Every source has a position, or a batch has begun in this run. Until then, sources may still choose where they begin."""
    _recorded: frozenset[SourceFile] = field(init=False)
    _last: SparkBatch = field(init=False)
    """Spark's number of the last batch that was read. Batches that read nothing do not count here, so it can be lower than ours."""
    _barrier: Barrier = field(init=False)
    """Where that batch ended."""
    _next_look: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        known = self.plan.last_read != NO_CHECKPOINT
        self._start_is_known = known and not without_position(self.plan.barrier)
        self._recorded = frozenset(self.plan.barrier.source_log)
        self._last, self._barrier = SparkBatch(self.plan.last_read), self.plan.barrier

    @property
    def barrier(self) -> Barrier:
        """Where the last batch that read anything ended. A batch that reads nothing ends there, too."""
        return self._barrier

    def read(self, batch: SparkBatch) -> Barrier:
        """Read where a batch ends, by Spark's number of it."""
        self._check_follows(batch, self._last)
        with self._lock, self._own_log():
            entry = self.log.entry(batch)
            self._keep_start()
            self._start_is_known = True  # Spark asks every source before it plans the first batch
            self._barrier = Barrier(self._positions(entry), entry, self.sources.keep(), numbers=self._numbers)
        self._last = batch
        return self._barrier

    def begin(self, batch: CheckpointId, barrier: Barrier) -> None:
        """Record what a later run must know about the batch even if this run dies now. `batch` is the job's own number."""
        if self.mode is Mode.AT_MOST_ONCE:
            self._record(StartedBatch(self.log.run, barrier, batch))

    def look_for_the_start(self) -> None:
        """Record where the sources begin, as long as no batch has begun."""
        now = self.clock.monotonic()
        if self._start_is_known or now < self._next_look:
            return
        self._next_look = now + (LOOK_ON_DISK_EVERY_S if self.log.is_disposable else LOOK_EVERY_S)
        try:
            with self._lock, self._own_log():
                self._keep_start()
        except UnavailableError as error:
            _log.warning("where the sources begin could not be recorded yet: %s", error)

    @contextmanager
    def _own_log(self) -> Iterator[None]:
        """Explain a missing log: only a run that takes over deletes it. This run is fenced at its next check of the claim."""
        try:
            yield
        except FileNotFoundError as gone:
            raise UnavailableError(
                f"Spark's progress log {self.log.folder} in {self.log.place.uri} is incomplete ({gone}): another run has "
                "taken the job over, or the log was deleted",
                folder=self.log.folder,
            ) from gone

    def _keep_start(self) -> None:
        """Record the start: if this run completes no checkpoint, the next run must begin at the same positions."""
        files = () if self._start_is_known else self.sources.keep()
        if not self._recorded.issuperset(files):
            self._record(self._with_start(files))
            self._recorded = frozenset(files)

    def _with_start(self, files: tuple[SourceFile, ...]) -> StartedBatch:
        """The record from the beginning of this run, with the files that sources have written since."""
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
        # only after the record is written: until now the record named other files
        self.hold(started.id, started.files)

    def _check_follows(self, batch: SparkBatch, after: SparkBatch) -> None:
        """Check the order of batches. The log belongs to this run only, so another number means that rows are missing or repeated."""
        if batch != after + 1:
            raise UnavailableError(
                f"batch {batch} came after batch {after}: something else than Spark has changed its progress log {self.log.folder} in "
                f"{self.log.place.uri}; the job goes back to its checkpoint, with a log of its own",
                batch=batch,
                expected=after + 1,
            )

    def _positions(self, entry: str) -> dict[str, object]:
        """The positions by source; a source with several streams has a list."""
        found = iter(progress_log.positions(entry))
        result: dict[str, object] = {}
        for uid, numbers in self.numbers.items():
            own = [next(found, None) for _ in numbers]
            result[uid] = own[0] if len(own) == 1 else own
        return result


ALL_ROWS = "*"
"""The partition of a source whose rows do not tell their partition. No partition name looks like it."""


def partition_name(parts: Sequence[object]) -> str:
    """The name of a partition: the values that identify it, as JSON. Two partitions never share a name, whatever the values are."""
    texts = [None if part is None else str(part) for part in parts]
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def partition_parts(name: str) -> list[str | None]:
    """The values that identify the partition of this name."""
    parts: list[str | None] = json.loads(name)
    return parts


def moved(before: Mapping[str, object], after: Mapping[str, object]) -> frozenset[str]:
    """The sources whose positions differ: those that a batch may have read."""
    return frozenset(uid for uid, position in after.items() if uid not in before or before[uid] != position)


def named_partitions(
    positions: Mapping[str, object], event_times: Mapping[str, TimeSettings]
) -> dict[str, frozenset[str]]:
    """The partitions of sources whose positions name them. Kafka's look like `{"topic": {"0": 17}}`, those of a log like `{"0": 17}`."""
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
