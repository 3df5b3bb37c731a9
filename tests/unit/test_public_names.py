"""The public door: what a user's annotations and `except` clauses need is in `penstock`, and Spark comes only when asked for."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock import errors

PACKAGE = Path(ps.__file__).parent
EXPORTED = {*ps.__all__, *ps.types.__all__, *ps.sinks.__all__, *ps.sources.__all__}
SINKS = [getattr(ps.sinks, name) for name in ps.sinks.__all__ if name != "Transaction"]
STRATEGIES = [ps.exponential_delay, ps.failure_rate, ps.fixed_delay, ps.no_restart]
USED = [
    *(
        ps.Job,
        ps.types.Stream,
        ps.types.KeyedStream,
        ps.types.BroadcastConnectedStream,
        ps.types.ConnectedKeyedStreams,
        ps.types.JobHandle,
        ps.types.SavedState,
        ps.Checkpointing,
    ),
    *(ps.KeyedProcess, ps.KeyedCoProcess, ps.BatchProcess, ps.Process),
]
BACKENDS = [ps.FilesystemBackend, ps.MemoryBackend, ps.RocksdbBackend]


@functools.cache
def classes() -> frozenset[str]:
    """The names of all classes of the package."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in PACKAGE.rglob("*.py")]
    return frozenset(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))


def signatures(thing: object) -> list[inspect.Signature]:
    """Those of a function or a sink, or of a class and what can be called on its objects."""
    if not inspect.isclass(thing) or thing in SINKS:
        return [inspect.signature(thing)]  # type: ignore[arg-type]
    public = [one for name, one in inspect.getmembers(thing, inspect.isfunction) if not name.startswith("_")]
    properties = [one.fget for _, one in inspect.getmembers(thing, lambda one: isinstance(one, property))]
    return [inspect.signature(one) for one in (thing, *public, *filter(None, properties))]


@pytest.mark.parametrize(
    "thing",
    [
        *USED,
        *STRATEGIES,
        *SINKS,
        ps.sources.PartitionedLog,
        ps.local_session,
        ps.read_savepoint,
        ps.read_state,
    ],
    ids=lambda one: one.__name__,
)
def test_what_a_signature_names_is_exported(thing: object) -> None:
    """Every class of Penstock's in the signatures that users see can be imported from where they import the rest."""
    named = {
        word
        for signature in signatures(thing)
        for annotation in (
            signature.return_annotation,
            *(one.annotation for one in signature.parameters.values()),
        )
        for word in re.findall(r"\b[A-Z]\w+", str(annotation))
    }
    made_inside = {
        "Compiled",
        "JobSpec",
        "StartOptions",
        "JobRunner",
        "Graph",
        "Broadcast",
        "Contents",
        "Node",
        "Operator",
    }  # what a handle and a stream are made of
    of_others = {
        "Column",
        "Output",
    }  # PySpark's column, and a tuple or dictionary; classes of these names are inner ones
    assert not (named & classes()) - EXPORTED - made_inside - of_others


def test_every_error_is_exported() -> None:
    """Whatever Penstock raises can be named in an `except`."""
    raised = {
        name
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, ps.PenstockError)
    }
    assert raised <= {*ps.__all__, *vars(ps.errors)}


def test_types_of_the_door_are_those_that_jobs_use() -> None:
    """A name of the door is the class itself, for `isinstance` and for type checkers, also where it is imported late."""

    def outcome(handle: ps.types.JobHandle) -> tuple[ps.types.Status, ps.types.Progress]:
        return handle.status, handle.progress

    assert outcome.__annotations__["handle"] == "ps.types.JobHandle"
    assert {"JobHandle", "Status"} <= set(dir(ps.types))
    assert ps.types.JobHandle.__module__ == "penstock.spark.job_handle"
    assert ps.types.Status("stopped") is ps.types.Status.STOPPED
    word: str = ps.types.Status.STOPPED
    assert word == f"{ps.types.Status.STOPPED}" == "stopped"
    assert all(issubclass(backend, ps.StateBackend) for backend in BACKENDS)
    assert issubclass(ps.LocalStorage, ps.Storage)
    with pytest.raises(AttributeError, match="has no attribute 'JobHandel'"):
        ps.JobHandel  # type: ignore[attr-defined]  # noqa: B018


def test_importing_penstock_does_not_import_pyspark() -> None:
    """What needs no Spark starts quickly, and works where PySpark is not installed."""
    program = "import sys, penstock; penstock.LocalStorage, penstock.MemoryBackend(); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_worker_imports_what_its_task_needs() -> None:
    """Not the other sinks, and nothing that only a driver uses: every Python worker of a job that starts has to wait for it."""
    program = (
        "import sys, penstock.run.subtask, penstock.run.sink_writer, penstock.sinks.files;"
        "found = [m for m in sys.modules if m.startswith(('penstock.job', 'penstock.graph', 'penstock.recovery.restore'))"
        " or (m.startswith('penstock.sinks.') and m.endswith('.sink') and 'files' not in m and 'staged' not in m)];"
        "print(', '.join(found))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_names_that_are_imported_late_are_there() -> None:
    """Each can be asked for, is listed, and is found by `import`; a wrong one is refused with its name."""
    assert set(ps.__all__) <= set(dir(ps))
    assert set(ps.sinks.__all__) <= set(dir(ps.sinks))
    assert all(getattr(ps, name) is not None for name in ps.__all__)
    assert all(getattr(ps.sinks, name) is not None for name in ps.sinks.__all__)
    with pytest.raises(AttributeError, match=r"module 'penstock.sinks' has no attribute 'Kafak'"):
        ps.sinks.Kafak  # type: ignore[attr-defined]  # noqa: B018


def test_threads_that_ask_at_the_same_time() -> None:
    """Each gets what it asks for: PySpark's modules import each other in a circle, and one thread would meet what another has half done."""
    program = (
        "import threading, penstock\n"
        "together, names = threading.Barrier(24), penstock.__all__\n"
        "def ask(number):\n"
        "    together.wait()\n"
        "    for name in names[number % 7 :: 3]:\n"
        "        getattr(penstock, name)\n"
        "threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stderr == ""
