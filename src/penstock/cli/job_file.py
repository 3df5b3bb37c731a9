"""`penstock run`: finds the job in a user's Python file and runs it in the foreground, with or without a supervisor. Driver.

The file is run like a script, except that its `__name__` is not "__main__". Its module is then removed from `sys.modules`, so that Spark
sends its classes and functions to the workers by value, and no worker runs the file.

Before that, the source is parsed without running it: if it has exactly one `Job(...)` with a literal name and storage, and that job is
running, the command is refused before Spark starts.
"""

from __future__ import annotations

import ast
import importlib.util
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.web_server import bind, check_installed
from penstock.errors import ConfigError, PenstockError, RunningAlreadyError
from penstock.ids import checked_name
from penstock.job import Job
from penstock.ownership.heartbeat import refuse_if_running
from penstock.savepoint.manifest import read_manifest
from penstock.start_options import StartOptions, loading
from penstock.storage import open_job_storage, open_storage
from penstock.supervise.channel import take_socket_from_environment
from penstock.supervise.decisions import BY_DEFAULT, Supervision, strategy_of, without
from penstock.supervise.keeper import Keeper
from penstock.wording import did_you_mean

DEFAULT_NAME = "job"
_MODULE = "penstock_job_file"


class JobFileError(ConfigError):
    """The user's file cannot be loaded."""


def load_job(file: Path, name: str | None = None) -> Job:
    """Return the job: a variable of type `Job`, or the result of a function that takes a Spark session."""
    file = file.absolute()
    if file.is_dir():
        raise JobFileError(f"{file} is a folder: give the Python file in it that defines the job")
    if not file.is_file():
        raise JobFileError(f"there is no file {file}: give the Python file that defines the job{_like(file)}")
    _make_neighbours_importable(file.parent)
    with loading(file), _module_of(file) as module:
        found = _find(module, file, name)
        return found if isinstance(found, Job) else _made_by(found, file)


def _like(file: Path) -> str:
    """Suggest a file in the same folder with a similar name."""
    beside = [one.name for one in file.parent.glob("*.py")] if file.parent.is_dir() else []
    close = did_you_mean(file.name, beside)
    return f"; {close}" if close else ""


@contextmanager
def as_its_own_program(file: Path, arguments: Sequence[str] = ()) -> Iterator[None]:
    """Set `sys.argv` to the file and its own arguments, without those of Penstock's command line."""
    before, sys.argv = sys.argv, [str(file), *arguments]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _module_of(file: Path) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise JobFileError(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        with _blaming(file):
            spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[_MODULE]


def _find(module: ModuleType, file: Path, name: str | None) -> Job | Callable[..., object]:
    found = getattr(module, name or DEFAULT_NAME, None)
    if isinstance(found, Job) or callable(found):
        return found
    jobs = {key: value for key, value in vars(module).items() if isinstance(value, Job)}
    if name is None and len(jobs) == 1:
        return next(iter(jobs.values()))
    defined = f"it has {', '.join(sorted(jobs))}; choose one with --job" if jobs else "it defines none"
    raise JobFileError(
        f"{file.name} has no Job {name or DEFAULT_NAME!r}: {defined}. Write `job = penstock.Job(...)`, or a function "
        "`def job(spark): ...` that returns one, outside of `if __name__ == '__main__'`, which does not run here"
    )


def _made_by(function: Callable[..., object], file: Path) -> Job:
    from penstock.spark.local_session import local_session

    spark = local_session(file.stem)
    with _blaming(file):
        made = function(spark)
    if not isinstance(made, Job):
        called = getattr(function, "__name__", "the function")
        raise JobFileError(f"{called}(spark) in {file.name} returned {made!r}: it must return a penstock.Job")
    return made


@contextmanager
def _blaming(file: Path) -> Iterator[None]:
    """Report the line of the user's file that raised an exception."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        broken = JobFileError(f"{_where_in(file, error)}: {type(error).__name__}: {error}")
        broken.add_note(
            "  Fix it there; `penstock --debug ...` shows the whole traceback. Nothing was started."
        )
        raise broken from error


def _where_in(file: Path, error: BaseException) -> str:
    """The last line of `file` that an exception went through, as 'file.py, line 7'."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{file.name}, line {error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return f"{file.name}, line {lines[-1]}" if lines else file.name


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """While the user's file is loaded and may start Spark, Ctrl-C ends the process as SIGTERM does, without an exception.

    If PySpark is waiting for its JVM at that moment, the JVM ends by itself when it sees that the process is gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _make_neighbours_importable(folder: Path) -> None:
    """Let this process and the workers import modules from the folder of the file."""
    sys.path.insert(0, str(folder))
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *rest])


_log = logging.getLogger(__name__)


class StatedJob(NamedTuple):
    """The name and storage that a file states literally."""

    name: str
    storage: str


def stated_job(source: bytes) -> StatedJob | None:
    """The job of a program, if its source states name and storage literally."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None  # running the file reports the error with its line
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
    """Raise `RunningAlreadyError` early if the job of the file is running. The start itself checks again."""
    try:
        stated = stated_job(file.read_bytes())
        if stated is not None:
            storage = open_job_storage(stated.storage, checked_name("job name", stated.name))
            refuse_if_running(storage, SYSTEM_CLOCK.wall())
    except RunningAlreadyError:
        raise
    except (PenstockError, OSError) as error:
        _log.debug("%s: cannot check early whether the job is running: %s", file, error)


def _makes_a_job(function: ast.expr) -> bool:
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return called == "Job"


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def run_file(file: Path, name: str | None, arguments: Sequence[str], options: StartOptions) -> None:
    """Run the job of a file until it ends, as `Job.run` does."""
    take_socket_from_environment()
    with as_its_own_program(file, arguments):
        _check_early(file, options)
        with ended_by_ctrl_c():
            job = load_job(file, name)
        job.run(**options.arguments)


def _check_early(file: Path, options: StartOptions) -> None:
    """Refuse before Spark starts, where that is possible."""
    if options.pages is not None:
        check_installed()
        bind(options.pages).close()
    if not options.takeover:
        refuse_early(file)
    if options.savepoint is not None and not options.claim:  # a claimed savepoint may be gone
        read_manifest(open_storage(options.savepoint))


_OWN_FLAGS, _OWN_VALUED = ("--keep-alive",), ("--restart",)


def keep_run_alive(restart: str | None, *, wanted: bool = True) -> int:
    """Run this command without `--keep-alive` as a child, and restart it when it dies; returns the exit code."""
    if not wanted:
        raise ConfigError(f"--restart {restart} needs --keep-alive: without it, nothing restarts the job")
    arguments = without(sys.argv[1:], _OWN_FLAGS, _OWN_VALUED)
    return keep_alive([sys.executable, "-P", "-m", "penstock", *arguments], restart)


def keep_alive(command: Sequence[str], restart: str | None) -> int:
    """Run any program as a child, and restart it when it dies; returns the exit code."""
    supervision = Supervision(strategy_of(restart or BY_DEFAULT))
    with _log_on_stderr():
        try:
            return Keeper(command, supervision).run()
        except FileNotFoundError as error:
            raise ConfigError(f"there is no program {command[0]}: nothing was started") from error


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Log the supervisor's decisions to standard error, unless logging is configured already."""
    logger = logging.getLogger("penstock")
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    erase = "\r\x1b[K" if sys.stderr.isatty() else ""  # remove the status line of a killed job
    handler.setFormatter(logging.Formatter(f"{erase}%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
