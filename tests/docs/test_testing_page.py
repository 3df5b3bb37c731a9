"""The tests on the page about tests pass, as a user would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    """All code of the page in one file is a pytest module whose tests pass, each of those that the page shows."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = PYTHON_BLOCK.findall(page)
    module = tmp_path / "test_page.py"
    module.write_text("\n\n".join(blocks), encoding="utf-8")
    shown = sum(block.count("\ndef test_") + block.startswith("def test_") for block in blocks)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(module)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert shown == 7
    assert f"{2 * 20 + shown - 2} passed" in ran.stdout
