"""The examples run as a user runs them, and the sink of the third one keeps the contract."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.sinks import TwoPhaseCommitSink
from penstock.testing.sink_contract import SinkContract

EXAMPLES = Path(__file__).parents[2] / "examples"

Run = Callable[[str], list[str]]


@pytest.fixture
def run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """Run an example as a script in an empty folder; returns the lines that it prints. Spark is started already."""
    monkeypatch.chdir(tmp_path)

    def run_example(name: str) -> list[str]:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capfd.readouterr().out.splitlines()

    return run_example


@pytest.mark.spark
def test_page_views_go_on_where_they_stopped(run: Run) -> None:
    """The job of the README states its guarantee and counts; run again, it adds what came since."""
    first = run("page_views")
    assert first[0].startswith("exactly-once: ")
    assert first[-1] == "[('blog', 1), ('shop', 2)]"
    assert run("page_views")[-1] == "[('blog', 2), ('shop', 4)]"


@pytest.mark.spark
def test_visits_remember_the_day_before(run: Run) -> None:
    """Visits are numbered per user, over runs: state comes back, and every visit is in the files once."""
    day = [
        "ada: visit 1 began 2026-01-01 09:00",
        "bob: visit 1 began 2026-01-01 12:00",
        "ada: visit 2 began 2026-01-01 19:00",
    ]
    assert run("visits") == day
    next_day = [
        "ada: visit 3 began 2026-01-02 09:00",
        "bob: visit 2 began 2026-01-02 12:00",
        "ada: visit 4 began 2026-01-02 19:00",
    ]
    assert run("visits") == day + next_day


@pytest.mark.spark
def test_spending_is_added_up_in_columns(run: Run) -> None:
    """Sums go on over runs, and a customer is new once."""
    first = ["bob: 12.00 (new)", "ada: 25.50 (new)"]
    assert run("top_spenders") == first
    assert run("top_spenders") == ["bob: 12.00 (new)", "bob: 24.00", "ada: 25.50 (new)", "ada: 51.00"]


@pytest.mark.spark
def test_a_sink_of_ones_own_runs_in_a_job(run: Run) -> None:
    """The user's own sink receives the results of a job, and nothing of it stays hidden."""
    assert run("own_sink") == ["[{'app': 'blog', 'ms': 40}, {'app': 'shop', 'ms': 120}]"]
    assert list(Path("own-sink/out").glob(".*.staged")) == []


@pytest.fixture(scope="module", name="own_sink")
def own_sink_module() -> Iterator[Any]:
    """The example as a module, importable by name as the contract's pickled copies need it."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("own_sink")
    finally:
        sys.path.remove(str(EXAMPLES))


class TestOwnSink(SinkContract):
    """The contract that every transactional sink keeps, as docs/writing-a-sink.md shows it."""

    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path, own_sink: Any) -> None:
        self.folder = tmp_path / "out"
        self.module = own_sink

    def make_sink(self) -> TwoPhaseCommitSink:
        return self.module.JsonFolder(self.folder)

    def visible_rows(self) -> list[dict[str, Any]]:
        return self.module.read_folder(self.folder)


def test_own_sink_refuses_nested_columns(tmp_path: Path, own_sink: Any) -> None:
    """What the sink cannot hold is refused by name before anything starts."""
    schema = pa.schema([("tags", pa.list_(pa.string()))])
    with pytest.raises(ps.ConfigError, match="tags"):
        own_sink.JsonFolder(tmp_path).validate(schema)
