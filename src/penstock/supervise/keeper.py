"""The supervisor: starts the program, watches it, passes signals on, and starts it again. Driver, in a process of its own.

One loop: it sleeps until a signal comes, a child ends, or the program sends a message. It imports neither Spark nor the user's file, and
reads no storage, so that neither can delay a restart. A separate thread writes its events. The program itself makes sure that nothing is
done twice: by the id of this supervisor it knows which runs were its own (`ownership.runs.earlier_attempts`).
The program stays in the supervisor's process group and session, so that a terminal treats them as one; `family` finds the processes that
the program leaves. When the supervisor is killed, the job continues without it, see `channel`.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock import errors
from penstock.clock import SYSTEM_CLOCK
from penstock.ids import SYSTEM_RANDOMNESS
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
from penstock.supervise.decisions import STOP_SIGNALS, End, Supervision
from penstock.supervise.family import LOOK_S, Remains, adopt_orphans, children, end_orphans, reap
from penstock.supervise.journal import Story
from penstock.wording import counted, duration

_log = logging.getLogger(__name__)

_RECEIVE = 65536
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them, and a child would inherit that."""
_ID_DIGITS = 16


@dataclass
class Program:
    """One attempt: a process, and its reports."""

    pid: int
    """0: it could not be started."""
    connection: socket.socket
    lines: Lines = field(default_factory=Lines)
    job: str = ""
    reported: int = 0
    status: int | None = None

    @property
    def hears(self) -> bool:
        """Whether it takes requests over the socket."""
        return bool(self.job)

    def received(self) -> tuple[list[ProgramReport], bool]:
        """The reports since the last call, and whether more can come."""
        try:
            received = self.connection.recv(_RECEIVE)
        except BlockingIOError:
            return [], True
        except ConnectionResetError:
            return [], False
        return read_reports(self.lines.add(received)), bool(received)


class Keeper:
    """Runs one command, and starts it again when it dies."""

    def __init__(self, command: Sequence[str], supervision: Supervision) -> None:
        self._command = list(command)
        self._supervision = supervision
        self._story = Story()
        self._id = SYSTEM_RANDOMNESS.token(_ID_DIGITS)
        self._attempt = 0
        self._died_at: float | None = None
        self._spared: frozenset[int] = frozenset()
        self._remains = Remains()

    def run(self) -> int:
        """Until it is not to be started again; returns the exit code."""
        self._spared = children()  # of the program that became this process: they are not ours to end
        adopt_orphans()
        try:
            with _signals_as_bytes() as woken:
                return self._kept_alive(woken)
        finally:
            self._story.close()

    def _kept_alive(self, woken: socket.socket) -> int:
        while True:
            program = self._start()
            try:
                self._watch(program, woken)
            finally:
                program.connection.close()
            code = self._after(program, woken)
            if code is not None:
                return code

    # ── one attempt ────────────────────────────────────────────────────────────────────────────

    def _start(self) -> Program:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        self._attempt += 1
        with theirs:
            try:
                pid = self._spawned(theirs)
            except OSError as error:
                if self._attempt == 1:
                    ours.close()
                    raise
                _log.warning("the program cannot be started: %s", error)
                return Program(0, ours, status=errors.EXIT_FAILED)
        self._story.started(pid, self._attempt)
        return Program(pid, ours)

    def _spawned(self, theirs: socket.socket) -> int:
        theirs.set_inheritable(True)
        environment = {
            **os.environ,
            ENVIRONMENT: socket_name(theirs.fileno()),
            ID_ENVIRONMENT: self._id,
        }
        return os.posix_spawnp(self._command[0], self._command, environment, setsigdef=_RESET)

    def _watch(self, program: Program, woken: socket.socket) -> None:
        """Handle messages and signals until the program has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(program.connection, selectors.EVENT_READ)
            while program.status is None:
                ready = {key.fileobj for key, _ in selector.select(self._until_next_look(program))}
                if woken in ready:
                    self._take_signals(woken, program)
                if program.connection in ready and not self._listen(program):
                    selector.unregister(program.connection)
                program.status = reap().get(program.pid)
        while self._listen(program):  # its last words
            pass

    def _until_next_look(self, program: Program) -> float | None:
        """Kill what had time enough; in how many seconds to look again, None: when something happens."""
        now, killed_at = SYSTEM_CLOCK.monotonic(), self._supervision.killed_at
        again_s = self._remains.tend(now)
        if killed_at is None:
            return again_s
        if now >= killed_at:
            _log.warning("the program (pid %d) is deaf to signals: it is killed", program.pid)
            with suppress(ProcessLookupError):
                os.kill(program.pid, signal.SIGKILL)
            killed_at = now + LOOK_S
        return min(killed_at - now, LOOK_S if again_s is None else again_s)

    def _listen(self, program: Program) -> bool:
        """Take what it says; whether it can say more."""
        said, is_open = program.received()
        for one in said:
            self._heard(one, program)
        return is_open and (bool(said) or program.status is None)

    def _heard(self, said: ProgramReport, program: Program) -> None:
        if said.signal:
            self._requested(said.signal, program)
        if said.exit_code:
            program.reported = said.exit_code
        if said.job:
            # another job of the program may have failed before, and it went on
            program.job, program.reported = said.job, 0
            # the signal came when it took its own no more, and heard nothing yet
            if self._supervision.asked is not None:
                self._pass_on(self._supervision.asked, program)
        if said.storage:
            self._story.lies_in(said.storage)
        if said.going and self._died_at is not None:
            after = duration(SYSTEM_CLOCK.monotonic() - self._died_at)
            _log.info("job %s is processing again, %s after its process ended", program.job, after)
            self._died_at = None

    # ── signals ────────────────────────────────────────────────────────────────────────────────

    def _take_signals(self, woken: socket.socket, program: Program | None) -> None:
        with suppress(BlockingIOError):
            for number in woken.recv(_RECEIVE):
                if number in STOP_SIGNALS:
                    self._requested(number, program)

    def _requested(self, number: int, program: Program | None) -> None:
        if self._supervision.came(number, SYSTEM_CLOCK.monotonic()) and program is not None:
            self._pass_on(number, program)

    def _pass_on(self, number: int, program: Program) -> None:
        if program.hears:
            with suppress(OSError):  # it is dead, or about to be
                program.connection.sendall(line(SignalRequest(number)))
        elif not _came_from_terminal(number):  # or it has got it too
            with suppress(ProcessLookupError):
                os.kill(program.pid, number)

    # ── after an attempt ───────────────────────────────────────────────────────────────────────

    def _after(self, program: Program, woken: socket.socket) -> int | None:
        """See what the program left behind, decide, and let the pause pass; the exit code where that is the end."""
        now = SYSTEM_CLOCK.monotonic()
        end = End(program.status or 0, program.reported)
        self._died_at = now if self._died_at is None else self._died_at
        beside_the_dead = self._remains.tend(now) is not None
        verdict = self._supervision.ended(end, now, beside_the_dead=beside_the_dead, again=self._attempt > 1)
        self._remains.left_by_the_dead(self._spared, now)
        self._story.died(
            program.pid, end.how, verdict.why, restarts=verdict.restarts, delay_s=verdict.delay_s
        )
        level = logging.WARNING if verdict.restarts or end.exit_code else logging.INFO
        _log.log(level, "the program (pid %d) ended with %s: %s", program.pid, end.how, verdict.why)
        code = self._pause(now + verdict.delay_s, woken) if verdict.restarts else end.exit_code
        if code is not None:
            in_background = end.status == errors.EXIT_DONE and self._supervision.asked is None
            left = end_orphans(
                self._spared, hurry=lambda: self._asked_again(woken), leaves_sessions=in_background
            )
            if left:
                _log.warning(
                    "the program has put %s into the background (pid %s): it goes on, and nothing keeps it alive; "
                    "a program that is to be kept alive stays in the foreground",
                    *(counted(len(left), "process", "processes"), ", ".join(map(str, sorted(left)))),
                )
        return code

    def _asked_meanwhile(self, woken: socket.socket) -> bool:
        self._take_signals(woken, None)
        return self._supervision.asked is not None

    def _asked_again(self, woken: socket.socket) -> bool:
        """Whether a second stop request has come during the wait."""
        before = self._supervision.stop_requests
        self._take_signals(woken, None)
        return self._supervision.stop_requests > max(before, 1)

    def _pause(self, until: float, woken: socket.socket) -> int | None:
        """Let time pass; a signal ends it, and the supervisor with it."""
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            while (left := until - SYSTEM_CLOCK.monotonic()) > 0 and not self._asked_meanwhile(woken):
                again_s = self._remains.tend(SYSTEM_CLOCK.monotonic())
                selector.select(left if again_s is None else min(left, again_s))
                reap()
        asked = self._supervision.asked
        return None if asked is None else errors.EXIT_BY_SIGNAL + asked


def _came_from_terminal(number: int) -> bool:
    """Whether a signal is one that the terminal sends to the whole group in its foreground."""
    if number != signal.SIGINT:
        return False
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _signals_as_bytes() -> Iterator[socket.socket]:
    """Where the number of every signal arrives as a byte. One to which this process was made deaf, as by `nohup`, does not."""
    woken, wakes = socket.socketpair()
    before = {}
    with woken, wakes:
        woken.settimeout(0)
        wakes.settimeout(0)
        earlier = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            for number in (*STOP_SIGNALS, signal.SIGCHLD):
                if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                    before[number] = signal.signal(number, lambda *_: None)
            yield woken
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(earlier)
