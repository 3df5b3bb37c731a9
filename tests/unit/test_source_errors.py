"""What Spark says about a Kafka source, in Penstock's words. The texts are Spark's own, shortened where three dots are."""

from __future__ import annotations

import pytest

from penstock.errors import SourceLostError, UnavailableError
from penstock.spark.failure_messages import source_failure

QUERY = """
=== Streaming Query ===
Identifier: clicks-2 [id = f31263f1, runId = 4562fd65]
Current Committed Offsets: {KafkaV2[Subscribe[clicks]]: {"clicks":{"0":10,"1":0}}}
Current Available Offsets: {KafkaV2[Subscribe[clicks]]: {"clicks":{"0":10,"1":0}}}
"""
UNKNOWN = (
    "[STREAM_FAILED] Query [id = f31263f1, runId = 4562fd65] terminated with exception: org.apache.kafka.common.errors."
    "UnknownTopicOrPartitionException: This server does not host this topic-partition. SQLSTATE: XXKST"
)
LOSS = (
    "Some data may have been lost because they are not available in Kafka any more;\n"
    "either the data was aged out by Kafka or the topic may have been deleted before all the data in the\n"
    "topic was processed.\n"
    "If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.\nReason: "
)


def lost(reason: str) -> str:
    return f"[STREAM_FAILED] Query [id = f31263f1] terminated with exception: {LOSS}{reason}"


def test_an_unknown_topic_may_come_back() -> None:
    """A topic that the brokers do not know is looked for again; the text names it and says what to do if it was deleted."""
    found = source_failure(RuntimeError(UNKNOWN + QUERY))
    assert isinstance(found, UnavailableError)
    assert "(topics of its sources: clicks)" in str(found)
    assert "create it again" in str(found)
    assert "===" not in str(found)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Partitions Set(clicks-1) have been deleted. SQLSTATE: XXKST", "Set(clicks-1) have been deleted."),
        (
            "Partition clicks-0 offset was changed from 10 to 3.\nThis could be ... SQLSTATE: XXKST",
            "from 10 to 3. The job ends",
        ),
        (
            "Starting offset for clicks-0 was 5 but consumer reset to 9. SQLSTATE: XXKST",
            "reset to 9. The job ends",
        ),
        ("Could not read records in offset [3, 5) ...", "offset [3, 5)"),
    ],
)
def test_lost_messages_are_final(reason: str, said: str) -> None:
    """Messages that are gone do not come back by a restart; the text has Spark's reason, one line of it, and the ways out."""
    found = source_failure(RuntimeError(lost(reason) + QUERY))
    assert isinstance(found, SourceLostError)
    assert said in str(found)
    assert "failOnDataLoss" in str(found)
    assert "\n" not in str(found)


def test_lost_messages_found_in_a_task() -> None:
    """A task's failure does not say what the query reads; the partition is in the reason."""
    text = lost(
        "Could not read records in offset [3, 5) for topic partition clicks-0\nwith ...",
    )
    found = source_failure(
        RuntimeError(f"Job aborted due to stage failure: ... {text}\n\tat org.apache.spark...")
    )
    assert isinstance(found, SourceLostError)
    assert "clicks-0" in str(found)
    assert found.facts["sources"] == ()


def test_other_errors_are_left_alone() -> None:
    """Whatever else fails keeps its own words."""
    assert source_failure(RuntimeError(f"[STREAM_FAILED] division by zero{QUERY}")) is None
