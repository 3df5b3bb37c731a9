"""What the client of Kafka says is thinned before anybody reads it."""

from __future__ import annotations

import logging

import pytest

from penstock.sinks.kafka.cluster import ClientLog
from penstock.testing.virtual import VirtualClock

REFUSED = "[thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def client_log(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> ClientLog:
    caplog.set_level(logging.DEBUG, logger="penstock.sinks.kafka")
    return ClientLog(clock)


def say(client_log: ClientLog, kind: str, text: str, level: int = logging.ERROR) -> None:
    """As confluent-kafka calls a logger."""
    client_log.log(level, "%s [%s] %s", kind, "rdkafka#producer-1", text)


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records]


def test_a_broker_that_is_away_fills_no_log(client_log: ClientLog, caplog: pytest.LogCaptureFixture) -> None:
    """Connections that fail are for those who debug; the reason is kept for the error of the sink, as long as it is news."""
    for _ in range(175):
        say(client_log, "FAIL", REFUSED)
    assert levels(caplog) == [logging.DEBUG] * 175
    assert (
        client_log.trouble == "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"
    )


def test_an_old_trouble_is_no_reason(client_log: ClientLog, clock: VirtualClock) -> None:
    """What failed long ago explains nothing."""
    say(client_log, "FAIL", REFUSED)
    clock.advance(61)
    assert client_log.trouble is None


def test_other_words_are_passed_on_once_a_minute(
    client_log: ClientLog, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind at its own level; repetitions are for those who debug."""
    for _ in range(3):
        say(client_log, "TXNERR", "the transaction failed")
        say(client_log, "CONFWARN", "a setting", logging.WARNING)
    clock.advance(60)
    say(client_log, "TXNERR", "the transaction failed")
    assert levels(caplog) == [logging.ERROR, logging.WARNING, *[logging.DEBUG] * 4, logging.ERROR]


def test_why_a_transaction_failed(client_log: ClientLog) -> None:
    """The first reason counts, until the next transaction begins: what follows are only its consequences."""
    say(client_log, "TXNERR", "Broker failed to validate record")
    say(client_log, "TXNERR", "Erroneous state")
    assert client_log.failure == "Broker failed to validate record"
    client_log.forget_failure()
    assert client_log.failure == ""
