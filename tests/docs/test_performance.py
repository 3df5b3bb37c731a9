"""The numbers on the pages are those of the last full run of the benchmarks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", name="report")
def report_module() -> ModuleType:
    """benchmarks/report.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("bench_report", ROOT / "benchmarks" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_pages_have_the_figures_of_the_last_run(report: ModuleType, page: str) -> None:
    """The table between the marks is what the results file gives, so neither can be edited alone."""
    results = json.loads(report.RESULTS.read_text(encoding="utf-8"))
    assert report.figures_of((ROOT / page).read_text(encoding="utf-8")) == report.markdown(results)


def test_every_figure_is_explained(report: ModuleType) -> None:
    """A figure that was measured has its row in the description of the method."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split(report.END)[1]
    figures = json.loads(report.RESULTS.read_text(encoding="utf-8"))["figures"]
    assert [name for name in figures if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize(
    ("goal", "ratio", "met"),
    [
        (">= 50", 50.0, True),
        (">= 50", 49.9, False),
        ("<= 1.5", 1.5, True),
        ("<= 1.5", 1.51, False),
        ("printed", 9.0, True),
    ],
)
def test_a_goal_is_met_or_not(report: ModuleType, goal: str, ratio: float, met: bool) -> None:
    """A ratio on the limit meets its goal, one beyond it does not, and a printed figure has none."""
    assert report.met(goal, ratio) is met


def test_a_figure_that_was_not_measured_says_why(report: ModuleType) -> None:
    """Instead of a ratio the table has the reason."""
    load = {"load_before": 0.0, "load_after": 0.0}
    figures = {
        "one": {"goal": ">= 2", "skipped": "no such backend", **load},
        "two": {"goal": ">= 2", "failed": "it broke", **load},
    }
    results = {
        "when": "2026-01-01T00:00:00",
        "cores": 2,
        "python": "3",
        "spark": "4",
        "penstock": "0",
        "figures": figures,
    }
    rows = report.markdown(results).splitlines()[-2:]
    assert "| skipped | no such backend |" in rows[0]
    assert "| failed | it broke |" in rows[1]
