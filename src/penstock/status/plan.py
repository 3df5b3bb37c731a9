"""What a job is, as a run writes it down once: `runs/<k>.plan`. Data only; driver."""

from __future__ import annotations

import msgspec


class PlanNode(msgspec.Struct, frozen=True, kw_only=True):
    """A source, an operator or a sink."""

    uid: str
    kind: str
    """`source`, `operator` or `sink`."""
    what: str
    """In a few words: `aggregate by app`, `SQLite page-views/views.db`, `kafka`."""
    inputs: tuple[str, ...] = ()
    """The uids of those whose rows come to it directly."""
    parallelism: int = 0
    """0: as many tasks as Spark makes."""
    keys: tuple[str, ...] = ()
    event_time: bool = False
    """Whether it goes by event time."""
    promise: str = ""
    """Of a sink: when its rows are visible, or what may come of a repetition."""
    partly_aggregated: bool = False
    """Whether the rows that come to it are counted behind Spark's own partial aggregation: fewer than were read."""


PARTLY_AGGREGATED = "partly aggregated"
"""What is said beside numbers of rows of such a node."""


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the job was told about checkpoints and restarts."""

    mode: str
    interval_s: float
    timeout_s: float
    min_pause_s: float
    max_concurrent: int
    tolerable_failures: int
    retained: int
    on_cancel: str
    restart: str
    trigger_s: float | None = None
    backend: str = ""
    parallelism: int = 0
    max_parallelism: int = 0
    local_recovery: bool = True


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all runs of one start."""

    job: str
    nodes: tuple[PlanNode, ...]
    """Those in front come first."""
    settings: PlanSettings
    guarantee: str
    """`exactly-once`, ... or `no guarantee`."""
    limited_by: str = ""
    reason: str = ""
    program: str = ""
    penstock: str = ""
    spark: str = ""
    python: str = ""
    available_now: bool = False
