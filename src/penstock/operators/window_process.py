"""What a user writes to process the rows of a window. Driver (declared) and executors (run)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from penstock.operators.process.keyed import Context, Output
from penstock.operators.rows import Rows


class TimeWindow(NamedTuple):
    """All moments from `start` on, up to `end` and without it; of the type of the event time, in UTC.

    One that reaches beyond the years 1 to 9999 begins or ends with the first or last moment that Python knows.
    """

    start: datetime
    end: datetime


class WindowProcess(ABC):
    """Own Python code that sees all rows of a window of a key when it closes.

    An instance is pickled into tasks: keep settings in it. Anything else it remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(
        self, key: Any, window: TimeWindow | None, rows: Rows, ctx: Context
    ) -> Iterable[Output] | None:
        """Handle the rows of one window, and yield results (tuples in the order of the schema, or dictionaries).

        Called when the watermark has passed the end of the window, and again with all its rows when late rows come within the allowed
        lateness; of a count window when it is full, with `window` None. Called again after a recovery.
        `ctx.watermark` is where event time has come to, `ctx.now` the time of the batch by the driver's clock.
        `key` is the value of the key column, a tuple for several. `rows` are in the order in which they came, or in that of `order_by`.
        The classic mistake: adding the result to something outside. A window with allowed lateness may have several results, of which
        the last counts: write them by key and window.
        """
