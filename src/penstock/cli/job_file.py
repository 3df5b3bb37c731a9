"""Finding the job in a user's Python file. Driver.

The file is run like a script, except that its `__name__` is not "__main__". Its module is taken out of `sys.modules` again: then
Spark sends the classes and functions in it to the workers as they are, and no worker runs the file.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from penstock.cli.failures import JobFileError, where_in
from penstock.errors import PenstockError
from penstock.job import Job
from penstock.loading import loading
from penstock.wording import did_you_mean

DEFAULT_NAME = "job"
_MODULE = "penstock_job_file"


def load_job(file: Path, name: str | None = None) -> Job:
    """Return the job: a variable of type `Job`, or what a function makes when it is given a local Spark session."""
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
    """A file beside it whose name is nearly that."""
    beside = [one.name for one in file.parent.glob("*.py")] if file.parent.is_dir() else []
    close = did_you_mean(file.name, beside)
    return f"; {close}" if close else ""


@contextmanager
def as_its_own_program(file: Path, arguments: Sequence[str] = ()) -> Iterator[None]:
    """The file sees itself in `sys.argv`, and its own arguments, but not the words of Penstock's command line, which are not for it."""
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
        "`def job(spark): ...` that returns one, outside of `if __name__ == '__main__'`, which is not run here"
    )


def _made_by(function: Callable[..., object], file: Path) -> Job:
    from penstock.spark.session import local_session

    spark = local_session(file.stem)
    with _blaming(file):
        made = function(spark)
    if not isinstance(made, Job):
        called = getattr(function, "__name__", "the function")
        raise JobFileError(f"{called}(spark) in {file.name} returned {made!r}: it must return a penstock.Job")
    return made


@contextmanager
def _blaming(file: Path) -> Iterator[None]:
    """Say where in the user's file something went wrong."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        broken = JobFileError(f"{where_in(file, error)}: {type(error).__name__}: {error}")
        broken.add_note(
            "  Mend it there; `penstock --debug ...` shows the whole traceback. Nothing was started."
        )
        raise broken from error


def _make_neighbours_importable(folder: Path) -> None:
    """What the file imports from its folder must be found here and by the workers."""
    sys.path.insert(0, str(folder))
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *rest])
