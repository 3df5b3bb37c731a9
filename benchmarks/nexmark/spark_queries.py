"""The same queries in plain Spark Structured Streaming. Driver; the classes run in workers too.

Spark's SQL has no exact distinct counts over streams, so q15 and q16 estimate them. It cannot express q4, q9 and q19: these use
`transformWithState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobs
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from nexmark.events import (
    AUCTION_SCHEMA,
    BID_SCHEMA,
    DISORDER_MS,
    LEVELS,
    LONGEST_MS,
    Events,
    auctions,
    bids,
    persons,
)

DELAY = f"{DISORDER_MS} milliseconds"


def _timed(rows: DataFrame, column: str = "dateTime") -> DataFrame:
    return rows.withWatermark(column, DELAY)


def q0(events: DataFrame) -> DataFrame:
    return bids(events).select("auction", "bidder", "price", "dateTime", "extra")


def q1(events: DataFrame) -> DataFrame:
    euros = (F.col("price") * 0.908).alias("price")
    return bids(events).select("auction", "bidder", euros, "dateTime", "extra")


def q2(events: DataFrame) -> DataFrame:
    return bids(events).where("auction % 123 = 0").select("auction", "price")


def q3(events: DataFrame) -> DataFrame:
    listed = auctions(events).where("category = 10").select("id", "seller")
    people = persons(events).where("state in ('OR', 'ID', 'CA')")
    people = people.select(F.col("id").alias("person"), "name", "city", "state")
    return listed.join(people, F.expr("seller = person")).select("name", "city", "state", "id")


def q5(events: DataFrame) -> DataFrame:
    counts = (
        _timed(bids(events))
        .groupBy(F.window("dateTime", "10 seconds", "2 seconds"), "auction")
        .agg(F.count("*").alias("n"))
    )
    hottest = counts.groupBy(F.window(F.window_time("window"), "2 seconds").alias("step")).agg(
        F.max(F.struct("n", "auction")).alias("hottest")
    )
    return hottest.select(F.col("step.end").alias("window_end"), "hottest.auction", "hottest.n")


def q7(events: DataFrame) -> DataFrame:
    bid = F.struct("price", "auction", "bidder", "dateTime", "extra")
    highest = (
        _timed(bids(events)).groupBy(F.window("dateTime", "10 seconds")).agg(F.max(bid).alias("highest"))
    )
    return highest.select(F.col("window.end").alias("window_end"), "highest.*")


def q8(events: DataFrame) -> DataFrame:
    people = (
        _timed(persons(events))
        .groupBy(F.window("dateTime", "10 seconds"), "id", "name")
        .agg(F.count("*").alias("registered"))
    )
    sellers = (
        _timed(auctions(events))
        .groupBy(F.window("dateTime", "10 seconds").alias("listing"), "seller")
        .agg(F.count("*").alias("listed"))
    )
    both = people.join(sellers, F.expr("id = seller and window = listing"))
    return both.select("id", "name", F.col("window.start").alias("window_start"))


def q11(events: DataFrame) -> DataFrame:
    sessions = _timed(bids(events)).groupBy(F.session_window("dateTime", "10 seconds").alias("at"), "bidder")
    counts = sessions.agg(F.count("*").alias("bids"))
    return counts.select(
        "bidder", F.col("at.start").alias("window_start"), F.col("at.end").alias("window_end"), "bids"
    )


def _counts() -> list[Column]:
    return [F.count_if(F.expr(of)).alias(f"{level}_bids") for level, of in LEVELS.items()]


def _estimated_counts() -> list[Column]:
    return [
        F.approx_count_distinct(F.when(F.expr(of), F.col(column))).alias(f"{level}_{column}s")
        for column in ("bidder", "auction")
        for level, of in LEVELS.items()
    ]


def _with_day(rows: DataFrame) -> DataFrame:
    return rows.withColumn("day", F.date_format("dateTime", "yyyy-MM-dd"))


def q15(events: DataFrame) -> DataFrame:
    return _with_day(bids(events)).groupBy("day").agg(*_counts(), *_estimated_counts())


def q16(events: DataFrame) -> DataFrame:
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    return _with_day(bids(events)).groupBy("channel", "day").agg(minute, *_counts(), *_estimated_counts())


def q17(events: DataFrame) -> DataFrame:
    functions = {"min": F.min, "max": F.max, "avg": F.avg, "sum": F.sum}
    prices = [function("price").alias(f"{name}_price") for name, function in functions.items()]
    return _with_day(bids(events)).groupBy("auction", "day").agg(*_counts(), *prices)


def q18(events: DataFrame) -> DataFrame:
    bid = F.struct("price", "channel", "url", "dateTime", "extra")
    last = F.max_by(bid, F.struct("dateTime", "price")).alias("last")
    return bids(events).groupBy("bidder", "auction").agg(last).select("auction", "bidder", "last.*")


def _listed(events: DataFrame) -> DataFrame:
    named = auctions(events).where("category = 10")
    return named.withColumnsRenamed({"dateTime": "listedAt", "extra": "listedExtra"})


def q20(events: DataFrame) -> DataFrame:
    return bids(events).join(_listed(events), F.expr("auction = id"))


def q20_bounded(events: DataFrame) -> DataFrame:
    within = f"dateTime between listedAt and listedAt + interval {LONGEST_MS} milliseconds"
    listed = _timed(_listed(events), "listedAt")
    return _timed(bids(events)).join(listed, F.expr(f"auction = id and {within}"))


def _as_numbers(rows: DataFrame) -> DataFrame:
    """Times in milliseconds: those of state come back without a time zone, those of rows with one."""
    times = [field.name for field in rows.schema if field.dataType.typeName() == "timestamp"]
    return rows.withColumns({name: F.unix_millis(name) for name in times})


def _as_times(rows: DataFrame, *names: str) -> DataFrame:
    return rows.withColumns({name: F.timestamp_millis(name) for name in names})


class ClosingPrices(StatefulProcessor):
    """The highest bid of an auction, when it closes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.auction = handle.getValueState("auction", "category long, begins long, expires long")
        self.price = handle.getValueState("price", "price long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        offers = []
        for row in rows:
            if row.expires is not None:
                self.auction.update((row.category, row.begins, row.expires))
                self.handle.registerTimer(row.expires)
            else:
                offers.append(row)
        if offers and self.auction.exists():
            self._take(offers)
        yield from ()

    def _take(self, offers: list[Row]) -> None:
        _, begins, expires = self.auction.get()
        highest = max((row.price for row in offers if begins <= row.begins <= expires), default=0)
        if highest > (self.price.get()[0] if self.price.exists() else 0):
            self.price.update((highest,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        if self.price.exists():
            yield Row(category=self.auction.get()[0], price=self.price.get()[0])
        self.auction.clear()
        self.price.clear()

    def close(self) -> None:
        """Nothing is open."""


def q4(events: DataFrame) -> DataFrame:
    """Only the closing prices: Spark refuses an aggregate of them in the same query."""
    begins = F.unix_millis("dateTime").alias("begins")
    expires = F.unix_millis("expires").alias("expires")
    listed = _timed(auctions(events)).select("id", "dateTime", "category", begins, expires)
    offers = _timed(bids(events)).select(F.col("auction").alias("id"), "dateTime", "price", begins)
    both = listed.unionByName(offers, allowMissingColumns=True)
    return both.groupBy("id").transformWithState(
        statefulProcessor=ClosingPrices(),
        outputStructType="category long, price long",
        outputMode="Append",
        timeMode="EventTime",
    )


AUCTION = AUCTION_SCHEMA.replace("timestamp", "long")
OFFER = "bidder long, price long, bidTime long, bidExtra string"
AUCTION_COLUMNS, OFFER_COLUMNS = (
    [column.split()[0] for column in schema.split(", ")] for schema in (AUCTION, OFFER)
)


class WinningBids(StatefulProcessor):
    """The highest bid in the time of an auction, whenever there is a higher one."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.auction = handle.getValueState("auction", AUCTION)
        self.best = handle.getValueState("best", OFFER)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        offers = []
        for row in rows:
            if row.expires is not None:
                self.auction.update(tuple(row[name] for name in AUCTION_COLUMNS))
            else:
                offers.append(tuple(row[name] for name in OFFER_COLUMNS))
        if offers and self.auction.exists():
            yield from self._winners(self.auction.get(), offers)

    def _winners(self, auction: tuple[Any, ...], offers: list[tuple[Any, ...]]) -> Iterator[Row]:
        _, _, _, _, _, begins, expires, *_ = auction
        before = [tuple(self.best.get())] if self.best.exists() else []
        in_time = [
            (bidder, price, at, extra) for bidder, price, at, extra in offers if begins <= at <= expires
        ]
        best = min(before + in_time, key=lambda offer: (-offer[1], offer[2], offer[0]), default=None)
        if best is not None and [best] != before:
            self.best.update(best)
            yield Row(
                **dict(zip(AUCTION_COLUMNS, auction, strict=True)),
                **dict(zip(OFFER_COLUMNS, best, strict=True)),
            )

    def close(self) -> None:
        """Nothing is open."""


def q9(events: DataFrame) -> DataFrame:
    offers = bids(events).withColumnsRenamed({"auction": "id", "dateTime": "bidTime", "extra": "bidExtra"})
    both = auctions(events).unionByName(offers.select("id", *OFFER_COLUMNS), allowMissingColumns=True)
    winners = (
        _as_numbers(both)
        .groupBy("id")
        .transformWithState(
            statefulProcessor=WinningBids(),
            outputStructType=f"{AUCTION}, {OFFER}",
            outputMode="Append",
            timeMode="None",
        )
    )
    return _as_times(winners, "dateTime", "expires", "bidTime")


BID = BID_SCHEMA.replace("timestamp", "long")
BID_COLUMNS = [column.split()[0] for column in BID.split(", ")]


class HighestBids(StatefulProcessor):
    """The ten highest bids on an auction, whenever they change."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.highest = handle.getListState("highest", BID)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = [tuple(bid) for bid in self.highest.get()]
        bids = [*before, *(tuple(row[name] for name in BID_COLUMNS) for row in rows)]
        highest = sorted(bids, key=lambda bid: (-bid[2], bid[5], bid[1]))[:10]
        if highest != before:
            self.highest.put(highest)
            for rank, bid in enumerate(highest, start=1):
                yield Row(**dict(zip(BID_COLUMNS, bid, strict=True)), rank=rank)

    def close(self) -> None:
        """Nothing is open."""


def q19(events: DataFrame) -> DataFrame:
    highest = (
        _as_numbers(bids(events))
        .groupBy("auction")
        .transformWithState(
            statefulProcessor=HighestBids(),
            outputStructType=f"{BID}, rank int",
            outputMode="Append",
            timeMode="None",
        )
    )
    return _as_times(highest, "dateTime")


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    query.__name__: query
    for query in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q15, q16, q17, q18, q19, q20, q20_bounded)
}
UPDATES = frozenset(("q15", "q16", "q17", "q18"))
"""Queries whose results replace earlier ones. Spark's file sink refuses them: a function writes their files, at least once."""


@dataclass(frozen=True)
class SparkQuery:
    """A query over the events into Parquet files, with state in RocksDB."""

    query: str
    events: Events
    root: Path

    @property
    def results(self) -> Path:
        """Where the files of results lie."""
        return self.root / "out"

    def run(self, spark: SparkSession) -> None:
        """Run over what is there."""
        results = QUERIES[self.query](self.events.read(spark))
        if self.query in UPDATES:
            writer = results.writeStream.outputMode("update").foreachBatch(self._append)
        else:
            writer = (
                results.writeStream.outputMode("append").format("parquet").option("path", str(self.results))
            )
        jobs.run_query(writer, self.root / "checkpoint")

    def _append(self, rows: DataFrame, _: int) -> None:
        rows.write.mode("append").parquet(str(self.results))
