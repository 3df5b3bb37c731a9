"""The pages of the dashboard: whatever a job is like, each can be shown, leads nowhere else, and runs nothing that came from a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from jinja2 import UndefinedError

import penstock.dashboard
from builders.job_views import (
    HOSTILE,
    JOBS,
    LONG,
    NOW,
    died,
    failed,
    healthy,
    held,
    hostile,
    late,
    live,
    nothing_at_all,
    restarting,
)
from builders.parsed_pages import FRAME, Parsed
from penstock.cli.state_tables import moment as state_moment
from penstock.dashboard import json_models, pages
from penstock.dashboard.pages import timings
from penstock.dashboard.pages.render import PageFrame, environment
from penstock.requests.request_client import Outcome
from penstock.status.events import (
    CheckpointCommitted,
    Event,
    JobEnded,
    ProcessDied,
    RunFailed,
    RunStarted,
    SavepointMade,
    TasksRepeated,
)
from penstock.status.job_history import failures
from penstock.status.observer import Observer
from penstock.status.sentences import collapsed, event_time_left, sentence
from penstock.status.stored_state import FoundRows, KeyRows, LargestKeys
from penstock.status.view import JobView, RunView
from penstock.wording import NOTHING, event_moment, watermark_moment

STATIC = Path(penstock.dashboard.__file__).parent / "static"
REQUEST = "ab" * 16
KNOWN_PATHS = re.compile(
    r"/(here(\.json)?|events|login|logout|static/.+|"
    r"jobs/[^/]+(/(batches|savepoints(/delete)?|checkpoints(/\d+-r\d+)?|failures|state(/[^/]+/[^/]+\.html)?|journal|actions(/\w+)?|events))?)?"
)


def found_rows(rows: tuple[dict[str, Any], ...]) -> FoundRows:
    """What a look-up has found."""
    return FoundRows(
        operator="counts",
        state="seen",
        kind="map",
        checkpoint=3,
        run=1,
        columns=dict.fromkeys(rows[0], "string"),
        looked_at=12_000,
        complete=True,
        key={},
        rows=rows,
    )


def pages_of(view: JobView, frame: PageFrame = FRAME) -> Iterator[tuple[str, str]]:
    """All pages of a job, by name."""
    yield "job", pages.job(view, frame)
    yield "batches", pages.batches(view, frame)
    yield "checkpoints", pages.checkpoints(view, frame)
    for one in (*view.checkpoints[:3], *(one for one in view.checkpoints if one.reason)):
        yield f"checkpoint {one.checkpoint}", pages.checkpoint(view, one, frame)
    yield "failures", pages.failures(view, frame)
    yield "journal", pages.journal(view, frame)
    yield "state", pages.state(view, held(), frame)
    yield "no state", pages.state(view, None, frame)
    yield "savepoints", pages.savepoints(view, frame)
    yield "a savepoint", pages.savepoints(view, frame, HOSTILE, HOSTILE)
    yield "actions", pages.actions(view, None, frame)
    yield (
        "asked",
        pages.actions(
            view, Outcome(request=REQUEST, state="failed", error=HOSTILE, facts={HOSTILE: HOSTILE}), frame
        ),
    )


def every_page() -> Iterator[tuple[str, str]]:
    """All pages of all jobs, and those of no job."""
    for name, maker in JOBS.items():
        for page, html in pages_of(maker()):
            yield f"{name}: {page}", html
    yield "overview", pages.overview([maker() for maker in JOBS.values()], FRAME)
    yield "overview of nothing", pages.overview([], FRAME)
    yield "login", pages.login(FRAME, HOSTILE, HOSTILE)
    yield "problem", pages.problem(404, HOSTILE, FRAME)


@pytest.fixture(scope="module")
def parsed() -> dict[str, Parsed]:
    return {name: Parsed(html) for name, html in every_page()}


# ── of every page ──────────────────────────────────────────────────────────────────────────────


def test_every_element_is_closed(parsed: dict[str, Parsed]) -> None:
    """A page is whole: each element is closed by its own end, and none stays open."""
    assert {name: (page.wrong, page.open) for name, page in parsed.items() if page.wrong or page.open} == {}


def test_nothing_that_was_read_becomes_markup(parsed: dict[str, Parsed]) -> None:
    """A text that looks like HTML, or like a template, is shown as it is."""
    for name, page in parsed.items():
        assert not page.all("img"), name
        assert all(script["src"].startswith("/static/") for script in page.all("script")), name
        assert not [one for _, attributes in page.elements for one in attributes if one.startswith("on")], (
            name
        )
        assert "49" not in re.findall(r"&(\d\d)\b", page.text), name
    shown = [name for name, page in parsed.items() if HOSTILE in page.text]
    assert {
        "hostile: job",
        "hostile: failures",
        "hostile: journal",
        "hostile: asked",
        "overview",
        "login",
    } <= {*shown}


def test_the_strictest_policy_holds(parsed: dict[str, Parsed]) -> None:
    """No page has a style or a script of its own, so `default-src 'self'` refuses none of it."""
    for name, page in parsed.items():
        assert not page.all("style"), name
        assert not [attributes for _, attributes in page.elements if "style" in attributes], name
        assert all("src" in script for script in page.all("script")), name


def test_no_page_leads_elsewhere(parsed: dict[str, Parsed]) -> None:
    """Every address is a path of this server that is known, or a place on the page."""
    for name, page in parsed.items():
        assert page.addresses, name
        for address in page.addresses:
            parts = urlsplit(address)
            assert not parts.scheme, (name, address)
            assert not parts.netloc, (name, address)
            assert address.startswith("#") or KNOWN_PATHS.fullmatch(parts.path), (name, address)


def test_every_file_of_a_page_is_in_the_package(parsed: dict[str, Parsed]) -> None:
    """What a page loads is there."""
    wanted = {
        address for page in parsed.values() for address in page.addresses if address.startswith("/static/")
    }
    assert {"/static/penstock.css", "/static/vendor/htmx.min.js"} <= wanted
    assert [address for address in wanted if not (STATIC / address.removeprefix("/static/")).is_file()] == []


def test_no_file_asks_another_host() -> None:
    """No style or script of the package names an address that a browser would open."""
    for file in STATIC.rglob("*"):
        if file.suffix in (".css", ".js"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(
                r"url\(\s*['\"]?(https?:)?//|@import|sourceMappingURL|importScripts", text
            ), file.name


def test_ids_are_used_once(parsed: dict[str, Parsed]) -> None:
    """An id names one element, so that a label, a dialog and a refresh find the right one."""
    for name, page in parsed.items():
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert sorted(ids) == sorted(set(ids)), name


def test_everything_has_a_name(parsed: dict[str, Parsed]) -> None:
    """Who does not see a page is told what is on it: one heading of the first rank, and labels that lead somewhere."""
    for name, page in parsed.items():
        ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
        assert len(page.all("h1")) == 1, name
        assert page.all("html")[0]["lang"] == "en", name
        for _, attributes in page.elements:
            for reference in ("for", "aria-labelledby", "aria-describedby", "data-opens"):
                assert attributes.get(reference, next(iter(ids))) in ids, (name, reference, attributes)


def test_every_address_is_of_this_server() -> None:
    """All links, forms and files of a page begin at the root of the server."""
    for name, html in pages_of(healthy(), PageFrame(path="/x", twin="/x.json")):
        strange = [one for one in Parsed(html).addresses if not one.startswith(("/", "#"))]
        assert not strange, name


def test_a_name_that_nobody_gives_is_an_error() -> None:
    """A template that asks for something that is not there fails, and shows no hole."""
    with pytest.raises(UndefinedError, match="nowhere"):
        environment().from_string("{{ nowhere }}").render()


# ── of single pages ────────────────────────────────────────────────────────────────────────────


def test_the_overview_shows_first_who_needs_somebody() -> None:
    """Jobs in trouble come before those that are well, and these before those that have ended."""
    html = pages.overview([JOBS[name]() for name in ("finished", "healthy", "died", "restarting")], FRAME)
    order = [
        html.index(f'title="{name}"')
        for name in ("fraud-scores", "enrichment", "page-views", "nightly-backfill")
    ]
    assert order == sorted(order)


def test_an_empty_overview_says_what_to_do() -> None:
    """Where there is no job, the page says how there comes to be one."""
    assert "penstock demo" in Parsed(pages.overview([], FRAME)).text


def test_two_jobs_of_one_name_lead_to_two_pages() -> None:
    """A job whose name another one has is reached by its id."""
    one = healthy()
    other = msgspec.structs.replace(one, id="f" * 32, place="elsewhere")
    addresses = Parsed(pages.overview([one, other], FRAME)).addresses
    assert {"/jobs/page-views", f"/jobs/{'f' * 32}"} <= {*addresses}


def test_a_late_checkpoint_is_said_in_words() -> None:
    """Late is a word on the page, and not only a colour."""
    text = Parsed(pages.job(late(), FRAME)).text
    assert "No checkpoint was completed for 1 min 32 s; the interval is 10 s." in text
    assert "late" in text
    assert "The sink ledger does not take commits" in text


def test_a_dead_job_says_what_to_do() -> None:
    """The first thing that is read of a dead job is what follows."""
    text = Parsed(pages.job(died(), FRAME)).text
    assert "Start the program again. The job continues from checkpoint 311." in text
    assert "Fix the cause and start the program again" in Parsed(pages.job(failed(), FRAME)).text


def test_a_failure_shows_its_root_first_and_what_it_cost() -> None:
    """Root cause, decision, restored checkpoint, silence and rows done again are on the page, in this order of reading."""
    text = Parsed(pages.failures(healthy(), FRAME)).text
    told = [
        "ValueError: could not convert",
        "28 s",
        "118,233",
        "checkpoint 4709",
        "attempt 2",
        "Job aborted due to stage failure",
    ]
    assert [text.index(words) for words in told] == sorted(text.index(words) for words in told)


def test_a_failure_that_came_again_is_shown_once() -> None:
    """With how often and what all of it cost; each time can be opened."""
    page = Parsed(pages.failures(restarting(), FRAME))
    assert len([one for element, one in page.elements if element == "article"]) == 1
    assert "3 times" in page.text
    assert "9,006" in page.text
    assert "2 earlier times with the same cause" in page.text
    assert "run 1: nothing was processed for" in " ".join(page.text.split())


def test_more_failures_than_a_page_takes_are_left_to_the_json() -> None:
    """Each is counted once, and the newest of them are shown."""
    newest = healthy().failures[0]
    many = [
        msgspec.structs.replace(newest, at=NOW - n, run=500 - n, root=f"{'x' * (1 + n // 30)}")
        for n in range(140)
    ]
    page = Parsed(pages.failures(msgspec.structs.replace(healthy(), failures=tuple(many)), FRAME))
    assert len([one for element, one in page.elements if element == "article"]) == 4
    assert "40 older failures are in the JSON" in " ".join(page.text.split())


def test_a_slow_subtask_is_marked() -> None:
    """The one subtask that held a checkpoint up comes first and has a mark, the others have none."""
    view = healthy()
    one = next(one for one in view.checkpoints if one.checkpoint % 17 == 0)
    page = Parsed(pages.checkpoint(view, one, FRAME))
    assert [attributes for attributes in page.all("tr") if attributes.get("class") == "slow"] == [
        {"class": "slow"}
    ]
    assert "priced-5 slow" in page.text


def test_what_cannot_be_done_is_not_offered() -> None:
    """Read-only pages have no form but the way out, and buttons of a job that does not run do nothing."""
    read_only = PageFrame(path="/x", read_only=True, logged_in=True)
    for name, html in pages_of(healthy(), read_only):
        acting = [form for form in Parsed(html).all("form") if form.get("method") == "post"]
        assert [form["action"] for form in acting] == ["/logout"], name
        assert "/jobs/page-views/actions" not in Parsed(html).addresses, name
    opening = [one for one in Parsed(pages.actions(died(), None, FRAME)).all("button") if "data-opens" in one]
    assert len(opening) == 5
    assert all("disabled" in one for one in opening)


def test_a_cancel_that_deletes_wants_the_name_typed() -> None:
    """Where cancelling deletes everything, the dialog says so and takes no for an answer until the name is there."""
    plan = healthy().plan
    assert plan is not None
    told = msgspec.structs.replace(plan.settings, on_cancel="delete-on-cancellation")
    deleting = msgspec.structs.replace(healthy(), plan=msgspec.structs.replace(plan, settings=told))
    page = Parsed(pages.actions(deleting, None, FRAME))
    assert "This cannot be undone" in page.text
    typed = [one for one in page.all("input") if "pattern" in one and one.get("name") != "to"]
    assert [(re.fullmatch(one["pattern"], "page-views") is not None, "required" in one) for one in typed] == [
        (True, True)
    ]
    assert "This cannot be undone" not in Parsed(pages.actions(healthy(), None, FRAME)).text


@pytest.mark.parametrize(
    ("state", "words", "goes_on"),
    [
        ("waiting", "Requested", True),
        ("under way", "accepted it", True),
        ("done", "Done", False),
        ("failed", "It failed", False),
        ("unknown", "This request is unknown", False),
    ],
)
def test_the_outcome_of_a_request_is_followed_until_it_is_over(state: str, words: str, goes_on: bool) -> None:
    """A page asks again as long as something may come, and for the same request."""
    page = Parsed(pages.actions(healthy(), Outcome(request=REQUEST, state=state), FRAME))
    assert words in page.text
    assert any("data-waiting" in attributes for _, attributes in page.elements) == goes_on
    assert f"/here?request={REQUEST}" in page.addresses


@pytest.mark.parametrize("changes", [{"plan": None}, {"live": None}, {"plan": None, "live": None}])
def test_pages_without_plan_or_live(changes: dict[str, None]) -> None:
    """A job that has not said yet what it is, or what it does, has all its pages."""
    view = msgspec.structs.replace(healthy(), **changes)
    for name, html in pages_of(view):
        assert "page-views" in Parsed(html).text, name


def test_long_names_and_many_subtasks_are_cut_with_the_whole_name_at_hand() -> None:
    """What is too long is shortened on the page, and is there in full as a title."""
    titles = [attributes.get("title", "") for _, attributes in Parsed(pages.job(hostile(), FRAME)).elements]
    assert LONG in titles


@pytest.mark.parametrize("maker", [healthy, nothing_at_all, died])
def test_a_page_is_the_same_for_the_same_view(maker: Callable[[], JobView]) -> None:
    """Nothing but the view and what surrounds it decides, so a page can be kept and given to many."""
    assert dict(pages_of(maker())) == dict(pages_of(maker()))


def test_while_a_job_restarts_nothing_old_is_shown_as_present() -> None:
    """Neither on the overview nor on its page: what lay in the sources has its time, and there is no rate."""
    for html in (pages.overview([restarting()], FRAME), pages.job(restarting(), FRAME)):
        page = " ".join(Parsed(html).text.split())
        assert "14.3 k rows as of 10:52:43 : no run is up" in page
        assert "rows/s" not in page
        assert "The job waits for rows" not in page


def test_rows_that_are_not_counted_one_by_one_are_marked() -> None:
    """In the table of parts, with the reason as a title, and below the subtasks of a checkpoint."""
    marked = [
        attributes["title"]
        for _, attributes in Parsed(pages.job(healthy(), FRAME)).elements
        if "aggregated" in attributes.get("class", "")
    ]
    assert len(marked) == 1
    assert "one row for each key of a batch and task" in marked[0]
    page = Parsed(pages.checkpoint(healthy(), healthy().checkpoints[0], FRAME)).text
    assert "Rows of views-per-minute: counted after Spark" in page


def test_of_a_job_that_ended_rates_are_not_shown_as_present() -> None:
    """What a dead job said last of its speed is no speed."""
    ended = msgspec.structs.replace(died(), live=live(at=NOW - 7300, rows_per_s=777.0))
    assert "777 rows/s" not in Parsed(pages.job(ended, FRAME)).text


def test_every_digit_and_every_kind_of_value_is_found() -> None:
    """Numbers of 64 bits, values inside of maps, null, and a text that says null are shown as they are stored."""
    row = {"n": 2**63 - 1, "of": {"m": [2**53 + 1]}, "none": None, "text": "null", "odd": "NaN", "zero": -0.0}
    hostile_rows = found_rows(({HOSTILE: HOSTILE, "of": {HOSTILE: [HOSTILE]}},))
    assert HOSTILE not in pages.found(hostile_rows)
    html = pages.found(found_rows((row,)))
    shown = Parsed(html)
    for text in ("9223372036854775807", '{"m":[9007199254740993]}', "NaN", "-0.0"):
        assert text in shown.texts
    assert html.count("<code>null</code>") == 1
    assert html.count('<span class="small">null</span>') == 1


def test_the_largest_keys_are_more_than_one() -> None:
    """The button asks for a list."""
    asked = [
        one["data-largest"]
        for one in Parsed(pages.state(healthy(), held(), FRAME)).all("button")
        if "data-largest" in one
    ]
    assert asked
    assert all(one.endswith("?largest=20") for one in asked)
    facts = {
        name: getattr(found_rows(({"app": "a"},)), name)
        for name in ("operator", "state", "kind", "checkpoint", "run", "columns")
    }
    keys = tuple(KeyRows(key={"app": f"app-{n}"}, rows=2**60 + n) for n in range(3))
    for known in (keys, ()):
        largest = LargestKeys(
            **facts, keys=known, looked_at=9, complete=False, why="reading ends after 9 rows"
        )
        shown = Parsed(pages.found(largest))
        assert [text for text in shown.texts if text.startswith("app-")] == [one.key["app"] for one in known]
        assert "The lookup is incomplete: reading ends after 9 rows." in shown.text
    assert (
        "1,152,921,504,606,846,978"
        in Parsed(pages.found(LargestKeys(**facts, keys=keys, looked_at=9, complete=True))).text
    )


def committed(number: int) -> CheckpointCommitted:
    return CheckpointCommitted(at=NOW - 5000 + number, run=1, checkpoint=number, commit_ms=1.0)


def test_what_happened_is_not_hidden_behind_checkpoints() -> None:
    """However many checkpoints came after it, a failure is on the first page; with each checkpoint, all is there page by page."""
    ended = JobEnded(at=NOW - 9000, run=1, how="failed", error="E", why="the disk is full")
    view = msgspec.structs.replace(
        healthy(), events=(*(committed(number) for number in reversed(range(1000))), ended)
    )
    assert "the disk is full" in Parsed(pages.journal(view, FRAME)).text
    assert "the disk is full" in Parsed(pages.job(view, FRAME)).text
    assert "the disk is full" not in Parsed(pages.journal(view, FRAME, routine=1)).text
    numbers: list[str] = []
    for page in range(1, 12):
        shown = Parsed(pages.journal(view, FRAME, page=page, routine=1))
        numbers += re.findall(r"of checkpoint (\d+)", shown.text)
    assert "the disk is full" in shown.text
    assert [int(number) for number in numbers] == list(reversed(range(1000)))
    assert "page=11" not in "".join(shown.addresses)


def test_what_comes_again_and_again_is_said_once() -> None:
    """Equal events one after the other, and the same few in turn, are one sentence each, with how often and since when."""
    repeated = [
        TasksRepeated(at=NOW - n, run=1, batch=90 - n, operator="charge", attempts=2, why=f"pid {n}")
        for n in range(8)
    ]
    turns: list[Event] = []
    for n in range(5):
        turns.append(RunStarted(at=NOW - 100 - n, run=9 - n, host="h", pid=40 + n))
        turns.append(
            RunFailed(at=NOW - 100.5 - n, run=8 - n, error="E", why="down", strategy="s", restarts=True)
        )
    other = SavepointMade(at=NOW - 200, run=1, checkpoint=3, folder="/a", took_s=1.0)
    said = collapsed([sentence(event) for event in (*repeated, *turns, other)])
    assert [one.times for one in said] == [8, 5, 5, 1]
    assert said[0].first_at == NOW - 7
    page = Parsed(pages.journal(msgspec.structs.replace(healthy(), events=(*repeated, *turns, other)), FRAME))
    assert "8 times since" in page.text


@pytest.mark.parametrize("behind_s", [0.0, 500.0])
def test_a_driver_that_was_killed_is_told_of(behind_s: float) -> None:
    """What happened says so between the two starts, also where the next driver's clock is behind; what a supervisor saw is not said twice."""
    runs = (
        RunView(run=2, how="running", started_at=NOW - 90 - behind_s, host="a", pid=12),
        RunView(run=1, how="did not say", started_at=NOW - 200, ended_at=NOW - 100, host="a", pid=11),
    )
    first = RunStarted(at=NOW - 200, run=1, host="a", pid=11)
    second = RunStarted(at=NOW - 90 - behind_s, run=2, host="a", pid=12)

    def said(*events: Event) -> list[str]:
        view = msgspec.structs.replace(
            healthy(), events=events[::-1], runs=runs, failures=failures(events, runs, {})
        )
        page = Parsed(pages.journal(view, FRAME)).text
        assert "2 times" not in page
        assert page.count("The driver (pid 11") == 1
        deaths = [
            *json_models.journal(view)["deaths"],
            *(one for one in events if isinstance(one, ProcessDied)),
        ]
        assert len(deaths) == 1
        return re.findall(
            r"Run \d started|The driver \(pid 11 on a\) ended without reporting a reason|signal SIGKILL", page
        )

    assert said(first, second) == [
        "Run 2 started",
        "The driver (pid 11 on a) ended without reporting a reason",
        "Run 1 started",
    ]
    seen = ProcessDied(at=NOW - 99, run=0, how="signal SIGKILL", restarts=True, decision="again", pid=11)
    assert said(first, seen, second) == ["Run 2 started", "signal SIGKILL", "Run 1 started"]


def test_drivers_that_were_killed_before_they_told_anything() -> None:
    """Each is told of, newest first, also where the journal is empty, and in the JSON of the page too."""
    runs = tuple(
        RunView(run=run, how="did not say", ended_at=NOW - 100 + run, host=host, pid=run)
        for run, host in ((2, "two"), (1, "one"))
    )
    view = msgspec.structs.replace(healthy(), events=(), runs=runs, failures=failures((), runs, {}))
    page = Parsed(pages.journal(view, FRAME)).text
    assert re.findall(r"on (\w+)\) ended without reporting a reason", page) == ["two", "one"]
    assert [one.run for one in json_models.journal(view)["deaths"]] == [2, 1]


def test_a_uid_is_written_as_the_program_has_it() -> None:
    """A failure that begins with the name of a subtask keeps its small letters."""
    failure = msgspec.structs.replace(healthy().failures[0], root="charge-0: ValueError: no", why="w")
    view = msgspec.structs.replace(healthy(), failures=(failure,))
    for html in (pages.failures(view, FRAME), pages.job(view, FRAME)):
        assert "charge-0: ValueError: no" in html
        assert "Charge-0" not in html


def test_a_watermark_is_shown_as_everywhere_else() -> None:
    """Page, log and tables of a shell write event time with the same digits, so that no timer seems to be missed."""
    at = datetime(2026, 11, 17, 12, 0, 0, 249_999, UTC)
    text = event_moment(at)
    assert text == "2026-11-17 12:00:00.25"
    assert watermark_moment(round(at.timestamp() * 1_000_000)) == text
    assert state_moment(at) == text
    observer = Observer()
    observer.event_time({"counts": at}, {}, {})
    assert f"watermark {text} UTC" in event_time_left("views", observer.progress, drainable=False)
    assert watermark_moment(2**62) == NOTHING


def test_batches_show_input_against_processing() -> None:
    """Each of the newest batches with both rates, its duration and where the time went."""
    page = Parsed(pages.batches(healthy(), FRAME))
    assert "5117" in page.texts
    assert "950 rows/s" in page.texts
    assert [text for text in page.texts if text == "1.2 s"]
    assert len(page.all("tr")) == 41
    (chart,) = (one["data-chart"] for one in page.all("div") if "data-chart" in one)
    assert [one["label"] for one in msgspec.json.decode(chart)["series"]] == ["input", "processing"]


def test_batches_show_where_their_time_went() -> None:
    """Legend, bars and columns have the same phases; a job whose batches are planned anew says why, as its JSON does."""
    view = healthy()
    text = pages.batches(view, FRAME)
    assert [label.name for label in timings.BATCH_LEGEND] == list(live().recent_batches[0].phases)
    for name in ("look", "plan", "tasks", "state", "barrier", "log", "other"):
        assert text.count(f'<rect class="phase-{name}"') == 41
        assert f">{name.capitalize()}</th>" in text
    assert "880 ms" in text
    assert "beside the next batch, the last time in" in text
    assert "planned anew" not in text
    anew = msgspec.structs.replace(view, live=live(planned_anew="it takes a <sample>"))
    assert "it takes a &lt;sample&gt;." in pages.batches(anew, FRAME)
    assert json_models.batches(anew)["planned_anew"] == "it takes a <sample>"
