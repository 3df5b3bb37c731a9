"""The log as JSON lines: what its lines are about, in whichever thread, and whose handlers stay."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import log_fields
from penstock.errors import ConfigError
from penstock.ids import SubtaskId
from penstock.log_fields import (
    JsonLines,
    LogFields,
    about,
    in_context,
    log_as_json,
    of_job,
    of_run,
    wanted_form,
)
from services.terminals import no_log

LOG = logging.getLogger("penstock.test")


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_fields, "_JOBS", {})
    monkeypatch.setattr(log_fields._Asked, "json", False)
    root, penstock = logging.getLogger(), logging.getLogger("penstock")
    levels = root.level, penstock.level
    token = log_fields._HERE.set(None)
    with no_log():
        yield
    log_fields._HERE.reset(token)
    root.setLevel(levels[0])
    penstock.setLevel(levels[1])
    logging.captureWarnings(capture=False)


@pytest.fixture
def stream() -> io.StringIO:
    written = io.StringIO()
    log_as_json(written)
    return written


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_all_that_is_known(stream: io.StringIO) -> None:
    """Time, level, logger, message, job, run, checkpoint and operator; what is not known is not there."""
    of_job("views")
    of_run(3)
    LOG.info("it is %s", "done", extra=about(checkpoint=7, operator="counts"))
    (line,) = lines(stream)
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "penstock.test",
        "message": "it is done",
        "job": "views",
        "run": 3,
        "checkpoint": 7,
        "operator": "counts",
    }


def test_subtasks_and_errors_are_found_in_the_values(stream: io.StringIO) -> None:
    """Whoever names a subtask or an error in a message need not say it twice; with a trace it is there whole."""
    LOG.warning("%s: %s", SubtaskId("counts", 2), OSError("away"))
    try:
        os.environ["NO SUCH\nSETTING"]
    except KeyError:
        LOG.exception("broken")
    LOG.info("no checkpoint", extra=about(checkpoint=-1, error=ValueError()))
    first, second, third = lines(stream)
    assert (first["operator"], first["subtask"], first["error"]) == ("counts", 2, "OSError")
    assert second["error"] == "KeyError"
    assert second["trace"].startswith("Traceback")
    assert (third["error"], "checkpoint" in third) == ("ValueError", False)


def test_text_that_breaks_lines_or_is_no_text() -> None:
    """Line breaks, quotes and half characters stay inside of one line."""
    # Not logged: whoever collects the logs of tests cannot send such a text.
    record = LOG.makeRecord(LOG.name, logging.INFO, __file__, 1, 'a\nb "c" \udcff \x1b[2J', (), None)
    line = JsonLines().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == 'a\nb "c" \udcff \x1b[2J'


def test_threads_of_two_jobs(stream: io.StringIO) -> None:
    """A thread speaks of the job of the one that started it, and knows of the next run when that has begun."""
    go, threads = threading.Event(), []

    def speak() -> None:
        assert go.wait(60)
        LOG.info("from a thread")

    for name in ("views", "orders"):
        of_job(name)
        of_run(1)
        threads.append(threading.Thread(target=in_context(speak)))
    of_run(2)
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert {(line["job"], line["run"]) for line in lines(stream)} == {("views", 1), ("orders", 2)}


def test_a_thread_that_is_nobodys(stream: io.StringIO) -> None:
    """One that Spark has started speaks of the only job there is; of two nobody guesses, unless it has the name of one."""

    def speak() -> None:
        LOG.info("hello")

    def spoken(name: str) -> str | None:
        thread = threading.Thread(target=speak, name=name)
        thread.start()
        thread.join()
        return lines(stream)[-1].get("job")

    assert spoken("spark") is None
    of_job("views")
    assert spoken("spark") == "views"
    of_job("orders")
    assert spoken("spark") is None
    assert spoken("penstock-views") == "views"


def test_handlers_of_others_stay(tmp_path: Path) -> None:
    """A file that somebody logs into is left alone; what prints on a stream is replaced, however often one asks."""
    root = logging.getLogger()
    before = len(root.handlers)
    file = logging.FileHandler(tmp_path / "log")
    root.addHandler(file)
    root.addHandler(logging.StreamHandler(io.StringIO()))
    written = io.StringIO()
    log_as_json()
    log_as_json(written)
    LOG.warning("once")
    file.close()
    assert len(root.handlers) == before + 2
    assert len(lines(written)) == 1
    assert (tmp_path / "log").read_text() == "once\n"


def test_on_a_handler_of_ones_own() -> None:
    """`JsonLines` is a formatter as any other, and `LogFields` gives the fields to a format of one's own."""
    first, second = io.StringIO(), io.StringIO()
    as_json, as_text = logging.StreamHandler(first), logging.StreamHandler(second)
    as_json.setFormatter(JsonLines())
    as_text.addFilter(LogFields())
    as_text.setFormatter(logging.Formatter("%(job)s/%(run)s/%(checkpoint)s %(message)s"))
    logger = logging.getLogger("mine")
    logger.setLevel(logging.INFO)
    logger.handlers = [as_json, as_text]
    of_job("views")
    of_run(4)
    logger.info("hi")
    assert lines(first)[0]["run"] == 4
    assert second.getvalue() == "views/4/ hi\n"


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """`PENSTOCK_LOG` is text or json; any other word is refused with what is allowed."""
    assert wanted_form() == "text"
    monkeypatch.setenv("PENSTOCK_LOG", " JSON ")
    assert wanted_form() == "json"
    monkeypatch.setenv("PENSTOCK_LOG", "xml")
    with pytest.raises(ConfigError, match="PENSTOCK_LOG=xml is not allowed: it is text or json"):
        wanted_form()


def test_what_somebody_gives_under_our_names_loses_no_line(stream: io.StringIO) -> None:
    """It may lead back to itself, have no text, or be a number that JSON does not have."""

    class Mute:
        def __str__(self) -> str:
            raise ValueError

    circle: dict[str, Any] = {}
    circle["self"] = circle
    for given in (circle, Mute(), float("nan"), 7):
        LOG.info("x", extra={"operator": given})
    assert [line["operator"] for line in lines(stream)] == ["{'self': {...}}", "Mute", "nan", 7]
    assert "NaN" not in stream.getvalue()
