"""Messages and the proof of their commit in one Kafka transaction. Driver only.

The proof is the newest record of `<transactional id>` in a compacted topic: the transactions of the last Kafka transaction
of this job and sink. It answers the one question that a crash leaves open. Older commits are in the `CommitLog` of the
staging folder: a new Kafka transaction begins only after the previous one is recorded there.

The first record names no transaction. It is written before the first message, so that a missing record always means that it was lost.

Every Kafka transaction has its own producer epoch. Within one epoch the broker cannot distinguish a delayed request of an earlier
transaction from one of the current transaction: a late `EndTxn` would commit half of it. Taking a new epoch also takes the
transactional id from its holder, so each record carries the claim of its session, and a session whose claim is not the newest ends.

Settings may change between a crash and the next start. A transaction keeps the settings under which it was staged: its messages
go to that topic, and only that topic of commits and that transactional id show whether it was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock.clock import SYSTEM_CLOCK
from penstock.decoding import decoded
from penstock.errors import CommitLostError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.sinks.kafka.cluster import REQUEST_TIMEOUT_S, KafkaCluster, imported, kafka_exception
from penstock.sinks.kafka.messages import Message, staged_messages
from penstock.sinks.staging import (
    StagedTransaction,
    folders_up_to,
    storage_errors,
)
from penstock.storage.file_system import sync_file, sync_folder
from penstock.wording import counted, duration


class Owner(NamedTuple):
    """One sink of one job that commits under one transactional id, with its proofs in one topic."""

    job: str
    sink: str
    commits_topic: str
    prefix: str

    @property
    def transactional_id(self) -> str:
        """The id that fences older sessions; also the key of the record in the topic of commits."""
        return f"{self.prefix}.{self.job}.{self.sink}"


class KafkaTransaction(StagedTransaction, frozen=True, kw_only=True):
    """One transaction as the checkpoint stores it, with the settings under which it was staged."""

    topic: str
    commits_topic: str
    transactional_id: str

    @property
    def owner(self) -> Owner:
        """The sink and transactional id that commit it."""
        return Owner(self.job, self.sink, self.commits_topic, self.transactional_id)


msgspec.json.Decoder(KafkaTransaction)  # registers the type before there are threads, see `snapshot.mailbox`


class KnownOwners:
    """The owners that have had a record in their topic of commits, one line each, durable before their first message is produced.

    If an owner is listed here and its record is missing, the record was lost, and with it the proof of the last commit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __contains__(self, owner: Owner) -> bool:
        with storage_errors("read", self.path):
            return self.path.exists() and _line(owner) in self.path.read_text(encoding="utf-8").split("\n")

    def add(self, owner: Owner) -> None:
        """Add an owner. The leading newline ends a line that a crash cut off."""
        with storage_errors("write to", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"\n{_line(owner)}\n")
            sync_file(self.path)
            for folder in folders_up_to(self.path.parent, self.path.parent.parent):
                sync_folder(folder)


def _line(owner: Owner) -> str:
    return f"{owner.commits_topic} {owner.transactional_id}"


_PARTITION = 0
"""All records are in one partition, so that adding partitions cannot hide one."""


_STEP_S = 10.0
_QUICK = {"auto.offset.reset": "earliest", "enable.partition.eof": True, "fetch.wait.max.ms": 10}


class Proof(msgspec.Struct, frozen=True):
    """The record in the topic of commits. The names of transactions leave out job and sink."""

    job: str
    sink: str
    transactions: list[str]
    format: int = 1
    claim: str = ""
    """The session that wrote it."""


_PROOFS = msgspec.json.Decoder(Proof)


class CommitsTopic:
    """The topic with the proofs of one job and sink."""

    def __init__(self, cluster: KafkaCluster, owner: Owner) -> None:
        self._cluster = cluster
        self._owner = owner
        self.topic = owner.commits_topic
        self.key = owner.transactional_id
        self._read_up_to = 0

    def last(self, timeout_s: float) -> tuple[StagedTransaction, ...] | None:
        """Return the transactions in the newest committed record; None if there is no record.

        It waits until every transaction that is open in the topic now, also of other jobs, has ended. A reader sees nothing after
        an open one, and would take a record that it does not see for a missing one.
        """
        with self._cluster.errors(f"read the topic {self.topic!r}"):
            record = self._read({}, timeout_s)
        return None if record is None else self._transactions(self._understood(record))

    def is_last_claim(self, claim: str, timeout_s: float) -> bool:
        """Return whether the newest record since the last read has this claim.

        Records of open and aborted transactions count, too: this does not wait for other jobs, and an unfinished claim of another session
        is reason enough to stop.
        """
        with self._cluster.errors(f"read the topic {self.topic!r}"):
            record = self._read({"isolation.level": "read_uncommitted"}, timeout_s)
        return record is not None and self._understood(record).claim == claim

    def _read(self, settings: Mapping[str, Any], timeout_s: float) -> bytes | None:
        """Return the newest value of our key between the end of the last read and the current end of the topic."""
        first, end = self._read_up_to, self._end()
        if first >= end:
            return None
        record = self._newest(range(first, end), settings, SYSTEM_CLOCK.monotonic() + timeout_s)
        self._read_up_to = end
        return record

    def _end(self) -> int:
        kafka, admin = imported("confluent_kafka"), imported("confluent_kafka.admin")
        partition = kafka.TopicPartition(self.topic, _PARTITION)
        admin_client = self._cluster.admin()  # must live until the response arrives
        asked = admin_client.client.list_offsets(
            {partition: admin.OffsetSpec.latest()},
            isolation_level=kafka.IsolationLevel.READ_UNCOMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        return int(admin_client.answer(asked[partition], REQUEST_TIMEOUT_S).offset)

    def _newest(self, offsets: range, settings: Mapping[str, Any], deadline: float) -> bytes | None:
        kafka = imported("confluent_kafka")
        consumer = self._cluster.consumer({"group.id": self.key, **_QUICK, **settings})
        newest: bytes | None = None
        position = offsets.start
        try:
            consumer.assign([kafka.TopicPartition(self.topic, _PARTITION, position)])
            while position < offsets.stop:
                if SYSTEM_CLOCK.monotonic() > deadline:
                    raise TimeoutError(
                        f"a transaction is open at offset {position}, so the topic cannot be read up to offset {offsets.stop}"
                    )
                message = consumer.poll(0.1)
                if message is not None:
                    newest, position = self._step(message, newest)
        finally:
            consumer.close()
        return newest

    def _step(self, message: Any, newest: bytes | None) -> tuple[bytes | None, int]:
        """Return the newest value of our key, and the offset up to which everything is read."""
        kafka = imported("confluent_kafka")
        error = message.error()
        if error is None:
            mine = message.key() == self.key.encode()
            return (message.value() if mine else newest), message.offset() + 1
        if error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its public name
            return newest, message.offset()
        raise kafka.KafkaException(error)

    def proof(self, transactions: Sequence[StagedTransaction], claim: str = "") -> bytes:
        """Return the record that names these transactions."""
        prefix = f"{self._owner.job}.{self._owner.sink}."
        names = [one.name.removeprefix(prefix) for one in transactions]
        return msgspec.json.encode(Proof(self._owner.job, self._owner.sink, names, claim=claim))

    def _understood(self, record: bytes) -> Proof:
        try:
            return decoded(_PROOFS, record)
        except msgspec.DecodeError as error:
            raise self._unreadable(str(error)) from error

    def _transactions(self, proof: Proof) -> tuple[StagedTransaction, ...]:
        found = [
            StagedTransaction.parse(proof.job, proof.sink, f"{proof.job}.{proof.sink}.{name}")
            for name in proof.transactions
        ]
        if None in found or proof.format != 1:
            raise self._unreadable(f"format {proof.format}")
        return tuple(one for one in found if one is not None)

    def _unreadable(self, why: str) -> CommitLostError:
        return CommitLostError(
            f"the record of {self.key!r} in the topic {self.topic!r} cannot be read ({why}), so it is not known what was "
            "committed last, and nothing is committed. Check which other program writes to this topic",
            topic=self.topic,
            key=self.key,
        )


class CommitSession:
    """The session in which one job and sink commits; opening it fences every earlier one."""

    def __init__(
        self, cluster: KafkaCluster, commits: CommitsTopic, settings: dict[str, Any], patience_s: float
    ) -> None:
        deadline = _Deadline(patience_s)
        self._cluster = cluster
        self.commits = commits
        self._settings = {**settings, "transactional.id": commits.key}
        self._claim = SYSTEM_RANDOMNESS.token(16)
        self._producer = self._with_new_epoch(deadline)
        self._is_spent = False
        self.last = commits.last(patience_s)
        """What the last Kafka transaction committed; None before the first. No other session can add to it after `init_transactions`."""
        if self.last is not None:
            self._claim_it(deadline)

    def _claim_it(self, deadline: _Deadline) -> None:
        """Write the last record again with the claim of this session, so that earlier sessions end."""
        with self._cluster.errors(f"write to the topic {self.commits.topic!r}"):
            self._begin(deadline)
            self._commit(deadline.left_s, self.last or ())

    def _with_new_epoch(self, deadline: _Deadline) -> Any:
        """Make a producer that takes over the transactional id."""
        producer = self._cluster.producer(self._settings)
        with self._cluster.errors(f"begin transactions as {self.commits.key!r}"):
            self._take_over(producer, deadline)
        return producer

    def _take_over(self, producer: Any, deadline: _Deadline) -> None:
        """Take over the transactional id, waiting in steps: the client reports a refused login only when it is polled."""
        kafka = imported("confluent_kafka")
        while True:
            try:
                producer.init_transactions(min(max(deadline.left_s, 0.1), _STEP_S))
            except kafka.KafkaException as error:
                producer.poll(0)
                timed_out = error.args[0].code() == kafka.KafkaError._TIMED_OUT  # noqa: SLF001 - that is its public name
                if not timed_out or self._cluster.client_log.trouble or deadline.left_s <= 0:
                    raise
            else:
                return

    def _begin(self, deadline: _Deadline) -> None:
        """Begin a transaction in an epoch of its own.

        The claim is checked after the new epoch began: a session that claims later fences this epoch.
        """
        if self._is_spent:
            self._producer = self._with_new_epoch(deadline)
            if not self.commits.is_last_claim(self._claim, max(deadline.left_s, 1.0)):
                raise UnavailableError(
                    f"fenced: another session has taken over {self.commits.key!r}, so this one commits nothing. If this run "
                    "still owns the job, it takes the id back with its next try",
                    key=self.commits.key,
                )
        self._is_spent = True
        self._producer.begin_transaction()

    def introduce(self, timeout_s: float) -> None:
        """Write the first record. After an error the session must be discarded."""
        with self._cluster.errors(f"write to the topic {self.commits.topic!r}"):
            self._begin(_Deadline(timeout_s))
            self._commit(timeout_s, ())

    def publish(
        self,
        topic: str,
        batches: Iterable[pa.RecordBatch],
        transactions: Sequence[StagedTransaction],
        *,
        timeout_s: float,
    ) -> None:
        """Make staged messages visible together with their proof. After an error the session must be discarded."""
        deadline = _Deadline(timeout_s)
        with self._refusals(topic, transactions), self._cluster.errors(f"commit to the topic {topic!r}"):
            self._begin(deadline)
            self._produce(topic, batches, deadline)
            self._flush(deadline)  # so that the proof blocks readers of its topic only briefly
            self._commit(deadline.left_s, transactions)

    def _commit(self, timeout_s: float, transactions: Sequence[StagedTransaction]) -> None:
        proof = self.commits.proof(transactions, self._claim)
        self._producer.produce(self.commits.topic, proof, self.commits.key.encode(), _PARTITION)
        self._producer.commit_transaction(max(timeout_s, 1.0))
        self.last = tuple(transactions)

    @contextmanager
    def _refusals(self, topic: str, transactions: Sequence[StagedTransaction]) -> Iterator[None]:
        """Raise `CommitLostError` if the topic refuses a message for good. The reason is only in the client's log.

        Delivery reports would have it too, but confluent-kafka does not deliver them after a fatal error.
        """
        log = self._cluster.client_log
        log.forget_failure()
        try:
            yield
        except UnavailableError as error:
            # polling raises a fatal error again, which `error` already reports
            with suppress(kafka_exception()):
                self._producer.poll(0)
            if not any(words in log.failure for words in _refused_for_good()):
                raise
            raise _refused(topic, transactions, log.failure) from error

    def discard(self) -> None:
        """Drop pending messages; the broker aborts the transaction when the next session begins, or after its timeout."""
        self._producer.purge(blocking=False)

    def _produce(self, topic: str, batches: Iterable[pa.RecordBatch], deadline: _Deadline) -> None:
        """Produce all messages. This is the hot loop of a commit: every statement runs once per message."""
        produce = self._producer.produce
        for message in chain.from_iterable(map(staged_messages, batches)):
            try:
                produce(topic, *message)
            except BufferError:
                self._produce_later(topic, message, deadline)

    def _produce_later(self, topic: str, message: Message, deadline: _Deadline) -> None:
        """Wait until the queue has room."""
        while True:
            deadline.check()
            self._producer.poll(0.05)
            try:
                self._producer.produce(topic, *message)
            except BufferError:
                continue
            return

    def _flush(self, deadline: _Deadline) -> None:
        while self._producer.flush(1.0):
            deadline.check()


def _refused_for_good() -> list[str]:
    """Return the client's texts for errors that the same message would get again: too large, or invalid (such as a missing key)."""
    error = imported("confluent_kafka").KafkaError
    return [error(code).str() for code in (error.MSG_SIZE_TOO_LARGE, error.INVALID_RECORD)]


def _refused(topic: str, transactions: Sequence[StagedTransaction], why: str) -> CommitLostError:
    return CommitLostError(
        f"the topic {topic!r} refuses a message of {counted(len(transactions), 'transaction')}, from {transactions[0].name} on, which a "
        f"checkpoint promised: {why}. The topic accepted such messages when they were staged: was its cleanup.policy or "
        "max.message.bytes changed? They stay staged. Change the topic back, then start the job again: it commits them first",
        topic=topic,
        cause=why,
    )


class _Deadline:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._end = SYSTEM_CLOCK.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        return self._end - SYSTEM_CLOCK.monotonic()

    def check(self) -> None:
        if self.left_s < 0:
            raise UnavailableError(
                f"a commit to Kafka did not finish in {duration(self._timeout_s)}; if the brokers are healthy, there are too "
                "many rows for one Kafka transaction: raise commit_timeout, or take checkpoints more often",
                timeout_s=self._timeout_s,
            )
