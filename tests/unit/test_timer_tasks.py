"""Timers in the tasks of an operator: what is refused, what becomes of calls that fail, and what else works beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from builders.operator_cluster import OperatorCluster
from builders.task_cluster import TaskCluster
from penstock.config import OnBadRecord
from penstock.errors import BadRecordError, UserCodeError
from penstock.operators.process import column_state
from penstock.operators.process.failed_call import failed_call
from penstock.operators.state import timer_cell
from penstock.operators.state.timers import microseconds, moment
from penstock.state.ddl import arrow_schema
from penstock.state.handle import Due
from penstock.state.lifetimes import FAR_AWAY_US

ROWS = arrow_schema("k string, what string")
OUTPUT = arrow_schema("k string, what string")
MINUTE_US = 60_000_000
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOON_US = microseconds(NOON, "")


class Alerts(ps.KeyedProcess):
    """Does what a row says, at noon or about it."""

    count = ps.ValueState("long", default=0)
    late = ps.SideOutput("k string, at timestamp")

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        for row in rows:
            self.count.value += 1
            match row.what:
                case "set":
                    ctx.set_timer(NOON)
                case "delete":
                    ctx.delete_timer(NOON)
                case "clock":
                    ctx.set_timer(ctx.now + timedelta(minutes=1), by="clock")
                case "naive":
                    ctx.set_timer(NOON.replace(tzinfo=None))
                case "times":
                    yield key, f"{ctx.watermark} {ctx.now}"
                case "fails":
                    ctx.set_timer(NOON)
                    raise ValueError("as it is told")
                case other:
                    exec(other, {"ctx": ctx, "NOON": NOON, "date": date, "timedelta": timedelta})

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        self.count.value += 10
        if key == "bad":
            ctx.set_timer(NOON + timedelta(hours=1))
            ctx.emit("late", (key, timer.at))
            raise ValueError("no alert")
        if key == "unfit":
            yield key, 1  # type: ignore[misc]
        if key == "again":
            ctx.set_timer(timer.at, timer.by)
        ctx.emit("late", (key, timer.at))
        yield key, f"{timer.by} {timer.at:%H:%M} {self.count.value} {ctx.watermark}"


def cluster(root: Path, operator: Any = None, **options: Any) -> TaskCluster:
    return TaskCluster(root, operator or Alerts(), rows=ROWS, output=OUTPUT, **options)


def rows(*what: tuple[str, str]) -> list[dict[str, str]]:
    return [{"k": key, "what": one} for key, one in what]


def said(given: list[Any]) -> list[str]:
    return [row["what"] for row in given]


def test_a_timer_fires_without_rows_when_time_has_come(tmp_path: Path) -> None:
    """The driver sees in the handles when; it fires once, and nothing is waited for then."""
    task = cluster(tmp_path, parallelism=2)
    assert task.batch(rows(("a", "set"))) == []
    assert task.due == Due(event_us=NOON_US)
    assert task.batch([], watermark_us=NOON_US - 1) == []
    assert said(task.batch([], watermark_us=NOON_US)) == ["event_time 12:00 11 2026-05-01 12:00:00+00:00"]
    assert task.due == Due()
    assert task.batch([], watermark_us=NOON_US + MINUTE_US, wake=True) == []


def test_by_the_clock(tmp_path: Path) -> None:
    """`ctx.now` is the time of the batch; without event time a timer by the clock fires all the same."""
    task = cluster(tmp_path, has_event_time=False)
    task.batch(rows(("a", "clock"), ("b", "times")), now_us=NOON_US)
    assert task.due == Due(clock_us=NOON_US + MINUTE_US)
    assert said(task.batch([], now_us=NOON_US + 2 * MINUTE_US)) == ["clock 12:01 11 None"]


def test_watermark_and_now(tmp_path: Path) -> None:
    """In `process` the watermark is that at the beginning of the batch, None before there is one; both are in UTC."""
    task = cluster(tmp_path)
    given = task.batch(rows(("a", "times")), now_us=0, watermark_us=NOON_US)
    assert said(given) == ["None 1970-01-01 00:00:00+00:00"]
    assert said(task.batch(rows(("a", "times")))) == ["2026-05-01 12:00:00+00:00 1970-01-01 00:00:00+00:00"]
    task.batch([], watermark_us=FAR_AWAY_US)
    (end,) = said(task.batch(rows(("a", "times"))))
    assert end.startswith(str(datetime.max.replace(tzinfo=UTC)))


def test_one_without_a_zone_is_one_of_utc(tmp_path: Path) -> None:
    """As everywhere else."""
    task = cluster(tmp_path)
    task.batch(rows(("a", "naive"), ("a", "set")))
    assert len(task.batch([], watermark_us=NOON_US)) == 1


def test_a_deleted_timer_is_not_waited_for(tmp_path: Path) -> None:
    """Stored or not, alone or beside another key of the same moment."""
    task = cluster(tmp_path)
    task.batch(rows(("a", "set"), ("b", "set"), ("b", "delete")))
    task.batch(rows(("a", "delete")))
    assert task.due == Due()
    assert task.batch([], watermark_us=NOON_US, wake=True) == []


class Deletes(ps.KeyedProcess):
    """Sets a timer for the key a, and deletes one for all others."""

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> None:
        (ctx.set_timer if key == "a" else ctx.delete_timer)(NOON)

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> None:
        """Says nothing."""


def test_what_is_not_stored_needs_no_write(tmp_path: Path) -> None:
    """To delete a timer that is not there writes nothing, nor does one that fires."""
    task = cluster(tmp_path, Deletes(), backend="filesystem")
    task.batch(rows(("a", "")))
    files = task.files
    task.batch(rows(("b", ""), ("c", "")))
    assert (task.files, task.timers_stored()) == (files, [("a", NOON_US)])
    task.batch([], watermark_us=NOON_US)
    assert (task.files, task.timers_stored()) == (files, [])


@pytest.mark.parametrize(
    ("code", "error", "match"),
    [
        ("ctx.set_timer(5)", BadRecordError, "set_timer.*5 is no moment.*timedelta"),
        ("ctx.set_timer(None)", BadRecordError, "None is no moment"),
        ("ctx.set_timer(date(2026, 1, 1))", BadRecordError, "is no moment"),
        ("ctx.set_timer(timedelta(1))", BadRecordError, "is no moment"),
        ("ctx.delete_timer('noon')", BadRecordError, "delete_timer.*'noon' is no moment"),
        ("ctx.set_timer(NOON, by='clocks')", UserCodeError, "by='clocks' is unknown.*did you mean 'clock'"),
        ("import pandas; ctx.set_timer(pandas.NaT)", BadRecordError, "NaT is no moment"),
        ("import pandas; ctx.set_timer(pandas.Timestamp(5, unit='ns'))", BadRecordError, "is no moment"),
    ],
)
def test_what_is_no_timer_is_refused(tmp_path: Path, code: str, error: type[Exception], match: str) -> None:
    """With what it takes instead."""
    with pytest.raises(error, match=match):
        cluster(tmp_path).batch(rows(("a", code)))


def test_event_time_must_come_from_somewhere(tmp_path: Path) -> None:
    """Otherwise the timer would wait for ever."""
    with pytest.raises(UserCodeError, match=r"no source before it has any.*by='clock'"):
        cluster(tmp_path, has_event_time=False).batch(rows(("a", "set")))


class Silent(ps.KeyedProcess):
    """Takes no timers."""

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> None:
        ctx.set_timer(NOON)


class Unkeyed(ps.Process):
    def process(self, rows: Any, ctx: ps.types.Context) -> None:
        ctx.set_timer(NOON)


class SilentColumns(ps.BatchProcess):
    def process_batch(self, keys: Any, batch: Any, state: ps.types.BatchState) -> None:
        state.set_timers([NOON])


class ContextInColumns(ps.BatchProcess):
    def process_batch(self, keys: Any, batch: Any, state: ps.types.BatchState) -> None:
        state.context.set_timer(NOON)


@pytest.mark.parametrize(
    ("operator", "match"),
    [
        (Silent(), r"write def on_timer\(self, key, timer, ctx\)"),
        (SilentColumns(), r"write def on_timers\(self, keys, timers, state\)"),
        (ContextInColumns(), r"in columns: write state.set_timers"),
    ],
)
def test_who_takes_no_timers_can_set_none(tmp_path: Path, operator: Any, match: str) -> None:
    """The error says what to write."""
    with pytest.raises(UserCodeError, match=match):
        cluster(tmp_path, operator).batch(rows(("a", "")))


def test_without_a_key_there_are_no_timers(tmp_path: Path) -> None:
    """A timer belongs to a key."""
    task = TaskCluster(tmp_path, Unkeyed(), rows=arrow_schema("what string"), output=OUTPUT)
    with pytest.raises(UserCodeError, match="has no key that a timer could belong to"):
        task.batch({0: [{"what": ""}]})


# ── calls that fail ────────────────────────────────────────────────────────────────────────────


def test_an_on_timer_that_fails_ends_the_run_with_key_and_timer(tmp_path: Path) -> None:
    """They are what is said of the failure, in place of a row."""
    task = cluster(tmp_path)
    task.batch(rows(("bad", "set")))
    with pytest.raises(ValueError, match="no alert") as raised:
        task.batch([], watermark_us=NOON_US)
    call = failed_call(raised.value)
    assert call.key == "'bad'"
    assert "Timer(at=datetime.datetime(2026, 5, 1, 12, 0" in call.row
    assert "by='event_time'" in call.row


def test_a_result_of_on_timer_that_does_not_fit_is_blamed_on_it(tmp_path: Path) -> None:
    """With the name of the function, and its line."""
    task = cluster(tmp_path)
    task.batch(rows(("unfit", "set")))
    with pytest.raises(BadRecordError, match=r"on_timer\(\) yielded") as raised:
        task.batch([], watermark_us=NOON_US)
    assert failed_call(raised.value).key == "'unfit'"
    assert "on_timer" in str(raised.value.facts["code"])


@pytest.mark.parametrize("key", ["bad", "unfit"])
def test_a_call_for_a_timer_is_undone_and_the_timer_has_fired(tmp_path: Path, key: str) -> None:
    """Its letter has the key and the timer; what `process` did for the same key counts, and other keys go on."""
    task = cluster(tmp_path, on_bad_record=OnBadRecord.KEEP, sides=("late",))
    task.batch(rows((key, "set"), ("a", "set")))
    given = task.batch(rows((key, "")), watermark_us=NOON_US)
    assert [row["k"] for row in given] == ["a"]
    (letter,) = task.letters
    assert "on_timer()" in letter["reason"]
    assert json.loads(letter["key"]) == {"k": key}
    told = json.loads(letter["row"])
    assert (told["k"], told["timer_by"]) == (key, "event_time")
    assert told["timer_at"].startswith("2026-05-01T12:00")
    assert [row["k"] for row in task.emitted] == ["a"]
    assert (task.bad, task.given) == ({"op": 1}, 3)
    assert task.due == Due()
    assert task.timers_stored() == []
    (count,) = [row["count"] for row in task.values_stored() if row["k"] == key]
    assert count == 2


def test_a_process_that_fails_takes_its_timers_with_it(tmp_path: Path) -> None:
    """What it had set counts for nothing; a timer that was stored fires all the same."""
    task = cluster(tmp_path, on_bad_record=OnBadRecord.SKIP)
    task.batch(rows(("a", "fails")))
    assert task.due == Due()
    task.batch(rows(("a", "set")))
    given = task.batch(rows(("a", "ctx.delete_timer(NOON); 1 / 0"), ("a", "fails")), watermark_us=NOON_US)
    assert said(given) == ["event_time 12:00 11 2026-05-01 12:00:00+00:00"]


def test_a_circle_without_an_end_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that sets itself again fires at once, for ever."""
    monkeypatch.setattr(timer_cell, "MOST_IN_A_ROW", 100)
    task = cluster(tmp_path)
    task.batch(rows(("again", "set")))
    with pytest.raises(UserCodeError, match="this may never end"):
        task.batch([], watermark_us=NOON_US)


# ── beside timers ──────────────────────────────────────────────────────────────────────────────


class Ruled(ps.KeyedProcess):
    """Reads broadcast state when a timer fires."""

    rules = ps.BroadcastState("string", "string")

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> None:
        ctx.set_timer(NOON)

    def process_broadcast(self, rows: Any, ctx: ps.types.Context) -> None:
        for row in rows:
            if row.rule == "timer":
                ctx.set_timer(NOON)
            self.rules["rule"] = row.rule

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        yield key, self.rules.get("rule", "none")


def test_broadcast_state_can_be_read(tmp_path: Path) -> None:
    """As it is after the broadcast rows of the batch; process_broadcast itself has no key to set a timer for."""
    task = cluster(tmp_path, Ruled(), broadcast=arrow_schema("rule string"))
    task.batch(rows(("a", "")))
    assert said(task.batch([], [{"rule": "strict"}], watermark_us=NOON_US)) == ["strict"]
    with pytest.raises(UserCodeError, match=r"in process_broadcast\(\): a timer belongs to a key"):
        task.batch([], [{"rule": "timer"}])


class Columns(ps.BatchProcess):
    """A timer for each key with rows, half of them for the past; sides from timers."""

    late = ps.SideOutput("k string")
    count = ps.ValueState("long", default=0)

    def process_batch(self, keys: Any, batch: Any, state: ps.types.BatchState) -> Any:
        state["count"] = [one + 1 for one in state["count"].to_pylist()]
        if batch["what"][0].as_py() == "set":
            state.set_timers(pa.array([NOON] * len(keys), pa.timestamp("us", "UTC")))
        elif batch["what"][0].as_py() == "some":
            state.set_timers([NOON if key != "a" else None for key in keys["k"].to_pylist()])
        elif batch["what"][0].as_py() == "wrong":
            state.set_timers([NOON], key_index=[7])
        elif batch["what"][0].as_py() == "few":
            state.set_timers([NOON] * (len(keys) + 1))
        elif batch["what"][0].as_py() == "numbers":
            state.set_timers([5] * len(keys))

    def on_timers(self, keys: Any, timers: ps.types.BatchTimers, state: ps.types.BatchState) -> Any:
        state.context.emit("late", {"k": keys["k"]})
        if "again" in keys["k"].to_pylist():
            state.set_timers([moment(0)] * len(keys))
        counts = state["count"].to_pylist()
        state["count"] = [one + 10 for one in counts]
        return {
            "k": keys["k"],
            "what": [f"{one} {at:%H:%M}" for one, at in zip(counts, timers["at"].to_pylist(), strict=True)],
        }


def test_in_columns(tmp_path: Path) -> None:
    """One moment for each key, null for none."""
    task = cluster(tmp_path, Columns(), sides=("late",))
    task.batch(rows(("a", "some"), ("b", "some")))
    assert said(task.batch(rows(("a", "")), watermark_us=NOON_US)) == ["1 12:00"]
    assert task.emitted == [{"k": "b"}]
    assert {row["k"]: row["count"] for row in task.values_stored()} == {"a": 2, "b": 11}


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("wrong", r"set_timers\(\).*key_index\[0\] is 7, which is no position"),
        ("few", r"set_timers\(\).*2 values for 1 key;"),
        ("numbers", r"set_timers\(\) set 'at' to"),
    ],
)
def test_in_columns_what_does_not_fit_is_refused(tmp_path: Path, what: str, match: str) -> None:
    """With what it should be."""
    with pytest.raises(BadRecordError, match=match):
        cluster(tmp_path, Columns()).batch(rows(("a", what)))


def test_in_columns_a_circle_without_an_end_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round after round."""
    monkeypatch.setattr(column_state, "MOST_ROUNDS", 10)
    task = cluster(tmp_path, Columns())
    task.batch(rows(("again", "set")))
    with pytest.raises(UserCodeError, match="10 times in a row: this may never end"):
        task.batch([], watermark_us=NOON_US)


# ── a gap ──────────────────────────────────────────────────────────────────────────────────────


class EverySecond(ps.KeyedProcess):
    """Sets the next timer when one fires, by event time or by the clock."""

    count = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for by in ("event_time", "clock"):
            ctx.set_timer(NOON, by)

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[Any]:
        self.count.value += 1
        ctx.set_timer(timer.at + timedelta(seconds=1), timer.by)
        yield key, str(self.count.value)


class EverySecondInColumns(ps.BatchProcess):
    """The same in columns."""

    count = ps.ValueState("long", default=0)

    def process_batch(self, keys: Any, batch: Any, state: ps.types.BatchState) -> None:
        for by in ("event_time", "clock"):
            state.set_timers([NOON] * len(keys), by=by)

    def on_timers(self, keys: Any, timers: ps.types.BatchTimers, state: ps.types.BatchState) -> Any:
        for at, by, index in zip(
            timers["at"].to_pylist(), timers["by"].to_pylist(), timers.key_index.tolist(), strict=True
        ):
            state.set_timers([at + timedelta(seconds=1)], [index], by=by)
        counts = np.array(state["count"].to_pylist()) + np.bincount(timers.key_index, minlength=len(keys))
        state["count"] = counts.tolist()
        return {"k": keys["k"], "what": [str(count) for count in counts]}


@pytest.mark.parametrize("operator", [EverySecond, EverySecondInColumns])
def test_a_periodic_timer_catches_up_after_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: Any
) -> None:
    """A timer that sets the next one a second later fires for every second of a gap, however long: moments that advance do end."""
    monkeypatch.setattr(timer_cell, "MOST_IN_A_ROW", 20)
    monkeypatch.setattr(column_state, "MOST_ROUNDS", 20)
    task = cluster(tmp_path, operator())
    task.batch(rows(("a", ""), ("b", "")), watermark_us=NOON_US - 1, now_us=NOON_US - 1)
    gap_us = NOON_US + 99_000_000
    given = task.batch([], watermark_us=gap_us, now_us=gap_us)
    assert max(int(row["what"]) for row in given) == 200
    assert task.due == Due(gap_us + 1_000_000, gap_us + 1_000_000)
    with pytest.raises(UserCodeError, match="this may never end"):
        task.batch([], watermark_us=FAR_AWAY_US, now_us=gap_us)


class AlsoLater(EverySecondInColumns):
    """The same, with a timer beside it that fires once, much later: all that is due fires in the first round."""

    def process_batch(self, keys: Any, batch: Any, state: ps.types.BatchState) -> None:
        super().process_batch(keys, batch, state)
        state.set_timers([NOON + timedelta(seconds=99)] * len(keys))

    def on_timers(self, keys: Any, timers: ps.types.BatchTimers, state: ps.types.BatchState) -> Any:
        counts = state["count"].to_pylist()
        for at, by, index in zip(
            timers["at"].to_pylist(), timers["by"].to_pylist(), timers.key_index.tolist(), strict=True
        ):
            if at < NOON + timedelta(seconds=99):
                state.set_timers([at + timedelta(seconds=1)], [index], by=by)
            counts[index] += 1
        state["count"] = counts
        return {"k": keys["k"], "what": [str(count) for count in counts]}


def test_a_periodic_timer_catches_up_beside_one_that_is_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is behind that one in every round, and goes on all the same."""
    monkeypatch.setattr(column_state, "MOST_ROUNDS", 20)
    task = cluster(tmp_path, AlsoLater())
    task.batch(rows(("a", ""), ("b", "")), watermark_us=NOON_US - 1, now_us=NOON_US - 1)
    gap_us = NOON_US + 99_000_000
    given = task.batch([], watermark_us=gap_us, now_us=gap_us)
    assert max(int(row["what"]) for row in given) == 201


# ── keys that Python cannot read ───────────────────────────────────────────────────────────────


class SetsInColumns(ps.BatchProcess):
    """Code in columns need not read a key to set a timer for it."""

    count = ps.ValueState("long", default=0)

    def process_batch(self, keys: Any, batch: Any, state: ps.types.BatchState) -> None:
        state.set_timers([NOON] * len(keys))

    def on_timers(self, keys: Any, timers: ps.types.BatchTimers, state: ps.types.BatchState) -> None: ...


def test_a_timer_of_a_key_that_cannot_be_read_is_a_dead_letter(tmp_path: Path) -> None:
    """Nobody can be called for it, and it is not dropped without a word."""
    cluster = OperatorCluster(tmp_path, OUTPUT, tolerant=True)
    unreadable = pa.array([b"\xff\xfe", b"b"]).cast(pa.string(), safe=False)
    cluster.batch(SetsInColumns(), pa.table({"k": unreadable, "what": ["", ""]}), NOON_US - 1)
    given = cluster.batch(EverySecond(), ROWS.empty_table(), NOON_US)
    assert [row["k"] for row in given] == ["b"]
    (letter,) = [row for batch in cluster.bad.letters() for row in batch.to_pylist()]
    assert "on_timer()" in letter["reason"]
    assert "a value that Python cannot read" in letter["reason"]
    assert json.loads(letter["row"])["timer_at"].startswith("2026-05-01T12:00")
