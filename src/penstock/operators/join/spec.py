"""What a join is asked for: which rows of two inputs belong together, how long each is kept, and the columns of the results. Pure.

A row has a moment: its event time, or the beginning of its window. A left row at l and a right row at r with the same key match when
l + lower <= r <= l + upper. As rows before the watermark are late, a left row cannot match any more once the watermark has reached
l + upper + 1, and a right row once it has reached r - lower + 1. In a join by window both bounds are 0, and that is where the window ends.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.base import LEFT, RIGHT
from penstock.operators.time_column import TimeColumn
from penstock.operators.window_kinds import WINDOW_END, WINDOW_START, TimeWindows
from penstock.state.backends.base import StateLayout, TableLayout
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US, Lifetime, Measure, stamp_name

PLACE = pa.field("__penstock_place", pa.int64())
"""Tells the rows of a key apart: a number that no other row of the input ever has."""
MATCHED = pa.field("__penstock_matched", pa.bool_())


class How(enum.Enum):
    """Which rows come out that find no partner."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


@dataclass(frozen=True)
class InputColumns:
    """The columns of an input, in their order; those of the key, and that with the event time (None in a join without bounds)."""

    columns: pa.Schema
    keys: tuple[str, ...]
    time: TimeColumn | None

    @property
    def kept(self) -> pa.Schema:
        """The columns beside the key."""
        return pa.schema([field for field in self.columns if field.name not in self.keys])


@dataclass(frozen=True)
class JoinInput(InputColumns):
    """One of the two inputs."""

    name: str
    ends_us: int | None
    """A row matters until the watermark has come so far behind its moment; None for ever."""
    outer: bool
    """Whether a row that finds no partner comes out."""
    kind: str = ""
    """In the names of its tables: a moment means something else in a join of another kind, or with other windows."""
    bounds: str = ""
    """In the names of what waits: with other bounds it could not be found again. Rows themselves may go on with other bounds."""

    @property
    def rows(self) -> str:
        """The table with its rows, by key and then by moment."""
        return f"rows of the {self.name} input{self.kind}"

    @property
    def waiting(self) -> str:
        """The table with those of its rows that had found no partner at the end of their batch, by moment."""
        return f"{self.name} without a partner{self.kind}{self.bounds}"

    @property
    def stamp(self) -> str:
        """The column with the moment of a stored row."""
        return stamp_name(self.name, Measure.WATERMARK)

    @property
    def stored(self) -> pa.Schema:
        """What is stored of a row beside its identity, in this order."""
        matched = [MATCHED] if self.outer else []
        return pa.schema([*self.kept, *matched, (self.stamp, pa.int64())])

    def cannot_match_from(self, watermark_us: int) -> int:
        """At this watermark no row with a moment up to and with this one can match any more."""
        if self.ends_us is None or watermark_us <= LONG_AGO_US:
            return LONG_AGO_US
        return FAR_AWAY_US if watermark_us >= FAR_AWAY_US else watermark_us - self.ends_us

    def layouts(self, key: pa.Schema) -> list[TableLayout]:
        """Its tables."""
        identity = pa.schema([*key, PLACE])
        value = self.stored
        if self.ends_us is None:
            return [TableLayout(self.rows, identity, value)]
        ttl_us = max(self.ends_us, 1)
        columns = tuple(value.names[:-1])
        tables = [
            TableLayout(
                self.rows,
                identity,
                value,
                lifetimes=(Lifetime(columns, self.stamp, ttl_us, Measure.WATERMARK),),
            )
        ]
        if self.outer:
            lifetime = Lifetime((), f"{self.stamp}_waiting", ttl_us, Measure.WATERMARK)
            value = pa.schema([lifetime.stamp_field])
            tables.append(TableLayout(self.waiting, identity, value, by_time=True, lifetimes=(lifetime,)))
        return tables


@dataclass(frozen=True)
class JoinSpec:
    """A join of two inputs, whose keys have the same types."""

    left: JoinInput
    right: JoinInput
    lower_us: int = 0
    upper_us: int = 0
    windows: TimeWindows | None = None
    at: str | None = None
    """The name of a column to add, with the time of each result: of a pair the later one, of a row alone when it could match no more."""

    @classmethod
    def by_interval(
        cls, left: InputColumns, right: InputColumns, lower_us: int, upper_us: int, how: How
    ) -> JoinSpec:
        """A left row at l matches right rows from l + lower to l + upper.

        Between runs the bounds of an inner join may change. Wider ones bring no row back that could not match any more: as with every
        time to live that becomes longer, the state is written anew without such rows first.
        """
        bounds = (lower_us, upper_us)
        return cls._of(
            left, right, how, ends=(upper_us + 1, 1 - lower_us), kind=" within bounds", bounds=bounds
        )

    @classmethod
    def by_window(cls, left: InputColumns, right: InputColumns, windows: TimeWindows, how: How) -> JoinSpec:
        """Rows match that are in the same window."""
        ends = windows.size_us - 1
        return cls._of(left, right, how, ends=(ends, ends), kind=f" in {windows}", windows=windows)

    @classmethod
    def unbounded(cls, left: InputColumns, right: InputColumns) -> JoinSpec:
        """All rows of a key match, and are kept for ever."""
        return cls._of(left, right, How.INNER, ends=(None, None))

    @classmethod
    def _of(
        cls,
        left: InputColumns,
        right: InputColumns,
        how: How,
        *,
        ends: tuple[int | None, int | None],
        kind: str = "",
        bounds: tuple[int, int] = (0, 0),
        windows: TimeWindows | None = None,
    ) -> JoinSpec:
        outer = {How.INNER: (), How.LEFT: (LEFT,), How.RIGHT: (RIGHT,), How.FULL: (LEFT, RIGHT)}[how]
        of_waiting = "" if windows is not None else " of {} to {} us".format(*bounds)
        one, other = (
            JoinInput(of.columns, of.keys, of.time, name, ends_us, name in outer, kind, of_waiting)
            for name, of, ends_us in ((LEFT, left, ends[0]), (RIGHT, right, ends[1]))
        )
        return cls(one, other, *bounds, windows)

    @property
    def key(self) -> pa.Schema:
        """The key as it is stored, and comes out: with the names of the left input."""
        return pa.schema([self.left.columns.field(name) for name in self.left.keys])

    @property
    def output(self) -> pa.Schema:
        """The columns of the left input, then those of the right one without its key, then what is added."""
        return pa.schema([*self.left.columns, *self.right.kept, *self.added])

    @property
    def added(self) -> list[pa.Field]:
        """The columns that are of neither input: those of the window, and the time of the result."""
        if self.left.time is None:
            return []
        kind = self.left.columns.field(self.left.time.column).type
        window = [] if self.windows is None else [WINDOW_START, WINDOW_END]
        return [pa.field(name, kind) for name in (*window, *([] if self.at is None else [self.at]))]

    @property
    def uses_time(self) -> bool:
        """Whether something may come out because time goes on."""
        return self.left.outer or self.right.outer

    def layout(self) -> StateLayout:
        """What is kept."""
        tables = [*self.left.layouts(self.key), *self.right.layouts(self.key)]
        return StateLayout(self.key, pa.schema([]), tuple(tables))
