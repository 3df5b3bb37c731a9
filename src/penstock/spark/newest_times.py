"""The newest event times among the rows of a batch, for the watermark: by source and partition. Driver.

Spark notes them while it does what the batch is for (`DataFrame.observe`), and they are read from the plans that ran. Nobody waits for
them: what did not run has noted nothing. Where the partitions are many, or not known before, they are found in a pass of their own over the
batch, which is kept for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.errors import BadRecordError
from penstock.graph import TimeSettings
from penstock.job_spec import JobSpec
from penstock.operators.event_time import TimeColumn
from penstock.run.run import BatchUnderWay
from penstock.run.source_partitions import ALL_ROWS, named_partitions, partition_name, partition_parts
from penstock.run.watermarks import latest_us
from penstock.spark.event_times import in_microseconds
from penstock.spark.key_columns import quoted
from penstock.wording import counted

MOST_OBSERVED = 64
"""Each partition costs a comparison for every row."""
_METRIC = "penstock-newest-"


@dataclass
class NewestTimes:
    """Of one batch."""

    settings: Mapping[str, TimeSettings] = field(default_factory=dict)
    """Those sources whose time anybody uses."""
    partitions: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Where they are known from the positions."""
    now_us: int = 0
    _found: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: JobSpec, batch: BatchUnderWay) -> NewestTimes:
        """Those to look for in a batch; none if it reads nothing."""
        if not batch.reads:
            return cls()
        used = frozenset[str]().union(*spec.timed_by.values())
        settings = {uid: one for uid, one in spec.event_times.items() if uid in used or one.refuses_absurd}
        partitions = named_partitions(batch.barrier.positions, settings)
        return cls(settings, partitions, batch.assignment.now_us)

    @property
    def found(self) -> dict[str, dict[str, int]]:
        """By source and partition; those without rows that have a time are not there."""
        return self._found

    def needs_a_pass(self, uid: str) -> bool:
        """Whether the rows of a source must be read once more for it."""
        settings = self.settings.get(uid)
        return settings is not None and bool(settings.partition) and not self._observed_partitions(uid)

    def _observed_partitions(self, uid: str) -> list[str]:
        known = sorted(self.partitions.get(uid, ()))
        return known if len(known) <= MOST_OBSERVED else []

    # ── on the way ─────────────────────────────────────────────────────────────────────────────

    def observed(self, uid: str, rows: DataFrame) -> DataFrame:
        """The rows of a source; what runs over them notes their times."""
        if uid not in self.settings or self.needs_a_pass(uid):
            return rows
        settings = self.settings[uid]
        time = self._time(settings, rows)
        names = self._observed_partitions(uid) or [ALL_ROWS]
        newest = [
            F.max(time if name == ALL_ROWS else F.when(_is_of(settings, name), time)).alias(f"newest{at}")
            for at, name in enumerate(names)
        ]
        absurd = [F.count_if(time.isNull()).alias("absurd")] if settings.refuses_absurd else []
        return rows.observe(f"{_METRIC}{uid}", *newest, *absurd)

    def take(self, ran: DataFrame) -> None:
        """What was noted when this very frame was computed; also by what of it had been computed before, and kept."""
        if not self.settings:
            return
        metrics = ran._jdf.queryExecution().observedMetrics()
        for uid in self.settings:
            row = metrics.get(f"{_METRIC}{uid}")
            if row.isDefined():
                names = self._observed_partitions(uid) or [ALL_ROWS]
                self._add(uid, {name: row.get().get(at) for at, name in enumerate(names)})
                if self.settings[uid].refuses_absurd:
                    self._refuse(uid, int(row.get().get(len(names))))

    def _refuse(self, uid: str, absurd: int) -> None:
        """Whoever takes the rows: an operator that does not look at their times would say nothing of it."""
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
        """Find the newest times of all partitions, whichever there are."""
        settings = self.settings[uid]
        columns = [F.col(quoted(name)).alias(f"p{at}") for at, name in enumerate(settings.partition or ())]
        all_rows = rows.select(*columns, self._time(settings, rows).alias("us"))
        if settings.refuses_absurd:
            self._refuse(uid, all_rows.where("us is null").count())
        timed = all_rows.where("us is not null")
        for row in timed.groupBy(*timed.columns[:-1]).agg(F.max("us")).collect():
            *parts, us = row
            self._add(uid, {partition_name(parts): us})

    def _time(self, settings: TimeSettings, rows: DataFrame) -> Column:
        """In microseconds; null where it is absurd, or there is none."""
        number = in_microseconds(TimeColumn(settings.column), rows)
        return F.when(number <= F.lit(latest_us(settings, self.now_us)), number)


def _is_of(settings: TimeSettings, name: str) -> Column:
    """Whether a row is of a partition; the last column of those that positions name is a number, others are texts."""
    columns = settings.partition or ()
    *texts, number = partition_parts(name)
    values = [*texts, int(str(number))]
    return reduce(
        and_, (F.col(quoted(at)) == F.lit(value) for at, value in zip(columns, values, strict=True))
    )
