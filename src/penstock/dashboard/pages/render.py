"""Templates into HTML. Everything that is put into one is escaped, and a name that a template uses and nobody gives is an error.

Where the dashboard runs. Jinja is imported with the first page: without the extra `ui` there is none.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from penstock import wording
from penstock.dashboard.page_frame import PageFrame
from penstock.dashboard.pages import phases
from penstock.dashboard.pages.paths import Paths
from penstock.lazy_imports import optional_package
from penstock.status.health import concerns, verdict
from penstock.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

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
    "legend": phases.LEGEND,
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
