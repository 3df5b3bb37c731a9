"""How many rows have come too late, and what is said of it. Driver."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from penstock.ids import CheckpointId
from penstock.log_fields import about
from penstock.wording import counted

_log = logging.getLogger(__name__)


class LateRowCounts:
    """Counts over the life of the job: it begins with those of the checkpoint, so that a batch that is done again counts once."""

    def __init__(self, restored: Mapping[str, int]) -> None:
        self._so_far = Counter(restored)
        self._told: set[str] = set()

    @property
    def so_far(self) -> dict[str, int]:
        """By operator."""
        return dict(self._so_far)

    def add(self, batch: CheckpointId, found: Mapping[str, int]) -> None:
        """Take the counts of a batch. The first of a run is a warning: rows may be late in every batch."""
        for uid, rows in found.items():
            self._so_far[uid] += rows
            _log.log(
                logging.INFO if uid in self._told else logging.WARNING,
                "batch %d: %s too late for %r, %d so far: older than the watermark, or with a time that is missing or not believed",
                *(batch, counted(rows, "row came", "rows came"), uid, self._so_far[uid]),
                extra=about(checkpoint=batch, operator=uid),
            )
            self._told.add(uid)
