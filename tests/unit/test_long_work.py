"""How far long work is: said by whoever does it, shown by whoever looks."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import long_work
from penstock.long_work import (
    Display,
    StderrLine,
    Work,
    counted_by,
    displayed,
    doing,
    each,
    open_works,
    reached_here,
    show_progress,
    working,
)
from penstock.testing.virtual import VirtualClock
from services.patience import tries
from services.terminals import real_terminal, screen


def wait_until(holds: Callable[[], bool]) -> None:
    """However long it takes."""
    for _ in tries(0.01):
        if holds():
            return


def begun_at(work: Work, at_s: float) -> Work:
    work.began_s = at_s
    return work


def test_a_sentence_with_an_estimate() -> None:
    """How much is done of how much, and how long the rest takes if it goes on so; nothing is said that nobody knows."""
    work = Work("making the savepoint", unit="file", began_s=100.0)
    assert work.sentence(105.0) == "making the savepoint, for 5 s"
    work.reached(0, 8)
    assert work.sentence(105.0) == "making the savepoint: 0 of 8 files"
    work.reached(2, 8)
    assert work.sentence(100.5) == "making the savepoint: 2 of 8 files"
    assert work.sentence(104.0) == "making the savepoint: 2 of 8 files, about 12 s left"
    work.reached(8, 8)
    assert work.sentence(116.0) == "making the savepoint: 8 of 8 files"
    assert work.ended(116.0) == "making the savepoint: done in 16 s"


@pytest.mark.parametrize("columns", [10, 40, 200])
def test_a_bar_has_room(columns: int) -> None:
    """It is never longer than the line, and shows the part that is done."""
    work = Work("loading", unit="row", done=1, total=2, began_s=0.0)
    bar = work.bar(4.0, columns)
    assert len(bar) <= columns
    assert work.bar(4.0, 200) == "━" * 12 + "╌" * 12 + " loading: 1 of 2 rows, about 4 s left"


def test_work_of_a_job_is_what_it_does() -> None:
    """The live record says it in words while it lasts, of this job and not of another; a failure ends it too."""
    with contextlib.suppress(ValueError), working("loading", unit="row", job="views") as reached:
        reached(1, 3)
        assert doing("views") == "loading: 1 of 3 rows"
        assert doing("orders") == ""
        (work,) = open_works("views")
        raise ValueError("no")
    assert doing("views") == ""
    assert (work.over, work.failed) == (True, True)


def test_parts_count_for_the_work_around_them() -> None:
    """Whoever does a part, one after the other or read off a counter, says how far all of it is; without work around it, it is its own."""
    with working("hashing anew", unit="operator") as _:
        for number in each(range(4), "writing", "file"):
            assert [(one.what, one.done, one.total) for one in open_works()] == [("hashing anew", number, 4)]
    for _number in each(range(2), "writing", "file"):
        assert [one.what for one in open_works()] == ["writing"]
    assert open_works() == []
    reached_here()(1, 2)  # of nobody: nothing happens


def test_a_counter_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others count, somebody looks now and then."""
    monkeypatch.setattr(long_work, "LOOK_S", 0.001)
    count = 0
    with working("loading", unit="subtask"), counted_by(lambda: count, 5):
        count = 7
        wait_until(lambda: open_works()[-1].done == 5)


class Lines:
    """Draws nowhere."""

    columns = 80

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def draw(self, text: str) -> None:
        self.drawn.append(text)

    def erase(self) -> None:
        self.drawn.append("")


def test_what_is_quick_is_not_shown() -> None:
    """A bar comes after two seconds, moves, and is gone at the end; elsewhere a line says when it began and when it ended."""
    clock, line, said = VirtualClock(), Lines(), list[str]()
    on_a_terminal, elsewhere = Display(line, said.append, clock), Display(None, said.append, clock)

    def look(after_s: float) -> None:
        clock.sleep(after_s)
        on_a_terminal.look()
        elsewhere.look()

    with working("loading", unit="row") as reached:
        begun_at(open_works()[-1], clock.monotonic())
        reached(1, 4)
        look(1.0)
        assert (line.drawn, said) == ([], [])
        look(1.0)
        reached(2, 4)
        look(1.0)
        assert [re.sub("[━╌]+ ", "", one) for one in line.drawn] == [
            "loading: 1 of 4 rows, about 6 s left",
            "loading: 2 of 4 rows, about 3 s left",
        ]
    look(1.0)
    look(1.0)
    assert line.drawn[2:] == [""]
    assert said == ["loading: 1 of 4 rows, about 6 s left", "loading: done in 4 s"]


def test_a_bar_on_a_real_terminal() -> None:
    """It fits the terminal, and leaves nothing behind."""
    with real_terminal(40) as (stream, written):
        line = StderrLine(stream)
        assert line.columns == 39
        with working("loading", unit="row") as reached, displayed(Display(line, print)):
            begun_at(open_works()[-1], open_works()[-1].began_s - 10)
            reached(1, 2)
            wait_until(lambda: line._shown != "")
        came = written()
    assert "━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌ loading: 1 of " in came
    assert screen(came) == [""]


def test_without_a_terminal(capsys: pytest.CaptureFixture[Any]) -> None:
    """`show_progress` says it on standard error."""
    with show_progress():
        with working("writing the savepoint", unit="operator") as reached:
            begun_at(open_works()[-1], open_works()[-1].began_s - 10)
            reached(1, 2)
            wait_until(lambda: "writing" in capsys.readouterr().err)
        sys.stderr.flush()
    assert capsys.readouterr().err.startswith("writing the savepoint: done in 10 s")


def test_work_that_another_thread_ends_is_over() -> None:
    """A loop over `each` that was left in the middle is ended by whoever collects it."""
    items = each([1, 2], "going through", "item")
    assert next(items) == 1
    assert [work.what for work in open_works()] == ["going through"]
    left = [items]
    del items
    thread = threading.Thread(target=left.clear)
    thread.start()
    thread.join()
    assert open_works() == []
    anew = each([1], "anew", "item")
    next(anew)
    assert [work.what for work in open_works()] == ["anew"]
    assert list(anew) == []
    with working("other work"):
        reached_here()(1, 2)
        assert [(work.what, work.done) for work in open_works()] == [("other work", 1)]
