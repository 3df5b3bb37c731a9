"""`penstock cancel`, `stop`, `trigger`, `savepoint`: asked of a job that runs elsewhere; a savepoint also of one that does not. Driver."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import typer

from penstock.checkpoint.completed import Completed
from penstock.cli.asked_progress import AskedProgress
from penstock.cli.failures import exits_by_signals
from penstock.clock import SYSTEM_CLOCK
from penstock.config import seconds
from penstock.ids import CheckpointId
from penstock.progress_display import show_progress, terminal_line
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.recovery.begun import refuse_if_begun_beyond
from penstock.recovery.held_reading import check_committed, read_held
from penstock.requests.request_client import RequestClient, living_run
from penstock.requests.request_files import ID_DIGITS, Facts, Kind
from penstock.savepoint.make import check_folder, make_savepoint
from penstock.storage import LocalStorage, Storage, open_storage


def ask(storage: Storage, kind: Kind, timeout: str, **options: object) -> Facts:
    """Ask the run that owns the job, and wait; progress is told on standard error. A folder that it would refuse is refused here."""
    to = options.get("to")
    check_folder(storage, to if isinstance(to, str) else None)
    with closing(AskedProgress(storage, terminal_line())) as shown, exits_by_signals():
        asking = RequestClient(storage, tell=shown.tell, meanwhile=shown.look)
        return asking.ask(kind, timeout_s=seconds("--timeout", timeout), **options)


def make(storage: Storage, *, checkpoint: int | None, to: str | None, timeout: str) -> Facts:
    """A savepoint: asked of the run that owns the job, or made here of a retained checkpoint when none is alive, or one is chosen."""
    place = folder(to)
    if checkpoint is None and living_run(storage, SYSTEM_CLOCK.wall()) is not None:
        return ask(storage, Kind.SAVEPOINT, timeout, to=place)
    token = SYSTEM_RANDOMNESS.token(ID_DIGITS)

    def read(completed: Completed) -> Facts:
        check_committed(storage, completed)
        if checkpoint is None:
            refuse_if_begun_beyond(storage, completed)
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
