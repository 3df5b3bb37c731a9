"""The asynchronous part of a snapshot: a background thread that uploads while later batches run. Executors.

The thread lives in the Python worker and outlives its task. The worker may die before the upload ends: the next snapshot of the
same subtask uploads every file that the driver does not know to be durable, whoever wrote it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import msgspec

from penstock.ids import SubtaskId
from penstock.snapshot.mailbox import Address, send
from penstock.snapshot.messages import Message, UploadDone, UploadFailed
from penstock.snapshot.store import refs_of, store
from penstock.state.handle import RunRef, StateHandle
from penstock.storage import Storage

_log = logging.getLogger(__name__)
_HANDLES = msgspec.json.Decoder(StateHandle)  # made before there are threads, see `mailbox`


@dataclass(frozen=True)
class Upload:
    """One version of one subtask to be made durable.

    `required`: a checkpoint waits for just this version. Otherwise it may be left out when a newer one is waiting already.
    `newest_will_do`: at least once; whatever version is newest on this machine when the upload begins is handed in.
    """

    storage: Storage
    local_dir: Path
    mailbox: Address
    run: int
    handle: StateHandle
    durable: frozenset[str]
    required: bool
    newest_will_do: bool = False

    @property
    def missing(self) -> list[RunRef]:
        """The files that may not be in storage yet."""
        return refs_of(self.handle, self.handle.files - self.durable)


def remember_newest(local_dir: Path, handle: StateHandle) -> None:
    """Leave the handle where any worker on this machine finds it."""
    path = _newest_path(local_dir, handle)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(
        f"{path.name}.{uuid4().hex}"
    )  # workers are forks: their thread ids are all the same
    scratch.write_bytes(msgspec.json.encode(handle))
    scratch.replace(path)


def _newest_path(local_dir: Path, handle: StateHandle) -> Path:
    return local_dir / "newest" / f"{handle.subtask}.json"


def perform(upload: Upload) -> Message:
    """Upload what is missing and say how it went."""
    started = time.monotonic()
    asked = upload.handle
    try:
        upload.storage.wait_for_turn(asked.subtask)
        if upload.newest_will_do:
            upload = _with_newest(upload)
        for ref in upload.missing:
            store(upload.storage, upload.local_dir, ref)
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver must know, and the lane must go on
        cause = f"{type(error).__name__}: {error}"
        # Not the newest, which may have been tried instead: a checkpoint waits for the one that was asked for.
        return UploadFailed(upload.run, asked.subtask, asked.version, cause)
    return UploadDone(upload.run, upload.handle, round((time.monotonic() - started) * 1000, 3))


def _with_newest(upload: Upload) -> Upload:
    path = _newest_path(upload.local_dir, upload.handle)
    newest = _HANDLES.decode(path.read_bytes())
    return replace(upload, handle=newest) if newest.version > upload.handle.version else upload


class Uploader:
    """One lane a subtask: uploads of one subtask happen in order, and none waits for another subtask's."""

    def __init__(self) -> None:
        self._lanes: dict[SubtaskId, list[Upload]] = {}
        self._lock = threading.Lock()

    def submit(self, upload: Upload) -> None:
        """Upload later, in the background."""
        subtask = upload.handle.subtask
        with self._lock:
            idle = subtask not in self._lanes
            waiting = [one for one in self._lanes.get(subtask, []) if not _superseded(one, upload)]
            self._lanes[subtask] = [*waiting, upload]
        if idle:
            name = f"penstock-upload-{subtask}"
            threading.Thread(target=self._work, args=(subtask,), name=name, daemon=True).start()

    def _work(self, subtask: SubtaskId) -> None:
        while (upload := self._next(subtask)) is not None:
            _report(upload, perform(upload))

    def _next(self, subtask: SubtaskId) -> Upload | None:
        """The next upload of a lane; a lane with nothing left is closed in the same moment."""
        with self._lock:
            if not self._lanes[subtask]:
                del self._lanes[subtask]
                return None
            return self._lanes[subtask].pop(0)


def _superseded(waiting: Upload, newer: Upload) -> bool:
    return (
        not waiting.required and waiting.run == newer.run and waiting.handle.subtask == newer.handle.subtask
    )


def _report(upload: Upload, message: Message) -> None:
    try:
        send(upload.mailbox, message)
    except OSError as error:
        _log.warning("the driver could not be told about %s: %s", upload.handle.subtask, error)


UPLOADER = Uploader()
