"""The examples run as a user runs them, and the sink of the last one keeps the contract; test_five_minutes.py has page_views."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.cli import main
from penstock.sinks import TwoPhaseCommitSink
from penstock.testing.sink_contract import SinkContract

EXAMPLES = Path(__file__).parents[2] / "examples"

Run = Callable[[str], list[str]]
"""Runs an example by its name; returns what it prints."""


@pytest.fixture
def run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """Run an example as a script in an empty folder; returns the lines that it prints. Spark is started already."""
    monkeypatch.chdir(tmp_path)

    def run_example(name: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--once"])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capfd.readouterr().out.splitlines()

    return run_example


@pytest.fixture
def run_by_command(run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Run:
    """Run an example with `penstock run`, in the folder of `run`; returns the lines that are logged on the way."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))

    def run_command(name: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["penstock", "run", str(EXAMPLES / f"{name}.py"), "--available-now"])
        caplog.clear()
        with caplog.at_level("INFO", "penstock"), pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return caplog.messages

    return run_command


@pytest.mark.spark
def test_page_views_go_on_where_they_stopped(run: Run, run_by_command: Run) -> None:
    """The job of the README counts every view once; run again, by command, it goes on where it stopped."""
    counted, last = re.findall(r"\d+", run("page_views")[0])
    assert counted == last
    assert "from checkpoint" in " ".join(run_by_command("page_views"))
    with sqlite3.connect("page-views/views.db") as database:
        rows = database.execute("SELECT counted, last FROM views").fetchall()
    assert rows == [(2 * int(counted), 2 * int(last))] * 2


@pytest.mark.spark
def test_visits_remember_the_day_before(run: Run, run_by_command: Run) -> None:
    """Visits are numbered per user, over runs: state comes back, and every visit is in the files once."""
    assert run("visits") == [
        "ada: visit 1 began 2026-01-01 09:00",
        "bob: visit 1 began 2026-01-01 12:00",
        "ada: visit 2 began 2026-01-01 19:00",
    ]
    run_by_command("visits")
    visits = sorted((row["user"], row["visit"], row["began"].day) for row in rows_in("visits/out"))
    assert visits == [
        *(("ada", 1, 1), ("ada", 2, 1), ("ada", 3, 2), ("ada", 4, 2)),
        *(("bob", 1, 1), ("bob", 2, 2)),
    ]


@pytest.mark.spark
def test_spending_is_added_up_in_columns(run: Run, run_by_command: Run) -> None:
    """Sums go on over runs, and a customer is new once."""
    assert run("top_spenders") == ["bob: 12.00 (new)", "ada: 25.50 (new)"]
    run_by_command("top_spenders")
    spending = sorted((row["customer"], row["spent"], row["new"]) for row in rows_in("spending/out"))
    assert spending == [("ada", 25.5, True), ("ada", 51.0, False), ("bob", 12.0, True), ("bob", 24.0, False)]


@pytest.mark.spark
def test_products_are_ranked_anew(run: Run, run_by_command: Run) -> None:
    """The table has the first two products of every shop, and after another run still no others."""
    best = ["north, 1: tea (12)", "north, 2: milk (11)", "south, 1: tea (2)"]
    assert run("top_products") == best
    run_by_command("top_products")
    with sqlite3.connect("top-products/out.db") as database:
        rows = database.execute("select shop, rank, product, sold from best order by shop, rank").fetchall()
    assert rows == [("north", 1, "tea", 24), ("north", 2, "milk", 22), ("south", 1, "tea", 4)]


@pytest.mark.spark
def test_missing_payments_are_noticed(run: Run, run_by_command: Run) -> None:
    """The order that is never paid, and in the next run the one that waited when the first run ended."""
    assert run("missing_payment") == ["order 0-2: no payment until 2026-01-01 09:35"]
    run_by_command("missing_payment")
    alerts = sorted((row["order"], row["missing_since"].day) for row in rows_in("missing-payment/out"))
    assert alerts == [("0-2", 1), ("0-3", 1), ("1-2", 2)]


@pytest.mark.spark
def test_sessions_end_with_event_time(run: Run, run_by_command: Run) -> None:
    """Sessions are what they are however the views are cut into batches; a view that is too late is kept apart."""
    assert run("sessions") == [
        "ada from 09:00 to 09:35, views: 3",
        "bob from 09:10 to 09:10, views: 1",
        "ada from 19:00 to 19:00, views: 1",
        "too late: bob at 08:00",
    ]
    run_by_command("sessions")  # without the end of time the last session of the second day stays open
    assert [row["user"] for row in rows_in("sessions/out")].count("ada") == 3
    assert len(rows_in("sessions/late")) == 2


@pytest.mark.spark
def test_products_are_ranked_by_the_hour(run: Run, run_by_command: Run) -> None:
    """What comes within ten minutes after its hour is in the ranks of that hour."""
    assert run("top_products_by_window") == [
        *("09:00, 1: milk (7)", "09:00, 2: rice (5)"),
        *("10:00, 1: tea (4)", "10:00, 2: rice (1)"),
        "11:00, 1: rice (2)",
    ]
    run_by_command("top_products_by_window")
    with sqlite3.connect("top-by-window/out.db") as database:
        assert database.execute("select count(*) from best").fetchall() == [(9,)]


def rows_in(folder: str) -> list[dict[str, Any]]:
    """What a reader of Parquet files sees."""
    return pq.read_table(folder).to_pylist()


def test_an_example_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package an example ends with what to install, before Spark is started."""
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(SystemExit, match=r"needs the package polars: .* pip install '\.\[polars\]'"):
        runpy.run_path(str(EXAMPLES / "top_spenders.py"), run_name="__main__")


@pytest.mark.spark
def test_bad_payments_are_kept_apart(run: Run, run_by_command: Run) -> None:
    """The payments that can be added up are, and the others are dead letters with their reasons."""
    no_number = "ValueError: invalid literal for int() with base 10: 'two'"
    assert run("dead_letters") == [
        "[('ada', 1250)]",
        f'sums: {no_number}: {{"partition":0,"offset":1,"account":"bob","cents":"two"}}',
        'sums: the key column \'account\' is null: {"partition":0,"offset":2,"account":null,"cents":"500"}',
    ]
    run_by_command("dead_letters")
    letters = [line for file in Path("payments/bad").glob("*.json") for line in file.read_text().splitlines()]
    assert len(letters) == 4


@pytest.mark.spark
def test_rules_are_in_force_for_the_payments_of_their_batch(run: Run, run_by_command: Run) -> None:
    """Payments are judged by the rules that come with them; run again, by the new ones, with the totals of before."""
    assert run("fraud_rules") == ["bob: 700 is beyond the rule 'most'"]
    run_by_command("fraud_rules")
    alerts = [json.loads(line) for file in Path("fraud/alerts").glob("*.json") for line in file.open()]
    assert sorted((alert["card"], alert["rule"], alert["found"]) for alert in alerts) == [
        ("ada", "total", 200),
        *(("bob", "most", 700), ("bob", "most", 700), ("bob", "total", 1400)),
        *(("cyd", "most", 90), ("cyd", "total", 180)),
    ]


@pytest.mark.spark
def test_users_survive_at_least_once_and_page_views_do_not(run: Run, run_by_command: Run) -> None:
    """Of a batch that is done again the users are the same, its page views count twice; exactly once both are right."""
    assert run("users_and_views") == [
        "at least once: 7 users, 150 page views",
        "exactly once: 7 users, 100 page views",
    ]
    run_by_command("users_and_views")
    with sqlite3.connect("users-and-views/counts.db") as database:
        assert database.execute("SELECT page, pv, uv FROM counts").fetchall() == [("home", 200, 7)]


@pytest.mark.spark
def test_a_sink_of_ones_own_runs_in_a_job(run: Run, run_by_command: Run) -> None:
    """The user's own sink receives the results of a job, and nothing of it stays hidden."""
    run_by_command("own_sink")
    assert list(Path("own-sink/out").glob(".*.staged")) == []
    twice = "{'app': 'blog', 'ms': 40}, {'app': 'blog', 'ms': 40}, {'app': 'shop', 'ms': 120}, {'app': 'shop', 'ms': 120}"
    assert run("own_sink") == [f"[{twice}]"]


def test_every_example_is_run() -> None:
    """There is no example that the tests here do not run, as a script and by command."""
    ran = re.findall(r'(run|run_by_command)\("(\w+)"\)', Path(__file__).read_text(encoding="utf-8"))
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert set(ran) == {(how, name) for how in ("run", "run_by_command") for name in names}


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


@pytest.mark.spark
def test_orders_are_paid_in_time_or_not(run: Run, run_by_command: Run) -> None:
    """A payment within ten minutes belongs to its order; orders without one come out when none can come any more."""
    assert run("orders_and_payments") == [
        "order A: paid after 5 minutes",
        "order B: not paid in time",
        "order C: not paid in time",
    ]
    with sqlite3.connect("orders/owed.db") as database:
        assert sorted(database.execute("SELECT customer, cents FROM owed")) == [("ada", 200), ("bob", 0)]
    run_by_command("orders_and_payments")
    paid = [row["order_id"] for row in pq.read_table("orders/paid").to_pylist() if row["paid"] is not None]
    assert paid == ["A", "A"]


@pytest.mark.spark
def test_each_order_passes_once(run: Run, run_by_command: Run) -> None:
    """The first copy passes, and one that is more than an hour away; run again, nothing does."""
    expected = ["12:00 order A", "12:01 order B", "12:03 order C", "13:30 order A"]
    assert run("deduplication") == expected
    run_by_command("deduplication")
    assert pq.read_table("deduplication/once").num_rows == len(expected)
