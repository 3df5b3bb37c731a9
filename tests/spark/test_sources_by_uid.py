"""Sources are matched by their uid: in another order, added, removed, renamed, or sent elsewhere, over a restart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ledger import Count, Ledger, fail_for_good

import penstock as ps
from penstock.clock import SYSTEM_CLOCK

pytestmark = pytest.mark.spark


class Sites:
    """Sources of different kinds, whose rows say which one they are of and their number; a job counts them, and writes every row."""

    def __init__(self, spark, root: Path) -> None:
        self.spark = spark
        self.ledger = Ledger(root)
        self.logs: dict[str, ps.sources.PartitionedLog] = {}
        self.truth: Counter[tuple[str, int]] = Counter()
        self.storage = root / "store" / "pv"

    def add(self, name: str, rows: int, *, count: bool = True) -> None:
        """More rows of a source: of a log, or of a folder of files if its name says so."""
        before = sum(1 for one, _ in self.truth if one == name) if count else 10_000
        numbers = range(before, before + rows)
        if name.startswith("files"):
            folder = self.ledger.root / name
            folder.mkdir(exist_ok=True)
            text = "\n".join(json.dumps({"app": name, "user": number}) for number in numbers)
            (folder / f"{before}.json").write_text(text)
        else:
            log = self.logs.setdefault(
                name, ps.sources.PartitionedLog(self.ledger.root / name, "app string, user long", 2)
            )
            for partition in range(2):
                log.append(
                    partition,
                    [{"app": name, "user": number} for number in numbers if number % 2 == partition],
                )
        if count:
            self.truth.update((name, number) for number in numbers)

    def frame(self, name: str) -> Any:
        if name.startswith("files"):
            folder = (self.ledger.root / name).as_uri()
            return (
                self.spark.readStream.schema("app string, user long")
                .option("maxFilesPerTrigger", 1)
                .json(folder)
            )
        return self.logs[name].read(self.spark, rows_per_batch=7)

    def job(
        self, names: Iterable[str], *, uids: dict[str, str] | None = None, views: Any = None, **settings: Any
    ) -> ps.Job:
        uids = uids or {}
        job = self.ledger.job(**settings)
        streams = [job.read(self.frame(name), uid=uids.get(name, name)) for name in names]
        rows = streams[0].select("app", "user")
        for stream in streams[1:]:
            rows = rows.union(stream.select("app", "user"))
        rows.write_to(self.ledger.files(), uid=uids.get("rows-out", "rows-out"))
        operator = views or Count()
        counted = rows.key_by("app").process(
            operator, schema="app string, n long", uid=uids.get("views", "views")
        )
        counted.write_to(self.ledger.sqlite(), uid=uids.get("counts-out", "counts-out"))
        return job

    def run(self, names: Iterable[str], **start: Any) -> Any:
        settings: dict[str, Any] = {
            name: start.pop(name)
            for name in ("uids", "mode", "views", "restart", "backend", "parallelism")
            if name in start
        }
        if "mode" in settings:
            settings["checkpoint"] = ps.Checkpointing(interval="1ms", mode=settings.pop("mode"))
        handle = self.job(names, **settings).start(available_now=True, **start)
        handle.wait()
        return handle

    def written(self) -> Counter[tuple[str, int]]:
        return Counter((row["app"], row["user"]) for row in self.ledger.rows())

    def check(self) -> None:
        """Every row once, and every count right."""
        assert self.written() == self.truth
        assert self.ledger.counts() == Counter(name for name, _ in self.truth.elements())


@pytest.fixture
def sites(spark, tmp_path: Path) -> Sites:
    return Sites(spark, tmp_path)


def test_another_order_one_more_one_less_and_one_renamed(sites):
    """Whatever becomes of the sources beside it, each goes on where it was: a log, and files with their list of what was read."""
    for name in ("log-a", "files-b", "log-c"):
        sites.add(name, 20)
    sites.run(["log-a", "files-b", "log-c"])
    sites.check()
    for name in ("log-a", "files-b", "log-c", "files-d"):
        sites.add(name, 11)
    sites.run(["files-d", "log-c", "files-b", "log-a"])  # another order, and a new one in front
    sites.check()
    for name in ("log-a", "files-b", "log-c", "files-d"):
        sites.add(name, 9)
    with pytest.raises(
        ps.errors.IncompatibleStateError,
        match=r"position of the source log-c, which .*drop_sources=\('log-c',\)",
    ):
        sites.run(["files-b", "files-d", "log-a"])
    sites.truth = Counter({row: n for row, n in sites.truth.items() if row[0] != "log-c" or row[1] < 31})
    handle = sites.run(
        ["files-b", "files-d", "log-a"],
        drop_sources=("log-c",),
        uids={"files-b": "clicks"},
        rename={"files-b": "clicks"},
    )
    sites.check()
    assert list(handle.checkpoints()[-1].barrier.positions) == ["clicks", "files-d", "log-a"]
    sites.add("files-b", 5)
    again = sites.run(
        ["files-b", "files-d", "log-a"],
        drop_sources=("log-c",),
        uids={"files-b": "clicks"},
        rename={"files-b": "clicks"},
    )
    sites.check()
    assert again.progress.restored_from >= 0


@pytest.mark.parametrize("backend", ["filesystem", "memory", "rocksdb"])
def test_everything_renamed(sites, backend):
    """An operator keeps its state, and a sink what was promised, under their new uids; also with another parallelism."""
    sites.add("log-a", 20)
    sites.run(["log-a"], backend=backend)
    sites.add("log-a", 10)
    uids = {"log-a": "new-a", "views": "new-views", "rows-out": "new-rows", "counts-out": "new-counts"}
    with pytest.raises(ps.PenstockError, match="no longer"):
        sites.run(["log-a"], uids=uids)
    with pytest.raises(
        ps.errors.IncompatibleStateError, match=r"the checkpoint has no operator 'view'.*did you mean 'views'"
    ):
        sites.run(
            ["log-a"],
            uids=uids,
            rename={**{old: new for old, new in uids.items() if old != "views"}, "view": "new-views"},
        )
    for parallelism in (2, 3):  # the second time there is nothing to rename
        sites.run(["log-a"], uids=uids, rename=uids, backend=backend, parallelism=parallelism)
        sites.check()
        sites.add("log-a", 10)
    sites.run(["log-a"], uids=uids, backend=backend)
    sites.check()


def test_one_frame_read_twice(sites):
    """Spark reads it once and numbers it once: those behind it keep their notes, and a new source cannot begin elsewhere in it."""
    sites.add("files-a", 10)
    sites.add("files-b", 10)
    a, b = sites.frame("files-a"), sites.frame("files-b")

    def job(*sources: tuple[str, Any]) -> ps.Job:
        job = sites.ledger.job()
        for uid, frame in sources:
            job.read(frame, uid=uid).write_to(sites.ledger.files(uid), uid=f"{uid}-out")
        return job

    job(("a", a), ("twin", a), ("b", b)).run(available_now=True)
    sites.add("files-a", 3)
    sites.add("files-b", 4)
    job(("b", b), ("twin", a), ("a", a)).run(available_now=True)
    for uid, rows in (("a", 13), ("twin", 13), ("b", 14)):
        assert sorted(row["user"] for row in sites.ledger.rows(uid)) == list(range(rows))
    with pytest.raises(ps.errors.IncompatibleStateError, match="read one and the same DataFrame"):
        job(("b", b), ("twin", a), ("a", a), ("third", b)).start(available_now=True)


@pytest.mark.parametrize("where", ["start", "latest", "exact"])
def test_positions_by_choice(sites, where, caplog):
    """A source begins anew, leaves out what it has not read, or goes to given offsets; once, although the same start is repeated."""
    for name in ("log-a", "log-b"):
        sites.add(name, 20)
    handle = sites.run(["log-a", "log-b"])
    before = sites.truth.copy()
    at = handle.checkpoints()[-1].barrier.positions["log-a"]
    assert at == {"0": 10, "1": 10}
    sites.add("log-b", 6)
    sites.add("log-a", 8, count=where != "latest")
    if where == "start":
        sites.truth.update({row: n for row, n in before.items() if row[0] == "log-a"})
        asked: object = "start"
    elif where == "latest":
        asked = "latest"
    else:
        asked = {"0": 4, "1": 12}
        sites.truth.update({("log-a", number): 1 for number in range(8, 20, 2)})
        for number in (21, 23):
            del sites.truth["log-a", number]
    for _ in range(2):
        sites.run(["log-b", "log-a"], positions={"log-a": asked})
        sites.check()
    said = {
        "start": "forgets its position",
        "latest": "8 records are skipped",
        "exact": "2 records are skipped and 6 records are read again and counted twice",
    }
    assert said[where] in caplog.text
    assert "was applied to log-a by an earlier start" in caplog.text


def test_a_position_set_by_choice_is_kept_when_the_run_fails(sites, tmp_path):
    """A restart inside the start goes on where the choice has led, also before its first checkpoint."""
    sites.add("log-a", 20)
    first = sites.run(["log-a"])
    marker = tmp_path / "failed"
    last = first.checkpoints()[-1].checkpoint

    class FailsAtOnce(Count):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == last + 1 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    sites.add("log-a", 4, count=False)
    log = sites.logs["log-a"]
    handle = sites.job(["log-a"], views=FailsAtOnce(), restart=ps.fixed_delay(attempts=1, delay="1ms")).start(
        positions={"log-a": "latest"}
    )
    log.append(0, [{"app": "log-a", "user": 500}])
    sites.truth["log-a", 500] += 1
    _until(lambda: handle.progress.restarts == 1 or marker.exists())
    log.append(0, [{"app": "log-a", "user": 501}])
    sites.truth["log-a", 501] += 1
    _until(lambda: handle.progress.restarts == 1 and len(sites.written()) == len(sites.truth))
    handle.stop()
    sites.check()


def _until(done: Any) -> None:
    for _ in range(1200):
        if done():
            return
        SYSTEM_CLOCK.sleep(0.05)
    raise AssertionError("it does not come")


def test_at_most_once_sources_are_matched_too(sites, tmp_path):
    """What was begun is recorded with its sources: the next run, with others in another order, reads none of it again."""
    sites.add("log-a", 20)
    sites.add("files-b", 10)
    marker = tmp_path / "failed"

    class FailsLater(Count):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == 1 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    with pytest.raises(ps.JobFailedError):
        sites.run(["log-a", "files-b"], mode=ps.Mode.AT_MOST_ONCE, views=FailsLater())
    sites.add("log-a", 5)
    sites.add("files-b", 5)
    sites.add("log-c", 5)
    sites.run(["log-c", "files-b", "log-a"], mode=ps.Mode.AT_MOST_ONCE)
    written = sites.written()
    lost = sites.truth - written
    assert not written - sites.truth
    assert 0 < lost.total() <= 7
    assert {name for name, _ in lost} == {"log-a"}


def test_what_cannot_be_asked_where_it_ends(sites):
    """Files have no end that a position could name: the way out is told, and nothing is changed."""
    sites.add("files-a", 5)
    sites.run(["files-a"])
    with pytest.raises(
        ps.ConfigError, match=r"FileSource.*cannot be asked where it ends; only Kafka and PartitionedLog"
    ):
        sites.run(["files-a"], positions={"files-a": "latest"})
    sites.add("files-a", 5)
    sites.run(["files-a"])
    sites.check()
