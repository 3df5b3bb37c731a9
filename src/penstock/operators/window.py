"""`window`: SQL aggregates, or own code, over windows of each key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from penstock.operators.base import LEFT, EventTimeNeed, Operator
from penstock.operators.row_order import Order
from penstock.operators.time_column import TimeColumn
from penstock.operators.window_kinds import WINDOW_END, CountWindows, Windows
from penstock.operators.window_process import WindowProcess

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, eq=False)
class Window(Operator):
    """SQL aggregates, or the user's own code, over windows of each key. One of `columns` and `operator` is there."""

    windows: Windows
    lateness_us: int = 0
    early_us: int | None = None
    event_time: str | None = None
    """The column that the user named; None for that of the stream."""
    columns: dict[str, Column] = field(default_factory=dict)
    operator: WindowProcess | None = None
    output: pa.Schema | None = None
    """The columns of its results, where there is own code."""
    order_by: tuple[Order, ...] = ()

    late_inputs: ClassVar[tuple[str, ...]] = (LEFT,)

    def describe(self) -> str:
        """The windows, and the class of the user's."""
        return f"{self.windows}{'' if self.operator is None else f', {type(self.operator).__name__}'}"

    @property
    def counts_rows(self) -> bool:
        """Whether the number of rows alone says when a window is full."""
        return isinstance(self.windows, CountWindows)

    @property
    def judges_by_time(self) -> bool:
        """Unless its windows count rows."""
        return not self.counts_rows

    @property
    def partly_aggregated(self) -> bool:
        """To windows of so many rows each row comes alone."""
        return bool(self.columns) and not self.counts_rows

    @property
    def marks_window_end(self) -> bool:
        """Unless its windows count rows."""
        return not self.counts_rows

    @property
    def revised_by(self) -> tuple[str, ...]:
        """With lateness or early results a window gives several."""
        options = (("lateness", self.lateness_us), ("early", self.early_us))
        return tuple(word for word, is_set in options if is_set)

    @property
    def allowed_lateness_us(self) -> int | None:
        """The lateness that the user has set."""
        return self.lateness_us

    @property
    def own_code(self) -> object | None:
        """The `WindowProcess` of the user, if there is one."""
        return self.operator

    def needs_event_time(self) -> EventTimeNeed | None:
        """Without it no window would close."""
        if self.counts_rows:
            return None
        return EventTimeNeed(f"cuts rows into {self.windows}", "none of them would ever close")

    def result_time(self) -> TimeColumn | None:
        """The last moment of the window."""
        if self.counts_rows:
            return super().result_time()
        return TimeColumn(WINDOW_END, earlier_us=1, of_results=True)
