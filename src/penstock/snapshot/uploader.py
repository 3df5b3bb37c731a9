"""The asynchronous part of a snapshot: a background thread that uploads while later batches run. Executors.

The thread lives in the Python worker and outlives its task. The worker may die before the upload ends: the next snapshot of the
same subtask uploads every file that the driver does not know to be durable, whoever wrote it.

Batches may follow each other faster than storage takes their files. Nothing piles up then: see `Uploader`, and `transfer`.
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

    `required`: a checkpoint waits for just this version. Otherwise it may be left out when a newer one is waiting already.
    `awaited`: the checkpoints that were under way when its batch began; what waits for others waits in vain.
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
    awaited: frozenset[int] = frozenset()

    @property
    def missing(self) -> dict[str, FileRef]:
        """The files that may not be in storage yet, by name."""
        return {ref.name: ref for ref in self.handle.refs if ref.name and ref.name not in self.durable}


def remember_newest(local_dir: Path, handle: StateHandle) -> None:
    """Leave the handle where any worker on this machine finds it."""
    path = _newest_path(local_dir, handle)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = beside(path)
    scratch.write_bytes(msgspec.json.encode(handle))
    scratch.replace(path)


def _newest_path(local_dir: Path, handle: StateHandle) -> Path:
    return local_dir / "newest" / f"{handle.subtask}.json"


def perform(upload: Upload, room: Room | None = None) -> Message:
    """Upload what is missing and say how it went; several files at a time where there is room."""
    watch = Stopwatch()
    asked = upload.handle
    try:
        upload.storage.wait_for_turn(asked.subtask)
        if upload.newest_will_do:
            upload = _with_newest(upload)
        store_all(upload.storage, upload.local_dir, upload.missing, room)
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver must know, and the lane must go on
        cause = f"{type(error).__name__}: {error}"
        # Not the newest, which may have been tried instead: a checkpoint waits for the one that was asked for.
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
    """What waits in line together. `local_dir` tells jobs and runs apart that share a worker."""

    local_dir: Path
    subtask: SubtaskId
    required: bool


class UploadLanes:
    """Two lanes a subtask: one for versions that a checkpoint waits for, one for the others, of which only the newest waits.

    Uploads of a lane happen in order. None waits for another subtask's, and a required one never waits behind one that is not:
    however slow storage is, and however fast batches follow each other, at most one other and what is awaited are in line.
    """

    def __init__(self) -> None:
        self._lanes: dict[UploadLane, list[Upload]] = {}
        self._lock = threading.Lock()

    def put(self, upload: Upload) -> UploadLane | None:
        """Add an upload; returns its lane if that was empty, so that somebody must begin to work on it."""
        lane = UploadLane(upload.local_dir, upload.handle.subtask, upload.required)
        with self._lock:
            self._leave_out_superseded(upload)
            idle = lane not in self._lanes
            self._lanes.setdefault(lane, []).append(upload)
        return lane if idle else None

    def next(self, lane: UploadLane) -> Upload | None:
        """The next upload of a lane; a lane with nothing left is closed in the same moment."""
        with self._lock:
            if not self._lanes[lane]:
                del self._lanes[lane]
                return None
            return self._lanes[lane].pop(0)

    @property
    def waiting(self) -> list[Upload]:
        """What has not begun."""
        with self._lock:
            return [upload for uploads in self._lanes.values() for upload in uploads]

    def _leave_out_superseded(self, newer: Upload) -> None:
        for required in (True, False):
            lane = UploadLane(newer.local_dir, newer.handle.subtask, required)
            if lane in self._lanes:
                self._lanes[lane] = [one for one in self._lanes[lane] if not _superseded(one, newer)]


class Uploader:
    """The threads of a worker that upload: one for each lane in which something waits."""

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
            except (
                RuntimeError
            ) as error:  # the process has as many as it may; the lane is ours, and nobody else would empty it
                _log.warning(
                    "%s: the task waits for its upload, which has no thread: %s", lane.subtask, error
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
