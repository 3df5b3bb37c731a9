"""The command line, as far as it needs no Spark."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import penstock as ps
from penstock import __version__
from penstock.checkpoint.metadata import CheckpointName, found_checkpoints, mark_committed, write_metadata
from penstock.checkpoint.model import Barrier, Completed, OperatorState, PreCommitted, SubtaskReport
from penstock.cli import main
from penstock.cli.job_file import load_job
from penstock.demo.settings import DemoSettings, checked, prepare_folder
from penstock.errors import ConfigError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.ownership.claim import Descent, claim, record_descent
from penstock.ownership.heartbeat import beat
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.ownership.runs import RunOutcome, end_of, record_end
from penstock.start_options import loading
from penstock.state.handle import FileRef, StateHandle
from penstock.storage import LocalStorage

JOB = "views"
WHAT_TO_GIVE = "the Python file that defines the job"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Penstock = Callable[..., Result]


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Penstock:
    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return Result(int(exit_.value.code or 0), *capsys.readouterr())

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return call


def completed(checkpoint: int, run: int) -> Completed:
    subtask = SubtaskId("counts", 0)
    file = FileRef(10, 3000, "0" * 16, name=f"state/counts/{run}-{checkpoint}-0-0.arrow")
    handle = StateHandle(subtask, "filesystem", checkpoint, refs=(file,))
    return Completed(
        job=JOB,
        checkpoint=checkpoint,
        run=run,
        mode="exactly-once",
        max_parallelism=128,
        parallelism=1,
        barrier=Barrier({"clicks": {"0": 1200, "1": 1300}}, "v1"),
        operators={"counts": OperatorState({"app": "string"}, {"pv": "int64"}, (handle,))},
        transactions=(PreCommitted("out", checkpoint, 0, {"run": run}, rows=7),),
        subtasks=(SubtaskReport(subtask, 10, 12.5, 1.25, 2500.0, 3000, 1000, "host-a"),),
        triggered_at=1_700_000_000.0,
        completed_at=1_700_000_001.5,
        duration_ms=1500.0,
        bad_records={"counts": 1234},
        late_rows={"windows": 5},
    )


def complete(storage: LocalStorage, checkpoint: int, run: int) -> Completed:
    made = completed(checkpoint, run)
    for name in made.files:
        storage.put(name, b"state")
    write_metadata(storage, made)
    return made


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """A job whose run 1 completed 3, 4 and 5; run 2 went on from 4 and completed 6."""
    storage = LocalStorage(tmp_path / "store" / JOB)
    check_job_record(storage, JobRecord(JOB, 128))
    record_descent(claim(storage, 1.0), CheckpointId(-1))
    for checkpoint in (3, 4, 5):
        complete(storage, checkpoint, run=1)
    record_descent(claim(storage, 2.0), CheckpointId(4))
    complete(storage, 6, run=2)
    return storage


def listed(penstock: Penstock, storage: LocalStorage) -> dict[int, dict[str, object]]:
    result = penstock("checkpoints", storage.root.parent, JOB, "--json")
    assert result.code == 0
    return {one["checkpoint"]: one for one in json.loads(result.out)}


def test_a_savepoint_of_a_checkpoint_that_is_not_there(penstock: Penstock, storage: LocalStorage) -> None:
    """It is said that it cannot be read, and which can; nothing is made, and no hold is left."""
    result = penstock("savepoint", storage.root.parent, JOB, "--checkpoint", "999")
    assert result.code != 0
    assert "checkpoint 999 of the job in" in result.err
    assert "cannot be read: there are" in result.err
    assert not storage.names("holds")


@pytest.mark.parametrize("command", ["savepoint", "inspect"])
def test_reading_a_job_that_is_not_there_makes_nothing(
    penstock: Penstock, storage: LocalStorage, command: str
) -> None:
    """A name that is misspelt leaves no folder behind."""
    result = penstock(command, storage.root.parent, "nobody")
    assert result.code != 0
    assert [path.name for path in storage.root.parent.iterdir()] == [JOB]


def test_version(penstock: Penstock) -> None:
    """`--version` prints the version and nothing else."""
    assert penstock("--version") == Result(0, f"penstock {__version__}\n", "")


def test_python_runs_the_package_as_the_command_line() -> None:
    """`python -m penstock` is the command line of that interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"penstock {__version__}\n", "")


def test_help_names_every_command(penstock: Penstock) -> None:
    """`--help` lists the commands."""
    shown = penstock("--help").out
    assert all(
        command in shown for command in ("demo", "checkpoints", "runs", "inspect", "diff", "run", "guarantee")
    )


@pytest.mark.parametrize(
    "command", [(), ("demo",), ("checkpoints",), ("runs",), ("inspect",), ("diff",), ("run",), ("guarantee",)]
)
def test_help_shows_no_type_behind_a_flag(penstock: Penstock, command: tuple[str, ...]) -> None:
    """An option that takes no value stands alone; what a command does is not cut."""
    shown = penstock(*command, "--help").out
    assert "bool" not in shown
    assert "..." not in shown.replace("[ARGS]...", "").replace("(storage=...)", "")


def test_runs_as_json(penstock: Penstock, storage: LocalStorage) -> None:
    """The JSON says of every run where it ran, from where to where it came, and how it ended and why."""
    beat(storage, RunId(1), 1.5, completed=CheckpointId(5))
    record_end(storage, end_of(RunId(1), RunOutcome.RESTARTED, 1.75, ValueError("no [such] row")))
    beat(storage, RunId(2), 2.5, ended=True, completed=CheckpointId(6))
    first, second = json.loads(penstock("runs", storage.root.parent, JOB, "--json").out)
    assert first == {
        "run": 1,
        "how": "restarted",
        "error": "ValueError",
        "why": "no [such] row",
        "started_at": "1970-01-01T00:00:01.000+00:00",
        "ended_at": "1970-01-01T00:00:01.750+00:00",
        "last_seen_at": "1970-01-01T00:00:01.500+00:00",
        "host": platform.node(),
        "pid": os.getpid(),
        "restored_from": None,
        "newest_checkpoint": 5,
        "unreadable": [],
    }
    assert {name: second[name] for name in ("run", "how", "why", "ended_at", "restored_from")} == {
        "run": 2,
        "how": "ended",
        "why": None,
        "ended_at": None,
        "restored_from": 4,
    }


def test_runs_as_a_table(penstock: Penstock, storage: LocalStorage) -> None:
    """The table has a line a run; below it stands why a run ended, in a line, and which records are damaged."""
    record_end(storage, end_of(RunId(1), RunOutcome.FAILED, 1.75, ValueError("no [such] row\n" + "x" * 900)))
    storage.put("runs/2.alive", b"?")
    shown = penstock("runs", storage.root.parent, JOB)
    assert shown.code == 0
    lines = shown.out.splitlines()
    (first,) = (line for line in lines if "1970-01-01 00:00:01" in line)
    assert [cell.strip() for cell in first.strip("│").split("│")] == [
        *("1", "1970-01-01 00:00:01", f"{platform.node()}, {os.getpid()}"),
        *("-", "-", "failed", "1970-01-01 00:00:01"),
    ]
    (second,) = (line for line in lines if "1970-01-01 00:00:02" in line)
    assert "did not say" in second
    (why,) = (line for line in lines if line.startswith("run 1: "))
    assert why.startswith("run 1: ValueError: no [such] row xxx")
    assert len(why) < 400
    assert any(line.startswith("run 2: runs/2.alive in ") for line in lines)


def test_runs_of_a_job_that_never_ran(penstock: Penstock, tmp_path: Path) -> None:
    """It is refused as `checkpoints` does it."""
    assert penstock("runs", tmp_path, JOB).code == 2


def test_checkpoints_as_json(penstock: Penstock, storage: LocalStorage) -> None:
    """The JSON has every number of a checkpoint, with its unit in the name."""
    found = listed(penstock, storage)
    assert list(found) == [3, 4, 5, 6]
    assert found[6] == {
        "checkpoint": 6,
        "usable": True,
        "reason": None,
        "job": JOB,
        "run": 2,
        "mode": "exactly-once",
        "parallelism": 1,
        "triggered_at": "2023-11-14T22:13:20.000+00:00",
        "completed_at": "2023-11-14T22:13:21.500+00:00",
        "duration_ms": 1500.0,
        "state_bytes": 3000,
        "new_bytes": 1000,
        "positions": {"clicks": {"0": 1200, "1": 1300}},
        "bad_records": {"counts": 1234},
        "late_rows": {"windows": 5},
        "restored_from": None,
        "transactions": [{"sink": "out", "subtask": "out-0", "batch": 6, "rows": 7}],
        "subtasks": [
            {
                "subtask": "counts-0",
                "rows": 10,
                "alignment_ms": 12.5,
                "sync_ms": 1.25,
                "async_ms": 2500.0,
                "state_bytes": 3000,
                "new_bytes": 1000,
                "host": "host-a",
                "reused_files": 0,
                "reused_bytes": 0,
                "fetched_files": 0,
                "fetched_bytes": 0,
                "acknowledged_at": 0.0,
            }
        ],
    }


def test_a_checkpoint_outside_the_line_of_descent(penstock: Penstock, storage: LocalStorage) -> None:
    """A checkpoint that a later run left behind is listed as not usable, with that run."""
    found = listed(penstock, storage)
    assert [number for number, one in found.items() if not one["usable"]] == [5]
    assert found[5]["reason"] == "run 1 was fenced off: run 2 continued from checkpoint 4"


def test_a_checkpoint_with_a_missing_file(penstock: Penstock, storage: LocalStorage) -> None:
    """A checkpoint whose state is gone is listed as not usable, with the file."""
    storage.delete(completed(4, 1).files)
    assert listed(penstock, storage)[4]["reason"] == (
        "1 of its 1 state file is gone, such as state/counts/1-4-0-0.arrow"
    )


def test_a_checkpoint_of_which_only_the_mark_is_left(penstock: Penstock, storage: LocalStorage) -> None:
    """What the next start would report as missing is listed as not usable: the list does not say that there never was one."""
    mark_committed(storage, completed(6, 2))
    storage.delete(
        CheckpointName(CheckpointId(number), RunId(run)).metadata
        for number, run in ((3, 1), (4, 1), (5, 1), (6, 2))
    )
    found = listed(penstock, storage)
    assert list(found) == [6]
    assert found[6]["usable"] is False
    assert found[6]["reason"] == "checkpoint 6 was committed, and chk-6-r2/_metadata is gone"
    shown = penstock("checkpoints", storage.root.parent, JOB).out
    assert "has no completed checkpoint" not in shown
    assert "checkpoint 6 cannot be used: checkpoint 6 was committed" in shown


def test_a_corrupt_checkpoint(penstock: Penstock, storage: LocalStorage) -> None:
    """Metadata that cannot be read is listed as not usable, and the others are listed as ever."""
    name = found_checkpoints(storage)[1].metadata
    storage.put(name, storage.get(name).replace(b'"pv"', b'"xx"'))
    found = listed(penstock, storage)
    assert list(found) == [3, 4, 5, 6]
    assert not found[4]["usable"]
    assert "checksum" in str(found[4]["reason"])


def test_checkpoints_as_a_table(penstock: Penstock, storage: LocalStorage) -> None:
    """The table has a row a checkpoint without control codes, and the reason below it for one that cannot be used."""
    result = penstock("checkpoints", storage.root.parent, JOB)
    assert result.code == 0
    assert "\x1b" not in result.out
    row = next(line for line in result.out.splitlines() if line.startswith("│") and " 6 │" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    expected = "6, 2, 2023-11-14 22:13:21, 1.5 s, 2.9 KB, 1000 B, 1, clicks 0:1200 1:1300, yes"
    assert cells == expected.split(", ")
    assert "checkpoint 5 cannot be used: run 1 was fenced off" in result.out
    assert "bad rows until checkpoint 6: counts 1,234" in result.out
    assert "late rows until checkpoint 6: windows 5" in result.out
    assert "counts-0" not in result.out


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (
            {},
            (
                "no record says from which checkpoint run 5 started, and run 2 is the newest run with one: runs/5.restored is gone, or the "
                "checkpoint belongs to an earlier job of this name"
            ),
        ),
        (
            {9: Descent(9, 8, 2)},
            "run 5 was fenced off: run 9 continued from checkpoint 8 of run 2",
        ),
    ],
)
def test_a_checkpoint_that_no_record_leads_to(
    penstock: Penstock, storage: LocalStorage, records: dict[int, Descent], reason: str
) -> None:
    """Records of runs that are gone, damaged or forged: the checkpoint is listed as one that cannot be used, with what the records say."""
    complete(storage, 7, run=5)
    for run, descent in records.items():
        storage.put(f"runs/{run}.restored", msgspec.json.encode(descent))
    assert listed(penstock, storage)[7]["reason"] == reason


def test_checkpoints_verbose(penstock: Penstock, storage: LocalStorage) -> None:
    """`-v` adds what every subtask measured."""
    shown = penstock("checkpoints", storage.root.parent, JOB, "-v").out
    row = next(line for line in shown.splitlines() if "counts-0" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("counts-0", "10", "12 ms", "1.2 ms", "2.5 s", "2.9 KB", "1000 B", "host-a")
    ]


def test_square_brackets_are_text(penstock: Penstock, storage: LocalStorage) -> None:
    """Names and reasons with square brackets or colons are printed as they are, in every table and line."""
    odd = "[/x] [red]:smile:"
    made = completed(7, run=2)
    reports = (msgspec.structs.replace(made.subtasks[0], host=odd),)
    barrier = Barrier({odd: {"0": 1200}}, "v1")
    write_metadata(storage, msgspec.structs.replace(made, barrier=barrier, subtasks=reports))
    shown = penstock("checkpoints", storage.root.parent, JOB, "-v")
    assert shown.code == 0, shown.err
    assert f"{odd} 0:1200" in shown.out
    assert f" {odd} " in next(line for line in shown.out.splitlines() if "counts-0" in line and odd in line)


def test_a_job_without_checkpoints(penstock: Penstock, storage: LocalStorage) -> None:
    """A job that completed nothing yet is no error."""
    storage.delete([name.metadata for name in found_checkpoints(storage)])
    assert penstock("checkpoints", storage.root.parent, JOB).out == f"job {JOB} has no completed checkpoint\n"


def test_an_unknown_job(penstock: Penstock, storage: LocalStorage) -> None:
    """A job that never ran is refused with exit code 2 and the names of those that did."""
    result = penstock("checkpoints", storage.root.parent, "vews")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("penstock: no job 'vews' ever ran")
    assert "there are: views" in result.err


@pytest.mark.parametrize("command", ["run", "guarantee"])
def test_a_file_that_is_not_there(penstock: Penstock, tmp_path: Path, command: str) -> None:
    """A missing file is one line on stderr and exit code 2, with what to give; a name that is nearly right is offered."""
    result = penstock(command, tmp_path / "nothing.py")
    assert result == Result(
        2, "", f"penstock: there is no file {tmp_path / 'nothing.py'}: give {WHAT_TO_GIVE}\n"
    )
    (tmp_path / "nothings.py").touch()
    assert penstock(command, tmp_path / "nothing.py").err.endswith("; did you mean 'nothings.py'?\n")


@pytest.mark.parametrize("command", ["run", "guarantee"])
def test_a_folder_is_no_file(penstock: Penstock, tmp_path: Path, command: str) -> None:
    """It is there, and the message says what it is."""
    result = penstock(command, tmp_path)
    said = f"penstock: {tmp_path} is a folder: give the Python file in it that defines the job\n"
    assert result == Result(2, "", said)


UNGUARDED = """
import penstock as ps
job = ps.Job("views", storage={storage!r})
{call}
"""


@pytest.mark.parametrize("command", ["run", "guarantee"])
@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("job.run(available_now=True)", 4),
        ("job.start()", 4),
        ("def job(spark):\n    made = ps.Job('views', storage='x')\n    made.run()\n    return made", 6),
    ],
)
def test_a_file_that_starts_its_job_is_refused(
    penstock: Penstock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    command: str,
    call: str,
    line: int,
) -> None:
    """The line that starts the job is named, and where it belongs; nothing was started or written."""
    monkeypatch.setattr("penstock.spark.local_session.local_session", lambda _: None)
    file, storage = tmp_path / "views.py", tmp_path / "store"
    file.write_text(UNGUARDED.format(storage=str(storage), call=call))
    result = penstock(command, file)
    assert (result.code, result.out) == (2, "")
    assert f"views.py:{line}: " in result.err
    assert 'Put that line under `if __name__ == "__main__":`' in result.err
    assert f"  at: {file}:{line}" in result.err
    assert not storage.exists()


def test_a_refusal_to_start_ends_with_the_loading(tmp_path: Path) -> None:
    """Whoever loads a file in a program of their own may start its job, even after one that was refused."""
    with loading(tmp_path / "views.py"), pytest.raises(ConfigError, match="starts the job while"):
        ps.Job("views", storage=tmp_path).start()
    with pytest.raises(ConfigError, match="no source"):
        ps.Job("views", storage=tmp_path).start()


@pytest.mark.parametrize("command", ["run", "guarantee"])
def test_a_file_sees_only_itself_in_argv(penstock: Penstock, tmp_path: Path, command: str) -> None:
    """The words of the command line are not for it."""
    file = tmp_path / "views.py"
    file.write_text("import sys\nprint(sys.argv)\n")
    assert penstock(command, file).out == f"{[str(file)]}\n"
    assert sys.argv == ["penstock", command, str(file)]


def test_a_file_without_a_job(penstock: Penstock, tmp_path: Path) -> None:
    """A file that defines no job is refused with what to write."""
    (tmp_path / "empty.py").write_text("job = 7\n")
    result = penstock("run", tmp_path / "empty.py")
    assert result.code == 2
    assert "empty.py has no Job 'job': it defines none" in result.err


def test_a_file_that_fails(penstock: Penstock, tmp_path: Path) -> None:
    """An exception in the user's file is reported with its line and no traceback; `--debug` shows it whole."""
    (tmp_path / "broken.py").write_text("first = 1\nsecond = first / 0\n")
    result = penstock("run", tmp_path / "broken.py")
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines() == [
        "penstock: broken.py, line 2: ZeroDivisionError: division by zero",
        "  Fix it there; `penstock --debug ...` shows the whole traceback. Nothing was started.",
    ]
    sys.argv = ["penstock", "--debug", "run", str(tmp_path / "broken.py")]
    with pytest.raises(ConfigError) as error:
        main()
    assert isinstance(error.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("raised", "code"), [("KeyboardInterrupt", 130), ("SystemExit(143)", 143)])
def test_exit_codes_of_signals(penstock: Penstock, tmp_path: Path, raised: str, code: int) -> None:
    """What a second signal raises ends the command with the code that shells know it by."""
    (tmp_path / "signalled.py").write_text(f"raise {raised}\n")
    result = penstock("run", tmp_path / "signalled.py")
    assert (result.code, result.out) == (code, "")


def test_a_uid_that_cannot_be_one(penstock: Penstock, tmp_path: Path) -> None:
    """`--drop-state` is refused by name before the file is looked at, so before Spark starts."""
    result = penstock("run", tmp_path / "nothing.py", "--drop-state", "views", "--drop-state", "")
    assert result.code == 2
    assert "uid of --drop-state" in result.err


def test_a_job_that_is_made_only_by_the_script(penstock: Penstock, tmp_path: Path) -> None:
    """A file whose job is made below `if __name__ == '__main__'` is told what to write, and where."""
    (tmp_path / "script.py").write_text("if __name__ == '__main__':\n    job = 1\n")
    assert (
        "outside of `if __name__ == '__main__'`, which does not run here"
        in penstock("run", tmp_path / "script.py").err
    )


def test_a_syntax_error(penstock: Penstock, tmp_path: Path) -> None:
    """A file that does not parse is reported with its line."""
    (tmp_path / "broken.py").write_text("a = 1\nb = = 2\n")
    assert "broken.py, line 2: SyntaxError" in penstock("guarantee", tmp_path / "broken.py").err


JOB_FILE = """
import penstock
from beside import NAME

class Visits(penstock.KeyedProcess):
    n = penstock.ValueState("long", default=0)
    def process(self, key, rows, ctx):
        return [(key, NAME)]

one = penstock.Job(NAME, storage={storage!r})
"""


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "beside.py").write_text("NAME = 'one'\n")
    file = tmp_path / "one_job.py"
    file.write_text(JOB_FILE.format(storage=str(tmp_path / "store")))
    return file


def test_the_only_job_of_a_file(job_file: Path) -> None:
    """A file with a single Job needs no name, and may import what lies beside it."""
    assert load_job(job_file).name == "one"
    assert load_job(job_file, "one").name == "one"


def test_several_jobs_in_a_file(job_file: Path) -> None:
    """With several jobs the message names them."""
    job_file.write_text(job_file.read_text() + "two = penstock.Job('two', storage='x')\n")
    with pytest.raises(ConfigError, match="it has one, two; choose one with --job"):
        load_job(job_file)
    assert load_job(job_file, "two").name == "two"


def test_classes_of_the_file_reach_workers_by_value(job_file: Path, tmp_path: Path) -> None:
    """A process that cannot import the file can still use a class that was defined in it."""
    from pyspark import cloudpickle

    job_file.write_text(job_file.read_text() + "one.operator = Visits()\n")
    pickled = cloudpickle.dumps(load_job(job_file).operator)
    (tmp_path / "pickled").write_bytes(pickled)
    job_file.unlink()
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).process('k', [], None))"
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "pickled")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "[('k', 'one')]\n", ended.stderr


def test_the_demo_empties_only_its_own_folder(penstock: Penstock, tmp_path: Path) -> None:
    """A folder with anything else in it is refused and left alone; that of an earlier demonstration is emptied."""
    (tmp_path / "precious").write_text("mine")
    result = penstock("demo", "--dir", tmp_path)
    assert result.code == 2
    assert "is not of an earlier demonstration" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    own = tmp_path / "demo"
    prepare_folder(own)
    (own / "old").write_text("old")
    prepare_folder(own)
    assert not (own / "old").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--events", "0"),
        ("--partitions", "0"),
        ("--apps", "0"),
        ("--kills", "7"),
        ("--batches", "5"),
        ("--mode", "twice"),
    ],
)
def test_the_demo_refuses_what_cannot_work(
    penstock: Penstock, tmp_path: Path, option: str, value: str
) -> None:
    """A wrong option is refused by name, before anything is written."""
    result = penstock("demo", "--dir", tmp_path / "demo", option, value)
    assert result.code == 2
    assert option in result.err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("kills", range(7))
@pytest.mark.parametrize("more", [0, 1, 9])
def test_kills_fall_into_the_middle_of_the_input(kills: int, more: int) -> None:
    """Every planned kill has batches before it, between it and the next, and after it."""
    settings = checked(DemoSettings(folder="x", kills=kills, batches=2 * (kills + 1) + more))
    points = [settings.kill_point(number) for number in range(kills)]
    firsts = [point.first for point in points if point]
    assert len(firsts) == kills
    assert settings.kill_point(kills) is None
    assert all(later - earlier >= 2 for earlier, later in pairwise(firsts))
    assert all(0 < first < settings.batches - 2 for first in firsts)


@pytest.mark.parametrize("command", ["run", "guarantee"])
def test_what_follows_two_dashes_is_for_the_file(penstock: Penstock, tmp_path: Path, command: str) -> None:
    """It sees it in `sys.argv`; without the dashes a word is refused, and nothing is run."""
    seen = tmp_path / "seen"
    file = tmp_path / "mine.py"
    file.write_text(f"import sys\nopen({str(seen)!r}, 'w').write(repr(sys.argv[1:]))\n")
    refused = penstock(command, file, "available-now")
    assert (refused.code, seen.exists()) == (2, False)
    assert "write -- before the arguments of the file" in refused.err
    assert f"penstock {command} FILE -- available-now" in refused.err
    own = ("--available-now",) if command == "run" else ("--json",)
    assert (
        penstock(command, file, *own, "--", "--since", "2026", "--available-now").code == 2
    )  # it has no job
    assert seen.read_text() == "['--since', '2026', '--available-now']"
