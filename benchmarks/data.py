"""Input for the benchmarks: rows made with NumPy, as two Parquet files a batch, which Spark's own source reads. Driver.

A source in the JVM, because what is compared comes behind it: the cheaper the source, the less it hides.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

Ids = npt.NDArray[np.int64]
PARTITIONS = 2
SCHEMA = "user long, amount long"
FIRST_TIME = 1_700_000_000
ODD = 0x9E3779B97F4A7C15
"""Times an odd number, modulo 2**64, no two ids become equal: keys come in no order that would favour a sorted store."""
ZIPF_EXPONENT = 0.99
"""YCSB's: the most frequent key has about 7 % of the rows."""


class Clicks:
    """A folder of clicks; each method adds batches of `rows` rows and returns how many batches that were."""

    schema = SCHEMA

    def __init__(self, root: Path, *, seed: int = 7) -> None:
        self.folder = root / "clicks"
        self.folder.mkdir(parents=True)
        self._files = 0
        self._rng = np.random.default_rng(seed)

    def read(self, spark: SparkSession) -> DataFrame:
        """The stream, in the batches that were added."""
        reader = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", PARTITIONS)
        return reader.parquet(str(self.folder))

    def distinct(self) -> int:
        """How many users there are."""
        return len(pq.read_table(self.folder, columns=["user"]).column("user").unique())

    def uniform(self, rows: int, keys: int, *, batches: int = 1) -> int:
        """Every row of any of `keys` users, each as likely as the other."""
        return self._add(batches, lambda _: self._rng.integers(0, keys, rows))

    def zipf(self, rows: int, keys: int, *, batches: int = 1) -> int:
        """Few users have most of the rows: user k as often as 1 / k**0.99."""
        weights = np.cumsum(1.0 / np.arange(1, keys + 1) ** ZIPF_EXPONENT)
        return self._add(
            batches, lambda _: np.searchsorted(weights, self._rng.random(rows) * weights[-1]).astype(np.int64)
        )

    def new_keys(self, rows: int, keys: int) -> int:
        """Users 0 to `keys`, each once, `rows` a batch."""
        return self._add(-(-keys // rows), lambda at: np.arange(at * rows, min((at + 1) * rows, keys)))

    def changed_keys(self, rows: int, keys: int, *, batches: int = 1) -> int:
        """`rows` different users out of `keys` in every batch."""
        return self._add(batches, lambda _: self._rng.choice(keys, rows, replace=False, shuffle=False))

    def _add(self, batches: int, ids: Callable[[int], Ids]) -> int:
        for number in range(batches):
            users = spread(ids(number))
            for part in np.array_split(users, PARTITIONS):
                amounts = self._rng.integers(0, 100, len(part))
                self._write(pa.table({"user": part, "amount": amounts}))
        return batches

    def _write(self, rows: pa.Table) -> None:
        write_file(self.folder, self._files, rows)
        self._files += 1


class Visits(Clicks):
    """Clicks with a time: each batch goes on from the last, and its rows come in no order."""

    schema = "user long, amount long, at timestamp"

    def __init__(self, root: Path, *, seconds_a_batch: int, seed: int = 7) -> None:
        super().__init__(root, seed=seed)
        self._span_us = seconds_a_batch * 1_000_000
        self._now_us = FIRST_TIME * 1_000_000

    def _add(self, batches: int, ids: Callable[[int], Ids]) -> int:
        for number in range(batches):
            for part in np.array_split(spread(ids(number)), PARTITIONS):
                times = self._now_us + self._rng.integers(0, self._span_us, len(part))
                amounts = self._rng.integers(0, 100, len(part))
                at = pa.array(times, pa.timestamp("us", "UTC"))
                self._write(pa.table({"user": part, "amount": amounts, "at": at}))
            self._now_us += self._span_us
        return batches


class Fills(Clicks):
    """Rows that make containers grow: of each user the numbers from `first` on, `size` of them; a size of 1 touches one that is there."""

    schema = "user long, first long, size long"

    def fill(self, users: int, size: int, *, at_once: int) -> int:
        """Every user gets `size` numbers, at most `at_once` in a batch."""
        firsts = range(0, size, at_once)
        for first in firsts:
            self._add_rows(users, np.full(users, first), min(at_once, size - first))
        return len(firsts)

    def touch(self, users: int, size: int, *, batches: int) -> int:
        """One of its `size` numbers for every user, in every batch another."""
        for _ in range(batches):
            self._add_rows(users, self._rng.integers(0, size, users), 1)
        return batches

    def _add_rows(self, users: int, firsts: Ids, size: int) -> None:
        keys = spread(np.arange(users))
        sizes = np.full(users, size)
        for part in np.array_split(np.arange(users), PARTITIONS):
            self._write(pa.table({"user": keys[part], "first": firsts[part], "size": sizes[part]}))


def spread(ids: Ids) -> Ids:
    """Keys that come in no order that would favour a sorted store."""
    return (ids.astype(np.uint64) * np.uint64(ODD)).view(np.int64)


def write_file(folder: Path, number: int, rows: pa.Table) -> None:
    """Write file `number`. Spark takes files in the order of their times, to the millisecond: each is a second younger than the last."""
    path = folder / f"{number:06}.parquet"
    pq.write_table(rows, path.with_suffix(".tmp"))
    os.utime(path.with_suffix(".tmp"), (FIRST_TIME + number,) * 2)
    path.with_suffix(".tmp").rename(path)
