"""What Spark says when a Kafka source lost its messages or its topic, in Penstock's words. Driver.

Spark tells it in a text of several lines that ends with a plan; kind and topic are only in there.
"""

from __future__ import annotations

import re

from penstock.errors import PenstockError, SourceLostError, UnavailableError

_DATA_LOSS = re.compile(
    r"Some data may have been lost because they are not available in Kafka any more;"
    r".*?Reason:\s*(.+?)(?:\s*SQLSTATE|\n|$)",
    re.DOTALL,
)
_UNKNOWN_TOPIC = "UnknownTopicOrPartitionException"
_SOURCE = re.compile(r"KafkaV2\[(?:Subscribe|SubscribePattern|Assign)\[(.+?)\]\]")
_WITHOUT_THEM = (
    "set the source's option failOnDataLoss to false for one start, to go on without what was not read; "
    "or start a job with a new name"
)


def source_failure(error: BaseException) -> PenstockError | None:
    """The failure of a Kafka source, explained; None when the error is about something else."""
    text = str(error)
    lost = _DATA_LOSS.search(text)
    if lost is not None:
        return _lost(text, lost[1])
    return _unknown(text) if _UNKNOWN_TOPIC in text else None


def _lost(text: str, reason: str) -> SourceLostError:
    sources = _sources(text)
    return SourceLostError(
        f"Kafka no longer has messages that were not read yet{_named(sources)}: {reason.strip()} The job ends at its last checkpoint, "
        f"and what it has written stays. Bring the messages back; or {_WITHOUT_THEM}",
        sources=sources,
        reason=reason.strip(),
    )


def _unknown(text: str) -> UnavailableError:
    sources = _sources(text)
    return UnavailableError(
        f"Kafka does not know a topic that the job reads{_named(sources)}: it was deleted, or the brokers are not ready, or this user "
        "may not see it. The job goes back to its checkpoint, and tries again as often as its restart strategy allows. If the topic was "
        f"deleted, create it again; then {_WITHOUT_THEM}",
        sources=sources,
    )


def _sources(text: str) -> tuple[str, ...]:
    """What the query subscribes to, as Spark names it."""
    return tuple(dict.fromkeys(_SOURCE.findall(text)))


def _named(sources: tuple[str, ...]) -> str:
    return f" (topics of its sources: {', '.join(sources)})" if sources else ""
