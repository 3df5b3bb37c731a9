"""A job moves from place to place by savepoints, with another parallelism and backend each time, while its driver is killed: every count is right.

It is stopped with a savepoint, the folder is moved, and the next place begins with it. In each place the driver is killed with all its
children, and started again by the same command. A source is added on the way. Of one savepoint, taken while the job runs, two more jobs
are started in the end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from services.patience import PATIENCE_S, tries

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

PROGRAM = """
import sys
from pathlib import Path
import penstock as ps
from penstock.spark.local_session import local_session

class Number(ps.KeyedProcess):
    count = ps.ValueState("long", default=0)
    sources = ps.MapState("string", "long")
    seen = ps.ListState("long")

    def process(self, key, rows, ctx):
        for row in rows:
            self.count.value += 1
            self.sources[row.source] = self.sources.get(row.source, 0) + 1
            if self.count.value % 100 == 0:
                self.seen.append(self.count.value)
            yield key, self.count.value, sum(self.sources.values()), len(self.seen)

root, place, parallelism, backend, savepoint, sources, once = sys.argv[1:]
root = Path(root)
spark = local_session("chain")
job = ps.Job("chain", storage=root / place, backend=backend, parallelism=int(parallelism),
             checkpoint=ps.Checkpointing(interval="300ms"))
streams = []
for source in sources.split(","):
    frame = ps.sources.PartitionedLog(root / source).read(spark, rows_per_batch=2000)
    streams.append(job.read(frame.selectExpr("app", f"'{source}' as source"), uid=source))
rows = streams[0] if len(streams) == 1 else streams[0].union(streams[1])
numbered = rows.key_by("app").process(Number(), schema="app string, n long, mapped long, listed long", uid="number")
numbered.write_to(ps.sinks.Files(root / "out", format="parquet") if once == "-" else ps.sinks.Files(root / once, format="parquet"), uid="out")
job.run(savepoint=None if savepoint == "-" else savepoint, available_now=once != "-")
"""

APPS = [f"app{n}" for n in range(6)]
SHORT = [(2, "filesystem"), (3, "rocksdb")]
WHOLE = [(2, "filesystem"), (8, "rocksdb"), (3, "memory"), (1, "filesystem")]


class Traffic:
    """Rows come into the logs as long as the test lasts."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self._rng = rng
        self._logs = [ps.sources.PartitionedLog(root / name, "app string", 2) for name in ("one", "two")]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(0.05):
            for log in self._logs:
                rows = pa.table({"app": self._rng.choices(APPS, k=self._rng.randint(1, 60))})
                log.append(self._rng.randrange(2), rows)

    def truth(self) -> Counter[str]:
        return Counter(app for log in self._logs for app in log.table()["app"].to_pylist())


class Chain:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.under_load = root / "under load"
        self.program = root / "program.py"
        self.program.write_text(PROGRAM)

    @contextmanager
    def driver(self, place: str, *what: object, once: str = "-") -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, str(self.program), str(self.root), place, *map(str, what), once]
        with (self.root / "output").open("ab") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def rows(self, folder: str = "out") -> list[dict[str, object]]:
        if not any((self.root / folder).glob("*.parquet")):
            return []
        return ds.dataset(self.root / folder, format="parquet").to_table().to_pylist()

    def wait_for_more(self, process: subprocess.Popen[bytes], rows: int) -> None:
        """Until the job has made more visible."""
        before = len(self.rows())
        for _ in tries(0.1):
            if len(self.rows()) > before + rows:
                return
            assert process.poll() is None, self.said()
        raise AssertionError(f"nothing came any more: {self.said()}")

    def asked(self, *arguments: object) -> str:
        command = [sys.executable, "-c", "from penstock.cli import main; main()", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr + self.said()
        return done.stdout.strip()

    def said(self) -> str:
        return (self.root / "output").read_text()[-3000:]

    def check(self, rows: list[dict[str, object]], truth: Counter[str]) -> None:
        """Each number of each app once, and each kind of state agrees with the count."""
        wanted: Counter[tuple[object, ...]] = Counter(
            (app, n, n, n // 100) for app, count in truth.items() for n in range(1, count + 1)
        )
        given: Counter[tuple[object, ...]] = Counter(
            (row["app"], row["n"], row["mapped"], row["listed"]) for row in rows
        )
        assert given == wanted, (list((wanted - given).items())[:5], list((given - wanted).items())[:5])


def run_chain(chain: Chain, rng: random.Random, places: list[tuple[int, str]]) -> Counter[str]:
    """Returns the truth."""
    saved = "-"
    with Traffic(chain.root, rng) as traffic:
        for number, (parallelism, backend) in enumerate(places):
            sources = "one" if number == 0 else "two,one"  # added, and in front
            what = (parallelism, backend, saved, sources)
            if number or len(places) > len(SHORT):
                with chain.driver(f"place {number}", *what) as process:
                    chain.wait_for_more(process, rng.randint(1, 400))
                    os.killpg(process.pid, signal.SIGKILL)
            with chain.driver(f"place {number}", *what) as process:
                chain.wait_for_more(process, rng.randint(1, 400))
                if number == 1:
                    chain.asked(
                        "savepoint", chain.root / f"place {number}", "chain", "--to", chain.under_load
                    )
                made = chain.root / f"saved {number}"
                chain.asked("stop", chain.root / f"place {number}", "chain", "--savepoint", made)
                assert process.wait(PATIENCE_S) == 0, chain.said()
            saved = str(made.rename(chain.root / f"moved {number}"))
    parallelism, backend = places[-1]
    with chain.driver("the end", parallelism, backend, saved, "one,two", once="out") as process:
        assert process.wait(PATIENCE_S) == 0, chain.said()
    chain.check(chain.rows(), traffic.truth())
    return traffic.truth()


def check_forks(chain: Chain, truth: Counter[str]) -> None:
    """Of what was saved under load two jobs make the same, which is right."""
    for fork in ("fork a", "fork b"):
        with chain.driver(fork, 2, "filesystem", chain.under_load, "two,one", once=f"{fork} out") as process:
            assert process.wait(PATIENCE_S) == 0, chain.said()
    first, second = (sorted(map(repr, chain.rows(f"{fork} out"))) for fork in ("fork a", "fork b"))
    assert first == second
    numbers = Counter((row["app"], row["n"]) for row in chain.rows("fork a out"))
    assert set(numbers.values()) == {1}
    assert all((app, count) in numbers for app, count in truth.items())


def test_two_places(tmp_path: Path, seed: int) -> None:
    """From one place to another and on, with a kill in between."""
    run_chain(Chain(tmp_path), random.Random(seed), SHORT)


def test_every_backend_and_several_parallelisms(tmp_path: Path, seed: int) -> None:
    """The same over 2, 8, 3 and 1 subtasks on all three backends, with a kill in each place, and two forks in the end."""
    chain = Chain(tmp_path)
    check_forks(chain, run_chain(chain, random.Random(seed), WHOLE))
