"""Renders templates as HTML, with the frame of every page. The dashboard's process.

All values are escaped, and an undefined name in a template is an error. Jinja is imported with the first page, because only the extra `ui`
installs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from penstock import wording
from penstock.dashboard.pages import timings
from penstock.lazy_imports import optional_package
from penstock.status.health import concerns, verdict
from penstock.status.jobs import job_id
from penstock.status.view import CheckpointView, JobView
from penstock.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class PageFrame:
    """The frame of a page. Equal frames with equal data give equal pages, so the page can be cached."""

    base: str = ""
    """The prefix of every link, without a final slash; '' for the root."""
    path: str = "/"
    """The path of this page, without `base`; `twin` is the path of its JSON."""
    query: str = ""
    """The query of the page, such as `?page=2` of a long list."""
    twin: str = "/index.json"
    read_only: bool = False
    """The page has no buttons for actions."""
    logged_in: bool = False
    """The page has a logout button."""
    problems: tuple[str, ...] = ()
    """The problems of storages, for people: one of them may not answer."""

    @property
    def here(self) -> str:
        """A link to this page with its query."""
        return f"{self.base}{self.path}{self.query}"

    def at(self, path: str) -> str:
        """A link to a path of this server."""
        return f"{self.base}{path}"


def slug(view: JobView) -> str:
    """The name of a job in a path: its name, or its id if another job has the same name."""
    return view.name if view.id == job_id(view.name) else view.id


class Paths:
    """All paths of one server, with their prefix."""

    def __init__(self, base: str) -> None:
        self._base = base

    @property
    def overview(self) -> str:
        """The page of all jobs."""
        return f"{self._base}/"

    @property
    def all_events(self) -> str:
        """The event stream of all jobs."""
        return f"{self._base}/events"

    @property
    def login(self) -> str:
        """The path of the login page."""
        return f"{self._base}/login"

    @property
    def logout(self) -> str:
        """The path of the logout action."""
        return f"{self._base}/logout"

    def static(self, name: str) -> str:
        """The path of a static file."""
        return f"{self._base}/static/{name}"

    def job(self, view: JobView, page: str = "") -> str:
        """One job, or one of its pages: `checkpoints`, `failures`, `state`, `actions`, `journal`, `events`."""
        return f"{self._base}/jobs/{quote(slug(view), safe='')}{f'/{page}' if page else ''}"

    def checkpoint(self, view: JobView, one: CheckpointView) -> str:
        """The page of one checkpoint. Two runs may have completed the same number, so the run is part of the path."""
        return self.job(view, f"checkpoints/{one.checkpoint}-r{one.run}")

    def action(self, view: JobView, kind: str) -> str:
        """The path of an action."""
        return self.job(view, f"actions/{kind}")

    def outcome(self, view: JobView, request: str) -> str:
        """The outcome of a request, as JSON."""
        return self.job(view, f"requests/{quote(request, safe='')}.json")

    def lookup(self, view: JobView, operator: str, state: str, **asked: str) -> str:
        """The lookup of a key, as a part of a page; with `.json` instead of `.html`, as JSON."""
        of = f"state/{quote(operator, safe='')}/{quote(state, safe='')}.html"
        return self.job(view, of) + (f"?{urlencode(asked)}" if asked else "")


_FILTERS = {
    "ago": wording.ago,
    "behind": wording.behind,
    "capital": wording.capital,
    "clock_time": wording.clock_time,
    "compact": wording.compact,
    "concerns": concerns,
    "duration": wording.lasted,
    "lasting": wording.lasting,
    "machine_time": wording.machine_time,
    "milliseconds": wording.milliseconds,
    "moment": wording.utc_moment,
    "near": wording.near,
    "rate": wording.rate,
    "shortened": wording.shortened,
    "size": wording.size,
    "verdict": verdict,
    "watermark_moment": wording.watermark_moment,
}
_GLOBALS: dict[str, Any] = {
    "counted": wording.counted,
    "legend": timings.LEGEND,
    "nothing": wording.NOTHING,
    "counted_behind": "Counted after Spark's partial aggregation: one row for each key of a batch and task, fewer than were read",
    "version": __version__,
}


@cache
def environment() -> Environment:
    """The Jinja environment of all pages."""
    jinja2 = optional_package("jinja2", needed_by="the dashboard", extra="ui")
    made: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("penstock.dashboard.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(_FILTERS)
    made.globals.update(_GLOBALS)
    return made


def render(template: str, frame: PageFrame, **values: Any) -> str:
    """Render one page from its `values`; every page also has `frame` and `paths`."""
    return environment().get_template(template).render(frame=frame, paths=Paths(frame.base), **values)
