"""The numbers on the pages are those of the last full run of the benchmarks."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", name="report")
def report_module() -> Iterator[Any]:
    """benchmarks/report.py: the benchmarks are scripts beside each other, no package."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("report")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("page", ["README.md", "docs/performance-figures.md"])
def test_pages_have_the_figures_of_the_last_run(report: Any, page: str) -> None:
    """What stands between the marks is what the results file gives, so neither can be edited alone."""
    results = json.loads(report.RESULTS.read_text(encoding="utf-8"))
    assert report.figures_of((ROOT / page).read_text(encoding="utf-8")) == report.pages(results)[ROOT / page]


def test_every_figure_is_explained(report: Any) -> None:
    """The page says of every figure how it is measured, and of no other; the queries of Nexmark share their sections."""
    text = (ROOT / "docs" / "performance-methods.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n\n(.+)", text, re.MULTILINE))
    figures = importlib.import_module("goals").FIGURES
    families = (re.sub(r"^nexmark_q\d+(_bounded)?_", "nexmark_qN_", name) for name in figures)
    assert list(sections) == list(dict.fromkeys(families))


def test_the_readme_has_few_figures_and_hides_no_miss(report: Any) -> None:
    """Four figures stand in the README, and a sentence that counts the goals that were missed anywhere."""
    load = {"load_before": 0.0, "load_after": 0.0}
    reached = {name: {"goal": ">= 2", "ratio": 3.0, **load} for name in report.IN_README}
    figures = {**reached, "missed": {"goal": ">= 2", "ratio": 1.0, **load}}
    text = report.pages(_results(figures))[ROOT / "README.md"]
    assert text.count("\n| ") - 1 == len(report.IN_README) == 4
    assert "Of all 5 figures 1 missed its goal." in text
    broken = {**figures, "broken": {"goal": ">= 2", "failed": "OSError: it broke", **load}}
    assert "and 1 could not be measured" in report.pages(_results(broken))[ROOT / "README.md"]


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
    """Instead of a ratio the table says so, and below it stands the reason without what may name a folder."""
    load = {"load_before": 0.0, "load_after": 0.0}
    figures = {
        "one": {"goal": ">= 2", "skipped": "no such backend", **load},
        "two": {"goal": ">= 2", "failed": "OSError: it broke", **load},
    }
    rows = report.pages(_results(figures))[ROOT / "docs" / "performance-figures.md"].splitlines()
    assert "| >= 2 | skipped |" in rows[4]
    assert "- `one`: no such backend" in rows
    assert "- `two`: OSError" in rows


def _results(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "when": "2026-01-01T00:00:00",
        "cores": 2,
        "python": "3",
        "spark": "4",
        "penstock": "0",
        "figures": figures,
    }
