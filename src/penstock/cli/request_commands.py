"""`penstock trigger`, `savepoint`, `stop` and `cancel`: requests to a running job. Driver; no Spark.

A command shows the progress of its request while it waits: on a terminal as one line, elsewhere as one line for each step. The progress
comes from the job's live status.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from penstock import errors
from penstock.checkpoint.model import Completed
from penstock.cli.console import in_brief, print_json, visible
from penstock.cli.job_arguments import AsJson, NameOfJob, Patience, StorageOfJob, open_job
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config import seconds, whole_number
from penstock.errors import PenstockError
from penstock.ids import SYSTEM_RANDOMNESS, CheckpointId, RunId
from penstock.long_work import Line, show_progress, terminal_line
from penstock.ownership.claim import newest_run
from penstock.recovery.history import check_committed, read_held
from penstock.recovery.started_batches import refuse_if_started_beyond
from penstock.requests.request_client import RequestClient, living_run
from penstock.requests.request_files import ID_DIGITS, Facts, Kind
from penstock.savepoint.request import check_folder, make_savepoint
from penstock.status.journal import read_live
from penstock.storage import LocalStorage, Storage, open_storage


def trigger(
    storage: StorageOfJob, job: NameOfJob = None, *, timeout: Patience = "10min", as_json: AsJson = False
) -> None:
    """Make a running job complete a checkpoint of everything processed so far. Prints its number."""
    done = ask(open_job(storage, job), Kind.CHECKPOINT, timeout)
    _print(done, "checkpoint", as_json=as_json)


def savepoint(
    storage: StorageOfJob,
    job: NameOfJob = None,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="The folder of the savepoint; default: a new one in STORAGE/JOB-savepoints.",
        ),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option("--checkpoint", metavar="N", help="Use this retained checkpoint instead of a new one."),
    ] = None,
    timeout: Patience = "10min",
    as_json: AsJson = False,
) -> None:
    """Make a savepoint of a job. A running job keeps running; for any other, the newest checkpoint is used.

    Prints the folder of the savepoint.
    """
    if checkpoint is not None:
        whole_number("--checkpoint", checkpoint, minimum=0)
    made = make(open_job(storage, job), checkpoint=checkpoint, to=to, timeout=timeout)
    typer.echo(f"savepoint of checkpoint {made['checkpoint']}, made in {made['took']}", err=True)
    _print(made, "savepoint", as_json=as_json)


def stop(
    storage: StorageOfJob,
    job: NameOfJob = None,
    *,
    savepoint: Annotated[
        str | None,
        typer.Option(
            "--savepoint", metavar="DIR", help="Make a savepoint in this folder before the job ends."
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Close all windows and fire all event-time timers first.")
    ] = False,
    timeout: Patience = "10min",
    as_json: AsJson = False,
) -> None:
    """Stop a running job: it finishes its batch, completes and commits a last checkpoint, and its process ends with code 0.

    Prints the folder of the savepoint, if you asked for one.
    """
    options = {"savepoint": savepoint is not None, "to": folder(savepoint), "drain": drain}
    ended = ask(open_job(storage, job), Kind.STOP, timeout, **options)
    typer.echo(how_it_ended(ended), err=True)
    _print(ended, "savepoint", as_json=as_json)


def cancel(
    storage: StorageOfJob, job: NameOfJob = None, *, timeout: Patience = "10min", as_json: AsJson = False
) -> None:
    """End a running job without a last checkpoint. Its setting `checkpoint.on_cancel` decides what it keeps."""
    ended = ask(open_job(storage, job), Kind.CANCEL, timeout)
    typer.echo(how_it_ended(ended), err=True)
    if as_json:
        print_json(ended)


def _print(done: dict[str, Any], name: str, *, as_json: bool) -> None:
    """The whole answer as JSON, or the one value of it that scripts need."""
    if as_json:
        print_json(done)
    elif name in done:
        typer.echo(done[name])


LOOK_S = 1.0


class RequestProgress:
    """Shows the progress of one request until it is closed."""

    def __init__(self, storage: Storage, line: Line | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._storage = storage
        self._line = line
        self._clock = clock
        self._next_s = clock.monotonic() + LOOK_S
        self._last_step = ""

    def tell(self, text: str) -> None:
        """Print an event; it stays on the terminal."""
        self.close()
        typer.echo(visible(text), err=True)

    def look(self, asked: RunId) -> None:
        """Show what the job is doing. Call it while waiting."""
        if self._clock.monotonic() < self._next_s:
            return
        self._next_s = self._clock.monotonic() + LOOK_S
        doing = self._doing(asked)
        if self._line is not None:
            self._line.draw(in_brief(doing, self._line.columns)) if doing else self._line.erase()
        elif doing.partition(":")[0] != self._last_step:
            self._last_step = doing.partition(":")[0]
            if doing:
                typer.echo(in_brief(doing, 200), err=True)

    def _doing(self, asked: RunId) -> str:
        """What the newest run is doing: after a restart, the next run continues the request."""
        try:
            live = read_live(self._storage, max(asked, newest_run(self._storage)))
        except PenstockError:  # `RequestClient` reports a storage that does not answer
            return ""
        return "" if live is None else live.doing

    def close(self) -> None:
        """Erase the progress line from the terminal."""
        if self._line is not None:
            self._line.erase()


def ask(storage: Storage, kind: Kind, timeout: str, **options: object) -> Facts:
    """Send a request to the run that owns the job and wait; show progress on standard error. Refuses an invalid folder at once."""
    to = options.get("to")
    check_folder(storage, to if isinstance(to, str) else None)
    with closing(RequestProgress(storage, terminal_line())) as shown, _exit_on_signals():
        asking = RequestClient(storage, tell=shown.tell, meanwhile=shown.look)
        return asking.ask(kind, timeout_s=seconds("--timeout", timeout), **options)


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM and SIGHUP, so that the command withdraws a request that the job has not accepted."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(errors.EXIT_BY_SIGNAL + number)

    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if in_main_thread else ()
    before = {number: signal.getsignal(number) for number in numbers}
    # `nohup` ignores SIGHUP
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def make(storage: Storage, *, checkpoint: int | None, to: str | None, timeout: str) -> Facts:
    """Make a savepoint: through the run that owns the job, or here if no run is alive or a retained checkpoint was chosen."""
    place = folder(to)
    if checkpoint is None and living_run(storage, SYSTEM_CLOCK.wall()) is not None:
        return ask(storage, Kind.SAVEPOINT, timeout, to=place)
    token = SYSTEM_RANDOMNESS.token(ID_DIGITS)

    def read(completed: Completed) -> Facts:
        check_committed(storage, completed)
        if checkpoint is None:
            refuse_if_started_beyond(storage, completed)
        typer.echo(f"making a savepoint of checkpoint {completed.checkpoint}", err=True)
        with show_progress():
            return make_savepoint(storage, completed, to=place, token=token)

    wanted = None if checkpoint is None else CheckpointId(checkpoint)
    return read_held(storage, read, why=f"savepoint {token}", wanted=wanted)


def folder(to: str | None) -> str | None:
    """The absolute path, since the driver may run in another folder."""
    if to is None:
        return None
    opened = open_storage(to)
    return str(Path(opened.root)) if isinstance(opened, LocalStorage) else opened.uri


def how_it_ended(facts: Facts) -> str:
    """Describe the end of the job in one line."""
    newest = (
        f"its newest checkpoint is {facts['checkpoint']}"
        if facts["checkpoint"] >= 0
        else "it has no checkpoint"
    )
    failing = (
        f"; it was failing and made no last checkpoint: {facts['failing']}" if "failing" in facts else ""
    )
    return f"{facts['status']}; {newest}{failing}"
