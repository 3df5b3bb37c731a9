"""Where a transaction of a Kafka sink goes and where its proof is: settled when it is staged. Driver and executors.

Settings may change between a crash and the next start. What a checkpoint promised stays promised to the topic of then, and only
the topic of commits and the transactional id of then can tell whether it was committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.sinks.staged.staging import (
    StagedTransaction,
    folders_up_to,
    storage_errors,
)
from penstock.storage.file_system import sync_file, sync_folder


class Owner(NamedTuple):
    """Who commits: one sink of one job, in the name of one transactional id, with its proofs in one topic."""

    job: str
    sink: str
    commits_topic: str
    prefix: str

    @property
    def transactional_id(self) -> str:
        """The name that fences; also the key of the record in the topic of commits."""
        return f"{self.prefix}.{self.job}.{self.sink}"


class KafkaTransaction(StagedTransaction, frozen=True, kw_only=True):
    """One transaction as the checkpoint stores it, with the settings that it was staged under."""

    topic: str
    commits_topic: str
    transactional_id: str

    @property
    def owner(self) -> Owner:
        """Who commits it."""
        return Owner(self.job, self.sink, self.commits_topic, self.transactional_id)


msgspec.json.Decoder(KafkaTransaction)  # so that `convert` meets a type that is known, see `snapshot.mailbox`


class KnownOwners:
    """Those that have had a record in their topic of commits: one line each, durable before their first message is produced.

    Whoever is listed here and has no record any more has lost it, and with it the answer to what was committed last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __contains__(self, owner: Owner) -> bool:
        with storage_errors("read", self.path):
            return self.path.exists() and _line(owner) in self.path.read_text(encoding="utf-8").split("\n")

    def add(self, owner: Owner) -> None:
        """Write one down; the newline in front ends a line that a crash tore."""
        with storage_errors("write to", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"\n{_line(owner)}\n")
            sync_file(self.path)
            for folder in folders_up_to(self.path.parent, self.path.parent.parent):
                sync_folder(folder)


def _line(owner: Owner) -> str:
    return f"{owner.commits_topic} {owner.transactional_id}"
