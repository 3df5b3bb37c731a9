"""How many rows lie unread in the sources of a job, and whether that is so now or was so once. Pure; wherever somebody looks."""

from __future__ import annotations

import msgspec

from penstock.journal.live import SourceLive
from penstock.view.model import JobView


class Behind(msgspec.Struct, frozen=True):
    """Rows, None where nobody knows."""

    rows: int | None = None
    as_of: float = 0.0
    """When it was found out by a run that is over; 0: the present run says so."""

    @property
    def now(self) -> int | None:
        """The rows, unless they are those of a run that is over."""
        return None if self.as_of else self.rows


def source_behind(view: JobView, source: SourceLive) -> Behind:
    """Of one source. A run that has only just come up has not looked yet: Spark tells of a batch behind its end."""
    if source.behind is None or view.live is None:
        return Behind()
    is_old = not view.is_up or source.looked_at < view.live.up_since
    return Behind(source.behind, (source.looked_at or view.live.at) if is_old else 0.0)


def total_behind(view: JobView) -> Behind:
    """Of all sources of a job that is alive; of none where one cannot say it. As old as the oldest of them."""
    if view.live is None or not view.state.is_alive:
        return Behind()
    every = [source_behind(view, source) for source in view.live.sources.values()]
    known = [one.rows for one in every if one.rows is not None]
    if not every or len(known) < len(every):
        return Behind()
    return Behind(sum(known), min((one.as_of for one in every if one.as_of), default=0.0))
