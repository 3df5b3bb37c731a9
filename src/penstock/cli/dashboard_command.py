"""`penstock dashboard`: serves the pages of all jobs in some storages. No Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.dashboard.ui_options import TOKEN_VARIABLE
from penstock.errors import ConfigError
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
    from penstock.cli.job_lookup import is_missing

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
