"""Python workers die under a driver that lives on, and so does what lies on the local disk."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress

import psutil
import pytest
from chaos_job import build_job
from known_truth import Site, Traffic, assert_exact, assert_nothing_left_after_recovery
from moments import KILLS, Moment, hesitate, look, newest_checkpoint
from processes import GONE, POLL_S, until

from penstock.spark.job_handle import JobHandle
from services import quick_spark

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(600 + 90 * KILLS)]

DAEMONS = ("pyspark.daemon", quick_spark.DAEMON)
WORKING = [Moment.BATCH_PLANNED, Moment.ROWS_STAGED, Moment.STATE_STORED, Moment.COMPLETED]


def wait_for(what: str, handle: JobHandle, condition, *, poll_s: float = POLL_S) -> None:
    """Asked not too often: who looks into storage all the time takes from the job the processor that it needs."""
    met = until(lambda: condition() or handle.wait(0), poll_s=poll_s)
    met = met and condition()
    assert met, f"waited in vain for {what}: {handle.status}, {handle.progress}"


def wait_for_moment(site: Site, handle: JobHandle, moment: Moment) -> None:
    before = look(site, moment)
    wait_for(moment.value, handle, lambda: look(site, moment) - before, poll_s=0.002)


def wait_for_checkpoints(site: Site, handle: JobHandle, count: int = 1) -> None:
    seen = newest_checkpoint(site)
    wait_for("a later checkpoint", handle, lambda: newest_checkpoint(site) >= seen + count)


def finish(site: Site, handle: JobHandle, traffic: Traffic) -> None:
    traffic.stop()
    ends = {str(partition): end for partition, end in site.log.end_offsets().items()}
    wait_for("the end of the log", handle, lambda: _position(handle) == ends)
    handle.stop()
    assert_exact(traffic)
    assert_nothing_left_after_recovery(traffic)


def end(handle: JobHandle) -> None:
    """Whatever happened, no job runs on into the next test."""
    if not handle.wait(0):
        handle.cancel()


def _position(handle: JobHandle) -> object:
    kept = handle.checkpoints()
    return kept[-1].barrier.positions["clicks"] if kept else None


def python_workers() -> list[psutil.Process]:
    """The processes that run user code: forked by PySpark's daemon, which itself is left alone."""
    daemons = [one for one in psutil.Process().children(recursive=True) if _is_daemon(one)]
    return [one for one in daemons if any(one.ppid() == other.pid for other in daemons)]


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:] in [["-m", daemon, "pyspark.worker"] for daemon in DAEMONS]
    except GONE:
        return False


def test_killed_python_workers(spark, site, seed):
    """When Python workers are killed in the middle of batches the job goes on by itself and stays exact."""
    rng = random.Random(seed)
    with Traffic(site, seed) as traffic:
        handle = build_job(site, spark).start()
        try:
            wait_for_checkpoints(site, handle)
            killed = 0
            for number in range(max(KILLS, len(WORKING))):
                moment = WORKING[number % len(WORKING)]
                wait_for_moment(site, handle, moment)
                hesitate(rng, moment)
                for worker in python_workers():
                    with suppress(*GONE):
                        worker.kill()
                        killed += 1
                wait_for_checkpoints(site, handle)
            assert killed > 0
            finish(site, handle, traffic)
        finally:
            end(handle)
    print(
        f"{killed} workers killed, {handle.progress.restarts} restarts of the job, {handle.progress.batches} batches"
    )


def test_lost_local_files(spark, site, seed):
    """When the whole local working folder vanishes while the job runs, the job goes on or goes back, and stays exact."""
    rng = random.Random(seed)
    with Traffic(site, seed) as traffic:
        handle = build_job(site, spark).start()
        try:
            wait_for_checkpoints(site, handle)
            for moment in rng.sample(WORKING, 3):
                wait_for_moment(site, handle, moment)
                hesitate(rng, moment)
                shutil.rmtree(site.local_dir, ignore_errors=True)
                wait_for_checkpoints(site, handle, 2)
            finish(site, handle, traffic)
        finally:
            end(handle)
    print(f"{handle.progress.restarts} restarts of the job")
