"""`penstock list`, `status`, `failures`, `watch`, `checkpoints` and `runs`: looking at jobs, running or not. Driver."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import AsJson, NameOfJob, StorageOfJob, Storages
from penstock.cli.failures import CouldNotError
from penstock.errors import PenstockError


def list_jobs(storages: Storages, *, as_json: AsJson = False) -> None:
    """List all jobs in storages: how they are and since when, run, last checkpoint and its age, rate, restarts, guarantee, id, pages.

    Needs no Spark and changes nothing.
    """
    from penstock.cli import job_list
    from penstock.cli.console import table_console
    from penstock.cli.printing import print_json
    from penstock.cli.which_job import jobs_in
    from penstock.clock import SYSTEM_CLOCK
    from penstock.status.job_watcher import look_at
    from penstock.status.jobs import linked_jobs

    views = [look_at(job, SYSTEM_CLOCK.wall()) for job in jobs_in(storages)]
    for why in linked_jobs(storages).values():
        typer.echo(why, err=True)
    if as_json:
        print_json([job_list.as_json(view) for view in views])
    elif views:
        console = table_console()
        console.print(job_list.overview(views, console.width), highlight=False)
    else:
        where = "is it the storage" if len(storages) == 1 else "are they the storages"
        typer.echo(f"there is no job in {', '.join(storages)}; {where} given to Job(storage=...)?", err=True)


def status(storage: StorageOfJob, job: NameOfJob = None, *, as_json: AsJson = False) -> None:
    """Show one job on one screen: how it is, what needs somebody, its last failure and checkpoint, whether it is caught up, its graph.

    Exit code 0: it is well, comes back by itself, or ended as somebody wanted. 2: it could not be seen. 3: it needs somebody.
    """
    from penstock.cli.console import table_console
    from penstock.cli.printing import print_json
    from penstock.cli.status_screen import exit_code, screen, status_json
    from penstock.cli.which_job import PATIENCE_S, found_job, within
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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show notes and traces.")] = False,
) -> None:
    """List the failures of a job: what happened, what was decided, which checkpoint was restored, what it cost."""
    from penstock.cli.failure_table import print_failures
    from penstock.cli.printing import print_json
    from penstock.cli.which_job import found_job
    from penstock.clock import SYSTEM_CLOCK
    from penstock.status.job_watcher import look_at

    view = look_at(found_job(storage, job), SYSTEM_CLOCK.wall())
    if as_json:
        print_json(view.failures)
    else:
        print_failures(view.name, view.failures, view.now, verbose=verbose)


def watch(storage: StorageOfJob, job: NameOfJob = None) -> None:
    """Watch all jobs of a storage, or one with its graph, live in the terminal. q or Ctrl-C leaves; the jobs do not notice.

    Without a terminal it prints a line for every change.
    """
    from penstock.cli.watching import watch as watch_jobs
    from penstock.cli.which_job import found_job, is_job, refuse_missing
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
        bool, typer.Option("--verbose", "-v", help="Show what every subtask measured.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", metavar="N", help="How many that are not in storage any more to show.")
    ] = 20,
) -> None:
    """List the checkpoints of a job: what they hold, what they cost, and which cannot be used and why.

    Behind those in storage come the last ones that the job's journal knows of: subsumed since, given up, or under way.
    """
    from penstock.cli.checkpoint_history import history, print_history, with_history
    from penstock.cli.checkpoint_listing import list_checkpoints
    from penstock.cli.checkpoint_table import as_objects, print_tables
    from penstock.cli.printing import print_json
    from penstock.cli.which_job import found_job
    from penstock.config import whole_number

    number = whole_number("--last", last, minimum=0)
    found = found_job(storage, job)
    entries = list_checkpoints(found.storage)
    past = history(found, number)
    if as_json:
        print_json(with_history(as_objects(entries), past))
    else:
        print_tables(found.name, entries, verbose=verbose)
        print_history(past)


def runs(storage: StorageOfJob, job: NameOfJob = None, *, as_json: AsJson = False) -> None:
    """List the runs of a job: when and where they began, from which checkpoint, how they ended and why."""
    from penstock.cli.run_table import print_json, print_table
    from penstock.cli.which_job import found_job
    from penstock.clock import SYSTEM_CLOCK
    from penstock.ownership.run_list import list_runs

    found = found_job(storage, job)
    listed = list_runs(found.storage, SYSTEM_CLOCK.wall())
    if as_json:
        print_json(listed)
    else:
        print_table(found.name, listed)
