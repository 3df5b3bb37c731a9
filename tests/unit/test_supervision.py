"""What a supervisor decides: which ends are followed by another start, which signals count, what was done before."""

from __future__ import annotations

import random
import signal
import threading
from typing import Any

import pytest

from penstock import errors
from penstock.errors import ConfigError, exit_code_of
from penstock.ids import Randomness
from penstock.recovery.restart import exponential_delay, failure_rate, fixed_delay, no_restart
from penstock.status.events import Lost, ProcessDied, ProcessStarted
from penstock.status.journal import read_segment, segments
from penstock.storage import LocalStorage, Storage
from penstock.storage.forwarding import ForwardingStorage
from penstock.supervise import journal
from penstock.supervise.channel import LONGEST_LINE, Lines, ProgramReport, line, read_reports
from penstock.supervise.decisions import (
    BY_DEFAULT,
    DEAF_S,
    SAME_REQUEST_S,
    End,
    Supervision,
    strategy_of,
    without,
)
from penstock.supervise.journal import Story
from services.patience import PATIENCE_S


def supervision(strategy=None) -> Supervision:
    return Supervision(strategy or fixed_delay(attempts=2, delay="3s"), Randomness(random.Random(1)))


@pytest.mark.parametrize(
    ("status", "restarts"),
    [
        (0, False),
        (1, True),
        (2, False),
        (3, False),
        (4, False),
        (77, True),
        (-signal.SIGKILL, True),
        (-signal.SIGSEGV, True),
        (-signal.SIGTERM, False),
        (-signal.SIGINT, False),
        (130, False),
        (143, False),
    ],
)
def test_which_ends_are_followed_by_a_start(status: int, restarts: bool) -> None:
    """What may be cured is started again; a clean end, a wrong setting, a final failure, a fenced job and a person's wish are not."""
    assert supervision().ended(End(status), 0.0).restarts is restarts


@pytest.mark.parametrize(
    "said", ["fixed-delay:attempts=2000", "failure-rate:max_failures=2000", "exponential-delay:attempts=2000"]
)
def test_a_strategy_that_counts_far_ends_all_the_same(said: str) -> None:
    """What is remembered of earlier failures is enough for every number that one may give."""
    deciding = supervision(strategy_of(said))
    deciding.failures = [float(at) / 100 for at in range(1999)]
    assert deciding.ended(End(1), 20.0).restarts
    verdict = deciding.ended(End(1), 20.01)
    assert not verdict.restarts
    assert "after 2,001 failures" in verdict.why


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.RunningAlreadyError("x"), 2),
        (errors.FencedError("x"), 4),
        (errors.CorruptStateError("x"), 3),
        (errors.IncompatibleStateError("x"), 3),
        (errors.BadRecordError("x"), 3),
        (errors.CommitLostError("x"), 3),
        (errors.SourceLostError("x"), 3),
        (errors.UserCodeError("x"), 1),
        (errors.UserCodeError("x", is_wrong_name=True), 3),
        (errors.JobFailedError("the strategy gave up", failures=3), 3),
        (errors.JobFailedError("Spark is gone"), 1),
        (errors.UnavailableError("x"), 1),
        (errors.InternalError("x"), 1),
        (OSError("x"), 1),
    ],
)
def test_every_failure_has_its_exit_code(error: Exception, code: int) -> None:
    """The code says whether another attempt may cure it."""
    assert exit_code_of(error) == code


def test_what_a_program_told_counts_more_than_its_exit_code() -> None:
    """A program of the user's ends with 1 after an error that is final, and is not started again; one that dies otherwise is."""
    assert not supervision().ended(End(1, reported=3), 0.0).restarts
    assert supervision().ended(End(-signal.SIGKILL, reported=3), 0.0).restarts


def test_who_meets_what_its_predecessor_left_is_tried_again() -> None:
    """A script that had started the job was killed, the job lives on for a moment, and the next start is refused: it is running already."""
    kept = supervision()
    assert kept.ended(End(2), 0.0, beside_the_dead=True).restarts
    assert not kept.ended(End(0), 0.0, beside_the_dead=True).restarts
    assert not kept.ended(End(2), 0.0).restarts


def test_a_command_that_was_right_once_is_tried_again() -> None:
    """Its file may be away for a moment. A refusal that the job itself has told of is one, at any attempt."""
    kept = supervision()
    assert kept.ended(End(2), 0.0, again=True).restarts
    assert not kept.ended(End(2, reported=2), 0.0, again=True).restarts
    assert not kept.ended(End(3), 0.0, again=True).restarts


def test_after_the_second_wish_a_program_has_so_long_to_end() -> None:
    """The first is a wish for an end in good order, which takes its time."""
    kept = supervision()
    kept.came(signal.SIGTERM, 5.0)
    assert kept.killed_at is None
    kept.came(signal.SIGTERM, 7.0)
    kept.came(signal.SIGTERM, 9.0)
    assert kept.killed_at == 7.0 + DEAF_S


def test_the_strategy_sets_pauses_and_the_limit() -> None:
    """Each failure gets the strategy's pause, the one after its limit is the end, and the decision says so."""
    kept = supervision()
    assert [kept.ended(End(1), at).delay_s for at in (0.0, 10.0)] == [3.0, 3.0]
    last = kept.ended(End(1), 20.0)
    assert not last.restarts
    assert last.why == "after 3 failures the restart strategy fixed_delay(attempts=2) allows no further start"


def test_a_wish_that_comes_twice_at_once_is_one() -> None:
    """Within a second the signals that reach supervisor and program, of whatever kind, are one wish; a later one is the second."""
    kept = supervision()
    assert kept.came(signal.SIGTERM, 5.0)
    assert not kept.came(signal.SIGHUP, 5.0 + SAME_REQUEST_S / 2)
    assert kept.came(signal.SIGTERM, 5.0 + SAME_REQUEST_S)
    assert kept.stop_requests == 2


def test_nothing_is_started_after_a_wish() -> None:
    """A program that dies while it is asked to stop stays so, however it died."""
    kept = supervision()
    kept.came(signal.SIGTERM, 0.0)
    verdict = kept.ended(End(-signal.SIGKILL), 1.0)
    assert (verdict.restarts, verdict.why) == (False, "it was asked to stop, with SIGTERM")


def test_ends_in_words() -> None:
    """An end is told by its exit code or by the signal's name, and a supervisor ends as a shell does."""
    assert [End(7).how, End(-9).how, End(-63).how] == ["exit code 7", "signal SIGKILL", "signal 63"]
    assert [End(7).exit_code, End(-9).exit_code] == [7, 137]


def test_strategies_as_words() -> None:
    """The option has the names and settings of the strategies, and makes the same."""
    assert strategy_of("fixed-delay:attempts=3,delay=10s") == fixed_delay(attempts=3, delay="10s")
    assert strategy_of("exponential-delay: initial=2s, multiplier=3, attempts=4") == exponential_delay(
        initial="2s", multiplier=3.0, attempts=4
    )
    assert strategy_of("failure-rate:max_failures=2,interval=5min") == failure_rate(
        max_failures=2, interval="5min"
    )
    assert strategy_of("none") == no_restart()
    assert strategy_of(BY_DEFAULT) == exponential_delay(initial="100ms", multiplier=2.0)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("sometimes", "choose one of exponential-delay, fixed-delay, failure-rate, none"),
        ("fixed-delay:tries=3", "'tries=3' is no setting; it has attempts, delay"),
        ("fixed-delay:attempts=many", "'many' is no number"),
        ("fixed-delay:delay=long", "restart.delay='long' is not a duration"),
        ("none:attempts=1", "it has no settings"),
    ],
)
def test_a_strategy_that_is_none_is_refused(said: str, told: str) -> None:
    """The refusal names what there is."""
    with pytest.raises(ConfigError, match=told.replace("(", r"\(")):
        strategy_of(said)


def test_options_are_taken_out_of_a_command() -> None:
    """Flags go alone, options with their values, however they are written; what follows `--` is no option."""
    command = [
        "run",
        "--keep-alive",
        "f.py",
        "--restart",
        "none",
        "--restore=7",
        "--job",
        "a",
        "--",
        "--restore",
    ]
    assert without(command, ["--keep-alive"], ["--restart", "--restore"]) == [
        *("run", "f.py", "--job", "a", "--", "--restore")
    ]


def test_words_come_in_any_pieces() -> None:
    """Lines are whole whatever the socket makes of them; what is no line of ours, or far too long, is passed over."""
    sent = (
        line(ProgramReport(job="views", storage="file:///s"))
        + b"nonsense\n"
        + line(ProgramReport(going=True))
    )
    lines, heard = Lines(), list[ProgramReport]()
    for at in range(0, len(sent), 7):
        heard += read_reports(lines.add(sent[at : at + 7]))
    assert heard == [ProgramReport(job="views", storage="file:///s"), ProgramReport(going=True)]
    lines.add(b"x" * (LONGEST_LINE + 1))
    assert read_reports(lines.add(line(ProgramReport(job="j")))) == [ProgramReport(job="j")]


# ── the story in the journal ───────────────────────────────────────────────────────────────────


def told(storage) -> list[Any]:
    return [event for name in segments(storage) for event in read_segment(storage, name).events]


def test_the_story_waits_until_its_place_is_known(tmp_path, monkeypatch) -> None:
    """What happened before the program said where its storage is comes first, and what was too much is counted."""
    monkeypatch.setattr(journal, "MOST_KEPT", 2)
    story, storage = Story(), LocalStorage(tmp_path)
    for attempt in range(1, 6):
        story.started(11, attempt)
    story.died(11, "signal SIGKILL", "it is started again in 1 s", restarts=True, delay_s=1.0)
    assert told(storage) == []
    story.lies_in(storage.uri)
    story.close()
    lost, fifth, died = told(storage)
    assert isinstance(lost, Lost)
    assert lost.events == 4
    assert isinstance(fifth, ProcessStarted)
    assert (fifth.pid, fifth.attempt, fifth.run) == (11, 5, 0)
    assert isinstance(died, ProcessDied)
    assert (died.how, died.restarts, died.delay_s) == ("signal SIGKILL", True, 1.0)
    assert len(segments(storage)) == 1


@pytest.mark.parametrize("hangs", ["opening", "writing"])
def test_a_storage_that_hangs_holds_up_no_restart(tmp_path, monkeypatch, hangs: str) -> None:
    """Telling returns at once, the end waits for its last words no longer than it says, and they are written if it can be."""
    going_on, opened = threading.Event(), LocalStorage(tmp_path)

    class Hanging(ForwardingStorage):
        def put(self, name: str, data: bytes) -> None:
            going_on.wait()
            super().put(name, data)

    def opening(_: str) -> Storage:
        if hangs == "opening":
            going_on.wait()
        return Hanging(opened)

    monkeypatch.setattr(journal, "open_storage", opening)
    monkeypatch.setattr(journal, "LAST_WORDS_S", 0.01)
    story = Story()

    def tell() -> None:
        story.lies_in("file:///hangs")
        story.started(11, 1)
        story.close()

    telling_all = threading.Thread(target=tell, daemon=True)
    telling_all.start()
    telling_all.join(PATIENCE_S)
    assert not telling_all.is_alive()
    assert told(opened) == []
    going_on.set()
    monkeypatch.setattr(journal, "LAST_WORDS_S", PATIENCE_S)
    story.close()
    assert len(told(opened)) == 1
