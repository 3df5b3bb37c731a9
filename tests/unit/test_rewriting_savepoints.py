"""What can be written into a savepoint, and what `rewrite_savepoint` changes beside rows: positions of sources, and names."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.checkpoint.model import Barrier, SourceFile, SourceTime, TimeReached
from penstock.checkpoint.state_columns import columns_of, stored_layout
from penstock.errors import ConfigError, IncompatibleStateError, PenstockError
from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial
from penstock.operators.aggregate.distinct import AGGREGATES
from penstock.operators.window.count import CountSpec
from penstock.spark.savepoint_rewriting import moved_to, renamed_time
from penstock.spark.savepoint_rows import OperatorRows
from penstock.state.backends.base import StateLayout
from penstock.windows import CountWindows

KAFKA = '{"views":{"0":100,"1":100}}'
FILES = '{"logOffset":3}'
NOTES = tuple(SourceFile(f"{number}/0", f"sources/{number}", 7, "aa") for number in (0, 1, 2))
BARRIER = Barrier(
    {"clicks": {"views": {"0": 100, "1": 100}}, "files": {"logOffset": 3}, "pair": [5, 6]},
    f"v1\n{{}}\n{KAFKA}\n{FILES}\n5\n6",
    NOTES,
    TimeReached({"hours": 9}, {"clicks": SourceTime(9), "files": SourceTime(8)}),
)


def test_sources_are_moved() -> None:
    """A source goes on where it is told. Its event time begins anew; what it has noted stays, unless it begins anew itself."""
    moved = moved_to(BARRIER, {"clicks": '{"views": {"0": 50, "1": 100}}', "files": "start", "pair": [5, 7]})
    assert moved.progress_log == 'v1\n{}\n{"views":{"0":50,"1":100}}\n-\n5\n7'
    assert moved.positions == {"clicks": {"views": {"0": 50, "1": 100}}, "files": None, "pair": [5, 7]}
    assert [note.path for note in moved.source_log] == ["0/0", "2/0"]
    assert moved.time == TimeReached({"hours": 9})
    assert moved_to(BARRIER, {"files": None}).positions["files"] is None
    assert moved_to(BARRIER, {}) is BARRIER


@pytest.mark.parametrize(
    ("positions", "error", "said"),
    [
        ({"clicks": {"views": {"0": 50}}}, IncompatibleStateError, r"says nothing of views\.1"),
        ({"clicks": {"other": {"0": 50, "1": 50}}}, IncompatibleStateError, r"says nothing of views\.0"),
        ({"clicks": 7}, IncompatibleStateError, "says nothing of"),
        ({"clicks": "soon"}, ConfigError, "is not allowed"),
        ({"clicks": "latest"}, ConfigError, "only a job can ask"),
        ({"files": {"logOffset": 300}}, IncompatibleStateError, "can only go back"),
        ({"pair": [5]}, ConfigError, "has 2 streaming sources"),
        ({"click": 7}, ConfigError, "the savepoint has the sources clicks"),
    ],
)
def test_positions_that_cannot_be(positions: dict[str, Any], error: type[PenstockError], said: str) -> None:
    """What is refused for a start is refused here: a partition that is left out would begin anywhere."""
    with pytest.raises(error, match=said):
        moved_to(BARRIER, positions)


def test_time_goes_along_with_names() -> None:
    """All that is known of the time of an operator is found under its new uid; what is known by source stays where it is."""
    by_source, by_operator = {"sources"}, {"watermarks_us", "to_go_on_from_us", "over_us"}
    dictionaries = {
        one.name
        for one in msgspec.structs.fields(TimeReached)
        if isinstance(getattr(TimeReached(), one.name), dict)
    }
    assert dictionaries == by_source | by_operator, "a new one: is it by operator?"
    known: dict[str, Any] = {name: {"hours": 9, "days": 8} for name in by_operator}
    barrier = Barrier(time=TimeReached(sources={"hours": SourceTime(9)}, **known))
    moved = renamed_time(barrier, {"hours": "each-hour"}).time
    assert [getattr(moved, name) for name in by_operator] == [{"each-hour": 9, "days": 8}] * 3
    assert moved.sources == {"hours": SourceTime(9)}


COUNTED = AggregateColumn("n", Kind.SUM, (Partial("__n_sum", Kind.SUM, pa.int64()),), pa.int64())
KEY = pa.schema([("app", pa.string())])


def test_windows_by_a_number_of_rows_are_not_written() -> None:
    """Aggregates of a window that is not full mean nothing without the number of its rows: nobody can give them, to a job or a savepoint."""
    layout = CountSpec(KEY, CountWindows(5), (COUNTED,)).layout()
    for kind in (layout, stored_layout(columns_of(layout))):
        assert OperatorRows("fives", kind, 128).states == []
    plain = StateLayout(KEY, pa.schema([("__n_sum", pa.int64())]), parts=AGGREGATES)
    assert OperatorRows("views", plain, 128).states == ["n"]
