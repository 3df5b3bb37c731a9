"""The real server in a real Chromium, over jobs in storage: the token, what is new, what is asked for, and its death."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builders.dashboard_site import TOKEN, StoredJob, served, ui_options
from penstock.dashboard.web_server import start_server_process
from penstock.requests.request_files import Done, Kind, Listing, answer, read_request
from services.watched_page import watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = ["", "/checkpoints", "/checkpoints/3-r1", "/failures", "/journal", "/state", "/actions"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[StoredJob]:
    """One that runs."""
    made = StoredJob(tmp_path)
    made.complete(3)
    with made.running():
        yield made


def test_the_token_is_asked_for_once(chromium: Browser, job: StoredJob) -> None:
    """A wrong one is refused, the right one leads to the page that was wanted; then every page is there, until one logs out."""
    with served(job, token=TOKEN) as server, watched(chromium, server.address) as seen:
        page = seen.page
        seen.expected = re.compile("401")
        page.goto(f"{server.address}/jobs/views/failures")
        assert "/login?next=" in page.url
        page.get_by_label("Token").fill("not-the-token-of-this-one")
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("That is not the token of this dashboard.").wait_for()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{server.address}/jobs/views/failures")
        seen.expected = re.compile(r"(?!)")
        for path in PAGES:
            seen.goto(f"/jobs/views{path}")
            page.locator("#stream.is-live").wait_for()
            assert TOKEN not in page.content() + page.url
        assert [one["httpOnly"] and one["sameSite"] == "Strict" for one in page.context.cookies()] == [True]
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{server.address}/login")
        page.goto(f"{server.address}/jobs/views")
        assert "/login" in page.url


def test_a_checkpoint_appears_on_the_open_page(chromium: Browser, job: StoredJob) -> None:
    """By the stream, without loading anew."""
    with served(job) as server, watched(chromium, server.address) as seen:
        seen.goto("/jobs/views/checkpoints")
        seen.page.evaluate("window.notLoadedAnew = true")
        assert seen.page.locator('a[href="/jobs/views/checkpoints/4-r1"]').count() == 0
        job.complete(4)
        seen.page.locator('a[href="/jobs/views/checkpoints/4-r1"]').first.wait_for()
        assert seen.page.evaluate("window.notLoadedAnew")


def test_a_savepoint_is_asked_for_and_confirmed(chromium: Browser, job: StoredJob) -> None:
    """Only who confirms asks; the page shows the outcome as soon as the job has said it."""
    with served(job) as server, watched(chromium, server.address) as seen:
        page = seen.page
        seen.goto("/jobs/views/actions")
        page.get_by_role("button", name="Make a savepoint").first.click()
        page.locator("dialog[open]").get_by_role("button", name="Do nothing").click()
        assert job.storage.names("requests") == []
        page.get_by_role("button", name="Make a savepoint").first.click()
        page.locator("dialog[open]").get_by_role("button", name="Make a savepoint").click()
        page.wait_for_url(re.compile(r"/jobs/views/actions\?request=[0-9a-f]{32}"))
        (request,) = Listing(job.storage).open
        assert read_request(job.storage, request).kind is Kind.SAVEPOINT
        answer(job.storage, request, Done(ok=True, facts={"savepoint": "/there/it/is"}))
        page.get_by_text("/there/it/is").wait_for()


def test_a_server_that_dies_and_comes_back(chromium: Browser, job: StoredJob) -> None:
    """The open page says that it is cut off, and goes on by itself when a server is there again."""
    with ExitStack() as first:
        server = first.enter_context(served(job))
        seen = first.enter_context(watched(chromium, server.address))
        seen.expected = re.compile("ERR_|Failed to load|Failed to fetch|network error|AbortError")
        seen.goto("/jobs/views")
        seen.page.locator("#stream.is-live").wait_for()
        os.kill(server.pid, signal.SIGKILL)
        seen.page.locator("#old").wait_for(state="visible")
        again = ui_options(server.address.removeprefix("http://"))
        with closing(start_server_process(job.storage, job.name, again)):
            seen.page.locator("#old").wait_for(state="hidden")
            job.live(rows_per_s=777.0)
            seen.page.get_by_text("777 rows/s").first.wait_for()


def test_a_page_of_another_site_asks_for_nothing(chromium: Browser, job: StoredJob, tmp_path: Path) -> None:
    """A form there that names our address is refused, with no token as with one: the job is not asked."""
    foreign = tmp_path / "foreign.html"
    with served(job) as server:
        foreign.write_text(
            f'<form method="post" action="{server.address}/jobs/views/actions/cancel"><button>win a prize</button></form>'
        )
        page = chromium.new_page()
        page.goto(foreign.as_uri())
        with page.expect_response(lambda one: "/actions/cancel" in one.url) as answered:
            page.get_by_role("button").click()
        assert answered.value.status == 403
        page.close()
    assert job.storage.names("requests") == []
