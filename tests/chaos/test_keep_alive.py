"""`penstock run --keep-alive` and `penstock keep-alive`, on real processes: what dies comes back, what is over stays so, nothing is left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import kept_job
import psutil
import pytest
from known_truth import JOB, Site, Traffic, assert_exact, assert_nothing_left_after_recovery
from processes import GONE, MARK, _mark_of, until

import penstock
from penstock.dashboard.ui_options import Ui, UiOptions
from penstock.dashboard.web_server import start_server_process
from penstock.ids import RunId
from penstock.ownership.claim import newest_run, read_descents, read_run
from penstock.recovery.history import read_history
from penstock.status.events import ProcessDied, ProcessStarted
from penstock.status.journal import read_segment, segments
from services import keep_alive
from services.chromium import NoChromiumError, launched
from services.patience import PATIENCE_S
from services.watched_page import Watched, watched

pytestmark = [pytest.mark.chaos]

PENSTOCK = [sys.executable, keep_alive.__file__]
COUNTING = "import os, sys; open('starts', 'a').write('.')\n"
HEARING = """
import sys, time
from penstock.spark.foreground import _signals
from penstock.supervise.channel import supervisor
from penstock.supervise.channel import ProgramReport

with _signals(supervisor()) as signals:
    signals.raise_from_now_on()
    supervisor().say(ProgramReport(job="heard", storage=sys.argv[1]))
    open("ready", "w").close()
    while not signals.noted:
        time.sleep(0.01)
    time.sleep(0.5)  # a second one that is passed on would come now
    print("stopping", flush=True)
    while len(sys.argv) > 2:
        time.sleep(0.01)
"""
"""A program that takes signals as a job in the foreground does; with a second argument it stops only at the second one."""


class Kept:
    """A supervisor with all that hangs on it, found by a mark in the environment."""

    def __init__(self, folder: Path, *arguments: object, before: Sequence[str] = (), **options: Any) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        path = [str(Path(penstock.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, MARK: self._mark, kept_job.ROOT: str(folder)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        with (folder / "log.txt").open("ab") as log:
            usual: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            usual |= {"cwd": folder, "env": environment, "start_new_session": True}
            command = [*before, *PENSTOCK, *map(str, arguments)]
            self.process: subprocess.Popen[bytes] = subprocess.Popen(command, **{**usual, **options})

    def family(self) -> list[psutil.Process]:
        return [one for one in psutil.process_iter() if _mark_of(one) == self._mark]

    @property
    def program(self) -> psutil.Process:
        """The present one; it is a child of the supervisor, and was started last."""
        children = psutil.Process(self.process.pid).children()
        return max(children, key=lambda one: one.create_time())

    def wait_for(self, what: str, condition) -> None:
        assert until(condition), f"waited in vain for {what}:\n{self.said()}"

    def ends(self) -> int:
        self.wait_for("the end", lambda: self.process.poll() is not None)
        return self.process.returncode

    def said(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")[-6000:]

    def starts(self) -> int:
        return len((self.folder / "starts").read_text())

    def close(self) -> None:
        for one in self.family():
            with suppress(*GONE):
                one.kill()
        self.process.wait()


@pytest.fixture
def keep(tmp_path) -> Iterator:
    kept: list[Kept] = []

    def start(*arguments: object, **options: Any) -> Kept:
        kept.append(Kept(tmp_path, *arguments, **options))
        return kept[-1]

    yield start
    for one in kept:
        one.close()


def script(folder: Path, text: str, name: str = "program.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


def newest_checkpoint(site: Site) -> int:
    kept = read_history(site.storage, read_descents(site.storage)).whole
    return kept[-1].checkpoint if kept else -1


def has_all(site: Site) -> bool:
    kept = read_history(site.storage, read_descents(site.storage)).whole
    ends = {str(partition): end for partition, end in site.log.end_offsets().items()}
    return bool(kept) and kept[-1].barrier.positions["clicks"] == ends


def story(site: Site) -> list[Any]:
    found = [event for name in segments(site.storage) for event in read_segment(site.storage, name).events]
    return [event for event in found if isinstance(event, ProcessStarted | ProcessDied)]


class Page:
    """The page of the job, open all the time in a real browser; without one it shows whatever is asked for."""

    def __init__(self, seen: Watched | None) -> None:
        self._seen = seen

    def shows(self, text: str) -> None:
        if self._seen is not None:
            self._seen.until(f"document.body.innerText.includes({text!r})")


@contextmanager
def looked_at(site: Site) -> Iterator[Page]:
    with ExitStack() as stack:
        server = start_server_process(site.storage, JOB, UiOptions.of(Ui("127.0.0.1:0")))
        stack.callback(server.close)
        try:
            browser = stack.enter_context(launched())
        except NoChromiumError as missing:
            print(f"no page is looked at: {missing}")
            yield Page(None)
            return
        seen = stack.enter_context(watched(browser, server.address))
        seen.goto(server.opening_address.removeprefix(server.address))
        seen.goto(f"/jobs/{JOB}")
        yield Page(seen)


# ── the real thing ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.spark
def test_what_dies_comes_back_and_the_truth_is_kept(site, seed, keep) -> None:
    """After kill -9 of driver, JVM and supervisor the job is exact; alone it goes on, a second start is refused, a signal stops it.

    A page that is open all the time shows the death, and that the job came back.
    """
    traffic = Traffic(site, seed)
    kept = keep("run", "--keep-alive", kept_job.__file__)
    with traffic:
        kept.wait_for("the first checkpoint", lambda: newest_checkpoint(site) >= 0)
        first = kept.program.pid
        with looked_at(site) as page:
            os.kill(first, signal.SIGKILL)
            page.shows("Its supervisor starts it again")
            kept.wait_for(
                "the second program", lambda: newest_run(site.storage) >= 2 and kept.program.pid != first
            )
            reached = newest_checkpoint(site)
            kept.wait_for("a checkpoint of the second", lambda: newest_checkpoint(site) > reached)
            page.shows("recovered by itself")
        second = kept.program
        java = next(one for one in second.children() if one.name() == "java")
        java.kill()
        kept.wait_for(
            "the third program", lambda: read_run(site.storage, newest_run(site.storage)).pid != second.pid
        )
        third = kept.program.pid
        reached = newest_checkpoint(site)
        kept.wait_for("a checkpoint of the third", lambda: newest_checkpoint(site) > reached)
        told = story(site)
        (_,) = {
            read_run(site.storage, RunId(run)).supervisor for run in range(1, newest_run(site.storage) + 1)
        } - {""}
        kept.process.kill()
        kept.process.wait()
        reached = newest_checkpoint(site)
        kept.wait_for("the job to go on alone", lambda: newest_checkpoint(site) > reached)
        assert "nothing starts it again" in kept.said()
        stated = f"import penstock as ps\njob = ps.Job({JOB!r}, storage={str(site.root / 'store')!r})\n"
        again = keep("run", "--keep-alive", script(site.root, stated))
        assert again.ends() == 2
        assert "is running already" in again.said()
    kept.wait_for("all rows", lambda: has_all(site))
    os.killpg(kept.process.pid, signal.SIGTERM)
    kept.wait_for("the end of all", lambda: not kept.family())
    assert [type(event).__name__ for event in told] == [
        *("ProcessStarted", "ProcessDied") * 2,
        "ProcessStarted",
    ]
    assert [event.how for event in told[1::2]] == ["signal SIGKILL", "exit code 1"]
    assert [event.pid for event in told[::2]] == [first, second.pid, third]
    assert_exact(traffic)
    assert_nothing_left_after_recovery(traffic)


# ── what is over stays so ──────────────────────────────────────────────────────────────────────


def test_a_config_error_is_not_repeated(tmp_path, keep) -> None:
    """A file that cannot be a job ends the supervisor with 2, after one start."""
    kept = keep("run", "--keep-alive", script(tmp_path, COUNTING + "job = 7\n"))
    assert (kept.ends(), kept.starts()) == (2, 1)
    assert "program.py has no Job" in kept.said()


@pytest.mark.parametrize(("ends", "code", "starts"), [("3", 3, 1), ("0", 0, 1), ("1", 1, 3), ("'no'", 1, 3)])
def test_the_exit_code_decides(tmp_path, keep, ends: str, code: int, starts: int) -> None:
    """What is over ends the supervisor with its code at once; what may be cured is tried as often as the strategy says."""
    program = script(tmp_path, f"{COUNTING}sys.exit({ends})\n")
    strategy = "fixed-delay:attempts=2,delay=10ms"
    kept = keep("keep-alive", "--restart", strategy, "--", sys.executable, program)
    assert (kept.ends(), kept.starts()) == (code, starts)


def _name_of(process: psutil.Process) -> str:
    """'' for one that has ended meanwhile."""
    with suppress(*GONE):
        return process.name()
    return ""


def test_nothing_is_left_behind(tmp_path, keep) -> None:
    """What a killed program had started is ended, in whichever session, before its successor is old and when the supervisor ends."""
    program = script(
        tmp_path,
        f"{COUNTING}import subprocess, time\n"
        "subprocess.Popen(['sh', '-c', 'sleep 1000 & sleep 1000'], start_new_session=True)\n"
        "time.sleep(1000)\n",
    )
    kept = keep("keep-alive", "--", sys.executable, program)

    def sleeping() -> set[int]:
        return {one.pid for one in kept.family() if _name_of(one) == "sleep"}

    kept.wait_for("its children", lambda: len(sleeping()) == 2)
    first = sleeping()
    kept.program.kill()
    kept.wait_for("those of the next", lambda: len(sleeping() - first) == 2)
    kept.wait_for("the end of what was left", lambda: not sleeping() & first)
    kept.process.send_signal(signal.SIGTERM)
    assert kept.ends() == 143
    assert kept.family() == []


IN_A_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
ORPHANING = """
import os, subprocess, sys, time
from pathlib import Path

def zombies():
    states = [path.read_text().rsplit(")", 1)[1].split()[0] for path in Path("/proc").glob("[0-9]*/stat")]
    return states.count("Z")

assert os.getppid() == 1, os.getppid()
subprocess.run(["sh", "-c", "sleep 0.1 & sleep 0.2 & exit 0"])
ended = time.monotonic() + 60
time.sleep(0.4)
while zombies() and time.monotonic() < ended:
    time.sleep(0.05)
sys.exit(0 if not zombies() else 3)
"""


def test_as_process_1_of_a_container_it_reaps(tmp_path, keep) -> None:
    """Orphans of the program end as processes that somebody has asked for, and stay no zombies."""
    if subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process here may have a space of process ids of its own")
    program = script(tmp_path, ORPHANING)
    kept = keep("keep-alive", "--", sys.executable, program, before=IN_A_CONTAINER)
    assert kept.ends() == 0, kept.said()


# ── signals ────────────────────────────────────────────────────────────────────────────────────


def hearing(keep, folder: Path, *more: str, **options: Any) -> Kept:
    program = script(folder, HEARING)
    kept = keep("keep-alive", "--", sys.executable, program, folder / "store", *more, **options)
    kept.wait_for("the program", (folder / "ready").exists)
    return kept


def test_a_signal_to_all_processes_counts_once(tmp_path, keep) -> None:
    """As systemd and a terminal send it: to supervisor and program. The job is stopped once, and the code is its own."""
    kept = hearing(keep, tmp_path)
    os.killpg(kept.process.pid, signal.SIGTERM)
    assert kept.ends() == 0
    assert kept.said().count("stopping") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_signal_means_now(tmp_path, keep, number: signal.Signals) -> None:
    """The first is passed on as a stop, a later one ends the program now, and the supervisor ends with its code."""
    kept = hearing(keep, tmp_path, "stay")
    kept.process.send_signal(number)
    kept.wait_for("the stop", lambda: "stopping" in kept.said())
    deadline = time.monotonic() + PATIENCE_S
    while kept.process.poll() is None and time.monotonic() < deadline:
        kept.process.send_signal(number)
        time.sleep(0.1)
    assert kept.process.returncode in (128 + number, -number)
    assert kept.family() == []


def test_a_signal_while_the_program_comes_up_is_not_lost(tmp_path, keep) -> None:
    """One that comes when the program takes its own signals no more, and hears no wishes yet, stops the job when it hears them."""
    deaf = HEARING.replace(
        "    supervisor().say", '    open("deaf", "w").close()\n    time.sleep(2)\n    supervisor().say'
    )
    kept = keep("keep-alive", "--", sys.executable, script(tmp_path, deaf), tmp_path / "store")
    kept.wait_for("the program", (tmp_path / "deaf").exists)
    kept.process.send_signal(signal.SIGTERM)
    assert kept.ends() == 0
    assert kept.said().count("stopping") == 1


def test_a_signal_to_the_program_stops_the_job_for_good(tmp_path, keep) -> None:
    """Who signals the program itself is heard, and it is not started again."""
    kept = hearing(keep, tmp_path)
    kept.program.send_signal(signal.SIGTERM)
    assert kept.ends() == 0
    assert "asked to stop, with SIGTERM" in kept.said()


def test_with_nohup_a_hangup_changes_nothing(tmp_path, keep) -> None:
    """Supervisor and program that were made deaf to SIGHUP go on."""
    kept = hearing(keep, tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    os.killpg(kept.process.pid, signal.SIGHUP)
    kept.process.send_signal(signal.SIGTERM)
    assert kept.ends() == 0
    assert "with SIGTERM" in kept.said()


def test_ctrl_c_in_a_terminal(tmp_path, keep) -> None:
    """The terminal sends it to the whole group; it counts once."""
    ours, theirs = os.openpty()
    kept = hearing(
        keep,
        tmp_path,
        stdin=theirs,
        start_new_session=False,
        preexec_fn=lambda: _take_terminal(theirs),
        pass_fds=[theirs],
    )
    os.write(ours, b"\x03")
    assert kept.ends() == 0
    assert kept.said().count("stopping") == 1
    os.close(ours)
    os.close(theirs)


def _take_terminal(terminal: int) -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_signal_in_the_pause_ends_the_supervisor(tmp_path, keep) -> None:
    """While nothing runs there is nothing to stop: the supervisor ends, with the code of the signal."""
    program = script(tmp_path, f"{COUNTING}sys.exit(1)\n")
    kept = keep("keep-alive", "--restart", "fixed-delay:delay=1h", "--", sys.executable, program)
    kept.wait_for("the pause", lambda: "started again in 1 h" in kept.said())
    kept.process.send_signal(signal.SIGTERM)
    assert kept.ends() == 143
