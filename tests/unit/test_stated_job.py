"""A job that is running already is refused as early as can be, in the words of the place that was asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock.cli import main
from penstock.cli.job_file import StatedJob, stated_job
from penstock.clock import SYSTEM_CLOCK
from penstock.ownership.claim import claim
from penstock.storage import LocalStorage

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("source", "stated"),
    [
        ('job = ps.Job("views", storage="store")', StatedJob("views", "store")),
        ('def job(spark):\n    return Job(name="views", storage="store")', StatedJob("views", "store")),
        ('job = ps.Job("views", storage=root / "store")', None),
        ('job = ps.Job("views", storage=f"{root}/store")', None),
        ('job = ps.Job(name, storage="store")', None),
        ('job = ps.Job("views")', None),
        ('a, b = ps.Job("a", storage="store"), ps.Job("b", storage="store")', None),
        ("import penstock", None),
        ("job = ps.Job(", None),
        ("\0", None),
    ],
)
def test_what_a_file_states(source: str, stated: StatedJob | None) -> None:
    """One job with a name and a storage in plain text is stated; whatever would have to be run is not."""
    assert stated_job(source.encode()) == stated


def test_the_job_of_the_readme_is_stated() -> None:
    """What new users begin with is refused early."""
    found = stated_job((EXAMPLES / "page_views.py").read_bytes())
    assert found == StatedJob("page-views", "page-views/storage")


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """The storage of a job `views` that runs in this process."""
    claim(LocalStorage(tmp_path / "store" / "views"), SYSTEM_CLOCK.wall())
    return tmp_path / "store"


def penstock(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0), capsys.readouterr().err


def test_the_command_line_does_not_run_the_file(
    running: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file, which would start Spark, is not run; the text names the option that takes the job over, with which it is."""
    file = tmp_path / "views.py"
    file.write_text(f"raise ValueError('the file is run')\njob = ps.Job('views', storage='{running}')\n")
    code, said = penstock(monkeypatch, capsys, "run", str(file))
    assert code == 2
    assert f"is running already: run 1, pid {os.getpid()} on" in said
    assert "start with --takeover to fence it off" in said
    code, said = penstock(monkeypatch, capsys, "run", str(file), "--takeover")
    assert "the file is run" in said


def test_a_file_that_has_to_be_run_is_refused_by_its_start(
    running: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start looks before it asks Spark for anything, and the text names the same option."""
    file = tmp_path / "views.py"
    file.write_text(f"import penstock as ps\nroot = '{running}'\njob = ps.Job('views', storage=root)\n")
    code, said = penstock(monkeypatch, capsys, "run", str(file))
    assert code == 2
    assert "start with --takeover to fence it off" in said


@pytest.mark.parametrize("method", ["start", "run"])
def test_python_is_told_of_its_argument(running: Path, method: str) -> None:
    """`job.start` and `job.run` refuse before anything else is looked at, and name `takeover=True`."""
    job = ps.Job("views", storage=running)
    with pytest.raises(ps.ConfigError, match="start with takeover=True to fence it off"):
        getattr(job, method)()
    with pytest.raises(ps.ConfigError, match="no source"):
        getattr(job, method)(takeover=True)
