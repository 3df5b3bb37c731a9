"""Messages and the proof of their commit in one Kafka transaction. Driver only.

The proof is the newest record of `<transactional id>` in a compacted topic: the transactions of the last Kafka transaction
of this job and sink. It settles the one question that a crash leaves open. Older commits are in the `CommitLog` of the
staging folder: a new Kafka transaction begins only after the one before is written down there.

The first record names no transaction. It is there before the first message, so that a missing one always means: lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from penstock.clock import SYSTEM_CLOCK
from penstock.decoding import decoded
from penstock.errors import CommitLostError, UnavailableError
from penstock.sinks.kafka.cluster import REQUEST_TIMEOUT_S, KafkaCluster, imported, kafka_exception
from penstock.sinks.kafka.messages import Message, staged_messages
from penstock.sinks.kafka.transaction import Owner
from penstock.sinks.staged.staging import StagedTransaction
from penstock.wording import counted, duration

_PARTITION = 0
"""All records are in one partition: a number of partitions that changes must not hide one."""


_STEP_S = 10.0
_QUICK = {"auto.offset.reset": "earliest", "enable.partition.eof": True, "fetch.wait.max.ms": 10}


class Proof(msgspec.Struct, frozen=True):
    """The record in the topic of commits; names are without job and sink, which are said once."""

    job: str
    sink: str
    transactions: list[str]
    format: int = 1


_PROOFS = msgspec.json.Decoder(Proof)


class CommitsTopic:
    """Where the proofs of one job and sink are kept."""

    def __init__(self, cluster: KafkaCluster, owner: Owner) -> None:
        self._cluster = cluster
        self._owner = owner
        self.topic = owner.commits_topic
        self.key = owner.transactional_id

    def last(self, timeout_s: float) -> tuple[StagedTransaction, ...] | None:
        """What the newest committed record names; None if there is no record.

        It waits until every transaction in the topic that is open now, also of other jobs, has ended: behind an open one a
        reader sees nothing, and a record that is not seen would be taken for one that does not exist.
        """
        with self._cluster.errors(f"read the topic {self.topic!r}"):
            end = self._end()
            record = self._newest(end, SYSTEM_CLOCK.monotonic() + timeout_s) if end else None
        return None if record is None else self._understood(record)

    def _end(self) -> int:
        kafka, admin = imported("confluent_kafka"), imported("confluent_kafka.admin")
        partition = kafka.TopicPartition(self.topic, _PARTITION)
        admin_client = self._cluster.admin()  # it must live until the answer is there
        asked = admin_client.client.list_offsets(
            {partition: admin.OffsetSpec.latest()},
            isolation_level=kafka.IsolationLevel.READ_UNCOMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        return int(admin_client.answer(asked[partition], REQUEST_TIMEOUT_S).offset)

    def _newest(self, end: int, deadline: float) -> bytes | None:
        kafka = imported("confluent_kafka")
        consumer = self._cluster.consumer({"group.id": self.key, **_QUICK})
        newest: bytes | None = None
        position = 0
        try:
            consumer.assign([kafka.TopicPartition(self.topic, _PARTITION, 0)])
            while position < end:
                if SYSTEM_CLOCK.monotonic() > deadline:
                    raise TimeoutError(
                        f"a transaction is open at offset {position}, and {end} was to be reached"
                    )
                message = consumer.poll(0.1)
                if message is not None:
                    newest, position = self._step(message, newest)
        finally:
            consumer.close()
        return newest

    def _step(self, message: Any, newest: bytes | None) -> tuple[bytes | None, int]:
        """The newest value of our key, and the offset up to which everything is read."""
        kafka = imported("confluent_kafka")
        error = message.error()
        if error is None:
            mine = message.key() == self.key.encode()
            return (message.value() if mine else newest), message.offset() + 1
        if error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its public name
            return newest, message.offset()
        raise kafka.KafkaException(error)

    def proof(self, transactions: Sequence[StagedTransaction]) -> bytes:
        """The record that names these."""
        prefix = f"{self._owner.job}.{self._owner.sink}."
        names = [one.name.removeprefix(prefix) for one in transactions]
        return msgspec.json.encode(Proof(self._owner.job, self._owner.sink, names))

    def _understood(self, record: bytes) -> tuple[StagedTransaction, ...]:
        try:
            proof = decoded(_PROOFS, record)
            found = [
                StagedTransaction.parse(proof.job, proof.sink, f"{proof.job}.{proof.sink}.{name}")
                for name in proof.transactions
            ]
        except msgspec.DecodeError as error:
            raise self._unreadable(str(error)) from error
        if None in found or proof.format != 1:
            raise self._unreadable(f"format {proof.format}")
        return tuple(one for one in found if one is not None)

    def _unreadable(self, why: str) -> CommitLostError:
        return CommitLostError(
            f"the record of {self.key!r} in the topic {self.topic!r} cannot be understood ({why}), so it is not known what was "
            "committed last, and nothing is committed. See who else writes to this topic",
            topic=self.topic,
            key=self.key,
        )


class CommitSession:
    """The producer of one job and sink; opening it makes every earlier one powerless."""

    def __init__(
        self, cluster: KafkaCluster, commits: CommitsTopic, settings: dict[str, Any], patience_s: float
    ) -> None:
        self._cluster = cluster
        self.commits = commits
        self._producer = cluster.producer({**settings, "transactional.id": commits.key})
        with cluster.errors(f"begin transactions as {commits.key!r}"):
            self._take_over(_Deadline(patience_s))
        self.last = commits.last(patience_s)
        """What the last Kafka transaction committed, None before the first; after `init_transactions`, so nobody can add to it."""

    def _take_over(self, deadline: _Deadline) -> None:
        """Wait in steps: the client says only to those who poll that no broker lets it in, and then nobody has to wait longer."""
        kafka = imported("confluent_kafka")
        while True:
            try:
                self._producer.init_transactions(min(max(deadline.left_s, 0.1), _STEP_S))
            except kafka.KafkaException as error:
                self._producer.poll(0)
                timed_out = error.args[0].code() == kafka.KafkaError._TIMED_OUT  # noqa: SLF001 - that is its public name
                if not timed_out or self._cluster.client_log.trouble or deadline.left_s <= 0:
                    raise
            else:
                return

    def introduce(self, timeout_s: float) -> None:
        """Write the first record. After an error the session is of no use any more."""
        with self._cluster.errors(f"write to the topic {self.commits.topic!r}"):
            self._producer.begin_transaction()
            self._commit(timeout_s, ())

    def publish(
        self,
        topic: str,
        batches: Iterable[pa.RecordBatch],
        transactions: Sequence[StagedTransaction],
        *,
        timeout_s: float,
    ) -> None:
        """Make staged messages visible together with their proof. After an error the session is of no use any more."""
        deadline = _Deadline(timeout_s)
        with self._refusals_told(topic, transactions), self._cluster.errors(f"commit to the topic {topic!r}"):
            self._producer.begin_transaction()
            self._produce(topic, batches, deadline)
            self._flush(deadline)  # so that the proof keeps readers of its topic waiting for a moment only
            self._commit(deadline.left_s, transactions)

    def _commit(self, timeout_s: float, transactions: Sequence[StagedTransaction]) -> None:
        proof = self.commits.proof(transactions)
        self._producer.produce(self.commits.topic, proof, self.commits.key.encode(), _PARTITION)
        self._producer.commit_transaction(max(timeout_s, 1.0))
        self.last = tuple(transactions)

    @contextmanager
    def _refusals_told(self, topic: str, transactions: Sequence[StagedTransaction]) -> Iterator[None]:
        """What fails after a message was refused says only that the transaction failed; why, the client's log says.

        A report of each message would say it too, but confluent-kafka cannot call for reports once an error is fatal.
        """
        log = self._cluster.client_log
        log.forget_failure()
        try:
            yield
        except UnavailableError as error:
            with suppress(
                kafka_exception()
            ):  # a fatal one is told again to whoever polls; `error` says it already
                self._producer.poll(0)
            if not any(words in log.failure for words in _refused_for_good()):
                raise
            raise _refused(topic, transactions, log.failure) from error

    def discard(self) -> None:
        """Forget what is under way; the broker aborts it when the next session begins, or after the time-out."""
        self._producer.purge(blocking=False)

    def _produce(self, topic: str, batches: Iterable[pa.RecordBatch], deadline: _Deadline) -> None:
        """The hot loop of a commit: whatever is done here is done once a message."""
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
    """How the client calls what the same message would meet again: too large, or (a null key in a compacted topic, say) not valid."""
    error = imported("confluent_kafka").KafkaError
    return [error(code).str() for code in (error.MSG_SIZE_TOO_LARGE, error.INVALID_RECORD)]


def _refused(topic: str, transactions: Sequence[StagedTransaction], why: str) -> CommitLostError:
    return CommitLostError(
        f"the topic {topic!r} refuses a message of {counted(len(transactions), 'transaction')}, from {transactions[0].name} on, which a "
        f"checkpoint promised: {why}. When they were staged it took such messages: was its cleanup.policy or "
        f"max.message.bytes changed? "
        "They stay staged. Change the topic back, then start the job again: it commits them first",
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
                f"a commit to Kafka was not done in {duration(self._timeout_s)}; if the brokers are well, there are too "
                "many rows for one Kafka transaction: raise commit_timeout, or take checkpoints more often",
                timeout_s=self._timeout_s,
            )
