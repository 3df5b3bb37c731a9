"""The channel between a supervisor and the program that it started: JSON lines over one socket, on one machine.

The program inherits the socket; its number is in the environment. Neither end needs the other: if the program reports nothing, the
supervisor goes by its exit code, and a program whose supervisor is gone goes on alone.

Signals reach a supervised program twice: systemd, `timeout` and a terminal send them to all processes, and the supervisor passes on its
own. So the program leaves the decision to the supervisor: it reports a signal, and only a request over the socket counts. When the
supervisor is gone, or does not answer, the program handles its signals itself again.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import stat
import threading
from collections import deque

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.decoding import decoded
from penstock.errors import PenstockError, exit_code_of

_log = logging.getLogger(__name__)


ENVIRONMENT = "PENSTOCK_SUPERVISOR_FD"
"""Has the number of the socket, and which one it is: what a program starts may have the variable, and another socket of that number."""


ID_ENVIRONMENT = "PENSTOCK_SUPERVISOR_ID"
"""Has a word that all attempts of one supervisor have in common, see `ownership.runs.earlier_attempts`."""


LONGEST_LINE = 64 * 1024


LONGEST_TEXT = 2000
"""Characters of an error: it may have a user's rows in it."""


ANSWER_S = 3.0
"""How long a supervisor has to answer a reported signal."""


_RECEIVE = 4096


def socket_name(number: int) -> str:
    """What `ENVIRONMENT` says of a socket of this process; '' where there is none of this number."""
    try:
        found = os.fstat(number)
    except OSError:
        return ""
    return f"{number}:{found.st_dev}:{found.st_ino}" if stat.S_ISSOCK(found.st_mode) else ""


class ProgramReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the program says. Every line has some of it."""

    job: str = ""
    """A job is about to start, of this name and in this storage. From now on the program takes requests over the socket."""
    storage: str = ""
    """Alone: where a job lies that the program starts, and whose signals it takes itself."""
    going: bool = False
    """The first batch is done."""
    signal: int = 0
    """This signal came to the program itself: what follows from it is left to the supervisor, which may have got the same one."""
    failed: str = ""
    """The class of the error with which the job failed."""
    why: str = ""
    exit_code: int = 0
    """Which code that failure has, see `errors.exit_code_of`: a program of the user's may end with any."""


class SignalRequest(msgspec.Struct, frozen=True):
    """What the supervisor says: do what you do at this signal."""

    signal: int


REPORTS = msgspec.json.Decoder(ProgramReport)


SIGNAL_REQUESTS = msgspec.json.Decoder(SignalRequest)


def line(words: ProgramReport | SignalRequest) -> bytes:
    """A message as bytes, ending with a newline."""
    return msgspec.json.encode(words) + b"\n"


class Lines:
    """Cuts what comes into lines. One that is too long, or is no line of ours, is passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, more: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *whole, self._rest = (self._rest + more).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        return [one for one in whole if one]


def read_reports(lines: list[bytes]) -> list[ProgramReport]:
    """What can be understood of them."""
    found: list[ProgramReport] = []
    for one in lines:
        try:
            found.append(decoded(REPORTS, one))
        except msgspec.DecodeError:
            continue
    return found


ALONE = (
    "the supervisor of this job is gone (penstock run --keep-alive, pid %d): the job goes on, and nothing starts it again if it dies; "
    "to have it kept alive again, stop it and start it anew"
)


class Supervisor:
    """The supervisor, as the program sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid = os.getppid()
        self._lock = threading.RLock()  # a signal may arrive, and be reported, while a message is sent
        self._pending: deque[int] = deque()
        self._gone = threading.Event()
        self._heard_s = -math.inf
        self._late = 0
        """Requests that are still to come for signals that have counted already."""
        self._leaving = False
        threading.Thread(target=self._listen, name="penstock-supervisor", daemon=True).start()

    @property
    def is_gone(self) -> bool:
        """Whether the other end is closed."""
        return self._gone.is_set()

    def say(self, report: ProgramReport) -> None:
        """Tell it, if it is there."""
        with self._lock:
            try:
                self._connection.sendall(line(report))
            except OSError:
                self._gone.set()

    def failed(self, error: BaseException) -> None:
        """The job has failed, and the program is about to end with that."""
        self._leaving = True
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            why = str(error)[:LONGEST_TEXT] if isinstance(error, PenstockError) else ""
            self.say(ProgramReport(failed=type(error).__name__, why=why, exit_code=exit_code_of(error)))

    def ended(self) -> None:
        """The job has ended in good order: there is no need to tell of a supervisor that goes now."""
        self._leaving = True

    def counts(self, number: int) -> int:
        """How often a signal to this process counts. A signal that the supervisor did not request is reported to it instead."""
        if self.is_gone:
            return 1
        wished = 0
        while self._pending:
            self._pending.popleft()
            wished += 1
        if wished:
            return wished
        self.say(ProgramReport(signal=number))
        if self.is_gone:
            return 1
        waiting = threading.Timer(ANSWER_S, self._no_answer, (number, SYSTEM_CLOCK.monotonic()))
        waiting.daemon = True
        waiting.start()
        return 0

    def _no_answer(self, number: int, told_s: float) -> None:
        """A supervisor that stands still, as one whose storage does not answer, must not keep the job from being stopped."""
        if self._heard_s < told_s - ANSWER_S:  # otherwise its request has come already
            self._late += 1
            self._requested(number)

    def _listen(self) -> None:
        lines = Lines()
        while True:
            try:
                received = self._connection.recv(_RECEIVE)
            except OSError:
                received = b""
            if not received:
                break
            for one in lines.add(received):
                self._heard(one)
        self._gone.set()
        if not self._leaving:
            _log.warning(ALONE, self._pid)

    def _heard(self, words: bytes) -> None:
        try:
            number = decoded(SIGNAL_REQUESTS, words).signal
        except msgspec.DecodeError as error:
            _log.debug("a message of the supervisor cannot be decoded: %s", error)
            return
        self._heard_s = SYSTEM_CLOCK.monotonic()
        if self._late:
            self._late -= 1  # it was done without waiting
        else:
            self._requested(number)

    def _requested(self, number: int) -> None:
        self._pending.append(number)
        os.kill(os.getpid(), number)  # to the main thread, which may be anywhere


class _ThisProcess:
    """One for the process, and none for what is forked off it."""

    making = threading.Lock()
    """A program may start jobs in several threads."""
    pid = 0
    supervisor_id = ""
    connection: socket.socket | None = None
    supervisor: Supervisor | None = None


def take_socket_from_environment() -> None:
    """What this program starts from here on, such as Spark or another job, knows nothing of the supervisor."""
    with _ThisProcess.making:
        said, its_id = os.environ.pop(ENVIRONMENT, ""), os.environ.pop(ID_ENVIRONMENT, "")
        number = said.partition(":")[0]
        if number.isdecimal() and socket_name(int(number)) == said:
            connection = socket.socket(fileno=int(number))
            connection.set_inheritable(False)
            _ThisProcess.pid, _ThisProcess.connection = os.getpid(), connection
            _ThisProcess.supervisor_id = its_id


def supervised_by() -> str:
    """The id of the supervisor that started this program; '' where none did."""
    take_socket_from_environment()
    return _ThisProcess.supervisor_id if _ThisProcess.pid == os.getpid() else ""


def supervisor() -> Supervisor | None:
    """The supervisor that started this program, if one did."""
    take_socket_from_environment()
    ours = _ThisProcess
    if ours.connection is None or ours.pid != os.getpid():
        return None
    with ours.making:
        if ours.supervisor is None:
            ours.supervisor = Supervisor(ours.connection)
    return ours.supervisor


def hears_hangup() -> bool:
    """Whether SIGHUP is to stop the job: not where `nohup` has made the program deaf to it."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
