"""A user's program, checked by mypy against the wheel: a right program has no errors, and every mistake is reported on its line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".mypy_cache" / "typed-program"
"""Kept: most of the time goes to the types of PySpark, which do not change."""
REFUSED = "# refused"
PROGRAM = f"""
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import penstock as ps
from penstock.types import BatchKeys, BatchRows, BatchState, Context, Rows, Stream, TimeWindow


class Visits(ps.KeyedProcess):
    count = ps.ValueState("long", default=0)

    def open(self, ctx: Context) -> None:
        self.greeting = f"subtask {{ctx.subtask}}"

    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[str, int]]:
        self.count.value += len(rows)
        yield key, self.count.value


class Together(ps.KeyedCoProcess):
    def process_left(self, key: str, rows: Rows, ctx: Context) -> None: ...
    def process_right(self, key: str, rows: Rows, ctx: Context) -> None: ...


class InColumns(ps.BatchProcess):
    def process_batch(self, keys: BatchKeys, batch: BatchRows, state: BatchState) -> Any: ...


class WithoutKey(ps.Process):
    def process(self, rows: Rows, ctx: Context) -> None: ...


class OverWindow(ps.WindowProcess):
    def process(self, key: str, window: TimeWindow | None, rows: Rows, ctx: Context) -> None: ...


def build(job: ps.Job, frame: DataFrame) -> Stream:
    clicks: Stream = job.read(frame, uid="clicks", event_time=ps.EventTime("at", out_of_order="10s"))
    some = clicks.where(F.col("n") > 1).where("n < 5").select("k", F.col("n")).with_column("m", F.lit(1))
    keyed, rules = some.key_by("k"), clicks.broadcast()
    keyed.process(Visits(), schema="k string, n long", uid="a")
    keyed.process(InColumns(), schema="k string", uid="b")
    keyed.connect(rules).process(Visits(), schema="k string", uid="c")
    keyed.connect(clicks.key_by("k")).process(Together(), schema="k string", uid="d")
    keyed.window(ps.windows.tumbling("1min")).process(OverWindow(), schema="k string", uid="e")
    clicks.process(WithoutKey(), schema="k string", uid="f")
    clicks.connect(rules).process(WithoutKey(), schema="k string", uid="g")
    keyed.process(WithoutKey(), schema="k string", uid="h")  {REFUSED}
    keyed.process(Together(), schema="k string", uid="i")  {REFUSED}
    keyed.process(OverWindow(), schema="k string", uid="j")  {REFUSED}
    keyed.process(Visits, schema="k string", uid="k")  {REFUSED}
    clicks.process(Visits(), schema="k string", uid="l")  {REFUSED}
    clicks.process(InColumns(), schema="k string", uid="m")  {REFUSED}
    clicks.connect(rules).process(Visits(), schema="k string", uid="n")  {REFUSED}
    keyed.connect(rules).process(WithoutKey(), schema="k string", uid="o")  {REFUSED}
    keyed.connect(rules).process(Together(), schema="k string", uid="p")  {REFUSED}
    keyed.connect(clicks.key_by("k")).process(Visits(), schema="k string", uid="q")  {REFUSED}
    keyed.window(ps.windows.tumbling("1min")).process(Visits(), schema="k string", uid="r")  {REFUSED}
    keyed.write_to(ps.sinks.Files("out"), uid="s")  {REFUSED}
    clicks.groupBy("k")  {REFUSED}
    clicks.where(3)  {REFUSED}
    job.run(available_now=True, restore=3, drop_state=("a",), ui=ps.Ui(8090))
    job.start(restore="three")  {REFUSED}
    job.run(available_new=True)  {REFUSED}
    job.run(True)  {REFUSED}
    return clicks.top(3, by="n", uid="t")  {REFUSED}
"""


def test_a_program_is_checked_against_the_wheel(tmp_path: Path) -> None:
    """Own code is refused where it cannot run, as are steps that a stream does not have; nothing else is reported."""
    python = _environment_with_the_wheel(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = [
        "--strict",
        "--no-error-summary",
        f"--cache-dir={CACHE}",
        f"--python-executable={python}",
    ]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options, program.name],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")},
        capture_output=True,
        text=True,
        check=False,
    )
    reported = {int(line) for line in re.findall(r"^program\.py:(\d+): error", found.stdout, re.MULTILINE)}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith(REFUSED)}
    assert reported == wrong, found.stdout + found.stderr


def _environment_with_the_wheel(folder: Path) -> Path:
    """The interpreter of an environment in which the wheel is unpacked, beside the packages that are installed here."""
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=checkout, check=True, capture_output=True)
    home = folder / "environment"
    venv.create(home)
    packages = next(home.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(next((folder / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    packages.joinpath("here.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    return home / "bin" / "python"
