"""The results as JSON, as a table in the terminal, and as tables in the pages: all from the same numbers. Needs no Spark.

python benchmarks/report.py     # write the pages again from results/latest.json
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goals import PRINTED
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "latest.json"
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance-figures.md"
IN_README = {
    "process_vs_transform_with_state": "Own Python per key: times faster than PySpark's `transformWithState`",
    "aggregate_vs_spark_native_large": "Counts over 5,000,000 keys of state: times faster than Spark's own `groupBy().count()` on RocksDB",
    "exactly_once_cost": "Exactly once: its time for a batch, over the time at least once",
    "postgres_vs_spark_jdbc": "Rows into PostgreSQL, exactly once: times faster than Spark's JDBC writer, at least once",
}
"""What a user asks first: is it fast, also with much state, what does exactly once cost, how fast is a real table."""
BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"
_COMPARISONS = {">=": operator.ge, "<=": operator.le}
_BESIDE = ("ratio", "goal", "met", "load_before", "load_after", "when", "what", "skipped", "failed")

Figures = Mapping[str, Mapping[str, Any]]


def met(goal: str, ratio: float) -> bool:
    """Whether a ratio reaches its goal; a figure that is only printed has none to miss."""
    if goal == PRINTED:
        return True
    sign, limit = goal.split()
    return bool(_COMPARISONS[sign](ratio, float(limit)))


def terminal(figures: Figures, title: str) -> Table:
    """For people who wait for it."""
    table = Table(title=title, show_lines=True)
    for column in ("figure, and what was measured", "ratio", "goal", "load"):
        table.add_column(column)
    for name, found in figures.items():
        table.add_row(
            f"[bold]{name}[/bold]\n{escape(_details(found))}", _ratio(found), _goal(found), _load(found)
        )
    return table


def pages(results: Mapping[str, Any]) -> dict[Path, str]:
    """What stands between the marks of each page."""
    return {README: _few(results), PERFORMANCE: _all(results)}


def _few(results: Mapping[str, Any]) -> str:
    """The figures that matter most to a user, and what must not be hidden of the others."""
    figures: Figures = results["figures"]
    rows = (
        f"| {words} | {_goal(figures[name])} | {_ratio(figures[name])} |\n"
        for name, words in IN_README.items()
        if name in figures
    )
    return (
        f"{_machine(results)}\n\n| what is compared | goal | ratio |\n|---|---|---|\n{''.join(rows)}\n"
        f"{_of_all(figures)} [The figures](docs/performance-figures.md) lists them all.\n"
    )


def _of_all(figures: Figures) -> str:
    missed = sum("ratio" in found and not met(found["goal"], found["ratio"]) for found in figures.values())
    absent = sum("ratio" not in found for found in figures.values())
    not_measured = f", and {absent} could not be measured" if absent else ""
    return f"Of all {len(figures)} figures {missed or 'none'} missed {'its' if missed == 1 else 'their'} goal{not_measured}."


def _all(results: Mapping[str, Any]) -> str:
    """Every figure, and below the table the numbers that each was made of."""
    figures = results["figures"].items()
    rows = (
        f"| `{name}` | {found.get('what', '')} | {_goal(found)} | {_ratio(found)} | {_load(found)} |\n"
        for name, found in figures
    )
    numbers = (f"- `{name}`: {_short(found)}\n" for name, found in figures)
    return (
        f"{_machine(results)} `benchmarks/results/latest.json` has the time of each figure.\n\n"
        f"| figure | what is compared | goal | ratio | load |\n|---|---|---|---|---|\n{''.join(rows)}\n"
        f"What was measured:\n\n{''.join(numbers)}"
    )


def _machine(results: Mapping[str, Any]) -> str:
    return (
        f"Last written {results['when'][:10]}: {results['cores']} cores, Python {results['python']}, Spark {results['spark']}, "
        f"Penstock {results['penstock']}. Both sides of a figure are measured in the same run."
    )


def replaced(figures: Figures) -> dict[str, Any]:
    """The figures that are written down, with these in the place of their old ones."""
    return {**json.loads(RESULTS.read_text(encoding="utf-8"))["figures"], **figures}


def write(results: Mapping[str, Any]) -> None:
    """Write the JSON, and the same numbers into the pages."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for page, figures in pages(results).items():
        page.write_text(with_figures(page.read_text(encoding="utf-8"), figures), encoding="utf-8")


def with_figures(page: str, table: str) -> str:
    """The page with this table between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table}{END}{after}"


def figures_of(page: str) -> str:
    """What stands between the marks of a page."""
    return page.split(BEGIN)[1].split(END, maxsplit=1)[0].removeprefix("\n")


def _goal(found: Mapping[str, Any]) -> str:
    goal = str(found["goal"])
    if goal == PRINTED or "ratio" not in found:
        return goal
    return f"{goal}: {'met' if met(goal, found['ratio']) else 'NOT met'}"


def _ratio(found: Mapping[str, Any]) -> str:
    if "ratio" in found:
        return f"{found['ratio']:.2f}"
    return "skipped" if "skipped" in found else "failed"


def _details(found: Mapping[str, Any]) -> str:
    if "ratio" not in found:
        return str(found.get("skipped") or found.get("failed"))
    return ", ".join(_worded(name, value) for name, value in found.items() if name not in _BESIDE)


def _short(found: Mapping[str, Any]) -> str:
    """For a page: of a failure only its kind, because the rest may name folders of the machine."""
    text = str(found["failed"]).partition(":")[0] if "failed" in found else _details(found)
    return text.replace("|", "\\|")


def _worded(name: str, value: float) -> str:
    words = name.replace("_", " ")
    if name.endswith("_s"):
        return f"{words[:-2]} {value:.3f} s"
    if name.endswith("_mib"):
        return f"{words[:-4]} {value:.0f} MiB"
    return f"{words} {value:,.0f}" if value >= 1000 or value == int(value) else f"{words} {value:.2f}"


def _load(found: Mapping[str, Any]) -> str:
    return f"{found['load_before']:.1f} / {found['load_after']:.1f}"


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text(encoding="utf-8")))
