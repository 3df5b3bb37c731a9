"""`penstock run`: a job in the foreground, with a line that shows how it goes. Driver."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from penstock.cli.console import plain_console
from penstock.clock import SYSTEM_CLOCK
from penstock.job import Job
from penstock.wording import counted, duration

if TYPE_CHECKING:
    from penstock.engine.observer import Progress
    from penstock.spark.handle import JobHandle

PLAIN_EVERY_S = 5.0


def run_job(
    job: Job, *, available_now: bool, restore: int | None, takeover: bool, drop_state: tuple[str, ...] = ()
) -> None:
    """Run until the job ends; the first SIGINT or SIGTERM stops it with a last checkpoint, the second one ends it now."""
    from penstock.spark.foreground import in_foreground

    console = plain_console(stderr=True)
    console.print(f"job {job.name}: {job.guarantee()}", soft_wrap=True, highlight=False)

    def start() -> JobHandle:
        handle = job.start(
            available_now=available_now, restore=restore, takeover=takeover, drop_state=drop_state
        )
        console.print(f"run {handle.progress.run}, {_origin(handle.progress)}", highlight=False)
        return handle

    spinner = console.status(Text("starting")) if console.is_terminal else None
    plain = _PlainLines(console)
    with spinner or nullcontext():
        handle = in_foreground(
            job,
            start,
            watch=lambda handle: _show(handle, spinner, plain),
            tell=lambda text: console.print(text, soft_wrap=True, highlight=False),
        )
    console.print(f"{handle.status.value}: {_line(handle)}", soft_wrap=True, highlight=False)


def _show(handle: JobHandle, spinner: Spinner | None, plain: _PlainLines) -> None:
    if spinner is not None:
        spinner.update(Text(_line(handle)))
    else:
        plain.show(_line(handle))


class _PlainLines:
    """Without a terminal: a line now and then, when something has changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""
        self._next_at = 0.0

    def show(self, line: str) -> None:
        now = SYSTEM_CLOCK.monotonic()
        if line != self._last and now >= self._next_at:
            self._console.print(line, soft_wrap=True, highlight=False)
            self._last, self._next_at = line, now + PLAIN_EVERY_S


def _line(handle: JobHandle) -> str:
    progress = handle.progress
    parts = [
        counted(progress.batches, "batch", "batches"),
        f"last took {duration(progress.batch_seconds)}" if progress.batches else "none finished yet",
        f"{counted(progress.rows_in, 'row')} in",
        *(f"{counted(rows, 'row')} to {sink}" for sink, rows in progress.rows_out.items()),
        f"last checkpoint {progress.checkpoint if progress.checkpoint >= 0 else '-'}",
    ]
    if progress.restarts:
        parts.append(f"{counted(progress.restarts, 'restart')}, run {progress.run}")
    return ", ".join(parts)


def _origin(progress: Progress) -> str:
    return (
        f"from checkpoint {progress.restored_from}" if progress.restored_from >= 0 else "from the beginning"
    )
