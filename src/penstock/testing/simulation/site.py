"""What a simulated run finds when it starts and leaves when it dies: storage, machines with their files and Python workers, time."""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from penstock.checkpoint.events import CheckpointListener
from penstock.clock import Clock
from penstock.recovery.restore_plan import RestorePlan
from penstock.run.assignment import Answer
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.snapshot.mailbox import Message
from penstock.snapshot.merger import Merge
from penstock.snapshot.merger import perform as merge_files
from penstock.snapshot.uploader import Upload, UploadLane, UploadLanes
from penstock.snapshot.uploader import perform as store
from penstock.storage import Storage
from penstock.testing.simulation.external import External
from penstock.testing.simulation.lifeline import Lifeline
from penstock.testing.simulation.topology import Topology
from penstock.testing.simulation.workload import ScriptedSource, Workload
from penstock.testing.virtual import VirtualClock, VirtualStorage

WORKERS = 2
"""Of each machine: two tasks of one subtask may meet different ones, which know nothing of each other."""

Work = Upload | Merge


class Worker:
    """A Python worker: what it uploads waits in the lanes of the real one, merges are done one after the other."""

    def __init__(self) -> None:
        self._uploads = UploadLanes()
        self._busy: list[UploadLane] = []
        self._merges: deque[Merge] = deque()

    def upload(self, upload: Upload) -> None:
        """Queue an upload for this worker."""
        lane = self._uploads.put(upload)
        if lane is not None:
            self._busy.append(lane)

    def merge(self, merge: Merge) -> None:
        """Queue a merge for this worker."""
        self._merges.append(merge)

    @property
    def has_uploads(self) -> bool:
        """Whether a lane has work."""
        return bool(self._busy)

    @property
    def has_merges(self) -> bool:
        """Whether a merge is queued here."""
        return bool(self._merges)

    def next_upload(self, rng: random.Random) -> Upload | None:
        """The next one of some lane; None when the lane turns out to be empty."""
        lane = rng.choice(self._busy)
        upload = self._uploads.next(lane)
        if upload is None:
            self._busy.remove(lane)
        return upload

    def next_merge(self) -> Merge:
        """Remove and return the oldest task."""
        return self._merges.popleft()

    def left(self) -> list[Work]:
        """The tasks that it has not begun."""
        return [*self._uploads.waiting, *self._merges]


@dataclass
class Machines:
    """All machines of the cluster; the driver is on the first one. Workers live as long as the run, folders longer."""

    root: Path
    number: int
    _workers: list[list[Worker]] = field(init=False)

    def __post_init__(self) -> None:
        self._workers = [[Worker() for _ in range(WORKERS)] for _ in range(self.number)]

    @staticmethod
    def folder(root: Path, machine: int) -> Path:
        """The folder of one machine."""
        return root / f"machine-{machine}"

    def local_dir(self, on_the_driver: Path, machine: int) -> Path:
        """The location of a path, which every machine has, on one of them."""
        inside = on_the_driver.relative_to(self.folder(self.root, 0))
        return self.folder(self.root, machine) / inside

    def pick(self, rng: random.Random) -> tuple[int, Worker]:
        """The machine on which a task runs."""
        machine = rng.randrange(self.number)
        return machine, rng.choice(self._workers[machine])

    def workers(self) -> Iterator[Worker]:
        """The workers of all machines."""
        return (worker for workers in self._workers for worker in workers)

    def die(self, machine: int) -> None:
        """An executor is lost with its disk, and with what its workers were about to do. Another takes its place."""
        shutil.rmtree(self.folder(self.root, machine), ignore_errors=True)
        self._workers[machine] = [Worker() for _ in range(WORKERS)]

    def working_files(self) -> list[Path]:
        """All working files of all runs, on all machines."""
        return sorted(self.root.glob("machine-*/*/*/state/*/*"))


@dataclass
class VirtualExecutor:
    """One attempt of one task; what it answers counts only if the attempt is kept."""

    number: int
    index: int
    worker: Worker
    clock: Clock
    send: Callable[[Message], None]
    answers: list[Answer] = field(default_factory=list)

    def attempt(self) -> int:
        """The number of this attempt among all attempts of the run."""
        return self.number

    def partition(self) -> int:
        """The index of this task in its stage."""
        return self.index

    def answer(self, answer: Answer) -> None:
        """Keep the result of the task for the driver."""
        self.answers.append(answer)

    def upload(self, upload: Upload) -> None:
        """Queue the upload in the worker's background thread."""
        self.worker.upload(upload)

    def merge(self, merge: Merge) -> None:
        """Queue the merge in the worker's background thread."""
        self.worker.merge(merge)

    def tell(self, message: Message) -> None:
        """Send a message to the simulated driver."""
        self.send(message)


def perform(work: Work) -> Message:
    """Perform a queued task, as a thread of a worker does."""
    return store(work) if isinstance(work, Upload) else merge_files(work)


class SharedTime(VirtualClock):
    """The clock of tasks: while one of them waits, something else may happen."""

    def __init__(self, clock: Clock, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._clock = clock
        self._meanwhile = meanwhile

    @override
    def monotonic(self) -> float:
        return self._clock.monotonic()

    @override
    def wall(self) -> float:
        return self._clock.wall()

    @override
    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)
        self._meanwhile()


JOB = "simulated"

Sinks = Mapping[str, Mapping[str, TwoPhaseCommitSink]]
"""By operator, then by uid."""


@dataclass
class Site:
    """The world outside the driver's memory."""

    workload: Workload
    root: Path
    source: ScriptedSource
    storage: Storage = field(default_factory=VirtualStorage)
    """The job's storage, without faults."""
    disk: VirtualStorage = field(default_factory=lambda: VirtualStorage("file:///driver"))
    """Where Spark's log lies if the storage is an object store. A driver on another machine has another one."""
    external: External = field(default_factory=External)
    clock: VirtualClock = field(default_factory=VirtualClock)
    orphans: list[Work] = field(default_factory=list)
    """Uploads and merges of runs that failed: their workers may still live and perform them."""
    disturbed: bool = False
    """Whether anything of an earlier run moved since the present one began."""
    make_sinks: Callable[[Lifeline], Sinks] | None = None
    """The sinks of a run, where they do not write to `external`."""
    on_restored: Callable[[RestorePlan], None] = lambda _: None
    listener: CheckpointListener = field(default_factory=CheckpointListener)

    @property
    def topology(self) -> Topology:
        """The shape of the job."""
        work = self.workload
        return Topology(
            work.operators, work.in_sequence, work.emits_once, work.bad_records, work.every_kind, work.timers
        )

    def topology_of(self, run: int) -> Topology:
        """The same in the version of a run."""
        return self.topology.of_run(run, changes=self.workload.changes)

    @property
    def staging(self) -> Path:
        """Where sinks keep rows that wait for a checkpoint."""
        return self.root / "staging"

    @property
    def working_folder(self) -> Path:
        """Where the driver's machine keeps working files of the job; others have the same below a folder of their own."""
        return Machines.folder(self.root, 0) / JOB


@dataclass(frozen=True)
class Conditions:
    """How one run of the job is treated."""

    index: int
    rng: random.Random
    troubled: bool
    drops_attempts: float
    mischief: float
    flakiness: float
    lost_answers: float
    alone: bool
    """Whether no process of an earlier run is left: then its machine may have crashed, and damaged its files."""
