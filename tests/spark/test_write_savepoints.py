"""Savepoints that are written: from history computed by a batch, and from other savepoints, repaired or with other key groups."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import penstock as ps
from penstock.errors import ConfigError, CorruptStateError
from penstock.ownership.claim import read_descents
from penstock.ownership.job_record import read_job_record
from penstock.recovery.history import read_history
from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import read_manifest
from penstock.state.keys import GROUP_SHIFT, SORT_KEY
from penstock.storage import LocalStorage

pytestmark = pytest.mark.spark

ROWS = 2_000
COLUMNS = "app string, count long, total long, by_user string, recent string"


class Visits(ps.KeyedProcess):
    """Every kind of state that a key has."""

    count = ps.ValueState("long", default=0, ttl="365d")
    total = ps.ReducingState("long", lambda one, other: one + other)
    by_user = ps.MapState("long", "long", ttl="365d")
    recent = ps.ListState("long")

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.count.value += 1
            self.total.add(row.user)
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.recent.append(row.offset)
        by_user = ",".join(f"{user}:{n}" for user, n in sorted(self.by_user.items()))
        yield key, self.count.value, self.total.value, by_user, ",".join(map(str, self.recent))


class Site:
    """A log with a past and a present, and jobs over it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = ps.sources.PartitionedLog(root / "log", "app string, user long", 2)

    def fill(self, rows: int, *, seed: int = 0) -> None:
        for partition in range(2):
            numbers = range(seed, seed + rows // 2)
            apps = [f"app{(n * 7 + partition) % 23}" for n in numbers]
            users = pa.array([(n * n + partition) % 11 for n in numbers], pa.int64())
            self.log.append(partition, pa.table({"app": apps, "user": users}))

    def job(self, spark: Any, name: str, **settings: Any) -> ps.Job:
        job = ps.Job(
            "visits",
            storage=self.root / name / "store",
            local_dir=self.root / name / "local",
            checkpoint=ps.Checkpointing(interval="1ms"),
            restart=ps.no_restart(),
            **settings,
        )
        keyed = job.read(self.log.read(spark), uid="clicks").key_by("app")
        (self.root / name).mkdir(exist_ok=True)
        visits = keyed.process(Visits(), schema=COLUMNS, uid="visits", order_by=["offset", "partition"])
        visits.write_to(self._table(name, "visits"), uid="visits-out")
        views = keyed.aggregate(
            n=F.count("*"),
            total=F.sum("user"),
            mean=F.avg("user"),
            first=F.min("offset"),
            users=F.count_distinct("user"),
            uid="views",
        )
        views.write_to(self._table(name, "views"), uid="views-out")
        return job

    def job_with_windows(self, spark: Any, name: str) -> ps.Job:
        """With windows by a number of rows besides."""
        job = self.job(spark, name)
        keyed = job.read(self.log.read(spark), uid="again").key_by("app")
        fives = keyed.window(ps.windows.count(5)).aggregate(n=F.count("*"), uid="fives")
        fives.write_to(ps.sinks.Files(self.root / name / "fives"), uid="fives-out")
        return job

    def _table(self, name: str, table: str) -> ps.sinks.SQLite:
        return ps.sinks.SQLite(self.root / name / "out.db", table=table, mode="upsert", key=["app"])

    def found(self, name: str, table: str) -> dict[str, tuple[Any, ...]]:
        with sqlite3.connect(self.root / name / "out.db") as database:
            return {app: tuple(rest) for app, *rest in database.execute(f"select * from {table}")}

    def past(self, spark: Any) -> Any:
        self.log.read(spark)  # whoever reads it first makes its format known
        return spark.read.format("penstock-log").option("path", str(self.log.path)).load()

    def state(self, spark: Any) -> dict[str, Any]:
        past = self.past(spark)
        return {
            "count": past.groupBy("app").agg(F.count("*").alias("count")),
            "total": past.groupBy("app").agg(F.sum("user").alias("total")),
            "by_user": past.groupBy("app", F.col("user").alias("by_user_key")).agg(
                F.count("*").alias("by_user")
            ),
            "recent": past.select(
                "app",
                F.struct("offset", "partition").alias("recent_position"),
                F.col("offset").alias("recent"),
            ),
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.fill(ROWS)
    return made


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """For tests whose starts are refused before anything is written."""
    made = Site(tmp_path_factory.mktemp("untouched"))
    made.fill(ROWS)
    return made


def test_bootstrapped_from_history(spark: Any, site: Site) -> None:
    """History computed by a batch, then the stream from there on: the same as streaming everything."""
    ends = site.log.end_offsets()
    saved = site.root / "boot"
    counts = ps.write_savepoint(
        saved,
        site.job(spark, "new"),
        {"visits": site.state(spark)},
        history={"views": site.past(spark)},
        positions={"clicks": ends},
        parallelism=3,
    )
    assert (counts["visits"]["values"], counts["visits"]["recent"]) == (23, ROWS)
    site.fill(600, seed=ROWS)
    handle = site.job(spark, "new").start(available_now=True, savepoint=saved)
    handle.wait()
    assert handle.progress.rows_in == 600
    site.job(spark, "all").run(available_now=True)
    for table in ("visits", "views"):
        assert site.found("new", table) == site.found("all", table)


def test_what_a_lookup_knows_is_written(spark: Any, tmp_path: Path) -> None:
    """A job that looks up knows from its first row on what the savepoint says, also a row with nothing in it; later rows replace it."""
    clicks = ps.sources.PartitionedLog(tmp_path / "clicks", "user long", 1)
    users = ps.sources.PartitionedLog(tmp_path / "users", "id long, name string, age int", 1)

    def job() -> ps.Job:
        made = ps.Job("who", storage=tmp_path / "store", local_dir=tmp_path / "local", parallelism=2)
        known = made.read(users.read(spark), uid="users").transform(
            lambda frame: frame.select("id", "name", "age")
        )
        seen = made.read(clicks.read(spark), uid="clicks").select("user")
        found = seen.lookup(known, on=[("user", "id")], how="inner", uid="who")
        found.write_to(ps.sinks.Files(tmp_path / "out", format="json"), uid="out")
        return made

    def found() -> set[tuple[Any, ...]]:
        rows = spark.read.schema("user long, name string, age int").json(str(tmp_path / "out"))
        return {tuple(row) for row in rows.collect()}

    told = [(user, f"user {user}", user) for user in range(20)] + [(20, None, None)]
    given = spark.createDataFrame(told, "user long, name string, age int")
    ps.write_savepoint(tmp_path / "boot", job(), {"who": given})
    clicks.append(0, [{"user": user} for user in range(25)])
    job().run(available_now=True, savepoint=tmp_path / "boot")
    assert found() == set(told)
    users.append(0, [{"id": 7, "name": "another", "age": None}])
    clicks.append(0, [{"user": 7}])
    job().run(available_now=True)
    assert found() == {*told, (7, "another", None)}
    one = spark.createDataFrame([(3, None, 33)], "user long, name string, age int")
    ps.rewrite_savepoint(spark, tmp_path / "boot", tmp_path / "repaired", state={"who": one})
    known = {tuple(row) for row in ps.read_savepoint(spark, tmp_path / "repaired").state("who").collect()}
    assert known == {*told, (3, None, 33)} - {(3, "user 3", 3)}


@pytest.mark.parametrize(
    ("position", "said"),
    [
        ({0: 5}, "has 2 partitions"),
        ({0: 5, 1: 5, 2: 5}, "has 2 partitions"),
        ({0: 5, 1: 1_001}, "has 1,000 rows in partition 1"),
        ({0: -1, 1: 5}, "has 1,000 rows in partition 0"),
        ({0: "5", 1: 5}, "has 1,000 rows in partition 0"),
        (17, "has 2 partitions"),
    ],
)
def test_positions_that_a_log_does_not_have(spark: Any, untouched: Site, position: Any, said: str) -> None:
    """They are refused with where the log ends, before a savepoint or a start writes anything: every run would fail over them."""
    job = untouched.job(spark, "new")
    with pytest.raises(
        ConfigError, match=rf"source 'clicks' is to go on at .*{said}; nothing was written.*'0': 1000"
    ):
        ps.write_savepoint(untouched.root / "boot", job, {}, positions={"clicks": position})
    assert not (untouched.root / "boot").exists()
    with pytest.raises(ConfigError, match=f"source 'clicks' is to go on at .*{said}; nothing was written"):
        job.start(positions={"clicks": position})
    assert not LocalStorage(untouched.root / "new/store/visits").names()


def test_a_savepoint_whose_log_was_replaced(spark: Any, site: Site, tmp_path: Path) -> None:
    """It says of the log what that does not have; the start is refused, and leaves nothing."""
    ps.write_savepoint(
        site.root / "boot", site.job(spark, "new"), {}, positions={"clicks": site.log.end_offsets()}
    )
    shutil.rmtree(site.log.path)
    other = Site(tmp_path)
    with pytest.raises(ConfigError, match="has 0 rows in partition 0"):
        other.job(spark, "new").start(savepoint=site.root / "boot")
    assert not LocalStorage(site.root / "new/store/visits").names()


def test_a_refused_first_start_leaves_nothing(spark: Any, untouched: Site) -> None:
    """What is refused only when everything is known takes its record of the job back."""
    with pytest.raises(ConfigError, match="41"):
        untouched.job(spark, "new").start(restore=41)
    assert not LocalStorage(untouched.root / "new/store/visits").names()


def test_repaired(spark: Any, site: Site) -> None:
    """A key is deleted, values, an entry and a list are corrected, key groups are changed: the job goes on in its own storage with that."""
    site.job(spark, "a").run(available_now=True)
    saved_of(site.root / "a/store/visits", site.root / "saved")
    before, after = site.root / "saved", site.root / "repaired"
    corrected = {
        "count": spark.createDataFrame([("app1", 1000), ("elsewhere", 5)], "app string, count int"),
        "by_user": spark.createDataFrame([("app1", {3: 7})], "app string, by_user map<long,long>"),
        "recent": spark.createDataFrame([("app2", [5, 4, 3])], "app string, recent array<int>"),
    }
    counts = ps.rewrite_savepoint(
        spark,
        before,
        after,
        delete={"visits": ["app0"], "views": spark.createDataFrame([("app0",)], "app string")},
        state={"visits": corrected, "views": spark.createDataFrame([("app1", 77)], "app string, n long")},
        max_parallelism=512,
    )
    assert counts["visits"]["values"] == 23
    assert counts["views"]["values"] == 22
    was, views = site.found("a", "visits"), site.found("a", "views")
    for app in range(3):
        site.log.append(0, pa.table({"app": [f"app{app}"], "user": pa.array([3], pa.int64())}))
    site.log.append(0, pa.table({"app": ["elsewhere"], "user": pa.array([3], pa.int64())}))
    site.job(spark, "a", max_parallelism=512, parallelism=3).run(available_now=True, savepoint=after)
    found = site.found("a", "visits")
    assert found["app0"] == (1, 3, "3:1", str(ROWS // 2))
    assert found["app1"][:2] == (1001, was["app1"][1] + 3)
    assert "3:8" in found["app1"][2].split(",")
    assert [one for one in found["app1"][2].split(",") if one[:2] != "3:"] == [
        one for one in was["app1"][2].split(",") if one[:2] != "3:"
    ]
    assert found["app2"][3] == f"5,4,3,{ROWS // 2 + 2}"
    assert found["elsewhere"] == (6, 3, "3:1", str(ROWS // 2 + 3))
    assert found["app3"] == was["app3"]
    assert site.found("a", "views")["app0"][:2] == (1, 3)
    assert site.found("a", "views")["app1"][:2] == (78, views["app1"][1] + 3)
    with pytest.raises(ConfigError, match="was started with 512"):
        site.job(spark, "a", max_parallelism=128).start(available_now=True)
    storage = LocalStorage(site.root / "a/store/visits")
    record = read_job_record(storage)
    storage.put("job.json", msgspec.json.encode(msgspec.structs.replace(record, max_parallelism=128)))
    # as a crash behind the adoption leaves it: the same start again writes down what the job has
    site.job(spark, "a", max_parallelism=512).run(available_now=True, savepoint=after)
    assert read_job_record(storage) == record


def saved_of(storage: Path, to: Path) -> None:
    """A savepoint of the newest checkpoint."""
    opened = LocalStorage(storage)
    newest = read_history(opened, read_descents(opened)).whole[-1]
    create_savepoint(opened, newest, LocalStorage(to), token=to.name)


class Numbers(ps.Process):
    """Remembers what its subtask has seen."""

    seen = ps.OperatorListState("long")

    def process(self, rows: Any, ctx: ps.types.Context) -> Any:
        self.seen.extend(row.n for row in rows)
        yield ctx.subtask, len(self.seen)


class Later(ps.KeyedProcess):
    """Says at the end of time what it has seen."""

    seen = ps.ReducingState("long", lambda one, other: one + other)

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> None:
        self.seen.add(len(rows))
        ctx.set_timer(datetime(2030, 1, 1, tzinfo=UTC))

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Any:
        yield key, self.seen.value


def test_timers_are_written(spark: Any, tmp_path: Path) -> None:
    """A timer of a key that never has a row fires when its time has come; a source without a position begins at its own start."""
    timed = Timed(tmp_path)
    timed.fill(0, 1)
    job = timed.job(spark, "new")
    ps.write_savepoint(
        tmp_path / "boot",
        job,
        {
            "later": {
                "seen": spark.sql("select 'silent' app, 7 seen"),
                "timers by event_time": spark.sql("select 'silent' app, timestamp '2025-06-01 00:00:00' at"),
            }
        },
    )
    manifest = read_manifest(LocalStorage(tmp_path / "boot"))
    assert manifest.operators["later"].due.event_us is not None
    job.run(available_now=True, drain=True, savepoint=tmp_path / "boot")
    found = sorted((row["app"], row["n"]) for row in timed.rows("new", "later"))
    assert found == [("app0", 2), ("silent", 7)]


class Timed:
    """A job with all kinds of tables: by time, by key and window, of subtasks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = ps.sources.PartitionedLog(root / "log", "app string, n long, at timestamp", 2)

    def fill(self, first: int, rows: int) -> None:
        for partition in range(2):
            numbers = range(first, first + rows)
            at = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=n % 300) for n in numbers]
            apps = [f"app{n % 40}" for n in numbers]
            self.log.append(
                partition,
                pa.table({"app": apps, "n": list(numbers), "at": pa.array(at, pa.timestamp("us", "UTC"))}),
            )

    def job(self, spark: Any, name: str, **settings: Any) -> ps.Job:
        job = ps.Job(
            "timed",
            storage=self.root / name / "store",
            local_dir=self.root / name / "local",
            checkpoint=ps.Checkpointing(interval="1ms"),
            restart=ps.no_restart(),
            **settings,
        )
        rows = job.read(
            self.log.read(spark), uid="clicks", event_time="at", out_of_order="1d", idle_after=None
        )
        keyed = rows.key_by("app")
        counted = keyed.window(ps.windows.tumbling("1h")).aggregate(n=F.count("*"), uid="hours")
        counted.write_to(ps.sinks.Files(self.root / name / "hours"), uid="hours-out")
        keyed.process(Later(), schema="app string, n long", uid="later").write_to(
            ps.sinks.Files(self.root / name / "later"), uid="later-out"
        )
        rows.process(Numbers(), schema="subtask int, n long", uid="numbers").write_to(
            ps.sinks.Files(self.root / name / "numbers"), uid="numbers-out"
        )
        return job

    def rows(self, name: str, of: str) -> list[dict[str, Any]]:
        return ds.dataset(self.root / name / of, format="parquet").to_table().to_pylist()


def test_other_key_groups(spark: Any, tmp_path: Path) -> None:
    """128, then 512, then 16 key groups, each with another parallelism, more than 16 among them: every count is right at the end."""
    timed = Timed(tmp_path)
    saved: dict[str, Any] = {}
    for step, (groups, parallelism) in enumerate([(128, 20), (512, 3), (16, 5)]):
        timed.fill(step * 300, 300)
        job = timed.job(spark, str(step), max_parallelism=groups, parallelism=parallelism)
        job.run(available_now=True, drain=groups == 16, **saved)
        if groups == 128:  # to fewer key groups than the files have parts, and back
            saved_of(tmp_path / "0/store/timed", tmp_path / "saved 0")
            ps.rewrite_savepoint(
                spark, tmp_path / "saved 0", tmp_path / "few", max_parallelism=4, rename={"later": "x"}
            )
            ps.rewrite_savepoint(
                spark, tmp_path / "few", tmp_path / "many", max_parallelism=30_000, rename={"x": "later"}
            )
            saved = {"savepoint": tmp_path / "many"}
        else:
            saved_of(tmp_path / f"{step}/store/timed", tmp_path / f"saved {step}")
            saved = {"savepoint": tmp_path / f"saved {step}"}
        leftovers = LocalStorage(tmp_path / f"{step}/store/timed").names("state/_rekeyed")
        assert leftovers == []
    hours: Counter[tuple[str, datetime]] = Counter()
    for row in timed.log.table().to_pylist():
        hours[row["app"], row["at"].replace(minute=0)] += 1
    assert {(row["app"], row["window_start"]): row["n"] for row in timed.rows("2", "hours")} == hours
    by_app = Counter(timed.log.table()["app"].to_pylist())
    assert {row["app"]: row["n"] for row in timed.rows("2", "later")} == by_app
    last = read_manifest(LocalStorage(tmp_path / "saved 2")).operators["numbers"]
    assert last.rows("seen") == timed.log.table().num_rows


class Listed(ps.WindowProcess):
    """The rows of a window, by their numbers."""

    def process(self, key: Any, window: Any, rows: Any, ctx: ps.types.Context) -> Any:
        yield key, ",".join(str(row.n) for row in rows)


def job_by_time(spark: Any, root: Path) -> ps.Job:
    """Operators whose second sort number is a moment that follows from no column, or from one of several: nothing closes here."""
    log = ps.sources.PartitionedLog(root / "log", "app string, n long, at timestamp", 1)
    moments = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(30)]
    apps = [f"app{n % 3}" for n in range(30)]
    log.append(
        0, pa.table({"app": apps, "n": list(range(30)), "at": pa.array(moments, pa.timestamp("us", "UTC"))})
    )
    job = ps.Job(
        "by-time",
        storage=root / "store",
        local_dir=root / "local",
        parallelism=2,
        checkpoint=ps.Checkpointing(interval="1ms"),
        restart=ps.no_restart(),
    )
    rows = job.read(log.read(spark), uid="clicks", event_time="at", out_of_order="1d", idle_after=None)
    other = rows.transform(lambda frame: frame.selectExpr("app", "at at2", "n n2").where("n2 % 2 = 0"))
    keyed = rows.key_by("app")
    results = {
        "lists": keyed.window(ps.windows.tumbling("10min")).process(
            Listed(), uid="lists", schema="app string, n string"
        ),
        "slides": keyed.window(ps.windows.sliding("10min", every="5min")).process(
            Listed(), uid="slides", schema="app string, n string"
        ),
        "stretches": keyed.window(ps.windows.session("2min")).process(
            Listed(), uid="stretches", schema="app string, n string"
        ),
        "sessions": keyed.window(ps.windows.session("2min")).aggregate(n=F.count("*"), uid="sessions"),
        "early": keyed.window(ps.windows.tumbling("10min"), early="1d").aggregate(
            n=F.count("*"), uid="early"
        ),
        "paid": rows.join(
            other, on="app", within=("0s", "1min"), how="full", event_time=("at", "at2"), uid="paid"
        ),
    }
    for uid, result in results.items():
        result.write_to(ps.sinks.Files(root / uid), uid=f"{uid}-out")
    return job


def stored_rows(folder: Path) -> dict[str, list[str]]:
    """By table the rows as they are stored, without the key group."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.glob("state/*/*/*.parquet")):
        rows = pq.read_table(file).to_pylist()
        shown = [str({**row, SORT_KEY: row[SORT_KEY] % (1 << GROUP_SHIFT)}) for row in rows]
        found.setdefault(f"{file.parts[-3]}/{file.parts[-2]}", []).extend(shown)
    return {name: sorted(rows) for name, rows in found.items()}


def test_rows_keep_their_order(spark: Any, tmp_path: Path) -> None:
    """Whatever a savepoint is rewritten for, rows that are not changed are stored as before: also the number that only the operator knows."""
    job_by_time(spark, tmp_path).run(available_now=True)
    saved_of(tmp_path / "store/by-time", tmp_path / "saved")
    before = stored_rows(tmp_path / "saved")
    assert len(before) == 11, list(before)
    ps.rewrite_savepoint(spark, tmp_path / "saved", tmp_path / "other", max_parallelism=512)
    assert stored_rows(tmp_path / "other") == before
    operators = read_manifest(LocalStorage(tmp_path / "saved")).operators
    nobody = {uid: ["nobody"] for uid in operators}
    ps.rewrite_savepoint(spark, tmp_path / "saved", tmp_path / "deleted", delete=nobody)
    assert stored_rows(tmp_path / "deleted") == before


def refusals(spark: Any, site: Site) -> dict[str, tuple[str, dict[str, Any]]]:
    """What is refused, by what is said of it, while nothing has run yet."""

    def frame(columns: str, *rows: Any) -> Any:
        return spark.createDataFrame(list(rows), columns)

    past = site.past(spark)
    counts = past.groupBy("app").agg(F.count("*").alias("count"))
    return {
        "no operator": ("no operator 'visit'; .* did you mean 'visits'", {"state": {"visit": {"count": counts}}}),
        "no state": ("'counts' does not exist; there are .*; did you mean 'count'", {"state": {"visits": {"counts": counts}}}),
        "no key": ("no column 'app', which is part of the key", {"state": {"visits": frame("apps string, count long")}}),
        "key type": ("the column 'app' is int, the job has string", {"state": {"visits": frame("app int, count long")}}),
        "value type": ("the column 'count' is double, the job has bigint", {"state": {"visits": frame("app string, count double")}}),
        "more columns": ("have the columns app, count, x", {"state": {"visits": {"count": frame("app string, count long, x int")}}}),
        "no order": ("take the key .app. and recent_position, recent", {"state": {"visits": {"recent": frame("app string, recent long")}}}),
        "an average": ("'mean' keeps more than its result", {"state": {"views": frame("app string, mean double")}}),
        "distinct": ("'users' keeps more than its result", {"state": {"views": frame("app string, users long")}}),
        "a count window": ("'n' is that of windows by a number of rows", {"state": {"fives": frame("app string, n long")}}),
        "no frame": ("is given as 3", {"state": {"visits": 3}}),
        "history of code": ("is no aggregate", {"history": {"visits": past}}),
        "history without a column": ("no column 'user', which it aggregates", {"history": {"views": past.drop("user")}}),
        "history of a stream": ("its history is a stream", {"history": {"views": site.log.read(spark)}}),
        "both": ("is in state and in history", {"state": {"views": frame("app string, n long")}, "history": {"views": past}}),
        "no source": ("positions names 'click'.*did you mean 'clicks'", {"positions": {"click": {0: 1}}}),
        "no position": ("is no position", {"positions": {"clicks": "first"}}),
        "parts": ("parallelism", {"parallelism": 1000}),
    }  # fmt: skip


def test_wrong_use(spark: Any, tmp_path: Path) -> None:
    """What cannot be is refused before anything is written, with both sides named; what only the rows show leaves the folder empty."""
    site = Site(tmp_path)
    site.fill(20)
    job = site.job_with_windows(spark, "new")
    for said, given in refusals(spark, site).values():
        with pytest.raises(ConfigError, match=said):
            ps.write_savepoint(tmp_path / "refused", job, **given)
        assert not (tmp_path / "refused").exists(), said
    shown = {
        "the key column 'app' is null in app=None": "select cast(null as string) app, 1L count",
        "app='b' is there twice": "select * from values ('a', 1L), ('b', 1L), ('b', 2L) as t(app, count)",
    }
    for said, rows in shown.items():
        with pytest.raises(ConfigError, match=f"operator 'visits', its values: {said}"):
            ps.write_savepoint(tmp_path / "refused", job, {"visits": spark.sql(rows)})
        assert LocalStorage(tmp_path / "refused").names() == []
    twice = spark.sql("select 'a' app, 1L by_user_key, explode(array(1L, 2L)) by_user")
    with pytest.raises(ConfigError, match=r"the state 'by_user': app='a', by_user_key=1 is there twice"):
        ps.write_savepoint(tmp_path / "refused", job, {"visits": {"by_user": twice}})
    ps.write_savepoint(
        tmp_path / "two",
        job,
        {
            "visits": spark.sql("select 'a' app, 1L count, 2L total"),
            "views": spark.sql("select 'a' app, 1L n"),
        },
    )
    with pytest.raises(ConfigError, match="holds a savepoint; choose an empty folder"):
        ps.write_savepoint(tmp_path / "two", job)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("no operator 'visit'", {"delete": {"visit": ["a"]}}),
        (r"\('a', 1\) is no key of it; its key is \(app\)", {"delete": {"visits": [("a", 1)]}}),
        ("two operators would be called", {"rename": {"visits": "same-1", "views": "same-1"}}),
        ("max_parallelism", {"max_parallelism": 0}),
        ("the savepoint has the sources clicks, again", {"positions": {"x": 1}}),
        ("'counts' does not exist", {"state": {"visits": spark.sql("select 'a' app, 1L counts")}}),
    ]
    for said, given in wrong:
        with pytest.raises(ConfigError, match=said):
            ps.rewrite_savepoint(spark, tmp_path / "two", tmp_path / "refused", **given)
        assert LocalStorage(tmp_path / "refused").names() == []
    part = next((tmp_path / "two/state/visits/values").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-9] + b"surprised")
    with pytest.raises(CorruptStateError, match="is corrupt"):
        ps.rewrite_savepoint(spark, tmp_path / "two", tmp_path / "refused", max_parallelism=7)
    assert LocalStorage(tmp_path / "refused").names() == []
