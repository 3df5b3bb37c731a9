"""What the producer of a Kafka sink is told, beside the user's options. Driver only.

The client that looks at topics and settings; it notices when the brokers refuse the login. Driver.

librdkafka takes a refused login for something that may pass and tries again until the request has timed out; who refused, and
why, it says only to a callback, which is called while somebody polls.

What librdkafka says, in our log, thinned. Driver.

While brokers are away its clients say so several times a second, each, in lines that look alike. Who waits for what is said by the
coordinator, once a minute; the reason is in the error of the sink, which asks here. The lines themselves are in the log at level DEBUG.
Whatever is not about a connection is passed on, each kind once a minute.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError
from penstock.sinks.kafka.messages import MessageLimits

TRANSACTION_TIMEOUT = "transaction.timeout.ms"
MESSAGE_BYTES = "message.max.bytes"
BATCH_BYTES = "batch.size"
_MOST_IN_ONE_BATCH = 1_000_000
"""What librdkafka puts into one batch unless it is told otherwise; a proof of the most transactions is smaller."""


def within_options(limits: MessageLimits, options: Mapping[str, Any]) -> MessageLimits:
    """The limits of a topic, or the user's own where that is lower: a task must refuse what the producer would."""
    return replace(
        limits,
        message_bytes=min(limits.message_bytes, _number(options, MESSAGE_BYTES, limits.message_bytes)),
    )


def producer_settings(limits: MessageLimits, options: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
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


_POLL_S = 0.02
_REFUSED = "_AUTHENTICATION"
Answer = TypeVar("Answer")


class Admin:
    """`make` makes the client with these further settings; `redacted` takes passwords out of a text."""

    def __init__(
        self, make: Callable[[Mapping[str, Any]], Any], brokers: str, redacted: Callable[[object], str]
    ) -> None:
        self._refusals: list[str] = []
        self._brokers = brokers
        self._redacted = redacted
        self.client = make({"error_cb": self._note})

    def answer(self, asked: Future[Answer], timeout_s: float) -> Answer:
        """Wait for an answer, and not for one that will never come."""
        deadline = SYSTEM_CLOCK.monotonic() + timeout_s
        while not asked.done() and SYSTEM_CLOCK.monotonic() < deadline:
            self.client.poll(_POLL_S)
            if self._refusals:
                raise ConfigError(
                    f"the brokers {self._brokers} refuse the login: {self._redacted(self._refusals[0])}; check the user and the password "
                    "in the options of the sink (sasl.username, sasl.password, sasl.mechanism, or the certificate)",
                    brokers=self._brokers,
                )
        return asked.result(0)

    def _note(self, error: Any) -> None:
        if error.name() == _REFUSED:
            self._refusals.append(error.str())


_CONNECTION = {"FAIL", "ERROR"}
"""A connection that broke or could not be made, and the same again as an error of the client."""
_TRANSACTION_FAILED = "TXNERR"
_EACH_KIND_EVERY_S = 60.0
_NEWS_FOR_S = 60.0
_DETAILS = re.compile(r"^\[thrd:[^\]]*\]: |\(after .*\)$")
_log = logging.getLogger(__name__)


class ClientLog:
    """A logger as confluent-kafka calls it: `log(level, format, kind, client, text)`; from any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._trouble: tuple[float, str] | None = None
        self._said_s: dict[str, float] = {}
        self._failure = ""

    def log(self, level: int, form: str, *arguments: object) -> None:
        """Take a line."""
        kind, *_, text = map(str, arguments) if arguments else ("", form)
        with self._lock:
            level = self._level(level, kind, text)
        _log.log(level, form, *arguments)

    @property
    def trouble(self) -> str | None:
        """Why the last connection failed, if that was within the last minute."""
        with self._lock:
            if self._trouble is None or self._clock.monotonic() - self._trouble[0] > _NEWS_FOR_S:
                return None
            return self._trouble[1]

    def forget_failure(self) -> None:
        """A transaction begins."""
        with self._lock:
            self._failure = ""

    @property
    def failure(self) -> str:
        """Why the transaction failed, in the client's words: its errors say only that it did. Empty if it did not."""
        with self._lock:
            return self._failure

    def _level(self, level: int, kind: str, text: str) -> int:
        now_s = self._clock.monotonic()
        if kind in _CONNECTION:
            self._trouble = (now_s, _DETAILS.sub("", text).strip())
            return logging.DEBUG
        if kind == _TRANSACTION_FAILED:
            self._failure = self._failure or text
        if now_s - self._said_s.get(kind, -_EACH_KIND_EVERY_S) < _EACH_KIND_EVERY_S:
            return logging.DEBUG
        self._said_s[kind] = now_s
        return level
