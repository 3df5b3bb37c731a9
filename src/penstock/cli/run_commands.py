"""`penstock run`, `keep-alive`, `guarantee`, `demo` and `dashboard`. They import their implementations when they are called. Driver."""

from __future__ import annotations

import enum
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.job_arguments import AsJson, JobFile, JobVariable, RestartOption
from penstock.config import Mode, whole_number
from penstock.dashboard.ui_options import TOKEN_VARIABLE
from penstock.errors import ConfigError
from penstock.ids import checked_name
from penstock.storage import open_storage

_OTHERS = 0o077


def dashboard(
    storages: Annotated[
        list[str],
        typer.Argument(
            metavar="STORAGE...",
            help="Paths or URIs, as in Job(storage=...), or folders of single jobs.",
            show_default=False,
        ),
    ],
    *,
    ui: Annotated[
        str | None,
        typer.Option(
            "--ui",
            metavar="HOST:PORT",
            help="The address to listen on; default: 127.0.0.1 and the first free port from 8090 on.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"A file with the token for the pages; or set {TOKEN_VARIABLE}. On loopback, a token is generated and printed by default.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="A host name of this server, such as that of a proxy; repeatable.",
        ),
    ] = None,
    savepoints: Annotated[
        list[str] | None,
        typer.Option(
            "--savepoints",
            metavar="FOLDER",
            help="Allow making and deleting savepoints below this folder, besides the folder of each job's savepoints; repeatable.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show jobs without actions.")] = False,
) -> None:
    """Show all jobs in storages in a browser: running, dead and finished ones. Prints its address.

    It reads storage and starts no Spark. Ctrl-C ends it; the jobs are not affected.
    """
    from penstock.dashboard.ui_options import UiOptions
    from penstock.dashboard.web_server import serve

    token = token_of(token_file)
    options = UiOptions.checked(
        True if ui is None else ui,
        token,
        read_only=read_only,
        names=tuple(name or ()),
        savepoints=tuple(savepoints or ()),
    )
    for place in storages:
        _look_at(place)

    def announce(address: str) -> None:
        typer.echo(address)
        access = "the pages ask for the token" if token else "open this address: it contains the token"
        typer.echo(f"{access}{'; read-only' if read_only else ''}; Ctrl-C ends the server", err=True)

    serve([str(place) for place in storages], options, announce)


def _look_at(place: str) -> None:
    """Refuse an invalid storage; warn about an empty one. The server may start before the first job creates the folder."""
    from penstock.cli.job_arguments import is_missing

    opened = open_storage(place)
    if is_missing(opened):
        typer.echo(f"the folder {opened.uri} does not exist yet; jobs appear when they start there", err=True)
    elif not opened.folders():
        typer.echo(f"there is no job in {opened.uri} yet; jobs appear when they start there", err=True)


def token_of(file: Path | None, option: str = "--token-file") -> str | None:
    """The token from a file or the environment; never from the command line, which every user of the machine can see."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
        is_open = file.stat().st_mode & _OTHERS
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{option} {file} cannot be read: {error}; nothing was started; write a token into it, for example with "
            "`openssl rand -hex 24`",
            file=str(file),
        ) from error
    if is_open:
        typer.echo(
            f"other users of this machine can read the token in {file}; run chmod 600 {file}", err=True
        )
    return token


class ModeName(enum.StrEnum):
    """The values of `penstock demo --mode`."""

    EXACTLY_ONCE = Mode.EXACTLY_ONCE.value
    AT_LEAST_ONCE = Mode.AT_LEAST_ONCE.value
    AT_MOST_ONCE = Mode.AT_MOST_ONCE.value


OwnArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGS",
        help="Arguments for the file itself, after --; it sees them as sys.argv[1:].",
        show_default=False,
    ),
]


def run(
    file: JobFile,
    arguments: OwnArguments = None,
    *,
    job: JobVariable = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the input available now, then end.")
    ] = False,
    restore: Annotated[
        int | None,
        typer.Option(
            "--restore", metavar="N", help="Restore this retained checkpoint instead of the newest."
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
            help="An operator, or one of its states, whose stored state may be dropped; repeatable.",
            show_default=False,
        ),
    ] = None,
    drop_source: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-source",
            metavar="UID",
            help="A source that the job no longer has; its position may be dropped.",
            show_default=False,
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="A uid that was renamed; repeatable.",
            show_default=False,
        ),
    ] = None,
    position: Annotated[
        list[str] | None,
        typer.Option(
            "--position",
            metavar="UID=WHERE",
            help="Where a source continues: start, latest, or a position in JSON. Applied once.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="With --available-now: close all windows and fire all event-time timers at the end.",
        ),
    ] = False,
    savepoint: Annotated[
        str | None,
        typer.Option(
            "--savepoint",
            metavar="DIR",
            help="Start from this savepoint; a job that already started from it continues.",
            show_default=False,
        ),
    ] = None,
    claim: Annotated[
        bool,
        typer.Option("--claim", help="With --savepoint: the job takes ownership of it and deletes it later."),
    ] = False,
    ui: Annotated[
        str | None,
        typer.Option(
            "--ui",
            metavar="ADDRESS",
            help="Serve the job's pages at this address, such as 127.0.0.1:8090; auto: the first free port from 8090 on.",
            show_default=False,
        ),
    ] = None,
    ui_token_file: Annotated[
        Path | None,
        typer.Option(
            "--ui-token-file",
            metavar="FILE",
            help=f"A file with the token for these pages; or set {TOKEN_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    ui_read_only: Annotated[
        bool, typer.Option("--ui-read-only", help="Show the pages without actions.")
    ] = False,
    keep_alive: Annotated[
        bool, typer.Option("--keep-alive", help="Restart the job when its process or Spark dies.")
    ] = False,
    restart: RestartOption = None,
) -> None:
    """Run the job that a Python file defines, starting from its newest checkpoint.

    Ctrl-C or SIGTERM stops it with a last checkpoint (exit code 0). A second one ends it now, without (exit code 130 or 143).
    """
    from penstock.cli.job_file import run_file

    if restore is not None:
        whole_number("--restore", restore, minimum=0)
    dropped = tuple(drop_state or ())
    for name in dropped:
        checked_name("uid of --drop-state", name.partition(".")[0])
    if keep_alive or restart:
        from penstock.cli.job_file import keep_run_alive

        raise typer.Exit(keep_run_alive(restart, wanted=keep_alive))
    run_file(
        file,
        job,
        arguments=own_arguments("run", arguments),
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
        ui=True if ui == "auto" else ui,
        ui_token=token_of(ui_token_file, "--ui-token-file") if ui or ui_token_file else None,
        ui_read_only=ui_read_only,
    )


def keep_program_alive(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- PROGRAM...", help="A program that runs a job, and its arguments."),
    ],
    *,
    restart: RestartOption = None,
) -> None:
    """Run a program that calls `job.run()`, and restart it when it or Spark dies, as `run --keep-alive` does.

    Ctrl-C and SIGTERM reach the program. The exit code is that of the program.
    """
    from penstock.cli.job_file import keep_alive

    raise typer.Exit(keep_alive(command, restart))


def own_arguments(command: str, given: list[str] | None) -> tuple[str, ...]:
    """The arguments for the file. They must follow --: a word without it is probably an option that lost its dashes."""
    if given and "--" not in sys.argv:
        raise ConfigError(
            f"{given[0]!r} is not an option; write -- before the arguments of the file: penstock {command} FILE -- {' '.join(given)}",
            argument=given[0],
        )
    return tuple(given or ())


def _pair(option: str, form: str, text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left and equals and right):
        raise ConfigError(f"{option} {text} is not allowed: write {option} {form}", option=option, value=text)
    return left, right


def guarantee(
    file: JobFile, arguments: OwnArguments = None, *, job: JobVariable = None, as_json: AsJson = False
) -> None:
    """Print the end-to-end guarantee of the job in a Python file, and what limits it.

    This runs the file and starts Spark to inspect the sources; it reads no rows and starts no job.
    """
    from penstock.cli.console import print_json
    from penstock.cli.job_file import as_its_own_program, ended_by_ctrl_c, load_job

    if file.is_file() and sys.stderr.isatty():  # a person waits
        typer.echo(f"running {file.name} up to its job; starting Spark takes some seconds", err=True)
    with ended_by_ctrl_c(), as_its_own_program(file, own_arguments("guarantee", arguments)):
        found = load_job(file, job).guarantee()
    if as_json:
        print_json(
            {
                "guarantee": found.level.value if found.level else None,
                "limited_by": found.limited_by or None,
                "reason": found.reason,
            }
        )
        return
    typer.echo(str(found))
    if found.limited_by:
        typer.echo(f"limited by: {found.limited_by}")


def demo(
    *,
    mode: Annotated[ModeName, typer.Option(help="The guarantee to test.")] = ModeName.EXACTLY_ONCE,
    events: Annotated[int, typer.Option(help="The number of page views.")] = 1_000_000,
    partitions: Annotated[int, typer.Option(help="The partitions of the input log.")] = 4,
    apps: Annotated[int, typer.Option(help="The number of different apps.")] = 20,
    folder: Annotated[
        Path, typer.Option("--dir", help="The folder for all files; emptied at the start.")
    ] = Path(".demo"),
    kills: Annotated[int, typer.Option(help="How often to kill the driver with SIGKILL.")] = 2,
    batches: Annotated[int, typer.Option(help="The number of batches of the input.")] = 16,
) -> None:
    """Count page views while the driver is killed at the worst moments, and compare every count with the expected one."""
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
