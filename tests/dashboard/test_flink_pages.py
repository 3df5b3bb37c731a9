"""Flink's own web pages in a real Chromium, in front of Penstock's REST interface: those that the documentation says work, do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from builders.job_views import NOW, bare_view, rich_view
from penstock.dashboard.flink.terms import vertex_id
from penstock.status.jobs import FoundJob
from penstock.status.view import JobState, JobView
from services import flink_pages
from services.chromium import NoChromiumError, launched
from services.maven import JarsMissingError

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_MS = 120_000
VIEW = rich_view()
JOB = f"/job/running/{VIEW.id}"
VERTEX = f"{JOB}/overview/{vertex_id(VIEW, 'per-page')}"


class TwoJobs:
    """One of which everything is known, and one of which nothing is."""

    def views(self) -> list[JobView]:
        return [VIEW, bare_view("old", JobState.FINISHED)]

    def view(self, job: str) -> JobView | None:
        return next((view for view in self.views() if view.id == job), None)

    def found(self, job: str) -> FoundJob:
        raise NotImplementedError


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(flink_pages.serving(TwoJobs()))
        except JarsMissingError as missing:
            pytest.skip(f"Flink: no pages to look at: {missing}")


@pytest.fixture(scope="module")
def seen(address: str) -> Iterator[tuple[Page, list[str]]]:
    """One page for all: Flink's is loaded once, and goes on from there. With what went wrong in it."""
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(launched())
        except NoChromiumError as missing:
            pytest.skip(f"Chromium: no browser to look at pages with: {missing}")
        wrong: list[str] = []
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("response", lambda answer: wrong.append(answer.url) if answer.status >= 400 else None)
        yield page, wrong


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/overview", ["Running Applications", "views", "RUNNING", "old", "FINISHED"]),
        ("/job/running", ["views", "1h 0m 0s"]),
        ("/job/completed", ["old"]),
        (f"{JOB}/overview", ["per-page: aggregate by page", "123,456", "HASH"]),
        (f"{VERTEX}/subtasks", ["worker-1", "worker-2", "250"]),
        (f"{VERTEX}/taskmanagers", ["worker-1"]),
        (f"{VERTEX}/watermarks", [str(round((NOW - 70) * 1000))]),
        (f"{JOB}/exceptions", ["ZeroDivisionError: division by zero"]),
        (f"{JOB}/timeline", ["Vertex TimeLine"]),
        (
            f"{JOB}/checkpoints",
            ["Triggered: 4", "chk-40-r2", "did not acknowledge: per-page-1", "2/2 (100%)"],
        ),
        (f"{JOB}/configuration", ["exponential_delay", "every sink has transactions"]),
        ("/task-manager", ["No Data"]),
    ],
)
def test_a_page_of_flinks(seen: tuple[Page, list[str]], address: str, path: str, texts: list[str]) -> None:
    """It shows what it should, without an error of its script and without a request that is refused."""
    page, wrong = seen
    page.goto(f"{address}/#{path}")
    for text in texts:
        shown = "text => document.body.innerText.replace(/\\s+/g, ' ').includes(text)"
        page.wait_for_function(shown, arg=text)
    assert wrong == []
