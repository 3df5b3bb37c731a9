"""A Kafka cluster as a sink uses it: settings of clients, what the cluster must offer, what errors mean. Driver.

confluent-kafka is imported when a sink is used, so that everybody else does without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.errors import ConfigError, UnavailableError
from penstock.lazy_imports import optional_package
from penstock.sinks.kafka.clients import Admin, ClientLog
from penstock.sinks.kafka.messages import MessageLimits

REQUEST_TIMEOUT_S = 15.0
_OURS = {
    "acks": "all replicas must have a message",
    "bootstrap.servers": "it is the first argument",
    "enable.auto.commit": "no consumer group is used",
    "enable.idempotence": "transactions need it",
    "metadata.broker.list": "it is the first argument",
    "request.required.acks": "all replicas must have a message",
    "isolation.level": "what is not committed must not be believed",
    "transactional.id": "it is made of transactional_id, the job and the sink",
}
_DEFAULTS = {
    "partitioner": "murmur2_random",  # a key goes where producers in Java send it
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
"""How the options begin that are for every client; the others are for the producer."""
_SECRETS = ("password", "secret", "token", "key.pem", "oauthbearer.config", "jaas")
_log = logging.getLogger(__name__)


class KafkaCluster:
    """Where the brokers are and how to talk to them; it is pickled into tasks, which do not connect."""

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
        """A producer; the user's options come before our defaults, `settings` before both."""
        return self._client("Producer", {**_DEFAULTS, **self.options, **settings})

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        """A consumer that reads what is committed."""
        fixed = {"enable.auto.commit": False, "isolation.level": "read_committed"}
        return self._client("Consumer", {**self._connection(), **fixed, **settings})

    def admin(self) -> Admin:
        """A client that looks at topics and settings."""
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
                f"Kafka refuses the options of the sink: {self.redacted(error)}; see the configuration of librdkafka",
                options=sorted(self.options),
            ) from None  # the cause may quote a password

    def redacted(self, error: object) -> str:
        """The text of an error without passwords."""
        text = str(error)
        for name, value in self.options.items():
            if any(word in name for word in _SECRETS) and str(value):
                text = text.replace(str(value), "***")
        return text

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Report whatever the cluster says as something that may pass."""
        try:
            yield
        except (kafka_exception(), TimeoutError) as error:
            text = self.redacted(error) or "no answer in time"
            trouble = self.client_log.trouble
            why = f"Kafka is down, or a part of it ({self.redacted(trouble)}): " if trouble else ""
            raise UnavailableError(
                f"{why}cannot {doing} (brokers {self.address}): {text}; check the brokers, the network "
                "and what this user may do",
                brokers=self.address,
                cause=text,
            ) from None

    # ── what the cluster must offer ────────────────────────────────────────────────────────────

    def check_topic(self, admin: Admin, topic: str) -> MessageLimits:
        """The limits of a topic; a missing one is a `ConfigError`."""
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
        """Refuse a transaction that may stay open longer than the brokers allow."""
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
        """Create the topic of commits if it is missing; refuse one that forgets."""
        if self._partitions(admin, topic) is None:
            self._create_compacted(admin, topic)
            return
        policy = self._settings(admin, "TOPIC", topic).get("cleanup.policy", "compact")
        if {part.strip() for part in policy.split(",")} != {"compact"}:
            raise ConfigError(
                f"the topic {topic!r} has cleanup.policy={policy}: Kafka would delete the proof of what is committed. Set "
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
                    f"the topic {topic!r}, in which a Kafka sink notes what is committed, is missing and cannot be created: "
                    f"{self.redacted(error)}; create it with one partition and cleanup.policy=compact",
                    topic=topic,
                ) from None

    def _partitions(self, admin: Admin, topic: str) -> int | None:
        """How many partitions a topic has; None if there is none. Asking must not create it."""
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
        """Settings as the cluster tells them; none if this user may not ask."""
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
    """The root of what confluent-kafka raises."""
    kind: type[Exception] = imported("confluent_kafka").KafkaException
    return kind


def imported(module: str) -> Any:
    """Import a part of confluent-kafka, or say how to get it."""
    return optional_package(module, needed_by="sinks.Kafka", extra="kafka")
