"""`join`: its operator, its spec and its task. Which rows match, and how long each is stored. Driver and executors.

A row has a moment: its event time, or the beginning of its window. A left row at l and a right row at r with the same key match when
l + lower <= r <= l + upper. As rows before the watermark are late, a left row cannot match any more once the watermark has reached
l + upper + 1, and a right row once it has reached r - lower + 1. In a join by window both bounds are 0, and that is where the window ends.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.config import Duration, choice, duration_us, seconds
from penstock.errors import ConfigError
from penstock.operators.base import (
    LEFT,
    RIGHT,
    EventTimeNeed,
    Node,
    Operator,
    SecondInput,
    Task,
    TaskContext,
)
from penstock.operators.columns import widened
from penstock.operators.event_time import OperatorClock, TimeColumn, judged_by_time
from penstock.operators.inputs import TaskRows
from penstock.operators.join.input_rows import (
    MATCHED,
    PLACE,
    Arriving,
    InputColumns,
    JoinInput,
    TwoInputSpec,
    both,
)
from penstock.operators.join.interval import run_join
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.views import Plain, StoredTable, TableView, plain
from penstock.operators.window.base import WINDOW_END, WINDOW_START
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.handle import Due
from penstock.state.lifetimes import Measure, stamp_name
from penstock.windows import Numbers, TimeWindows


class How(enum.Enum):
    """The rows without a partner that are results: of neither input, of one, or of both."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


@dataclass(frozen=True)
class JoinSpec(TwoInputSpec):
    """A join typed against the columns of its inputs, whose keys have the same types."""

    left: JoinInput
    right: JoinInput
    lower_us: int = 0
    upper_us: int = 0
    windows: TimeWindows | None = None
    at: str | None = None
    """A column to add, with the time of each result: the later one of a pair; for a row alone, the time from which it could not match."""

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
        """Rows match when they are in the same window."""
        ends = windows.size_us - 1
        return cls._of(left, right, how, ends=(ends, ends), kind=f" in {windows}", windows=windows)

    @classmethod
    def unbounded(cls, left: InputColumns, right: InputColumns) -> JoinSpec:
        """All rows of a key match, and are stored for ever."""
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
    def added(self) -> list[pa.Field]:
        """Start and end of the window, and the time of the result."""
        if self.left.time is None:
            return []
        kind = self.left.columns.field(self.left.time.column).type
        window = [] if self.windows is None else [WINDOW_START, WINDOW_END]
        return [pa.field(name, kind) for name in (*window, *([] if self.at is None else [self.at]))]

    def added_moments(self, moments: Numbers, times: Numbers | None) -> list[Numbers]:
        """The values of the `added` columns, from the moments of rows and, where they are added, the times of results."""
        window = [] if self.windows is None else [moments, moments + self.windows.size_us]
        return [*window, *([] if self.at is None or times is None else [times])]

    def arriving(self, given: JoinInput, rows: pa.Table, clock: OperatorClock, *, operator: str) -> Arriving:
        """Find the moments of the rows of an input, and set late rows aside."""
        rows = widened(rows).combine_chunks()
        if given.time is None:
            moments = np.zeros(rows.num_rows, dtype=np.int64)
            return Arriving.one_moment_each(rows, moments, rows.slice(0, 0))
        if self.windows is not None:
            return _in_windows(given.time, rows, self.windows, clock, operator)
        judged = judged_by_time(rows, given.time, clock, operator=operator)
        return Arriving.one_moment_each(judged.rows, judged.times, judged.late)

    @override
    def layout(self) -> StateLayout:
        tables = [*self.left.layouts(self.key), *self.right.layouts(self.key)]
        return StateLayout(self.key, pa.schema([]), tuple(tables))

    @classmethod
    def shown(cls, table: StoredTable) -> TableView | None:
        """Shows the rows of the inputs as `left` and `right`, with `matched`; tables of waiting rows are hidden."""
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

    @override
    def task(self, context: TaskContext) -> Task:
        return JoinTask(context, self)


def _in_windows(
    time: TimeColumn, rows: pa.Table, windows: TimeWindows, clock: OperatorClock, operator: str
) -> Arriving:
    """A row is late when all its windows have closed: when the watermark has reached the last moment of each."""
    sensible = judged_by_time(rows, time, clock.at_any_time(), operator=operator)
    at, lasts = windows.windows_of(sensible.times)
    is_open = lasts > clock.before_us
    counts = np.bincount(at[is_open], minlength=len(sensible.times))
    in_time = counts > 0
    late = pa.concat_tables([sensible.late, sensible.rows.filter(pa.array(~in_time))])
    return Arriving(
        sensible.rows.filter(pa.array(in_time)),
        np.concatenate(([0], np.cumsum(counts[in_time]))),
        windows.starts(lasts[is_open]),  # in the order of rows
        late,
    )


@dataclass
class JoinTask(Task):
    """Joins rows of two streams, and emits rows of an outer input alone once they cannot match any more."""

    spec: JoinSpec
    _due: Due = field(default_factory=Due, init=False)

    takes_null_keys: ClassVar[bool] = True
    """A row without a key is not bad: null equals nothing, and so it has no partner."""

    @property
    def uses_time(self) -> bool:
        """Time decides when a row without a partner is emitted."""
        return self.spec.left.outer or self.spec.right.outer

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """Emit pairs and rows without a partner; late rows are set aside."""
        left, right = both(rows)
        joined = run_join(self.spec, left, right, state, self.context.clock, operator=self.context.uid)
        self._due = joined.due
        self.context.late.add(joined.late_left)
        self.context.late_right.add(joined.late_right)
        return {RESULTS: joined.results}

    @override
    def due(self) -> Due:
        return self._due


UNBOUNDED = "unbounded"

On = str | Sequence[str | tuple[str, str]]
"""A key column that both streams have, or several; a pair where the names differ."""
Within = tuple[Duration, Duration] | str | None
EventTimeOf = str | tuple[str, str] | None
"""The name of the column with the event time, or one for each stream."""


@dataclass(frozen=True, eq=False)
class Join(Operator):
    """Rows of two streams with the same key: within bounds of time, in the same window, or at any time."""

    right: SecondInput
    how: How
    within_us: tuple[int, int] | None = None
    windows: TimeWindows | None = None
    event_time: str | None = None
    """The column of the left stream that the user named; None for the event time of the stream."""
    at: str | None = None
    """The name of a column to add, with the time of each result."""

    may_reject_rows: ClassVar[bool] = False
    late_inputs: ClassVar[tuple[str, ...]] = (LEFT, RIGHT)

    @classmethod
    def checked(
        cls,
        uid: str,
        left: Node,
        right: Node,
        *,
        on: On,
        within: Within,
        window: object,
        how: str,
        event_time: EventTimeOf,
        at: str | None,
    ) -> Join:
        """Check the arguments; raises `ConfigError`."""
        kind = choice("how", how, How)
        keys, right_keys = key_pairs(on, uid)
        within_us = _bounds(within, uid) if window is None else None
        windows = None if window is None else _windows(window, within, uid)
        times = _event_times(event_time, uid)
        if at is not None and not _is_name(at):
            raise ConfigError(
                f"join {uid!r}: at={at!r}: it takes the name of the column that results have their time in, such as 'joined_at'",
                uid=uid,
            )
        if within_us is None and windows is None and (kind is not How.INNER or at or any(times)):
            raise ConfigError(
                f"join {uid!r}: with within='unbounded' rows are kept for ever, so that it is never known that one has no partner, and "
                f"time means nothing: how={how!r}, event_time and at cannot be; bound it, such as within=('-5min', '10min')",
                uid=uid,
            )
        if at is not None and windows is not None:
            raise ConfigError(
                f"join {uid!r}: at={at!r}: the time of a result is that of its window, which ends at window_end; leave it out",
                uid=uid,
            )
        return cls(
            uid, left, keys, SecondInput(right, right_keys, times[1]), kind, within_us, windows, times[0], at
        )

    @override
    def describe(self) -> str:
        return f"{self.how.value} join"

    @property
    @override
    def second_input(self) -> SecondInput | None:
        return self.right

    @property
    @override
    def judges_by_time(self) -> bool:
        return self.within_us is not None or self.windows is not None

    @property
    @override
    def end_column(self) -> str | None:
        return None if self.windows is None else WINDOW_END

    @override
    def needs_event_time(self) -> EventTimeNeed | None:
        if not (self.within_us or self.windows):
            return None
        return EventTimeNeed("keeps rows as long as event time says", "they would be kept for ever")

    def result_time(self) -> TimeColumn | None:
        """A pair has two times, and a row without a partner is emitted long after its own time. So the user must choose one."""
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


# ── what is refused ────────────────────────────────────────────────────────────────────────────────


def key_pairs(on: On, uid: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both streams."""
    given = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, list | tuple) else ()
    pairs = [
        (one, one) if isinstance(one, str) else tuple(one)
        for one in given
        if isinstance(one, str | tuple | list)
    ]
    names = [name for pair in pairs for name in pair]
    whole = len(pairs) == len(given) and all(len(pair) == 2 for pair in pairs)  # noqa: PLR2004
    if not pairs or not whole or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"operator {uid!r}: on={on!r}: it takes the key column that both streams have, several in a list, or pairs such as "
            "[('order_id', 'id')] where the names differ",
            uid=uid,
        )
    keys, right_keys = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    for one in (keys, right_keys):
        if len(set(one)) < len(one):
            raise ConfigError(f"operator {uid!r}: on={on!r}: a column is named twice", uid=uid)
    return keys, right_keys


def _event_times(given: EventTimeOf, uid: str) -> tuple[str | None, str | None]:
    """The column with the event time of each stream."""
    times = given if isinstance(given, tuple) else (given, given)
    if len(times) != 2 or not all(name is None or _is_name(name) for name in times):  # noqa: PLR2004
        raise ConfigError(
            f"join {uid!r}: event_time={given!r}: it takes the name of a column that both streams have, or a pair of names such as "
            "('ordered_at', 'paid_at'), the left stream's first; None is the event time that a stream has from its source",
            uid=uid,
        )
    return times


def _is_name(given: object) -> bool:
    return isinstance(given, str) and bool(given)


def _bounds(within: Within, uid: str) -> tuple[int, int] | None:
    if within == UNBOUNDED:
        return None
    if within is None:
        raise ConfigError(
            f"join {uid!r}: within is missing: without bounds all rows of both streams would have to be kept for ever. Say how far apart "
            "in event time rows are that belong together, such as within=('-5min', '10min'): a right row from 5 minutes before the left "
            "one to 10 minutes after it; or window=tumbling('1h'); or within='unbounded' if you want them kept",
            uid=uid,
        )
    if not isinstance(within, tuple | list) or len(within) != 2:  # noqa: PLR2004
        raise ConfigError(
            f"join {uid!r}: within={within!r}: it takes two durations, the earliest and the latest right row as seen from the left one, "
            "such as ('-5min', '10min')",
            uid=uid,
        )
    lower, upper = (_signed("within", bound) for bound in within)
    if lower > upper:
        raise ConfigError(
            f"join {uid!r}: within={within!r}: the first bound is later than the second, so that nothing would match",
            uid=uid,
        )
    return lower, upper


def _windows(window: object, within: Within, uid: str) -> TimeWindows:
    if within is not None:
        raise ConfigError(f"join {uid!r}: it has both within= and window=; leave one out", uid=uid)
    if not isinstance(window, TimeWindows):
        raise ConfigError(
            f"join {uid!r}: window={window}: it takes ps.windows.tumbling('1h') or sliding('1h', '10min')",
            uid=uid,
        )
    return window


def _signed(setting: str, given: Duration) -> int:
    """A duration that may be negative."""
    if isinstance(given, timedelta):
        length = given.total_seconds()
    elif isinstance(given, str) and given.strip()[:1] in ("-", "+"):
        length = seconds(setting, given.strip()[1:].strip())
        length = -length if given.strip().startswith("-") else length
    else:
        length = seconds(setting, given)
    return duration_us(setting, given, length)
