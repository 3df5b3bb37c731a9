"""The sink `Kafka`: messages in a topic. Staged in tasks as files, produced on the driver in one Kafka transaction.

    <staging>/<job>/<sink>/<transaction>.arrow     staged messages
    <staging>/<job>/<sink>/committed/              proofs of commit, see `commit_log`
    <staging>/<job>/<sink>/owners                  whose record must be in the topic, see `transaction`
    topic `commits_topic`, key <transactional id>  what the last Kafka transaction committed, see `commits`

A commit is: take the transactional id over; write into the log what the last Kafka transaction is known to have
committed; ONE Kafka transaction with the messages and the new proof; write the log; delete the staged files.

    found                                  meaning                     commit makes of it
    staged, in no proof                    not committed               produce
    staged, in the record of the topic     committed, then a crash     write the log, delete
    staged, in the log                     committed, then a crash     delete
    not staged, in either                  committed                   nothing to do
    not staged, in neither                 aborted, or taken away      CommitLostError
    in no log, and the record is gone      nobody knows                CommitLostError
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import pyarrow as pa

from penstock.config import Duration, seconds
from penstock.errors import CommitLostError, ConfigError, UnavailableError
from penstock.ids import checked_name
from penstock.sinks.kafka.cluster import (
    KafkaCluster,
    producer_settings,
    transaction_timeout_ms,
    within_options,
)
from penstock.sinks.kafka.commits import CommitSession, CommitsTopic, KafkaTransaction, KnownOwners, Owner
from penstock.sinks.kafka.messages import MessageLayout
from penstock.sinks.staged_sink import StagedSink
from penstock.sinks.staging import CommitLog, StagedTransaction
from penstock.sinks.two_phase_commit import Transaction
from penstock.wording import counted

_MOST_IN_ONE_PROOF = 10_000
_LOOK_PATIENCE_S = 10.0
"""Whoever only looks for leftovers comes again at the next checkpoint, and must not hold it up."""


class Kafka(StagedSink):
    """Messages in a topic; a reader with `isolation.level=read_committed` sees each once, a commit's all at once.

    `staging` is a folder that the driver and all executors share. `key`, `partition` and the values of `headers` name
    columns. `value` names one column, or several that become a JSON object; without it all columns do. With
    `format="bytes"` key and value are taken as they are. `options` are settings of librdkafka: those of
    the connection for all clients, the others for the producer.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        topic: str,
        *,
        staging: str | os.PathLike[str],
        key: str | None = None,
        value: str | Sequence[str] | None = None,
        headers: Mapping[str, str] | Sequence[str] = (),
        partition: str | None = None,
        format: str = "json",  # noqa: A002 - the word that Spark uses for it
        commits_topic: str = "penstock-commits",
        transactional_id: str = "penstock",
        commit_timeout: Duration = "5min",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(staging)
        self.cluster = KafkaCluster(_brokers(address), options or {})
        self.topic = topic
        self.layout = MessageLayout.of(
            key=key, value=value, headers=headers, partition=partition, form=format
        )
        self.commits_topic = commits_topic
        self.transactional_id = checked_name("transactional_id", transactional_id)
        self.commit_timeout_s = seconds("commit_timeout", commit_timeout, minimum_s=1.0)
        self._transaction_timeout_ms = transaction_timeout_ms(self.commit_timeout_s, options or {})
        self._sessions: dict[Owner, CommitSession] = {}
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"Kafka({self.cluster.address!r}, topic={self.topic!r}, format={self.layout.format!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_sessions": {}, "_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opening=threading.Lock())

    def validate(self, schema: pa.Schema) -> None:
        """Compare columns, staging folder, topics, time-outs and options with what a commit will need."""
        self.layout.check(schema)
        super().validate(schema)
        admin = self.cluster.admin()
        limits = self.cluster.check_topic(admin, self.topic)
        self.layout = self.layout.within(within_options(limits, self.cluster.options))
        self.cluster.check_transaction_timeout(admin, self._transaction_timeout_ms)
        self.cluster.producer({**self._producer_settings(), "transactional.id": self.transactional_id})
        self.cluster.ensure_compacted(admin, self.commits_topic)

    def staged_form(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make messages of the rows; what the topic would refuse is refused while the job can go back."""
        return self.layout.messages(batch)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Make the messages durable, and settle where they go and where their proof will be."""
        where = {
            "topic": self.topic,
            "commits_topic": self.commits_topic,
            "transactional_id": self.transactional_id,
        }
        return {**super().pre_commit(transaction), **where}

    def commit(self, transaction: Transaction) -> None:
        """Produce the messages, once."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Produce the messages of all in one Kafka transaction: they become visible at the same moment."""
        staged = [KafkaTransaction.read(transaction) for transaction in transactions]
        for (owner, topic), members in groupby(staged, key=lambda one: (one.owner, one.topic)):
            group = list(members)
            self._commit_owned(owner, topic, group)
            for transaction in group:
                self.delete_staged(transaction)

    def committed_of(self, job: str, sink: str, found: Sequence[StagedTransaction]) -> set[str]:
        """The names of those that log or topic know as committed."""
        done = super().committed_of(job, sink, found)
        if any(one.name not in done for one in found):
            patience_s = min(_LOOK_PATIENCE_S, self.commit_timeout_s)
            owner = Owner(job, sink, self.commits_topic, self.transactional_id)
            done |= _names(self._session(owner, patience_s).last or ())  # whoever asks owns the job
        return done

    # ── committing ─────────────────────────────────────────────────────────────────────────────

    def _commit_owned(self, owner: Owner, topic: str, members: list[KafkaTransaction]) -> None:
        log = self.log(owner.job, owner.sink)
        if len(log.committed(members)) == len(members):
            return
        session = self._session(owner, self.commit_timeout_s)
        last = session.last or ()
        recorded = log.committed(
            [*last, *members]
        )  # again: from now on nobody else can commit, until now a successor could
        log.append(set(last) - recorded)
        done = _names(last) | _names(recorded)
        left = [one for one in members if one.name not in done]
        with self._discarded_after_an_error(session, owner):
            if left:
                self._introduce(session, owner, left)
            for first in range(0, len(left), _MOST_IN_ONE_PROOF):
                self._publish(session, topic, left[first : first + _MOST_IN_ONE_PROOF], log)

    def _introduce(self, session: CommitSession, owner: Owner, members: list[KafkaTransaction]) -> None:
        """See that there is a record before anything is produced: its absence would not mean anything otherwise."""
        known = KnownOwners(self.staging / owner.job / owner.sink / "owners")
        listed = owner in known
        if session.last is None:
            if listed:
                raise _record_lost(session, members, known)
            session.introduce(self.commit_timeout_s)
        if not listed:
            known.add(owner)

    def _publish(
        self, session: CommitSession, topic: str, members: list[KafkaTransaction], log: CommitLog
    ) -> None:
        tables = [
            self.staged_rows(one) for one in members
        ]  # all are looked at before the first one is produced
        batches = (batch for table in tables if table is not None for batch in table.to_batches())
        session.publish(topic, batches, members, timeout_s=self.commit_timeout_s)
        log.append(members)

    @contextmanager
    def _discarded_after_an_error(self, session: CommitSession, owner: Owner) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._sessions.pop(owner, None)
            session.discard()
            raise

    def _session(self, owner: Owner, patience_s: float) -> CommitSession:
        """The one session of this process: commits and searches come from two threads, and would fence each other."""
        if not self._opening.acquire(timeout=patience_s):
            raise UnavailableError(
                f"{self!r} is still waiting for the brokers; check them and the network",
                brokers=self.cluster.address,
            )
        try:
            if owner not in self._sessions:
                self._sessions[owner] = self._opened(owner, patience_s)
            return self._sessions[owner]
        finally:
            self._opening.release()

    def _opened(self, owner: Owner, patience_s: float) -> CommitSession:
        commits = CommitsTopic(self.cluster, owner)
        return CommitSession(self.cluster, commits, self._producer_settings(), patience_s)

    def _producer_settings(self) -> dict[str, Any]:
        return producer_settings(self.layout.limits, self.cluster.options, self._transaction_timeout_ms)


def _record_lost(
    session: CommitSession, members: list[KafkaTransaction], known: KnownOwners
) -> CommitLostError:
    commits, topic = session.commits, members[0].topic
    return CommitLostError(
        f"the topic {commits.topic!r} has no record of {commits.key!r} any more: it was deleted or made anew, or these are other "
        f"brokers. So nobody knows whether the rows of {counted(len(members), 'transaction')}, from {members[0].name} on, are in "
        f"the topic {topic!r}, and none is produced. Look there. If they are missing, delete {known.path} and start the job again. If they "
        f"are there, first produce the `record` of this error with the key {commits.key!r} to partition 0 of {commits.topic!r}",
        topic=topic,
        commits_topic=commits.topic,
        key=commits.key,
        record=commits.proof(members).decode(),
    )


def _names(transactions: Iterable[StagedTransaction]) -> set[str]:
    return {transaction.name for transaction in transactions}


def _brokers(address: object) -> str:
    brokers = [address] if isinstance(address, str) else address
    if (
        not isinstance(brokers, Sequence)
        or not brokers
        or not all(isinstance(one, str) and one for one in brokers)
    ):
        raise ConfigError(
            f"address={address!r} is not one of Kafka's brokers: it takes 'host:port,host:port', or a list of such texts",
            address=address,
        )
    return ",".join(brokers)
