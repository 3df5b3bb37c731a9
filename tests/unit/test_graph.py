"""What the user may write in a job, read once and in one way."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.errors import ConfigError
from penstock.graph import Graph, Source
from penstock.operators.row_order import Order, parse_order


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


def test_a_uid_is_used_once():
    """The error says what has it, in words that are read."""
    graph, frame = Graph(), cast("Any", None)
    graph.sources.append(Source(graph.new_uid("source", "views"), frame, None))
    with pytest.raises(ConfigError, match="used twice, by a source and an operator; state and transactions"):
        graph.new_uid("operator", "views")
