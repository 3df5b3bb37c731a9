"""How many rows lie between two positions of a source, where its positions are offsets by partition. Pure; driver."""

from __future__ import annotations


def rows_between(reached: object, end: object) -> int | None:
    """Rows from one position to the other, 0 when the first is not before the second; None where positions are no offsets by partition.

    Both as Spark writes them: of Kafka `{"topic": {"0": 17}}`, of a `PartitionedLog` `{"0": 17}`. A partition without a position has
    been read from nowhere yet.
    """
    if not isinstance(end, dict) or not isinstance(reached, dict | None):
        return None
    parts = [_between((reached or {}).get(name), one) for name, one in end.items()]
    return None if None in parts else sum(filter(None, parts))


def _between(reached: object, end: object) -> int | None:
    if isinstance(end, dict):
        return rows_between(reached, end)
    if not isinstance(end, int) or not isinstance(reached, int | None):
        return None
    return max(0, end - (reached or 0))
