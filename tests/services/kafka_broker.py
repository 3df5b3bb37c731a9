"""A real Kafka broker (KRaft, one node, loopback) in a folder, for the tests of one session."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from penstock.spark.java import find_java
from services import maven, summary
from services.kafka_proxy import KafkaProxy
from services.patience import PATIENCE_S, tries

VERSION = "4.1.2"
PASSWORD = "s3cret-of-the-tests"
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_LOGGING = ("slf4j-api-*", "log4j-slf4j2-impl-*", "log4j-core-*", "log4j-api-*")
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{guarded},PROXIED://127.0.0.1:{behind},\
  CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{guarded},PROXIED://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_me="{password}";
listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config=\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=300
"""


class KafkaBroker:
    """One broker; `kill` and `start` make it die and come back on the same port, with the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jars = maven.resolve("org.apache.kafka", "kafka_2.13", VERSION)
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count()
        port, guarded, controller, self._proxy, self._behind = _free_ports(5)
        self.address = f"127.0.0.1:{port}"
        self.guarded_address = f"127.0.0.1:{guarded}"
        """Where the user `me` needs the password."""
        self._settings = folder / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(
                port=port,
                guarded=guarded,
                controller=controller,
                proxy=self._proxy,
                behind=self._behind,
                folder=folder,
                password=PASSWORD,
            )
        )
        formatted = self._java(
            "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._settings)
        )
        if formatted.wait(PATIENCE_S) != 0:
            raise RuntimeError(f"the broker's folder cannot be formatted: {self._output()}")

    def start(self) -> None:
        """Return when it answers."""
        self._process = self._java("kafka.Kafka", str(self._settings))
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker does not come up: {self._output()}")
        summary.started("Kafka", VERSION)

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def proxy(self) -> KafkaProxy:
        """A proxy through which clients reach this broker, as long as they begin with its address."""
        return KafkaProxy(self._proxy, self._behind)

    @property
    def proxy_address(self) -> str:
        return f"127.0.0.1:{self._proxy}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def new_topic(self, partitions: int = 1, **config: str) -> str:
        """Create a topic that no other test uses."""
        name = f"topic-{next(self._names)}"
        topic = NewTopic(
            name, partitions, config={key.replace("_", "."): value for key, value in config.items()}
        )
        admin = self.admin()  # must live until the answer is there
        admin.create_topics([topic])[name].result(PATIENCE_S)
        for _ in tries(0.01):  # the broker knows of it a moment after it was made
            if len(admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == partitions:
                return name
        raise TimeoutError(name)

    def set_topic(self, topic: str, setting: str, value: str) -> None:
        """Change a setting of a topic."""
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", topic, incremental_configs=[entry])
        admin = self.admin()  # must live until the answer is there
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def produce(self, topic: str, values: list[bytes], **options: Any) -> None:
        """Write plain messages, outside of any transaction."""
        self.produce_each(topic, [{"value": value, **options} for value in values])

    def produce_each(self, topic: str, messages: list[dict[str, Any]]) -> None:
        """Write messages with options of their own."""
        producer = Producer({"bootstrap.servers": self.address, "log_level": 0})
        for message in messages:
            producer.produce(topic, **message)
        assert producer.flush(PATIENCE_S) == 0

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """All messages that a reader sees now, partition by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "reader",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            return _until_the_end(consumer, len(partitions))
        finally:
            consumer.close()

    def _answers(self) -> bool:
        """Clients look again for a broker only after a while, so none is made before somebody listens."""
        host, _, port = self.address.partition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            self.admin().list_topics(timeout=1)
        except OSError:
            time.sleep(0.02)
            return False
        except KafkaException:
            return False
        return True

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        logging = [str(jar) for pattern in _LOGGING for jar in maven.SPARK_JARS.glob(pattern)]
        classpath = os.pathsep.join([*logging, f"{self._jars}/*"])
        java = find_java().path / "bin" / "java"
        with (self._folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [str(java), *_JVM, "-cp", classpath, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )

    def _output(self) -> str:
        return (self._folder / "output.txt").read_text(errors="replace")[-2000:]


def _until_the_end(consumer: Consumer, partitions: int) -> list[Any]:
    messages: list[Any] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        for message in consumer.consume(1000, timeout=0.02):  # it waits so long unless there are as many
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(error)
    return sorted(messages, key=lambda message: (message.partition(), message.offset()))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
