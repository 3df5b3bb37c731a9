"""Requests through storage: who takes them on, who takes them back, and what is said in the end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import ConfigError, CorruptStateError, UnavailableError
from penstock.ids import RunId
from penstock.ownership.claim import Claimant, claim
from penstock.ownership.heartbeat import CLOCKS_S, HEARTBEAT_S, STALE_AFTER_S, beat
from penstock.ownership.records import LARGEST_BYTES
from penstock.ownership.runs import RunOutcome, end_of, record_end
from penstock.requests.request_client import RequestClient
from penstock.requests.request_files import (
    Done,
    Facts,
    Kind,
    Listing,
    Request,
    answer,
    forget_requests,
    put_request,
    read_answer,
    read_request,
    take_back,
    take_on,
    taken_on_by,
)
from penstock.requests.request_server import FORGET_AFTER_S, MOST_WAITING, RequestServer
from penstock.storage import LocalStorage, Storage
from penstock.storage.forwarding import ForwardingStorage
from penstock.testing.virtual import VirtualClock, VirtualStorage

ID = "ab12"


@dataclass
class Job:
    """A start of the job that does what it is asked for at once, and notes it."""

    storage: Storage
    clock: VirtualClock
    performed: list[str] = field(default_factory=list)
    error: Exception | None = None
    background: list[Callable[[], None]] = field(default_factory=list)
    waits: bool = False
    """What takes its time is left in `background`."""

    def __post_init__(self) -> None:
        self.claimant = Claimant()
        self.claim = claim(self.storage, self.clock.wall(), self.claimant)
        beat(self.storage, self.claim.run, self.clock.wall())
        self.answering = RequestServer(
            self.storage, self.claimant, self, in_background=self._in_background, clock=self.clock
        )

    def _in_background(self, work: Callable[[], None]) -> None:
        if self.waits:
            self.background.append(work)
        else:
            work()

    def checkpoint(self, token: str, request: Request) -> Facts:
        return self._did("checkpoint", token, {"checkpoint": 7})

    def savepoint(self, token: str, request: Request) -> Facts:
        return self._did("savepoint", token, {"savepoint": request.to})

    def _did(self, what: str, token: str, facts: Facts) -> Facts:
        self.performed.append(f"{what} {token}")
        if self.error is not None:
            raise self.error
        return facts

    def stop(self, token: str, request: Request) -> None:
        self.performed.append(f"stop {token}")
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.performed.append("cancel")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def job(clock: VirtualClock) -> Job:
    return Job(VirtualStorage(), clock)


def put(job: Job, kind: Kind = Kind.CHECKPOINT, *, good_for_s: float = 60.0, to: str | None = None) -> None:
    now = job.clock.wall()
    put_request(job.storage, ID, Request(kind=kind, asked_at=now, until=now + good_for_s, to=to))


def said(job: Job) -> Done:
    done = read_answer(job.storage, ID)
    assert done is not None
    return done


# ── the side that performs ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "facts"),
    [(Kind.CHECKPOINT, {"checkpoint": 7}), (Kind.SAVEPOINT, {"savepoint": "/there"})],
)
def test_a_request_is_performed_once_and_answered(job: Job, kind: Kind, facts: Facts) -> None:
    """It is taken on by the run, performed, answered with facts, and not looked at again."""
    put(job, kind, to="/there")
    job.answering.look()
    job.answering.look()
    assert job.performed == [f"{kind} {ID}"]
    assert said(job) == Done(ok=True, facts=facts)
    assert taken_on_by(job.storage, ID) == job.claim.run


def test_what_takes_its_time_is_begun_once(job: Job) -> None:
    """While it is under way the next look leaves it alone."""
    job.waits = True
    put(job)
    job.answering.look()
    job.answering.look()
    (work,) = job.background
    work()
    assert said(job).ok


@pytest.mark.parametrize("kind", [Kind.STOP, Kind.CANCEL])
def test_an_end_is_answered_when_it_has_come(job: Job, kind: Kind) -> None:
    """A stop or cancel is begun by the look, and answered with how the job ended."""
    put(job, kind)
    job.answering.look()
    assert len(job.performed) == 1
    assert read_answer(job.storage, ID) is None
    job.answering.ended({"status": "stopped"})
    assert said(job) == Done(ok=True, facts={"status": "stopped"})


def test_a_stop_that_failed_says_why(job: Job) -> None:
    """The error of the end is the answer."""
    put(job, Kind.STOP)
    job.answering.look()
    job.answering.ended({"status": "stopped"}, lambda _: UnavailableError("no savepoint"))
    assert said(job) == Done(ok=False, error="no savepoint", kind="UnavailableError")


@pytest.mark.parametrize("error", [ConfigError("the folder is taken"), UnavailableError("it cannot be seen")])
def test_a_stop_that_is_refused_is_answered_at_once(job: Job, error: Exception) -> None:
    """The job goes on, so there is no end that could be the answer."""
    job.error = error
    put(job, Kind.STOP)
    job.answering.look()
    assert said(job) == Done(ok=False, error=str(error), kind=type(error).__name__)


def test_a_job_that_ends_leaves_no_request_open(job: Job) -> None:
    """What it had taken on and could not finish is answered so."""
    job.waits = True
    put(job, Kind.SAVEPOINT)
    job.answering.look()
    job.answering.ended({"status": "finished"})
    assert said(job).error.startswith("the job ended (finished) while it was at the savepoint")
    job.background[0]()
    assert not said(job).ok  # the first word stays


def test_nothing_is_taken_on_behind_the_end(job: Job) -> None:
    """Nobody would answer it, and a stop would end the next start; that one answers what it finds."""
    job.answering.ended({"status": "finished"})
    put(job, Kind.STOP)
    job.answering.look()
    assert job.performed == []
    assert taken_on_by(job.storage, ID) is None
    assert take_back(job.storage, ID)


def test_what_is_being_taken_on_when_the_job_ends_is_answered(clock: VirtualClock) -> None:
    """The end waits until it is known whether a request was taken on, so that none is left without an answer."""
    standing = StandsStill(VirtualStorage(), lambda: None)
    job = Job(standing, clock)
    end = threading.Thread(target=lambda: job.answering.ended({"status": "finished"}))

    def ends() -> None:
        end.start()
        end.join(0.1)  # time for an end that does not wait to come too early

    standing.happens = ends
    put(job, Kind.STOP)
    job.answering.look()
    end.join()
    assert job.performed == [f"stop {ID}"]
    assert said(job) == Done(ok=True, facts={"status": "finished"})


def ask_for(job: Job, number: int, kind: Kind = Kind.SAVEPOINT, **options: Any) -> str:
    """A request of its own, a second after the one before."""
    now, request = job.clock.wall(), f"{number:032x}"
    put_request(job.storage, request, Request(kind=kind, asked_at=now, until=now + 60, **options))
    return request


def test_savepoints_are_made_one_at_a_time(job: Job) -> None:
    """The others wait in storage, in the order in which they came; a stop and a cancel wait for nothing."""
    job.waits = True
    last = ask_for(job, 40)
    job.answering.look()
    for number in range(39, 0, -1):
        ask_for(job, number)
        job.answering.look()
    assert len(job.background) == 1
    assert taken_on_by(job.storage, last) == job.claim.run
    assert taken_on_by(job.storage, f"{1:032x}") is None
    ask_for(job, 41, Kind.CHECKPOINT)
    ask_for(job, 42, Kind.STOP)
    ask_for(job, 43, Kind.CANCEL)
    job.answering.look()
    assert job.performed == [f"stop {42:032x}", "cancel"]
    assert len(job.background) == 2
    while job.background:
        job.background.pop(0)()
        job.answering.look()
    done = [one.split()[1] for one in job.performed if one.startswith("savepoint")]
    assert done == [f"{number:032x}" for number in range(40, 0, -1)]


def test_a_request_that_waits_can_be_taken_back(job: Job) -> None:
    """Its asker has given up: it is never performed."""
    job.waits = True
    ask_for(job, 1)
    job.answering.look()
    given_up, left, late = ask_for(job, 2), ask_for(job, 3), ask_for(job, 4)
    job.answering.look()
    assert take_back(job.storage, given_up)
    assert take_back(job.storage, left)
    forget_requests(job.storage, [left])
    job.clock.advance(61)
    job.background.pop()()
    job.answering.look()
    assert job.background == []
    assert job.performed == [f"savepoint {1:032x}"]
    late_answer = read_answer(job.storage, late)
    assert late_answer is not None
    assert "was to begin within 1 min" in late_answer.error


def test_a_stop_that_waits_is_answered_with_the_one_before_it(job: Job) -> None:
    """Both asked the same job to stop: the next start of it is not stopped by the second. One that was taken back stays so."""
    now = job.clock.wall()
    for request in ("aa", "bb", "cc"):
        wish = Request(kind=Kind.STOP, asked_at=now, until=now + 600, savepoint=True)
        put_request(job.storage, request, wish)
    job.answering.look()
    assert take_back(job.storage, "cc")
    job.answering.ended({"status": "stopped"})
    answers = [read_answer(job.storage, request) for request in ("aa", "bb", "cc")]
    assert [None if one is None else one.ok for one in answers] == [True, True, None]
    later = Job(job.storage, job.clock)
    later.answering.look()
    assert (job.performed, later.performed) == (["stop aa"], [])


def test_more_than_so_many_do_not_wait(job: Job) -> None:
    """What comes beyond them is refused, and those before are not."""
    job.waits = True
    ask_for(job, 0)
    job.answering.look()
    for number in range(1, MOST_WAITING + 1):
        ask_for(job, number)
    job.answering.look()
    refused = ask_for(job, 0xFFFF)
    job.answering.look()
    done = read_answer(job.storage, refused)
    assert done is not None
    assert not done.ok
    assert f"{MOST_WAITING} requests wait for their turn already" in done.error
    assert len(Listing(job.storage).open) == MOST_WAITING + 1


def test_a_stop_into_a_folder_that_hangs_makes_the_job_deaf_to_nothing(clock: VirtualClock) -> None:
    """It is looked at in a thread of its own, which holds up neither other requests nor the end of the job."""
    hangs, reached = threading.Event(), threading.Event()

    class Hangs(Job):
        def stop(self, token: str, request: Request) -> None:
            if request.savepoint:
                reached.set()
                hangs.wait()
            super().stop(token, request)

    job = Hangs(VirtualStorage(), clock)
    job.answering = RequestServer(
        job.storage,
        job.claimant,
        job,
        in_background=lambda work: work(),
        apart=lambda work: threading.Thread(target=work, daemon=True).start(),
        clock=clock,
    )
    first = ask_for(job, 1, Kind.STOP, savepoint=True, to="/hangs")
    second = ask_for(job, 2, Kind.STOP, savepoint=True, to="/hangs")
    job.answering.look()
    assert reached.wait(60)
    ask_for(job, 3, Kind.CHECKPOINT)
    ask_for(job, 4, Kind.CANCEL)
    job.answering.look()
    assert job.performed == [f"checkpoint {3:032x}", "cancel"]
    job.answering.close()
    job.answering.ended(
        {"status": "cancelled"}, lambda wish: UnavailableError("cancelled") if wish.savepoint else None
    )
    for request in (first, second):
        done = read_answer(job.storage, request)
        assert done is not None
        assert done.error == "cancelled"
    hangs.set()


def test_only_a_cancel_is_taken_on_when_the_last_run_is_over(job: Job) -> None:
    """A savepoint that was begun before may hang, and somebody must be able to end that."""
    job.answering.close()
    put(job, Kind.SAVEPOINT)
    ask_for(job, 1, Kind.CANCEL)
    job.answering.look()
    assert job.performed == ["cancel"]
    assert take_back(job.storage, ID)


def test_an_error_is_the_answer(job: Job) -> None:
    """What goes wrong is told to whoever asked, with its class."""
    job.error = ConfigError("this folder holds a savepoint already")
    put(job, Kind.SAVEPOINT)
    job.answering.look()
    assert said(job) == Done(ok=False, error="this folder holds a savepoint already", kind="ConfigError")


def test_a_request_that_is_too_old_is_not_performed(job: Job) -> None:
    """A run that comes up later than its time says so."""
    put(job, Kind.CANCEL, good_for_s=5)
    job.clock.advance(5)
    job.answering.look()
    assert job.performed == []
    assert "was to begin within 5 s" in said(job).error


@pytest.mark.parametrize(
    "data",
    [
        b"{half",
        b'{"kind": "format the disk", "asked_at": 0, "until": 99999999999}',
        b'{"kind": "cancel", "asked_at": 0, "until": 99999999999, "but_only_if": "it rains"}',
        b'{"kind": "cancel", "asked_at": 0, "until": "tomorrow"}',
        b'{"kind": "cancel"}',
        b'{"kind": "cancel", "asked_at": 0, "until": 1e309}',
        b'{"kind": "cancel", "asked_at": 0, "until": 99999999999, "by": "' + b"x" * LARGEST_BYTES + b'"}',
    ],
)
def test_what_is_not_understood_is_answered_and_not_performed(job: Job, data: bytes) -> None:
    """Damaged requests, unknown kinds and unknown fields get an error."""
    job.storage.put(f"requests/{ID}.json", data)
    job.answering.look()
    assert job.performed == []
    assert "is no request that this version of Penstock understands" in said(job).error


@pytest.mark.parametrize(("asked_at", "until"), [("-1e308", "1"), ("1e308", "-1e308"), ("1e308", "1")])
def test_times_beyond_all_measure_are_late(job: Job, asked_at: str, until: str) -> None:
    """Numbers with which nobody can reckon are answered like others."""
    job.storage.put(
        f"requests/{ID}.json", f'{{"kind": "stop", "asked_at": {asked_at}, "until": {until}}}'.encode()
    )
    job.answering.look()
    assert job.performed == []
    assert "was to begin within" in said(job).error


NESTED = b'{"run": 1, "x": ' + b"[" * 200_000 + b"}"


def test_a_decision_that_cannot_be_read_is_not_performed(job: Job) -> None:
    """However it is damaged, it counts as the asker's."""
    put(job, Kind.STOP)
    job.storage.put(f"requests/{ID}.taken", NESTED)
    job.answering.look()
    assert job.performed == []
    assert taken_on_by(job.storage, ID) is None


def test_an_answer_that_cannot_be_read_is_said_to_be_so(job: Job) -> None:
    """Its asker gets an error of ours."""
    job.storage.put(f"requests/{ID}.done", NESTED)
    with pytest.raises(CorruptStateError, match="nested too deeply"):
        read_answer(job.storage, ID)


def test_only_files_are_read(tmp_path: Path, clock: VirtualClock) -> None:
    """A pipe in the folder would never end: it is left alone, and keeps nothing from being performed."""
    job = Job(LocalStorage(tmp_path), clock)
    (tmp_path / "requests").mkdir()
    os.mkfifo(tmp_path / "requests" / "00.json")
    put(job)
    job.answering.look()
    assert job.performed == [f"checkpoint {ID}"]


def test_a_request_that_breaks_the_look_is_answered_with_an_error(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody has thought of is told to its asker; the others are performed."""

    def breaks(token: str, request: Request) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(job, "stop", breaks)
    put(job, Kind.STOP)
    now = job.clock.wall()
    put_request(job.storage, "ff", Request(kind=Kind.CHECKPOINT, asked_at=now, until=now + 60))
    job.answering.look()
    assert said(job) == Done(ok=False, error="division by zero", kind="ZeroDivisionError")
    assert job.performed == ["checkpoint ff"]


def test_a_request_that_cannot_be_reached_keeps_no_other_waiting(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a file of another user; it is told once."""

    class Closed(ForwardingStorage):
        def get(self, name: str) -> bytes:
            if name == f"requests/{ID}.json":
                raise UnavailableError(f"could not get {name}: permission denied")
            return super().get(name)

    job = Job(Closed(VirtualStorage()), clock)
    put(job)
    now = job.clock.wall()
    put_request(job.storage, "ff", Request(kind=Kind.CHECKPOINT, asked_at=now, until=now + 60))
    with caplog.at_level(logging.INFO, "penstock"):
        job.answering.look()
        job.answering.look()
    assert job.performed == ["checkpoint ff"]
    assert caplog.text.count("permission denied") == 1


def test_nothing_ends_the_looking(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """The thread that looks for requests is there as long as the job is; what breaks is told once."""

    class Broken(VirtualStorage):
        def names(self, prefix: str = "") -> list[str]:
            raise ZeroDivisionError("division by zero")

    answering = RequestServer(Broken(), job.claimant, job, in_background=lambda work: work(), clock=job.clock)
    for _ in range(2):
        answering.look()
    assert caplog.text.count("division by zero") == 1


def test_other_files_are_left_alone(job: Job) -> None:
    """Only names of requests are looked at."""
    names = ["requests/.DS_Store", "requests/x/etc.json", "requests/NOHEX.json"]
    for name in names:
        job.storage.put(name, b"{}")
    job.answering.look()
    assert job.storage.names("requests") == sorted(names)


def test_what_was_taken_back_is_never_performed(job: Job) -> None:
    """One file decides: who created it first."""
    put(job, Kind.CANCEL)
    assert take_back(job.storage, ID)
    job.answering.look()
    assert job.performed == []
    assert read_answer(job.storage, ID) is None  # its asker says so


class StandsStill(ForwardingStorage):
    """A run that stands still right before it takes a request on, while other things happen."""

    def __init__(self, inner: Storage, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self.happens = happens

    def create(self, name: str, data: bytes) -> bool:
        if name.endswith(".taken"):
            self.happens()
        return super().create(name, data)


@pytest.mark.parametrize("kind", list(Kind))
def test_what_was_taken_back_and_deleted_is_never_performed(clock: VirtualClock, kind: Kind) -> None:
    """A run that stood still meanwhile finds nothing in its way, and sees that nobody asks any more."""
    plain = VirtualStorage()

    def taken_back() -> None:
        assert take_back(plain, ID)
        forget_requests(plain, [ID])

    job = Job(StandsStill(plain, taken_back), clock)
    put(job, kind)
    job.answering.look()
    assert job.performed == []
    job.answering.look()
    job.clock.advance(FORGET_AFTER_S + 1)
    job.answering.look()
    assert plain.names("requests") == []


def test_what_was_taken_on_too_late_is_not_performed(clock: VirtualClock) -> None:
    """A run that stood still until the time was over says so."""
    plain = VirtualStorage()
    job = Job(StandsStill(plain, lambda: clock.advance(60)), clock)
    put(job, Kind.STOP, good_for_s=60)
    job.answering.look()
    assert job.performed == []
    assert "was to begin within 1 min" in said(job).error


def test_what_was_taken_on_cannot_be_taken_back(job: Job) -> None:
    """The asker learns that the run is at it."""
    put(job)
    assert take_on(job.storage, ID, RunId(1))
    assert not take_back(job.storage, ID)


def test_a_run_that_lost_the_job_performs_nothing(job: Job) -> None:
    """It looks at its claim after it has taken the request on; the owner performs it all the same."""
    put(job, Kind.CANCEL)
    owner = Job(job.storage, job.clock)
    job.answering.look()
    assert job.performed == []
    owner.answering.look()
    assert owner.performed == ["cancel"]
    job.answering.ended({"status": "fenced"})
    owner.answering.ended({"status": "cancelled"})
    assert said(job).facts == {"status": "cancelled"}


def test_a_run_that_was_replaced_meanwhile_does_not_answer(job: Job) -> None:
    """What it made is the next run's to say, under the same id."""
    job.waits = True
    put(job, Kind.SAVEPOINT, to="/there")
    job.answering.look()
    owner = Job(job.storage, job.clock)
    job.background[0]()
    assert read_answer(job.storage, ID) is None
    owner.answering.look()
    assert owner.performed == [f"savepoint {ID}"]
    assert said(owner).facts == {"savepoint": "/there"}


def test_the_next_run_performs_what_a_dead_one_had_taken_on(job: Job) -> None:
    """Nothing but an answer ends a request."""
    job.waits = True
    put(job)
    job.answering.look()
    following = Job(job.storage, job.clock)
    following.answering.look()
    assert following.performed == [f"checkpoint {ID}"]
    assert said(following).ok


def test_storage_that_is_away_is_not_in_the_jobs_way(job: Job) -> None:
    """A look that fails is tried again."""

    class Away(VirtualStorage):
        def names(self, prefix: str = "") -> list[str]:
            raise UnavailableError("away")

    RequestServer(Away(), job.claimant, job, in_background=lambda work: work(), clock=job.clock).look()
    assert job.performed == []


class AwayAtTheAnswer(ForwardingStorage):
    """An answer is not taken at once."""

    left = 1

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage.create`."""
        if name.endswith(".done") and self.left:
            self.left -= 1
            raise UnavailableError("away")
        return super().create(name, data)


def test_an_end_is_answered_also_when_storage_is_away_for_a_moment(clock: VirtualClock) -> None:
    """A stop that nobody has answered would end the next start, too."""
    job = Job(AwayAtTheAnswer(VirtualStorage()), clock)
    put(job, Kind.STOP)
    job.answering.look()
    job.answering.ended({"status": "stopped"})
    assert said(job).ok
    following = Job(job.storage, clock)
    following.answering.look()
    assert following.performed == []


def test_what_was_made_is_said_also_when_storage_is_away_for_a_moment(clock: VirtualClock) -> None:
    """However long it took: nobody is told that it was not begun in time."""
    job = Job(AwayAtTheAnswer(VirtualStorage()), clock, waits=True)
    put(job, Kind.SAVEPOINT, good_for_s=5.0, to="/there")
    job.answering.look()
    clock.advance(10.0)
    (work,) = job.background
    work()
    job.answering.look()
    assert said(job).facts == {"savepoint": "/there"}


def test_answers_that_nobody_fetches_are_forgotten(job: Job) -> None:
    """An hour later nothing of the request is left."""
    put(job)
    job.answering.look()
    job.answering.look()
    job.clock.advance(FORGET_AFTER_S + 1)
    job.answering.look()
    assert job.storage.names("requests") == []


# ── the side that asks ─────────────────────────────────────────────────────────────────────────


class Meanwhile(VirtualClock):
    """While somebody waits, other things happen."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.happens()


class Asked:
    """A request to a job under a clock in which the job moves when its asker sleeps."""

    def __init__(self) -> None:
        self.clock = Meanwhile()
        self.job = Job(VirtualStorage(), self.clock)
        self.told: list[str] = []
        self.clock.happens = self.live

    def live(self) -> None:
        beat(self.job.storage, self.job.claim.run, self.clock.wall())
        self.job.answering.look()

    def ask(self, kind: Kind = Kind.CHECKPOINT, timeout_s: float = 30.0, **options: object) -> Facts:
        return RequestClient(self.job.storage, clock=self.clock, tell=self.told.append).ask(
            kind, timeout_s=timeout_s, **options
        )

    @property
    def left(self) -> list[str]:
        return self.job.storage.names("requests")


def test_asking_a_job_that_runs() -> None:
    """The facts come back, and nothing of the request stays."""
    asked = Asked()
    assert asked.ask(Kind.SAVEPOINT, to="/there") == {"savepoint": "/there"}
    assert asked.told == ["asked run 1 for a savepoint"]
    assert asked.left == []


class AnswerLost(ForwardingStorage):
    """One call is performed, and its answer is lost."""

    def __init__(self, inner: Storage, ending: str) -> None:
        super().__init__(inner)
        self._ending, self._lost = ending, False

    def put(self, name: str, data: bytes) -> None:
        """See `Storage.put`."""
        super().put(name, data)
        self._lose(name)

    def size(self, name: str) -> int | None:
        """See `Storage.size`."""
        found = super().size(name)
        self._lose(name)
        return found

    def _lose(self, name: str) -> None:
        if name.endswith(self._ending) and not self._lost:
            self._lost = True
            raise UnavailableError("storage is away for a moment")


def test_a_request_that_may_not_be_written_is_taken_back() -> None:
    """Who is told that asking failed must not find the job stopped."""
    asked = Asked()
    storage = AnswerLost(asked.job.storage, ".json")
    with pytest.raises(UnavailableError, match="away for a moment"):
        RequestClient(storage, clock=asked.clock).ask(Kind.STOP, timeout_s=30.0)
    asked.live()
    asked.clock.advance(FORGET_AFTER_S + 1)
    asked.live()
    assert asked.job.performed == []
    assert asked.left == []


class Late(ForwardingStorage):
    """A request is on its way when its asker waits no more, and comes later."""

    def __init__(self, inner: Storage, ends: BaseException) -> None:
        super().__init__(inner)
        self._ends = ends
        self.arrives: Callable[[], None] = lambda: None

    def put(self, name: str, data: bytes) -> None:
        """See `Storage.put`."""
        self.arrives = partial(super().put, name, data)
        raise self._ends


@pytest.mark.parametrize("ends", [UnavailableError("timed out"), KeyboardInterrupt(), SystemExit()])
def test_a_request_that_arrives_after_it_was_taken_back_is_not_performed(ends: BaseException) -> None:
    """A server may finish a write after its client has gone: what was taken back stays so, and is forgotten later."""
    asked = Asked()
    storage = Late(asked.job.storage, ends)
    with pytest.raises(type(ends)):
        RequestClient(storage, clock=asked.clock, tell=asked.told.append).ask(Kind.STOP, timeout_s=30.0)
    storage.arrives()
    asked.live()
    asked.clock.advance(FORGET_AFTER_S + 1)
    asked.live()
    assert asked.job.performed == []
    assert asked.left == []


@pytest.mark.parametrize("ending", [".done", ".taken"])
def test_who_waits_goes_on_waiting_while_storage_is_away(ending: str) -> None:
    """The request is there, and may be performed: its answer comes."""
    asked = Asked()
    storage = AnswerLost(asked.job.storage, ending)

    def later() -> None:
        if asked.clock.monotonic() - began > 2 * HEARTBEAT_S:
            asked.live()
        else:
            beat(asked.job.storage, asked.job.claim.run, asked.clock.wall())

    began = asked.clock.monotonic()
    asked.clock.happens = later
    assert RequestClient(storage, clock=asked.clock).ask(Kind.CHECKPOINT, timeout_s=30.0)
    assert asked.left == []


def test_asking_for_something_that_fails() -> None:
    """The error is raised here as what it was there."""
    asked = Asked()
    asked.job.error = ConfigError("that folder is taken")
    with pytest.raises(ConfigError, match="that folder is taken"):
        asked.ask(Kind.SAVEPOINT)
    asked.job.error = ZeroDivisionError("division by zero")
    with pytest.raises(UnavailableError, match="division by zero"):
        asked.ask(Kind.SAVEPOINT)


def test_asking_a_job_that_does_not_run() -> None:
    """It is refused at once, with how the last run ended, and nothing is written."""
    asked = Asked()
    record_end(asked.job.storage, end_of(asked.job.claim.run, RunOutcome.FAILED, asked.clock.wall()))
    asked.clock.advance(CLOCKS_S + STALE_AFTER_S)
    with pytest.raises(
        ConfigError, match=r"is not running: its last run, 1, is over: failed; nothing was asked for"
    ):
        asked.ask()
    assert asked.left == []


def test_a_run_that_dies_before_it_takes_the_request_on() -> None:
    """The request is taken back as soon as nobody is alive."""
    asked = Asked()
    asked.clock.happens = lambda: None
    with pytest.raises(
        UnavailableError, match=r"run 1 .* ended before it accepted the request; the request is withdrawn"
    ):
        asked.ask(timeout_s=120)
    assert asked.left == []
    asked.live()
    assert asked.job.performed == []


def test_a_run_that_dies_in_the_middle_is_followed_by_the_next() -> None:
    """Whoever asks is told, and waits for the next run."""
    asked = Asked()
    asked.job.waits = True
    dead_at_s = 2.0

    def happens() -> None:
        if asked.clock.monotonic() < dead_at_s:
            asked.live()
        elif asked.clock.monotonic() > dead_at_s + CLOCKS_S + 2 * STALE_AFTER_S and asked.job.waits:
            asked.job = Job(asked.job.storage, asked.clock)
        elif not asked.job.waits:
            asked.live()

    asked.clock.happens = happens
    assert asked.ask(timeout_s=240) == {"checkpoint": 7}
    assert any("no run is alive now: the next one continues it" in line for line in asked.told)


def test_nobody_takes_it_on_in_time() -> None:
    """The request is taken back, so that it is never performed later."""
    asked = Asked()
    asked.clock.happens = lambda: beat(asked.job.storage, asked.job.claim.run, asked.clock.wall())
    with pytest.raises(
        UnavailableError, match=r"after 30 s no run .* has accepted the request; it is withdrawn"
    ):
        asked.ask()
    asked.live()
    assert (asked.left, asked.job.performed) == ([], [])


def test_what_takes_longer_goes_on() -> None:
    """The asker is told that it is not taken back, and where the answer will be."""
    asked = Asked()
    asked.job.waits = True
    with pytest.raises(UnavailableError, match="after 30 s run 1 is still working on it") as caught:
        asked.ask()
    (work,) = asked.job.background
    work()
    assert f"requests/{caught.value.facts['request']}.done" in asked.left


def test_an_asker_who_is_interrupted_takes_its_request_back() -> None:
    """Ctrl-C leaves nothing that is performed later, and no file."""
    asked = Asked()

    def interrupted() -> None:
        raise KeyboardInterrupt

    asked.clock.happens = interrupted
    with pytest.raises(KeyboardInterrupt):
        asked.ask(Kind.CANCEL)
    assert asked.told[-1] == "the request is withdrawn: nothing was done"
    assert asked.left == []
    asked.live()
    assert asked.left == []
    assert asked.job.performed == []


@pytest.mark.parametrize("leaves", [KeyboardInterrupt, SystemExit])
def test_no_later_run_performs_what_its_asker_waits_for_no_more(leaves: type[BaseException]) -> None:
    """A run that is at it goes on; when it dies, nobody begins again."""
    asked = Asked()
    asked.job.waits = True

    def interrupted() -> None:
        asked.live()
        if asked.job.background:
            raise leaves

    asked.clock.happens = interrupted
    with pytest.raises(leaves):
        asked.ask(Kind.SAVEPOINT)
    assert asked.told[-1].startswith("run 1 has accepted the request, which cannot be withdrawn")
    following = Job(asked.job.storage, asked.clock)
    following.answering.look()
    assert following.performed == []


def test_the_first_answer_stays() -> None:
    """Two runs that both think to own a request cannot contradict each other."""
    storage = VirtualStorage()
    assert answer(storage, ID, Done(ok=True))
    assert not answer(storage, ID, Done.failed("no"))
    assert read_answer(storage, ID) == Done(ok=True)
    assert Listing(storage).open == []
    assert msgspec.json.decode(storage.get(f"requests/{ID}.done"))["ok"] is True


class ManyFiles(VirtualStorage):
    """Somebody has left many decisions without a request."""

    def names(self, prefix: str = "") -> list[str]:
        return [f"requests/{number:032x}.taken" for number in range(20_000)]


def test_many_files_are_looked_at_once_each() -> None:
    """A look comes every second: with files squared it would take the driver all its time."""
    began = time.thread_time()  # of this thread alone, however busy the machine is
    assert len(Listing(ManyFiles("virtual://many")).over) == 20_000
    assert time.thread_time() - began < 5


def test_the_name_of_who_asks_is_one_line(tmp_path: Path) -> None:
    """Whatever is written there: it goes into the log and onto pages."""
    storage = LocalStorage(tmp_path)
    by = "me\n2026-01-01 ERROR \x1b[31mall is lost\r" + "x" * 1000
    put_request(storage, "ab", Request(kind=Kind.STOP, asked_at=0.0, until=1.0, by=by))
    read = read_request(storage, "ab").by
    assert read.startswith("me 2026-01-01 ERROR [31mall is lost xxx")
    assert len(read) == 200
