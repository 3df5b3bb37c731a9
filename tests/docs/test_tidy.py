"""The shape of the source tree is measured, and no measure may get worse than its bound.

A bound is what was reached. A change that improves a measure lowers its bound in the same commit.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"
OPERATOR_KINDS = {"Aggregate", "Process", "Top", "Window", "Dedupe", "Join", "Lookup"}
OPERATOR_FOLDERS = ("operators/", "spark/operators/")

BOUNDS = {
    "switches on operator kinds outside their folder": 0,
    "modules that know dedupe": 4,
    "modules that know lookup": 4,
    "modules that know window": 17,
    "modules": 355,
    "lines of code": 58_800,
    "modules under 40 lines of code": 37,
    "modules imported by one module only": 46,
    "public class names with two meanings": 2,
    "module names used twice": 8,
    "docstrings of at most four words": 6,
    "docstrings that only point elsewhere": 0,
    "longest module, in lines": 500,
}


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The dotted name."""
        dotted = "penstock/" + self.path.removesuffix(".py").removesuffix("/__init__")
        return dotted.replace("/", ".")

    @property
    def is_package(self) -> bool:
        """Whether this is the `__init__` of a package."""
        return self.path.endswith("__init__.py")


@cache
def modules() -> tuple[Module, ...]:
    """Every source file of the package."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        found.append(Module(path.relative_to(SOURCE).as_posix(), text, ast.parse(text)))
    return tuple(found)


def docstrings(module: Module) -> Iterator[tuple[ast.AST, ast.Constant]]:
    """Each documented object with its docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(module.tree):
        if isinstance(node, kinds) and node.body:
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node, value


@cache
def lines_of_code(module: Module) -> int:
    """Lines without docstrings, comments and blanks."""
    documented = {
        line for _, text in docstrings(module) for line in range(text.lineno, (text.end_lineno or 0) + 1)
    }
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in ignored and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def switches() -> int:
    """Arms of `match` and `isinstance` that name an operator kind, outside the folders of operators."""
    return sum(
        _arms(module.tree)
        for module in modules()
        if not module.path.startswith(OPERATOR_FOLDERS) and not module.path.startswith("dashboard/")
    )


def _arms(tree: ast.Module) -> int:
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.match_case):
            found += min(1, _kinds_in(node.pattern))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found += min(1, _kinds_in(node.args[1]))
    return found


def _kinds_in(node: ast.AST) -> int:
    return sum(isinstance(one, ast.Name) and one.id in OPERATOR_KINDS for one in ast.walk(node))


def knowing(word: str) -> int:
    """The modules with a class, function, import or match arm of an operator's name. What looks up state is another thing."""
    lower = rf"(^|_){word}(s|_|$|[A-Z])|" if word != "lookup" else "^run_lookup$|"
    wanted = re.compile(rf"{lower}(^|[a-z]){word.capitalize()}([A-Z]|s?$)")
    there = (module for module in modules() if not module.path.startswith(("dashboard/", "cli/")))
    return sum(any(wanted.search(name) for name in _mentioned(module)) for module in there)


def _mentioned(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "penstock"
        ):  # Spark has a Window, too
            yield from (alias.name for alias in node.names)
            yield (node.module or "").rpartition(".")[2]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            yield node.cls.id


def imported_once() -> int:
    """Modules that just one other module imports, a neighbour in the same package."""
    importers: dict[str, set[str]] = defaultdict(set)
    names = {module.name for module in modules()}
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for name in found:
                if name in names and name != module.name:
                    importers[name].add(module.name)
    packages = {module.name for module in modules() if module.is_package}
    alone = [(name, *importers[name]) for name in names - packages if len(importers[name]) == 1]
    return sum(name.rpartition(".")[0] == importer.rpartition(".")[0] for name, importer in alone)


def repeated_class_names() -> list[str]:
    """Public class names that two modules define."""
    names = Counter(
        node.name
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, times in names.items() if times > 1)


def repeated_module_names() -> list[str]:
    """Base names that two modules have."""
    names = Counter(
        Path(module.path).stem
        for module in modules()
        if not module.is_package and not module.path.endswith("__main__.py")
    )
    return sorted(name for name, times in names.items() if times > 1)


def short_docstrings() -> int:
    """Docstrings of functions and classes with at most four words."""
    texts = [str(text.value) for module in modules() for _, text in docstrings(module)]
    return sum(len(text.split()) <= 4 and not text.startswith("See ") for text in texts)


def pointing_docstrings() -> int:
    """Docstrings that only say where to look."""
    return sum(str(text.value).startswith("See `") for module in modules() for _, text in docstrings(module))


@cache
def measured() -> dict[str, int]:
    """Every measure of `BOUNDS`."""
    return {
        "switches on operator kinds outside their folder": switches(),
        "modules that know dedupe": knowing("dedupe"),
        "modules that know lookup": knowing("lookup"),
        "modules that know window": knowing("window"),
        "modules": len(modules()),
        "lines of code": sum(map(lines_of_code, modules())),
        "modules under 40 lines of code": sum(lines_of_code(module) < 40 for module in modules()),
        "modules imported by one module only": imported_once(),
        "public class names with two meanings": len(repeated_class_names()),
        "module names used twice": len(repeated_module_names()),
        "docstrings of at most four words": short_docstrings(),
        "docstrings that only point elsewhere": pointing_docstrings(),
        "longest module, in lines": max(module.text.count("\n") for module in modules()),
    }


@pytest.mark.parametrize("what", BOUNDS)
def test_nothing_gets_worse(what: str) -> None:
    """Each measure stays within its bound."""
    assert measured()[what] <= BOUNDS[what]


def test_every_measure_has_a_bound() -> None:
    """A measure without a bound would not be held."""
    assert measured().keys() == BOUNDS.keys()


if __name__ == "__main__":
    for name, number in measured().items():
        print(f"{number:>7}  (at most {BOUNDS[name]})  {name}")
    print("class names:", *repeated_class_names())
    print("module names:", *repeated_module_names())
