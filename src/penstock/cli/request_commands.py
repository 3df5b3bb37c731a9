"""`penstock trigger`, `savepoint`, `stop` and `cancel`: requests to a running job. Driver.

Sends a request to a running job and shows its progress while the command waits. Driver; no Spark.

The progress comes from the job's live status. On a terminal it is one line that is redrawn; elsewhere each step is printed once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from penstock import errors
from penstock.checkpoint.completed import Completed
from penstock.cli.console import in_brief, visible
from penstock.cli.job_arguments import AsJson, NameOfJob, Patience, StorageOfJob
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config import seconds, whole_number
from penstock.errors import PenstockError
from penstock.ids import SYSTEM_RANDOMNESS, CheckpointId, RunId
from penstock.ownership.claim import newest_run
from penstock.progress import Line, show_progress, terminal_line
from penstock.recovery.history import check_committed, read_held
from penstock.recovery.started_batches import refuse_if_started_beyond
from penstock.requests.request_client import RequestClient, living_run
from penstock.requests.request_files import ID_DIGITS, Facts, Kind
from penstock.savepoint.make import check_folder, make_savepoint
from penstock.status.journal import read_live
from penstock.storage import LocalStorage, Storage, open_storage


def trigger(
    storage: StorageOfJob, job: NameOfJob = None, *, timeout: Patience = "10min", as_json: AsJson = False
) -> None:
    """Let a running job complete a checkpoint of all that it has processed by now. Prints its number."""
    from penstock.cli.console import print_json
    from penstock.cli.job_arguments import open_job

    done = ask(open_job(storage, job), Kind.CHECKPOINT, timeout)
    if as_json:
        print_json(done)
    else:
        typer.echo(done["checkpoint"])


def savepoint(
    storage: StorageOfJob,
    job: NameOfJob = None,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="DIR", help="The folder for it; by default a new one in STORAGE/JOB-savepoints."
        ),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(
            "--checkpoint", metavar="N", help="Of this retained checkpoint, not of all there is now."
        ),
    ] = None,
    timeout: Patience = "10min",
    as_json: AsJson = False,
) -> None:
    """Make a savepoint of a job. One that runs goes on meanwhile; of one that does not, the newest checkpoint is taken.

    Prints the folder that it is in.
    """
    from penstock.cli.console import print_json
    from penstock.cli.job_arguments import open_job

    if checkpoint is not None:
        whole_number("--checkpoint", checkpoint, minimum=0)
    made = make(open_job(storage, job), checkpoint=checkpoint, to=to, timeout=timeout)
    typer.echo(f"savepoint of checkpoint {made['checkpoint']}, made in {made['took']}", err=True)
    if as_json:
        print_json(made)
    else:
        typer.echo(made["savepoint"])


def stop(
    storage: StorageOfJob,
    job: NameOfJob = None,
    *,
    savepoint: Annotated[
        str | None,
        typer.Option("--savepoint", metavar="DIR", help="Make a savepoint in this folder before it ends."),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Close all windows and fire all timers by event time before.")
    ] = False,
    timeout: Patience = "10min",
    as_json: AsJson = False,
) -> None:
    """Stop a running job: the batch that runs ends, a last checkpoint is completed and committed, and the process ends with code 0.

    Prints the folder of the savepoint, if one was wanted.
    """
    from penstock.cli.console import print_json
    from penstock.cli.job_arguments import open_job

    wish = {"savepoint": savepoint is not None, "to": folder(savepoint), "drain": drain}
    ended = ask(open_job(storage, job), Kind.STOP, timeout, **wish)
    typer.echo(how_it_ended(ended), err=True)
    if as_json:
        print_json(ended)
    elif "savepoint" in ended:
        typer.echo(ended["savepoint"])


def cancel(
    storage: StorageOfJob, job: NameOfJob = None, *, timeout: Patience = "10min", as_json: AsJson = False
) -> None:
    """End a running job without a last checkpoint. What it keeps is decided by its `checkpoint.on_cancel`."""
    from penstock.cli.console import print_json
    from penstock.cli.job_arguments import open_job

    ended = ask(open_job(storage, job), Kind.CANCEL, timeout)
    typer.echo(how_it_ended(ended), err=True)
    if as_json:
        print_json(ended)


LOOK_S = 1.0


class RequestProgress:
    """Of one request. To be closed."""

    def __init__(self, storage: Storage, line: Line | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._storage = storage
        self._line = line
        self._clock = clock
        self._next_s = clock.monotonic() + LOOK_S
        self._said = ""

    def tell(self, text: str) -> None:
        """Something that happened: it stays."""
        self.close()
        typer.echo(visible(text), err=True)

    def look(self, asked: RunId) -> None:
        """To be called while somebody waits."""
        if self._clock.monotonic() < self._next_s:
            return
        self._next_s = self._clock.monotonic() + LOOK_S
        doing = self._doing(asked)
        if self._line is not None:
            self._line.draw(in_brief(doing, self._line.columns)) if doing else self._line.erase()
        elif doing.partition(":")[0] != self._said:
            self._said = doing.partition(":")[0]
            if doing:
                typer.echo(in_brief(doing, 200), err=True)

    def _doing(self, asked: RunId) -> str:
        """Of the run that owns the job now: it may be the next one that goes on with the request."""
        try:
            live = read_live(self._storage, max(asked, newest_run(self._storage)))
        except PenstockError:  # whether storage answers is told by whoever waits for the answer
            return ""
        return "" if live is None else live.doing

    def close(self) -> None:
        """Leave nothing behind on the terminal."""
        if self._line is not None:
            self._line.erase()


def ask(storage: Storage, kind: Kind, timeout: str, **options: object) -> Facts:
    """Ask the run that owns the job, and wait; progress is told on standard error. A folder that it would refuse is refused here."""
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
    ours = [
        number for number, handler in before.items() if handler is signal.SIG_DFL
    ]  # `nohup` ignores SIGHUP
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def make(storage: Storage, *, checkpoint: int | None, to: str | None, timeout: str) -> Facts:
    """A savepoint: asked of the run that owns the job, or made here of a retained checkpoint when none is alive, or one is chosen."""
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
    """A path as the driver can open it, wherever it was started."""
    if to is None:
        return None
    opened = open_storage(to)
    return str(Path(opened.root)) if isinstance(opened, LocalStorage) else opened.uri


def how_it_ended(facts: Facts) -> str:
    """A line about the end of the job."""
    newest = (
        f"its newest checkpoint is {facts['checkpoint']}"
        if facts["checkpoint"] >= 0
        else "it has no checkpoint"
    )
    failing = (
        f"; it was failing, and has no last checkpoint: {facts['failing']}" if "failing" in facts else ""
    )
    return f"{facts['status']}; {newest}{failing}"
