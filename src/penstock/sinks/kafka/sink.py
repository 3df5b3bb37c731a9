"""The sink `Kafka`: messages in a topic. Staged in tasks as files, produced on the driver in one Kafka transaction.

    <staging>/<job>/<sink>/<transaction>.arrow     staged messages
    <staging>/<job>/<sink>/committed/              the log of commits, see `staging`
    <staging>/<job>/<sink>/owners                  whose record must be in the topic, see `commit_session`
    topic `commits_topic`, key <transactional id>  what the last Kafka transaction committed, see `commit_session`

A commit is: take over the transactional id; record in the log what the last Kafka transaction
committed; ONE Kafka transaction with the messages and the new proof; write the log; delete the staged files.

    found                                  meaning                     commit
    staged, in no proof                    not committed               produce
    staged, in the record of the topic     committed, then a crash     write the log, delete
    staged, in the log                     committed, then a crash     delete
    not staged, in either                  committed                   nothing to do
    not staged, in neither                 aborted, or deleted         CommitLostError
    in no log, and the record is gone      unknown                     CommitLostError
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
from penstock.sinks.kafka.commit_session import (
    CommitSession,
    CommitsTopic,
    KafkaTransaction,
    KnownOwners,
    Owner,
)
from penstock.sinks.kafka.messages import MessageLayout
from penstock.sinks.staged_sink import StagedSink
from penstock.sinks.staging import CommitLog, StagedTransaction
from penstock.sinks.two_phase_commit import Transaction
from penstock.wording import counted

_MOST_IN_ONE_PROOF = 10_000
_LOOK_PATIENCE_S = 10.0
"""A search for unfinished transactions is repeated at the next checkpoint, so it must not delay this one."""


class Kafka(StagedSink):
    """Writes messages to a topic. A reader with `isolation.level=read_committed` sees each once, and all of a commit together.

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
        """Check columns, staging folder, topics, timeouts and options for what a commit needs."""
        self.layout.check(schema)
        super().validate(schema)
        admin = self.cluster.admin()
        limits = self.cluster.check_topic(admin, self.topic)
        self.layout = self.layout.within(within_options(limits, self.cluster.options))
        self.cluster.check_transaction_timeout(admin, self._transaction_timeout_ms)
        self.cluster.producer({**self._producer_settings(), "transactional.id": self.transactional_id})
        self.cluster.ensure_compacted(admin, self.commits_topic)

    def staged_form(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn rows into messages; what the topic would refuse is refused while the job can still go back."""
        return self.layout.messages(batch)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Make the messages durable, and store their topic and the place of their proof with the transaction."""
        where = {
            "topic": self.topic,
            "commits_topic": self.commits_topic,
            "transactional_id": self.transactional_id,
        }
        return {**super().pre_commit(transaction), **where}

    def commit(self, transaction: Transaction) -> None:
        """Produce the messages of one transaction, unless they are committed."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Produce the messages of all transactions in one Kafka transaction: they become visible together."""
        staged = [KafkaTransaction.read(transaction) for transaction in transactions]
        for (owner, topic), members in groupby(staged, key=lambda one: (one.owner, one.topic)):
            group = list(members)
            self._commit_owned(owner, topic, group)
            for transaction in group:
                self.delete_staged(transaction)

    def committed_of(self, job: str, sink: str, found: Sequence[StagedTransaction]) -> set[str]:
        """Return the names of transactions that the log or the topic has as committed."""
        done = super().committed_of(job, sink, found)
        if any(one.name not in done for one in found):
            patience_s = min(_LOOK_PATIENCE_S, self.commit_timeout_s)
            owner = Owner(job, sink, self.commits_topic, self.transactional_id)
            done |= _names(self._session(owner, patience_s).last or ())  # only the owner of the job asks
        return done

    # ── committing ─────────────────────────────────────────────────────────────────────────────

    def _commit_owned(self, owner: Owner, topic: str, members: list[KafkaTransaction]) -> None:
        log = self.log(owner.job, owner.sink)
        if len(log.committed(members)) == len(members):
            return
        session = self._session(owner, self.commit_timeout_s)
        last = session.last or ()
        # Read again: a successor could have committed until the session was opened.
        recorded = log.committed([*last, *members])
        log.append(set(last) - recorded)
        done = _names(last) | _names(recorded)
        left = [one for one in members if one.name not in done]
        with self._discarded_after_an_error(session, owner):
            if left:
                self._introduce(session, owner, left)
            for first in range(0, len(left), _MOST_IN_ONE_PROOF):
                self._publish(session, topic, left[first : first + _MOST_IN_ONE_PROOF], log)

    def _introduce(self, session: CommitSession, owner: Owner, members: list[KafkaTransaction]) -> None:
        """Write the first record before anything is produced, so that a missing record means that it was lost."""
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
        # All are checked before the first one is produced.
        tables = [self.staged_rows(one) for one in members]
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
        """Return the one session of this process. Commits and searches run in two threads, and two sessions would fence each other."""
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
        f"the topic {commits.topic!r} no longer has a record of {commits.key!r}: the topic was deleted or recreated, or these are other "
        f"brokers. So it is unknown whether the rows of {counted(len(members), 'transaction')}, from {members[0].name} on, are in "
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
            f"address={address!r} does not name Kafka brokers: use 'host:port,host:port', or a list of such texts",
            address=address,
        )
    return ",".join(brokers)
