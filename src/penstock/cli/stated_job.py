"""Looking for the job in a user's file without running it: a job that is running already is refused before Spark is started. Driver.

Only what stands there in so many words is taken: the file has one `Job(...)`, with a name and a storage that are plain text. Every other
file is run first, and is refused when its job starts.
"""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import NamedTuple

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import PenstockError, RunningAlreadyError
from penstock.ids import checked_name
from penstock.ownership.heartbeat import refuse_if_running
from penstock.storage import open_job_storage

_log = logging.getLogger(__name__)


class StatedJob(NamedTuple):
    """Which job a file makes, by its own words."""

    name: str
    storage: str


def stated_job(source: bytes) -> StatedJob | None:
    """The job that a program makes, if it says so in plain text."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None  # told with its line when the file is run
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _makes_a_job(node.func)]
    if len(calls) != 1:
        return None
    given = {keyword.arg: keyword.value for keyword in calls[0].keywords}
    name, storage = (
        _text(calls[0].args[0] if calls[0].args else given.get("name")),
        _text(given.get("storage")),
    )
    return StatedJob(name, storage) if name and storage else None


def refuse_early(file: Path) -> None:
    """Raise `RunningAlreadyError` when the job that the file states is running. A courtesy: the start itself looks again."""
    try:
        stated = stated_job(file.read_bytes())
        if stated is not None:
            storage = open_job_storage(stated.storage, checked_name("job name", stated.name))
            refuse_if_running(storage, SYSTEM_CLOCK.wall())
    except RunningAlreadyError:
        raise
    except (PenstockError, OSError) as error:
        _log.debug("%s says nothing yet, it is run: %s", file, error)


def _makes_a_job(function: ast.expr) -> bool:
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return called == "Job"


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
