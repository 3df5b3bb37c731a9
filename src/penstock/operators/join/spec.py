"""A join with the columns of its inputs: which rows match, how long each is kept, and its work in a subtask. Driver and executors.

A row has a moment: its event time, or the beginning of its window. A left row at l and a right row at r with the same key match when
l + lower <= r <= l + upper. As rows before the watermark are late, a left row cannot match any more once the watermark has reached
l + upper + 1, and a right row once it has reached r - lower + 1. In a join by window both bounds are 0, and that is where the window ends.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from penstock.operators.base import LEFT, RIGHT, Spec, Task, TaskContext
from penstock.operators.inputs import RightInput, TaskRows
from penstock.operators.join.inputs import MATCHED, PLACE, InputColumns, JoinInput, both
from penstock.operators.join.interval import run_join
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.views import Plain, StoredTable, TableView, plain
from penstock.operators.window.kinds import WINDOW_END, WINDOW_START, TimeWindows
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.handle import Due
from penstock.state.lifetimes import Measure, stamp_name


class How(enum.Enum):
    """Which rows come out that find no partner."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


@dataclass(frozen=True)
class JoinSpec(Spec):
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
    def second_input(self) -> RightInput | None:
        """The right stream."""
        return self.right.as_second

    def layout(self) -> StateLayout:
        """The rows of both inputs, and which of them wait for a partner."""
        tables = [*self.left.layouts(self.key), *self.right.layouts(self.key)]
        return StateLayout(self.key, pa.schema([]), tuple(tables))

    @classmethod
    def shown(cls, table: StoredTable) -> TableView | None:
        """The rows of an input under `left` and `right`. Which of them wait for a partner can be seen there, too."""
        name = table.name
        if name.startswith((f"{LEFT} without a partner", f"{RIGHT} without a partner")):
            return TableView(name, "")
        side = next((side for side in (LEFT, RIGHT) if name.startswith(f"rows of the {side} input")), None)
        if side is None:
            return None
        identity = plain(field for field in table.own if field.name != PLACE.name)
        value = (one for one in table.value if one.name != stamp_name(side, Measure.WATERMARK))
        return TableView(
            side,
            "rows of a join",
            identity,
            tuple(Plain("matched", MATCHED) if one.name == MATCHED.name else one for one in value),
        )

    def task(self, context: TaskContext) -> Task:
        """The work of one subtask."""
        return JoinTask(context, self)


@dataclass
class JoinTask(Task):
    """Puts rows of two streams side by side, and gives rows of an outer input alone once they cannot match any more."""

    spec: JoinSpec
    _due: Due = field(default_factory=Due, init=False)

    takes_null_keys: ClassVar[bool] = True
    """A row without a key is not bad: null equals nothing, and so it has no partner."""

    @property
    def uses_time(self) -> bool:
        """Where rows without a partner come out: when they do is a matter of time."""
        return self.spec.left.outer or self.spec.right.outer

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """The pairs, and the rows that come out alone; late ones are put aside."""
        left, right = both(rows)
        joined = run_join(self.spec, left, right, state, self.context.clock, operator=self.context.uid)
        self._due = joined.due
        self.context.late.add(joined.late_left)
        self.context.late_right.add(joined.late_right)
        return {RESULTS: joined.results}

    def due(self) -> Due:
        """When the first row that waits for a partner can have none any more."""
        return self._due
