"""The status of a job, and the options of its start. Driver."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field, replace

from penstock import start_options
from penstock.dashboard.ui_options import UiOptions
from penstock.ownership.runs import EarlierAttempts
from penstock.recovery.restore_options import RestoreOptions
from penstock.savepoint.restore import GivenSavepoint
from penstock.status.listeners import Listeners

_log = logging.getLogger(__name__)


class Status(enum.StrEnum):
    """The status of a job. Each value equals its string, such as "finished"."""

    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class StartOptions:
    """The options of a start, see `Job.start`."""

    available_now: bool = False
    restore: int | None = None
    takeover: bool = False
    drain: bool = False
    savepoint: GivenSavepoint | None = None
    changes: RestoreOptions = field(default_factory=RestoreOptions)
    ui: UiOptions | None = None
    listeners: Listeners = field(default_factory=Listeners)

    def without_done_actions(self, earlier: EarlierAttempts) -> StartOptions:
        """Without actions that earlier attempts of the same supervisor completed: repeating them would lose all later progress."""
        restore = self.restore
        if restore is not None and earlier.have_restored(restore):
            _log.info(
                "%s was done before this program died: the job goes on from its newest checkpoint",
                start_options.restore(restore),
            )
            restore = None
        return replace(self, restore=restore, takeover=self.takeover and not earlier.have_claimed)
