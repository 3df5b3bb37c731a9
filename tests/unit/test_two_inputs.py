"""What can be said of joins, lookups and dedupe before anything starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

import penstock as ps
from penstock.graph import Graph, Late, Source, TimeSettings
from penstock.keyed_streams import KeyedStream
from penstock.operators.base import Node
from penstock.operators.dedupe import Dedupe
from penstock.operators.join.lookup import Lookup
from penstock.operators.join.spec import How, Join
from penstock.streams import Stream

MINUTE_US = 60_000_000
TIME = TimeSettings("at", 0, None, None)
SOURCE = cast("Node", Source("source", cast("Any", None), None, TIME))


def two(time: TimeSettings | None = TIME) -> tuple[Stream, Stream]:
    """Two streams of a job."""
    graph = Graph()
    one, other = (Stream(graph, Source(name, cast("Any", None), None, time)) for name in ("one", "other"))
    return one, other


def node_of(stream: Stream) -> Any:
    return stream._node


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        (("-5min", "10min"), (-5 * MINUTE_US, 10 * MINUTE_US)),
        (("0s", "0s"), (0, 0)),
        (("- 5 min", "-1min"), (-5 * MINUTE_US, -MINUTE_US)),
        (("+1min", timedelta(minutes=2)), (MINUTE_US, 2 * MINUTE_US)),
        ([timedelta(minutes=-1), "1min"], (-MINUTE_US, MINUTE_US)),
        ("unbounded", None),
    ],
)
def test_bounds_of_a_join(within: Any, expected: tuple[int, int] | None) -> None:
    """Durations with a sign, the earlier one first."""
    left, right = two()
    node = node_of(left.join(right, on="k", within=within, uid="join"))
    assert isinstance(node, Join)
    assert (node.within_us, node.how, node.keys, node.right.keys) == (expected, How.INNER, ("k",), ("k",))


def test_keys_of_both_streams() -> None:
    """One name, several, pairs, and a mixture of them."""
    left, right = two()
    node = node_of(left.join(right, on=["k", ("a", "b")], within="unbounded", uid="join"))
    assert (node.keys, node.right.keys) == (("k", "a"), ("k", "b"))
    looked_up = node_of(left.lookup(right, on=[("a", "b")], ttl="1h", uid="lookup"))
    assert isinstance(looked_up, Lookup)
    assert (looked_up.keys, looked_up.right.keys, looked_up.inner) == (("a",), ("b",), False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "within is missing: without bounds all rows of both streams would have to be kept for ever"),
        ({"within": "10min"}, "it takes two durations"),
        ({"within": ("10min", "5min")}, "the first bound is later than the second"),
        ({"within": ("x", "5min")}, "within='x' is not a duration"),
        ({"within": ("-2000000d", "5min")}, "is longer than 1,000 years"),
        ({"within": ("0s", "1s"), "how": "outer"}, "how='outer' is unknown"),
        ({"within": "unbounded", "how": "left"}, "never known that one has no partner"),
        ({"within": "unbounded", "at": "joined_at"}, "never known that one has no partner"),
        ({"within": ("0s", "1s"), "window": ps.windows.tumbling("1h")}, "both within= and window="),
        ({"window": ps.windows.session("1h")}, "it takes ps.windows.tumbling"),
        ({"window": ps.windows.tumbling("1h"), "at": "joined_at"}, "window_end; leave it out"),
        ({"within": ("0s", "1s"), "on": []}, "it takes the key column that both streams have"),
        ({"within": ("0s", "1s"), "on": [("a", "b", "c")]}, "it takes the key column that both streams have"),
        ({"within": ("0s", "1s"), "on": ["k", ("k", "b")]}, "a column is named twice"),
        *(
            ({"within": ("0s", "1s"), "event_time": wrong}, "event_time=.*or a pair of names")
            for wrong in (("a",), ("a", "b", "c"), (), ["a", "b"], 5, "", ("a", ""), (5, "b"))
        ),
        *(({"within": ("0s", "1s"), "at": wrong}, "at=.*the name of the column") for wrong in ("", 5)),
    ],
)
def test_wrong_joins_are_refused(more: dict[str, Any], said: str) -> None:
    """The refusal says what is wrong, and what to write."""
    left, right = two()
    with pytest.raises(ps.ConfigError, match=said):
        left.join(right, **{"on": "k", "uid": "join", **more})


@pytest.mark.parametrize(
    ("given", "expected"),
    [("a", ("a", "a")), (("a", "b"), ("a", "b")), ((None, "b"), (None, "b")), (None, (None, None))],
)
def test_event_times_of_a_join(given: Any, expected: tuple[str | None, str | None]) -> None:
    """One name for both streams, or one for each; None is what the source says."""
    left, right = two()
    node = node_of(left.join(right, on="k", within=("0s", "1s"), event_time=given, uid="join"))
    assert (node.event_time, node.right.event_time) == expected


def test_streams_that_are_not_joined() -> None:
    """A key is said with on=, and both belong to one job."""
    left, right = two()
    with pytest.raises(ps.ConfigError, match="without key_by"):
        left.join(cast("Any", right.key_by("k")), on="k", within=("0s", "1s"), uid="join")
    with pytest.raises(ps.ConfigError, match="without key_by"):
        left.lookup(cast("Any", right.key_by("k")), on="k", uid="lookup")
    with pytest.raises(ps.ConfigError, match="belong to the same job"):
        left.join(two()[1], on="k", within=("0s", "1s"), uid="join")
    with pytest.raises(ps.ConfigError, match="choose 'left' or 'inner'"):
        left.lookup(right, on="k", how="full", uid="lookup")
    with pytest.raises(ps.ConfigError, match="by the clock"):
        left.lookup(right, on="k", ttl=ps.TimeToLive("1h", since="read"), uid="lookup")


def test_late_rows_of_each_input() -> None:
    """Of a join one stream for each input, of dedupe one, of others none. A join has no bad rows."""
    left, right = two()
    joined = left.join(right, on="k", within=("0s", "1s"), uid="join")
    late = node_of(joined.late("right"))
    assert isinstance(late, Late)
    assert late.input == "right"
    with pytest.raises(ps.ConfigError, match=r"ask for late\('left'\) or late\('right'\)"):
        joined.late()
    once = left.dedupe(on="k", within="1h", uid="once")
    assert isinstance(node_of(once), Dedupe)
    assert isinstance(node_of(once.late()), Late)
    with pytest.raises(ps.ConfigError, match="has one input"):
        once.late("left")
    with pytest.raises(ps.ConfigError, match="no row is too late"):
        left.lookup(right, on="k", uid="lookup").late()
    with pytest.raises(ps.ConfigError, match="has no bad rows"):
        joined.bad_records()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"within": "0s"}, "too short"),
        ({"within": "2000000d"}, "longer than 1,000 years"),
        ({"on": []}, "names of one or more columns"),
        ({"on": ["k", "k"]}, "each once"),
        ({"event_time": ""}, "event_time='': it takes the name of a column"),
        ({"event_time": ("a", "b")}, "it takes the name of a column"),
    ],
)
def test_wrong_dedupes_are_refused(more: dict[str, Any], said: str) -> None:
    """Before anything starts."""
    with pytest.raises(ps.ConfigError, match=said):
        two()[0].dedupe(**{"on": "k", "within": "1h", "uid": "once", **more})


class One(ps.KeyedProcess):
    def process(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        """Nothing."""


class Both(ps.KeyedCoProcess):
    def process_left(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        """Nothing."""

    def process_right(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        """Nothing."""


class Own(Both):
    def process(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> Any:
        """Would hide both."""


class Short(Both):
    def process_right(self, key: Any, rows: ps.types.Rows) -> None:  # type: ignore[override]
        """Lacks the context."""


def test_own_code_fits_the_number_of_streams() -> None:
    """A KeyedCoProcess needs two, all others take one."""
    left, right = two()
    keyed: Any = KeyedStream(Graph(), SOURCE, ("k",))
    connected: Any = left.connect(right).key_by("k")
    told: dict[str, Any] = {"schema": "k string", "uid": "op"}
    with pytest.raises(ps.ConfigError, match="which needs two streams"):
        keyed.process(Both(), **told)
    with pytest.raises(ps.ConfigError, match="make it a KeyedCoProcess"):
        connected.process(One(), **told)
    with pytest.raises(ps.ConfigError, match="would not see which stream a row is of"):
        connected.process(Own(), **told)
    with pytest.raises(ps.ConfigError, match=r"process_right\(self, key, rows, ctx\)"):
        connected.process(Short(), **told)
    node = node_of(connected.process(Both(), right_order_by="at desc", **told))
    assert node.right.order_by[0].descending


def test_event_time_that_no_source_has_is_refused() -> None:
    """Rows would be kept for ever."""
    left, right = two(None)
    with pytest.raises(ps.ConfigError, match="would be kept for ever"):
        left.join(right, on="k", within=("0s", "1s"), event_time="at", uid="join")
    with pytest.raises(ps.ConfigError, match="would be kept for ever"):
        left.dedupe(on="k", within="1s", event_time="at", uid="once")
    left.join(right, on="k", within="unbounded", uid="all")
