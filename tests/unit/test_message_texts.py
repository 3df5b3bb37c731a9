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
    "checkpoint/commits.py": "a commit is tried until it succeeds",
    "spark/failure_messages.py": "says how often",
    "status/health.py": "of commits, which are",
    "storage/object.py": "names a setting of the client, which does",
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


NOUNS = "rows|batches|restarts|transactions|files|failures|tries|times|keys|values|partitions|kills|checkpoints|runs|messages"
PLURAL = re.compile(rf"(?<!of )(?<!its )(?:%d|%s|\x00) (?:{NOUNS})\b(?!/)")
MORE_THAN_ONE = {
    "spark/failure_messages.py": "a failure that was met several times in a row",
    "status/health.py": "several in a row",
    "testing": "read by those who wrote the test",
}
"""Where a number that stands before a plural is never one."""


def _templates(module: Path) -> Iterator[str]:
    """Every text of a module, with a mark for each value that an f-string puts in; numbers that `counted` says are not among them."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "\x00" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_message_can_say_1_rows() -> None:
    """A number before a noun in the plural comes from `wording.counted`, which knows the singular."""
    wrong = {
        f"{name}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) not in MORE_THAN_ONE
        and name.split("/")[0] not in MORE_THAN_ONE
        for text in _templates(path)
        if PLURAL.search(text)
    }
    assert not wrong
