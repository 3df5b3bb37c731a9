"""Why a checkpoint was given up. Driver."""

from __future__ import annotations

import enum


class FailureReason(enum.Enum):
    """The reason, and whether it counts against `tolerable_failures`."""

    EXPIRED = ("was not complete in time", True)
    DECLINED = ("was declined by a subtask: its state could not be stored", True)
    METADATA_FAILED = ("could not be completed: its metadata could not be written", True)
    SUBSUMED = ("was overtaken by a newer one", False)
    JOB_ENDED = ("was under way when the job ended", False)

    def __init__(self, text: str, counts: bool) -> None:
        self.text = text
        self.counts = counts
