"""`penstock trigger`, `savepoint`, `stop` and `cancel`: requests to a running job. Driver."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import AsJson, NameOfJob, Patience, StorageOfJob
from penstock.config import whole_number


def trigger(
    storage: StorageOfJob, job: NameOfJob = None, *, timeout: Patience = "10min", as_json: AsJson = False
) -> None:
    """Let a running job complete a checkpoint of all that it has processed by now. Prints its number."""
    from penstock.cli.job_lookup import open_job
    from penstock.cli.printing import print_json
    from penstock.cli.request_waiting import ask
    from penstock.requests.request_files import Kind

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
    from penstock.cli.job_lookup import open_job
    from penstock.cli.printing import print_json
    from penstock.cli.request_waiting import make

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
    from penstock.cli.job_lookup import open_job
    from penstock.cli.printing import print_json
    from penstock.cli.request_waiting import ask, folder, how_it_ended
    from penstock.requests.request_files import Kind

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
    from penstock.cli.job_lookup import open_job
    from penstock.cli.printing import print_json
    from penstock.cli.request_waiting import ask, how_it_ended
    from penstock.requests.request_files import Kind

    ended = ask(open_job(storage, job), Kind.CANCEL, timeout)
    typer.echo(how_it_ended(ended), err=True)
    if as_json:
        print_json(ended)
