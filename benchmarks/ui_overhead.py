"""What a running job notices of those who look at its pages: batches without, at 10 requests a second, and at as many as 1,000. Driver.

Whoever asks is a process of its own, of the lowest priority: it stands for a machine elsewhere.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jobs
from bench import Bench
from data import Clicks
from measure import Found

import penstock as ps

WARM_UP = 2
FEW, MANY = 10, 1_000
"""Requests a second."""
TOKEN = "a-token-of-thirty-two-characters"
PATHS = ("/jobs/bench", "/jobs/bench.json", "/jobs/bench/checkpoints", "/metrics", "/v1/jobs/overview")


def measure(bench: Bench) -> Found:
    """The conditions take turns; seconds of the median batch."""
    rows, keys = bench.size((100_000, 100_000), (20_000, 10_000))
    batches, turns = bench.size((12 + WARM_UP, 3), (4 + WARM_UP, 1))
    seconds: dict[int, list[float]] = {0: [], FEW: [], MANY: []}
    served: list[float] = []
    with bench.scratch() as root:
        clicks = Clicks(root)
        for turn in range(turns):
            for rate in seconds:
                clicks.uniform(rows, keys, batches=batches)
                what = f"{rate} requests a second, turn {turn + 1} of {turns}"

                def run(rate: int = rate) -> None:
                    handle = _job(bench, root, clicks).start(
                        available_now=True, ui="127.0.0.1:0", ui_token=TOKEN
                    )
                    with _asking(handle.ui_address, rate) as asked:
                        handle.wait()
                    if rate == MANY:
                        served.extend(asked)

                seconds[rate] += bench.watch(what, run, batches=batches).seconds[WARM_UP:]
    without, few, many = (statistics.median(times) for times in seconds.values())
    return {
        "without_s": without,
        "at_10_a_second_s": few,
        "at_many_a_second_s": many,
        "many_a_second": statistics.median(served),
        "ratio": few / without,
        "ratio_at_many": many / without,
    }


def _job(bench: Bench, root: Path, clicks: Clicks) -> ps.Job:
    job = ps.Job(
        "bench",
        storage=root / "store",
        local_dir=root / "local",
        checkpoint=ps.Checkpointing(interval="1ms", max_concurrent=jobs.AT_ONCE),
    )
    read = job.read(clicks.read(bench.spark), uid="clicks")
    jobs.by_aggregate(read).write_to(ps.sinks.Files(root / "out"), uid="out")
    return job


@contextmanager
def _asking(address: str, rate: int) -> Iterator[list[float]]:
    """Inside, somebody asks so often; afterwards the list has how often it really was, a second."""
    asked: list[float] = []
    if not rate:
        yield asked
        return
    asker = subprocess.Popen(
        [sys.executable, __file__, address, str(rate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield asked
    finally:
        said, _ = asker.communicate(b"\n")
        asked.append(float(json.loads(said)))


def ask(address: str, rate: int) -> float:
    """Ask until standard input has something; how many answers came a second. Several at once, each over a connection of its own."""
    import http.client
    import os
    import select
    import threading

    os.nice(19)
    host, _, port = address.removeprefix("http://").rpartition(":")
    over, counts = threading.Event(), [0] * min(rate, 8)

    def work(index: int) -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        shown = {"Authorization": f"Bearer {TOKEN}"}
        pause_s = len(counts) / rate
        next_s = time.monotonic()
        while not over.is_set():
            with suppress(OSError, http.client.HTTPException):  # the server is not up yet, or is ending
                connection.request("GET", PATHS[counts[index] % len(PATHS)], headers=shown)
                connection.getresponse().read()
                counts[index] += 1
            next_s += pause_s
            over.wait(max(0.0, next_s - time.monotonic()))

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    select.select([sys.stdin], [], [])
    over.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1], int(sys.argv[2]))))
