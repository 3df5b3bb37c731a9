"""Scripts of rows, event time and the clock, with what may happen in between; and the plain Python that says which timers fire."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.operator_cluster import Operator, OperatorCluster
from penstock.operators.state.timers import CLOCK, EVENT_TIME, KINDS
from penstock.state.ddl import arrow_schema
from penstock.state.lifetimes import FAR_AWAY_US

ROWS = arrow_schema("k string, steps string")
OUTPUT = arrow_schema("k string, what string")
KEYS = ("a", "b", "c", "d", "e", "f")
LONG_US = 400 * 86_400 * 1_000_000
Step = tuple[str, str, int]
"""What to do, by which time, at which moment."""
Timer = tuple[str, int]


def table_of(rows: dict[str, list[Step]]) -> pa.Table:
    """One row for each step, or for none."""
    return pa.Table.from_pylist([{"k": key, "steps": json.dumps(steps)} for key, steps in rows.items()], ROWS)


@dataclass
class Waiting:
    """What one key has, as Python would have it."""

    timers: set[Timer] = field(default_factory=set)
    count: int = 0
    log: list[str] = field(default_factory=list)


def follow_ups(by: str, at: int) -> list[Step]:
    """What a timer does when it fires, a function of the timer alone. It comes to an end: each sets one that is less often divided."""
    steps: list[Step] = []
    if at % 6 == 0:
        steps.append(("set", by, at + 1))
    if at % 10 == 0:
        steps.append(("set", CLOCK if by == EVENT_TIME else EVENT_TIME, at - 7))
    if at % 5 == 0:
        steps += [("delete", by, at + 2), ("delete", by, at - 1)]
    if at % 9 == 0:
        steps += [("set", by, at - 1), ("delete", by, at - 1)]
    if at % 8 == 0:
        steps += [("set", by, at + LONG_US + 1), ("clear", by, 0)]
    return steps


def fails(at: int) -> bool:
    return at % 7 == 3


class Model:
    """The keys, and how far time has come."""

    def __init__(self, *, tolerant: bool) -> None:
        self.keys: dict[str, Waiting] = {}
        self.reached = {EVENT_TIME: -FAR_AWAY_US, CLOCK: 0}
        self.tolerant = tolerant
        self.bad: list[str] = []

    def batch(self, rows: dict[str, list[Step]], watermark: int, now: int) -> dict[str, list[str]]:
        """What each key gives, in order."""
        self.reached = {
            EVENT_TIME: max(watermark, self.reached[EVENT_TIME]),
            CLOCK: max(now, self.reached[CLOCK]),
        }
        given: dict[str, list[str]] = {}
        for key in sorted(set(rows) | set(self.keys)):
            before = copy.deepcopy(self.keys.get(key, Waiting()))
            one = copy.deepcopy(before)
            said: list[str] = []
            if key in rows:
                said, failed = self._call(one, rows[key], f"rows {one.count}")
                if failed:
                    one, said = before, []
                    self.bad.append(key)
            said += self._fire(key, one)
            self.keys[key] = one
            if said:
                given[key] = said
        return given

    def _fire(self, key: str, one: Waiting) -> list[str]:
        said: list[str] = []
        while due := [timer for timer in one.timers if timer[1] <= self.reached[timer[0]]]:
            by, at = min(due, key=lambda timer: (KINDS.index(timer[0]), timer[1]))
            one.timers.discard((by, at))
            before = copy.deepcopy(one)
            text, failed = self._call(one, self._steps(by, at), f"timer {by} {at} {one.count}")
            if failed:
                one.timers, one.count, one.log = before.timers, before.count, before.log
                self.bad.append(f"{key} {by} {at}")
            said += [] if failed else text
        return said

    def _steps(self, by: str, at: int) -> list[Step]:
        steps = follow_ups(by, at)
        return [*steps, ("fail", by, 0)] if self.tolerant and fails(at) else steps

    def _call(self, one: Waiting, steps: list[Step], what: str) -> tuple[list[str], bool]:
        one.count += 1
        for step, by, at in steps:
            match step:
                case "set":
                    one.timers.add((by, at))
                case "delete":
                    one.timers.discard((by, at))
                case "clear":
                    one.log.clear()
                case _:
                    return [], True
            one.log.append(f"{step} {by} {at}")
        return [f"{what} {len(one.log)}"], False

    @property
    def waiting(self) -> dict[str, list[tuple[str, int]]]:
        """All timers by kind, with their key."""
        return {
            by: sorted((key, at) for key, one in self.keys.items() for of, at in one.timers if of == by)
            for by in KINDS
        }


class RoundsModel(Model):
    """The same where all timers of a key that are due fire together, and those that they set for the past in another round."""

    def _fire(self, key: str, one: Waiting) -> list[str]:
        del key
        said: list[str] = []
        while due := {timer for timer in one.timers if timer[1] <= self.reached[timer[0]]}:
            one.timers -= due
            for by, at in sorted(due, key=lambda timer: (KINDS.index(timer[0]), timer[1])):
                said += self._call(one, follow_ups(by, at), f"timer {by} {at} {one.count}")[0]
        return said


@dataclass
class Script:
    """What is to happen, from one seed: all steps of the operator, and what comes between its batches."""

    seed: int
    tolerant: bool = False

    def events(self) -> Iterator[tuple[str, Any]]:
        rng = random.Random(self.seed)
        scale = rng.choice([1, 1, 1_000_000, LONG_US])
        watermark, now = rng.choice([-50, 0]) * scale, 0
        for _ in range(rng.randint(3, 14)):
            what = rng.choice(["batch"] * 6 + ["merge", "merge", "checkpoint", "crash", "rescale"])
            if what != "batch":
                yield what, rng.randint(1, 4)
                continue
            watermark += rng.choice([0, 0, 3, 12, 40]) * scale
            now += rng.choice([0, 3, 12, 40]) * scale
            rows = {
                key: [self._step(rng, watermark if by == EVENT_TIME else now, scale, by) for by in many]
                for key in rng.sample(KEYS, rng.choice([0, 0, 1, 3, 6]))
                for many in [rng.choices(KINDS, k=rng.randint(0, 6))]
            }
            yield "batch", (rows, watermark, now)
        if rng.random() < 0.5:
            yield "batch", ({}, FAR_AWAY_US, now + LONG_US * 100)

    def _step(self, rng: random.Random, reached: int, scale: int, by: str) -> Step:
        if self.tolerant and rng.random() < 0.1:
            return "fail", by, 0
        at = reached + rng.choice([-400, -40, -3, 0, 1, 2, 3, 5, 12, 20, 30, 40]) * scale
        return rng.choice(["set", "set", "set", "delete"]), by, at


class Story:
    """A cluster and a model that live through the same; after a crash what came since the checkpoint happens again."""

    def __init__(
        self, root: Path, backend: str, make: Callable[[], Operator], model: Any, **options: bool
    ) -> None:
        self.cluster = OperatorCluster(root, OUTPUT, backend, **options)
        self.cluster.skips_idle = True
        self._make, self.model = make, model
        self._since: list[tuple[str, Any]] = []
        self._kept = self.cluster.checkpoint(), copy.deepcopy(model)

    def play(self, events: Iterator[tuple[str, Any]]) -> None:
        for what, how in events:
            self._happens(what, how)
        self.check()

    def _happens(self, what: str, how: Any) -> None:
        if what == "checkpoint":
            self._since = []
            self._kept = self.cluster.checkpoint(), copy.deepcopy(self.model)
        elif what == "crash":
            self.cluster.go_back(self._kept[0])
            self.cluster.now_us = self.cluster.clock.now_us
            self.model = copy.deepcopy(self._kept[1])
            for one, again in self._since:
                getattr(self, f"_on_{one}")(again)
        else:
            self._since.append((what, how))
            getattr(self, f"_on_{what}")(how)

    def _on_batch(self, how: tuple[dict[str, list[Step]], int, int]) -> None:
        rows, watermark, now = how
        self.cluster.now_us = now
        seen: dict[str, list[str]] = {}
        for row in self.cluster.batch(self._make(), table_of(rows), watermark):
            seen.setdefault(row["k"], []).append(row["what"])
        assert seen == self.model.batch(rows, watermark, now)
        due = self.cluster.due
        for first, by in ((due.event_us, EVENT_TIME), (due.clock_us, CLOCK)):
            waiting = [at for _, at in self.model.waiting[by]]
            assert not waiting or (first is not None and first <= min(waiting))

    def _on_rescale(self, parallelism: int) -> None:
        self.cluster.rescale(parallelism)
        assert self.cluster.batch(self._make(), table_of({})) == []  # every subtask freezes once

    def _on_merge(self, seed: int) -> None:
        rng = random.Random(seed)

        def anything(refs: Any, _now: Any) -> range | None:
            first, last = sorted(rng.sample(range(len(refs) + 1), 2)) if refs else (0, 0)
            return range(first, last) if last > first else None

        self.cluster.merge(anything)

    def check(self) -> None:
        """What is stored is what waits, and nothing else."""
        if not self.model.keys:
            return
        for by, table in ((EVENT_TIME, "__timers"), (CLOCK, "__clock_timers")):
            stored = sorted((row["k"], row["__at"]) for row in self.cluster.rows_in(table))
            assert stored == self.model.waiting[by]
