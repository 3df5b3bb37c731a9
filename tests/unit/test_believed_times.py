"""Which event times are believed: what is absurd is said of the rows of a source, and not of results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from penstock.errors import BadRecordError
from penstock.operators.clock import OperatorClock
from penstock.operators.row_times import RowTimes
from penstock.operators.time_column import TimeColumn
from penstock.operators.times_of_rows import judged_by_time

NOW = datetime(2024, 10, 3, tzinfo=UTC)
CLOCK = OperatorClock(
    before_us=0, latest_us=int((NOW + timedelta(days=1)).timestamp()) * 1_000_000, refuses_absurd=True
)
ROWS = pa.table({"window_end": pa.array([NOW + timedelta(days=28), None], pa.timestamp("us", "UTC"))})
OF_SOURCE, OF_WINDOW = TimeColumn("window_end"), TimeColumn("window_end", earlier_us=1, of_results=True)


def test_a_window_may_end_next_month() -> None:
    """Rows of a source with such a time are refused where that is asked for; a result with none is late, and ends nothing."""
    judged = judged_by_time(ROWS, OF_WINDOW, CLOCK, operator="next")
    assert (judged.rows.num_rows, judged.late.num_rows) == (1, 1)
    assert RowTimes.of(ROWS, OF_WINDOW, CLOCK, operator="next").sensible.tolist() == [True, False]
    with pytest.raises(BadRecordError, match="no event time that makes sense"):
        judged_by_time(ROWS, OF_SOURCE, CLOCK, operator="next")
    with pytest.raises(BadRecordError, match="2 rows have no event time"):
        RowTimes.of(ROWS, OF_SOURCE, CLOCK, operator="next")
