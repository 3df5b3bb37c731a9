"""What a running job notices of a dashboard under attack, and what that costs the dashboard: batches with and without. Driver.

    python benchmarks/attacked_dashboard.py [seconds]

All at once, against `penstock dashboard` over the storage, which has a low priority as the one beside a driver has: state is looked up
without a pause, strangers hold connections and guess tokens, and clients do not read what they asked for. In the storage lies another job
with a record of 6 GB, numbers that nobody measured, and links to the journal of the first. A second storage of the same dashboard hangs:
the look at it blocks in the kernel, in a FIFO that nobody writes, as it does in a mount whose server is gone.

Prints a table, and exits with 1 where a claim is not kept. How much slower the batches are is no claim: it depends on the machine.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
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
FRESH_S = 15.0
"""What was seen longer ago is shown as not seen."""
NOT_READING, STRANGERS = 150, 300
HANGS = "hangs"
"""The FIFO: while it is there, the second storage hangs."""
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
                _copy_as_stuck(root)
                with (
                    _dashboard(root) as (address, server),
                    _attack(address, server) as most_bytes,
                ):
                    _until(lambda: {"attacked", "stuck"} <= _shown(address).keys())
                    os.mkfifo(root / HANGS)
                    hung_at, before = time.time(), _ages(address)
                    attacked = _batches(handle, seconds / 2)
                    shown, after, page = _shown(address), _ages(address), _text(address, "/jobs/stuck")
                    lasted_s = time.time() - hung_at
                    _let_go(root / HANGS)
                kept = len(list((root / "store" / "attacked").glob("chk-*")))
        finally:
            handle.stop()
    good, stuck = shown["attacked"], shown["stuck"]
    claims = {
        f"the dashboard has at most {MOST_MEMORY_BYTES >> 20} MB": max(most_bytes) <= MOST_MEMORY_BYTES,
        f"at most {MOST_CHECKPOINTS} checkpoints are retained": kept <= MOST_CHECKPOINTS,
        "the job is shown as running": good["state"] == "running",
        "its last checkpoint is shown with its age": time.time() - good["checkpoint_at"] < FRESH_S,
        "it was seen just now": after["attacked"] < FRESH_S,
        "the poisoned job is not shown as running": shown["evil"]["state"] != "running",
        "the job of the hung storage is shown as not seen": "Not seen" in page and stuck["looked_at"] > 0,
        "the age of that look is told": abs(stuck["now"] - stuck["looked_at"] - lasted_s) < FRESH_S,
        "the metric of that age grows": after["stuck"] - before["stuck"] > lasted_s - FRESH_S,
    }
    quiet_s, attacked_s = statistics.median(quiet), statistics.median(attacked)
    states = {name: one["state"] for name, one in shown.items()}
    for what, value in (
        ("median batch without the attack", f"{quiet_s * 1000:.0f} ms of {len(quiet)}"),
        ("median batch under attack", f"{attacked_s * 1000:.0f} ms of {len(attacked)}"),
        ("ratio", f"{attacked_s / quiet_s:.2f}"),
        ("load of the machine, 1, 5 and 15 min", " ".join(f"{one:.1f}" for one in os.getloadavg())),
        ("most memory of the dashboard", f"{max(most_bytes) >> 20} MB"),
        ("retained checkpoints", kept),
        ("shown", f"{states}; stuck was last seen {stuck['now'] - stuck['looked_at']:.0f} s ago"),
        ("last look, attacked", f"{before['attacked']:.0f} s, then {after['attacked']:.0f} s"),
        ("last look, stuck", f"{before['stuck']:.0f} s, then {after['stuck']:.0f} s"),
        *(((f"claim: {claim}"), "kept" if is_kept else "BROKEN") for claim, is_kept in claims.items()),
    ):
        print(f"{what:<58} {value}")
    return 0 if all(claims.values()) else 1


def _shown(address: str) -> dict[str, dict[str, Any]]:
    """The jobs as the overview has them, by name."""
    return {one["name"]: one for one in json.loads(_text(address, "/index.json"))["jobs"]}


def _ages(address: str) -> dict[str, float]:
    """By job, how long ago it was seen, as `/metrics` says."""
    found = re.findall(
        r'^penstock_last_look_age_seconds\{[^}]*job_name="(\w+)"[^}]*\} (\S+)',
        _text(address, "/metrics"),
        re.MULTILINE,
    )
    return {job: float(age) for job, age in found}


def _copy_as_stuck(root: Path) -> None:
    """The job as it is now, in a storage of its own and under another name."""
    copy = root / "hung" / "stuck"
    shutil.copytree(
        root / "store" / "attacked", copy, ignore=shutil.ignore_patterns("chk-*", "state", "spark")
    )
    record = json.loads((copy / "job.json").read_bytes())
    (copy / "job.json").write_text(json.dumps({**record, "job": "stuck"}))


def _let_go(fifo: Path) -> None:
    """Open it for writing, so that who waits for that goes on; nobody may be waiting."""
    with suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    fifo.unlink()


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


_SERVER = """
import os, sys
os.nice(15)
from penstock.cli import main
from penstock.dashboard import status_poller
find, (hung, fifo) = status_poller.find_jobs, sys.argv[1:3]
def find_or_hang(places):
    if list(places) == [hung] and os.path.exists(fifo):
        open(fifo).close()
    return find(places)
status_poller.find_jobs = find_or_hang
del sys.argv[1:3]
main()
"""


@contextmanager
def _dashboard(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Its address and its process."""
    store, hung = str(root / "store"), str(root / "hung")
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, hung, str(root / HANGS), "dashboard", store, hung, "--ui", ":0"],
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


def _text(address: str, path: str) -> str:
    host, _, port = address.removeprefix("http://").rpartition(":")
    for _ in range(50):  # while strangers try to lock others out
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
            connection.request("GET", path, headers={**BEARER, "Accept": "text/html"})
            answer = connection.getresponse()
            if answer.status == 200:
                return answer.read().decode()
        time.sleep(0.2)
    raise SystemExit("the dashboard has not answered somebody who has the token")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        attack(sys.argv[2])
    else:
        sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
