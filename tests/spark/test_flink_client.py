"""Flink's own command line works with a job of Penstock's, through a server that has only the job's storage."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import pytest
from child_driver import ChildDriver
from ledger import Ledger
from prometheus_client.parser import text_string_to_metric_families
from test_requests_to_jobs import PROGRAM, batches, manifest

import penstock as ps
from builders.checkpoints import checkpoint_ids
from penstock.status.jobs import job_id
from penstock.storage import LocalStorage
from services import flink_client
from services.flink_client import FlinkClient
from services.maven import JarsMissingError

pytestmark = pytest.mark.spark

TOKEN = "a-token-of-thirty-two-characters"
BEARER = f"Authorization:Bearer {TOKEN}"  # no space behind the colon, or the client itself refuses it
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@contextmanager
def serving(storage: Path) -> Iterator[str]:
    """The address of `penstock dashboard` over a storage; it asks for the token."""
    command = [
        sys.executable,
        "-c",
        "from penstock.cli import main; main()",
        "dashboard",
        str(storage),
        "--ui",
        ":0",
        "--savepoints",
        str(storage.parent),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PENSTOCK_UI_TOKEN": TOKEN}
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().removeprefix("http://").rstrip("/")
        finally:
            process.terminate()


def asked(address: str, path: str) -> Any:
    """What the server says of the job that runs."""
    with urlopen(asking(address, path)) as answer:
        return json.load(answer)


def asking(address: str, path: str) -> Request:
    """With the token."""
    return Request(f"http://{address}{path}", headers={"Authorization": f"Bearer {TOKEN}"})


def newest_checkpoint(address: str, job: str) -> int | None:
    """What is shown may be a second old."""
    latest = asked(address, f"/v1/jobs/{job}/checkpoints")["latest"]["completed"]
    return None if latest is None else int(latest["id"])


def completed_checkpoints(address: str, job: str) -> float:
    """As Prometheus would read it, under Flink's name."""
    with urlopen(asking(address, "/metrics")) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    values = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "flink_jobmanager_job_numberOfCompletedCheckpoints"
        and sample.labels["job_name"] == job
    ]
    return values[0]


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    try:
        flink_client.jars()
    except JarsMissingError as error:
        pytest.skip(f"Flink: {error}")


def printed_path(text: str) -> Path:
    """That of the savepoint."""
    found = re.search(r"(?:Path:|stored in) (file:\S+?)\.?\s", text)
    assert found is not None, text
    return Path(unquote(urlsplit(found[1]).path))


def inputs(root: Path) -> Ledger:
    """The logs that the program's jobs read."""
    ledger = Ledger(root)
    ledger.append(0, "a", 3)
    timed = ps.sources.PartitionedLog(root / "timed", "app string, at timestamp", 1)
    timed.append(0, [{"app": "a", "at": NOON + timedelta(hours=hour)} for hour in range(3)])
    return ledger


def test_flinks_client_steers_a_job(tmp_path: Path, child_driver: ChildDriver) -> None:
    """List, checkpoint, savepoint, disposal, stop, stop with a drain, cancel: each does to a running job what it does in Flink."""
    store, ledger, until = tmp_path / "store", inputs(tmp_path), child_driver.until
    child_driver.run(tmp_path, PROGRAM, "counted", "drained", "saved", "cancelled")
    with serving(store) as address:
        flink = FlinkClient(address, tmp_path / "flink", headers=BEARER)
        counted = job_id("counted")
        until(lambda: batches(tmp_path, "counted"), "the first batch")
        listed = flink.run("list").text
        assert re.search(rf": {counted} : counted \((RUNNING|INITIALIZING)\)", listed), listed

        said = flink.run("checkpoint", counted)
        assert said.code == 0, said.text
        assert "Checkpoint 0" in said.text
        assert checkpoint_ids(LocalStorage(store / "counted")) == [0]

        detail = asked(address, f"/v1/jobs/{counted}")
        assert [one["name"].partition(":")[0] for one in detail["vertices"]] == ["log", "counts", "out"]
        until(lambda: newest_checkpoint(address, counted) == 0, "the checkpoint")
        until(lambda: completed_checkpoints(address, "counted") == 1, "the metric")

        chosen = tmp_path / "my savepoints"
        made = [printed_path(flink.run("savepoint", counted, *where).text) for where in ([chosen], [])]
        assert [one.parent for one in made] == [chosen, store / "counted-savepoints"]
        assert made[0].name.startswith(f"savepoint-{counted[:6]}-")
        assert manifest(made[0])["checkpoint"] == 0
        said = flink.run("savepoint", "-dispose", made[0].as_uri())
        assert said.code == 0, said.text
        assert not made[0].exists()
        assert manifest(made[1])["checkpoint"] == 0

        ledger.append(1, "b", 2)
        until(lambda: batches(tmp_path, "counted") == 2, "the second batch")
        last = printed_path(flink.run("stop", counted).text)
        assert last.parent == store / "counted-savepoints"
        assert manifest(last)["checkpoint"] == 1
        assert ledger.counts("counted") == {"a": 3, "b": 2}

        until(lambda: batches(tmp_path, "drained"), "the batch of windows")
        printed_path(flink.run("stop", "--drain", "--type", "native", job_id("drained")).text)
        assert ledger.rows_of("drained") == [("a", 1)] * 3

        until(lambda: batches(tmp_path, "saved"), "the batch of what is saved and cancelled")
        assert (
            manifest(printed_path(flink.run("cancel", "-s", chosen, job_id("saved")).text))["checkpoint"] == 0
        )

        until(lambda: batches(tmp_path, "cancelled"), "the batch of what is cancelled")
        said = flink.run("cancel", job_id("cancelled"))
        assert said.code == 0, said.text
        ended = f"/v1/jobs/{job_id('cancelled')}/status"
        until(lambda: asked(address, ended) == {"status": "CANCELED"}, "the end of the last")
        everything = flink.run("list", "-a").text
        ends = {"counted": "FINISHED", "drained": "FINISHED", "saved": "FINISHED", "cancelled": "CANCELED"}
        for name, state in ends.items():
            assert f": {job_id(name)} : {name} ({state})" in everything
        said = flink.run("savepoint", counted)
        assert said.code == 1
        assert "is not running: its last run, 1, is over: stopped" in said.text
    ends_of_runs = {"counted stopped", "drained stopped", "saved stopped", "cancelled cancelled"}
    until(lambda: ends_of_runs <= set(child_driver.said()), "the ends of all jobs")


def test_flinks_client_is_refused_in_words(tmp_path: Path) -> None:
    """A job that does not exist, and a server that wants a token, are told to the user of Flink's client as errors; with the token it works."""
    with serving(tmp_path / "store") as address:
        flink = FlinkClient(address, tmp_path / "flink")
        said = flink.run("list")
        assert said.code == 1
        assert "token" in said.text
        said = flink.run("list", headers=BEARER)
        assert (said.code, "No running jobs" in said.text) == (0, True), said.text
        said = flink.run("cancel", job_id("nobody"), headers=BEARER)
        assert said.code == 1
        assert "there is no job" in said.text
