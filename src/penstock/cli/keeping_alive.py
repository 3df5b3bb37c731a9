"""`penstock run --keep-alive` and `penstock keep-alive`: the supervisor of a program, in the foreground. Imports no Spark. Driver."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import ConfigError
from penstock.supervise.command import without
from penstock.supervise.decisions import Supervision
from penstock.supervise.keeper import Keeper
from penstock.supervise.strategies import BY_DEFAULT, strategy_of

_OWN_FLAGS, _OWN_VALUED = ("--keep-alive",), ("--restart",)


def keep_run_alive(restart: str | None, *, wanted: bool = True) -> int:
    """Run this very command without `--keep-alive` as a child, and again when it ends without being meant to; returns the exit code."""
    if not wanted:
        raise ConfigError(f"--restart {restart} needs --keep-alive: nobody would start the job again")
    arguments = without(sys.argv[1:], _OWN_FLAGS, _OWN_VALUED)
    return keep_alive([sys.executable, "-P", "-m", "penstock.cli", *arguments], restart)


def keep_alive(command: Sequence[str], restart: str | None) -> int:
    """The same for any program."""
    supervision = Supervision(strategy_of(restart or BY_DEFAULT))
    with _log_on_stderr():
        try:
            return Keeper(command, supervision).run()
        except FileNotFoundError as error:
            raise ConfigError(f"there is no program {command[0]}: nothing was started") from error


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Where nobody has set up a log: what the supervisor decides is a line each, as those of the job."""
    logger = logging.getLogger("penstock")
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    erase = "\r\x1b[K" if sys.stderr.isatty() else ""  # what a killed job has left of its live line
    handler.setFormatter(logging.Formatter(f"{erase}%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
