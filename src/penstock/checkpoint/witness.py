"""Who is told what becomes of checkpoints, besides the log. Driver."""

from __future__ import annotations

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.events import Announce


class Witness:
    """Told when it has happened, by the coordinator's thread or by that of a sink. It decides nothing, and must return at once.

    What it raises would end the run: the classic mistake is to write to storage or to the network in here.
    """

    def completed(self, completed: Completed, complete_s: float, *, wanted: bool) -> None:
        """A checkpoint exists; writing its metadata took so long. `wanted`: it came before its time, for somebody waits for it."""

    def committed(self, completed: Completed) -> None:
        """All that a checkpoint promised is visible."""

    def given_up(self, announced: Announce) -> None:
        """A checkpoint never will exist."""

    def sink_down(self, sink: str, why: str, waiting: int) -> None:
        """The commits of a sink do not come through; so many transactions wait. Told once, when it begins."""

    def sink_up(self, sink: str, down_s: float) -> None:
        """They do again."""
