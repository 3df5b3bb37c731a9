"""`ps.testing` runs own code of every kind without Spark, and shows what depends on batches or on what an instance remembers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps

TEN = datetime(2026, 5, 1, 10, tzinfo=UTC)
SEEDS = range(8)
BACKENDS = ["memory", "filesystem", "rocksdb"]


def at(minutes: float) -> datetime:
    return TEN + timedelta(minutes=minutes)


def as_sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(str, rows))


# ── KeyedProcess ───────────────────────────────────────────────────────────────────────────────────


class Visits(ps.KeyedProcess):
    """Counts page views, rejects pages without a name, and reports a user who is gone for five minutes."""

    views = ps.ValueState("long", default=0)
    pages = ps.MapState("string", "long")
    path = ps.ListState("string")
    gone_at = ps.ValueState("timestamp")
    errors = ps.SideOutput("user string, page string")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for view in rows:
            if view.page is None:
                ctx.reject(view, "a view without a page")
                continue
            if view.page == "error":
                ctx.emit("errors", (key, view.page))
            self.views.value += 1
            self.pages[view.page] = self.pages.get(view.page, 0) + 1
            self.path.append(view.page)
            if self.gone_at.value is not None:
                ctx.delete_timer(self.gone_at.value)
            self.gone_at.value = view.at + timedelta(minutes=5)
            ctx.set_timer(self.gone_at.value)
            yield key, self.views.value

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[Any]:
        yield key, -self.views.value
        self.views.clear()


VIEWS = "user string, page string, at timestamp"
VISITS: dict[str, Any] = {
    "schema": "user string, n long",
    "input_schema": VIEWS,
    "key": "user",
    "order_by": "at",
    "event_time": ps.EventTime("at", out_of_order="1h"),
    "on_bad_record": "skip",
}
ROWS: list[Any] = [
    {"user": "ada", "page": "home", "at": at(0)},
    {"user": "ben", "page": "error", "at": at(1)},
    {"user": "ada", "page": None, "at": at(2)},
    {"user": "ada", "page": "help", "at": at(3)},
    {"user": "cid", "page": "home", "at": at(3)},
    {"user": "ada", "page": "home", "at": at(4)},
]
RESULTS = [("ada", 1), ("ada", 2), ("ada", 3), ("ben", 1), ("cid", 1)]
GONE = [("ada", -3), ("ben", -1), ("cid", -1)]


def test_a_run_gives_results_side_outputs_rejected_rows_and_state() -> None:
    """All that a keyed operator makes of rows can be asked for after `run`."""
    t = ps.testing.run(Visits(), ROWS, **VISITS)
    assert sorted((row["user"], row["n"]) for row in t.results) == RESULTS
    assert t.side("errors") == [{"user": "ben", "page": "error"}]
    (bad,) = t.rejected
    assert bad["reason"] == "a view without a page"
    assert (bad["key"], bad["row"]["page"]) == ({"user": "ada"}, None)
    assert t.state("ada") == {
        "views": 3,
        "pages": {"home": 2, "help": 1},
        "path": ["home", "help", "home"],
        "gone_at": at(9),
    }
    assert t.timers("ada") == [ps.types.Timer(at(9), "event_time")]
    assert sorted(t.keys) == ["ada", "ben", "cid"]
    assert t.state("nobody") == {}
    assert t.late == []
    assert t.to_arrow().schema.names == ["user", "n"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_results_do_not_depend_on_batches_or_failures(seed: int, backend: str) -> None:
    """Any cut, with failures and restores, gives each result, side output and rejected row once."""
    t = ps.testing.run(
        Visits(), ROWS, seed=seed, backend=backend, parallelism=seed % 3 + 1, drain=True, **VISITS
    )
    assert sorted((row["user"], row["n"]) for row in t.results) == sorted(RESULTS + GONE)
    assert len(t.side("errors")) == len(t.rejected) == 1
    assert t.timers("ada") == []
    assert "views" not in t.state("ada")


@pytest.mark.parametrize(
    ("batches", "fail_after"),
    [
        *((None, fails) for fails in ((), 1)),
        *((1, fails) for fails in ((), 1, (2, 4))),
        *(([2, 3], fails) for fails in ((), 1, (1, 2))),
        (range(1, 4), 2),
    ],
)
def test_batches_and_failures_are_where_the_test_says(batches: Any, fail_after: Any) -> None:
    """Rows since the last checkpoint are read again after each named batch."""
    t = ps.testing.run(Visits(), ROWS, batches=batches, fail_after=fail_after, checkpoint_every=2, **VISITS)
    assert sorted((row["user"], row["n"]) for row in t.results) == RESULTS


class Forgetful(ps.KeyedProcess):
    """Counts in an attribute, which is gone after the batch."""

    def __init__(self) -> None:
        self.seen = 0

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for _ in rows:
            self.seen += 1
            yield key, self.seen


class OnePerBatch(ps.KeyedProcess):
    """Counts batches, and not rows."""

    batches = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        self.batches.value += 1
        yield key, self.batches.value


@pytest.mark.parametrize("operator", [Forgetful(), OnePerBatch()])
def test_wrong_operators_are_found(operator: ps.KeyedProcess) -> None:
    """An operator that remembers in its instance, or counts batches, gives other results when batches are cut otherwise."""
    rows = [("ada", n) for n in range(5)]
    options: dict[str, Any] = {"schema": "k string, n long", "input_schema": "k string, v long", "key": "k"}
    together = ps.testing.run(operator, rows, **options).results
    assert any(ps.testing.run(operator, rows, seed=seed, **options).results != together for seed in SEEDS)
    assert vars(operator) in ({}, {"seen": 0})


# ── steps ──────────────────────────────────────────────────────────────────────────────────────────


def visits() -> ps.testing.Harness:
    return ps.testing.harness(Visits(), **{**VISITS, "event_time": ps.EventTime("at", out_of_order="10s")})


def test_a_failure_takes_back_and_repeats_what_came_since_the_checkpoint() -> None:
    """After `fail` state and results are as before it; with `replay=False` as at the checkpoint."""
    t = visits()
    t.batch(ROWS[:2])
    t.checkpoint()
    assert t.batch(ROWS[2:4]) == [{"user": "ada", "n": 2}]
    t.advance_watermark(at(3))
    results, state, timers, watermark = t.results, t.state("ada"), t.timers("ada"), t.watermark
    t.fail()
    assert (t.results, t.state("ada"), t.timers("ada"), t.watermark) == (results, state, timers, watermark)
    t.fail(replay=False)
    assert t.results == results[:2]
    assert t.rejected == []
    assert t.state("ada")["path"] == ["home"]
    assert t.watermark == at(1) - timedelta(seconds=10, microseconds=1)


def test_the_watermark_follows_rows_and_fires_timers() -> None:
    """After a batch the watermark is that of the newest row, less what may come out of order; it can be moved, but not back."""
    t = visits()
    assert t.watermark is None
    t.batch(ROWS[:1])
    assert t.watermark == at(0) - timedelta(seconds=10, microseconds=1)
    assert t.advance_watermark("2026-05-01 10:04:59") == []
    assert t.advance_watermark(at(5)) == [{"user": "ada", "n": -1}]
    with pytest.raises(ps.ConfigError, match="never goes back"):
        t.advance_watermark(at(4))
    with pytest.raises(ps.ConfigError, match="datetime, or text"):
        t.advance_watermark("soon")


class Reminder(ps.KeyedProcess):
    """Reminds ten seconds later, by the clock; forgets after a minute."""

    last = ps.ValueState("long", ttl="1min")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        self.last.value = rows[0].n
        ctx.set_timer(ctx.now + timedelta(seconds=10), by="clock")
        yield key, str(ctx.now)

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[Any]:
        yield key, f"{timer.by} {self.last.value}"


def test_the_clock_is_virtual() -> None:
    """Timers by the clock fire, and state expires, when the test moves the clock; a failure does not move it back."""
    t = ps.testing.harness(
        Reminder(), schema="k string, said string", input_schema="k string, n long", key="k", now="2030-01-01"
    )
    assert t.batch([("a", 7)]) == [{"k": "a", "said": "2030-01-01 00:00:00+00:00"}]
    assert t.timers("a") == [ps.types.Timer(datetime(2030, 1, 1, 0, 0, 10, tzinfo=UTC), "clock")]
    assert t.advance_clock("9s") == []
    t.checkpoint()
    assert t.advance_clock("1s") == [{"k": "a", "said": "clock 7"}]
    t.fail()
    assert [row["said"] for row in t.results] == ["2030-01-01 00:00:00+00:00", "clock 7"]
    assert t.now == datetime(2030, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert t.state("a") == {"last": 7}
    t.advance_clock("1min")
    assert t.state("a") == {}


def test_an_exception_reaches_the_test_and_the_batch_has_not_happened() -> None:
    """By default a bad row ends the run, as in a job: the error is the job's, and nothing of the batch stays."""
    t = ps.testing.harness(Visits(), **{**VISITS, "on_bad_record": "fail"})
    t.batch(ROWS[:2])
    with pytest.raises(ps.BadRecordError, match="a view without a page"):
        t.batch(ROWS[2:])
    assert len(t.results) == 2
    assert t.state("ada")["views"] == 1


def test_the_state_of_keys_that_have_none() -> None:
    """A key that never came has no state; what cannot be a key is refused, because a test that asks for it is wrong."""
    t = ps.testing.run(
        Visits(),
        [("ada", "home", at(0))],
        key="user",
        input_schema="user string, page string, at timestamp",
        schema="user string, views long",
        event_time="at",
    )
    assert (t.state("bob"), t.timers("bob"), t.keys) == ({}, [], ["ada"])
    for key in (5, ("ada", 1), b"ada"):
        with pytest.raises(
            ps.ConfigError, match="cannot be a key: the operator has the key columns user string"
        ):
            t.state(key)
        with pytest.raises(ps.ConfigError, match="cannot be a key"):
            t.timers(key)


def test_another_parallelism_keeps_the_state() -> None:
    """Keys go on where they were, on any number of subtasks."""
    t = visits()
    t.batch(ROWS[:2])
    t.rescale(4)
    t.batch(ROWS[2:])
    t.rescale(1)
    assert sorted((row["user"], row["n"]) for row in t.results) == RESULTS
    assert t.state("ada")["path"] == ["home", "help", "home"]


# ── the other kinds ────────────────────────────────────────────────────────────────────────────────


class Totals(ps.BatchProcess):
    """Sums up in columns."""

    total = ps.ValueState("long", default=0)

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        sums = np.add.reduceat(batch["n"].to_numpy(), batch.starts)
        state["total"] = state["total"].to_numpy() + sums
        return {"k": keys["k"], "total": state["total"]}


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_process(seed: int) -> None:
    """The last total of each key, and its state, do not depend on the cut."""
    rows = pa.table({"k": list("abcabca"), "n": range(7)})
    t = ps.testing.run(Totals(), rows, schema="k string, total long", key="k", seed=seed)
    last = {row["k"]: row["total"] for row in t.results}
    assert last == {"a": 9, "b": 5, "c": 7}
    assert {key: t.state(key) for key in t.keys} == {key: {"total": n} for key, n in last.items()}


class Bundles(ps.Process):
    """Gives rows in bundles of three."""

    waiting = ps.OperatorListState("long")

    def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            if row.n < 0:
                ctx.reject(row, "negative")
            else:
                self.waiting.append(row.n)
        while len(self.waiting) >= 3:
            yield (list(self.waiting[:3]),)
            del self.waiting[:3]


@pytest.mark.parametrize("seed", SEEDS)
def test_process_without_a_key(seed: int) -> None:
    """A bundle is full after three rows, whatever batches they come in; what waits is the state without a key."""
    rows = [(n,) for n in (0, 1, -1, 2, 3, 4, 5, 6)]
    t = ps.testing.run(
        Bundles(), rows, schema="bundle array<long>", input_schema="n long", on_bad_record="skip", seed=seed
    )
    assert [row["bundle"] for row in t.results] == [[0, 1, 2], [3, 4, 5]]
    assert t.state() == {"waiting": [6]}
    assert [one["row"] for one in t.rejected] == [{"n": -1}]


class Payments(ps.KeyedCoProcess):
    """Finds orders that are paid; what comes first on either side waits."""

    ordered = ps.ValueState("long")
    paid = ps.ValueState("long")

    def process_left(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        self.ordered.value = rows[0].amount
        yield from self._matched(key)

    def process_right(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        self.paid.value = rows[0].paid
        yield from self._matched(key)

    def _matched(self, key: str) -> Iterator[Any]:
        if self.ordered.value is not None and self.paid.value is not None:
            yield key, self.ordered.value - self.paid.value
            self.ordered.clear()
            self.paid.clear()


@pytest.mark.parametrize("seed", SEEDS)
def test_keyed_co_process(seed: int) -> None:
    """Orders meet payments in any batches of either stream."""
    t = ps.testing.run(
        Payments(),
        [("a", 5), ("b", 6), ("c", 7)],
        right=[(3, "b"), (2, "a")],
        schema="id string, open long",
        input_schema="id string, amount long",
        key="id",
        right_schema="paid long, order string",
        right_key="order",
        seed=seed,
        parallelism=2,
    )
    assert as_sorted(t.results) == as_sorted([{"id": "a", "open": 3}, {"id": "b", "open": 3}])
    assert t.keys == ["c"]
    assert t.state("c") == {"ordered": 7}


class Longest(ps.WindowProcess):
    """The number of rows of a window, and the greatest."""

    def process(
        self, key: str, window: ps.types.TimeWindow | None, rows: ps.types.Rows, ctx: ps.types.Context
    ) -> Iterator[Any]:
        assert window is not None
        yield key, window.start, len(rows), max(rows.column("n"))


WINDOWS: dict[str, Any] = {
    "schema": "k string, start timestamp, rows long, most long",
    "input_schema": "k string, n long, at timestamp",
    "key": "k",
}


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (ps.windows.tumbling("10min"), [("a", 0, 2, 5), ("a", 10, 1, 3), ("b", 0, 1, 9)]),
        (ps.windows.session("5min"), [("a", 0, 1, 2), ("a", 8, 2, 5), ("b", 1, 1, 9)]),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_window_process(seed: int, window: Any, expected: list[tuple[Any, ...]]) -> None:
    """With rows that are not late, windows have the same rows however these are cut into batches."""
    rows = [("a", 2, at(0)), ("b", 9, at(1)), ("a", 5, at(8)), ("a", 3, at(12))]
    t = ps.testing.run(
        Longest(),
        rows,
        window=window,
        event_time=ps.EventTime("at", out_of_order="1h"),
        seed=seed,
        drain=True,
        **WINDOWS,
    )
    found = [((row["start"] - TEN) / timedelta(minutes=1), row) for row in t.results]
    assert sorted((row["k"], start, row["rows"], row["most"]) for start, row in found) == expected
    assert t.late == []


def test_a_failure_that_never_comes_is_refused() -> None:
    """A test that asks for a failure after the last batch, or for batches beside a seed, would prove nothing."""
    with pytest.raises(ps.ConfigError, match="fail_after=99, but the run has only 1 batch"):
        ps.testing.run(Visits(), ROWS, fail_after=99, **VISITS)
    with pytest.raises(ps.ConfigError, match="it excludes batches= and fail_after="):
        ps.testing.run(Visits(), ROWS, seed=1, batches=2, **VISITS)
    with pytest.raises(ps.ConfigError, match="it excludes batches= and fail_after="):
        ps.testing.run(Visits(), ROWS, seed=1, fail_after=1, **VISITS)


def test_late_rows_of_windows() -> None:
    """A row that comes after its window is forgotten is late; within the lateness it gives the window again."""
    t = ps.testing.harness(
        Longest(),
        window=ps.windows.tumbling("10min"),
        lateness="5min",
        event_time=ps.EventTime("at", out_of_order="0s"),
        **WINDOWS,
    )
    assert t.batch([("a", 1, at(1))]) == []
    assert [row["rows"] for row in t.advance_watermark(at(10))] == [1]
    assert [row["rows"] for row in t.batch([("a", 2, at(2))])] == [2]
    t.checkpoint()
    t.advance_watermark(at(15))
    assert t.batch([("a", 3, at(3)), ("a", 4, at(16))]) == []
    assert t.late == [{"k": "a", "n": 3, "at": at(3)}]
    t.fail()
    assert t.late == [{"k": "a", "n": 3, "at": at(3)}]
    assert [row["n"] for row in t.state("a")["rows"]] == [4]


def test_count_windows_need_no_event_time() -> None:
    """A window of so many rows is full when it has them."""

    class Sums(ps.WindowProcess):
        def process(self, key: str, window: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
            yield key, sum(rows.column("n"))

    t = ps.testing.run(
        Sums(),
        [("a", n) for n in range(5)],
        schema="k string, total long",
        input_schema="k string, n long",
        key="k",
        window=ps.windows.count(2),
        batches=1,
        fail_after=(2, 3),
    )
    assert [row["total"] for row in t.results] == [1, 5]


class Limits(ps.KeyedProcess):
    """Gives payments above a limit that is broadcast."""

    limits = ps.BroadcastState("string", "long")

    def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for row in rows:
            self.limits[row.name] = row.limit

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        yield from ((key, row.n) for row in rows if row.n > self.limits.get("most", 0))


def test_a_broadcast_stream_reaches_every_subtask() -> None:
    """Broadcast rows come before the rows of their batch, and are state without a key."""
    t = ps.testing.harness(
        Limits(),
        schema="k string, n long",
        input_schema="k string, n long",
        key="k",
        broadcast_schema="name string, limit long",
        broadcast_order_by="limit",
        parallelism=3,
    )
    t.batch([(key, 5) for key in "abcdef"], broadcast=[("most", 4), ("most", 3)])
    t.batch([(key, 4) for key in "abcdef"])
    assert sorted(row["k"] for row in t.results) == list("abcdef")
    assert t.state() == {"limits": {"most": 4}}


# ── what is refused ────────────────────────────────────────────────────────────────────────────────


class Locked(Visits):
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": ()}, "Visits is a KeyedProcess, which needs a key"),
        ({"key": "usr"}, "key column 'usr' does not exist; there are user, page, at"),
        ({"order_by": "time"}, "order_by names time; there are user, page, at"),
        ({"event_time": "time"}, "event_time='time' is not one of its columns"),
        ({"event_time": "page"}, "its event time 'page' is a string, and has to be a timestamp"),
        ({"schema": "user strin"}, "expected a type, found 'strin'"),
        ({"backend": "disk"}, "backend 'disk' is not known"),
        ({"on_bad_record": "ignore"}, "on_bad_record='ignore' is unknown"),
        ({"window": ps.windows.tumbling("1min")}, "it takes an instance of a WindowProcess subclass"),
        ({"right_schema": "id long", "right_key": "id"}, "but two streams are connected"),
        ({"parallelism": 0}, "parallelism=0 is not allowed"),
    ],
)
def test_what_a_job_refuses_is_refused_in_the_same_words(change: dict[str, Any], message: str) -> None:
    """Wrong declarations are `ConfigError`s before any row is processed."""
    with pytest.raises(ps.ConfigError) as refused:
        ps.testing.harness(Visits(), **{**VISITS, **change})
    assert message in str(refused.value)


def test_rows_and_objects_that_do_not_fit_are_refused() -> None:
    """The error names the value, the missing schema, the stream or the attribute that is wrong."""
    t = visits()
    with pytest.raises(ps.BadRecordError, match="unknown columns"):
        t.batch([{"user": "ada", "colour": "red"}])
    with pytest.raises(ps.ConfigError, match="a stream that it does not have"):
        t.batch([], right=[("a",)])
    with pytest.raises(ps.ConfigError, match="no side output 'error'"):
        t.side("error")
    with pytest.raises(ps.ConfigError, match="need input_schema"):
        ps.testing.run(Visits(), ROWS, schema="user string, n long", key="user")
    with pytest.raises(ps.ConfigError, match="pickled into tasks"):
        ps.testing.harness(Locked(), **VISITS)


def test_it_does_not_import_pyspark() -> None:
    """A test of own code starts as fast as Arrow does."""
    code = (
        "import sys, penstock as ps; ps.testing.run; ps.testing.harness; "
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'pyspark']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
