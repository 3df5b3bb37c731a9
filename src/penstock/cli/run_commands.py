"""`penstock run`, `keep-alive`, `guarantee` and `demo`. Their implementations are imported when they are called. Driver."""

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
            help="Where to listen; by default on 127.0.0.1, the first free port from 8090 on.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"A file with the token that is asked for; or set {TOKEN_VARIABLE}. By default, on loopback, one is made and printed.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="A name by which people reach it, such as that of a proxy; once for each.",
        ),
    ] = None,
    savepoints: Annotated[
        list[str] | None,
        typer.Option(
            "--savepoints",
            metavar="FOLDER",
            help="A folder below which savepoints may be made and deleted from here, besides the one beside each job; once for each.",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show jobs, and let nobody stop them from here.")
    ] = False,
) -> None:
    """Show all jobs in some storages in a browser: those that run, that are dead, and that have ended. Prints its address.

    It reads storage and starts no Spark. Ctrl-C ends it; no job takes notice.
    """
    from penstock.dashboard.serving import serve
    from penstock.dashboard.ui_options import UiOptions

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

    def told(address: str) -> None:
        typer.echo(address)
        whom = "it asks for the token" if token else "only this address, with its token, is let in"
        typer.echo(f"{whom}{', and it only shows' if read_only else ''}; Ctrl-C ends it", err=True)

    serve([str(place) for place in storages], options, told)


def _look_at(place: str) -> None:
    """Refuse what can be no storage; say where nothing is. A server may be up before the first job makes the folder."""
    from penstock.cli.job_arguments import is_missing

    opened = open_storage(place)
    if is_missing(opened):
        typer.echo(
            f"the folder {opened.uri} does not exist yet; a job that is started there shows up", err=True
        )
    elif not opened.folders():
        typer.echo(f"there is no job in {opened.uri} yet; one that is started there shows up", err=True)


def token_of(file: Path | None, option: str = "--token-file") -> str | None:
    """From a file or from the environment, never from the command line: everybody on the machine sees that."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
        is_open = file.stat().st_mode & _OTHERS
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{option} {file} cannot be read: {error}; nothing was started; write a token into it, such as `openssl rand -hex 24` "
            "gives",
            file=str(file),
        ) from error
    if is_open:
        typer.echo(
            f"others on this machine can read {file}, and so use the token: chmod 600 {file}", err=True
        )
    return token


class ModeName(enum.StrEnum):
    """The modes as words of the command line."""

    EXACTLY_ONCE = Mode.EXACTLY_ONCE.value
    AT_LEAST_ONCE = Mode.AT_LEAST_ONCE.value
    AT_MOST_ONCE = Mode.AT_MOST_ONCE.value


OwnArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="What the file sees as sys.argv[1:], behind --.", show_default=False),
]


def run(
    file: JobFile,
    arguments: OwnArguments = None,
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
    ui: Annotated[
        str | None,
        typer.Option(
            "--ui",
            metavar="ADDRESS",
            help="Show the job's pages there, such as 127.0.0.1:8090; auto: at the first free port from 8090 on.",
            show_default=False,
        ),
    ] = None,
    ui_token_file: Annotated[
        Path | None,
        typer.Option(
            "--ui-token-file",
            metavar="FILE",
            help=f"A file with the token that is asked for there; or set {TOKEN_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    ui_read_only: Annotated[bool, typer.Option("--ui-read-only", help="Nobody acts there.")] = False,
    keep_alive: Annotated[
        bool, typer.Option("--keep-alive", help="Start it again when its process or Spark dies.")
    ] = False,
    restart: RestartOption = None,
) -> None:
    """Run the job that a Python file defines, from its newest checkpoint on.

    Ctrl-C or SIGTERM stops it with a last checkpoint (exit code 0). Once more ends it now, without (exit code 130 or 143).
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
    """Run a program that runs a job with `job.run()`, and start it again when it or Spark dies, as `run --keep-alive` does.

    Ctrl-C and SIGTERM are passed on. The exit code is that of the program.
    """
    from penstock.cli.job_file import keep_alive

    raise typer.Exit(keep_alive(command, restart))


def own_arguments(command: str, given: list[str] | None) -> tuple[str, ...]:
    """What is for the file. Without -- before it a word is more likely an option that lost its dashes."""
    if given and "--" not in sys.argv:
        raise ConfigError(
            f"{given[0]!r} is no option; write -- before what is for the file itself: penstock {command} FILE -- {' '.join(given)}",
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
    """Print what the job in a Python file promises from end to end, and what limits it.

    It runs the file, and starts Spark to look at the sources; it reads none of them and starts no job.
    """
    from penstock.cli.console import print_json
    from penstock.cli.job_file import as_its_own_program, ended_by_ctrl_c, load_job

    if file.is_file() and sys.stderr.isatty():  # somebody waits
        typer.echo(f"running {file.name} up to its job; that takes Spark, some seconds", err=True)
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
