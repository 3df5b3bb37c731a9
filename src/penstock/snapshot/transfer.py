"""Bring local files into storage: several at a time, each of them once. Executors, and the driver where it helps out.

1. Storage that answers slowly is slow for all files together, not for one after the other.
2. Workers of one machine may want the same file stored in the same moment: its first version was frozen in one worker, the next
   in another. The file itself is the lock between them (`flock`), which the system gives back when its holder dies.
3. A file is compared with its checksum before it goes: a damaged one must not get into storage.
4. Nothing is left behind: when one file fails no further one is begun, and every thread has ended when the error is raised.

Uploads that nobody works on any more: a Python worker died with them in its queue or gave them up, and no batch came after. Driver.

The next batch of a subtask uploads what is missing by itself. This is for the time when there is no next batch, or when the next batch
merged the missing files away and a pending checkpoint still waits for them. It can help only where the driver sees the executors'
working files; elsewhere the checkpoint expires, and the job goes on from the one before.
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
"""How long another worker may take with a file before this one stores it, too: it may hang in a connection that is dead."""

_LOOK_AGAIN_S = 0.05


class Room:
    """How many files may be on their way at once, shared by all uploads that are given the same room."""

    def __init__(self, files_at_once: int = FILES_AT_ONCE) -> None:
        self.files_at_once = files_at_once
        self._places = threading.BoundedSemaphore(files_at_once)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Wait for a place, and have it."""
        with self._places:
            yield


def store_all(
    storage: Storage, local_dir: Path, files: Mapping[str, FileRef], room: Room | None = None
) -> None:
    """Make these files durable. Without a room they go one by one, in the calling thread; raises the first failure."""
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
    """Make one file durable, unless it is: a file in storage is there whole, and no other was ever given its name.

    What is uploaded must be what the handle promises: a working file that was damaged since it was written is refused.
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
                "leave the working folder of a running job alone",
                path=str(path),
            ) from cause


@contextmanager
def _alone(file: IO[bytes]) -> Iterator[None]:
    """Keep other workers of this machine from storing the same file meanwhile; closing it ends that."""
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
        return True  # a file system without locks: then a file may be stored twice, which is no harm
    return True


def _in_parallel(work: Callable[[str], None], names: Iterable[str], threads: int) -> None:
    """Call `work` for every name; after a failure begin no other, wait for those under way, and raise it."""
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
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked
                failures.append(error)

    started = list(_started(take_turns, threads))
    if len(started) < threads:
        take_turns()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]


def _started(work: Callable[[], None], threads: int) -> Iterator[threading.Thread]:
    """So many threads, or as many as the process may have: then whoever asks does its share."""
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
