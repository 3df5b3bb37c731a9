"""The server beside a driver: it ends with it, and its own death is nobody else's."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from builders.dashboard_site import TOKEN, StoredJob, get, port_of, served
from penstock import child_process
from penstock.dashboard import web_server
from penstock.dashboard.ui_options import Ui, UiOptions
from penstock.dashboard.web_server import bind, start_server_process
from penstock.errors import ConfigError
from services.patience import tries

DRIVER = """
import os, sys, time, urllib.request
from penstock.dashboard.web_server import start_server_process
from penstock.dashboard.ui_options import Ui, UiOptions
from penstock.storage import LocalStorage
beside = start_server_process(LocalStorage(sys.argv[1]), "views", UiOptions.of(Ui("127.0.0.1:0")))
urllib.request.urlopen(beside.address + "/healthz", timeout=900).close()
fork = 0
if sys.argv[2] == "fork":
    fork = os.fork()
    if not fork:
        time.sleep(900)
print(beside.pid, fork, flush=True)
time.sleep(900)
"""


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path)


def wait_until_gone(pid: int) -> None:
    for _ in tries(0.05):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
    pytest.fail(f"process {pid} is still there")


@contextmanager
def driver(job: StoredJob, how: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A process with a server beside it, and perhaps a fork that has all its pipes."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(job.place / job.name), how], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child, fork = map(int, process.stdout.readline().split())
        try:
            yield process, child, fork
        finally:
            process.kill()
            if fork:
                os.kill(fork, signal.SIGKILL)


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_it_dies_with_its_parent(job: StoredJob, how: str) -> None:
    """Also when that is killed with SIGKILL, and when a fork of it still has the pipe."""
    with driver(job, how) as (process, child, _):
        assert psutil.pid_exists(child)
        process.kill()
        process.wait()
        wait_until_gone(child)


def test_it_ends_when_it_is_closed(job: StoredJob) -> None:
    """Then nobody listens at its address any more, and the port is free."""
    with served(job) as server:
        pid, port = server.pid, port_of(server)
        assert get(server, "/healthz")[0] == 200
    wait_until_gone(pid)
    bind(UiOptions.of(Ui(f"127.0.0.1:{port}"))).close()


def test_it_is_modest_and_apart(job: StoredJob) -> None:
    """Low priority; a session of its own, so that Ctrl-C does not reach it; of the driver's files only its socket."""
    with (job.place / "of the driver").open("wb") as file, socket.socket() as other:
        for one in (file, other):
            os.set_inheritable(one.fileno(), True)
        with served(job) as server:
            assert os.getpriority(os.PRIO_PROCESS, server.pid) >= 15
            group = Path(f"/proc/{server.pid}/autogroup")
            if group.exists():  # Linux shares processors out among sessions first
                assert group.read_text().split()[-1] == "10"
            assert os.getsid(server.pid) != os.getsid(0)
            process = psutil.Process(server.pid)
            assert [one.path for one in process.open_files() if "of the driver" in one.path] == []
            inode = Path(f"/proc/self/fd/{other.fileno()}").readlink()
            assert inode not in [one.readlink() for one in Path(f"/proc/{server.pid}/fd").iterdir()]


def test_it_imports_nothing_from_where_the_driver_was_started(
    job: StoredJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may be able to write there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "uvicorn.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(elsewhere)
    beside = start_server_process(job.storage, job.name, UiOptions.of(Ui("127.0.0.1:0")))
    try:
        assert get(beside, "/healthz")[0] == 200
    finally:
        beside.close()


def test_its_death_is_logged_and_it_comes_back_at_the_same_address(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job goes on; after the pause it is started again."""
    monkeypatch.setattr(web_server, "PAUSE_S", 0.0)
    with served(job, token=TOKEN) as server, caplog.at_level(logging.WARNING):
        first = server.pid
        os.kill(first, signal.SIGKILL)
        for _ in tries(0.05):
            if server.pid != first:
                break
        status, said = get(server, "/healthz")
        assert (status, said["pid"]) == (200, server.pid)
    assert "ended with -9; the job goes on without it" in caplog.text
    assert TOKEN not in caplog.text


def test_it_is_not_started_again_before_the_pause_is_over(
    job: StoredJob, caplog: pytest.LogCaptureFixture
) -> None:
    """And that keeps nobody from closing it."""
    with served(job) as server, caplog.at_level(logging.WARNING):
        first = server.pid
        os.kill(first, signal.SIGKILL)
        for _ in tries(0.05):
            if "the driver restarts it in" in caplog.text:
                break
        assert server.pid == first
    assert caplog.text.count("ended with") == 1


def test_a_port_that_is_taken_is_refused_at_once(job: StoredJob) -> None:
    """Before any process is started, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"127\.0\.0\.1:{port}: another program uses the port.*Choose another port"
        ):
            start_server_process(job.storage, job.name, UiOptions.of(Ui(port)))


def test_another_dashboard_on_the_port_is_told(job: StoredJob) -> None:
    """With its process, so that one can look at it."""
    told = "a dashboard of Penstock .* is already running there, process"
    with served(job, token=TOKEN) as server, pytest.raises(ConfigError, match=f"{told} {server.pid}"):
        start_server_process(job.storage, job.name, UiOptions.of(Ui(port_of(server))))


def test_the_next_free_port_is_taken_where_several_are_allowed(job: StoredJob) -> None:
    """As with `ui=True`."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with bind(UiOptions(ports=(taken, 0))) as listening:
            assert listening.getsockname()[1] != taken


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    """With what always works."""
    with pytest.raises(ConfigError, match=r"this machine has no such address; use 127\.0\.0\.1"):
        bind(UiOptions.of(Ui(f"{host}:0", token=TOKEN)))


def test_missing_packages_are_refused(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"the dashboard needs the package uvicorn.*\[ui\]"):
        start_server_process(job.storage, job.name, UiOptions.of(Ui("127.0.0.1:0")))


def test_one_that_cannot_start_says_why(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver logs the last words of the process, and goes on."""
    monkeypatch.setattr(child_process, "PROGRAM", "import sys; sys.exit('no memory left')")
    server = start_server_process(job.storage, job.name, UiOptions.of(Ui("127.0.0.1:0")))
    try:
        for _ in tries(0.05):
            if "the driver restarts it in" in caplog.text:
                break
        assert "ended with 1; the job goes on without it: no memory left" in caplog.text
    finally:
        server.close()
