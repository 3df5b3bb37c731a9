"""Which runs to merge, decided from their row counts alone. Runs in tasks on executors.

Size-tiered: a run's level is the logarithm of its rows, and `FAN_IN` runs of a level become one run of a
higher level. So a row is rewritten once a level, and the number of runs grows with the logarithm of the
state. At most one merge is chosen at a time, which bounds what a single batch pays; what it leads to is
chosen after the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence

FAN_IN = 4
MAX_RUNS = 16
SMALLEST_LEVEL_ROWS = 4096  # below this a merge costs less than looking into another run


def choose_merge(rows: Sequence[int]) -> range | None:
    """The runs to merge next, as positions in `rows` (newest first), or None when there is nothing to do."""
    levels = [_level(count) for count in rows]
    for level in sorted(set(levels)):
        window = _window(levels, level)
        if window is not None:
            return window
    return _cheapest(rows) if len(rows) > MAX_RUNS else None


def _level(rows: int) -> int:
    level, limit = 0, SMALLEST_LEVEL_ROWS
    while rows > limit:
        level, limit = level + 1, limit * FAN_IN
    return level


def _window(levels: Sequence[int], level: int) -> range | None:
    """The newest stretch with `FAN_IN` runs of this level and none above; lower ones between go along."""
    members: list[int] = []
    for position, other in enumerate(levels):
        if other > level:
            if len(members) >= FAN_IN:
                break
            members = []
        elif other == level:
            members.append(position)
    return range(members[0], members[-1] + 1) if len(members) >= FAN_IN else None


def _cheapest(rows: Sequence[int]) -> range:
    starts = range(len(rows) - FAN_IN + 1)
    start = min(starts, key=lambda first: sum(rows[first : first + FAN_IN]))
    return range(start, start + FAN_IN)
