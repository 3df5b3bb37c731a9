"""Uploads that nobody works on any more: a Python worker died with them in its queue or gave them up, and no batch came after. Driver.

The next batch of a subtask uploads what is missing by itself. This is for the time when there is no next batch, or when the next batch
merged the missing files away and a pending checkpoint still waits for them. It can help only where the driver sees the executors'
working files; elsewhere the checkpoint expires, and the job goes on from the one before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.ids import SubtaskId
from penstock.log_fields import in_context
from penstock.snapshot.transfer import Room, store_all
from penstock.state.handle import StateHandle
from penstock.storage import Storage

_log = logging.getLogger(__name__)

STUCK_AFTER_S = 30.0
RETRY_AFTER_S = 2.0
"""When a worker has said that its upload failed."""


@dataclass
class Rescue:
    """Watches what is not durable; what does not move for a while is uploaded from here, one handle at a time.

    `run` performs an upload: in the background where storage may be slow, so that nobody has to wait for it.
    """

    storage: Storage
    local_dir: Path
    clock: Clock
    report: Callable[[StateHandle], None]
    gave_up: Callable[[StateHandle, str], None] = lambda _handle, _cause: None
    """Told, with the cause, of a handle that could not be stored; some of its files may have been."""
    run: Callable[[Callable[[], None]], None] = lambda upload: upload()
    room: Room | None = None
    """How many files go at once; without it one after the other."""
    _since: dict[StateHandle, float] = field(default_factory=dict)
    _failed: dict[SubtaskId, float] = field(default_factory=dict)
    _at_work: threading.Lock = field(default_factory=threading.Lock)

    def failed(self, subtask: SubtaskId) -> None:
        """A worker has given an upload of this subtask up: unless a batch comes soon, nobody works on its files."""
        self._failed[subtask] = self.clock.monotonic()

    def look(self, undurable: Iterable[StateHandle]) -> None:
        """Called again and again with what is not durable at the moment."""
        now = self.clock.monotonic()
        self._since = {handle: self._since.get(handle, now) for handle in undurable}
        for handle, since in self._since.items():
            if self._is_stuck(handle, since, now) and self._at_work.acquire(blocking=False):
                self._since[handle] = now
                self._failed.pop(handle.subtask, None)
                self.run(partial(self._upload, handle))

    def _is_stuck(self, handle: StateHandle, since: float, now: float) -> bool:
        failed_at = self._failed.get(handle.subtask, now)
        return now - since >= STUCK_AFTER_S or now - failed_at >= RETRY_AFTER_S

    def _upload(self, handle: StateHandle) -> None:
        try:
            files = {ref.name: ref for ref in handle.refs if ref.name}
            store_all(self.storage, self.local_dir, files, self.room)
        except UnavailableError as error:
            _log.warning(
                "%s: state files that no worker stores could not be stored: %s", handle.subtask, error
            )
            self.gave_up(handle, str(error))
        else:
            _log.info("%s: state files that no worker stored were stored by the driver", handle.subtask)
            self.report(handle)
        finally:
            self._at_work.release()


def in_background(upload: Callable[[], None]) -> None:
    """Perform an upload in a thread of its own."""
    threading.Thread(target=in_context(upload), name="penstock-rescue", daemon=True).start()
