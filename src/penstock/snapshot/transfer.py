"""Uploads local files to storage: several at a time, each of them once. Executors, and the driver in a rescue.

1. Several files are uploaded at once, so that slow storage does not delay each of them in turn.
2. Two workers of one machine may upload the same file at once: its first version was frozen in one worker, the next in another. A lock
   on the file (`flock`) prevents this; the system releases it when its holder dies.
3. A file is compared with its checksum before the upload: a damaged one must not get into storage.
4. If one file fails, no further upload begins, and every thread has ended when the error is raised.

`Rescue` runs on the driver. It uploads files that no worker uploads: a Python worker died or gave up, and no batch followed. The next
batch of a subtask uploads missing files by itself, but there may be none, or it merged the missing files while a pending checkpoint
still waits for them. A rescue works only if the driver can read the executors' working files; otherwise the checkpoint expires, and the job
continues from the one before.
"""

from __future__ import annotations

import fcntl
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import UnavailableError
from penstock.ids import SubtaskId
from penstock.log_fields import in_context
from penstock.state.handle import FileRef, StateHandle
from penstock.state.local_files import HASHED_FILES
from penstock.storage import Storage

FILES_AT_ONCE = 8
PATIENCE_S = 60.0
"""How long to wait for another worker to upload a file before uploading it here, too: its connection may be dead."""

_LOOK_AGAIN_S = 0.05


class Room:
    """Limits the number of concurrent uploads of files among all callers that share it."""

    def __init__(self, files_at_once: int = FILES_AT_ONCE) -> None:
        self.files_at_once = files_at_once
        self._places = threading.BoundedSemaphore(files_at_once)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Wait until a file may be uploaded."""
        with self._places:
            yield


def store_all(
    storage: Storage, local_dir: Path, files: Mapping[str, FileRef], room: Room | None = None
) -> None:
    """Make these files durable; raises the first failure. Without a room they are uploaded one by one, in the calling thread."""
    names = sorted(files)
    if room is None or len(names) == 1:
        for name in names:
            with room.place() if room else nullcontext():
                store_one(storage, local_dir, name, files[name])
        return
    in_room = room

    def store(name: str) -> None:
        with in_room.place():
            store_one(storage, local_dir, name, files[name])

    _in_parallel(store, names, min(in_room.files_at_once, len(names)))


def store_one(storage: Storage, local_dir: Path, name: str, ref: FileRef) -> None:
    """Make one file durable, unless it is already: a file in storage is complete, and its name is never reused.

    A working file that no longer has the checksum of its handle is refused.
    """
    path = local_dir / name
    try:
        with path.open("rb") as local, _alone(local):
            if storage.size(name) != ref.size:
                HASHED_FILES.refuse_changed(path, ref, "it is not stored")
                storage.upload(path, name)
    except FileNotFoundError as cause:
        if storage.size(name) != ref.size:
            raise UnavailableError(
                f"the working file {path} is gone, and {storage.uri} does not have it yet: the state of this batch is lost; "
                "do not delete files in the working folder of a running job",
                path=str(path),
            ) from cause


@contextmanager
def _alone(file: IO[bytes]) -> Iterator[None]:
    """Lock a file against other workers of this machine; closing the file releases the lock."""
    patient_until = SYSTEM_CLOCK.monotonic() + PATIENCE_S
    while not _locked(file) and SYSTEM_CLOCK.monotonic() < patient_until:
        SYSTEM_CLOCK.sleep(_LOOK_AGAIN_S)
    yield


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: a file may be uploaded twice, which does no harm
    return True


def _in_parallel(work: Callable[[str], None], names: Iterable[str], threads: int) -> None:
    """Call `work` for every name. After a failure no further call begins, and the failure is raised when the running ones end."""
    waiting = iter(names)
    failures: list[BaseException] = []
    lock = threading.Lock()

    def next_name() -> str | None:
        with lock:
            return None if failures else next(waiting, None)

    def take_turns() -> None:
        while (name := next_name()) is not None:
            try:
                work(name)
            except BaseException as error:  # noqa: BLE001 - raised below, in the calling thread
                failures.append(error)

    started = list(_started(take_turns, threads))
    if len(started) < threads:
        take_turns()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]


def _started(work: Callable[[], None], threads: int) -> Iterator[threading.Thread]:
    """Start this many threads, or fewer at the limit of the process; then the calling thread does a share."""
    for number in range(threads):
        thread = threading.Thread(target=work, name=f"penstock-file-{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return
        yield thread


_log = logging.getLogger(__name__)

STUCK_AFTER_S = 30.0
RETRY_AFTER_S = 2.0
"""The pause after a worker reported a failed upload."""


@dataclass
class Rescue:
    """Watches handles that are not durable, and uploads those that are stuck, one handle at a time.

    `run` performs an upload; in the background if storage may be slow.
    """

    storage: Storage
    local_dir: Path
    clock: Clock
    report: Callable[[StateHandle], None]
    gave_up: Callable[[StateHandle, str], None] = lambda _handle, _cause: None
    """Called with the cause for a handle that could not be stored; some of its files may have been."""
    run: Callable[[Callable[[], None]], None] = lambda upload: upload()
    room: Room | None = None
    """Limits concurrent uploads; without it files are uploaded one by one."""
    _since: dict[StateHandle, float] = field(default_factory=dict)
    _failed: dict[SubtaskId, float] = field(default_factory=dict)
    _at_work: threading.Lock = field(default_factory=threading.Lock)

    def failed(self, subtask: SubtaskId) -> None:
        """Note that a worker gave up an upload of this subtask: unless a batch follows soon, no worker will upload its files."""
        self._failed[subtask] = self.clock.monotonic()

    def look(self, undurable: Iterable[StateHandle]) -> None:
        """Upload stuck handles. Called regularly with all handles that are not durable."""
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
                "%s: state files that no worker uploaded could not be uploaded by the driver either: %s",
                handle.subtask,
                error,
            )
            self.gave_up(handle, str(error))
        else:
            _log.info("%s: state files that no worker uploaded were uploaded by the driver", handle.subtask)
            self.report(handle)
        finally:
            self._at_work.release()


def in_background(upload: Callable[[], None]) -> None:
    """Perform an upload in its own thread."""
    threading.Thread(target=in_context(upload), name="penstock-rescue", daemon=True).start()
