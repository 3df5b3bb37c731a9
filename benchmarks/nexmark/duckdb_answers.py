"""What each query must give: DuckDB over the same files, and a comparison row by row. Needs no Spark.

Windows and auctions count if they are closed at the end of the input: when the newest event is 5 seconds ahead of them. A query whose
results replace earlier ones is compared by the last result of each key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from nexmark.events import AUCTION, BID, DISORDER_MS, LEVELS, LONGEST_MS, PERSON, Events

FEW = 5
"""So many rows of a difference are shown."""


def _closed(*streams: str) -> str:
    newest = ", ".join(f'(select max("dateTime") from {stream})' for stream in streams)
    return f"(least({newest}) - interval {DISORDER_MS} milliseconds)"


def _counts(**functions: str) -> str:
    return ", ".join(
        f"{function} filter ({belongs}) as {level}_{name}"
        for name, function in functions.items()
        for level, belongs in LEVELS.items()
    )


_DISTINCT = {"bidders": "count(distinct bidder)", "auctions": "count(distinct auction)"}
_ALL_COUNTS = _counts(bids="count(*)", **_DISTINCT)
_ESTIMATED = tuple(f"{level}_{name}" for name in _DISTINCT for level in LEVELS)
_DAY = "strftime(\"dateTime\", '%Y-%m-%d') as day"
_PAIRS = """
    select auction, bidder, price, channel, url, bid."dateTime", bid.extra, "itemName", description, "initialBid", reserve,
      auction_."dateTime" as "listedAt", expires, seller, category, auction_.extra as "listedExtra"
    from bid join auction as auction_ on auction = id where category = 10"""
_IN_TIME = 'bid."dateTime" between auction."dateTime" and expires'


@dataclass(frozen=True)
class Answer:
    """The right results of a query, in SQL over `person`, `auction` and `bid`."""

    sql: str
    newest: str = ""
    """Of results that replace earlier ones: which row counts, in SQL."""
    of_spark: str = ""
    """What Spark leaves to be done with its results, in SQL."""
    approximate: tuple[str, ...] = ()
    """Columns that Spark only estimates, and that are not compared."""


def _last(keys: str, order: str) -> str:
    return f"qualify row_number() over (partition by {keys} order by {order}) = 1"


ANSWERS = {
    "q0": Answer('select auction, bidder, price, "dateTime", extra from bid'),
    "q1": Answer('select auction, bidder, price * 0.908::double as price, "dateTime", extra from bid'),
    "q2": Answer("select auction, price from bid where auction % 123 = 0"),
    "q3": Answer(
        "select name, city, state, auction.id from auction join person on seller = person.id "
        "where category = 10 and state in ('OR', 'ID', 'CA')"
    ),
    "q4": Answer(
        "select category, avg(price) as average, count(*) as auctions from ("
        f"select category, max(price) as price from auction join bid on auction = id where {_IN_TIME} "
        f"and expires <= {_closed('auction', 'bid')} group by id, category) group by category",
        newest=_last("category", "auctions desc"),
        of_spark="select category, avg(price) as average, count(*) as auctions from results group by category",
    ),
    "q5": Answer(
        "select window_end, auction, n from ("
        'select time_bucket(interval 2 seconds, "dateTime") + to_seconds(2 * i) as window_end, auction, '
        "count(*) as n from bid, range(1, 6) as steps(i) group by all) "
        f"where window_end <= {_closed('bid')} {_last('window_end', 'n desc, auction desc')}"
    ),
    "q7": Answer(
        'select time_bucket(interval 10 seconds, "dateTime") + interval 10 seconds as window_end, '
        f'price, auction, bidder, "dateTime", extra from bid where window_end <= {_closed("bid")} '
        + _last("window_end", 'price desc, auction desc, bidder desc, "dateTime" desc, extra desc')
    ),
    "q8": Answer(
        "select distinct people.id, name, people.window_start from "
        '(select *, time_bucket(interval 10 seconds, "dateTime") as window_start from person) as people join '
        '(select *, time_bucket(interval 10 seconds, "dateTime") as window_start from auction) as sellers '
        "on people.id = seller and people.window_start = sellers.window_start "
        f"where people.window_start + interval 10 seconds <= {_closed('person', 'auction')}"
    ),
    "q9": Answer(
        'select auction.*, bidder, price, bid."dateTime" as "bidTime", bid.extra as "bidExtra" '
        f"from auction join bid on auction = id where {_IN_TIME} "
        + _last("id", 'price desc, "bidTime", bidder'),
        newest=_last("id", 'price desc, "bidTime", bidder'),
    ),
    "q11": Answer(
        'select bidder, min("dateTime") as window_start, max("dateTime") + interval 10 seconds as window_end, '
        'count(*) as bids from (select *, sum(new::int) over (partition by bidder order by "dateTime") as session '
        'from (select bidder, "dateTime", coalesce("dateTime" - lag("dateTime") over '
        '(partition by bidder order by "dateTime") > interval 10 seconds, true) as new from bid)) '
        f"group by bidder, session having window_end <= {_closed('bid')}"
    ),
    "q15": Answer(
        f"select {_DAY}, {_ALL_COUNTS} from bid group by day",
        newest=_last("day", "total_bids desc"),
        approximate=_ESTIMATED,
    ),
    "q16": Answer(
        f"select channel, {_DAY}, max(strftime(\"dateTime\", '%H:%M')) as minute, {_ALL_COUNTS} from bid group by channel, day",
        newest=_last("channel, day", "total_bids desc"),
        approximate=_ESTIMATED,
    ),
    "q17": Answer(
        f"select auction, {_DAY}, {_counts(bids='count(*)')}, min(price) as min_price, max(price) as max_price, "
        "avg(price) as avg_price, sum(price)::bigint as sum_price from bid group by auction, day",
        newest=_last("auction, day", "total_bids desc"),
    ),
    "q18": Answer(
        "select * from bid " + _last("bidder, auction", '"dateTime" desc, price desc'),
        newest=_last("bidder, auction", '"dateTime" desc, price desc'),
    ),
    "q19": Answer(
        'select *, row_number() over (partition by auction order by price desc, "dateTime", bidder)::int as rank '
        "from bid qualify rank <= 10",
        newest=_last("auction, rank", 'price desc, "dateTime", bidder'),
    ),
    "q20": Answer(_PAIRS),
    "q20_bounded": Answer(
        f'{_PAIRS} and bid."dateTime" between auction_."dateTime" '
        f'and auction_."dateTime" + interval {LONGEST_MS} milliseconds'
    ),
}


class WrongResultError(Exception):
    """The results of a query are not those of DuckDB; the text shows some of the difference."""


class Judge:
    """DuckDB over the files of the events."""

    def __init__(self, events: Events) -> None:
        self._database = duckdb.connect()
        self._database.execute("set timezone = 'UTC'")
        self._database.execute(f"create view events as from read_parquet('{events.folder}/*.parquet')")
        for number, name in ((PERSON, "person"), (AUCTION, "auction"), (BID, "bid")):
            self._database.execute(
                f"create table {name} as select unnest({name}) from events where event_type = {number}"
            )

    def check(self, query: str, results: Path, *, by_spark: bool = False) -> int:
        """Raise `WrongResultError` unless the files of `results` have the right rows; returns how many rows that are."""
        answer, database = ANSWERS[query], self._database
        database.execute(f"create or replace temp table answer as {answer.sql}")
        there = f"read_parquet('{results}/*.parquet')" if any(results.glob("*.parquet")) else "answer limit 0"
        database.execute(f"create or replace temp view results as from {there}")
        final = (by_spark and answer.of_spark) or f"select * from results {answer.newest}"
        left_out = answer.approximate if by_spark else ()
        compared = ", ".join(
            f'"{name}"::{kind} as "{name}"'
            for name, kind, *_ in database.execute("describe answer").fetchall()
            if name not in left_out
        )
        database.execute(f"create or replace temp table given as select {compared} from ({final})")
        right = f"select {compared} from answer"
        missing = database.sql(f"{right} except all from given")
        wrong = database.sql(f"from given except all {right}")
        if len(missing) or len(wrong):
            raise WrongResultError(
                f"{query} of {'Spark' if by_spark else 'Penstock'}: {len(missing)} rows of DuckDB's are missing, "
                f"{len(wrong)} rows are not among them.\nmissing:\n{missing.limit(FEW)}\nnot DuckDB's:\n{wrong.limit(FEW)}"
            )
        (rows,) = database.execute("select count(*) from given").fetchone() or (0,)
        return int(rows)
