"""The frame around every page: where it is, who reads it, and what may be done from it. Data only; the dashboard's process.

The functions of `penstock.dashboard.pages` take what they show and a `PageFrame`, and return HTML. They read nothing themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


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
