"""The documentation agrees with the code: what is public is documented, what is documented exists."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import penstock as ps
from penstock import errors, sinks, sources
from penstock.checkpoint.model import FORMAT as METADATA_FORMAT
from penstock.cli.main import app
from penstock.ownership.job_record import JobRecord
from penstock.savepoint.manifest import FORMAT as SAVEPOINT_FORMAT
from penstock.sources.partitioned_log import _FORMAT as LOG_FORMAT
from penstock.state.backends.sorted_file import FORMAT_VERSION as SORTED_FILE_FORMAT
from penstock.testing.sink_contract import SinkContract

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
USER_PAGES = "\n".join(text for name, text in TEXTS.items() if not name.startswith("docs/decisions"))
SETTINGS = TEXTS["docs/settings.md"]

PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
ANY_BLOCK = re.compile(r"```.*?```", re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
CITED_TEST = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)`")
PATH_IN_CODE = re.compile(r"`((?:src/penstock/)?[a-z_]+(?:/[a-z_]+)*/[a-z_]+\.py|src/penstock/[a-z_/]+)`")
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/~>`*$}-])/([a-z]+)/")
LONGEST_CELL = 200
HARMLESS_ROOTS = {"jobs", "var", "data", "path", "proc"}
"""First folders that may stand in an example; everything else would be somebody's machine."""


def mentions(name: str, text: str) -> bool:
    """Whether a page names it as code: `name`, `ps.name`, `sinks.name(...)`."""
    return re.search(rf"[`.(\s]{re.escape(name)}[`(\s.,:)=]", text) is not None


def table_rows(text: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first table behind a heading, by the code in their first cell."""
    rows: dict[str, list[str]] = {}
    for line in text.split(heading, 1)[1].splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
            if cells[0].startswith("`"):
                rows[cells[0].strip("`")] = cells[1:]
        elif rows:
            break
    return rows


def written(default: Any) -> str:
    """How a default stands in a table."""
    if isinstance(default, str):
        return f'"{default}"'
    return default.name if isinstance(default, enum.Enum) else repr(default)


# ── what is public is documented ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [name for name in ps.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name: str) -> None:
    """A name that `import penstock` gives is on a page for users."""
    assert mentions(name, USER_PAGES), f"penstock.{name} is on no page"


@pytest.mark.parametrize("name", [*sinks.__all__, *sources.__all__])
def test_every_sink_and_source_is_documented(name: str) -> None:
    """So is everything in `penstock.sinks` and `penstock.sources`."""
    described = {
        "Transaction",
        "TransactionContext",
    }  # what begin_transaction takes and gives: shown in the example
    pages = USER_PAGES + (ROOT / "examples" / "own_sink.py").read_text() if name in described else USER_PAGES
    assert mentions(name, pages), f"{name} is on no page"


@pytest.mark.parametrize("module", [ps, ps.types, ps.sinks, ps.testing], ids=lambda module: module.__name__)
def test_every_public_name_is_there(module: ModuleType) -> None:
    """A name in `__all__` that is imported late has a module that defines it."""
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("kind", [ps.Job, ps.types.Stream, ps.types.KeyedStream, ps.sinks.TwoPhaseCommitSink])
def test_every_public_method_is_documented(kind: type) -> None:
    """What can be called on the objects of a job, and what a sink has to have, is on a page for users."""
    methods = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
    missing = [name for name in methods if not mentions(name, USER_PAGES)]
    assert methods
    assert not missing


def test_what_a_sink_is_told_is_documented() -> None:
    """The table has every field of `TransactionContext`, and no other."""
    table = table_rows(TEXTS["docs/writing-a-sink.md"], "receives a `TransactionContext`")
    assert list(table) == [*sinks.TransactionContext.__struct_fields__, "transaction_id"]


def test_arguments_of_a_log_are_documented() -> None:
    """How a log is opened and read is on a page for users, with every argument."""
    arguments = {
        *inspect.signature(sources.PartitionedLog).parameters,
        *inspect.signature(sources.PartitionedLog.read).parameters,
    }
    assert not [name for name in arguments - {"self"} if not mentions(name, USER_PAGES)]


def test_checkpointing_settings_and_defaults() -> None:
    """The table has every setting of `Checkpointing`, with its default, and no other."""
    table = table_rows(SETTINGS, "## Checkpointing")
    settings = {
        field.name: written(field.default) for field in dataclasses.fields(ps.Checkpointing) if field.init
    }
    assert {name: cells[0].strip("`") for name, cells in table.items()} == settings


def test_job_settings_and_defaults() -> None:
    """The table has every setting of `Job`, with its default; where the default is made inside, its words."""
    table = table_rows(SETTINGS, "## Job")
    made_inside = {"storage": "required", "checkpoint": "Checkpointing()", "restart": "exponential_delay()"}
    parameters = list(inspect.signature(ps.Job).parameters.values())[1:]
    settings = {one.name: made_inside.get(one.name) or written(one.default) for one in parameters}
    assert {name: cells[0].strip("`") for name, cells in table.items()} == settings


def test_start_arguments_and_defaults() -> None:
    """The table has every argument of `start` and `run`."""
    table = table_rows(SETTINGS, "## Start")
    for method in (ps.Job.start, ps.Job.run):
        parameters = list(inspect.signature(method).parameters.values())[1:]
        assert {name: cells[0].strip("`") for name, cells in table.items()} == {
            one.name: written(one.default) for one in parameters
        }


@pytest.mark.parametrize("name", ["no_restart", "fixed_delay", "failure_rate", "exponential_delay"])
def test_restart_strategies_and_defaults(name: str) -> None:
    """The table has every strategy with its arguments and their defaults."""
    row = table_rows(SETTINGS, "## Restart strategies")[f"ps.{name}"]
    parameters = inspect.signature(getattr(ps, name)).parameters.values()
    assert row[0] == ", ".join(f"`{one.name}={written(one.default)}`" for one in parameters)


def test_every_restart_strategy_is_in_the_list_above() -> None:
    """A new strategy cannot be forgotten: whatever is public and returns one is in the table."""
    public = {getattr(ps, name) for name in ps.__all__}
    found = {
        one.__name__
        for one in public
        if "RestartStrategy" in str(getattr(one, "__annotations__", {}).get("return"))
    }
    assert {f"ps.{name}" for name in found} == set(table_rows(SETTINGS, "## Restart strategies"))


def test_every_error_has_advice() -> None:
    """The table says of every error what happened, what Penstock does and what the reader does."""
    raised = {one.__name__ for one in vars(errors).values() if isinstance(one, type)} - {"PenstockError"}
    table = table_rows(TEXTS["docs/troubleshooting.md"], "## Errors")
    assert set(table) == raised
    assert all(len(cells) == 3 and all(cells) for cells in table.values())


def test_every_command_and_option_is_documented() -> None:
    """The table has every command of the command line, with all its options and arguments."""
    group: Any = typer.main.get_command(app)
    page = TEXTS["docs/command-line.md"]
    table = table_rows(page, "## Commands")
    assert set(table) == {f"penstock {name}" for name in group.commands}
    for name, command in group.commands.items():
        row = table[f"penstock {name}"][0]
        for parameter in command.params:
            options = (
                parameter.opts
                if parameter.param_type_name == "option"
                else [parameter.metavar or parameter.name.upper()]
            )
            for option in options:
                assert option == "--help" or f"`{option}" in row, f"{name} {option}"
    for parameter in group.params:
        assert parameter.opts[0] == "--help" or parameter.opts[0] in page


def test_the_demo_ends_as_promised() -> None:
    """The last line in the README is the one that the demonstration prints when nothing is wrong."""
    from penstock.demo.settings import DemoSettings
    from penstock.demo.truth import Comparison, verdict

    events = DemoSettings(folder="").events
    exact = Comparison("SQLite", counted=events, lost=0, doubled=0, mixed_up=())
    assert f"\n{verdict(ps.EXACTLY_ONCE, events, [exact])}\n" in TEXTS["README.md"]


def test_state_formats() -> None:
    """The changelog has the formats that this version writes, so a change of one needs an entry."""
    table = table_rows(TEXTS["CHANGELOG.md"], "### State format")
    table |= {
        "sorted files": next(
            cells for line, cells in _plain_rows("CHANGELOG.md") if line.startswith("sorted files of state")
        )
    }
    table |= {
        "log": next(
            cells for line, cells in _plain_rows("CHANGELOG.md") if line.startswith("`PartitionedLog")
        )
    }
    table |= {
        "savepoints": next(
            cells for line, cells in _plain_rows("CHANGELOG.md") if line.startswith("savepoints (")
        )
    }
    formats = {
        "job.json": JobRecord("", 1).format,
        "chk-<n>-r<run>/_metadata": METADATA_FORMAT,
        "sorted files": SORTED_FILE_FORMAT,
        "log": LOG_FORMAT,
        "savepoints": SAVEPOINT_FORMAT,
    }
    assert {name: table[name][0] for name in formats} == {
        name: str(number) for name, number in formats.items()
    }


def _plain_rows(page: str) -> Iterator[tuple[str, list[str]]]:
    for line in TEXTS[page].splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
            yield cells[0], cells[1:]


# ── what is documented exists ──────────────────────────────────────────────────────────────────


def test_the_readme_shows_the_example_that_runs() -> None:
    """The job of the README is examples/page_views.py, letter by letter, and its own lines are few."""
    example = (ROOT / "examples" / "page_views.py").read_text(encoding="utf-8")
    blocks = PYTHON_BLOCK.findall(TEXTS["README.md"])
    assert blocks == [example]
    code = [
        line
        for line in example.splitlines()
        if line.strip() and not line.startswith(('"""', "import", "from"))
    ]
    assert len(code) <= 20


def test_the_sink_on_the_page_is_the_one_that_is_tested() -> None:
    """docs/writing-a-sink.md shows the class of examples/own_sink.py as it is."""
    example = (ROOT / "examples" / "own_sink.py").read_text(encoding="utf-8")
    shown = next(
        block for block in PYTHON_BLOCK.findall(TEXTS["docs/writing-a-sink.md"]) if "def commit" in block
    )
    assert shown in example


def test_the_contract_is_described_as_it_is() -> None:
    """What the page says a subclass of the contract provides is what it must provide."""
    assert SinkContract.__abstractmethods__ == {"make_sink", "visible_rows"}
    assert all(name in TEXTS["docs/writing-a-sink.md"] for name in SinkContract.__abstractmethods__)


@pytest.mark.parametrize("page", TEXTS)
def test_python_on_pages_is_python(page: str) -> None:
    """Every Python block parses, and every `ps.name` on a page exists."""
    for block in PYTHON_BLOCK.findall(TEXTS[page]):
        ast.parse(block)
    unknown = sorted({name for name in re.findall(r"\bps\.(\w+)", TEXTS[page]) if name not in ps.__all__})
    assert not unknown


def cells(text: str) -> Iterator[str]:
    """What a reader sees of each cell of the tables of a page: links are their words, code is its letters, a test its name."""
    for line in CITED_TEST.sub(r"\2", ANY_BLOCK.sub("", text)).splitlines():
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1]):
                yield (
                    re.sub(r"\[([^\]]+)\]\([^)\s]+\)", r"\1", cell).replace("`", "").replace("**", "").strip()
                )


@pytest.mark.parametrize("page", TEXTS)
def test_no_cell_of_a_table_is_a_paragraph(page: str) -> None:
    """A cell has two lines of a hundred letters at most: what needs more is text below the table."""
    assert [cell for cell in cells(TEXTS[page]) if len(cell) > LONGEST_CELL] == []


def test_no_install_line_asks_an_index() -> None:
    """No package index has Penstock: whoever is told to install it is told to do so in a checkout."""
    texts = {file: file.read_text(encoding="utf-8") for file in [*PAGES, *PACKAGE.rglob("*.py")]}
    assert [file for file, text in texts.items() if re.search(r"pip install ['\"]?penstock", text)] == []


@pytest.mark.parametrize("page", TEXTS)
def test_install_lines_name_extras_that_exist(page: str) -> None:
    """What a page says to install in brackets is an extra of Penstock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"'\.\[(\w+)\]'", TEXTS[page])) <= set(project["optional-dependencies"])


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", ANY_BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", TEXTS)
def test_links_resolve(page: str) -> None:
    """A link to a file of the project leads to one, and to a heading that is there."""
    for target in LINK.findall(ANY_BLOCK.sub("", TEXTS[page])):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", TEXTS)
def test_cited_tests_exist(page: str) -> None:
    """A test that a page refers to is there under that name."""
    for file, names in CITED_TEST.findall(TEXTS[page]):
        assert (ROOT / file).is_file(), file
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in filter(None, names.split("::")):
            assert re.search(rf"(def|class) {name}\b", text), f"{file}::{name}"


@pytest.mark.parametrize("page", TEXTS)
def test_modules_on_pages_exist(page: str) -> None:
    """A module or folder that a page names is in the source tree."""
    for name in PATH_IN_CODE.findall(TEXTS[page]):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


def checked_files() -> list[Path]:
    """Everything that users are shown."""
    return [*PAGES, *ROOT.glob("examples/*.py")]


@pytest.mark.parametrize("file", checked_files(), ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_paths_of_a_machine(file: Path) -> None:
    """No page and no example names a folder of somebody's machine."""
    text = file.read_text(encoding="utf-8")
    found = {match for match in ABSOLUTE_PATH.findall(text) if match not in HARMLESS_ROOTS}
    assert not found


# ── decisions ──────────────────────────────────────────────────────────────────────────────────


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("0*.md"))


def test_decisions_are_numbered_and_listed() -> None:
    """Decisions are numbered without a gap, and each is in the list."""
    assert [path.name[:4] for path in decisions()] == [
        f"{number:04d}" for number in range(1, len(decisions()) + 1)
    ]
    index = TEXTS["docs/decisions/README.md"]
    assert all(f"({path.name})" in index for path in decisions())


@pytest.mark.parametrize("path", decisions(), ids=lambda path: path.name[:4])
def test_a_decision_has_its_parts(path: Path) -> None:
    """A decision says why, what, what follows and how it is tested, and names at least one test."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "How it is tested"]
    assert CITED_TEST.search(text.split("## How it is tested")[1])


# ── the architecture ───────────────────────────────────────────────────────────────────────────


@cache
def imports_at_module_level(path: Path) -> tuple[str, ...]:
    """The full names of what a module imports when it is loaded; imports for types only are not."""
    found: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found += (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
    return tuple(found)


def layers() -> dict[str, int]:
    """The row of each package in ARCHITECTURE.md, 1 at the top."""
    table = TEXTS["ARCHITECTURE.md"].split("<!-- layers -->")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", table, re.MULTILINE)
    return {name: int(row) for row, names in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_package_has_its_layer() -> None:
    """The table of layers has every package and module of Penstock, and no other."""
    found = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(layers()) == found - {"__init__", "py"}


def imports_between_packages() -> Iterator[tuple[str, str, str]]:
    """Of every module its package, the package it imports, and how."""
    rows = layers()
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in imports_at_module_level(path):
            parts = name.split(".")
            if own in rows and parts[0] == "penstock" and len(parts) > 1 and parts[1] in rows:
                yield own, parts[1], f"{path.relative_to(PACKAGE)} imports {name}"


def test_imports_point_down() -> None:
    """No module imports from a package above its own row."""
    rows = layers()
    assert [how for own, other, how in imports_between_packages() if rows[other] < rows[own]] == []


def test_packages_of_one_row_do_not_import_each_other_in_a_circle() -> None:
    """Each package can be understood, and tested, after those it imports."""
    rows = layers()
    beside: dict[str, set[str]] = {name: set() for name in rows}
    for own, other, _ in imports_between_packages():
        if own != other and rows[own] == rows[other]:
            beside[own].add(other)
    TopologicalSorter(beside).prepare()  # names the circle


def test_only_one_package_imports_pyspark() -> None:
    """A job can be looked at without PySpark."""
    importing = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] == "pyspark" for name in imports_at_module_level(path))
    ]
    assert [path for path in importing if not path.startswith("spark/")] == []


def test_every_folder_is_on_the_map() -> None:
    """The folder map names every package."""
    packages = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    missing = [name for name in packages if f"`src/penstock/{name}`" not in TEXTS["ARCHITECTURE.md"]]
    assert not missing
