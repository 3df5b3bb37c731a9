"""A supervisor and the program that it keeps alive, without a job: what is left behind, what cannot be started, and who hears what."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from penstock.clock import SYSTEM_CLOCK
from penstock.ownership.claim import process_start
from penstock.recovery.restart import fixed_delay
from penstock.spark.foreground import _SupervisorReports
from penstock.status.live import Progress
from penstock.supervise import channel, family
from penstock.supervise.channel import (
    ENVIRONMENT,
    ID_ENVIRONMENT,
    Lines,
    ProgramReport,
    SignalRequest,
    line,
    read_reports,
    socket_name,
)
from penstock.supervise.decisions import SAME_REQUEST_S, Supervision
from penstock.supervise.family import GRACE_S, Remains
from penstock.supervise.keeper import Keeper, Program
from services.patience import PATIENCE_S, tries

TESTS = Path(__file__).parents[1]


@pytest.fixture
def orphan() -> Iterator[int]:
    process = subprocess.Popen(["/bin/sleep", "100"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def connection(monkeypatch) -> Iterator[socket.socket]:
    """The supervisor's end of a socket whose other end this process is told of."""
    ours, theirs = socket.socketpair()
    nobody = {"pid": 0, "connection": None, "supervisor": None, "supervisor_id": ""}
    for name, nothing in nobody.items():
        monkeypatch.setattr(channel._ThisProcess, name, nothing)
    monkeypatch.setenv(ENVIRONMENT, socket_name(theirs.fileno()))
    number = theirs.detach()
    with ours:
        ours.settimeout(PATIENCE_S)
        yield ours
    with suppress(OSError):
        if channel._ThisProcess.connection is None:
            os.close(number)


def kept_alive(command: list[str]) -> Keeper:
    return Keeper(command, Supervision(fixed_delay(attempts=2, delay="10ms")))


# ── what is left behind ────────────────────────────────────────────────────────────────────────


def test_programs_that_die_again_and_again_give_no_more_time_to_what_they_left(orphan, monkeypatch) -> None:
    """A crash loop would collect Javas otherwise."""
    killed = list[int]()
    monkeypatch.setattr(family, "descendants", lambda _: frozenset({orphan}))
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    remains = Remains()
    for now in (0.0, GRACE_S / 2, GRACE_S - 1):
        remains.left_by_the_dead(frozenset(), now)
        assert remains.tend(now) is not None
    assert killed == []
    remains.tend(GRACE_S)
    assert killed == [orphan]


def test_what_cannot_be_killed_keeps_nobody(orphan, monkeypatch) -> None:
    """A program may have started one that has become another user's."""

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "kill", refuse)
    remains = Remains({(orphan, process_start(orphan)): 0.0})
    assert remains.tend(1.0) is not None
    monkeypatch.setattr(family, "reap", dict)
    monkeypatch.setattr(family, "children", lambda: frozenset({orphan}))
    assert family.end_orphans(frozenset(), grace_s=0.0) == frozenset()


# ── starting it ────────────────────────────────────────────────────────────────────────────────


FAILING_ONCE = """
import errno, os, sys
from penstock.recovery.restart import fixed_delay
from penstock.supervise.decisions import Supervision
from penstock.supervise.keeper import Keeper

real, asked = os.posix_spawnp, []

def spawn(*arguments, **options):
    asked.append(1)
    if len(asked) == 2:
        raise BlockingIOError(errno.EAGAIN, "no process to give")
    return real(*arguments, **options)

os.posix_spawnp = spawn
code = Keeper(["/bin/sh", "-c", "exit 7"], Supervision(fixed_delay(attempts=2, delay="10ms"))).run()
print(code, len(asked))
"""


def test_a_start_that_fails_later_is_a_failure_as_any_other() -> None:
    """The machine may have no process to give for a moment: the restart strategy decides."""
    done = subprocess.run([sys.executable, "-c", FAILING_ONCE], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["7", "3"]


def test_a_job_that_outlives_its_script_does_not_end_the_supervision(tmp_path) -> None:
    """The script is killed, and what it had started runs on for a moment: the start that is refused for that is no last one."""
    script = tmp_path / "script.sh"
    script.write_text(
        f"cd {tmp_path}\necho >> starts\n"
        "case $(wc -l < starts) in 1) sleep 60 & kill -KILL $$ ;; 2) exit 2 ;; *) exit 0 ;; esac\n"
    )
    command = [sys.executable, "-m", "penstock", "keep-alive", "--", "/bin/sh", str(script)]
    assert subprocess.run(command, check=False).returncode == 0
    assert len((tmp_path / "starts").read_text()) == 3


def test_a_program_whose_file_is_away_at_a_restart_is_tried_again(tmp_path) -> None:
    """It ran once, so that the command is right: a file that is replaced, or lies on a mount, comes back."""
    script, starts = tmp_path / "script.py", tmp_path / "starts"
    script.write_text(
        "import os, pathlib, sys\n"
        f"starts = pathlib.Path({str(starts)!r})\n"
        "again = starts.exists()\n"
        "starts.touch()\n"
        "if again: sys.exit(0)\n"
        "os.rename(__file__, __file__ + '.away')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    kept = [
        sys.executable,
        "-m",
        "penstock",
        "keep-alive",
        "--restart",
        "fixed-delay:attempts=1000,delay=10ms",
    ]
    with subprocess.Popen(
        [*kept, "--", sys.executable, str(script)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for said in process.stderr:
            if "exit code 2" in said:
                break
        (tmp_path / "script.py.away").rename(script)
        process.stderr.read()
    assert process.returncode == 0


def test_a_program_whose_file_was_never_there_is_not(tmp_path) -> None:
    """The command is wrong."""
    kept = [
        sys.executable,
        "-m",
        "penstock",
        "keep-alive",
        "--",
        sys.executable,
        str(tmp_path / "none.py"),
    ]
    assert subprocess.run(kept, check=False, capture_output=True).returncode == 2


def test_a_program_that_puts_itself_into_the_background_is_not_killed(tmp_path) -> None:
    """It has ended with 0 and left a process in a session of its own, which goes on; what stays in the session is ended."""
    pids = tmp_path / "pids"
    script = f"exec > {pids} 2> /dev/null; sleep 300 & echo $!; setsid sleep 300 & echo $!"
    kept = [sys.executable, "-m", "services.keep_alive", "keep-alive", "--", "/bin/sh", "-c", script]
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        kept, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    stayed, left = (int(pid) for pid in pids.read_text().split())
    try:
        assert done.returncode == 0
        assert process_start(stayed) == ""
        assert process_start(left) != ""
        assert f"has put 1 process into the background (pid {left})" in done.stderr
    finally:
        os.kill(left, signal.SIGKILL)


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
print("up", flush=True)
time.sleep(600)
"""
DEAF_FOR_A_MOMENT = """
import sys
from penstock.supervise import decisions
decisions.DEAF_S = 0.1
from penstock.cli import main
main()
"""


def test_a_program_that_is_deaf_to_signals_is_killed_after_the_second(tmp_path) -> None:
    """The first signal asks it to stop and the second means now; a program that goes on after both is killed."""
    kept = [sys.executable, "-c", DEAF_FOR_A_MOMENT, "keep-alive", "--", sys.executable, "-c", DEAF]
    with subprocess.Popen(kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "heard\n"
        time.sleep(SAME_REQUEST_S)  # an earlier signal would be part of the first request
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    assert "is deaf to signals: it is killed" in said


SAYING = """
import os, sys
from pathlib import Path
folder = Path(sys.argv[1])
with (folder / "starts").open("a") as starts:
    print(sys.argv[2:], os.environ["PENSTOCK_SUPERVISOR_ID"], file=starts)
sys.exit(0 if len((folder / "starts").read_text().splitlines()) == 2 else 1)
"""


def test_the_arguments_of_a_program_are_its_own(tmp_path) -> None:
    """They are repeated as they are, whatever they are called; by the id of the supervisor the attempts know each other."""
    arguments = ["--restore", "backup.sql", "--takeover"]
    started = [sys.executable, "-S", "-c", SAYING, str(tmp_path), *arguments]
    kept = [sys.executable, "-m", "penstock", "keep-alive", "--restart", "fixed-delay:delay=10ms", "--"]
    assert subprocess.run([*kept, *started], check=False).returncode == 0
    first, second = (tmp_path / "starts").read_text().splitlines()
    assert first == second
    assert re.fullmatch(rf"{re.escape(str(arguments))} [0-9a-f]{{16}}", first)


def test_a_failure_is_that_of_the_last_job(tmp_path) -> None:
    """A program whose first job failed for good, and which goes on with another, is judged by that."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        heard, kept = Program(1, ours), kept_alive(["true"])
        kept._heard(ProgramReport(job="a", storage=str(tmp_path)), heard)
        kept._heard(ProgramReport(failed="CorruptStateError", exit_code=3), heard)
        assert heard.reported == 3
        kept._heard(ProgramReport(job="b", storage=str(tmp_path)), heard)
        assert heard.reported == 0


# ── the program's end ──────────────────────────────────────────────────────────────────────────


def test_only_who_has_its_socket_is_of_a_supervisor(connection, monkeypatch) -> None:
    """The id is believed with the socket, and is kept from what this program starts."""
    monkeypatch.setenv(ID_ENVIRONMENT, "abc")
    assert channel.supervised_by() == "abc"
    assert ID_ENVIRONMENT not in os.environ
    monkeypatch.setattr(channel._ThisProcess, "supervisor_id", "")
    monkeypatch.setenv(ID_ENVIRONMENT, "another")
    assert channel.supervised_by() == ""


def test_a_signal_in_the_midst_of_a_word(connection, monkeypatch) -> None:
    """It is told as well, and nobody waits for himself."""
    ours = channel.supervisor()
    assert ours is not None
    monkeypatch.setattr(channel, "ANSWER_S", PATIENCE_S)
    real = ours._connection
    signal.signal(signal.SIGUSR1, lambda number, _: ours.counts(number))

    class Interrupted:
        def sendall(self, data: bytes) -> None:
            if b"job" in data:
                signal.raise_signal(signal.SIGUSR1)
            real.sendall(data)

    monkeypatch.setattr(ours, "_connection", Interrupted())
    try:
        assert ours._lock.acquire(timeout=1)  # the lock of `say`, as a signal meets it
        assert ours._lock.acquire(timeout=1)
        ours._lock.release()
        ours._lock.release()
        ours.say(ProgramReport(job="j"))
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    lines, heard = Lines(), list[ProgramReport]()
    while len(heard) < 2:
        heard += read_reports(lines.add(connection.recv(1000)))
    assert heard == [ProgramReport(signal=signal.SIGUSR1), ProgramReport(job="j")]


@pytest.fixture
def counted(connection, monkeypatch) -> Iterator[list[int]]:
    """How often each signal that comes to this process counts."""
    found = list[int]()
    monkeypatch.setattr(channel, "ANSWER_S", 0.2)
    ours = channel.supervisor()
    assert ours is not None
    signal.signal(signal.SIGUSR1, lambda number, _: found.append(ours.counts(number)))
    yield found
    signal.signal(
        signal.SIGUSR1, signal.SIG_IGN
    )  # what nobody answers comes again later, and would end this process


def test_a_supervisor_that_stands_still_keeps_nobody_from_stopping_the_job(connection, counted) -> None:
    """A signal counts by itself then, and not once more when the supervisor goes on."""
    signal.raise_signal(signal.SIGUSR1)
    assert counted == [0]
    for _ in tries(0.01):
        if counted == [0, 1]:
            break
    connection.sendall(line(SignalRequest(signal.SIGUSR1)))
    connection.sendall(line(SignalRequest(signal.SIGUSR1)))  # this one is another
    for _ in tries(0.01):
        if len(counted) > 2:
            break
    assert counted == [0, 1, 1]


def test_a_signal_that_came_to_all_counts_once(connection, counted, monkeypatch) -> None:
    """The supervisor has passed it on already, and says nothing more."""
    connection.sendall(line(SignalRequest(signal.SIGUSR1)))
    for _ in tries(0.01):
        if counted == [1]:
            break
    ours = channel.supervisor()
    assert ours is not None
    signal.raise_signal(signal.SIGUSR1)
    ours._no_answer(signal.SIGUSR1, SYSTEM_CLOCK.monotonic())
    assert counted == [1, 0]


def test_a_signal_that_nobody_can_be_told_counts(connection, counted) -> None:
    """The supervisor is gone, and this is how it is noticed."""
    ours = channel.supervisor()
    assert ours is not None
    connection.close()
    for _ in tries(0.01):
        if ours.is_gone:
            break
    signal.raise_signal(signal.SIGUSR1)
    assert counted == [1]


def test_another_socket_of_that_number_is_left_alone(connection, monkeypatch) -> None:
    """What a program starts may have its variables and not its files."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        said = os.environ[ENVIRONMENT].partition(":")[2]
        for wrong in (f"{theirs.fileno()}:{said}", str(theirs.fileno()), "999", "x", ""):
            monkeypatch.setenv(ENVIRONMENT, wrong)
            assert channel.supervisor() is None


def test_what_a_program_starts_knows_nothing_of_its_supervisor(connection, monkeypatch) -> None:
    """Neither by its environment, nor by an open file, nor as a fork."""
    name = os.environ[ENVIRONMENT]
    os.set_inheritable(int(name.partition(":")[0]), True)
    channel.take_socket_from_environment()
    assert ENVIRONMENT not in os.environ
    look = (
        "import sys; from penstock.supervise.channel import socket_name; print(socket_name(int(sys.argv[1])))"
    )
    command = [sys.executable, "-c", look, name.partition(":")[0]]
    told = subprocess.run(command, close_fds=False, check=True, capture_output=True, text=True)
    assert told.stdout.strip() != name
    monkeypatch.setattr(channel._ThisProcess, "pid", os.getpid() + 1)  # as a fork sees it
    assert channel.supervisor() is None


def test_that_it_goes_is_told_once() -> None:
    """When the first batch is done: a job that could not come up at once does it later."""
    said = list[ProgramReport]()

    class Watching:
        def say(self, one: ProgramReport) -> None:
            said.append(one)

    telling, progress = _SupervisorReports(Watching()), Progress(run=1, at=0.0, status="running")  # type: ignore[arg-type]
    assert not telling.look(progress)
    progress = msgspec.structs.replace(progress, batches=1)
    assert telling.look(progress)
    assert not telling.look(progress)
    assert said == [ProgramReport(going=True)]
    assert line(ProgramReport(going=True)) == b'{"going":true}\n'


def test_jobs_that_start_in_several_threads_have_one_supervisor(connection, monkeypatch) -> None:
    """Two that listen on one socket would each hear half of the wishes."""
    monkeypatch.setenv(ID_ENVIRONMENT, "abc")
    together, found = threading.Barrier(8), list[object]()

    def start() -> None:
        together.wait()
        found.append((channel.supervisor(), channel.supervised_by()))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert set(found) == {(channel.supervisor(), "abc")}
