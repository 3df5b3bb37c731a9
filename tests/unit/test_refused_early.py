"""Wrong use of state, streams and orders is refused with what to write instead, before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.graph import Graph, Source
from penstock.keyed_streams import KeyedStream
from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial
from penstock.operators.aggregate.distinct import aggregate_layout
from penstock.operators.state.cells import StateAssignedError
from penstock.operators.values.row_order import parse_orders
from penstock.run.task_failures import tolerates
from penstock.spark.operators.process import check_broadcast_names
from penstock.streams import Stream

SOURCE: Any = Source("in", None, None)  # type: ignore[arg-type]  # nobody looks into it
COUNTED = AggregateColumn("n", Kind.COUNT, (Partial("__n_count", Kind.COUNT, pa.int64()),), pa.int64())
UNIQUE = replace(COUNTED, name="uv", distinct=(pa.string(),))


class Known(ps.KeyedProcess):
    known = ps.ValueState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        """Nothing."""


def test_pythons_own_types_are_named_as_sparks() -> None:
    """Whoever writes str is told to write 'string'."""
    with pytest.raises(ConfigError, match="for Python's str write 'string'"):
        ps.MapState(str, "long")  # type: ignore[arg-type]


def test_an_order_is_text() -> None:
    """A column of PySpark's is none."""
    with pytest.raises(ConfigError, match=r"by=.*it takes names of columns, such as 'at desc'"):
        parse_orders(object(), "by")  # type: ignore[arg-type]


def test_what_connect_takes() -> None:
    """Both streams have a key, or none has: the error says what to write. They belong to one job."""
    keyed, stream = KeyedStream(Graph(), SOURCE, ("k",)), Stream(Graph(), SOURCE)
    with pytest.raises(ConfigError, match=r"connect\(KeyedStream\).*left.connect\(right\).key_by"):
        stream.connect(keyed)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"connect\(Stream\).*right.key_by"):
        keyed.connect(stream)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="belong to the same job"):
        stream.connect(Stream(Graph(), SOURCE)).key_by("k")


def test_a_class_is_no_operator() -> None:
    """It has to be made."""
    with pytest.raises(ConfigError, match=r"write Known\(\)"):
        KeyedStream(Graph(), SOURCE, ("k",)).process(Known, schema="k string", uid="known")  # type: ignore[arg-type]


def test_a_key_with_the_name_of_the_stamp() -> None:
    """There would be two columns of one name."""
    key = pa.schema([("__touched", pa.string())])
    with pytest.raises(ConfigError, match=r"'__touched'.*rename the column"):
        aggregate_layout((COUNTED,), key, ps.TimeToLive("1h"))


def test_two_columns_of_one_name_on_a_broadcast_side() -> None:
    """They could not be told apart."""
    with pytest.raises(ConfigError, match="two columns called 'a'"):
        check_broadcast_names("fraud", ["a", "b", "a"])


def test_an_assignment_to_state_is_about_no_row() -> None:
    """No other row would do better, so that nothing is skipped for it."""
    assert not tolerates(StateAssignedError("known is state"))
    assert tolerates(ValueError("of the row"))
