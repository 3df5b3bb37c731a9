"""`penstock list`, `status`, `failures`, `watch`, `checkpoints`, `runs`, `inspect` and `diff`: read jobs, running or not. Driver."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.console import print_json, table_console
from penstock.cli.job_arguments import (
    PATIENCE_S,
    AsJson,
    NameOfJob,
    StorageOfJob,
    Storages,
    found_job,
    is_job,
    job_names,
    jobs_in,
    refuse_missing,
    within,
)
from penstock.config import whole_number
from penstock.errors import ConfigError, PenstockError


class CouldNotError(ConfigError):
    """Failed command whose exit code 1 has another meaning, as with `diff`: it ends with 2."""


def list_jobs(storages: Storages, *, as_json: AsJson = False) -> None:
    """List all jobs in storages with their state, run, last checkpoint, rate, restarts, guarantee, id and pages.

    This command needs no Spark and changes nothing.
    """
    from penstock.cli import job_tables
    from penstock.clock import SYSTEM_CLOCK
    from penstock.status.job_watcher import look_at
    from penstock.status.jobs import linked_jobs

    views = [look_at(job, SYSTEM_CLOCK.wall()) for job in jobs_in(storages)]
    for why in linked_jobs(storages).values():
        typer.echo(why, err=True)
    if as_json:
        print_json([job_tables.as_json(view) for view in views])
    elif views:
        console = table_console()
        console.print(job_tables.overview(views, console.width), highlight=False)
    else:
        where = "is it the storage" if len(storages) == 1 else "are they the storages"
        typer.echo(f"there is no job in {', '.join(storages)}; {where} given to Job(storage=...)?", err=True)


def status(storage: StorageOfJob, job: NameOfJob = None, *, as_json: AsJson = False) -> None:
    """Show one job on one screen: its state, what needs attention, last checkpoint and failure, whether it is caught up, its graph.

    Exit code 0: the job is healthy, recovers by itself, or ended on request. 2: its state is unknown. 3: it needs attention.
    """
    from penstock.cli.status_screen import exit_code, screen, status_json
    from penstock.clock import SYSTEM_CLOCK
    from penstock.status.job_watcher import look_at

    try:
        view = within(PATIENCE_S, storage, lambda: look_at(found_job(storage, job), SYSTEM_CLOCK.wall()))
    except PenstockError as error:
        raise CouldNotError(str(error)) from error
    if as_json:
        print_json(status_json(view))
    else:
        table_console().print(screen(view), highlight=False)
    if exit_code(view):
        raise typer.Exit(exit_code(view))


def failures(
    storage: StorageOfJob,
    job: NameOfJob = None,
    *,
    as_json: AsJson = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show notes and stack traces.")] = False,
) -> None:
    """List the failures of a job: the cause, the decision, the restored checkpoint, and the cost."""
    from penstock.cli.job_tables import print_failures
    from penstock.clock import SYSTEM_CLOCK
    from penstock.status.job_watcher import look_at

    view = look_at(found_job(storage, job), SYSTEM_CLOCK.wall())
    if as_json:
        print_json(view.failures)
    else:
        print_failures(view.name, view.failures, view.now, verbose=verbose)


def watch(storage: StorageOfJob, job: NameOfJob = None) -> None:
    """Watch all jobs of a storage, or one with its graph, live in the terminal. q or Ctrl-C quits; the jobs are not affected.

    Without a terminal, it prints a line for every change.
    """
    from penstock.cli.watch import watch as watch_jobs
    from penstock.status.jobs import find_jobs

    if job is None and not is_job(storage):
        refuse_missing(storage)
        watch_jobs(lambda: find_jobs([storage]), one=False)
    else:
        found = found_job(storage, job)
        watch_jobs(lambda: [found], one=True)


def checkpoints(
    storage: StorageOfJob,
    job: NameOfJob = None,
    *,
    as_json: AsJson = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the measurements of every subtask.")
    ] = False,
    last: Annotated[
        int,
        typer.Option(
            "--last", metavar="N", help="How many checkpoints that are no longer in storage to show."
        ),
    ] = 20,
) -> None:
    """List the checkpoints of a job: contents, cost, and which cannot be used and why.

    After those in storage come the last ones from the job's journal: subsumed, given up, or in progress.
    """
    from penstock.cli.checkpoint_tables import (
        checkpoints_json,
        history,
        list_checkpoints,
        print_checkpoints,
        print_history,
    )
    from penstock.config import whole_number

    number = whole_number("--last", last, minimum=0)
    found = found_job(storage, job)
    entries = list_checkpoints(found.storage)
    past = history(found, number)
    if as_json:
        print_json(checkpoints_json(entries, past))
    else:
        print_checkpoints(found.name, entries, verbose=verbose)
        print_history(past)


def runs(storage: StorageOfJob, job: NameOfJob = None, *, as_json: AsJson = False) -> None:
    """List the runs of a job: when and where each started, from which checkpoint, how it ended and why."""
    from penstock.cli.job_tables import print_runs, run_json
    from penstock.clock import SYSTEM_CLOCK
    from penstock.ownership.runs import list_runs

    found = found_job(storage, job)
    listed = list_runs(found.storage, SYSTEM_CLOCK.wall())
    if as_json:
        print_json([run_json(run) for run in listed])
    else:
        print_runs(found.name, listed)


def inspect(
    path: Annotated[str, typer.Argument(help="The folder of a savepoint; with JOB, the storage of the job.")],
    job: Annotated[
        str | None,
        typer.Argument(
            help="The name of a job: the command shows its newest checkpoint.", autocompletion=job_names
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a savepoint, or of a job's newest checkpoint: operators, states, rows, sizes, positions, event time.

    This command reads no rows and changes nothing.
    """
    from penstock.cli.state_tables import contents_at, contents_json, print_contents

    found = contents_at(path, job)
    if as_json:
        print_json(contents_json(found))
    else:
        print_contents(found)


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A savepoint, or the folder of a job.")],
    after: Annotated[str, typer.Argument(metavar="B", help="A savepoint, or the folder of a job.")],
    *,
    examples: Annotated[int, typer.Option(help="How many rows of each kind to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Compare the state in two savepoints, or in the newest checkpoints of jobs: which keys appeared, changed and went.

    This command reads all rows and changes nothing. Exit code 0: all state is the same. 1: it differs. 2: the comparison failed.
    """
    from penstock.cli.state_tables import differing, print_difference, print_difference_json

    try:
        found = differing(before, after, examples=whole_number("--examples", examples, minimum=0))
    except PenstockError as error:
        raise CouldNotError(str(error)) from error
    if as_json:
        print_difference_json(found)
    else:
        print_difference(found)
    if not found.is_same:
        raise typer.Exit(1)
