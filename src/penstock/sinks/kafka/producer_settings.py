"""What the producer of a Kafka sink is told, beside the user's options. Driver only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import ConfigError
from penstock.sinks.kafka.messages import Limits

TRANSACTION_TIMEOUT = "transaction.timeout.ms"
MESSAGE_BYTES = "message.max.bytes"
BATCH_BYTES = "batch.size"
_MOST_IN_ONE_BATCH = 1_000_000
"""What librdkafka puts into one batch unless it is told otherwise; a proof of the most transactions is smaller."""


def within_options(limits: Limits, options: Mapping[str, Any]) -> Limits:
    """The limits of a topic, or the user's own where that is lower: a task must refuse what the producer would."""
    return replace(
        limits,
        message_bytes=min(limits.message_bytes, _number(options, MESSAGE_BYTES, limits.message_bytes)),
    )


def producer_settings(limits: Limits, options: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
    """Settings with which every message that a task let pass, and every proof, is accepted.

    A broker compares whole batches with the limit of the topic, so batches are held below it. The limit of the producer itself
    also holds for proofs; messages were held below the user's where they were made.
    """
    return {
        TRANSACTION_TIMEOUT: timeout_ms,
        MESSAGE_BYTES: max(limits.message_bytes, _MOST_IN_ONE_BATCH),
        BATCH_BYTES: min(_number(options, BATCH_BYTES, _MOST_IN_ONE_BATCH), limits.message_bytes),
    }


def transaction_timeout_ms(commit_timeout_s: float, options: Mapping[str, Any]) -> int:
    """How long a Kafka transaction may stay open: at least as long as a commit may take."""
    least = int(commit_timeout_s * 1000)
    given = options.get(TRANSACTION_TIMEOUT, least)
    if isinstance(given, bool) or not str(given).isdigit() or int(given) < least:
        raise ConfigError(
            f"{TRANSACTION_TIMEOUT} is {given!r}, and a commit may take {least} ms (commit_timeout): the brokers would abort it half "
            "way; give at least as much, or lower commit_timeout",
            setting=TRANSACTION_TIMEOUT,
            value=given,
        )
    return int(given)


def _number(options: Mapping[str, Any], name: str, otherwise: int) -> int:
    given = options.get(name, otherwise)
    if isinstance(given, bool) or not str(given).isdigit():
        raise ConfigError(
            f"the option {name!r} of a Kafka sink is {given!r}; give a number of bytes",
            setting=name,
            value=given,
        )
    return int(given)
