"""What `job.read` was told about the time of a source's rows, checked, and what the source itself tells: its partitions. Driver."""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampNTZType, TimestampType

from penstock.config import EventTime
from penstock.errors import ConfigError
from penstock.graph import TimeSettings
from penstock.log_fields import about
from penstock.operators.inputs import check_time_column, no_timestamp
from penstock.spark.inspection import kept_columns
from penstock.spark.log_source import FORMAT as LOG
from penstock.wording import named

_log = logging.getLogger(__name__)

_PARTITION_COLUMNS = {"kafka": ("topic", "partition"), LOG: ("partition",)}
"""By the name of a source: columns that tell its partitions apart, as its positions do."""


def checked_time(options: EventTime | None, frame: DataFrame, uid: str) -> TimeSettings | None:
    """The options for a source, checked against its columns; raises `ConfigError`. None: the source has no event time."""
    if options is None:
        return None
    _check_column(frame, uid, options.column)
    partition, in_positions = _partition(frame, uid, options.partition_by)
    return TimeSettings.of(uid, options, partition, in_positions=in_positions)


def _check_column(frame: DataFrame, uid: str, column: str) -> None:
    check_time_column(uid, column, frame.columns)
    kind = frame.schema[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise no_timestamp(uid, column, kind.simpleString())


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
