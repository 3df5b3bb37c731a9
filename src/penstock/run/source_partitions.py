"""The partitions of sources, as their positions name them. Pure; driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from penstock.graph import TimeSettings

ALL_ROWS = "*"
"""The partition of a source whose rows do not tell theirs. No name of a partition is like it."""


def partition_name(parts: Sequence[object]) -> str:
    """How a partition is called: what tells it apart, as texts, in JSON. Two never share a name, whatever is in the columns."""
    texts = [None if part is None else str(part) for part in parts]
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def partition_parts(name: str) -> list[str | None]:
    """What tells the partition of this name apart."""
    parts: list[str | None] = json.loads(name)
    return parts


def moved(before: Mapping[str, object], after: Mapping[str, object]) -> frozenset[str]:
    """The sources of which a batch that ends there may have rows."""
    return frozenset(uid for uid, position in after.items() if uid not in before or before[uid] != position)


def named_partitions(
    positions: Mapping[str, object], event_times: Mapping[str, TimeSettings]
) -> dict[str, frozenset[str]]:
    """The partitions of the sources whose positions name them; Kafka's are `{"topic": {"0": 17}}`, those of a log `{"0": 17}`."""
    return {
        uid: frozenset(map(partition_name, _leaves(position)))
        for uid, settings in event_times.items()
        if settings.in_positions and isinstance(position := positions.get(uid), dict)
    }


def _leaves(position: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in position.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name)
