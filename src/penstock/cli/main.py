"""The Typer application: its commands, its global options, its error messages and exit codes. Driver."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import job_commands, request_commands, run_commands
from penstock.cli.console import visible
from penstock.cli.run_commands import dashboard
from penstock.errors import InternalError, PenstockError, exit_code_of
from penstock.log_fields import LogForm, is_json, log_as_json, wanted_form

app = typer.Typer(
    name="penstock",
    help="Flink's fault tolerance for Spark Structured Streaming.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes show a type after every option, even <bool> after a flag
)
COMMANDS = (
    ("list", job_commands.list_jobs, "List all jobs in storages, with their state."),
    ("status", job_commands.status, "Show one job on one screen; exit code 3 if it needs attention."),
    ("watch", job_commands.watch, "Watch jobs live in the terminal."),
    ("checkpoints", job_commands.checkpoints, "List the checkpoints of a job."),
    ("failures", job_commands.failures, "List the failures of a job and what they cost."),
    ("runs", job_commands.runs, "List the runs of a job, how they ended and why."),
    ("run", run_commands.run, "Run the job that a Python file defines."),
    ("keep-alive", run_commands.keep_program_alive, "Start a program again when it dies."),
    ("guarantee", run_commands.guarantee, "Print the guarantee of the job in a Python file."),
    ("trigger", request_commands.trigger, "Make a running job complete a checkpoint now."),
    ("savepoint", request_commands.savepoint, "Make a savepoint of a job, running or not."),
    ("stop", request_commands.stop, "Stop a running job cleanly."),
    ("cancel", request_commands.cancel, "End a running job now, without a last checkpoint."),
    ("inspect", job_commands.inspect, "Show the contents of a savepoint, or of a job's newest checkpoint."),
    ("diff", job_commands.diff, "Compare two savepoints: which keys appeared, changed and went."),
    ("dashboard", dashboard, "Show all jobs in storages in a browser."),
    ("demo", run_commands.demo, "Kill a job's driver, and compare its counts with the expected ones."),
)
for _name, _command, _short_help in COMMANDS:
    app.command(_name, short_help=_short_help)(_command)

_log = logging.getLogger("penstock.cli")


class _Debug:
    """Whether to show tracebacks; set before a command runs."""

    on = False


def main() -> None:
    """Run the command line and end the process."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if _Debug.on:
            raise
        _report(error)
        sys.exit(exit_code_of(error))


def _report(error: Exception) -> None:
    """Write to standard error; as a log record if the log is JSON."""
    text = "\n".join([_explanation(error), *getattr(error, "__notes__", ())])
    if is_json():
        _log.error("%s", text, exc_info=error)
    else:
        sys.stderr.write(f"penstock: {visible(text)}\n")


def _explanation(error: Exception) -> str:
    if isinstance(error, InternalError):
        return (
            f"{error}\nThis is a bug in Penstock: please report it, with the output of `penstock --debug ...`"
        )
    if isinstance(error, PenstockError):
        return str(error)
    return f"{type(error).__name__}: {error}\n`penstock --debug ...` shows where it comes from"


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
    debug: Annotated[bool, typer.Option("--debug", help="Log everything and show tracebacks.")] = False,
    log: Annotated[
        LogForm | None,
        typer.Option("--log", help="The format of the log; default: PENSTOCK_LOG, or text."),
    ] = None,
) -> None:
    del version
    _Debug.on = debug
    logging.getLogger("py4j").setLevel(logging.WARNING)
    as_json = (log or wanted_form()) is LogForm.JSON
    if as_json:
        log_as_json(debug=debug)
    elif debug:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("penstock").setLevel(logging.DEBUG)
