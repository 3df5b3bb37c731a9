"""How many rows the job has left out, and what is said of it: one line a batch. Driver."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from penstock.ids import CheckpointId
from penstock.log_fields import about
from penstock.places import without_secrets
from penstock.run.assignment import BadCount
from penstock.wording import counted

_log = logging.getLogger(__name__)


class BadRecordCounts:
    """Counts over the life of the job: it begins with those of the checkpoint, so that a batch that is done again counts once."""

    def __init__(self, restored: Mapping[str, int], *, shows_reasons: bool = True) -> None:
        self._so_far = Counter(restored)
        self._shows_reasons = shows_reasons

    @property
    def so_far(self) -> dict[str, int]:
        """By operator or sink."""
        return dict(self._so_far)

    def add(self, batch: CheckpointId, found: Mapping[str, BadCount]) -> None:
        """Take the counts of a batch and say them."""
        for uid, bad in found.items():
            self._so_far[uid] += bad.rows
            _log.log(
                logging.ERROR if bad.rows == bad.of else logging.WARNING,
                "batch %d: %s of %d rows were bad at %r, %d so far; the first: %s",
                *(batch, "ALL" if bad.rows == bad.of else bad.rows, bad.of, uid, self._so_far[uid]),
                without_secrets(bad.first_reason) if self._shows_reasons else "(not shown)",
                extra=about(checkpoint=batch, operator=uid),
            )


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
