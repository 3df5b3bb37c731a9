"""Templates into HTML. Everything that is put into one is escaped, and a name that a template uses and nobody gives is an error.

Where the dashboard runs. Jinja is imported with the first page: without the extra `ui` there is none.

The frame around every page: where it is, who reads it, and what may be done from it. Data only; the dashboard's process.

The functions of `penstock.dashboard.pages` take what they show and a `PageFrame`, and return HTML. They read nothing themselves.
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
    """The same for all parts of one page. Two equal ones around one view give one page: it may be kept and given to many."""

    base: str = ""
    """What every link begins with, without a slash at its end: '' where the server is at the root."""
    path: str = "/"
    """The path of this page, without `base`: its JSON twin is at `twin`."""
    query: str = ""
    """What follows the path: which part of a long list is shown, `?page=2`."""
    twin: str = "/index.json"
    read_only: bool = False
    """No action can be asked for here: no button for one is shown."""
    logged_in: bool = False
    """Somebody has given the token: `POST {base}/logout` ends that."""
    problems: tuple[str, ...] = ()
    """What is wrong with the storages that are looked at, for people: one of them may not answer."""

    @property
    def here(self) -> str:
        """A link to this page as it is shown."""
        return f"{self.base}{self.path}{self.query}"

    def at(self, path: str) -> str:
        """A link to a path of this server."""
        return f"{self.base}{path}"


def slug(view: JobView) -> str:
    """How a job is called in a path: by its name, or by its id where another job that is shown has the same name."""
    return view.name if view.id == job_id(view.name) else view.id


class Paths:
    """All paths of one server, each with what stands before it."""

    def __init__(self, base: str) -> None:
        self._base = base

    @property
    def overview(self) -> str:
        """All jobs."""
        return f"{self._base}/"

    @property
    def all_events(self) -> str:
        """The stream that says when something about any job is new."""
        return f"{self._base}/events"

    @property
    def login(self) -> str:
        """Where a token is given."""
        return f"{self._base}/login"

    @property
    def logout(self) -> str:
        """Where it is given back."""
        return f"{self._base}/logout"

    def static(self, name: str) -> str:
        """A file that pages need."""
        return f"{self._base}/static/{name}"

    def job(self, view: JobView, page: str = "") -> str:
        """One job, or one of its pages: `checkpoints`, `failures`, `state`, `actions`, `journal`, `events`."""
        return f"{self._base}/jobs/{quote(slug(view), safe='')}{f'/{page}' if page else ''}"

    def checkpoint(self, view: JobView, one: CheckpointView) -> str:
        """One checkpoint. Two runs may have completed the same number, so the run is part of it."""
        return self.job(view, f"checkpoints/{one.checkpoint}-r{one.run}")

    def action(self, view: JobView, kind: str) -> str:
        """Where the job is asked for something."""
        return self.job(view, f"actions/{kind}")

    def outcome(self, view: JobView, request: str) -> str:
        """What has become of that, as JSON."""
        return self.job(view, f"requests/{quote(request, safe='')}.json")

    def lookup(self, view: JobView, operator: str, state: str, **asked: str) -> str:
        """Where a key is looked up, as a part of a page; with `.json` instead of `.html`, as JSON."""
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
    "counted_behind": "Counted behind Spark's own partial aggregation: one row for each key of a batch and task, fewer than were read",
    "version": __version__,
}


@cache
def environment() -> Environment:
    """The templates of this package, as all pages use them."""
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
    """One page. `values` are what it shows; all pages have `frame` and `paths`."""
    return environment().get_template(template).render(frame=frame, paths=Paths(frame.base), **values)
