"""The pages in a real Chromium, under the strictest policy, with jobs that were made by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec
import pytest
from page_server import LARGE, PageServer, later

from builders.job_views import JOBS, NOW, died, healthy, live
from penstock.requests.request_client import Outcome
from services.pictures import take_pictures
from services.watched_page import Watched, every_page_holds, page_holds, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog

JOB = "/jobs/page-views"


@pytest.fixture(scope="module")
def unchanging() -> Iterator[PageServer]:
    """For tests that only look."""
    with PageServer([maker() for maker in JOBS.values()]).serving() as serving:
        yield serving


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer([maker() for maker in JOBS.values()]).serving() as serving:
        yield serving


@pytest.fixture
def seen(chromium: Browser, server: PageServer) -> Iterator[Watched]:
    with watched(chromium, server.url) as page:
        yield page


def shown(seen: Watched, text: str) -> None:
    """Wait until the page says so."""
    seen.page.locator("#main").get_by_text(text).first.wait_for()


# ── as they are ────────────────────────────────────────────────────────────────────────────────


def test_every_page_of_a_job(chromium: Browser, unchanging: PageServer) -> None:
    """Light and dark, wide and narrow: nothing overflows, all can be read, no error, no request to another host."""
    every_page_holds(chromium, unchanging.url, "page-views")


@pytest.mark.parametrize("name", [name for name in JOBS if name != "healthy"])
def test_pages_of_every_kind_of_job(chromium: Browser, unchanging: PageServer, name: str) -> None:
    """The same holds for jobs in trouble, for those of which nothing is known, and for names and errors that nobody would choose."""
    view = JOBS[name]()
    paths = [
        "",
        "/checkpoints",
        "/failures",
        "/journal",
        *(f"/checkpoints/{one.checkpoint}-r{one.run}" for one in view.checkpoints[:2]),
    ]
    with watched(chromium, unchanging.url, width=800) as seen:
        for path in paths:
            seen.goto(f"/jobs/{view.name}{path}")
            page_holds(seen, f"{name} {path}")


def test_what_a_file_says_is_not_executed(seen: Watched) -> None:
    """Markup in names and errors is text on the page: no dialog opens, and no element comes of it."""
    opened: list[str] = []

    def alarm(dialog: Dialog) -> None:
        opened.append(dialog.message)
        dialog.dismiss()

    seen.page.on("dialog", alarm)
    for path in ("", "/failures", "/journal", "/checkpoints"):
        seen.goto(f"/jobs/hostile{path}")
        assert seen.page.locator("img").count() == 0
        shown(seen, "<img src=x onerror=alert(2)>")
    assert opened == []


def test_a_page_without_a_job(chromium: Browser, unchanging: PageServer) -> None:
    """A path that leads nowhere says so, and leads back."""
    with watched(chromium, unchanging.url) as seen:
        seen.expected = re.compile("404")
        seen.goto("/jobs/nobody")
        shown(seen, "There is no such job.")
        seen.page.get_by_role("link", name="All jobs", exact=True).click()
        shown(seen, "fraud-scores")


# ── live ───────────────────────────────────────────────────────────────────────────────────────


def test_what_changes_is_shown_without_loading_anew(seen: Watched, server: PageServer) -> None:
    """A job that dies and comes back does so on the open page; scroll position and unfolded parts stay as they are."""
    seen.goto(JOB)
    seen.page.evaluate("window.notLoadedAnew = true")
    seen.page.locator("summary").click()
    seen.page.evaluate("scrollTo(0, 500)")
    at = seen.page.evaluate("scrollY")
    server.show(msgspec.structs.replace(died(), name="page-views", id=healthy().id))
    seen.page.locator(".verdict h2", has_text="Dead").wait_for()
    server.show(later(healthy(), 60, live=live(NOW + 60, rows_per_s=777.0)))
    seen.page.locator(".verdict h2", has_text="Healthy").wait_for()
    shown(seen, "777 rows/s")
    assert seen.page.evaluate("window.notLoadedAnew")
    assert seen.page.locator("details[open]").count() == 1
    assert seen.page.evaluate("scrollY") == at > 0


def test_who_types_is_not_disturbed(seen: Watched, server: PageServer) -> None:
    """What was typed, the place of the cursor and an open dialog outlast a refresh."""
    seen.goto(f"{JOB}/actions")
    seen.page.get_by_role("button", name="Make a savepoint").first.click()
    field = seen.page.locator("dialog[open]").get_by_label("Folder")
    field.fill("backups/friday")
    field.focus()
    with seen.page.expect_response(lambda answer: answer.url.endswith("/actions")):
        server.show(later(healthy(), 3, state=died().state))
    seen.page.get_by_text("so it accepts no actions").wait_for(state="attached")
    assert seen.page.locator("dialog[open]").count() == 1
    assert field.input_value() == "backups/friday"
    assert seen.page.evaluate("document.activeElement.name") == "to"


def test_a_lookup_outlasts_a_refresh(seen: Watched, server: PageServer) -> None:
    """A key that is looked up is found as text, and stays when the page is refreshed."""
    seen.goto(f"{JOB}/state")
    box = seen.page.locator("#lookup-2")
    box.get_by_label("State").first.select_option(label="windows")
    box.locator("form:visible").get_by_label("app").fill("shop & more")
    box.locator("form:visible").get_by_role("button", name="Look it up").click()
    box.get_by_text("<b>12</b>").wait_for()
    box.get_by_text("shop & more").wait_for()
    assert box.get_by_text(str(LARGE), exact=True).count() == 1
    with seen.page.expect_response(lambda answer: answer.url.endswith("/state")):
        server.show(later(healthy(), 3))
    seen.page.wait_for_timeout(50)
    assert box.get_by_text("<b>12</b>").count() == 1
    box.locator("form:visible").get_by_role("button", name="Largest keys").click()
    box.get_by_text("<b>app-1</b>").wait_for()
    box.get_by_text("The lookup is incomplete: only 2,000,000 rows are read.").wait_for()
    assert box.locator("b").count() == 0


def test_times_are_in_the_zone_of_the_reader(chromium: Browser, server: PageServer) -> None:
    """The server writes UTC; the browser shows its own zone, after a refresh too, and says which."""
    context = chromium.new_context(timezone_id="America/New_York")
    page = context.new_page()
    page.goto(f"{server.url}{JOB}/journal")
    page.get_by_text("All times are in your zone, America/New_York.").wait_for()
    for _ in range(2):
        first = page.locator(".story time").first
        said = datetime.fromisoformat(first.get_attribute("datetime") or "")
        here = said.astimezone(ZoneInfo("America/New_York"))
        assert first.inner_text() == f"{here:%Y-%m-%d %H:%M:%S}"
        with page.expect_response(lambda answer: answer.url.endswith("/journal")):
            server.show(later(healthy(), 3))
        page.wait_for_timeout(50)
    context.close()


def test_a_broken_stream_is_said_and_comes_back(seen: Watched, server: PageServer) -> None:
    """Without a connection a banner says since when the numbers are old; when it is back, the page is new by itself."""
    seen.expected = re.compile("503|ERR_|Failed to load resource")
    seen.goto(JOB)
    seen.page.locator("#stream.is-live").wait_for()
    server.cut()
    seen.page.locator("#old").wait_for()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", seen.page.locator("#old-since").inner_text())
    server.show(later(healthy(), 30, live=live(NOW + 30, rows_per_s=888.0)))
    server.heal()
    seen.page.locator("#old").wait_for(state="hidden")
    shown(seen, "888 rows/s")


def test_charts_are_drawn_and_grow(seen: Watched, server: PageServer) -> None:
    """The rates of the journal are drawn, and each refresh adds a point to them."""
    seen.goto(JOB)
    seen.page.locator("#rates canvas").wait_for()
    for second in (1, 2):
        server.show(later(healthy(), second, live=live(NOW + second, rows_per_s=100.0 * second)))
        seen.until(f"JSON.parse(sessionStorage.getItem('rates-{healthy().id}')).length > {second}")
    seen.goto(f"{JOB}/checkpoints")
    assert seen.page.locator(".chart canvas").count() == 2


def test_the_journal_shows_checkpoints_to_who_wants_them(seen: Watched, server: PageServer) -> None:
    """Routine is hidden at first; who asks for it keeps it over a refresh."""
    seen.goto(f"{JOB}/journal")
    assert not seen.page.get_by_text("Checkpoint 5117 was completed").is_visible()
    seen.page.get_by_role("link", name="Show checkpoints").click()
    seen.page.get_by_text("Checkpoint 5117 was completed").wait_for()
    with seen.page.expect_response(lambda answer: answer.url.endswith("/journal?routine=1")):
        server.show(later(healthy(), 3))
    seen.page.wait_for_timeout(50)
    assert seen.page.get_by_text("Checkpoint 5117 was completed").is_visible()
    assert seen.page.get_by_role("link", name="Hide checkpoints").count() == 1


# ── acting ─────────────────────────────────────────────────────────────────────────────────────


def test_an_action_is_confirmed_and_its_outcome_comes_by_itself(seen: Watched, server: PageServer) -> None:
    """Nothing is asked before the dialog was answered; then the outcome is shown, until it is over."""
    seen.goto(f"{JOB}/actions")
    seen.page.get_by_role("button", name="Stop with savepoint").first.click()
    dialog = seen.page.locator("dialog[open]")
    dialog.get_by_text("completes and commits a checkpoint of everything processed").wait_for()
    dialog.get_by_label("Folder").fill("backups/last")
    dialog.get_by_label("Drain").check()
    dialog.get_by_role("button", name="Stop with savepoint").click()
    dialog.locator("input:invalid").wait_for()  # it must be absolute
    assert server.asked == []
    dialog.get_by_label("Folder").fill("/backups/last")
    dialog.get_by_role("button", name="Stop with savepoint").click()
    shown(seen, "Requested. The job accepts it")
    assert server.asked == [("stop", {"savepoint": "true", "to": "/backups/last", "drain": "true"})]
    server.outcome = Outcome(request=server.outcome.request, state="done", facts={"folder": "/backups/last"})
    seen.page.locator("#outcome.good").wait_for()
    shown(seen, "/backups/last")


def test_whoever_does_not_confirm_asks_for_nothing(seen: Watched, server: PageServer) -> None:
    """Do nothing, Escape, and a click beside the dialog all close it."""
    seen.goto(f"{JOB}/actions")
    for close in ("button", "escape", "beside"):
        seen.page.get_by_role("button", name="Cancel the job").first.click()
        dialog = seen.page.locator("dialog[open]")
        dialog.get_by_text("It makes no last checkpoint").wait_for()
        if close == "button":
            dialog.get_by_role("button", name="Do nothing").click()
        elif close == "escape":
            seen.page.keyboard.press("Escape")
        else:
            seen.page.mouse.click(5, 500)
        dialog.wait_for(state="hidden")
    assert server.asked == []


def test_read_only_pages_have_no_actions(chromium: Browser) -> None:
    """Where nothing can be asked, no button and no tab offers it."""
    with PageServer([healthy()], read_only=True).serving() as server, watched(chromium, server.url) as seen:
        seen.goto(JOB)
        assert seen.page.get_by_role("link", name="Actions").count() == 0
        seen.goto(f"{JOB}/actions")
        shown(seen, "read-only")
        assert seen.page.locator("dialog").count() == 1  # that of the keys


# ── keys and colours ───────────────────────────────────────────────────────────────────────────


def test_keys_lead_through_the_pages(seen: Watched) -> None:
    """Two keys go to a page, `?` shows them, and a field takes them as letters."""
    seen.goto("/")
    seen.page.get_by_role("link", name="page-views").click()
    seen.page.locator(".verdict").wait_for()
    seen.loaded()
    for keys, ending in (
        ("gc", f"{JOB}/checkpoints"),
        ("gf", f"{JOB}/failures"),
        ("gs", f"{JOB}/state"),
        ("gh", f"{JOB}/journal"),
        ("ga", f"{JOB}/actions"),
        ("gj", JOB),
        ("go", "/"),
    ):
        for key in keys:
            seen.page.keyboard.press(key)
        seen.page.wait_for_url(f"{seen.url}{ending}")
        seen.loaded()
    seen.page.keyboard.press("?")
    seen.page.locator("#keys[open]").wait_for()
    seen.page.keyboard.press("Escape")
    seen.page.locator("#keys").wait_for(state="hidden")
    seen.goto(f"{JOB}/state")
    seen.page.locator("#lookup-1 input").first.press_sequentially("go?")
    assert seen.page.locator("#lookup-1 input").first.input_value() == "go?"
    assert seen.page.url.endswith("/state")


def test_the_keyboard_reaches_the_content_at_once(seen: Watched) -> None:
    """The first stop is a link over the head of the page; what has the focus is seen."""
    seen.goto(JOB)
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.className") == "skip"
    assert seen.page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    seen.page.keyboard.press("Enter")
    assert seen.page.evaluate("document.activeElement.id") == "main"
    seen.page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert seen.page.evaluate(outline) == "solid"


def test_a_theme_that_was_chosen_stays(seen: Watched) -> None:
    """As the system has it at first; what was chosen holds on the next page, and charts follow."""
    seen.goto(JOB)
    background = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(background)
    seen.page.emulate_media(color_scheme="dark")
    dark = seen.page.evaluate(background)
    assert dark != light
    seen.page.keyboard.press("t")
    assert seen.page.evaluate(background) == light
    seen.goto(f"{JOB}/checkpoints")
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert seen.page.evaluate(background) == light
    seen.page.emulate_media(color_scheme="light")
    seen.page.locator("#theme").click()
    assert seen.page.evaluate(background) == dark
    seen.page.locator(".chart canvas").first.wait_for()
    line = "getComputedStyle(document.querySelector('.chart .u-legend tr:nth-child(2) .u-marker')).borderTopColor"
    assert seen.page.evaluate(line) == "rgb(98, 198, 207)"


def test_pictures_for_the_documentation(chromium: Browser, unchanging: PageServer, tmp_path: Path) -> None:
    """A page is taken wide and narrow; the newest completed checkpoint is found by itself."""
    taken = take_pictures(chromium, unchanging.url, "page-views", tmp_path, only="checkpoint")
    assert [file.name for file in taken] == ["checkpoint.png", "checkpoint-narrow.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in taken)
