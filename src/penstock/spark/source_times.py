"""What `job.read` was told about the time of a source's rows, checked, and what the source itself tells: its partitions. Driver."""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampNTZType, TimestampType

from penstock.config import FAIL, FOLLOW_CLOCK, LATE, WAIT, Duration, EventTime, seconds
from penstock.errors import ConfigError
from penstock.graph import TimeSettings
from penstock.log_fields import about
from penstock.spark.inspection import kept_columns
from penstock.spark.log_source import FORMAT as LOG
from penstock.state.lifetimes import in_microseconds
from penstock.wording import named, with_article

_log = logging.getLogger(__name__)

_PARTITION_COLUMNS = {"kafka": ("topic", "partition"), LOG: ("partition",)}
"""By the name of a source: columns that tell its partitions apart, as its positions do."""


def checked_time(options: EventTime | None, frame: DataFrame, uid: str) -> TimeSettings | None:
    """The options for a source, checked against its columns; raises `ConfigError`. None: the source has no event time."""
    if options is None:
        return None
    _check_column(frame, uid, options.column)
    _check_choice(uid, "bad_event_time", options.bad_event_time, (LATE, FAIL))
    _check_choice(uid, "when_all_idle", options.when_all_idle, (WAIT, FOLLOW_CLOCK))
    if options.when_all_idle == FOLLOW_CLOCK and options.idle_after is None:
        raise ConfigError(
            f"source {uid!r}: when_all_idle={FOLLOW_CLOCK!r} has no effect with idle_after=None, because no partition is ever idle; "
            "give idle_after a duration, or leave out when_all_idle",
            uid=uid,
        )
    partition, in_positions = _partition(frame, uid, options.partition_by)
    return TimeSettings(
        options.column,
        in_microseconds(seconds("out_of_order", options.out_of_order)),
        _or_none("idle_after", options.idle_after),
        _or_none("max_ahead", options.max_ahead),
        partition,
        options.bad_event_time == FAIL,
        in_positions,
        options.when_all_idle == FOLLOW_CLOCK,
    )


def _check_choice(uid: str, setting: str, value: object, choices: tuple[str, str]) -> None:
    if value not in choices:
        raise ConfigError(
            f"source {uid!r}: {setting}={value!r} is unknown: choose {choices[0]!r} or {choices[1]!r}",
            uid=uid,
        )


def _or_none(setting: str, value: Duration | None) -> int | None:
    return None if value is None else in_microseconds(seconds(setting, value, exclusive=True))


def _check_column(frame: DataFrame, uid: str, column: object) -> None:
    if not isinstance(column, str) or frame.columns.count(column) != 1:
        raise ConfigError(
            f"source {uid!r}: event_time={column!r} is not one of its columns; there are {', '.join(frame.columns)}",
            uid=uid,
            column=column,
        )
    kind = frame.schema[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise ConfigError(
            f"source {uid!r}: its event time {column!r} is {with_article(kind.simpleString())}, and has to be a timestamp; cast it before, "
            "for instance with F.timestamp_millis(...) or F.to_timestamp(...)",
            uid=uid,
            column=column,
            type=kind.simpleString(),
        )


def _partition(frame: DataFrame, uid: str, given: object) -> tuple[tuple[str, ...], bool]:
    """The columns that tell partitions apart, and whether positions name these, too."""
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
            "source %r: its rows do not tell their partitions any more, so one watermark holds for all: rows of a slow partition can be "
            "late. Keep the %s until read(), and drop what is not needed behind it with transform(...)",
            *(uid, named(wanted, "column")),
            extra=about(operator=uid),
        )
        return (), False
    return wanted, bool(wanted)
