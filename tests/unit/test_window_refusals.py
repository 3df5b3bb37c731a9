"""What is wrong about a window is said before anything starts, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.graph import Graph, Source, TimeSettings
from penstock.keyed_streams import KeyedStream
from penstock.operators.window.operator import Window
from penstock.windows import SessionWindows, TimeWindows

TIME = TimeSettings("at", 0, None, None)


def stream(*keys: str, time: TimeSettings | None = TIME) -> KeyedStream:
    return KeyedStream(Graph(), Source("rows", cast("Any", None), None, time), keys or ("shop",))


class Sums(ps.WindowProcess):
    def process(
        self, key: Any, window: ps.types.TimeWindow | None, rows: ps.types.Rows, ctx: ps.types.Context
    ) -> None: ...


class Short(ps.WindowProcess):
    def process(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...  # type: ignore[override]


class WithState(Sums):
    total = ps.ValueState("long")


def processed(operator: Any, **window: Any) -> ps.types.Stream:
    windowed = stream().window(ps.windows.tumbling("1min"), **window)
    return windowed.process(operator, schema="k string", uid="w")


GRAPH = Graph()
COUNT: Any = None
"""Refused before anybody looks at it."""


def updated(lateness_us: int = 0, early_us: int | None = None) -> ps.types.Stream:
    """Results of windows."""
    rows = Source("rows", cast("Any", None), None, TIME)
    windows = TimeWindows(60_000_000, 60_000_000)
    return ps.types.Stream(GRAPH, Window("first", rows, ("shop",), windows, lateness_us, early_us))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "size": (lambda: ps.windows.tumbling("0s"), "size='0s' is too short"),
    "tiny": (lambda: ps.windows.tumbling("0.0001ms"), "at least a microsecond"),
    "gap": (lambda: ps.windows.session(timedelta(seconds=-1)), "gap=.* is too short"),
    "every": (lambda: ps.windows.sliding("1min", "0s"), "every='0s' is too short"),
    "gaps": (lambda: ps.windows.sliding("1min", "2min"), "less often than they are long"),
    "overlaps": (lambda: ps.windows.sliding("1d", "1s"), "each row would be in 86,400 windows"),
    "long": (lambda: ps.windows.tumbling("400000d"), "longer than 1,000 years"),
    "rows": (lambda: ps.windows.count(0), "n=0 is not allowed"),
    "kind": (lambda: stream().window(cast("Any", "1min")), "it takes one of ps.windows.tumbling"),
    "lateness": (
        lambda: stream().window(ps.windows.tumbling("1min"), lateness=timedelta(seconds=-1)),
        "lateness=.* is too short",
    ),
    "early": (lambda: stream().window(ps.windows.tumbling("1min"), early="0s"), "early='0s' is too short"),
    "count": (lambda: stream().window(ps.windows.count(3), lateness="1s"), "rows alone decide"),
    "time": (lambda: stream().window(ps.windows.tumbling("1min"), event_time=""), "the name of a column"),
    "code": (lambda: processed(Sums), r"a WindowProcess subclass; write Sums\(\)"),
    "parameters": (lambda: processed(Short()), "cannot be called with key, window, rows, ctx"),
    "state": (lambda: processed(WithState()), "which has no state of its own"),
    "overlaps of a day": (
        lambda: ps.windows.sliding("2001s", "1s"),
        r"each row would be in 2,001 windows, more than 2,000",
    ),
    "windows of updates": (
        lambda: (
            updated(lateness_us=5)
            .key_by("shop")
            .window(ps.windows.tumbling("1h"))
            .process(Sums(), schema="k string", uid="w")
        ),
        "'w' would add up every result of the window 'first', which has lateness and so",
    ),
    "aggregates of early results": (
        lambda: (
            updated(early_us=5)
            .transform(lambda frame: frame)
            .union(updated())
            .key_by("shop")
            .aggregate(n=COUNT, uid="w")
        ),
        "which has early .* Aggregate the rows before.* leave early out there$",
    ),
    "windows of both": (
        lambda: updated(5, 5).key_by("shop").window(ps.windows.count(2)).aggregate(n=COUNT, uid="w"),
        "which has lateness and early",
    ),
    "early code": (lambda: processed(Sums(), early="1s"), "early is for aggregate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    """With the value and what to do."""
    make, said = REFUSED[name]
    with pytest.raises(ps.ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    "windows", [ps.windows.tumbling("1min"), ps.windows.sliding("2min", "1min"), ps.windows.session("1min")]
)
@pytest.mark.parametrize("named", [None, "at"])
def test_windows_of_time_need_a_source_with_event_time(windows: Any, named: str | None) -> None:
    """A column that is named behind it moves no watermark, so that no window would close."""
    windowed = stream(time=None).window(windows, event_time=named)
    said = r"none of them would ever close; write job.read\(..., event_time='column'\)"
    with pytest.raises(ps.ConfigError, match=said):
        windowed.process(Sums(), schema="k string", uid="w")
    with pytest.raises(ps.ConfigError, match=said):
        windowed.aggregate(uid="a", n=cast("Any", None))


def test_windows_of_rows_need_no_event_time() -> None:
    """They close when they are full."""
    counted = stream(time=None).window(ps.windows.count(3)).process(Sums(), schema="k string", uid="w")
    assert isinstance(counted, ps.types.Stream)


def test_late_rows_are_asked_of_what_has_any() -> None:
    """An aggregate over everything takes every row."""
    counted = processed(Sums())
    assert isinstance(counted.late(), ps.types.Stream)
    with pytest.raises(ps.ConfigError, match="for other parts of a stream no row is too late"):
        ps.types.Stream(Graph(), Source("rows", cast("Any", None), None)).late()


def test_kinds_are_plain_values() -> None:
    """Two that say the same are the same, and tasks get them."""
    assert ps.windows.tumbling("1min", offset="61s") == TimeWindows(60_000_000, 60_000_000, 1_000_000)
    assert ps.windows.sliding("10min", "1min") == TimeWindows(600_000_000, 60_000_000)
    assert pickle.loads(pickle.dumps(ps.windows.session("30min"))) == SessionWindows(1_800_000_000)


def test_windows_of_windows_with_one_result_are_taken() -> None:
    """Each window of a window without lateness and early is added once; own code may stand between windows with them."""
    behind = updated().key_by("shop").window(ps.windows.tumbling("1h"))
    assert isinstance(behind.process(Sums(), schema="k string", uid="behind"), ps.types.Stream)
    newest = updated(5).key_by("shop").process(Newest(), schema="shop string", uid="newest")
    behind = newest.key_by("shop").window(ps.windows.count(2))
    assert isinstance(behind.process(Sums(), schema="k string", uid="own"), ps.types.Stream)


class Newest(ps.KeyedProcess):
    def process(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


def test_windows_of_everything_are_aggregated_only() -> None:
    """Without a key, rows that cannot be reduced before would all go to one subtask; and no row is bad."""
    every = ps.types.Stream(
        Graph(), Source("clicks", cast("Any", None), None, TimeSettings("at", 0, None, None))
    )
    with pytest.raises(ConfigError, match="one subtask would have to count all rows"):
        every.window(ps.windows.count(3))
    with pytest.raises(ConfigError, match="one subtask's work over all rows"):
        every.window(ps.windows.tumbling("1min")).process(Sums(), schema="k string", uid="w")
    counted = every.window(ps.windows.tumbling("1min")).aggregate(n=COUNT, uid="w")
    with pytest.raises(ConfigError, match="has no key, and no bad rows either"):
        counted.bad_records()
