"""The Kafka cluster of a sink: its clients and their settings, the checks before the query, and the meaning of errors. Driver.

confluent-kafka is imported when a sink is used, so that other jobs do not need it.

`Admin` is the client that reads topics and settings. librdkafka treats a refused login as temporary and retries until the request times
out; the reason is passed only to a callback, and only while the client is polled.

`ClientLog` receives the log of librdkafka. While brokers are unreachable, each client logs that several times a second. These lines go to
the log at level DEBUG; the sink's error has the reason, and the coordinator logs once a minute which commits wait. Lines that are not
about a connection are logged once a minute for each kind.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError, UnavailableError
from penstock.lazy_imports import optional_package
from penstock.sinks.kafka.messages import MessageLimits

TRANSACTION_TIMEOUT = "transaction.timeout.ms"
MESSAGE_BYTES = "message.max.bytes"
BATCH_BYTES = "batch.size"
_MOST_IN_ONE_BATCH = 1_000_000
"""The default batch size of librdkafka; the largest proof is smaller."""


def within_options(limits: MessageLimits, options: Mapping[str, Any]) -> MessageLimits:
    """Return the limits of a topic, or the user's own if lower: a task must refuse what the producer would refuse."""
    return replace(
        limits,
        message_bytes=min(limits.message_bytes, _number(options, MESSAGE_BYTES, limits.message_bytes)),
    )


def producer_settings(limits: MessageLimits, options: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
    """Return settings with which the producer accepts every message that a task accepted, and every proof.

    A broker compares whole batches with the limit of the topic, so batches stay below it. The limit of the producer also applies to
    proofs; tasks have already applied the user's limit to messages.
    """
    return {
        TRANSACTION_TIMEOUT: timeout_ms,
        MESSAGE_BYTES: max(limits.message_bytes, _MOST_IN_ONE_BATCH),
        BATCH_BYTES: min(_number(options, BATCH_BYTES, _MOST_IN_ONE_BATCH), limits.message_bytes),
    }


def transaction_timeout_ms(commit_timeout_s: float, options: Mapping[str, Any]) -> int:
    """Return how long a Kafka transaction may stay open: at least as long as a commit may take."""
    least = int(commit_timeout_s * 1000)
    given = options.get(TRANSACTION_TIMEOUT, least)
    if isinstance(given, bool) or not str(given).isdigit() or int(given) < least:
        raise ConfigError(
            f"{TRANSACTION_TIMEOUT} is {given!r}, and a commit may take {least} ms (commit_timeout): the brokers could abort it before it "
            "ends; give at least as much, or lower commit_timeout",
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
    """A client that reads topics and settings. `make` builds it with additional settings; `redacted` removes passwords from a text."""

    def __init__(
        self, make: Callable[[Mapping[str, Any]], Any], brokers: str, redacted: Callable[[object], str]
    ) -> None:
        self._refusals: list[str] = []
        self._brokers = brokers
        self._redacted = redacted
        self.client = make({"error_cb": self._note})

    def answer(self, asked: Future[Answer], timeout_s: float) -> Answer:
        """Wait for a response; raises `ConfigError` as soon as the brokers refuse the login."""
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


_BROKEN_CONNECTION = {"FAIL", "ERROR"}
"""A connection that broke or could not be made, and the same as an error of the client."""
_TRANSACTION_FAILED = "TXNERR"
_EACH_KIND_EVERY_S = 60.0
_NEWS_FOR_S = 60.0
_DETAILS = re.compile(r"^\[thrd:[^\]]*\]: |\(after .*\)$")


class ClientLog:
    """A logger for confluent-kafka, which calls `log(level, format, kind, client, text)` from any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._trouble: tuple[float, str] | None = None
        self._said_s: dict[str, float] = {}
        self._failure = ""

    def log(self, level: int, form: str, *arguments: object) -> None:
        """Log a line of a client, at level DEBUG if it is about a connection or repeated."""
        kind, *_, text = map(str, arguments) if arguments else ("", form)
        with self._lock:
            level = self._level(level, kind, text)
        _log.log(level, form, *arguments)

    @property
    def trouble(self) -> str | None:
        """Why the last connection failed, if that was less than a minute ago."""
        with self._lock:
            if self._trouble is None or self._clock.monotonic() - self._trouble[0] > _NEWS_FOR_S:
                return None
            return self._trouble[1]

    def forget_failure(self) -> None:
        """Forget the last failure, because a new transaction begins."""
        with self._lock:
            self._failure = ""

    @property
    def failure(self) -> str:
        """Why the transaction failed, from the client's log, because its errors say only that it did. Empty if it did not fail."""
        with self._lock:
            return self._failure

    def _level(self, level: int, kind: str, text: str) -> int:
        now_s = self._clock.monotonic()
        if kind in _BROKEN_CONNECTION:
            self._trouble = (now_s, _DETAILS.sub("", text).strip())
            return logging.DEBUG
        if kind == _TRANSACTION_FAILED:
            self._failure = self._failure or text
        if now_s - self._said_s.get(kind, -_EACH_KIND_EVERY_S) < _EACH_KIND_EVERY_S:
            return logging.DEBUG
        self._said_s[kind] = now_s
        return level


REQUEST_TIMEOUT_S = 15.0
_OURS = {
    "acks": "all replicas must confirm a message",
    "bootstrap.servers": "it is the first argument",
    "enable.auto.commit": "no consumer group is used",
    "enable.idempotence": "transactions need it",
    "metadata.broker.list": "it is the first argument",
    "request.required.acks": "all replicas must confirm a message",
    "isolation.level": "the sink must read committed records only",
    "transactional.id": "it is built from transactional_id, the job and the sink",
}
_DEFAULTS = {
    "partitioner": "murmur2_random",  # the same partition for a key as with the Java client
    "linger.ms": 20,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
}
_CONNECTION = (
    "api.version.",
    "broker.",
    "client.",
    "connections.",
    "enable.sasl",
    "enable.ssl",
    "https.",
    "metadata.",
    "oauth_cb",
    "reconnect.",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
    "topic.metadata.",
)
"""Prefixes of the options for every client; the others are for the producer."""
_SECRETS = ("password", "secret", "token", "key.pem", "oauthbearer.config", "jaas")
_log = logging.getLogger(__name__)


class KafkaCluster:
    """The brokers and the options of their clients. It is pickled into tasks, which do not connect."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self.address = address
        self.options = dict(options)
        self.client_log = ClientLog()
        for name, reason in _OURS.items():
            if name in self.options:
                raise ConfigError(
                    f"the option {name!r} of a Kafka sink cannot be set: {reason}", setting=name
                )

    def __repr__(self) -> str:
        return f"KafkaCluster({self.address!r})"  # options may hold passwords

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "client_log"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, client_log=ClientLog())

    def producer(self, settings: Mapping[str, Any]) -> Any:
        """Make a producer. The user's options override the defaults, and `settings` override both."""
        return self._client("Producer", {**_DEFAULTS, **self.options, **settings})

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        """Make a consumer that reads committed records."""
        fixed = {"enable.auto.commit": False, "isolation.level": "read_committed"}
        return self._client("Consumer", {**self._connection(), **fixed, **settings})

    def admin(self) -> Admin:
        """Make a client that reads topics and settings."""
        return Admin(
            lambda settings: self._client("admin.AdminClient", {**self._connection(), **settings}),
            self.address,
            self.redacted,
        )

    def _connection(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name.startswith(_CONNECTION)}

    def _client(self, kind: str, settings: dict[str, Any]) -> Any:
        module, _, name = f"confluent_kafka.{kind}".rpartition(".")
        make = getattr(imported(module), name)
        try:
            return make({"bootstrap.servers": self.address, **settings}, logger=self.client_log)
        except (kafka_exception(), TypeError, ValueError) as error:
            raise ConfigError(
                f"librdkafka refuses the options of the Kafka sink: {self.redacted(error)}; correct them",
                options=sorted(self.options),
            ) from None  # the cause may quote a password

    def redacted(self, error: object) -> str:
        """Return the text of an error without passwords."""
        text = str(error)
        for name, value in self.options.items():
            if any(word in name for word in _SECRETS) and str(value):
                text = text.replace(str(value), "***")
        return text

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Raise errors of the cluster as `UnavailableError`, which is retried."""
        try:
            yield
        except (kafka_exception(), TimeoutError) as error:
            text = self.redacted(error) or "no answer in time"
            trouble = self.client_log.trouble
            why = f"Kafka is down, or a part of it ({self.redacted(trouble)}): " if trouble else ""
            raise UnavailableError(
                f"{why}cannot {doing} (brokers {self.address}): {text}; check the brokers, the network "
                "and the rights of this user",
                brokers=self.address,
                cause=text,
            ) from None

    # ── what the cluster must offer ────────────────────────────────────────────────────────────

    def check_topic(self, admin: Admin, topic: str) -> MessageLimits:
        """Return the limits of a topic; raises `ConfigError` if it does not exist."""
        partitions = self._partitions(admin, topic)
        if partitions is None:
            raise ConfigError(
                f"the topic {topic!r} does not exist on {self.address}; nothing was started. Create it with as many "
                "partitions as its readers need",
                topic=topic,
            )
        found = self._settings(admin, "TOPIC", topic)
        keys_needed = "compact" in found.get("cleanup.policy", "")
        largest = int(found.get("max.message.bytes", MessageLimits.message_bytes))
        return MessageLimits(partitions, largest, keys_needed=keys_needed)

    def check_transaction_timeout(self, admin: Admin, timeout_ms: int) -> None:
        """Refuse a transaction timeout that is longer than the brokers allow."""
        with self.errors("ask for the brokers"):
            asked = admin.client.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
            brokers = [node.id for node in admin.answer(asked, REQUEST_TIMEOUT_S).nodes]
        largest = self._settings(admin, "BROKER", str(next(iter(brokers), 1))).get(
            "transaction.max.timeout.ms"
        )
        if largest is not None and timeout_ms > int(largest):
            raise ConfigError(
                f"transaction.timeout.ms is {timeout_ms}, and the brokers allow at most {largest} (their transaction.max.timeout.ms); "
                "lower commit_timeout (and the option, if you gave it), or raise the setting of the brokers",
                value=timeout_ms,
                largest=int(largest),
            )

    def ensure_compacted(self, admin: Admin, topic: str) -> None:
        """Create the topic of commits if it is missing; refuse one that deletes records."""
        if self._partitions(admin, topic) is None:
            self._create_compacted(admin, topic)
            return
        policy = self._settings(admin, "TOPIC", topic).get("cleanup.policy", "compact")
        if {part.strip() for part in policy.split(",")} != {"compact"}:
            raise ConfigError(
                f"the topic {topic!r} has cleanup.policy={policy}: Kafka would delete the proof of commits. Set "
                "cleanup.policy=compact and nothing else, or name another commits_topic",
                topic=topic,
                policy=policy,
            )

    def _create_compacted(self, admin: Admin, topic: str) -> None:
        config = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}
        new = imported("confluent_kafka.admin").NewTopic(
            topic, num_partitions=1, replication_factor=-1, config=config
        )
        try:
            admin.answer(admin.client.create_topics([new])[topic], REQUEST_TIMEOUT_S)
        except (kafka_exception(), TimeoutError) as error:
            if self._partitions(admin, topic) is None:
                raise ConfigError(
                    f"the topic {topic!r}, in which a Kafka sink records its commits, is missing and cannot be created: "
                    f"{self.redacted(error)}; create it with one partition and cleanup.policy=compact",
                    topic=topic,
                ) from None

    def _partitions(self, admin: Admin, topic: str) -> int | None:
        """Return the number of partitions of a topic; None if it does not exist. Must not create it."""
        kafka = imported("confluent_kafka")
        with self.errors(f"look at the topic {topic!r}"):
            try:
                wanted = kafka.TopicCollection([topic])
                asked = admin.client.describe_topics(wanted, request_timeout=REQUEST_TIMEOUT_S)
                return len(admin.answer(asked[topic], REQUEST_TIMEOUT_S).partitions)
            except kafka.KafkaException as error:
                if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise

    def _settings(self, admin: Admin, kind: str, name: str) -> dict[str, str]:
        """Return settings of the cluster; empty if this user may not read them."""
        resource = imported("confluent_kafka.admin").ConfigResource(kind.lower(), name)
        try:
            asked = admin.client.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
            found = admin.answer(asked[resource], REQUEST_TIMEOUT_S)
        except (kafka_exception(), TimeoutError) as error:
            _log.warning(
                "the settings of %s %s cannot be checked: %s", kind.lower(), name, self.redacted(error)
            )
            return {}
        return {entry.name: entry.value for entry in found.values() if entry.value is not None}


def kafka_exception() -> type[Exception]:
    """Return the base class of the errors of confluent-kafka."""
    kind: type[Exception] = imported("confluent_kafka").KafkaException
    return kind


def imported(module: str) -> Any:
    """Import a module of confluent-kafka; the error for a missing package says how to install it."""
    return optional_package(module, needed_by="sinks.Kafka", extra="kafka")
