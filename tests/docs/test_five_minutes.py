"""A user's first five minutes: the first screen of the README is typed word by word, and the table that it promises is right."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from services import quick_spark
from services.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
FIRST_SCREEN = (
    (ROOT / "README.md").read_text(encoding="utf-8").partition("## Your first job")[2].partition("\n## ")[0]
)
BEFORE_THE_KILL, AFTER_THE_WAIT = re.findall(r"```sh\n(.*?)```", FIRST_SCREEN, re.DOTALL)
PROMISED = re.findall(r"\n\n```\n(.*?)```", FIRST_SCREEN, re.DOTALL)[0].splitlines()
STORAGE = Path("page-views/storage/page-views")

# Between the two blocks the README says: "Wait for its first checkpoint." A job that died is waited for no longer.
SCRIPT = f"""
trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT
{BEFORE_THE_KILL}
until ls {STORAGE}/chk-*/_committed >/dev/null 2>&1; do kill -0 %1; sleep 0.1; done
{AFTER_THE_WAIT}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a user has after a clone, as far as the first screen needs it."""
    folder = tmp_path / "checkout"
    for name in ("src", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.spark
def test_the_first_screen_of_the_readme(checkout: Path, tmp_path: Path) -> None:
    """Installed by its line, killed and started again, the job counts every page view once; what it depends on is there already."""
    home = tmp_path / "environment"
    venv.create(home)
    _let_in_what_is_installed_here(home)
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0 is pip's word for: without
    _type_and_look(checkout, home, dict(os.environ) | offline)


@pytest.mark.timeout(3 * PATIENCE_S)  # half a gigabyte is fetched
def test_the_first_screen_in_an_empty_environment(checkout: Path, tmp_path: Path) -> None:
    """The same where nothing is installed: pip brings everything, and Spark starts as users have it."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    _type_and_look(checkout, home, quick_spark.without(os.environ), patience_s=2 * PATIENCE_S)


def _let_in_what_is_installed_here(home: Path) -> None:
    """Give an environment the packages of this one, but not Penstock itself: it is here by a .pth file, which counts only here."""
    own = next(home.glob("lib/python*/site-packages"))
    own.joinpath("here.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    pip = home / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{home}/bin/python" -m pip "$@"\n')
    pip.chmod(0o755)


def _type_and_look(
    checkout: Path, home: Path, environment: dict[str, str], patience_s: float = PATIENCE_S
) -> None:
    environment["PATH"] = f"{home / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", SCRIPT],
        cwd=checkout,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert next(home.glob("lib/python*/site-packages/penstock")).is_dir()
    for promised, said in zip(PROMISED, done.stdout.splitlines()[-len(PROMISED) :], strict=True):
        found = re.fullmatch(re.sub(r"\d+", r"(\\d+)", promised), said)
        assert found, done.stdout + done.stderr
        counted, last = map(int, found.groups())
        assert counted == last
    assert _restored_from(checkout, 2) >= 0, "the second start did not go on from a checkpoint of the first"


def _restored_from(checkout: Path, run: int) -> int:
    return int(json.loads((checkout / STORAGE / "runs" / f"{run}.restored").read_text())["restored_from"])
