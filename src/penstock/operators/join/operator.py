"""`join` and `lookup`: rows of two streams side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.operators.base import LEFT, RIGHT, EventTimeNeed, Operator, SecondInput
from penstock.operators.join.spec import How
from penstock.operators.time_column import TimeColumn
from penstock.operators.time_to_live import TimeToLive
from penstock.operators.window_kinds import WINDOW_END, TimeWindows


@dataclass(frozen=True, eq=False)
class Join(Operator):
    """Rows of two streams with the same key, side by side: within bounds of time, in the same window, or whatever their time."""

    right: SecondInput
    how: How
    within_us: tuple[int, int] | None = None
    windows: TimeWindows | None = None
    event_time: str | None = None
    at: str | None = None
    """The name of a column to add, with the time of each result."""

    may_reject_rows: ClassVar[bool] = False
    late_inputs: ClassVar[tuple[str, ...]] = (LEFT, RIGHT)

    def describe(self) -> str:
        """The kind of join: inner, left, right or full."""
        return f"{self.how.value} join"

    @property
    def second_input(self) -> SecondInput | None:
        """The stream that was given to the method."""
        return self.right

    @property
    def judges_by_time(self) -> bool:
        """Unless rows are kept for ever."""
        return self.within_us is not None or self.windows is not None

    @property
    def marks_window_end(self) -> bool:
        """Where rows of the same window are joined."""
        return self.windows is not None

    def needs_event_time(self) -> EventTimeNeed | None:
        """Where bounds or windows say how long rows are kept."""
        if not (self.within_us or self.windows):
            return None
        return EventTimeNeed("keeps rows as long as event time says", "they would be kept for ever")

    def result_time(self) -> TimeColumn | None:
        """A pair has two times, and a row that found no partner comes long after its own: so it must be said which one counts."""
        if self.windows is not None:
            return TimeColumn(WINDOW_END, earlier_us=1, of_results=True)
        if self.at is not None:
            return TimeColumn(self.at, of_results=True)
        raise ConfigError(
            f"join {self.uid!r}: its results have the times of two rows, and by either of them they may be late; name a column for the "
            "time of the result, join(..., at='joined_at'), or say which column counts where it is used, such as "
            "window(..., event_time='at')",
            operator=self.uid,
        )


@dataclass(frozen=True, eq=False)
class Lookup(Operator):
    """Rows of a stream with the latest row of their key in another one beside them."""

    right: SecondInput
    inner: bool
    ttl: TimeToLive | None = None

    may_reject_rows: ClassVar[bool] = False

    def describe(self) -> str:
        """The plan shows nothing but its name."""
        return "lookup"

    @property
    def second_input(self) -> SecondInput | None:
        """The stream that was given to the method."""
        return self.right
