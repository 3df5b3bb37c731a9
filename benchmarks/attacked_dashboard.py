"""What a running job notices of a dashboard under attack, and what that costs the dashboard: batches with and without. Driver.

    python benchmarks/attacked_dashboard.py [seconds]

All at once, against `penstock dashboard` over the storage, which has a low priority as the one beside a driver has: state is looked up
without a pause, strangers hold connections and guess tokens, and clients do not read what they asked for. In the storage lies another job
with a record of 6 GB, numbers that nobody measured, and links to the journal of the first. Prints the ratio of the median batches, the most
memory that the dashboard had, and what was kept and shown at the end. Fails where a promise is not kept.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import penstock as ps

TOKEN = "a-token-of-thirty-two-characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SECONDS = 300
MOST_MEMORY_BYTES = 512 << 20
MOST_CHECKPOINTS = 8
WARM_UP = 5
SLOWEST_RATIO = 1.25
"""The attackers run on the same machine, at the lowest priority."""
NOT_READING, STRANGERS = 150, 300
_LARGE = "/jobs/attacked/journal.json"


def main(seconds: float) -> int:
    """Half of the time without, half of it under attack."""
    from pyspark.sql import functions as F

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        log = ps.sources.PartitionedLog(root / "log", "app string, n long", 2)
        job = ps.Job(
            "attacked",
            storage=root / "store",
            local_dir=root / "local",
            checkpoint=ps.Checkpointing(interval="1s"),
        )
        spark = ps.local_session("penstock-attacked", cores=2)
        counts = job.read(log.read(spark), uid="log").key_by("app").aggregate(n=F.sum("n"), uid="counts")
        counts.write_to(ps.sinks.Files(root / "out"), uid="out")
        handle = job.start()
        try:
            with _rows(log):
                _until(lambda: handle.progress.batches >= WARM_UP)
                quiet = _batches(handle, seconds / 2)
                _poison(root / "store")
                with _dashboard(root / "store") as (address, server), _attack(address, server) as most_bytes:
                    attacked = _batches(handle, seconds / 2)
                    shown = _asked(address, "/index.json")["jobs"]
                kept = len(list((root / "store" / "attacked").glob("chk-*")))
        finally:
            handle.stop()
    found = {
        "quiet_s": statistics.median(quiet),
        "attacked_s": statistics.median(attacked),
        "ratio": statistics.median(attacked) / statistics.median(quiet),
        "batches": (len(quiet), len(attacked)),
        "most_memory_mb": max(most_bytes) >> 20,
        "checkpoints_kept": kept,
        "shown": {one["name"]: one["state"] for one in shown},
        "load": os.getloadavg(),
    }
    print(json.dumps(found, indent=1))
    kept_promises = (
        found["ratio"] <= SLOWEST_RATIO
        and max(most_bytes) <= MOST_MEMORY_BYTES
        and kept <= MOST_CHECKPOINTS
        and found["shown"]["attacked"] == "running"
    )
    return 0 if kept_promises else 1


@contextmanager
def _rows(log: Any) -> Iterator[None]:
    """Inside, rows keep coming."""
    over = threading.Event()

    def work() -> None:
        number = 0
        while not over.wait(0.2):
            log.append(number % 2, [{"app": f"app{key}", "n": 1} for key in range(200)])
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _until(condition: Any) -> None:
    while not condition():
        time.sleep(0.1)


def _batches(handle: Any, seconds: float) -> list[float]:
    """How long each batch of the next seconds took."""
    end, took = time.monotonic() + seconds, {}
    while time.monotonic() < end:
        progress = handle.progress
        took[progress.batch_at] = progress.batch_seconds
        time.sleep(0.02)
    return list(took.values())[1:]


def _poison(store: Path) -> None:
    """What somebody who can write into the storage may leave there."""
    good, evil = store / "attacked" / "runs", store / "evil"
    for folder in ("runs", "events"):
        (evil / folder).mkdir(parents=True)
    (evil / "job.json").write_bytes((store / "attacked" / "job.json").read_bytes())
    for name in ("1.json", "1.alive"):
        (evil / "runs" / name).write_bytes((good / name).read_bytes())
    live = json.loads((good / "1.live").read_bytes())
    (evil / "runs" / "1.live").write_text(
        json.dumps({**live, "at": 1e308, "started_at": -1e308, "rows_in": 10**30})
    )
    (evil / "runs" / "2.json").touch()
    os.truncate(evil / "runs" / "2.json", 6 << 30)
    for journal in (store / "attacked" / "events").iterdir():
        (evil / "events" / journal.name).symlink_to(journal)


@contextmanager
def _dashboard(store: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Its address and its process."""
    command = "import os; os.nice(15); from penstock.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", command, "dashboard", str(store), "--ui", ":0"],
        env={**os.environ, "PENSTOCK_UI_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


@contextmanager
def _attack(address: str, server: psutil.Process) -> Iterator[list[int]]:
    """Inside, everything at once, from a process of the lowest priority; the list has what memory the dashboard had."""
    attacker = subprocess.Popen([sys.executable, __file__, "--attack", address], stdin=subprocess.PIPE)
    most: list[int] = [0]
    over = threading.Event()

    def measure() -> None:
        while not over.wait(0.25):
            most.append(server.memory_info().rss)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()
        attacker.communicate(b"")


def attack(address: str) -> None:
    """Until standard input ends."""
    os.nice(19)
    host, _, port = address.removeprefix("http://").rpartition(":")
    over = threading.Event()

    def again(deed: Any, pause_s: float) -> threading.Thread:
        def work() -> None:
            while not over.wait(pause_s):
                with suppress(OSError, http.client.HTTPException):
                    deed()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def ask(path: str, headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", path, headers=headers)
        connection.getresponse().read()
        connection.close()

    held: list[socket.socket] = []

    def hold(most: int, sent: bytes) -> None:
        held.append(socket.create_connection((host, int(port)), timeout=5))
        held[-1].sendall(sent)
        if len(held) > most:
            held.pop(0).close()

    unread = (
        f"GET {_LARGE} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode() * 50
    )
    for deed, pause_s in (
        (lambda: ask("/jobs/attacked/state/counts/_row.json", BEARER), 0.0),
        (lambda: ask("/jobs/attacked/state/counts/_row.json?largest=20", BEARER), 0.0),
        (lambda: ask("/metrics", BEARER), 0.1),
        (lambda: ask("/v1/jobs/overview", BEARER), 0.1),
        (lambda: ask("/index.json", {"Authorization": "Bearer a-guess-of-sixteen"}), 0.0),
        (lambda: hold(NOT_READING + STRANGERS, unread), 0.05),
        (lambda: hold(NOT_READING + STRANGERS, b"GET / HTT"), 0.02),
    ):
        again(deed, pause_s)
    sys.stdin.buffer.read()
    over.set()


def _asked(address: str, path: str) -> Any:
    host, _, port = address.removeprefix("http://").rpartition(":")
    for _ in range(50):  # while strangers try to lock others out
        with suppress(OSError, http.client.HTTPException, ValueError):
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
            connection.request("GET", path, headers=BEARER)
            answer = connection.getresponse()
            if answer.status == 200:
                return json.loads(answer.read())
        time.sleep(0.2)
    raise SystemExit("the dashboard has not answered somebody who has the token")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        attack(sys.argv[2])
    else:
        sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
