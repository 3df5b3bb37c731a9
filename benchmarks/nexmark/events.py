"""Nexmark's events, made with NumPy: every field is a function of the event's number, so batches and partitions change nothing.

Of 50 events in a row 1 is a new person, 3 are new auctions and 46 are bids. Half of the bids go to one hot auction, and three of four
come from one hot bidder; which ones these are changes all the time. The time of an event is up to 5 seconds earlier than its place in
the stream says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from data import ODD, PARTITIONS, write_file
from pyspark.sql import DataFrame, SparkSession

Numbers = npt.NDArray[np.int64]

PERSON, AUCTION, BID = 0, 1, 2
"""The values of `event_type`."""
EPOCH, AUCTIONS_AN_EPOCH = 50, 3
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
BEGIN_MS = 1_700_006_370_000
"""Half a minute before midnight (UTC), so that queries by day have two days to tell apart."""
DISORDER_MS = 5_000
SHORTEST_MS, LONGEST_MS = 2_000, 20_000
"""How long an auction is open."""
ACTIVE_PEOPLE, ACTIVE_AUCTIONS = 1_000, 1_000
"""Bids and sellers that are not hot are drawn from so many of the newest."""
HOT_EVERY = 100
"""The newest person and auction whose number is a multiple of this is the hot one."""
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle")
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")

PERSON_SCHEMA = (
    "id long, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string"
)
AUCTION_SCHEMA = (
    "id long, itemName string, description string, initialBid long, reserve long, dateTime timestamp, "
    "expires timestamp, seller long, category long, extra string"
)
BID_SCHEMA = (
    "auction long, bidder long, price long, channel string, url string, dateTime timestamp, extra string"
)


def _struct(schema: str) -> str:
    return f"struct<{schema.replace(' ', ':').replace(',:', ', ')}>"


SCHEMA = (
    f"event_type int, person {_struct(PERSON_SCHEMA)}, auction {_struct(AUCTION_SCHEMA)}, "
    f"bid {_struct(BID_SCHEMA)}"
)
LEVELS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}
"""All bids, and those at three levels of price, in SQL."""


def persons(events: DataFrame) -> DataFrame:
    """New persons of a stream of events."""
    return events.where(f"event_type = {PERSON}").select("person.*")


def auctions(events: DataFrame) -> DataFrame:
    """New auctions of a stream of events."""
    return events.where(f"event_type = {AUCTION}").select("auction.*")


def bids(events: DataFrame) -> DataFrame:
    """Bids of a stream of events."""
    return events.where(f"event_type = {BID}").select("bid.*")


@dataclass(frozen=True)
class Events:
    """A folder of events, in batches of a file for each partition: 50 events go to one partition, the next 50 to the other."""

    folder: Path
    a_second: int = 10_000
    """So many events has a second of event time."""

    def write(self, size: int, batches: int) -> None:
        """The first `batches` batches of `size` events each."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in range(batches * PARTITIONS):
            batch, partition = divmod(file, PARTITIONS)
            write_file(self.folder, file, self.of_partition(batch * size, (batch + 1) * size, partition))

    def of_partition(self, begin: int, end: int, partition: int) -> pa.Table:
        """The events from number `begin` to before `end` that belong to a partition."""
        n = np.arange(begin, end, dtype=np.int64)
        return self.table(n[n // EPOCH % PARTITIONS == partition])

    def table(self, n: Numbers) -> pa.Table:
        """These events."""
        kind = np.where(n % EPOCH == 0, PERSON, np.where(n % EPOCH <= AUCTIONS_AN_EPOCH, AUCTION, BID))
        columns = {
            name: _spread(kind == number, fields(n[kind == number], self._times(n[kind == number])))
            for number, (name, fields) in enumerate(
                (("person", _person), ("auction", _auction), ("bid", _bid))
            )
        }
        return pa.table({"event_type": pa.array(kind, pa.int32()), **columns})

    def read(self, spark: SparkSession) -> DataFrame:
        """The stream, in the batches that were written."""
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", PARTITIONS)
        return reader.parquet(str(self.folder))

    def _times(self, n: Numbers) -> Numbers:
        return BEGIN_MS + n * 1000 // self.a_second - _drawn(n, "time", DISORDER_MS)


def _spread(mask: npt.NDArray[np.bool_], fields: dict[str, pa.Array]) -> pa.Array:
    """The fields as structs in the rows of the mask, and null in the others."""
    structs = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    return structs.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


def _person(n: Numbers, times_ms: Numbers) -> dict[str, pa.Array]:
    first, last = (_one_of(n, name, of) for name, of in (("first", FIRST_NAMES), ("last", LAST_NAMES)))
    return {
        "id": pa.array(_newest_person(n) + FIRST_ID),
        "name": _joined(first, last, separator=" "),
        "emailAddress": _joined(_letters(n, "mailbox", 8), "@", _letters(n, "host", 5), ".com"),
        "creditCard": _text(_drawn(n, "card", 10**16)),
        "city": _one_of(n, "city", CITIES),
        "state": _one_of(n, "state", STATES),
        "dateTime": _timestamps(times_ms),
        "extra": _letters(n, "extra", 80),
    }


def _auction(n: Numbers, times_ms: Numbers) -> dict[str, pa.Array]:
    begins = _price(n, "initial")
    seller = _of_newest(n, "seller", _newest_person(n), ACTIVE_PEOPLE, hot_of_4=3)
    return {
        "id": pa.array(_newest_auction(n) + FIRST_ID),
        "itemName": _letters(n, "item", 16),
        "description": _letters(n, "description", 96),
        "initialBid": pa.array(begins),
        "reserve": pa.array(begins + _price(n, "reserve")),
        "dateTime": _timestamps(times_ms),
        "expires": _timestamps(times_ms + SHORTEST_MS + _drawn(n, "length", LONGEST_MS - SHORTEST_MS + 1)),
        "seller": pa.array(seller + FIRST_ID),
        "category": pa.array(FIRST_CATEGORY + _drawn(n, "category", CATEGORIES)),
        "extra": _letters(n, "extra", 80),
    }


def _bid(n: Numbers, times_ms: Numbers) -> dict[str, pa.Array]:
    channel = _drawn(n, "channel", CHANNELS)
    hot = pa.array(_drawn(n, "hot channel", 2) == 0)
    names = pc.if_else(hot, _one_of(n, "channel", HOT_CHANNELS), _joined("channel-", _text(channel)))
    path = [_letters(n, part, 5) for part in ("one", "two", "three")]
    url = _joined("https://www.nexmark.com", *path, "item.htm?query=1", separator="/")
    return {
        "auction": pa.array(
            _of_newest(n, "auction", _newest_auction(n), ACTIVE_AUCTIONS, hot_of_4=2) + FIRST_ID
        ),
        "bidder": pa.array(_of_newest(n, "bidder", _newest_person(n), ACTIVE_PEOPLE, hot_of_4=3) + FIRST_ID),
        "price": pa.array(_price(n, "price")),
        "channel": names,
        "url": pc.if_else(hot, url, _joined(url, "&channel_id=", _text(channel))),
        "dateTime": _timestamps(times_ms),
        "extra": _letters(n, "extra", 48),
    }


def _newest_person(n: Numbers) -> Numbers:
    """The number of the newest person at event n, from 0."""
    return n // EPOCH


def _newest_auction(n: Numbers) -> Numbers:
    """The number of the newest auction at event n, from 0. The first event of an epoch comes before its auctions."""
    return np.maximum(0, n // EPOCH * AUCTIONS_AN_EPOCH + np.minimum(n % EPOCH, AUCTIONS_AN_EPOCH) - 1)


def _of_newest(n: Numbers, field: str, newest: Numbers, active: int, *, hot_of_4: int) -> Numbers:
    """The hot one, in so many of four cases, or else one of the `active` newest."""
    hot = newest // HOT_EVERY * HOT_EVERY
    cold = newest - _hashed(n, field) % np.minimum(active, newest + 1).astype(np.uint64)
    return np.where(_drawn(n, f"{field} is hot", 4) < hot_of_4, hot, cold.astype(np.int64))


def _price(n: Numbers, field: str) -> Numbers:
    """From 100 to 100,000,000, each order of magnitude as likely as the other."""
    return np.round(100 * 10 ** (_drawn(n, field, 2**32) / 2**32 * 6)).astype(np.int64)


def _timestamps(ms: Numbers) -> pa.Array:
    return pa.array(ms * 1000, pa.timestamp("us", "UTC"))


def _one_of(n: Numbers, field: str, values: Sequence[str]) -> pa.Array:
    return pa.array(values).take(pa.array(_drawn(n, field, len(values))))


def _text(numbers: Numbers) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _joined(*parts: pa.Array | str, separator: str = "") -> pa.Array:
    return pc.binary_join_element_wise(*parts, separator)


def _letters(n: Numbers, field: str, length: int) -> pa.Array:
    """Texts of `length` letters, a to p."""
    words = [_hashed(n, f"{field} {word}") for word in range(-(-length // 8))]
    drawn = np.stack(words, axis=1).view(np.uint8).reshape(len(n), 8 * len(words))[:, :length] % 16 + ord("a")
    offsets = np.arange(len(n) + 1, dtype=np.int32) * length
    return pa.StringArray.from_buffers(
        len(n), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(drawn))
    )


def _drawn(n: Numbers, field: str, below: int) -> Numbers:
    """A number from 0 to before `below` for this field of each event."""
    return (_hashed(n, field) % np.uint64(below)).astype(np.int64)


def _hashed(n: Numbers, field: str) -> npt.NDArray[np.uint64]:
    """SplitMix64 of the event's number and the field."""
    word = (n.astype(np.uint64) * np.uint64(ODD)) ^ np.uint64(xxhash.xxh64_intdigest(field.encode()))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return word ^ (word >> np.uint64(31))
