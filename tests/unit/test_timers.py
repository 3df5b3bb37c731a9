"""Timers of a key fire as in plain Python that knows what was set, on every backend, whatever happens in between."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import OperatorCluster
from builders.timer_stories import OUTPUT, ROWS, Model, RoundsModel, Script, Story, fails, follow_ups
from penstock.operators.state.timers import microseconds, moment
from penstock.state.backends import sorted_state
from penstock.state.lifetimes import FAR_AWAY_US
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]


class Scripted(ps.KeyedProcess):
    """Does what its rows say, and what its timers say; keeps a count and a list."""

    count = ps.ValueState("long", default=0)
    log = ps.ListState("string")
    seen = ps.MapState("string", "long")

    def __init__(self, *, tolerant: bool = False) -> None:
        self.tolerant = tolerant

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        steps = [tuple(step) for row in rows for step in json.loads(row.steps)]
        yield from self.call(key, steps, f"rows {self.count.value}", ctx)

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        at = microseconds(timer.at, "")
        steps: list[Any] = list(follow_ups(timer.by, at))
        if self.tolerant and fails(at):
            steps.append(("fail", timer.by, 0))
        yield from self.call(key, steps, f"timer {timer.by} {at} {self.count.value}", ctx)

    def call(self, key: str, steps: list[Any], what: str, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        self.count.value += 1
        for step, by, at in steps:
            match step:
                case "set":
                    ctx.set_timer(moment(at), by)
                case "delete":
                    ctx.delete_timer(moment(at), by=by)
                case "clear":
                    self.log.clear()
                case _:
                    raise ValueError("as it is told")
            self.log.append(f"{step} {by} {at}")
        self.seen[what] = len(self.log)
        yield key, f"{what} {len(self.log)}"


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 1 << 32), at_first=st.sampled_from([1, 1024]))
@settings(max_examples=share(30), deadline=None)
def test_timers_fire_as_in_plain_python(backend: str, tolerant: bool, seed: int, at_first: int) -> None:
    """Both kinds: set, set again, deleted, in the past, before 1970; with failed calls, merges, crashes and rescales in between."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_state, "FIRST_ROWS", at_first)
        story = Story(
            Path(folder),
            backend,
            lambda: Scripted(tolerant=tolerant),
            Model(tolerant=tolerant),
            tolerant=tolerant,
        )
        story.play(Script(seed, tolerant).events())


class InColumns(ps.BatchProcess):
    """The same in columns. What a key has logged is counted in a list of its own."""

    count = ps.ValueState("long", default=0)
    logged = ps.ValueState("long", default=0)
    log = ps.ListState("string")

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        scripts = [json.loads(steps) for steps in batch["steps"].to_pylist()]
        said = self.calls(batch.key_index.tolist(), [("rows", "", 0)] * len(batch), scripts, state)
        return {"k": keys["k"], "what": said}

    def on_timers(
        self, keys: ps.types.BatchKeys, timers: ps.types.BatchTimers, state: ps.types.BatchState
    ) -> Any:
        assert timers.starts.tolist() == [timers.key_index.tolist().index(at) for at in range(len(keys))]
        moments = [microseconds(at, "") for at in timers["at"].to_pylist()]
        fired = list(zip(["timer"] * len(timers), timers["by"].to_pylist(), moments, strict=True))
        scripts = [follow_ups(by, at) for _, by, at in fired]
        whose = timers.key_index.tolist()
        said = self.calls(whose, fired, scripts, state)
        return {"k": keys["k"].take(timers.key_index), "what": said}

    def calls(
        self, whose: list[int], what: list[Any], scripts: list[Any], state: ps.types.BatchState
    ) -> list[str]:
        counts, logged = state["count"].to_pylist(), state["logged"].to_pylist()
        assert [len(state["log"].rows()) for _ in whose[:1]] == [sum(logged)][: len(whose)]
        said = []
        for key, (name, of, moment_us), steps in zip(whose, what, scripts, strict=True):
            text = f"{name} {counts[key]}" if name == "rows" else f"{name} {of} {moment_us} {counts[key]}"
            counts[key] += 1
            for step, by, at in steps:
                if step == "set":
                    state.set_timers([moment(at)], [key], by)
                elif step == "delete":
                    state.delete_timers([moment(at)], key_index=[key], by=by)
                else:
                    state["log"].clear([one == key for one in range(len(state))])
                    logged[key] = 0
                state["log"].append([key], [step])
                logged[key] += 1
            said.append(f"{text} {logged[key]}")
        state["count"], state["logged"] = counts, logged
        return said


@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=share(30), deadline=None)
def test_timers_in_columns_fire_as_in_plain_python(backend: str, seed: int) -> None:
    """Round by round: what is set for the past while timers fire comes in another call."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Story(Path(folder), backend, InColumns, RoundsModel(tolerant=False)).play(Script(seed).events())


# ── however the input is cut ───────────────────────────────────────────────────────────────────


class Reminder(ps.KeyedProcess):
    """A timer behind every row, of which one sets another; says which fired, and what had been counted by then in event time."""

    times = ps.ListState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for row in rows:
            (at,) = json.loads(row.steps)
            self.times.append(at)
            ctx.set_timer(moment(at + 5))

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        at = microseconds(timer.at, "")
        if at % 3 == 0:
            ctx.set_timer(moment(at + 1))
        yield key, f"{at} after {sum(one <= at for one in self.times)}"


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=share(15), deadline=None)
def test_without_late_rows_the_cut_does_not_matter(seed: int) -> None:
    """Timers in event time fire at the same moments, and see the same rows behind them, however the input is cut into batches."""
    rng = random.Random(seed)
    rows = [(rng.choice("abc"), at) for at in sorted(rng.choices(range(-50, 200), k=40))]

    def results(batches: int) -> list[Any]:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            cluster = OperatorCluster(Path(folder), OUTPUT)
            cluster.skips_idle = True
            given: list[Any] = []
            borders = sorted(rng.sample(range(len(rows)), batches))
            for start, stop in pairwise([0, *borders, len(rows)]):
                part = [{"k": key, "steps": json.dumps([at])} for key, at in rows[start:stop]]
                shown = rows[start - 1][1] - 1 if start else -100
                given += cluster.batch(Reminder(), pa.Table.from_pylist(part, ROWS), shown)
            given += cluster.batch(Reminder(), ROWS.empty_table(), FAR_AWAY_US)
            return sorted((row["k"], row["what"]) for row in given)

    assert results(1) == results(4) == results(15)
