"""The numbers on the pages are those of the last full run of the benchmarks."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_docs import table_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", name="report")
def report_module() -> Iterator[Any]:
    """benchmarks/report.py: the benchmarks are scripts beside each other, no package."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("report")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_pages_have_the_figures_of_the_last_run(report: Any, page: str) -> None:
    """The table between the marks is what the results file gives, so neither can be edited alone."""
    results = json.loads(report.RESULTS.read_text(encoding="utf-8"))
    assert report.figures_of((ROOT / page).read_text(encoding="utf-8")) == report.markdown(results)


def test_every_figure_is_explained(report: Any) -> None:
    """The page says of every figure how it is measured, and of no other."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = table_rows(text, "## What each figure measures")
    assert list(rows) == list(importlib.import_module("goals").FIGURES)
    assert all(cells[0] for cells in rows.values())


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
def test_a_goal_is_met_or_not(report: Any, goal: str, ratio: float, met: bool) -> None:
    """A ratio on the limit meets its goal, one beyond it does not, and a printed figure has none."""
    assert report.met(goal, ratio) is met


def test_a_figure_that_was_not_measured_says_why(report: Any) -> None:
    """Instead of a ratio the table has the reason."""
    load = {"load_before": 0.0, "load_after": 0.0}
    figures = {
        "one": {"goal": ">= 2", "skipped": "no such backend", **load},
        "two": {"goal": ">= 2", "failed": "OSError: it broke", **load},
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
    assert "| failed | OSError |" in rows[1]
