"""A job that lives by event time: timers, windows and a join, all over the same clicks, and what they must give in the end.

The time of a row follows from its position in the log, so that the truth can be computed from the log alone. No row is late: in each
partition times only rise. Alarms form chains, as links do (see `chaos_job`): each fires once, in the order of time, on the state that was kept.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.dataset as ds
from known_truth import JOB, Site
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps

STEP_US = 50_000
"""Between two rows of a partition."""
ALARM_S = 7
WINDOW_S = 10
NEAR_S = 2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OUTPUTS = ("alarms", "windows", "pairs")


class Alarms(ps.KeyedProcess):
    """Sets an alarm some time after each row. Each that goes off names the one before."""

    set_for = ps.MapState("timestamp", "long")
    last = ps.ValueState("string", default="")

    def process(self, key, rows, ctx):
        for row in rows:
            at = row.at + timedelta(seconds=ALARM_S)
            self.set_for[at] = self.set_for.get(at, 0) + 1
            ctx.set_timer(at)

    def on_timer(self, key, timer, ctx):
        before, self.last.value = self.last.value, secrets.token_hex(8)
        yield key, timer.at, self.set_for.pop(timer.at), before, self.last.value


def build_timed_job(site: Site, spark: SparkSession, *, interval: str, rows_per_batch: int) -> ps.Job:
    """Alarms by user, counts by app and window, and pairs of clicks of a user that are near to each other."""
    job = ps.Job(
        JOB,
        storage=site.storage,
        local_dir=site.local_dir,
        checkpoint=ps.Checkpointing(interval=interval, retained=2),
        restart=ps.exponential_delay(initial="100ms", maximum="2s"),
    )
    clicks = job.read(
        _timed(site.log.read(spark, rows_per_batch=rows_per_batch)),
        uid="clicks",
        event_time="at",
        out_of_order="0s",
    )
    alarms = clicks.key_by("user").process(
        Alarms(), schema="user long, at timestamp, n long, before string, name string", uid="alarms"
    )
    windows = (
        clicks.key_by("app")
        .window(ps.windows.tumbling(f"{WINDOW_S}s"))
        .aggregate(n=F.count("*"), users=F.sum("user"), uid="windows")
    )
    first, second = clicks.transform(_in_half(0)), clicks.transform(_in_half(1))
    near = (f"-{NEAR_S}s", f"{NEAR_S}s")
    pairs = first.join(
        second.transform(_right), on="user", within=near, event_time=("at", "right_at"), uid="pairs"
    )
    for stream, name in zip((alarms, windows, pairs), OUTPUTS, strict=True):
        stream.write_to(ps.sinks.Files(site.root / name, format="parquet"), uid=f"{name}-out")
    return job


def _timed(clicks: DataFrame) -> DataFrame:
    return clicks.withColumn("at", F.timestamp_micros(F.col("offset") * STEP_US + F.col("partition")))


def _in_half(half: int):
    """Clicks on the first apps, or on the others."""
    return lambda clicks: clicks.where(F.substring("app", 4, 1).cast("int") % 2 == half)


def _right(clicks: DataFrame) -> DataFrame:
    return clicks.select(
        "user", *(F.col(name).alias(f"right_{name}") for name in ("partition", "offset", "at"))
    )


# ── the truth ──────────────────────────────────────────────────────────────────────────────────


def assert_timed_outputs_exact(site: Site) -> None:
    """When the input was drained: every alarm, window and pair once, with the right content."""
    clicks = site.log.table().to_pylist()
    for row in clicks:
        row["at"] = EPOCH + timedelta(microseconds=row["offset"] * STEP_US + row["partition"])
    found = (
        _alarm_differences(site, clicks) + _window_differences(site, clicks) + _pair_differences(site, clicks)
    )
    assert max((row["at"] for row in clicks), default=EPOCH) > EPOCH + timedelta(seconds=3 * WINDOW_S), (
        "too little came"
    )
    shown = "\n  ".join(found[:12])
    assert not found, f"{len(found)} differences from the truth of {len(clicks)} rows:\n  {shown}"


def _rows(site: Site, name: str) -> list[dict[str, Any]]:
    if not any((site.root / name).glob("*.parquet")):
        return []
    return ds.dataset(site.root / name, format="parquet").to_table().to_pylist()


def _differences(what: str, given: Counter[Any], wanted: Counter[Any]) -> list[str]:
    lost = [f"{what} {one} lost, {count} times" for one, count in (wanted - given).items()]
    return lost + [f"{what} {one} too many, {count} times" for one, count in (given - wanted).items()]


def _alarm_differences(site: Site, clicks: list[dict[str, Any]]) -> list[str]:
    rows = _rows(site, "alarms")
    after = timedelta(seconds=ALARM_S)
    wanted = Counter((row["user"], row["at"] + after) for row in clicks)
    given = Counter((row["user"], row["at"]) for row in rows for _ in range(row["n"]))
    found = _differences("alarm", given, wanted)
    found += _differences("alarm", Counter((row["user"], row["at"]) for row in rows), Counter(wanted.keys()))
    by_user: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["at"]):
        by_user[row["user"]].append(row)
    for user, own in by_user.items():
        links = ["", *(row["name"] for row in own)]
        if [row["before"] for row in own] != links[:-1]:
            found.append(f"the alarms of user {user} are no chain in the order of time")
    return found


def _window_differences(site: Site, clicks: list[dict[str, Any]]) -> list[str]:
    counts: Counter[Any] = Counter()
    sums: Counter[Any] = Counter()
    for row in clicks:
        start = row["at"] - timedelta(
            microseconds=(row["at"] - EPOCH) // timedelta(microseconds=1) % (WINDOW_S * 10**6)
        )
        counts[row["app"], start] += 1
        sums[row["app"], start] += row["user"]
    wanted = Counter((*window, count, sums[window]) for window, count in counts.items())
    given = Counter(
        (row["app"], row["window_start"], row["n"], row["users"]) for row in _rows(site, "windows")
    )
    return _differences("window", given, wanted)


def _pair_differences(site: Site, clicks: list[dict[str, Any]]) -> list[str]:
    near = timedelta(seconds=NEAR_S)
    right: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in clicks:
        if int(row["app"][3]) % 2 == 1:
            right[row["user"]].append(row)
    wanted = Counter(
        (row["partition"], row["offset"], other["partition"], other["offset"])
        for row in clicks
        if int(row["app"][3]) % 2 == 0
        for other in right[row["user"]]
        if abs(other["at"] - row["at"]) <= near
    )
    columns = ("partition", "offset", "right_partition", "right_offset")
    given = Counter(tuple(row[name] for name in columns) for row in _rows(site, "pairs"))
    return _differences("pair", given, wanted)
