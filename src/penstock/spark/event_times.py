"""Event time in Spark: the column that holds it, its checks, and the newest times in a batch, for the watermark. Driver.

Spark records the newest times while it runs the batch (`DataFrame.observe`), and they are read from the plans that ran. Nothing waits for
them: a plan that did not run has recorded nothing. If a source has many partitions, or unknown ones, the newest times are found in a
separate pass over the batch, which is cached for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import TimestampNTZType, TimestampType

from penstock.config import EventTime
from penstock.errors import BadRecordError, ConfigError
from penstock.graph import TimeSettings
from penstock.job_spec import JobSpec
from penstock.log_fields import about
from penstock.operators.base import Node, Operator
from penstock.operators.event_time import ANY_TIME, TimeColumn
from penstock.operators.inputs import check_time_column, no_timestamp
from penstock.run.assignment import Assignment
from penstock.run.reading import ALL_ROWS, named_partitions, partition_name, partition_parts
from penstock.run.run import BatchUnderWay
from penstock.run.watermarks import latest_us
from penstock.spark.inspection import kept_columns
from penstock.spark.key_columns import quoted
from penstock.spark.log_source import FORMAT as LOG
from penstock.wording import counted, named, with_article

_log = logging.getLogger(__name__)

_END = "penstock.window_end"
"""Column metadata that marks the end of a window. Spark keeps it when a column is renamed or copied."""
_EPOCH = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
_DAY_US, _HOUR_US, _MINUTE_US, _SECOND_US = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000


def event_time_of(node: Node, frame: DataFrame, *, uid: str, named: str | None = None) -> TimeColumn:
    """The event time column of a stream, for the operator `uid`. `frame` has its columns; `named` is the user's `event_time=` there.

    Raises `ConfigError` if there is none, or it is not a timestamp.
    """
    inherited = node.event_time_column() if named is None else _as_named(node, named, frame)
    if inherited is None:
        raise ConfigError(
            f"operator {uid!r} needs the time of its rows, and no source of this stream has any; say which column it is: "
            "job.read(..., event_time='at')",
            operator=uid,
        )
    if inherited.earlier_us and inherited.column not in frame.columns:
        inherited = _renamed_end(inherited, frame, uid)
    if inherited.column not in frame.columns:
        raise _missing(inherited, frame, uid, named)
    kind = frame.schema[inherited.column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise ConfigError(
            f"operator {uid!r}: its event time {inherited.column!r} is {with_article(kind.simpleString())}, and has to be a timestamp; "
            "cast it before, for instance with F.timestamp_millis(...) or F.to_timestamp(...)",
            operator=uid,
            column=inherited.column,
            type=kind.simpleString(),
        )
    return inherited


def _missing(time: TimeColumn, frame: DataFrame, uid: str, named: str | None) -> ConfigError:
    what = "names" if named is not None else "needs the time of its rows, which the stream before has in"
    keep = (
        "Keep the end of the window, under any name: a renamed column is still the time of the result. A value that is computed from it "
        "is another time, and may be after the window"
        if time.earlier_us
        else "Keep the column, or name another with event_time="
    )
    return ConfigError(
        f"operator {uid!r} {what} {time.column!r}, and there is no such column; there are {', '.join(frame.columns)}. {keep}",
        operator=uid,
        column=time.column,
    )


def with_marked_end(node: Operator, frame: DataFrame) -> DataFrame:
    """The results of an operator, with a mark on the column of window ends, which survives renaming."""
    end = node.end_column
    return frame if end is None or end not in frame.columns else frame.withMetadata(end, {_END: True})


def marked_in_both(left: DataFrame, right: DataFrame) -> DataFrame:
    """The union of two streams. A column that holds window ends in only one of them loses the mark; Spark would keep the left one's."""
    both = left.unionByName(right)
    for name in both.columns:
        if _is_end(name, both) and not _is_end(name, right):
            both = both.withMetadata(name, {})
    return both


def _is_end(name: str, frame: DataFrame) -> bool:
    return name in frame.columns and bool(frame.schema[name].metadata.get(_END))


def _renamed_end(time: TimeColumn, frame: DataFrame, uid: str) -> TimeColumn:
    """The time of window results whose `window_end` was renamed."""
    ends = [name for name in frame.columns if _is_end(name, frame)]
    if len(ends) > 1:
        raise ConfigError(
            f"operator {uid!r} needs the time of its rows, and {', '.join(ends)} are ends of windows; say which of them it is with "
            "event_time=",
            operator=uid,
            columns=ends,
        )
    return replace(time, column=ends[0]) if ends else time


def _as_named(node: Node, named: str, frame: DataFrame) -> TimeColumn:
    """The column that the user named. If it is the stream's own event time, perhaps renamed, it keeps its meaning."""
    if _is_end(named, frame):
        return TimeColumn(named, earlier_us=1, of_results=True)
    try:
        inherited = node.event_time_column()
    except ConfigError:  # two streams disagree, which is why the user names a column
        inherited = None
    return (
        inherited
        if inherited is not None and inherited.column == named
        else TimeColumn(named, of_results=node.are_results).within(node.time_limits() or ANY_TIME)
    )


def with_trusted_times(column: str, frame: DataFrame, latest_us: Column) -> DataFrame:
    """The rows, with null for times after this moment."""
    believed = in_microseconds(TimeColumn(column), frame) <= latest_us
    return frame.withColumn(column, F.when(believed, F.col(quoted(column))))


def in_microseconds(time: TimeColumn, frame: DataFrame) -> Column:
    """The time of each row in microseconds since the epoch. A timestamp without time zone counts as UTC, whatever the session's zone."""
    column = F.col(quoted(time.column))
    if isinstance(frame.schema[time.column].dataType, TimestampNTZType):
        number = _microseconds_without_zone(quoted(time.column))
    else:
        number = F.unix_micros(column)
    return number - F.lit(time.earlier_us) if time.earlier_us else number


def _microseconds_without_zone(name: str) -> Column:
    """Microseconds of a timestamp without time zone. Spark has no function that ignores the session's zone, so it uses an interval."""
    since = f"({name} - {_EPOCH})"
    parts = [("DAY", _DAY_US), ("HOUR", _HOUR_US), ("MINUTE", _MINUTE_US)]
    whole = [F.expr(f"EXTRACT({unit} FROM {since})").cast("long") * F.lit(us) for unit, us in parts]
    seconds = (F.expr(f"EXTRACT(SECOND FROM {since})") * F.lit(_SECOND_US)).cast("long")
    return whole[0] + whole[1] + whole[2] + seconds


_PARTITION_COLUMNS = {"kafka": ("topic", "partition"), LOG: ("partition",)}
"""The columns that identify the partition of a row, by the name of the source; its positions use the same."""


def checked_time(options: EventTime | None, frame: DataFrame, uid: str) -> TimeSettings | None:
    """The event time options of a source, checked against its columns; None if it has no event time. Raises `ConfigError`."""
    if options is None:
        return None
    _check_column(frame, uid, options.column)
    partition, in_positions = _partition(frame, uid, options.partition_by)
    return TimeSettings.of(options, partition, in_positions=in_positions)


def _check_column(frame: DataFrame, uid: str, column: str) -> None:
    check_time_column(uid, column, frame.columns)
    kind = frame.schema[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise no_timestamp(uid, column, kind.simpleString())


def _partition(frame: DataFrame, uid: str, given: object) -> tuple[tuple[str, ...], bool]:
    """The columns that identify partitions, and whether positions use the same."""
    if given is not None:
        names = (
            (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
        )
        missing = [name for name in names if name not in frame.columns]
        if missing or not names:
            raise ConfigError(
                f"source {uid!r}: partition_by={given!r} has to name columns that tell its partitions apart; there are "
                f"{', '.join(frame.columns)}",
                uid=uid,
            )
        return names, False
    kind, kept = kept_columns(frame)
    wanted = _PARTITION_COLUMNS.get(kind, ())
    if wanted and not kept.issuperset(wanted):
        _log.warning(
            "source %r: its rows do not tell their partitions any more, so one watermark applies to all: rows of a slow partition can be "
            "late. Keep the %s until read(), and drop columns that are not needed afterwards, with transform(...)",
            *(uid, named(wanted, "column")),
            extra=about(operator=uid),
        )
        return (), False
    return wanted, bool(wanted)


MOST_OBSERVED = 64
"""Each partition costs one comparison for every row."""
METRIC = "penstock-newest-"


@dataclass
class NewestTimes:
    """Finds the newest event times in one batch, by source and partition."""

    settings: Mapping[str, TimeSettings] = field(default_factory=dict)
    """The settings of the sources whose times are used."""
    partitions: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The partitions of sources whose positions name them."""
    now_us: int = 0
    _found: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: JobSpec, batch: BatchUnderWay) -> NewestTimes:
        """For one batch; it looks for nothing if the batch reads nothing."""
        if not batch.reads:
            return cls()
        settings = cls.before(spec).settings
        partitions = named_partitions(batch.barrier.positions, settings)
        return cls(settings, partitions, batch.assignment.now_us)

    @classmethod
    def before(cls, spec: JobSpec) -> NewestTimes:
        """Before the first batch, when no partition is known."""
        used = frozenset[str]().union(*spec.timed_by.values())
        return cls({uid: one for uid, one in spec.event_times.items() if uid in used or one.refuses_absurd})

    def columns(self, uid: str) -> tuple[str, ...]:
        """The columns of a source that are read for its newest times."""
        settings = self.settings.get(uid)
        return () if settings is None else (settings.column, *(settings.partition or ()))

    @property
    def found(self) -> dict[str, dict[str, int]]:
        """The newest times by source and partition, except partitions without rows that have a time."""
        return self._found

    def needs_a_pass(self, uid: str) -> bool:
        """Whether the newest times of a source take a separate pass over its rows."""
        settings = self.settings.get(uid)
        return settings is not None and bool(settings.partition) and not self._observed_partitions(uid)

    def _observed_partitions(self, uid: str) -> list[str]:
        known = sorted(self.partitions.get(uid, ()))
        return known if len(known) <= MOST_OBSERVED else []

    # ── on the way ─────────────────────────────────────────────────────────────────────────────

    @property
    def shape(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What the plan of a batch depends on: the partitions whose times it records, by source."""
        return tuple((uid, tuple(self._observed_partitions(uid))) for uid in sorted(self.settings))

    def observed(
        self, uid: str, rows: DataFrame, value: Callable[[Callable[[Assignment], int]], Column]
    ) -> DataFrame:
        """The rows of a source; running them records their newest times. `value` returns a number that depends on the batch."""
        if uid not in self.settings or self.needs_a_pass(uid):
            return rows
        settings = self.settings[uid]
        time = _time(settings, rows, value(lambda assignment: latest_us(settings, assignment.now_us)))
        names = self._observed_partitions(uid) or [ALL_ROWS]
        newest = [
            F.max(time if name == ALL_ROWS else F.when(_is_of(settings, name), time)).alias(f"newest{at}")
            for at, name in enumerate(names)
        ]
        absurd = [F.count_if(time.isNull()).alias("absurd")] if settings.refuses_absurd else []
        return rows.observe(f"{METRIC}{uid}", *newest, *absurd)

    def take(self, observed: Mapping[str, Sequence[int | None]]) -> None:
        """Take the times that Spark recorded while it ran a plan, by the name of the metric."""
        for uid, settings in self.settings.items():
            numbers = observed.get(f"{METRIC}{uid}")
            if numbers is not None:
                names = self._observed_partitions(uid) or [ALL_ROWS]
                self._add(uid, dict(zip(names, numbers, strict=False)))
                if settings.refuses_absurd:
                    self._refuse(uid, numbers[len(names)] or 0)

    def _refuse(self, uid: str, absurd: int) -> None:
        """Refuse absurd times here: an operator that does not use event time would not notice them."""
        if absurd:
            raise BadRecordError(
                f"source {uid!r}: {counted(absurd, 'row has', 'rows have')} no event time in {self.settings[uid].column!r}, or one too far "
                "ahead of the clock, and bad_event_time is 'fail'; nothing of this batch is kept; filter such rows out before read(), or "
                "leave bad_event_time out: then they are late rows",
                source=uid,
                rows=absurd,
            )

    def _add(self, uid: str, newest: Mapping[str, int | None]) -> None:
        known = self._found.setdefault(uid, {})
        for name, us in newest.items():
            if us is not None:
                known[name] = max(us, known.get(name, us))

    # ── in a pass of its own ───────────────────────────────────────────────────────────────────

    def look_through(self, uid: str, rows: DataFrame) -> None:
        """Find the newest times of all partitions in a separate pass."""
        settings = self.settings[uid]
        columns = [F.col(quoted(name)).alias(f"p{at}") for at, name in enumerate(settings.partition or ())]
        all_rows = rows.select(
            *columns, _time(settings, rows, F.lit(latest_us(settings, self.now_us))).alias("us")
        )
        if settings.refuses_absurd:
            self._refuse(uid, all_rows.where("us is null").count())
        timed = all_rows.where("us is not null")
        for row in timed.groupBy(*timed.columns[:-1]).agg(F.max("us")).collect():
            *parts, us = row
            self._add(uid, {partition_name(parts): us})


def _time(settings: TimeSettings, rows: DataFrame, latest: Column) -> Column:
    """The time in microseconds; null if it is absurd or missing."""
    number = in_microseconds(TimeColumn(settings.column), rows)
    return F.when(number <= latest, number)


def _is_of(settings: TimeSettings, name: str) -> Column:
    """Whether a row belongs to a partition. The last column that positions name is a number, the others are strings."""
    columns = settings.partition or ()
    *texts, number = partition_parts(name)
    values = [*texts, int(str(number))]
    return reduce(
        and_, (F.col(quoted(at)) == F.lit(value) for at, value in zip(columns, values, strict=True))
    )
