"""What the user may write in a job, read once and in one way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import ConfigError
from penstock.graph import Graph, Late, Output, Source
from penstock.operators.aggregate.operator import Aggregate
from penstock.operators.dedupe import Dedupe
from penstock.operators.values.row_order import Order, parse_order
from penstock.operators.window.operator import Window
from penstock.sinks.two_phase_commit import Delivery
from penstock.status.plan import plan_nodes
from penstock.windows import CountWindows, SessionWindows, TimeWindows


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ("ts", Order("ts")),
        ("ts asc", Order("ts")),
        (" ts   DESC ", Order("ts", descending=True)),
        ("`event time` desc", Order("event time", descending=True)),
        ("`a``b`", Order("a`b")),
        ("a.b desc", Order("a.b", descending=True)),
        ("`desc`", Order("desc")),
    ],
)
def test_an_order_is_a_column_and_a_direction(given, order):
    """A column is ordered upwards unless desc follows; names with spaces stand in backticks."""
    assert parse_order(given) == order


@pytest.mark.parametrize(
    "given", ["ts descending", "ts down", "event time", "", "`ts", "ts desc desc", 5, None]
)
def test_what_is_no_order_is_refused(given):
    """A direction that is not understood is never taken for the usual one."""
    with pytest.raises(ConfigError, match="asc or desc"):
        parse_order(given)


def test_which_rows_are_counted_behind_a_partial_aggregation():
    """Those of aggregates and of windows with aggregates, as far as Spark groups them: not those of windows of so many rows."""
    any_column = cast("dict[str, Any]", {"n": None})
    graph, source = Graph(), Source("clicks", cast("Any", None), None)
    graph.sources.append(source)
    graph.operators += [
        Aggregate("totals", source, ("app",), any_column),
        Window("minutes", source, ("app",), TimeWindows(60, 60), columns=any_column),
        Window("sessions", source, ("app",), SessionWindows(60), columns=any_column),
        Window("tens", source, ("app",), CountWindows(10), columns=any_column),
        Window("own", source, ("app",), TimeWindows(60, 60)),
        Dedupe("once", source, ("app",), 60),
    ]
    nodes = plan_nodes(graph, {}, parallelism=1)
    assert [node.uid for node in nodes if node.partly_aggregated] == ["totals", "minutes", "sessions"]


def test_a_uid_is_used_once():
    """The error says what has it, in words that are read."""
    graph, frame = Graph(), cast("Any", None)
    graph.sources.append(Source(graph.new_uid("source", "views"), frame, None))
    with pytest.raises(ConfigError, match="used twice, by a source and an operator; state and transactions"):
        graph.new_uid("operator", "views")


def test_what_an_operator_gives_beside_its_results_hangs_below_it():
    """Late rows are those of the operator that they come too late for, and not of the source that they were read from."""
    graph, source = Graph(), Source("clicks", cast("Any", None), None)
    window = Window(
        "minutes", source, ("app",), TimeWindows(60, 60), columns=cast("dict[str, Any]", {"n": None})
    )
    graph.sources.append(source)
    graph.operators.append(window)
    sink = cast("Any", SimpleNamespace(delivery=Delivery.TRANSACTIONAL, explanation=""))
    graph.outputs += [Output("out", window, sink), Output("late-out", Late(window), sink)]
    inputs = {node.uid: node.inputs for node in plan_nodes(graph, {}, parallelism=1)}
    assert inputs["late-out"] == inputs["out"] == ("minutes",)
