"""`penstock run`, `keep-alive`, `guarantee`, `demo` and `dashboard`. They import their implementations when they are called. Driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.child_process import TOKEN_VARIABLE
from penstock.cli.console import plain_console, print_json
from penstock.cli.job_arguments import AsJson, JobFile, JobVariable, RestartOption, is_missing
from penstock.config import Mode
from penstock.dashboard.ui_options import Ui, UiOptions
from penstock.errors import ConfigError
from penstock.ids import checked_name
from penstock.start_options import StartOptions
from penstock.storage import open_storage
from penstock.wording import asked_on_the_command_line, command_line_option

_OTHERS = 0o077


def dashboard(
    storages: Annotated[
        list[str],
        typer.Argument(
            metavar="STORAGE...", help="Paths or URIs, as in Job(storage=...), or folders of single jobs."
        ),
    ],
    *,
    ui: Annotated[
        str | None,
        typer.Option(
            "--ui",
            metavar="HOST:PORT",
            help="The address to listen on; default: 127.0.0.1 and the first free port from 8090 on.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"A file with the token for the pages; or set {TOKEN_VARIABLE}. On loopback, a token is generated and printed by default.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME", help="A host name of this server, such as that of a proxy; repeatable."
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
    from penstock.dashboard.web_server import serve

    pages = Ui(
        True if ui is None else ui,
        token=token_of(token_file),
        read_only=read_only,
        names=name or (),
        savepoints=savepoints or (),
    )
    options = UiOptions.of(pages, "--token-file")
    for place in storages:
        _look_at(place)

    def announce(address: str) -> None:
        typer.echo(address)
        access = (
            "open this address: it contains the token"
            if options.token_is_made
            else "the pages ask for the token"
        )
        typer.echo(f"{access}{'; read-only' if read_only else ''}; Ctrl-C ends the server", err=True)

    serve([str(place) for place in storages], options, announce)


def _look_at(place: str) -> None:
    """Refuse an invalid storage; warn about an empty one. The server may start before the first job creates the folder."""
    opened = open_storage(place)
    if is_missing(opened):
        typer.echo(f"the folder {opened.uri} does not exist yet; jobs appear when they start there", err=True)
    elif not opened.folders():
        typer.echo(f"there is no job in {opened.uri} yet; jobs appear when they start there", err=True)


def token_of(file: Path | None, option: str = "--token-file") -> str | None:
    """The token from a file; never from the command line, which every user of the machine can see."""
    if file is None:
        return None
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


OwnArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGS", help="Arguments for the file itself, after --; it sees them as sys.argv[1:]."
    ),
]


def _start_option(name: str) -> Any:
    """The option of the command line for an option of a start."""
    return typer.Option(command_line_option(name), **StartOptions.__dataclass_fields__[name].metadata)


def run(
    file: JobFile,
    arguments: OwnArguments = None,
    *,
    job: JobVariable = None,
    available_now: Annotated[bool, _start_option("available_now")] = False,
    restore: Annotated[int | None, _start_option("restore")] = None,
    takeover: Annotated[bool, _start_option("takeover")] = False,
    drop_state: Annotated[list[str] | None, _start_option("drop_state")] = None,
    drop_sources: Annotated[list[str] | None, _start_option("drop_sources")] = None,
    rename: Annotated[list[str] | None, _start_option("rename")] = None,
    positions: Annotated[list[str] | None, _start_option("positions")] = None,
    drain: Annotated[bool, _start_option("drain")] = False,
    savepoint: Annotated[str | None, _start_option("savepoint")] = None,
    claim: Annotated[bool, _start_option("claim")] = False,
    ui: Annotated[str | None, _start_option("ui")] = None,
    ui_token: Annotated[Path | None, _start_option("ui_token")] = None,
    ui_read_only: Annotated[bool, _start_option("ui_read_only")] = False,
    keep_alive: Annotated[
        bool, typer.Option("--keep-alive", help="Restart the job when its process or Spark dies.")
    ] = False,
    restart: RestartOption = None,
) -> None:
    """Run the job that a Python file defines, starting from its newest checkpoint.

    Ctrl-C or SIGTERM stops it with a last checkpoint (exit code 0). A second one ends it now, without (exit code 130 or 143).
    """
    from penstock.cli.job_file import keep_run_alive, run_file

    for option, uids in (("--drop-state", drop_state), ("--drop-source", drop_sources)):
        for uid in uids or ():
            checked_name(f"uid of {option}", uid.partition(".")[0])
    with asked_on_the_command_line():
        options = StartOptions(
            available_now=available_now,
            restore=restore,
            takeover=takeover,
            drop_state=tuple(drop_state or ()),
            drop_sources=tuple(drop_sources or ()),
            rename=_pairs("rename", rename),
            positions=_pairs("positions", positions),
            drain=drain,
            savepoint=savepoint,
            claim=claim,
            ui=True if ui == "auto" else ui,
            ui_token=token_of(ui_token, "--ui-token-file"),
            ui_read_only=ui_read_only,
        )
        if keep_alive or restart:
            raise typer.Exit(keep_run_alive(restart, wanted=keep_alive))
        run_file(file, job, own_arguments("run", arguments), options)


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


def _pairs(name: str, given: list[str] | None) -> dict[str, str]:
    option, form = command_line_option(name), StartOptions.__dataclass_fields__[name].metadata["metavar"]
    pairs: dict[str, str] = {}
    for text in given or ():
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            why = f"{option} {text} is not allowed: write {option} {form}"
            raise ConfigError(why, option=option, value=text)
        if left in pairs:
            why = f"{option} names {left} twice: {left}={pairs[left]} and {text}; give one of them"
            raise ConfigError(why, option=option, value=text)
        pairs[left] = right
    return pairs


def guarantee(
    file: JobFile, arguments: OwnArguments = None, *, job: JobVariable = None, as_json: AsJson = False
) -> None:
    """Print the end-to-end guarantee of the job in a Python file, and what limits it.

    This runs the file and starts Spark to inspect the sources; it reads no rows and starts no job.
    """
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
    mode: Annotated[Mode, typer.Option(help="The guarantee to test.")] = Mode.EXACTLY_ONCE,
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
    from penstock.demo.run import run_demo
    from penstock.demo.settings import DemoSettings

    settings = DemoSettings(
        folder=str(folder.absolute()),
        mode=mode,
        events=events,
        partitions=partitions,
        apps=apps,
        kills=kills,
        batches=batches,
    )
    if not run_demo(settings, plain_console()):
        raise typer.Exit(1)
