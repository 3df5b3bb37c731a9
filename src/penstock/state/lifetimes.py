"""How long values of state live, and which of them have expired at a moment. Pure; driver and executors.

A state with a time to live has a stamp beside it: the moment, in microseconds since the epoch, at which it was last touched. Not the moment
at which it will expire, so that another duration holds for what is stored already. A value has expired when stamp + duration <= now.

A stamp that is missing, or older than the moment at which the time to live was switched on, counts as that moment.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Flags = npt.NDArray[np.bool_]
Stamps = npt.NDArray[np.int64]
SwitchedOn = Mapping[str, Mapping[str, int]]
"""By operator and column of stamps: the moment at which the time to live was switched on."""

STAMP_TYPE = pa.int64()
LONG_AGO_US = -(1 << 62)
"""Before all time: the watermark of those who know of none."""
FAR_AWAY_US = 1 << 62
"""Behind all time."""


class Measure(enum.Enum):
    """By which clock something has expired."""

    CLOCK = "clock"
    """The time of the batch."""
    WATERMARK = "watermark"
    """The watermark when the batch began. Values whose time ends during this batch are still visible in it."""
    FIRED = "fired"
    """The time of the previous batch: timers by the clock up to it have fired. Values due in this batch are still visible in it."""


def stamp_name(state: str = "", measure: Measure = Measure.CLOCK) -> str:
    """The column with the stamps of a state: another one by another clock. Python gives no class attribute such a name."""
    kind = "event" if measure is Measure.WATERMARK else "touched"
    return f"__{kind}_{state}" if state else f"__{kind}"


def in_microseconds(seconds: float) -> int:
    """The value in the unit of stamps, microseconds."""
    return round(seconds * 1_000_000)


@dataclass(frozen=True)
class Lifetime:
    """The time to live of some columns of a table, counted from the time in their stamp."""

    columns: tuple[str, ...]
    stamp: str
    ttl_us: int
    measure: Measure = Measure.CLOCK
    """By the watermark, stamps are event times."""

    @property
    def stamp_field(self) -> pa.Field:
        """The column with the stamps."""
        return pa.field(self.stamp, STAMP_TYPE)


@dataclass(frozen=True)
class StateTime:
    """The times that a task gets: that of its batch, and since when each stamp counts."""

    now_us: int = 0
    switched_on_us: Mapping[str, int] = field(default_factory=dict)
    """For stamps of times to live; by the clock or by the watermark, as the stamp."""
    watermark_us: int = LONG_AGO_US
    """How far event time had come at this operator when the batch began: all that was due up to it has been done."""
    fired_us: int = LONG_AGO_US
    """The time of the batch before: timers by the clock up to it have fired."""

    def now_by(self, measure: Measure) -> int:
        """The current time by one of the two clocks."""
        match measure:
            case Measure.CLOCK:
                return self.now_us
            case Measure.WATERMARK:
                return self.watermark_us
            case Measure.FIRED:
                return self.fired_us


TIMELESS = StateTime()
"""Where nothing expires."""


@dataclass(frozen=True)
class _Mortal:
    columns: tuple[int, ...]
    stamp: int
    ttl_us: int
    measure: Measure
    now_us: int
    switched_on_us: int
    is_row: bool
    """Whether a row is there for this alone, also without a value: an entry, an element. Otherwise a null means that there is none."""

    @property
    def _missing_us(self) -> int:
        """Values stored without a stamp count from the time at which the time to live was switched on. If there was no watermark yet,
        there is no such time in event time: then they stay until they are touched.
        """  # noqa: D205 - the sentence is long
        if self.measure is Measure.CLOCK or self.switched_on_us > LONG_AGO_US:
            return self.switched_on_us
        return FAR_AWAY_US

    def touched(self, values: Sequence[pa.Array]) -> tuple[Stamps, bool]:
        """When each row was last touched, as it counts, and whether that is what is stored."""
        stamps = values[self.stamp]
        filled = stamps.fill_null(self._missing_us) if stamps.null_count else stamps
        known: Stamps = filled.to_numpy(zero_copy_only=False)
        if known.min(initial=self.switched_on_us) < self.switched_on_us:
            return np.maximum(known, self.switched_on_us), False
        return known, not stamps.null_count

    def present(self, values: Sequence[pa.Array]) -> Flags:
        """The rows that have it: a stamp or a value."""
        if self.is_row:
            return np.ones(len(values[self.stamp]), dtype=np.bool_)
        found = _flags(values[self.stamp].is_valid())
        for column in self.columns:
            found |= _flags(values[column].is_valid())
        return found


class Expiry:
    """Finds the values of a table that have expired at a given time. Rows are value columns in the order of the table, including stamps."""

    def __init__(
        self, names: Sequence[str], lifetimes: Sequence[Lifetime], time: StateTime, *, rows: bool = False
    ) -> None:
        place = {name: at for at, name in enumerate(names)}
        self._mortal = [
            _Mortal(
                tuple(place[column] for column in one.columns),
                place[one.stamp],
                one.ttl_us,
                one.measure,
                time.now_by(one.measure),
                _since(one, time),
                rows,
            )
            for one in lifetimes
        ]
        hidden = {one.stamp for one in self._mortal}
        self._visible = [at for at in range(len(names)) if at not in hidden]

    def applied(self, values: Sequence[pa.Array]) -> tuple[tuple[pa.Array, ...], Flags | None]:
        """The columns without what has expired, stamps as they count, and the rows of which nothing is left (None: no such row)."""
        columns = list(values)
        some = np.zeros(len(columns[0]), dtype=np.bool_)
        for one in self._mortal:
            touched, as_stored = one.touched(values)
            limit = max(one.now_us - one.ttl_us, LONG_AGO_US)
            expired: Flags = touched <= limit
            if not as_stored:
                columns[one.stamp] = pa.array(touched, mask=~one.present(values))
            if expired.any():
                alive = pa.array(np.arange(len(expired), dtype=np.int64), mask=expired)
                for at in (*one.columns, one.stamp):
                    columns[at] = columns[at].take(alive)
                some |= expired
        if not some.any():
            return tuple(columns), None
        gone = some
        for at in self._visible:
            gone = gone & _flags(columns[at].is_null())
        return tuple(columns), gone if gone.any() else None

    def has_expired(self, values: Sequence[pa.Array]) -> Flags:
        """The rows of which something has expired, for those who look for what to remove."""
        found = np.zeros(len(values[0]), dtype=np.bool_)
        for one in self._mortal:
            limit = max(one.now_us - one.ttl_us, LONG_AGO_US)
            found |= (one.touched(values)[0] <= limit) & one.present(values)
        return found

    def first(self, stamps: Sequence[pa.Array]) -> dict[Measure, int]:
        """When the first of some rows will expire, or has, from their stamps alone, in the order of the lifetimes. A null may be none."""
        found: dict[Measure, int] = {}
        for one, column in zip(self._mortal, stamps, strict=True):
            if len(column):
                moment_us = int(replace(one, stamp=0).touched([column])[0].min()) + one.ttl_us
                found[one.measure] = min(found.get(one.measure, FAR_AWAY_US), moment_us)
        return found

    def is_over(self, first_us: Mapping[Measure, int]) -> bool:
        """Whether one of these times is reached."""
        return any(first_us.get(one.measure, FAR_AWAY_US) <= one.now_us for one in self._mortal)

    def read(self, values: pa.RecordBatch, found: Flags) -> tuple[pa.RecordBatch, Flags]:
        """The same for rows that were looked up, of which some were not found."""
        columns, gone = self.applied(values.columns)
        live = pa.RecordBatch.from_arrays(list(columns), schema=values.schema)
        return live, found if gone is None else found & ~gone

    def endings(self, values: Sequence[pa.Array], deleted: Flags | None = None) -> list[Ending]:
        """When what may expire in these rows will do so, for each lifetime; tombstones do not expire."""
        if deleted is not None:
            alive = pa.array(np.flatnonzero(~deleted))
            values = [column.take(alive) for column in values]
        found = []
        for one in self._mortal:
            touched = one.touched(values)[0][one.present(values)]
            if len(touched):
                middle = (len(touched) - 1) // 2
                half = int(np.partition(touched, middle)[middle])
                found.append(
                    Ending(half + one.ttl_us, int(touched.max()) + one.ttl_us, len(touched), one.measure)
                )
        return found


class Ending(NamedTuple):
    """A number of values, the time when half of them will have expired, and the time when all will have."""

    half_us: int
    all_us: int
    values: int
    measure: Measure = Measure.CLOCK


class Fading(NamedTuple):
    """When a rewrite of a file without its expired values pays off: by the clock, and in event time. None for never."""

    clock_us: int | None = None
    event_us: int | None = None


def fading(endings: Sequence[Ending], rows: int) -> Fading:
    """When that will be for a file with this number of rows."""
    by_event = [ending for ending in endings if ending.measure is Measure.WATERMARK]
    by_clock = [ending for ending in endings if ending.measure is not Measure.WATERMARK]
    return Fading(_fading(by_clock, rows), _fading(by_event, rows))


def _fading(endings: Sequence[Ending], rows: int) -> int | None:
    """When about half of the mortal values have expired. If only a small part of the file can expire, it is the time when all of that part
    has, so that a large file is not rewritten again and again for little.
    """  # noqa: D205 - the sentence is long
    mortal, so_far = sum(ending.values for ending in endings), 0
    if not mortal:
        return None
    moment_us = max(ending.all_us for ending in endings)
    for ending in sorted(endings, key=lambda one: one.half_us) if 2 * mortal >= rows else ():
        so_far += ending.values
        if 2 * so_far >= mortal:
            moment_us = ending.half_us
            break
    return moment_us if moment_us < FAR_AWAY_US else None


class Moment(NamedTuple):
    """The current times that the driver uses when it decides about the files of an operator."""

    clock_us: int = 0
    watermark_us: int = LONG_AGO_US


def _since(lifetime: Lifetime, time: StateTime) -> int:
    """The time for which a null stamp counts; no stamp counts as an earlier one. Event times may be of any age."""
    usual = 0 if lifetime.measure is Measure.CLOCK else LONG_AGO_US
    return time.switched_on_us.get(lifetime.stamp, usual)


def _flags(array: pa.Array) -> Flags:
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags if flags.flags.writeable else flags.copy()
