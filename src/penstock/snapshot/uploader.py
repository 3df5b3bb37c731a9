"""The asynchronous part of a snapshot: a background thread that uploads while later batches run. Executors.

The thread lives in the Python worker and outlives its task. The worker may die before the upload ends: the next snapshot of the
same subtask uploads every file that the driver does not know to be durable, whoever wrote it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from penstock.errors import PenstockError
from penstock.snapshot.mailbox import Address, send
from penstock.snapshot.messages import Message, UploadDone, UploadFailed
from penstock.state.handle import StateHandle
from penstock.storage import Storage

_log = logging.getLogger(__name__)


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
    def missing(self) -> list[str]:
        """The files that may not be in storage yet."""
        return sorted(self.handle.files - self.durable)


def remember_newest(local_dir: Path, handle: StateHandle) -> None:
    """Leave the handle where any worker on this machine finds it."""
    path = _newest_path(local_dir, handle)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{threading.get_ident()}-{handle.version}")
    scratch.write_bytes(msgspec.json.encode(handle))
    scratch.replace(path)


def _newest_path(local_dir: Path, handle: StateHandle) -> Path:
    return local_dir / "newest" / f"{handle.subtask}.json"


def perform(upload: Upload) -> Message:
    """Upload what is missing and say how it went."""
    started = time.monotonic()
    try:
        upload.storage.wait_for_turn(upload.handle.subtask)
        if upload.newest_will_do:
            upload = _with_newest(upload)
        for name in upload.missing:
            upload.storage.upload(upload.local_dir / name, name)
    except (PenstockError, OSError) as error:
        cause = f"{type(error).__name__}: {error}"
        return UploadFailed(upload.run, upload.handle.subtask, upload.handle.version, cause)
    return UploadDone(upload.run, upload.handle, round((time.monotonic() - started) * 1000, 3))


def _with_newest(upload: Upload) -> Upload:
    path = _newest_path(upload.local_dir, upload.handle)
    newest = msgspec.json.decode(path.read_bytes(), type=StateHandle)
    return replace(upload, handle=newest) if newest.version > upload.handle.version else upload


class Uploader:
    """One queue and one thread a worker process; uploads of one subtask happen in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._waiting: list[Upload] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, upload: Upload) -> None:
        """Upload later, in the background."""
        with self._lock:
            self._waiting = [one for one in self._waiting if not _superseded(one, upload)]
            self._waiting.append(upload)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="penstock-uploader", daemon=True)
                self._thread.start()
        self._queue.put(None)

    def _work(self) -> None:
        while True:
            self._queue.get()
            with self._lock:
                upload = self._waiting.pop(0) if self._waiting else None
            if upload is not None:
                _report(upload, perform(upload))


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
