"""The queries as jobs of Penstock. Driver; the class of own code runs in workers too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from nexmark.events import LEVELS, LONGEST_MS, Events, auctions, bids, persons

AT_ONCE = 4
"""So many checkpoints may be under way, so that a slow one does not spare the next batch its own."""
TIME = ps.EventTime("dateTime", out_of_order="5s")
LONGEST = f"{LONGEST_MS}ms"


@dataclass(frozen=True)
class Inputs:
    """The streams of a job. A query reads those that it needs, with event time if it needs it; queries of one job share them."""

    job: ps.Job
    events: DataFrame
    streams: dict[str, ps.types.Stream] = field(default_factory=dict)

    def persons(self, time: ps.EventTime | None = None) -> ps.types.Stream:
        return self._read("persons", persons, time)

    def auctions(self, time: ps.EventTime | None = None) -> ps.types.Stream:
        return self._read("auctions", auctions, time)

    def bids(self, time: ps.EventTime | None = None) -> ps.types.Stream:
        return self._read("bids", bids, time)

    def _read(
        self, uid: str, view: Callable[[DataFrame], DataFrame], time: ps.EventTime | None
    ) -> ps.types.Stream:
        if uid not in self.streams:
            self.streams[uid] = self.job.read(view(self.events), uid=uid, event_time=time)
        return self.streams[uid]


Query = Callable[[Inputs], ps.types.Stream]


def q0(read: Inputs) -> ps.types.Stream:
    """Pass through."""
    return read.bids().select("auction", "bidder", "price", "dateTime", "extra")


def q1(read: Inputs) -> ps.types.Stream:
    """Prices in another currency."""
    euros = (F.col("price") * 0.908).alias("price")
    return read.bids().select("auction", "bidder", euros, "dateTime", "extra")


def q2(read: Inputs) -> ps.types.Stream:
    """Bids on some auctions."""
    return read.bids().where("auction % 123 = 0").select("auction", "price")


def q3(read: Inputs) -> ps.types.Stream:
    """Who sells in a category, in three states."""
    listed = read.auctions().where("category = 10").select("id", "seller")
    people = read.persons().where("state in ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    sold = listed.join(people, on=[("seller", "id")], within="unbounded", uid="sold-by")
    return sold.select("name", "city", "state", "id")


class ClosingPrices(ps.KeyedCoProcess):
    """The highest bid of an auction, when it closes. A bid is never read before its auction."""

    auction = ps.ValueState("struct<category:long,begins:timestamp,expires:timestamp>")
    price = ps.ValueState("long", default=0)

    def process_left(self, key, rows, ctx):
        row = rows[0]
        self.auction.value = {"category": row.category, "begins": row.dateTime, "expires": row.expires}
        ctx.set_timer(row.expires)

    def process_right(self, key, rows, ctx):
        auction = self.auction.value
        if auction is not None:  # it is open
            begins, expires = auction["begins"], auction["expires"]
            bids = zip(rows.column("dateTime"), rows.column("price"), strict=True)
            highest = max((price for at, price in bids if begins <= at <= expires), default=0)
            self.price.value = max(self.price.value, highest)

    def on_timer(self, key, timer, ctx):
        if self.price.value:
            yield self.auction.value["category"], self.price.value
        self.auction.clear()
        self.price.clear()


def q4(read: Inputs) -> ps.types.Stream:
    """The average closing price of each category."""
    listed = read.auctions(TIME).select("id", "category", "dateTime", "expires")
    offers = read.bids(TIME).select("auction", "price", "dateTime")
    closed = (
        listed.key_by("id")
        .connect(offers.key_by("auction"))
        .process(ClosingPrices(), schema="category long, price long", uid="closing-prices")
    )
    return closed.key_by("category").aggregate(average=F.avg("price"), auctions=F.count("*"), uid="averages")


def q5(read: Inputs) -> ps.types.Stream:
    """The auction with the most bids in the last ten seconds, every two seconds."""
    counts = (
        read.bids(TIME)
        .key_by("auction")
        .window(ps.windows.sliding("10s", "2s"))
        .aggregate(n=F.count("*"), uid="counts")
    )
    hottest = counts.window(ps.windows.tumbling("2s")).aggregate(
        hottest=F.max(F.struct("n", "auction")), uid="hottest"
    )
    return hottest.select("window_end", "hottest.auction", "hottest.n")


def q7(read: Inputs) -> ps.types.Stream:
    """The highest bid of every ten seconds."""
    bid = F.struct("price", "auction", "bidder", "dateTime", "extra")
    highest = read.bids(TIME).window(ps.windows.tumbling("10s")).aggregate(highest=F.max(bid), uid="highest")
    return highest.select("window_end", "highest.*")


def q8(read: Inputs) -> ps.types.Stream:
    """Who registered and listed an auction in the same ten seconds."""
    ten_seconds = ps.windows.tumbling("10s")
    people = (
        read.persons(TIME)
        .key_by("id", "name")
        .window(ten_seconds)
        .aggregate(registered=F.count("*"), uid="people")
        .select("id", "name", F.col("window_end").alias("registered_by"))
    )
    sellers = (
        read.auctions(TIME)
        .key_by("seller")
        .window(ten_seconds)
        .aggregate(listed=F.count("*"), uid="sellers")
        .select("seller", F.col("window_end").alias("listed_by"))
    )
    both = people.join(sellers, on=[("id", "seller")], window=ten_seconds, uid="new-sellers")
    return both.select("id", "name", "window_start")


def q9(read: Inputs) -> ps.types.Stream:
    """The winning bid of each auction, whenever there is a higher one."""
    offers = read.bids(TIME).select(
        "auction", "bidder", "price", F.col("dateTime").alias("bidTime"), F.col("extra").alias("bidExtra")
    )
    in_time = (
        read.auctions(TIME)
        .join(
            offers,
            on=[("id", "auction")],
            within=("0s", LONGEST),
            event_time=("dateTime", "bidTime"),
            uid="bids-in-time",
        )
        .where("bidTime <= expires")
    )
    winners = in_time.key_by("id").top(1, by=("price desc", "bidTime", "bidder"), uid="winners")
    return winners.transform(lambda rows: rows.drop("rank"))


def q11(read: Inputs) -> ps.types.Stream:
    """How many bids each bidder makes in a session."""
    sessions = read.bids(TIME).key_by("bidder").window(ps.windows.session("10s"))
    return sessions.aggregate(bids=F.count("*"), uid="sessions")


def _counts() -> list[Column]:
    """Bids, of all and at each level of price."""
    return [F.count_if(F.expr(of)).alias(f"{level}_bids") for level, of in LEVELS.items()]


def _distinct_counts() -> list[Column]:
    """Bidders and auctions, of all bids and of those at each level of price."""
    return [
        F.count_distinct(F.when(F.expr(of), F.col(column))).alias(f"{level}_{column}s")
        for column in ("bidder", "auction")
        for level, of in LEVELS.items()
    ]


def _with_day(stream: ps.types.Stream) -> ps.types.Stream:
    return stream.with_column("day", F.date_format("dateTime", "yyyy-MM-dd"))


def q15(read: Inputs) -> ps.types.Stream:
    """Bids, bidders and auctions of each day."""
    return _with_day(read.bids()).key_by("day").aggregate(*_counts(), *_distinct_counts(), uid="by-day")


def q16(read: Inputs) -> ps.types.Stream:
    """The same of each channel."""
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    by_channel = _with_day(read.bids()).key_by("channel", "day")
    return by_channel.aggregate(minute, *_counts(), *_distinct_counts(), uid="by-channel")


def q17(read: Inputs) -> ps.types.Stream:
    """Statistics of the bids on each auction, by day."""
    return (
        _with_day(read.bids())
        .key_by("auction", "day")
        .aggregate(
            *_counts(),
            min_price=F.min("price"),
            max_price=F.max("price"),
            avg_price=F.avg("price"),
            sum_price=F.sum("price"),
            uid="statistics",
        )
    )


def q18(read: Inputs) -> ps.types.Stream:
    """The last bid of each bidder on each auction."""
    last = read.bids().key_by("bidder", "auction").top(1, by=("dateTime desc", "price desc"), uid="last")
    return last.transform(lambda rows: rows.drop("rank"))


def q19(read: Inputs) -> ps.types.Stream:
    """The ten highest bids on each auction."""
    return read.bids().key_by("auction").top(10, by=("price desc", "dateTime", "bidder"), uid="highest")


def _listed(read: Inputs, time: ps.EventTime | None = None) -> ps.types.Stream:
    """Auctions of a category, with names of their own where bids have the same."""
    named = read.auctions(time).where("category = 10")
    return named.transform(
        lambda rows: rows.withColumnsRenamed({"dateTime": "listedAt", "extra": "listedExtra"})
    )


def q20(read: Inputs) -> ps.types.Stream:
    """Bids with their auctions."""
    return read.bids().join(_listed(read), on=[("auction", "id")], within="unbounded", uid="expanded")


def q20_bounded(read: Inputs) -> ps.types.Stream:
    """Bids with their auctions, within the time that an auction can be open."""
    return read.bids(TIME).join(
        _listed(read, TIME),
        on=[("auction", "id")],
        within=(f"-{LONGEST}", "0s"),
        event_time=("dateTime", "listedAt"),
        uid="expanded",
    )


QUERIES: dict[str, Query] = {
    query.__name__: query
    for query in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q15, q16, q17, q18, q19, q20, q20_bounded)
}


@dataclass(frozen=True)
class PenstockJob:
    """A query over the events, exactly once into Parquet files, with a checkpoint every batch."""

    query: str
    events: Events
    root: Path
    interval: str = "1ms"

    @property
    def results(self) -> Path:
        """Where the files of results lie."""
        return self.root / "out"

    def run(self, spark: SparkSession) -> None:
        """Run over what is there."""
        job = ps.Job(
            self.query.replace("_", "-"),
            storage=self.root / "store",
            local_dir=self.root / "local",
            checkpoint=ps.Checkpointing(interval=self.interval, max_concurrent=AT_ONCE),
        )
        results = QUERIES[self.query](Inputs(job, self.events.read(spark)))
        results.write_to(ps.sinks.Files(self.results), uid="out")
        job.start(available_now=True).wait()
