"""The time of rows as Spark sees it: which column, checked against the columns there are, and as a number. Driver."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import TimestampNTZType, TimestampType

from penstock.errors import ConfigError
from penstock.operators.base import Node, Operator
from penstock.operators.event_time import ANY_TIME, TimeColumn
from penstock.spark.key_columns import quoted
from penstock.wording import with_article

_END = "penstock.window_end"
"""In the metadata of a column: it has the ends of windows. Spark hands it on when a column is renamed or copied."""
_EPOCH = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
_DAY_US, _HOUR_US, _MINUTE_US, _SECOND_US = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000


def event_time_of(node: Node, frame: DataFrame, *, uid: str, named: str | None = None) -> TimeColumn:
    """The time of the rows of a stream, for the operator `uid`; `frame` has its columns, `named` is what the user said there.

    Raises `ConfigError` where there is none, or it is no timestamp.
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
        "Keep the end of the window on the way, under any name: who renames it keeps the time of the result. What is computed from it is "
        "another time, and may lie behind the window"
        if time.earlier_us
        else "Keep the column on the way, or name another with event_time="
    )
    return ConfigError(
        f"operator {uid!r} {what} {time.column!r}, and there is no such column; there are {', '.join(frame.columns)}. {keep}",
        operator=uid,
        column=time.column,
    )


def with_marked_end(node: Operator, frame: DataFrame) -> DataFrame:
    """The results of an operator. The end of a window is known by a mark that it keeps under other names, too."""
    end = node.end_column
    return frame if end is None or end not in frame.columns else frame.withMetadata(end, {_END: True})


def marked_in_both(left: DataFrame, right: DataFrame) -> DataFrame:
    """Both streams in one. A column that has the ends of windows in only one of them has moments: Spark would go by the left one."""
    both = left.unionByName(right)
    for name in both.columns:
        if _is_end(name, both) and not _is_end(name, right):
            both = both.withMetadata(name, {})
    return both


def _is_end(name: str, frame: DataFrame) -> bool:
    return name in frame.columns and bool(frame.schema[name].metadata.get(_END))


def _renamed_end(time: TimeColumn, frame: DataFrame, uid: str) -> TimeColumn:
    """The time of results of a window whose `window_end` has another name now."""
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
    """A column that the stream inherits as its time means what it means there, also when it is named once more, or has another name."""
    if _is_end(named, frame):
        return TimeColumn(named, earlier_us=1, of_results=True)
    try:
        inherited = node.event_time_column()
    except ConfigError:  # two streams that disagree: that is why one is named
        inherited = None
    return (
        inherited
        if inherited is not None and inherited.column == named
        else TimeColumn(named, of_results=node.are_results).within(node.time_limits() or ANY_TIME)
    )


def with_believed_times(column: str, frame: DataFrame, latest_us: int) -> DataFrame:
    """The rows with no time where it lies after this moment."""
    believed = in_microseconds(TimeColumn(column), frame) <= F.lit(latest_us)
    return frame.withColumn(column, F.when(believed, F.col(quoted(column))))


def in_microseconds(time: TimeColumn, frame: DataFrame) -> Column:
    """The time of each row in microseconds since the epoch; one without a time zone as if it were in UTC, whatever the session's is."""
    column = F.col(quoted(time.column))
    if isinstance(frame.schema[time.column].dataType, TimestampNTZType):
        number = _microseconds_without_zone(quoted(time.column))
    else:
        number = F.unix_micros(column)
    return number - F.lit(time.earlier_us) if time.earlier_us else number


def _microseconds_without_zone(name: str) -> Column:
    """Spark has no function for it that leaves the session's time zone out, so it is put together from the parts of an interval."""
    since = f"({name} - {_EPOCH})"
    parts = [("DAY", _DAY_US), ("HOUR", _HOUR_US), ("MINUTE", _MINUTE_US)]
    whole = [F.expr(f"EXTRACT({unit} FROM {since})").cast("long") * F.lit(us) for unit, us in parts]
    seconds = (F.expr(f"EXTRACT(SECOND FROM {since})") * F.lit(_SECOND_US)).cast("long")
    return whole[0] + whole[1] + whole[2] + seconds
