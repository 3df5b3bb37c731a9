"""How a limit on the rows of a batch is shared out over the partitions of a source. Driver."""

from __future__ import annotations

from collections.abc import Mapping


def fair_end(start: Mapping[int, int], end: Mapping[int, int], max_rows: int) -> dict[int, int]:
    """Return positions at most `max_rows` after `start` in all, none after `end`.

    Every partition gets the same share; what one does not need goes to the others. The rows that do not
    divide evenly go round: where they begin depends on how many rows were read before, so no partition
    waits for ever.
    """
    waiting = {partition: end[partition] - start[partition] for partition in sorted(end)}
    granted = dict.fromkeys(waiting, 0)
    remaining = min(max_rows, sum(waiting.values()))
    while remaining:
        hungry = [partition for partition in waiting if granted[partition] < waiting[partition]]
        share = remaining // len(hungry)
        if share == 0:
            turn = sum(start.values()) % len(hungry)
            hungry = (hungry[turn:] + hungry[:turn])[:remaining]
            share = 1
        for partition in hungry:
            rows = min(share, waiting[partition] - granted[partition])
            granted[partition] += rows
            remaining -= rows
    return {partition: start[partition] + granted[partition] for partition in waiting}
