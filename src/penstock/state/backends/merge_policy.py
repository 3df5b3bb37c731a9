"""Which runs to merge, decided from their sizes alone. Pure; driver and executors.

Size-tiered: a run's level is the logarithm of its bytes, and `FAN_IN` runs of a level become one run of a higher level. So a row
is rewritten once a level, and the number of runs grows with the logarithm of the state.

Space: what was overwritten or deleted stays in older runs until it is merged away. When the runs before the oldest have grown as large as
the oldest, tombstones weighed twice by the rows they hide, everything becomes one run. So the files of a subtask take at most twice
what is alive, four times where most of it was deleted, besides what is being merged at the moment.

One merge at a time is chosen for a subtask, in the background. The batch itself merges only what is tiny, at no cost that could be seen;
and the newest of more than `INLINE_RUNS` runs, which happens only where runs come faster than the background can follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from penstock.state.handle import RunRef

FAN_IN = 4
MAX_RUNS = 16
INLINE_RUNS = 24
SMALLEST_LEVEL_BYTES = 128 * 1024  # below this a merge costs less than looking into another run


def choose_merge(runs: Sequence[RunRef]) -> range | None:
    """The runs to merge next, as positions in `runs` (newest first), or None when there is nothing to do."""
    if _mostly_dead(runs):
        return range(len(runs))
    levels = [_level(run.size) for run in runs]
    for level in sorted(set(levels)):
        window = _window(levels, level)
        if window is not None:
            return window
    return _cheapest([run.size for run in runs]) if len(runs) > MAX_RUNS else None


def choose_inline(runs: Sequence[tuple[str, int]], merging: frozenset[str]) -> range | None:
    """The newest runs, as (name, size), that the batch merges while it writes its own; never those that are being merged already.

    Tiny ones, because a file more costs more than writing their rows again; and the newer half when there are too many.
    """
    free = next((at for at, (name, _) in enumerate(runs) if name in merging), len(runs))
    sums = accumulate(size for _, size in runs[:free])
    tiny = sum(1 for total in sums if total <= SMALLEST_LEVEL_BYTES)
    if tiny >= FAN_IN:
        return range(tiny)
    return range(min(free, INLINE_RUNS // 2)) if len(runs) > INLINE_RUNS and free > 1 else None


def _mostly_dead(runs: Sequence[RunRef]) -> bool:
    if len(runs) < 2:  # noqa: PLR2004 - nothing to merge with
        return False
    *newer, oldest = runs
    hidden = sum(run.tombstones for run in newer) * oldest.size / max(oldest.rows, 1)
    return sum(run.size for run in newer) + 2 * hidden > max(oldest.size, SMALLEST_LEVEL_BYTES)


def _level(size: int) -> int:
    level, limit = 0, SMALLEST_LEVEL_BYTES
    while size > limit:
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


def _cheapest(sizes: Sequence[int]) -> range:
    starts = range(len(sizes) - FAN_IN + 1)
    start = min(starts, key=lambda first: sum(sizes[first : first + FAN_IN]))
    return range(start, start + FAN_IN)
