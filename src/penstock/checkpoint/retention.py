"""What may be forgotten. Pure; driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.checkpoint.completed import Completed


def subsumed(completed: Sequence[Completed], retained: int) -> list[Completed]:
    """The completed checkpoints (oldest first) that are more than the newest `retained`."""
    return list(completed[: max(0, len(completed) - retained)])


def unnamed_files(known: Iterable[str], needed: Iterable[Iterable[str]]) -> list[str]:
    """The files that none of the file sets in `needed` names, sorted."""
    keep = {name for names in needed for name in names}
    return sorted(set(known) - keep)
