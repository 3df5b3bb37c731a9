"""A job with every operator and every kind of state, over input that is a function of its number: what earlier versions left of it must be restored.

`python tests/spark/golden_job.py FOLDER` makes, with the code as it is, a checkpoint on each backend, a savepoint, and what the second half
of the input gives after them. `tests/golden/job-<n>` has what the version of that day made. It is never made again.
"""

from __future__ import annotations

import json
import operator
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SCHEMA = "id long, user string, shop string, amount long, at timestamp, tags map<string,long>"
HALF = 60
BACKENDS = ("filesystem", "memory", "rocksdb")


def event(number: int, *, side: int = 0) -> dict[str, Any]:
    """One row of a log: a function of its number."""
    return {
        "id": number // 2 if number % 7 == 3 else number,
        "user": f"user{number * 5 % 7}",
        "shop": f"shop{(number + side) % 3}",
        "amount": number * 37 % 101,
        "at": NOON + timedelta(seconds=20 * number + 3 * side - number % 4),
        "tags": {"a": number % 3, "b": number},
    }


class Kinds(ps.KeyedProcess):
    """Every kind of keyed state, timers by event time, a side output, broadcast state."""

    last = ps.ValueState("struct<at:timestamp,tags:map<string,long>>")
    total = ps.ReducingState("long", operator.add, default=0)
    by_shop = ps.MapState("string", "long")
    amounts = ps.ListState("long")
    raw = ps.RawState()
    kept = ps.ValueState("long", default=0, ttl="3650d")
    limits = ps.BroadcastState("string", "long")
    big = ps.SideOutput("user string, amount long")

    def process_broadcast(self, rows: Any, ctx: ps.types.Context) -> None:
        for row in rows:
            self.limits[row.shop] = max(row.amount, self.limits.get(row.shop, 0))

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.last.value = {"at": row.at, "tags": row.tags}
            self.total.add(row.amount)
            self.by_shop[row.shop] = self.by_shop.get(row.shop, 0) + 1
            self.amounts.append(row.amount)
            self.raw.value = str(row.id).encode()
            self.kept.value += 1
            ctx.set_timer(row.at + timedelta(minutes=5))
            if row.amount > 90:
                ctx.emit("big", (key, row.amount))
        yield (
            key,
            self.total.value,
            len(self.amounts) * 10_000 + sum(self.by_shop.values()) * 100 + self.kept.value,
        )

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Any:
        yield (
            key,
            int(timer.at.timestamp()),
            len(self.last.value["tags"]) + len(self.raw.value) + len(self.limits),
        )


class Columns(ps.BatchProcess):
    """State in columns."""

    seen = ps.ValueState("long", default=0)

    def process_batch(self, keys: Any, batch: Any, state: Any) -> Any:
        import numpy as np

        counts = np.bincount(batch.key_index, minlength=len(keys))
        total = state["seen"].to_numpy() + counts
        state["seen"] = total
        return {"user": keys["user"], "seen": total}


class Unkeyed(ps.Process):
    """A list of each subtask."""

    numbers = ps.OperatorListState("long")

    def process(self, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.numbers.append(row.id)
            yield row.id, 1


class Both(ps.KeyedCoProcess):
    """One state, two inputs."""

    left = ps.ValueState("long", default=0)
    right = ps.ValueState("long", default=0)

    def process_left(self, key: str, rows: Any, ctx: ps.types.Context) -> Any:
        self.left.value += len(rows)

    def process_right(self, key: str, rows: Any, ctx: ps.types.Context) -> Any:
        self.right.value += len(rows)
        for row in rows:
            ctx.set_timer(row.at + timedelta(minutes=2))

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Any:
        yield key, int(timer.at.timestamp()), self.right.value > 0


class Largest(ps.WindowProcess):
    """Own code over a window."""

    def process(self, key: str, window: Any, rows: Any, ctx: Any) -> Any:
        start = window.start if window is not None else NOON
        yield key, start, max(row.amount for row in rows), len(rows)


class Golden:
    """The job in a folder, over logs that have a first or both halves of the input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = [ps.sources.PartitionedLog(folder / "logs" / name, SCHEMA, partitions=2) for name in "ab"]

    def fill(self, first: int, end: int) -> None:
        """Events from a number on, up to another: even ones in one partition, odd ones in the other."""
        for side, log in enumerate(self.logs):
            for partition in (0, 1):
                log.append(partition, [event(n, side=side) for n in range(first, end) if n % 2 == partition])

    def job(self, spark: SparkSession, backend: str) -> ps.Job:
        """Every operator once, each with a sink of its own."""
        made = ps.Job(
            "golden",
            storage=self.folder / "store",
            local_dir=self.folder / "local",
            backend=backend,
            parallelism=2,
            restart=ps.no_restart(),
        )
        a, b = (
            made.read(log.read(spark), uid=uid, event_time="at", out_of_order="30s")
            for uid, log in zip("ab", self.logs, strict=True)
        )
        shops, users = a.key_by("shop"), a.key_by("user")
        kinds = users.connect(b.broadcast(order_by="offset")).process(
            Kinds(), schema="user string, a long, b long", uid="kinds", order_by="offset"
        )
        minute, slide = ps.windows.tumbling("1min"), ps.windows.sliding("4min", "2min")
        largest = "shop string, start timestamp, most long, n long"
        sums: dict[str, Any] = {"n": F.count("*"), "total": F.sum("amount"), "mean": F.avg("amount")}
        results = {
            "kinds": kinds,
            "big": kinds.side("big"),
            "columns": users.process(Columns(), schema="user string, seen long", uid="columns"),
            "unkeyed": a.process(Unkeyed(), schema="id long, n long", uid="unkeyed"),
            "both": users.connect(b.key_by("user")).process(
                Both(), schema="user string, at long, seen boolean", uid="both"
            ),
            "aggregate": shops.aggregate(
                **sums, most=F.max("at"), uv=F.count_distinct("user"), uid="aggregate"
            ),
            "lasting": shops.aggregate(n=F.count("*"), uid="lasting", ttl="3650d"),
            "top": shops.top(2, by=["amount desc", "id"], of="user", uid="top"),
            "dedupe": a.dedupe(on="id", within="1h", uid="dedupe"),
            "tumbling": shops.window(minute, lateness="1min").aggregate(**sums, uid="tumbling"),
            "sliding": shops.window(slide).aggregate(**sums, uid="sliding"),
            "session": users.window(ps.windows.session("2min")).aggregate(**sums, uid="session"),
            "windowed": shops.window(slide).process(Largest(), schema=largest, uid="windowed", order_by="at"),
            "sessions": shops.window(ps.windows.session("50s")).process(
                Largest(), schema=largest, uid="sessions"
            ),
            "counted": shops.window(ps.windows.count(7)).process(
                Largest(), schema=largest, uid="counted", order_by="offset"
            ),
            "join": a.join(
                b.transform(right),
                on=[("id", "b_id")],
                within=("-1min", "1min"),
                how="full",
                event_time=("at", "b_at"),
                uid="join",
            ),
            "window-join": a.join(
                b.transform(right),
                on=[("user", "b_user")],
                window=slide,
                event_time=("at", "b_at"),
                uid="window-join",
            ),
            "lookup": a.lookup(
                b.transform(right), on=[("user", "b_user")], uid="lookup", order_by="b_amount"
            ),
        }
        for uid, stream in results.items():
            stream.write_to(ps.sinks.Files(self.folder / "out" / uid, format="json"), uid=f"{uid}-out")
        return made

    def rows(self) -> dict[str, list[str]]:
        """What is visible, by sink."""
        return {
            folder.name: sorted(
                json.dumps(json.loads(line), sort_keys=True)
                for file in folder.glob("*.json")
                for line in file.open()
            )
            for folder in sorted((self.folder / "out").iterdir())
        }


def right(frame: Any) -> Any:
    """The other side of a join, with names of its own."""
    return frame.select(*(F.col(name).alias(f"b_{name}") for name in ("id", "user", "amount", "at")))


def make(spark: SparkSession, folder: Path, scratch: Path) -> None:
    """Checkpoints, a savepoint, and what each gives with the second half."""
    expected: dict[str, list[str]] | None = None
    for backend in BACKENDS:
        golden = Golden(scratch / backend)
        golden.fill(0, HALF)
        golden.job(spark, backend).run(available_now=True)
        shutil.copytree(golden.folder / "store", folder / backend)
        if backend == "filesystem":
            save(golden, folder / "savepoint")
        shutil.rmtree(golden.folder / "out")
        golden.fill(HALF, 2 * HALF)
        golden.job(spark, backend).run(available_now=True, drain=True)
        assert expected in (None, golden.rows())
        expected = golden.rows()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def save(golden: Golden, to: Path) -> None:
    """A savepoint of the newest checkpoint."""
    from penstock.ownership.claim import read_descents
    from penstock.recovery.history import read_history
    from penstock.savepoint.create import create_savepoint
    from penstock.storage import LocalStorage

    storage = LocalStorage(golden.folder / "store" / "golden")
    newest = read_history(storage, read_descents(storage)).whole[-1]
    create_savepoint(storage, newest, LocalStorage(to), token="golden")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make(ps.local_session("golden", cores=2), Path(sys.argv[1]), Path(scratch))
