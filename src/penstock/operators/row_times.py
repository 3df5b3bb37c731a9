"""The event times of rows as numbers, for windows that see rows as they are. Executors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.clock import OperatorClock
from penstock.operators.late_panes import refused
from penstock.operators.python_values import MICROSECONDS
from penstock.operators.time_column import TimeColumn
from penstock.operators.window_kinds import Numbers
from penstock.state.backends.equality import Flags


@dataclass(frozen=True)
class RowTimes:
    """The time of each row in microseconds, 0 where there is none that makes sense."""

    numbers: Numbers
    sensible: Flags

    @classmethod
    def of(cls, rows: pa.Table, time: TimeColumn, clock: OperatorClock, *, operator: str) -> RowTimes:
        """Those of some rows; one without a time, or with an absurd one, ends the run where the source asks for it."""
        clock, column = clock.judging(time), rows.column(time.column)
        known = column.is_valid().to_numpy()
        numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).fill_null(0).to_numpy()
        within = (numbers >= MICROSECONDS[0]) & (
            numbers <= MICROSECONDS[1]
        )  # own code could not read another
        sensible: Flags = known & within & (numbers <= clock.latest_us)
        if clock.refuses_absurd and not sensible.all():
            raise refused(int(np.count_nonzero(~sensible)), operator)
        return cls(np.where(sensible, numbers - time.earlier_us, 0), sensible)
