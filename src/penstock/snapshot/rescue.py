"""Uploads that nobody works on any more: a Python worker died with them in its queue, and no later batch took them along. Driver.

The next batch of a subtask uploads what is missing by itself. This is for the time when there is no next batch, or when the next batch
merged the missing files away and a pending checkpoint still waits for them. It can help only where the driver sees the executors'
working files; elsewhere the checkpoint expires, and the job goes on from the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.snapshot.store import refs_of, store
from penstock.state.handle import StateHandle
from penstock.storage import Storage

_log = logging.getLogger(__name__)

STUCK_AFTER_S = 30.0


@dataclass
class Rescue:
    """Watches what is not durable; what does not move for a while is uploaded from here."""

    storage: Storage
    local_dir: Path
    clock: Clock
    report: Callable[[StateHandle], None]
    _since: dict[StateHandle, float] = field(default_factory=dict)

    def look(self, undurable: Iterable[StateHandle]) -> None:
        """Called again and again with what is not durable at the moment."""
        now = self.clock.monotonic()
        self._since = {handle: self._since.get(handle, now) for handle in undurable}
        for handle, since in self._since.items():
            if now - since >= STUCK_AFTER_S:
                self._since[handle] = now
                self._upload(handle)

    def _upload(self, handle: StateHandle) -> None:
        try:
            stored = set(self.storage.names(f"state/{handle.subtask.uid}"))
            missing = refs_of(handle, handle.files - stored)
            if all((self.local_dir / ref.name).exists() for ref in missing):
                for ref in missing:
                    store(self.storage, self.local_dir, ref)
                _log.info(
                    "%s: %d state files of a lost worker were stored by the driver",
                    handle.subtask,
                    len(missing),
                )
                self.report(handle)
        except (UnavailableError, FileNotFoundError) as error:
            _log.warning("%s: state files of a lost worker could not be stored: %s", handle.subtask, error)
