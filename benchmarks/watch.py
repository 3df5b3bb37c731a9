"""Look on while a job runs: the memory of its Python workers, the files in its state folder, its checkpoints. Driver."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from penstock.checkpoint.model import Completed
from penstock.spark.job_handle import JobHandle
from penstock.storage.file_system import is_temporary

EVERY_S = 0.02
MIB = 1024 * 1024
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


@contextmanager
def repeatedly(look: Callable[[], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Call `look` again and again from a thread, and a last time at the end."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(every_s):
            look()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        look()


@dataclass
class WorkerMemory:
    """The most memory that any one Python worker below this process had, file pages (the mapped state) apart."""

    peak_bytes: int = 0
    _processes: list[psutil.Process] = field(default_factory=list)
    _looks: int = 0

    def look(self) -> None:
        """Take a sample; the tree of processes is walked only now and then, because that is slow."""
        if self._looks % 25 == 0:
            self._processes = [one for one in psutil.Process().children(recursive=True) if _is_worker(one)]
        self._looks += 1
        self.peak_bytes = max([self.peak_bytes, *map(_anonymous_bytes, self._processes)])


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "pyspark.worker" in process.cmdline()
    except psutil.Error:
        return False


def _anonymous_bytes(process: psutil.Process) -> int:
    try:
        found = _ANONYMOUS.search(Path(f"/proc/{process.pid}/status").read_text())
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def sizes_below(folder: Path) -> dict[str, int]:
    """The files below a folder that somebody is adding to and deleting from."""
    sizes: dict[str, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                if not is_temporary(name):
                    sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    return sizes


@dataclass
class FolderWatch:
    """Every file that was ever seen in a folder, with its largest size: also what was deleted again, and what no checkpoint names."""

    folder: Path
    sizes: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Note what is there; writes under way have names of their own and are not counted twice."""
        for name, size in sizes_below(self.folder).items():
            self.sizes[name] = max(self.sizes.get(name, 0), size)

    @property
    def total_bytes(self) -> int:
        """The bytes of all of them."""
        return sum(self.sizes.values())


@dataclass
class CheckpointWatch:
    """The completed checkpoints of a job as they come by; `look_on` is what `PenstockJob` calls."""

    seen: dict[int, Completed] = field(default_factory=dict)

    def look_on(self, handle: JobHandle) -> None:
        """Wait for the end of the job, and note its checkpoints meanwhile."""
        while not handle.wait(0.25):
            self._note(handle)
        self._note(handle)

    def _note(self, handle: JobHandle) -> None:
        self.seen.update({one.checkpoint: one for one in handle.checkpoints()})

    @property
    def in_order(self) -> list[Completed]:
        """Oldest first."""
        return [self.seen[number] for number in sorted(self.seen)]

    @property
    def most_files(self) -> int:
        """The most files that the state of one subtask consisted of."""
        handles = (
            handle for one in self.in_order for state in one.operators.values() for handle in state.handles
        )
        return max((len(handle.refs) for handle in handles), default=0)
