"""The sink `Kafka`: messages in a topic. Staged in tasks as files, produced on the driver in one Kafka transaction.

    <staging>/<job>/<sink>/<transaction>.arrow     staged messages
    <staging>/<job>/<sink>/committed/              proofs of commit, see `commit_log`
    topic `commits_topic`, key <transactional id>  what the last Kafka transaction committed, see `kafka_commits`

A commit is: take the transactional id over; write into the log what the last Kafka transaction is known to have
committed; ONE Kafka transaction with the messages and the new proof; write the log; delete the staged files.

    found                                  meaning                     commit makes of it
    staged, in no proof                    not committed               produce
    staged, in the record of the topic     committed, then a crash     write the log, delete
    staged, in the log                     committed, then a crash     delete
    not staged, in either                  committed                   nothing to do
    not staged, in neither                 aborted, or taken away      CommitLostError
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.config import Duration, seconds
from penstock.errors import CommitLostError, ConfigError, InternalError, UnavailableError
from penstock.ids import checked_name
from penstock.sinks.commit_log import CommitLog
from penstock.sinks.kafka_cluster import KafkaCluster
from penstock.sinks.kafka_commits import CommitSession, CommitsTopic
from penstock.sinks.kafka_messages import Message, MessageLayout, staged_messages
from penstock.sinks.staged_rows import StagedRows
from penstock.sinks.staging import StagedTransaction, folders_up_to, local_path, storage_errors, sync_folder
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink

_SUFFIX = ".arrow"
_TIMEOUT = "transaction.timeout.ms"
_MOST_IN_ONE_PROOF = 10_000
_LOOK_PATIENCE_S = 10.0
"""Whoever only looks for leftovers comes again at the next checkpoint, and must not hold it up."""


class Kafka(TwoPhaseCommitSink):
    """Messages in a topic; a reader with `isolation.level=read_committed` sees each once, a commit's all at once.

    `staging` is a folder that the driver and all executors share. `key`, `partition` and the values of `headers` name
    columns. `value` names one column, or several that become a JSON object; without it all columns do. With
    `format="bytes"` key and value are taken as they are. `options` are settings of librdkafka, for all clients.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
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
        servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
        self.cluster = KafkaCluster(servers, options or {})
        self.topic = topic
        self.staging = local_path("staging", staging)
        self.layout = MessageLayout.of(
            key=key, value=value, headers=headers, partition=partition, form=format
        )
        self.commits_topic = commits_topic
        self.transactional_id = checked_name("transactional_id", transactional_id)
        self.commit_timeout_s = seconds("commit_timeout", commit_timeout, minimum_s=1.0)
        self._transaction_timeout_ms = _transaction_timeout_ms(self.commit_timeout_s, options or {})
        self._writing: StagedRows | None = None
        self._sessions: dict[str, CommitSession] = {}
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"Kafka({self.cluster.bootstrap_servers!r}, topic={self.topic!r}, format={self.layout.format!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writing": None, "_sessions": {}, "_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opening=threading.Lock())

    def validate(self, schema: pa.Schema) -> None:
        """Compare columns, staging folder, topics and time-outs with what a commit will need."""
        self.layout.check(schema)
        self._check_folder()
        self.layout = self.layout.within(self.cluster.check_topic(self.topic))
        self.cluster.check_transaction_timeout(self._transaction_timeout_ms)
        self.cluster.ensure_compacted(self.commits_topic)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Create the staged file of one attempt."""
        transaction = StagedTransaction.begin(context)
        path = self._staged(transaction)
        with storage_errors("stage messages in", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writing = StagedRows(transaction, path)
        return transaction.as_transaction()

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Add rows as messages; what the topic would refuse is refused while the job can go back."""
        writing = self._begun(transaction)
        if batch.num_rows == 0:
            return
        messages = self.layout.messages(batch)
        with storage_errors("write to", writing.path):
            writing.write(messages)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Close and sync the file, and every folder above it that may be new."""
        writing = self._begun(transaction)
        with storage_errors("make durable", writing.path):
            writing.finish()
            for folder in folders_up_to(writing.path.parent, self.staging.parent):
                sync_folder(folder)
        self._writing = None
        return msgspec.structs.replace(writing.transaction, rows=writing.rows).as_transaction()

    def commit(self, transaction: Transaction) -> None:
        """Produce the messages, once."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Produce the messages of all in one Kafka transaction: they become visible at the same moment."""
        staged = [StagedTransaction.read(transaction) for transaction in transactions]
        for (job, sink), members in groupby(staged, key=lambda one: (one.job, one.sink)):
            group = list(members)
            self._commit_owned(job, sink, group)
            with storage_errors("tidy up", self.staging):
                for transaction in group:
                    self._staged(transaction).unlink(missing_ok=True)

    def abort(self, transaction: Transaction) -> None:
        """Delete the staged file; nothing is in Kafka before a commit."""
        target = StagedTransaction.read(transaction)
        if self._writing is not None and self._writing.transaction.name == target.name:
            self._writing.discard()
            self._writing = None
        with storage_errors("delete", self._staged(target)):
            self._staged(target).unlink(missing_ok=True)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List the staged files that are left, without those that log or topic know as committed."""
        folder = self._owned(job, sink)
        with storage_errors("list", folder):
            names = sorted(path.stem for path in folder.glob(f"*{_SUFFIX}")) if folder.exists() else []
        found = [parsed for name in names if (parsed := StagedTransaction.parse(job, sink, name)) is not None]
        done = _names(self._log(job, sink).committed(found))
        if any(one.name not in done for one in found):
            patience_s = min(_LOOK_PATIENCE_S, self.commit_timeout_s)
            done |= _names(self._session(job, sink, patience_s).last)  # whoever asks owns the job
        return [one.as_transaction() for one in found if one.name not in done]

    # ── committing ─────────────────────────────────────────────────────────────────────────────

    def _commit_owned(self, job: str, sink: str, members: list[StagedTransaction]) -> None:
        log = self._log(job, sink)
        done = _names(log.committed(members))
        left = [one for one in members if one.name not in done]
        if not left:
            return
        session = self._session(job, sink, self.commit_timeout_s)
        unrecorded = set(session.last) - log.committed(session.last)
        if unrecorded:
            log.append(unrecorded)
        done = _names(session.last)
        left = [one for one in left if one.name not in done]
        for first in range(0, len(left), _MOST_IN_ONE_PROOF):
            self._publish(session, left[first : first + _MOST_IN_ONE_PROOF], log)

    def _publish(self, session: CommitSession, members: list[StagedTransaction], log: CommitLog) -> None:
        batches = {one.name: self._checked(one) for one in members}
        try:
            session.publish(self.topic, _messages(batches.values()), members, timeout_s=self.commit_timeout_s)
        except BaseException:
            self._sessions.pop(_owner(self.transactional_id, members[0].job, members[0].sink), None)
            session.discard()
            raise
        log.append(members)

    def _session(self, job: str, sink: str, patience_s: float) -> CommitSession:
        """The one session of this process: commits and searches come from two threads, and would fence each other."""
        owner = _owner(self.transactional_id, job, sink)
        if not self._opening.acquire(timeout=patience_s):
            raise UnavailableError(
                f"{self!r} is still waiting for the brokers; it is tried again",
                brokers=self.cluster.bootstrap_servers,
            )
        try:
            if owner not in self._sessions:
                self._sessions[owner] = self._opened(owner, patience_s)
            return self._sessions[owner]
        finally:
            self._opening.release()

    def _opened(self, owner: str, patience_s: float) -> CommitSession:
        settings: dict[str, Any] = {_TIMEOUT: self._transaction_timeout_ms}
        if "message.max.bytes" not in self.cluster.options:
            settings["message.max.bytes"] = max(self.layout.limits.message_bytes, 1_000_000)
        commits = CommitsTopic(self.cluster, self.commits_topic, owner)
        return CommitSession(self.cluster, commits, settings, patience_s)

    def _checked(self, transaction: StagedTransaction) -> list[pa.RecordBatch]:
        """The staged messages, mapped into memory; all are looked at before the first one is produced."""
        path = self._staged(transaction)
        try:
            with storage_errors("read", path):
                batches = _batches(path) if path.exists() else None
        except pa.ArrowInvalid as error:
            raise self._lost(transaction, f"its staged file {path} is damaged ({error})") from error
        if batches is None:
            raise self._lost(transaction, "it is neither staged nor recorded as committed")
        rows = sum(batch.num_rows for batch in batches)
        if transaction.rows is not None and rows != transaction.rows:
            raise self._lost(transaction, f"its staged file {path} holds {rows} rows")
        return batches

    # ── places ─────────────────────────────────────────────────────────────────────────────────

    def _owned(self, job: str, sink: str) -> Path:
        return self.staging / job / sink

    def _staged(self, transaction: StagedTransaction) -> Path:
        return self._owned(transaction.job, transaction.sink) / (transaction.name + _SUFFIX)

    def _log(self, job: str, sink: str) -> CommitLog:
        return CommitLog(self._owned(job, sink) / "committed")

    def _begun(self, transaction: Transaction) -> StagedRows:
        name = StagedTransaction.read(transaction).name
        if self._writing is None or self._writing.transaction.name != name:
            raise InternalError(
                f"{self!r} was asked to write to {name}, which it did not begin", transaction=name
            )
        return self._writing

    def _check_folder(self) -> None:
        try:
            self.staging.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.staging) as probe:
                probe.write(b"penstock")
        except OSError as error:
            raise ConfigError(
                f"the folder {self.staging} of a Kafka sink cannot be written: {error}; create it, or give this user the right to "
                "write there",
                path=str(self.staging),
            ) from error

    def _lost(self, transaction: StagedTransaction, why: str) -> CommitLostError:
        return CommitLostError(
            f"transaction {transaction.name} cannot be committed to the topic {self.topic!r}: {why}. A completed checkpoint promised "
            f"its {transaction.rows} rows, so they are missing from the topic. Look for its file below {self.staging}; if staging was "
            "changed, start the job once with the old folder; otherwise restore an older checkpoint",
            transaction=transaction.name,
            topic=self.topic,
            rows=transaction.rows,
        )


def _owner(transactional_id: str, job: str, sink: str) -> str:
    return f"{transactional_id}.{job}.{sink}"


def _names(transactions: Iterable[StagedTransaction]) -> set[str]:
    return {transaction.name for transaction in transactions}


def _batches(path: Path) -> list[pa.RecordBatch]:
    if path.stat().st_size == 0:
        return []
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        return [reader.get_batch(index) for index in range(reader.num_record_batches)]


def _messages(staged: Iterable[list[pa.RecordBatch]]) -> Iterator[Message]:
    for batches in staged:
        for batch in batches:
            yield from staged_messages(batch)


def _transaction_timeout_ms(commit_timeout_s: float, options: Mapping[str, Any]) -> int:
    least = int(commit_timeout_s * 1000)
    given = options.get(_TIMEOUT, least)
    if isinstance(given, bool) or not str(given).isdigit() or int(given) < least:
        raise ConfigError(
            f"{_TIMEOUT} is {given!r}, and a commit may take {least} ms (commit_timeout): the brokers would abort it half way; give "
            "at least as much, or lower commit_timeout",
            setting=_TIMEOUT,
            value=given,
        )
    return int(given)
