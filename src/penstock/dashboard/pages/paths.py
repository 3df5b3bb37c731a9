"""Where each page is. The one place that knows, for pages and for whoever serves them. Pure."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from penstock.status.jobs import job_id
from penstock.status.view import CheckpointView, JobView


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
