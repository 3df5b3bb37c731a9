"""Own code and sinks that cannot be sent to tasks are refused before anything starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from pyspark import cloudpickle

import penstock as ps
from penstock.graph import Graph, Source
from penstock.spark.inspection import check_pickles
from penstock.streams import Stream

LOCK = threading.Lock()


class Holding(ps.KeyedProcess):
    """Has what it is given."""

    def __init__(self, held: object) -> None:
        self.limit = 5
        self.held = held

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        yield key, self.limit


class UsingAGlobal(Holding):
    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        with LOCK:
            yield key, self.limit


def stream() -> tuple[Graph, Stream]:
    graph = Graph()
    return graph, Stream(graph, Source("read", cast("Any", None), None, None))


@pytest.fixture
def by_value() -> Iterator[None]:
    """As from a script."""
    module = __import__(__name__)
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (Holding({"lock": LOCK}), r"operator 'mine': a Holding is pickled .* attribute self.held \(dict\)"),
        (
            UsingAGlobal(5),
            r"operator 'mine': a UsingAGlobal is pickled .* the global LOCK \(lock\) cannot be",
        ),
    ],
)
def test_an_operator_that_cannot_be_pickled_is_refused(operator: Holding, said: str) -> None:
    """The refusal names the operator, and the attribute or global name that is at fault."""
    graph, rows = stream()
    rows.key_by("k").process(operator, schema="k string, n long", uid="mine")
    with pytest.raises(ps.ConfigError, match=said):
        check_pickles(graph)


@pytest.mark.usefixtures("by_value")
def test_a_sink_that_cannot_be_pickled_is_refused() -> None:
    """The same of a function in a sink; what can be pickled passes."""
    graph, rows = stream()
    rows.key_by("k").process(Holding([1]), schema="k string, n long", uid="mine")
    check_pickles(graph)
    sink = ps.sinks.Foreach(lambda rows, context: LOCK.acquire())
    rows.write_to(sink, uid="out")
    with pytest.raises(ps.ConfigError, match="sink 'out': a Foreach is pickled into tasks"):
        check_pickles(graph)
