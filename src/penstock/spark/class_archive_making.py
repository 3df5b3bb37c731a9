"""Making the archive of Spark's classes, see `class_archive`: `python -m penstock.spark.class_archive_making FILE`. In a process."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import InternalError
from penstock.spark.class_archive import DRIVER_OPTIONS, SILENT, is_own

KEPT = 2
"""Archives of other Javas and Sparks."""
_LOWEST_PRIORITY = 19
_ONLY_OURS = 0o600


def make(archive: Path) -> None:
    """Run a small job on a Java that writes down its classes as it ends. Unless another process is at it."""
    os.nice(_LOWEST_PRIORITY)
    with _alone(archive) as is_alone:
        if not is_alone or is_own(archive):
            return
        fresh = archive.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        os.environ[DRIVER_OPTIONS] = f"-XX:ArchiveClassesAtExit={fresh} {SILENT}"
        with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
            _tour(Path(folder))
        if _java_has_ended() == 0 and fresh.is_file():
            fresh.chmod(_ONLY_OURS)
            with fresh.open("rb") as whole:
                os.fsync(whole.fileno())
            fresh.replace(archive)
            _forget_others(archive)


@contextmanager
def _alone(archive: Path) -> Iterator[bool]:
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _tour(folder: Path) -> None:
    """A job with what most jobs have, so that their classes are loaded: a source, a shuffle, own Python, an aggregate, files."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    import penstock as ps
    from penstock.spark.session import local_session

    class Last(ps.KeyedProcess):
        newest = ps.ValueState("long", default=0)

        def process(self, key: int, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[int, int]]:  # noqa: ARG002
            self.newest.value = max(row.n for row in rows)
            yield key, self.newest.value

    spark = local_session("class-archive")
    spark.range(1000).selectExpr("id % 10 as k", "id as n").write.parquet(str(folder / "in"))
    job = ps.Job("tour", storage=folder / "store", local_dir=folder / "local")
    rows = job.read(spark.readStream.schema("k long, n long").parquet(str(folder / "in")), uid="in")
    rows.key_by("k").process(Last(), schema="k long, n long", uid="last").write_to(
        ps.sinks.Files(folder / "last"), uid="last-out"
    )
    counted = rows.key_by("k").aggregate(n=F.count("*"), most=F.max("n"), uid="counted")
    counted.write_to(ps.sinks.Files(folder / "counted"), uid="counted-out")
    job.start(available_now=True).wait()
    spark.stop()


def _java_has_ended() -> int:
    """End Java in good order, which is when it writes its archive; returns its exit code."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        raise InternalError("the small job ran without Java")
    gateway.shutdown()
    gateway.proc.stdin.close()  # for which it waits
    return int(gateway.proc.wait())


def _forget_others(archive: Path) -> None:
    """Of Javas and Sparks that were here once. One that runs keeps what it has mapped."""
    others = (one for one in archive.parent.glob("*.jsa") if one != archive)
    for old in sorted(others, key=lambda one: one.stat().st_mtime, reverse=True)[KEPT:]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
