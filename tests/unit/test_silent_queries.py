"""When Spark has looked at its sources and found nothing, from what a query says of itself."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.query_reports import IdleCheck


class Says:
    """A query as far as it is asked."""

    def __init__(self, message: str, *, data: bool) -> None:
        active = not message.startswith("Waiting")
        self.status: dict[str, Any] = {"message": message, "isDataAvailable": data, "isTriggerActive": active}


def looked(silence: IdleCheck, message: str, now_us: int, *, data: bool = False) -> int | None:
    return silence.looked_us(cast("StreamingQuery", Says(message, data=data)), now_us)


def test_only_a_look_that_found_nothing_since_the_last_batch_counts() -> None:
    """Before the first look nothing is known, and after a batch not until the next one; then each moment is a look."""
    silence = IdleCheck(0.0)
    assert silence.looked_us(None, 1) is None
    assert looked(silence, "Initializing sources", 2) is None
    assert looked(silence, "Getting offsets from a log", 3) is None
    assert looked(silence, "Waiting for data to arrive", 4) == 4
    assert looked(silence, "Getting offsets from a log", 5) == 4
    assert looked(silence, "Waiting for next trigger", 6, data=True) is None
    assert looked(silence, "Getting offsets from a log", 7) is None
    assert looked(silence, "Writing offsets to log", 8) is None  # it has found something, and does not say so
    assert looked(silence, "Waiting for data to arrive", 9) == 9
    silence.broken()
    assert looked(silence, "Writing offsets to log", 10) is None


def test_with_a_trigger_the_look_may_be_as_old_as_it() -> None:
    """What came since then nobody has seen."""
    silence = IdleCheck(0.001)
    assert looked(silence, "Waiting for next trigger", 5_000) == 5_000
    assert looked(silence, "Waiting for next trigger", 5_900) == 5_000
    assert looked(silence, "Waiting for next trigger", 7_000) == 6_000
