"""A job as the engine sees it: its name, its storage, its operators and sinks. Driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from penstock.config import Checkpointing, Mode
from penstock.graph import TimeSettings
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.state.backends.base import StateBackend, StateLayout
from penstock.storage import Storage

Numbers = Mapping[str, Sequence[int]]
"""The sources of a job, in order, with Spark's number of each of their streams. A stream that is read twice has one number."""


@dataclass(frozen=True)
class Uids:
    """The uids of sources, operators and sinks, in the job or in a checkpoint."""

    sources: Collection[str]
    operators: Collection[str]
    sinks: Collection[str]


def in_order(streams: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The numbers of sources none of which is read twice."""
    ends = accumulate(streams.values())
    return {
        uid: tuple(range(end - count, end)) for (uid, count), end in zip(streams.items(), ends, strict=True)
    }


@dataclass(frozen=True)
class JobSpec:
    """The same for all runs of one start."""

    name: str
    owner: str
    """Under which name the job keeps its transactions in the sinks, see `JobRecord`."""
    storage: Storage
    backend: StateBackend
    checkpoint: Checkpointing
    parallelism: int
    max_parallelism: int
    working_folder: Path
    """Where every machine keeps working files of the job; each run has a folder of its own in it."""
    local_recovery: bool
    layouts: Mapping[str, StateLayout]
    """The operators, and the columns of their state."""
    upstream: Mapping[str, Sequence[str]]
    """For each operator all operators upstream of it, in topological order."""
    sinks: Mapping[str, TwoPhaseCommitSink]
    streams: Mapping[str, int]
    """How many streaming sources Spark sees in each source of the job, in order."""
    numbers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """For each of them the number under which Spark knows it; empty where each has its own, in order. See `source_numbers`."""
    event_times: Mapping[str, TimeSettings] = field(default_factory=dict)
    """The sources with event time."""
    timed_by: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each operator the sources among them whose rows come to it."""
    lateness_us: Mapping[str, int] = field(default_factory=dict)
    """For each operator with windows in event time, how long they are kept after they have closed."""
    replayable: Sequence[bool] = ()
    """At most once: for each streaming source whether it can replay."""
    log_place: Storage | None = None
    """Where Spark's progress logs lie; None: in `storage`. See `place_of_log`."""
    shows_rows: bool = True
    """Whether messages about failures may contain values of rows."""

    @property
    def source_numbers(self) -> Mapping[str, Sequence[int]]:
        """The sources in order; for each of their streams the number under which Spark knows it."""
        return self.numbers or in_order(self.streams)

    @property
    def uids(self) -> Uids:
        """The uids of sources, operators and sinks."""
        return Uids(tuple(self.streams), tuple(self.layouts), tuple(self.sinks))

    @property
    def mode(self) -> Mode:
        """The delivery guarantee of the job."""
        return self.checkpoint.delivery_mode
