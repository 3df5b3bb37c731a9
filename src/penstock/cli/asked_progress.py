"""What a job that was asked for something says of how far it is, as far as somebody who waits can see it. Driver; no Spark.

The job writes it into its live record. On a terminal it is a line that is drawn over itself; elsewhere each new thing is said once.
"""

from __future__ import annotations

import typer

from penstock.cli.printing import in_brief, visible
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.ids import RunId
from penstock.ownership.claim import newest_run
from penstock.progress_display import Line
from penstock.status.journal_files import read_live
from penstock.storage import Storage

LOOK_S = 1.0


class AskedProgress:
    """Of one request. To be closed."""

    def __init__(self, storage: Storage, line: Line | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._storage = storage
        self._line = line
        self._clock = clock
        self._next_s = clock.monotonic() + LOOK_S
        self._said = ""

    def tell(self, text: str) -> None:
        """Something that happened: it stays."""
        self.close()
        typer.echo(visible(text), err=True)

    def look(self, asked: RunId) -> None:
        """To be called while somebody waits."""
        if self._clock.monotonic() < self._next_s:
            return
        self._next_s = self._clock.monotonic() + LOOK_S
        doing = self._doing(asked)
        if self._line is not None:
            self._line.draw(in_brief(doing, self._line.columns)) if doing else self._line.erase()
        elif doing.partition(":")[0] != self._said:
            self._said = doing.partition(":")[0]
            if doing:
                typer.echo(in_brief(doing, 200), err=True)

    def _doing(self, asked: RunId) -> str:
        """Of the run that owns the job now: it may be the next one that goes on with the request."""
        try:
            live = read_live(self._storage, max(asked, newest_run(self._storage)))
        except PenstockError:  # whether storage answers is told by whoever waits for the answer
            return ""
        return "" if live is None else live.doing

    def close(self) -> None:
        """Leave nothing behind on the terminal."""
        if self._line is not None:
            self._line.erase()
