"""Where a job is in its life, and what its start was asked for. Driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from penstock.dashboard.ui_options import UiOptions
from penstock.engine.adopting import Savepoint
from penstock.journal.listening import Listeners
from penstock.recovery.changes import Changes


class Status(enum.Enum):
    """Where a job is in its life."""

    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class StartOptions:
    """What a start was asked for, see `Job.start`."""

    available_now: bool = False
    restore: int | None = None
    takeover: bool = False
    drop_state: tuple[str, ...] = ()
    drain: bool = False
    savepoint: Savepoint | None = None
    changes: Changes = field(default_factory=Changes)
    ui: UiOptions | None = None
    listeners: Listeners = field(default_factory=Listeners)
