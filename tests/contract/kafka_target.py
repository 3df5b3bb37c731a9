"""A topic of a real broker as the contract suite drives it, and as an ordinary reader sees it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.sinks import Kafka
from penstock.testing.sink_contract import Rule, SinkContract
from services.kafka_broker import KafkaBroker
from services.patience import tries


class KafkaTarget(SinkContract):
    settings: ClassVar[dict[str, Any]] = {"key": "id"}
    partitions = 3

    @pytest.fixture(autouse=True)
    def target(self, kafka: KafkaBroker, tmp_path: Path) -> None:
        self.use(kafka, tmp_path)

    def use(self, kafka: KafkaBroker, tmp_path: Path) -> KafkaTarget:
        self.broker = kafka
        self.topic = kafka.new_topic(self.partitions)
        self.commits = f"commits-of-{self.topic}"
        self.staging = tmp_path / "staging"
        self._validated: dict[str, bytes] = {}
        return self

    def sink(self) -> Any:
        """Validated once, as on a driver, and copied for each process; again after the test has changed its topic or settings."""
        asked = f"{self.topic} {self.commits} {self.staging} {self.settings}"
        if asked not in self._validated:
            self._validated[asked] = pickle.dumps(super().sink())
        return pickle.loads(self._validated[asked])

    def starts_anew(self) -> None:
        """Validate the next sink, as the start of a job does."""
        self._validated.clear()

    def make_sink(self, **changes: Any) -> Kafka:
        settings = {"commits_topic": self.commits, "staging": self.staging, **self.settings, **changes}
        return Kafka(self.broker.address, self.topic, **settings)

    def visible_rows(self) -> list[dict[str, Any]]:
        return [self.row_of(message) for message in self.broker.read(self.topic)]

    def assert_visible(self, *numbers: int, rule: Rule = Rule.COMMIT_SHOWS_EVERYTHING) -> None:
        """A broker promises the end of a transaction before it has written it to the partitions: a reader may have to wait a moment."""
        for _ in tries(0.05):
            if not self._as_read(numbers) - self._seen():
                break
        super().assert_visible(*numbers, rule=rule)

    def row_of(self, message: Any) -> dict[str, Any]:
        row = json.loads(message.value())
        assert message.key() == str(row["id"]).encode()
        return row
