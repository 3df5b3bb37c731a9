"""Penstock's own operators over state in files, without Spark, played with the scripts that Flink plays.

One millisecond of Flink's is one microsecond here. After some batches all machines are lost and the job goes on with other subtasks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from flink_scripts import Kind
from hypothesis import strategies as st

import penstock as ps
from builders.interval_joins import Join, left_input, right_input, table
from builders.operator_cluster import Operator, OperatorCluster
from builders.time_models import CLOCK, EVENT, Alarm, Batch, Command, Joined, Pair, Row, Sided
from builders.window_operators import (
    CountAggregates,
    CountCalls,
    SessionAggregates,
    SessionCalls,
    WindowAggregates,
    WindowCalls,
    plain,
    rows_table,
)
from penstock.operators.join.spec import How, JoinSpec
from penstock.operators.state.timers import CLOCK as BY_CLOCK
from penstock.operators.state.timers import EVENT_TIME, microseconds, moment
from penstock.operators.window.base import WINDOW_START
from penstock.state.ddl import arrow_schema
from penstock.windows import CountWindows, SessionWindows, TimeWindows

BACKENDS = ["memory", "filesystem", "rocksdb"]
RAM_DISK = Path("/dev/shm")
FORMS = ["aggregates", "code"]


class Chance(Protocol):
    """What happens between batches."""

    def subtasks(self) -> int | None:
        """With how many subtasks the job goes on, on new machines; None: nothing happens."""


class Undisturbed:
    """Nothing happens."""

    def subtasks(self) -> int | None:
        return None


class Drawn:
    """What hypothesis draws."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def subtasks(self) -> int | None:
        return self._data.draw(st.sampled_from([None, None, None, 1, 2, 3]), label="subtasks")


class Played:
    """An operator that goes through batches, each perhaps with another number of subtasks."""

    def __init__(self, folder: str, output: pa.Schema, backend: str, chance: Chance) -> None:
        self._cluster = OperatorCluster(Path(folder), output, backend)
        self._cluster.skips_idle = True
        self._chance = chance

    def batch(self, operator: Operator, rows: pa.Table, watermark: int, now: int = 0) -> list[dict[str, Any]]:
        self._cluster.now_us = now
        given = self._cluster.batch(operator, rows, watermark)
        subtasks = self._chance.subtasks()
        if subtasks is not None:
            self._cluster.merge()
            self._cluster.rescale(subtasks)
        return given


def folder() -> tempfile.TemporaryDirectory[str]:
    """Where its files lie, in memory if possible."""
    return tempfile.TemporaryDirectory(dir=RAM_DISK if RAM_DISK.is_dir() else None)


# ── windows ─────────────────────────────────────────────────────────────────────────────────────


WindowOperator = (
    WindowAggregates | SessionAggregates | CountAggregates | WindowCalls | SessionCalls | CountCalls
)


def windows_of(kind: Kind, form: str) -> WindowOperator:
    """The operator: with `aggregates`, or with own `code` that sees the rows."""
    aggregates = form == "aggregates"
    match kind.name:
        case "count":
            rows = CountWindows(kind.first)
            return CountAggregates(rows) if aggregates else CountCalls(rows)
        case "session":
            sessions = SessionWindows(kind.first)
            return (SessionAggregates if aggregates else SessionCalls)(sessions, kind.lateness)
        case _:
            every = kind.second or kind.first
            windows = TimeWindows(kind.first, every, kind.offset % every)
            return (WindowAggregates if aggregates else WindowCalls)(windows, kind.lateness)


def play_windows(
    kind: Kind, batches: Sequence[Batch], *, form: str, backend: str, chance: Chance
) -> list[tuple[list[str], list[Row]]]:
    """For each batch the results, as `flink_scripts.summed` says them, and the late rows."""
    operator, found = windows_of(kind, form), []
    late: list[Any] = getattr(operator, "late", [])  # those that count rows have none
    with folder() as root:
        played = Played(root, operator.output, backend, chance)
        for batch in batches:
            late.clear()
            given = played.batch(operator, rows_table(batch.rows), batch.watermark)
            found.append((sorted(map(_summed, given)), sorted(Row(*_whole(row)) for row in late)))
    return found


def _summed(result: dict[str, Any]) -> str:
    if WINDOW_START not in result:
        return f"{result['k']} 0 0 {result['total']},{result['n']}"
    (one,) = plain([result])
    return f"{one['k']} {one['start']} {one['end']} {one['total']},{one['n']}"


def _whole(row: tuple[str, int | None, int]) -> tuple[str, int, int]:
    key, time, value = row
    assert time is not None
    return key, time, value


# ── joins ───────────────────────────────────────────────────────────────────────────────────────


def by_interval(lower: int, upper: int, how: How = How.INNER) -> Join:
    """An operator that joins rows that are so far apart."""
    return Join(JoinSpec.by_interval(left_input(), right_input(), lower, upper, how))


def by_window(kind: Kind) -> Join:
    """An operator that joins rows of the same window."""
    every = kind.second or kind.first
    windows = TimeWindows(kind.first, every, kind.offset % every)
    return Join(JoinSpec.by_window(left_input(), right_input(), windows, How.INNER))


def play_join(
    operator: Join, batches: Sequence[tuple[Sequence[Sided], int]], *, backend: str, chance: Chance
) -> list[Joined]:
    """What a join gives in each batch."""
    found = []
    with folder() as root:
        played = Played(root, operator.spec.output, backend, chance)
        for rows, watermark in batches:
            operator.late.clear()
            given = played.batch(operator, table([_travelling(sided) for sided in rows]), watermark)
            pairs = [Pair(one["key"] or one["id"], one["l"], one["r"]) for one in given]
            late = [sided for sided in rows if sided.row.value in operator.late]
            assert len(late) == len(operator.late)
            found.append(Joined(pairs, late))
    return found


def _travelling(sided: Sided) -> tuple[str, str | None, int, int]:
    return "left" if sided.left else "right", sided.row.key, sided.row.time, sided.row.value


# ── timers ──────────────────────────────────────────────────────────────────────────────────────

COMMANDS = arrow_schema("k string, action string, domain string, time long, times long")
ALARMS = arrow_schema("k string, domain string, time long")
KINDS = {EVENT: EVENT_TIME, CLOCK: BY_CLOCK}
DOMAINS = {kind: domain for domain, kind in KINDS.items()}


class Obedient(ps.KeyedProcess):
    """Does what its rows say."""

    times = ps.ValueState("long", default=0)
    later = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for row in rows:
            match row.action:
                case "s":
                    ctx.set_timer(moment(row.time), KINDS[row.domain])
                case "d":
                    ctx.delete_timer(moment(row.time), by=KINDS[row.domain])
                case "again":
                    self.times.value, self.later.value = row.times, row.time

    def on_timer(
        self, key: str, timer: ps.types.Timer, ctx: ps.types.Context
    ) -> Iterator[tuple[str, str, int]]:
        time = microseconds(timer.at, "")
        yield key, DOMAINS[timer.by], time
        if self.times.value:
            self.times.value -= 1
            ctx.set_timer(moment(time + self.later.value), timer.by)


def play_timers(
    batches: Sequence[tuple[Sequence[Command], int, int]], backend: str, chance: Chance
) -> list[list[Alarm]]:
    """The timers that fire in each batch."""
    found = []
    with folder() as root:
        played = Played(root, ALARMS, backend, chance)
        for commands, watermark, now in batches:
            rows = [dict(zip(COMMANDS.names, command, strict=True)) for command in commands]
            given = played.batch(Obedient(), pa.Table.from_pylist(rows, COMMANDS), watermark, now)
            found.append([Alarm(one["k"], one["domain"], one["time"]) for one in given])
    return found
