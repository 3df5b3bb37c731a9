"""A storage that takes its time with every file it writes. Driver and executors.

To see what a job does while checkpoints take long: `ps.Job(..., storage=SlowStorage(LocalStorage("/data/job"), seconds=2.0))`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.clock import SYSTEM_CLOCK
from penstock.storage import Storage
from penstock.storage.forwarding import ForwardingStorage, Operation

T = TypeVar("T")
WRITES = frozenset({"put", "create", "upload"})
_STEP_S = 0.02


class SlowStorage(ForwardingStorage):
    """A storage that waits `seconds` before it writes a file, as if the bytes were on their way; it reads at full speed.

    Only names that match `pattern` (as in a shell: `state/*`) are slow. From the moment the file `until` exists nothing is: a
    write that waits goes through at once, in every process.
    """

    def __init__(
        self, inner: Storage, seconds: float = 2.0, *, pattern: str = "*", until: Path | None = None
    ) -> None:
        super().__init__(inner)
        self.seconds = seconds
        self.pattern = pattern
        self.until = until

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:
        if operation in WRITES and fnmatch.fnmatchcase(name, self.pattern):
            self._wait()
        return work()

    def _wait(self) -> None:
        end = SYSTEM_CLOCK.monotonic() + self.seconds
        while (left := end - SYSTEM_CLOCK.monotonic()) > 0 and not (self.until and self.until.exists()):
            SYSTEM_CLOCK.sleep(min(_STEP_S, left) if self.until else left)
