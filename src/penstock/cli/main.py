"""The commands and their options. Each command's work is in a module of its own, imported when it is called. Driver."""

from __future__ import annotations

import enum
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.failures import CouldNotError, ended_by_ctrl_c, exit_code_of, explain
from penstock.config import Mode, whole_number
from penstock.errors import ConfigError, PenstockError
from penstock.ids import checked_name

app = typer.Typer(
    name="penstock",
    help="Flink's fault tolerance for Spark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes show a type behind every option, also <bool> behind one that takes no value
)


class _Debug:
    """Whether tracebacks are wanted; set before any command runs."""

    on = False


class ModeName(enum.StrEnum):
    """The modes as words of the command line."""

    EXACTLY_ONCE = Mode.EXACTLY_ONCE.value
    AT_LEAST_ONCE = Mode.AT_LEAST_ONCE.value
    AT_MOST_ONCE = Mode.AT_MOST_ONCE.value


JobFile = Annotated[
    Path, typer.Argument(metavar="FILE.py", help="A Python file that defines a Job.", show_default=False)
]
JobVariable = Annotated[
    str | None,
    typer.Option(
        "--job", metavar="NAME", help="The Job, or the function(spark) that makes it; 'job' by default."
    ),
]


StorageOfJob = Annotated[
    str, typer.Argument(metavar="STORAGE", help="Path or URI, as in Job(storage=...).", show_default=False)
]
NameOfJob = Annotated[str, typer.Argument(metavar="JOB", help="The name of the job.", show_default=False)]
Patience = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the job, such as 30s or 5min.")
]


def main() -> None:
    """Run the command line and end the process."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if _Debug.on:
            raise
        sys.stderr.write(f"penstock: {explain(error)}\n")
        sys.exit(exit_code_of(error))


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda value: _print_version(wanted=value),
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log everything, show tracebacks.")] = False,
) -> None:
    del version
    _Debug.on = debug
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("penstock").setLevel(logging.DEBUG)


@app.command(short_help="Kill a job's driver, and compare its counts with the truth.")
def demo(
    *,
    mode: Annotated[ModeName, typer.Option(help="The promise to try.")] = ModeName.EXACTLY_ONCE,
    events: Annotated[int, typer.Option(help="How many page views.")] = 1_000_000,
    partitions: Annotated[int, typer.Option(help="Partitions of the log they are in.")] = 4,
    apps: Annotated[int, typer.Option(help="Different apps to count by.")] = 20,
    folder: Annotated[
        Path, typer.Option("--dir", help="Where everything is kept; emptied at the start.")
    ] = Path(".demo"),
    kills: Annotated[int, typer.Option(help="How often the driver is killed with SIGKILL.")] = 2,
    batches: Annotated[int, typer.Option(help="Into how many batches the input is cut.")] = 16,
) -> None:
    """Count page views while the driver is killed in the worst moments, and compare every count with the truth."""
    from penstock.cli.console import plain_console
    from penstock.demo.run import run_demo
    from penstock.demo.settings import DemoSettings

    settings = DemoSettings(
        folder=str(folder.absolute()),
        mode=Mode(mode.value),
        events=events,
        partitions=partitions,
        apps=apps,
        kills=kills,
        batches=batches,
    )
    if not run_demo(settings, plain_console()):
        raise typer.Exit(1)


@app.command(short_help="List the checkpoints of a job.")
def checkpoints(
    storage: Annotated[str, typer.Argument(help="Path or URI, as in Job(storage=...).", show_default=False)],
    job: Annotated[str, typer.Argument(help="The name of the job.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what every subtask measured.")
    ] = False,
) -> None:
    """List the checkpoints of a job: what they hold, what they cost, and which cannot be used and why."""
    from penstock.cli.checkpoint_listing import list_checkpoints, open_job
    from penstock.cli.checkpoint_table import print_json, print_tables

    entries = list_checkpoints(open_job(storage, job))
    if as_json:
        print_json(entries)
    else:
        print_tables(job, entries, verbose=verbose)


@app.command(short_help="List the runs of a job, how they ended and why.")
def runs(
    storage: Annotated[str, typer.Argument(help="Path or URI, as in Job(storage=...).", show_default=False)],
    job: Annotated[str, typer.Argument(help="The name of the job.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the runs of a job: when and where they began, from which checkpoint, how they ended and why."""
    from penstock.cli.checkpoint_listing import open_job
    from penstock.cli.run_table import print_json, print_table
    from penstock.clock import SYSTEM_CLOCK
    from penstock.ownership.run_list import list_runs

    found = list_runs(open_job(storage, job), SYSTEM_CLOCK.wall())
    if as_json:
        print_json(found)
    else:
        print_table(job, found)


@app.command(short_help="Show what is in a savepoint, or in a job's newest checkpoint.")
def inspect(
    path: Annotated[
        str,
        typer.Argument(
            help="The folder of a savepoint; with JOB, the storage of the job.", show_default=False
        ),
    ],
    job: Annotated[
        str | None,
        typer.Argument(help="The name of a job: its newest checkpoint is shown.", show_default=False),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what is in a savepoint, or in a job's newest checkpoint: operators and their states, rows, sizes, positions, event time.

    No row is read, and nothing is changed.
    """
    from penstock.cli.state_table import contents_at, print_contents, print_json

    found = contents_at(path, job)
    if as_json:
        print_json(found)
    else:
        print_contents(found)


@app.command(short_help="Compare two savepoints: which keys appeared, changed and went.")
def diff(
    before: Annotated[
        str, typer.Argument(metavar="A", help="A savepoint, or the folder of a job.", show_default=False)
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", help="A savepoint, or the folder of a job.", show_default=False)
    ],
    *,
    examples: Annotated[int, typer.Option(help="How many rows of each kind to show.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare the state in two savepoints, or in the newest checkpoint of a job: which keys appeared, changed and went.

    All rows are read; nothing is changed. Exit code 0: all state is the same. 1: it differs. 2: it could not be compared.
    """
    from penstock.cli.diff_table import differing, print_difference, print_json

    try:
        found = differing(before, after, examples=whole_number("--examples", examples, minimum=0))
    except PenstockError as error:
        raise CouldNotError(str(error)) from error
    if as_json:
        print_json(found)
    else:
        print_difference(found)
    if not found.is_same:
        raise typer.Exit(1)


@app.command(short_help="Run the job that a Python file defines.")
def run(
    file: JobFile,
    *,
    job: JobVariable = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when the input known now is done.")
    ] = False,
    restore: Annotated[
        int | None,
        typer.Option(
            "--restore", metavar="N", help="Go on from this retained checkpoint, not from the newest."
        ),
    ] = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Fence off a run that seems to be alive.")
    ] = False,
    drop_state: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-state",
            metavar="UID[.STATE]",
            help="An operator, or one of its states, of which what is stored may be lost; once for each.",
            show_default=False,
        ),
    ] = None,
    drop_source: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-source",
            metavar="UID",
            help="A source that the job no longer has; its position may be lost.",
            show_default=False,
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="A uid that has become another; once for each.",
            show_default=False,
        ),
    ] = None,
    position: Annotated[
        list[str] | None,
        typer.Option(
            "--position",
            metavar="UID=WHERE",
            help="Where a source goes on: start, latest, or a position in JSON. Done once.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="With --available-now: then close all windows and fire all timers by event time.",
        ),
    ] = False,
    savepoint: Annotated[
        str | None,
        typer.Option(
            "--savepoint",
            metavar="DIR",
            help="Begin with this savepoint; a job that has begun with it goes on.",
            show_default=False,
        ),
    ] = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="With --savepoint: it becomes the job's own, and is deleted.")
    ] = False,
) -> None:
    """Run the job that a Python file defines, from its newest checkpoint on.

    Ctrl-C or SIGTERM stops it with a last checkpoint (exit code 0). Once more ends it now, without (exit code 130 or 143).
    """
    from penstock.cli.running import run_file

    if restore is not None:
        whole_number("--restore", restore, minimum=0)
    dropped = tuple(drop_state or ())
    for name in dropped:
        checked_name("uid of --drop-state", name.partition(".")[0])
    run_file(
        file,
        job,
        available_now=available_now,
        restore=restore,
        takeover=takeover,
        drop_state=dropped,
        drop_sources=tuple(checked_name("uid of --drop-source", uid) for uid in drop_source or ()),
        rename=dict(_pair("--rename", "OLD=NEW", one) for one in rename or ()),
        positions=dict(_pair("--position", "UID=WHERE", one) for one in position or ()),
        drain=drain,
        savepoint=savepoint,
        claim=claim,
    )


@app.command(short_help="Make a savepoint of a job, running or not.")
def savepoint(
    storage: StorageOfJob,
    job: NameOfJob,
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
) -> None:
    """Make a savepoint of a job. One that runs goes on meanwhile; of one that does not, the newest checkpoint is taken.

    Prints the folder that it is in.
    """
    from penstock.cli.asking import make
    from penstock.cli.checkpoint_listing import open_job

    if checkpoint is not None:
        whole_number("--checkpoint", checkpoint, minimum=0)
    made = make(open_job(storage, job), checkpoint=checkpoint, to=to, timeout=timeout)
    typer.echo(f"savepoint of checkpoint {made['checkpoint']}, made in {made['took']}", err=True)
    typer.echo(made["savepoint"])


@app.command(short_help="Let a running job complete a checkpoint now.")
def trigger(storage: StorageOfJob, job: NameOfJob, *, timeout: Patience = "10min") -> None:
    """Let a running job complete a checkpoint of all that it has processed by now. Prints its number."""
    from penstock.cli.asking import ask
    from penstock.cli.checkpoint_listing import open_job
    from penstock.ownership.requests import Kind

    typer.echo(ask(open_job(storage, job), Kind.CHECKPOINT, timeout)["checkpoint"])


@app.command(short_help="Stop a running job in good order.")
def stop(
    storage: StorageOfJob,
    job: NameOfJob,
    *,
    savepoint: Annotated[
        str | None,
        typer.Option("--savepoint", metavar="DIR", help="Make a savepoint in this folder before it ends."),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Close all windows and fire all timers by event time before.")
    ] = False,
    timeout: Patience = "10min",
) -> None:
    """Stop a running job: the batch that runs ends, a last checkpoint is completed and committed, and the process ends with code 0.

    Prints the folder of the savepoint, if one was wanted.
    """
    from penstock.cli.asking import ask, folder, how_it_ended
    from penstock.cli.checkpoint_listing import open_job
    from penstock.ownership.requests import Kind

    wish = {"savepoint": savepoint is not None, "to": folder(savepoint), "drain": drain}
    ended = ask(open_job(storage, job), Kind.STOP, timeout, **wish)
    typer.echo(how_it_ended(ended), err=True)
    if "savepoint" in ended:
        typer.echo(ended["savepoint"])


@app.command(short_help="End a running job now, without a last checkpoint.")
def cancel(storage: StorageOfJob, job: NameOfJob, *, timeout: Patience = "10min") -> None:
    """End a running job without a last checkpoint. What it keeps is decided by its `checkpoint.on_cancel`."""
    from penstock.cli.asking import ask, how_it_ended
    from penstock.cli.checkpoint_listing import open_job
    from penstock.ownership.requests import Kind

    ended = ask(open_job(storage, job), Kind.CANCEL, timeout)
    typer.echo(how_it_ended(ended), err=True)


def _pair(option: str, form: str, text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left and equals and right):
        raise ConfigError(f"{option} {text} is not allowed: write {option} {form}", option=option, value=text)
    return left, right


@app.command(short_help="Print what the job in a Python file promises.")
def guarantee(file: JobFile, *, job: JobVariable = None) -> None:
    """Print what the job in a Python file promises from end to end, and what limits it.

    It runs the file, and starts Spark to look at the sources; it reads none of them and starts no job.
    """
    from penstock.cli.job_file import as_its_own_program, load_job

    if file.is_file() and sys.stderr.isatty():  # somebody waits
        typer.echo(f"running {file.name} up to its job; that takes Spark, some seconds", err=True)
    with ended_by_ctrl_c(), as_its_own_program(file):
        found = load_job(file, job).guarantee()
    typer.echo(str(found))
    if found.limited_by:
        typer.echo(f"limited by: {found.limited_by}")
