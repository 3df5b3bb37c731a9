"""Every figure by name: its goal, and in one line what is compared. Needs no Spark, so that the pages can be checked against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PRINTED = "printed"


@dataclass(frozen=True)
class Figure:
    """What is promised."""

    name: str
    goal: str
    what: str


NEXMARK = {
    "q0": "pass through",
    "q1": "prices in another currency",
    "q2": "a filter",
    "q3": "an unbounded join",
    "q4": "average closing prices, against `transformWithState`",
    "q5": "hot items: sliding windows, and windows over them",
    "q7": "the highest bid of ten seconds",
    "q8": "two windows and a join",
    "q9": "winning bids, against `transformWithState`",
    "q11": "sessions",
    "q15": "distinct counts by day, which Spark only estimates",
    "q16": "distinct counts by channel and day, which Spark only estimates",
    "q17": "statistics by auction and day",
    "q18": "the last bid of each bidder",
    "q19": "the ten highest bids, against `transformWithState`",
    "q20": "bids joined with their auctions, unbounded",
    "q20_bounded": "the same within twenty seconds",
}
"""The queries of Nexmark that are measured."""
NEXMARK_OWN_CODE = frozenset(("q4", "q9", "q19"))
"""Those that Spark's SQL cannot express."""


def _nexmark() -> Iterator[Figure]:
    for query, what in NEXMARK.items():
        for kind, words in (("cpu", "CPU seconds of all processes"), ("wall", "seconds")):
            yield Figure(
                f"nexmark_{query}_{kind}_vs_spark",
                ">= 10" if query in NEXMARK_OWN_CODE else ">= 1",
                f"Nexmark {query}, {what}: {words} for a batch of 50,000 events, Spark over Penstock",
            )
    for kind in ("cpu", "wall"):
        yield Figure(
            f"nexmark_{kind}_vs_spark",
            ">= 2",
            f"the geometric mean of the `{kind}` figures of Nexmark, without those against `transformWithState`",
        )


FIGURES = {
    figure.name: figure
    for figure in (
        Figure(
            "process_vs_transform_with_state",
            ">= 50",
            "own Python per key, against PySpark's `transformWithState`: 500,000 rows a batch over 200,000 keys",
        ),
        Figure(
            "process_vs_transform_with_state_zipf",
            ">= 50",
            "the same, but few keys have most of the rows",
        ),
        Figure(
            "process_vs_transform_with_state_in_pandas",
            ">= 200",
            "the same as the first, against `transformWithStateInPandas`; the peer runs one batch only",
        ),
        Figure(
            "map_vs_transform_with_state",
            ">= 30",
            "the same rows, each in an entry of its key's `MapState`, against the map state of `transformWithState`; "
            "the peer runs one batch only",
        ),
        Figure(
            "timers_vs_transform_with_state",
            ">= 30",
            "the same rows, each key with a timer that fires a second later, against the timers of `transformWithState`",
        ),
        Figure(
            "join_vs_spark",
            ">= 2",
            "two streams of 2,000,000 rows joined within ten minutes of event time, against Spark's stream-stream join: "
            "200,000 rows of each in a batch",
        ),
        Figure(
            "dedupe_vs_spark",
            ">= 2",
            "`dedupe` within ten minutes, against `dropDuplicatesWithinWatermark`: 400,000 rows a batch, of which one in five came before",
        ),
        Figure(
            "aggregate_vs_spark_native",
            ">= 3",
            "`aggregate`, against `groupBy().count()` with Spark's RocksDB state store and changelog: "
            "500,000 rows a batch, 200,000 keys of state",
        ),
        Figure(
            "aggregate_vs_spark_native_large",
            ">= 3",
            "the same with 5,000,000 keys of state",
        ),
        Figure(
            "window_vs_spark",
            ">= 2",
            "a count of each key by the minute, against `window` with a watermark and Spark's RocksDB state store: "
            "500,000 rows a batch over 200,000 keys, 20 seconds of event time each",
        ),
        Figure(
            "state_scale",
            "<= 1.5",
            "the time of a batch of 100,000 changed keys: 10,000,000 keys of state over 100,000",
        ),
        Figure(
            "worker_memory",
            "<= 1.5",
            "the most memory of a Python worker in these batches, mapped files apart: 10,000,000 keys over 100,000",
        ),
        Figure(
            "map_state_scale",
            "<= 1.5",
            "the time of a batch that touches 1 entry of each of 1,000 maps: maps of 100,000 entries over maps of 10",
        ),
        Figure(
            "list_append_scale",
            "<= 1.5",
            "the time of a batch that appends to each of 1,000 lists: lists of 100,000 elements over lists of 10",
        ),
        Figure(
            "timer_scale",
            "<= 1.5",
            "the time of a task in which 1,000 timers fire: 10,000,000 that wait over 10,000",
        ),
        Figure(
            "checkpoint_scale_bytes",
            "<= 1.2",
            "what a checkpoint of 10,000 changed keys adds: 5,000,000 keys of state over 50,000",
        ),
        Figure(
            "checkpoint_scale_seconds",
            "<= 1.5",
            "the same checkpoints: freezing and uploading, the slowest subtask",
        ),
        Figure(
            "exactly_once_cost",
            "<= 1.1",
            "throughput at least once over exactly once, a checkpoint every batch, 500,000 rows over 200,000 keys",
        ),
        Figure(
            "small_batch_overhead",
            "<= 1.5",
            "a batch of 1,000 rows into Parquet, against the same `foreachBatch` without Penstock",
        ),
        Figure(
            "operator_cost",
            PRINTED,
            "what each further operator of a job adds to a batch, over a batch of a job with one: chains of two, three and five "
            "`process` over 50,000 rows of 1,000 keys",
        ),
        Figure(
            "ttl_cost",
            "<= 1.2",
            "a batch of the same rows whose counts have a time to live of a day, over one whose counts have none",
        ),
        Figure(
            "process_over_floor",
            "<= 1.5",
            "a batch of `process_vs_transform_with_state`, over the same batch whose rows only reach Python and are dropped there",
        ),
        Figure(
            "aggregate_over_floor",
            "<= 1.5",
            "the same rows with `aggregate`, over the same batch that Spark only aggregates and Python drops",
        ),
        Figure(
            "first_batch_seconds",
            "<= 1.3",
            "from `start` to the first committed row of a new job, over the same `foreachBatch` without Penstock",
        ),
        Figure(
            "recovery_seconds",
            PRINTED,
            "from `kill -9` of the driver of a job with 200,000 keys, kept alive, to its next committed row, over the cold start of an "
            "empty PySpark job: a session and one batch",
        ),
        Figure(
            "postgres_vs_spark_jdbc",
            ">= 3",
            "`sinks.Postgres`, exactly once with a checkpoint every batch, against `foreachBatch` with Spark's JDBC writer: "
            "1,000,000 rows of five columns a batch into a table of the same server",
        ),
        Figure(
            "kafka_vs_spark",
            ">= 0.7",
            "Spark's Kafka sink, at least once, over `sinks.Kafka`, exactly once: seconds until the 200,000 rows of a batch are "
            "readable with read_committed",
        ),
        Figure(
            "bootstrap",
            PRINTED,
            "a job over 5,000,000 rows of the past and 100,000 new ones: streaming all of it, over a savepoint written by a batch "
            "and a start from it",
        ),
        Figure(
            "savepoint_seconds",
            PRINTED,
            "a savepoint of 5,000,000 keys, against Spark's own reader of state stores that writes them as Parquet: times as quick",
        ),
        Figure(
            "start_from_savepoint_seconds",
            "<= 3",
            "until the first batch is done: a start from that savepoint with another parallelism, over an ordinary restart",
        ),
        Figure(
            "rescale_vs_spark",
            ">= 3",
            "until the first batch with another parallelism is done: Spark's offline repartition and restart, over ours; 5,000,000 keys",
        ),
        Figure(
            "savepoint_slowdown",
            "<= 1.25",
            "a batch of 100,000 rows while one savepoint after the other is made, over a batch without",
        ),
        Figure(
            "ui_overhead",
            "<= 1.05",
            "a batch of 100,000 rows while 10 requests a second look at the job's pages, over a batch while nobody does",
        ),
        Figure(
            "result_latency_exactly_over_at_least_once",
            PRINTED,
            "time until a result is seen, with a checkpoint every 2 s",
        ),
        Figure(
            "filesystem_vs_rocksdb",
            PRINTED,
            "the same `process` job: seconds on RocksDB over seconds on sorted files",
        ),
        Figure(
            "process_batch_vs_process",
            PRINTED,
            "Python for a batch of keys at a time, against a key at a time",
        ),
        *_nexmark(),
    )
}
