"""The asynchronous part of a snapshot: a background thread that uploads while later batches run. Executors.

The thread lives in the Python worker and outlives its task. If the worker dies before the upload ends, the next snapshot of the
same subtask uploads every file that the driver does not know to be durable.

If batches are faster than storage, uploads do not pile up: see `UploadLanes`, and `transfer`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from penstock.clock import Stopwatch
from penstock.ids import SubtaskId
from penstock.snapshot.mailbox import Address, Message, UploadDone, UploadFailed, tell
from penstock.snapshot.transfer import Room, store_all
from penstock.state.handle import FileRef, StateHandle
from penstock.storage import Storage
from penstock.storage.file_system import beside

_log = logging.getLogger(__name__)
_HANDLES = msgspec.json.Decoder(StateHandle)  # made before there are threads, see `mailbox`


@dataclass(frozen=True)
class Upload:
    """One version of one subtask to be made durable.

    `required`: a checkpoint waits for exactly this version. Otherwise it may be skipped if a newer one is queued.
    `awaited`: the checkpoints that were pending when its batch began; uploads for other checkpoints are useless.
    `newest_will_do`: for at least once; the newest version on this machine when the upload begins is uploaded instead.
    """

    storage: Storage
    local_dir: Path
    mailbox: Address
    run: int
    handle: StateHandle
    durable: frozenset[str]
    required: bool
    newest_will_do: bool = False
    awaited: frozenset[int] = frozenset()

    @property
    def missing(self) -> dict[str, FileRef]:
        """The files that may not be in storage yet, by name."""
        return {ref.name: ref for ref in self.handle.refs if ref.name and ref.name not in self.durable}


def remember_newest(local_dir: Path, handle: StateHandle) -> None:
    """Store the handle where any worker on this machine finds it."""
    path = _newest_path(local_dir, handle)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = beside(path)
    scratch.write_bytes(msgspec.json.encode(handle))
    scratch.replace(path)


def _newest_path(local_dir: Path, handle: StateHandle) -> Path:
    return local_dir / "newest" / f"{handle.subtask}.json"


def perform(upload: Upload, room: Room | None = None) -> Message:
    """Upload the missing files, several at a time if there is room; returns the message for the driver."""
    watch = Stopwatch()
    asked = upload.handle
    try:
        upload.storage.wait_for_turn(asked.subtask)
        if upload.newest_will_do:
            upload = _with_newest(upload)
        store_all(upload.storage, upload.local_dir, upload.missing, room)
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver must know it, and the lane must go on
        cause = f"{type(error).__name__}: {error}"
        # Names the requested version, for which a checkpoint waits, not the newest, which may have been tried instead.
        return UploadFailed(
            upload.run,
            asked.subtask,
            asked.version,
            cause,
            asked=tuple(sorted(asked.files)),
            files=tuple(sorted(upload.missing)),
            tried=upload.handle.version,
        )
    return UploadDone(upload.run, upload.handle, watch.ms)


def _with_newest(upload: Upload) -> Upload:
    path = _newest_path(upload.local_dir, upload.handle)
    newest = _HANDLES.decode(path.read_bytes())
    return replace(upload, handle=newest) if newest.version > upload.handle.version else upload


@dataclass(frozen=True)
class UploadLane:
    """Identifies a queue of uploads. `local_dir` separates jobs and runs that share a worker."""

    local_dir: Path
    subtask: SubtaskId
    required: bool


class UploadLanes:
    """Two lanes for each subtask: one for versions that a checkpoint waits for, one for the others, of which only the newest is queued.

    Uploads of a lane happen in order. None waits for another subtask, and a required one never waits for one that is not required.
    So at most the required versions and one other are queued, however slow storage is.
    """

    def __init__(self) -> None:
        self._lanes: dict[UploadLane, list[Upload]] = {}
        self._lock = threading.Lock()

    def put(self, upload: Upload) -> UploadLane | None:
        """Add an upload; returns its lane if that was empty, so that the caller must start to work on it."""
        lane = UploadLane(upload.local_dir, upload.handle.subtask, upload.required)
        with self._lock:
            self._leave_out_superseded(upload)
            idle = lane not in self._lanes
            self._lanes.setdefault(lane, []).append(upload)
        return lane if idle else None

    def next(self, lane: UploadLane) -> Upload | None:
        """Return the next upload of a lane, or close the lane and return None if it is empty."""
        with self._lock:
            if not self._lanes[lane]:
                del self._lanes[lane]
                return None
            return self._lanes[lane].pop(0)

    @property
    def waiting(self) -> list[Upload]:
        """The uploads that have not begun."""
        with self._lock:
            return [upload for uploads in self._lanes.values() for upload in uploads]

    def _leave_out_superseded(self, newer: Upload) -> None:
        for required in (True, False):
            lane = UploadLane(newer.local_dir, newer.handle.subtask, required)
            if lane in self._lanes:
                self._lanes[lane] = [one for one in self._lanes[lane] if not _superseded(one, newer)]


class Uploader:
    """Uploads in background threads of a worker: one for each lane that is not empty."""

    def __init__(self) -> None:
        self._lanes = UploadLanes()
        self._rooms = {True: Room(), False: Room()}

    def submit(self, upload: Upload) -> None:
        """Upload later, in the background."""
        lane = self._lanes.put(upload)
        if lane is not None:
            name = f"penstock-upload-{lane.subtask}"
            try:
                threading.Thread(target=self._work, args=(lane,), name=name, daemon=True).start()
            except RuntimeError as error:  # the limit of threads; no other thread would work on this lane
                _log.warning(
                    "%s: no thread could be started for an upload, so the task waits for it: %s",
                    lane.subtask,
                    error,
                )
                self._work(lane)

    @property
    def waiting(self) -> int:
        """How many uploads have not begun."""
        return len(self._lanes.waiting)

    def _work(self, lane: UploadLane) -> None:
        while (upload := self._lanes.next(lane)) is not None:
            message = perform(upload, self._rooms[lane.required])
            tell(upload.mailbox, message, f"an upload of {upload.handle.subtask}")


def _superseded(waiting: Upload, newer: Upload) -> bool:
    return not waiting.required or waiting.handle.version not in newer.awaited


UPLOADER = Uploader()
