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

    path: str = "/"
    """The path of this page; `twin` is the path of its JSON."""
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
        return f"{self.path}{self.query}"


def slug(view: JobView) -> str:
    """The name of a job in a path: its name, or its id if another job has the same name."""
    return view.name if view.id == job_id(view.name) else view.id


def job_path(view: JobView, page: str = "") -> str:
    """The path of a job, or of one of its pages: `checkpoints`, `failures`, `state`, `actions`, `journal`, `events`."""
    return f"/jobs/{quote(slug(view), safe='')}{f'/{page}' if page else ''}"


def checkpoint_path(view: JobView, one: CheckpointView) -> str:
    """The page of one checkpoint. Two runs may have completed the same number, so the run is part of the path."""
    return job_path(view, f"checkpoints/{one.checkpoint}-r{one.run}")


def lookup_path(view: JobView, operator: str, state: str, **asked: str) -> str:
    """The look-up of a key, as a part of a page; with `.json` instead of `.html`, as JSON."""
    of = f"state/{quote(operator, safe='')}/{quote(state, safe='')}.html"
    return job_path(view, of) + (f"?{urlencode(asked)}" if asked else "")


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
    "job_path": job_path,
    "checkpoint_path": checkpoint_path,
    "lookup_path": lookup_path,
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
    """Render one page from its `values`; every page also has its `frame`."""
    return environment().get_template(template).render(frame=frame, **values)
