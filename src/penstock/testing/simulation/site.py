"""What a simulated run finds when it starts, and what stays when it dies."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.checkpoint.events import CheckpointListener
from penstock.recovery.restore_plan import RestorePlan
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.storage import Storage
from penstock.testing.simulation.external import External
from penstock.testing.simulation.lifeline import Lifeline
from penstock.testing.simulation.machines import Machines, Work
from penstock.testing.simulation.source import ScriptedSource
from penstock.testing.simulation.topology import Topology
from penstock.testing.simulation.workload import Workload
from penstock.testing.virtual import VirtualClock, VirtualStorage

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
    alone: bool
    """Whether no process of an earlier run is left: then its machine may have crashed, and damaged its files."""
