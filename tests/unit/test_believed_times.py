"""Which event times are believed: what is absurd is said of the rows of a source, and not of results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from penstock.errors import BadRecordError
from penstock.graph import Source, TimeSettings, Transform, Union, streams_that_meet
from penstock.operators.base import Node
from penstock.operators.event_time import ANY_TIME, OperatorClock, TimeColumn, TimeLimits, judged_by_time
from penstock.operators.top import Top
from penstock.operators.window.base import RowTimes

NOW = datetime(2024, 10, 3, tzinfo=UTC)
FRAME = cast("DataFrame", None)
DAY_US = 86_400_000_000
CLOCK = OperatorClock(before_us=0, now_us=int(NOW.timestamp()) * 1_000_000)
ROWS = pa.table({"window_end": pa.array([NOW + timedelta(days=28), None], pa.timestamp("us", "UTC"))})
OF_SOURCE = TimeColumn("window_end", ahead_us=DAY_US, refuses_absurd=True)
OF_WINDOW = TimeColumn("window_end", earlier_us=1, of_results=True)


def limits(*settings: tuple[int | None, bool]) -> tuple[int | None, bool]:
    """What is said of the rows of the union of sources with these settings."""
    streams: list[Node] = [
        Source(f"s{at}", FRAME, None, TimeSettings("at", 0, None, ahead_us, refuses_absurd=refuses))
        for at, (ahead_us, refuses) in enumerate(settings)
    ]
    time = reduce(Union, streams).event_time_column()
    assert time is not None
    return time.ahead_us, time.refuses_absurd


def test_each_stream_is_judged_by_its_own_sources() -> None:
    """Where they meet in a union the widest limit holds, and a row is refused only where all of them refuse it."""
    assert limits((DAY_US, True)) == (DAY_US, True)
    assert limits((DAY_US, True), (5, True)) == (DAY_US, True)
    assert limits((DAY_US, True), (5, False)) == (DAY_US, False)
    assert limits((DAY_US, False), (None, True)) == (None, False)
    near = Source("near", FRAME, None, TimeSettings("at", 0, None, 5))
    timeless = Source("timeless", FRAME, None)
    met = Union(near, timeless)
    assert streams_that_meet(met) == [(met, TimeLimits(5))]
    given = Transform(Top("top", near, ("k",), 1, (), (), ()), lambda frame: frame)
    both = Union(met, given)
    assert streams_that_meet(both) == [(near, TimeLimits(5)), (timeless, ANY_TIME), (given, ANY_TIME)]
    assert both.event_time_column() == TimeColumn("at", of_results=True)


def test_a_window_may_end_next_month() -> None:
    """Rows of a source with such a time are refused where that is asked for; a result with none is late, and ends nothing."""
    judged = judged_by_time(ROWS, OF_WINDOW, CLOCK, operator="next")
    assert (judged.rows.num_rows, judged.late.num_rows) == (1, 1)
    assert RowTimes.of(ROWS, OF_WINDOW, CLOCK, operator="next").sensible.tolist() == [True, False]
    with pytest.raises(BadRecordError, match="no event time that makes sense"):
        judged_by_time(ROWS, OF_SOURCE, CLOCK, operator="next")
    with pytest.raises(BadRecordError, match="2 rows have no event time"):
        RowTimes.of(ROWS, OF_SOURCE, CLOCK, operator="next")
