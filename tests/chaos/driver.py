"""A driver in a process of its own: it reads from standard input, a line each, which job to run, and ends with the last one.

A job is stopped when `finish` exists and everything is committed. Exit codes: 0 done, 3 fenced, 1 anything else (the log says what).
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import chaos_job
import held_storage
import known_truth
import msgspec
import timed_job
from chaos_job import SIDE_BY_SIDE, build_job
from held_storage import HeldStorage
from known_truth import Site
from pyspark import cloudpickle

import penstock as ps
from penstock.spark.job_handle import JobHandle

FENCED = 3
_log = logging.getLogger("driver")
POLL_S = 0.1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run the job."""

    root: str
    shape: str = SIDE_BY_SIDE
    master: str = "local[2]"
    config: dict[str, str] = {}
    """Spark's settings beside those of `local_session`."""
    interval: str = "200ms"
    rows_per_batch: int = chaos_job.ROWS_PER_BATCH
    hold_after: int | None = None
    """Before the metadata of the first checkpoint beyond this number is created: say so and wait for the file `release`."""
    drain: bool = False
    """End with the input that there is, with event time at its end."""
    outcomes: str | None = None
    """Add the exit code to this file, a line each, instead of ending with it, and wait for the next job."""


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    orders: queue.SimpleQueue[Settings] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    for module in (chaos_job, held_storage, known_truth, timed_job):
        cloudpickle.register_pickle_by_value(module)
    while True:
        settings = orders.get()
        code = _run(settings)
        if settings.outcomes is None:
            return code
        with Path(settings.outcomes).open("a") as outcomes:
            outcomes.write(f"{code}\n")


def _run(settings: Settings) -> int:
    try:
        _work(settings)
    except ps.errors.FencedError:
        _log.exception("fenced")
        return FENCED
    except Exception:  # noqa: BLE001 - the log says what, the exit code that
        _log.exception("failed")
        return 1
    return 0


def _work(settings: Settings) -> None:
    site = Site(Path(settings.root))
    spark = ps.local_session("penstock-chaos", master=settings.master, config=settings.config)
    storage = (
        site.storage
        if settings.hold_after is None
        else HeldStorage(site.storage, site.root, settings.hold_after)
    )
    job = build_job(
        site,
        spark,
        settings.shape,
        storage=storage,
        interval=settings.interval,
        rows_per_batch=settings.rows_per_batch,
    )
    handle = job.start(available_now=settings.drain, drain=settings.drain)
    _log.info("run %d starts from checkpoint %d", handle.progress.run, handle.progress.restored_from)
    while not handle.wait(POLL_S):
        if site.finish_path.exists() and _has_all(site, handle):
            handle.stop()
    _log.info("ended after %d restarts", handle.progress.restarts)
    if settings.outcomes is None:
        spark.stop()


def _has_all(site: Site, handle: JobHandle) -> bool:
    kept = handle.checkpoints()
    ends = {str(partition): end for partition, end in site.log.end_offsets().items()}
    return bool(kept) and kept[-1].barrier.positions["clicks"] == ends


def _listen(orders: queue.SimpleQueue[Settings]) -> None:
    """Standard input ends when the test does, however it dies."""
    for line in sys.stdin:
        orders.put(msgspec.json.decode(line, type=Settings))
    time.sleep(POLL_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    os._exit(main())  # whatever hangs on in a thread, the verdict is out
