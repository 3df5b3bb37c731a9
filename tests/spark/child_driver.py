"""A driver in a process of its own, for tests of what reaches a job from outside: it runs the jobs that it is given, one after the other.

It starts Spark once for all of them, and reads from standard input which job of which file to run next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from services.patience import tries

_DRIVER = """
import json, runpy, sys
from pathlib import Path
from penstock.spark.local_session import local_session

spark = local_session("child-driver")
for line in iter(sys.stdin.readline, ""):
    script, root, name = json.loads(line)
    job = runpy.run_path(script, run_name="__main__")["job"](spark, Path(root), name)
    try:
        print(name, job.run().status, flush=True)
    except KeyboardInterrupt:
        print(name, "interrupted", flush=True)
"""


class ChildDriver:
    """Starts with the first job that it is given, and again when it has died."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output"
        self._output.touch()
        self._process: subprocess.Popen[str] | None = None
        self._begun = 0

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def run(self, root: Path, program: str, *names: str) -> None:
        """Let it run these jobs, each made by `job(spark, root, name)` in the program; `said` is about them from now on."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        script = root / "program.py"
        script.write_text(program)
        self._begun = self._output.stat().st_size
        assert self.process.stdin is not None
        for name in names:
            self.process.stdin.write(json.dumps([str(script), str(root), name]) + "\n")
        self.process.stdin.flush()

    def _start(self) -> None:
        with self._output.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _DRIVER],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                text=True,
                start_new_session=True,
            )

    def said(self) -> list[str]:
        """The lines that it has written since its newest jobs were given to it."""
        return self._output.read_bytes()[self._begun :].decode().splitlines()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that the driver brings about."""
        for _ in tries(0.05):
            if condition():
                return
        raise AssertionError(f"{what} did not come; the driver said: {self.said()}")

    def signal(self, number: int) -> None:
        """Send a signal to it and to everything in its process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End the process and everything in its group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            self._process.communicate()
