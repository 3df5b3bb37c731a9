"""Mistakes that everybody makes, and all that a terminal shows then: it is one screen, with the cause and the user's line on it.

`pytest tests/spark/test_screens.py --write-screens` writes down what is shown now; look at the difference before you keep it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import screens

import penstock
from services.patience import PATIENCE_S

if TYPE_CHECKING:
    from services.postgres_process import PostgresProcess

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "mistakes").glob("*.py"))
MOST_LINES = 25
FULL = "storage_full"
MOUNTED = "mount -t tmpfs -o size=256k none"
MAY_MOUNT = ("unshare", "--map-root-user", "--mount", "sh", "-c")


def may_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*MAY_MOUNT, f"{MOUNTED} {folder}"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresProcess) -> dict[str, str]:
    """What each program shows, without what differs from run to run. One without room for its storage runs only where one may mount."""
    root, small = tmp_path_factory.mktemp("screens"), tmp_path_factory.mktemp("small")
    mounts = may_mount(small)
    programs = [str(program) for program in PROGRAMS if mounts or program.stem != FULL]
    command = [sys.executable, screens.__file__, str(root), *programs]
    if mounts:
        command = [*MAY_MOUNT, f'{MOUNTED} {small} && exec "$@"', "sh", *command]
    environment = {
        **os.environ,
        "DSN": postgres_server.dsn(),
        "WRONG_DSN": postgres_server.dsn(password="wrong"),
        "STORAGE": str(small),
    }
    ended = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=environment,
        timeout=3 * PATIENCE_S,
        check=True,
        text=True,
    )
    text = without_variable_parts(ended.stdout, {str(root): "/here", str(small): "/small"})
    parts = re.split(rf"^{screens.BEGIN}(\w+)\n", text, flags=re.MULTILINE)
    assert parts[0] == "", "something was said before the first program"
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def without_variable_parts(text: str, folders: dict[str, str]) -> str:
    folders = {
        str(HERE / "mistakes"): "/project",
        str(Path(penstock.__file__).parent): "/penstock",
        platform.node(): "HOST",
        **folders,
        tempfile.gettempdir(): "/tmp",
    }
    for folder, name in folders.items():
        text = text.replace(folder, name)
    for pattern, name in (
        (r'(File "/penstock/.+", line) \d+', r"\1 N"),
        (r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "TIME "),
        (
            r"^TIME checkpoint \d+ was under way when the job ended: .*\n",
            "",
        ),  # only if it took longer than an interval
        (
            r"^TIME WARNING a message from .* was dropped: \[Errno 104\].*\n",
            "",
        ),  # only if Spark ended a worker in the middle of one
        (
            r"\d+ batch(?:es)?, (?:[\d,]+ rows? in|its rows are not counted yet)",
            "N batches, N rows in",
        ),  # counted when Spark has told
        (r"pid \d+", "pid N"),
        (r"(127\.0\.0\.1(?::|\", port )|port=)(?!1\b)\d+", r"\1N"),
        (r"in \d+(\.\d s| s| ms)", "in N s"),
        (r"run-1-[0-9a-f]{8}", "run-1-TOKEN"),
        (r"\d+-\d+-\d+-\d+\.arrow", "N.arrow"),
        (r"/penstock-\d+/", "/penstock-N/"),
        (r"\b[0-9a-f]{16,}\b", "TOKEN"),
    ):
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_mistake_is_one_screen(program: Path, shown: dict[str, str], pytestconfig: pytest.Config) -> None:
    """All that the terminal shows is what was agreed on: a few lines, among them one of the user's file."""
    if program.stem not in shown:
        pytest.skip("nothing may be mounted here, so that no storage is full")
    screen = shown[program.stem]
    expected = HERE / "screens" / f"{program.stem}.txt"
    if pytestconfig.getoption("--write-screens"):
        expected.parent.mkdir(exist_ok=True)
        expected.write_text(screen)
    assert screen == expected.read_text()
    assert len(screen.splitlines()) <= MOST_LINES
    assert f"/project/{program.name}" in screen
    assert "\tat " not in screen
    assert "org.apache" not in screen
