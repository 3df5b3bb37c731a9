"""`penstock inspect` and `diff`: what is in savepoints and checkpoints. Each command's work is imported when it is called. Driver."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import AsJson
from penstock.cli.completion import job_names
from penstock.cli.failures import CouldNotError
from penstock.config import whole_number
from penstock.errors import PenstockError


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            help="The folder of a savepoint; with JOB, the storage of the job.", show_default=False
        ),
    ],
    job: Annotated[
        str | None,
        typer.Argument(
            help="The name of a job: its newest checkpoint is shown.",
            show_default=False,
            autocompletion=job_names,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
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


def diff(
    before: Annotated[
        str, typer.Argument(metavar="A", help="A savepoint, or the folder of a job.", show_default=False)
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", help="A savepoint, or the folder of a job.", show_default=False)
    ],
    *,
    examples: Annotated[int, typer.Option(help="How many rows of each kind to show.")] = 5,
    as_json: AsJson = False,
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
