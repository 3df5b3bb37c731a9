"""What messages may say, over all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent

RETRIES = re.compile(r"tried again|retried|retries|tries again")
THEY_DO = {
    "checkpoint/commit_wait.py": "a commit is tried until it succeeds",
    "spark/handle.py": "a start that finds something away is tried as the restart strategy says",
    "spark/source_errors.py": "says how often",
}
"""Who says that something is tried again is who does it. Whoever only meets a failure does not know what becomes of it."""


def _said(module: Path) -> Iterator[str]:
    """Every text in a module that is no docstring."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    silent = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


def _modules() -> dict[str, list[str]]:
    return {path.relative_to(SOURCE).as_posix(): list(_said(path)) for path in sorted(SOURCE.rglob("*.py"))}


def test_only_who_tries_again_says_so() -> None:
    """A message promises another try only in the modules that make it."""
    promising = {name for name, texts in _modules().items() if any(map(RETRIES.search, texts))}
    assert promising == set(THEY_DO)
