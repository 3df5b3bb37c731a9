"""A sink of one's own, complete: a folder that gets one JSON file for each transaction.

Staged as a hidden file, committed by a rename. The visible file is also the proof that the commit was made, so nothing but
this sink may remove it. docs/writing-a-sink.md goes through it line by line; tests/docs/test_examples.py holds it to the contract.
"""

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.sinks import Transaction, TransactionContext, TwoPhaseCommitSink


class JsonFolder(TwoPhaseCommitSink):
    """One file a transaction, one JSON object a line. Driver and executors share the folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()  # a task may run in another working directory

    def validate(self, schema: pa.Schema) -> None:
        """Before anything starts: refuse what can never work."""
        nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        if nested:
            raise ps.ConfigError(f"JsonFolder holds plain columns only, not {', '.join(nested)}")
        self.folder.mkdir(parents=True, exist_ok=True)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """In a task: make the hidden file, so that the transaction can be found from now on."""
        transaction = {
            "name": f"{context.transaction_id}.{secrets.token_hex(4)}",
            "run": context.run,
            "checkpoint": context.checkpoint,
            "subtask": context.subtask,
            "attempt": context.attempt,
        }
        self._staged(transaction).touch(exist_ok=False)
        return transaction

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """In the same task: add rows."""
        with self._staged(transaction).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """In the same task, after the last row: from here on a power cut loses nothing."""
        _sync(self._staged(transaction))
        _sync(self.folder)
        return transaction

    def commit(self, transaction: Transaction) -> None:
        """On the driver, when the checkpoint is complete; also a second time."""
        if not self._visible(transaction).exists():
            try:
                self._staged(transaction).rename(self._visible(transaction))
            except FileNotFoundError as error:
                raise ps.errors.CommitLostError(
                    f"{transaction['name']} is neither staged nor committed"
                ) from error
        _sync(self.folder)

    def abort(self, transaction: Transaction) -> None:
        """In a task that fails, or on the driver; also a second time."""
        self._staged(transaction).unlink(missing_ok=True)

    def find_transactions(self, job: str, sink: str) -> Iterator[Transaction]:
        """On the driver: what is staged. Names of jobs and sinks hold no dots, so none is taken for another's."""
        for path in self.folder.glob(f".{job}.{sink}.*.staged"):
            name = path.name.removeprefix(".").removesuffix(".staged")
            numbers = zip(("run", "checkpoint", "subtask", "attempt"), name.split(".")[2:6], strict=True)
            yield {"name": name, **{field: int(number) for field, number in numbers}}

    def _staged(self, transaction: Transaction) -> Path:
        return self.folder / f".{transaction['name']}.staged"

    def _visible(self, transaction: Transaction) -> Path:
        return self.folder / f"{transaction['name']}.json"


def _sync(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_folder(folder: str | Path) -> list[dict[str, Any]]:
    """What any reader sees."""
    return [
        json.loads(line)
        for file in sorted(Path(folder).glob("*.json"))
        for line in file.open(encoding="utf-8")
    ]


def job(spark: SparkSession) -> ps.Job:
    """The slowest request of each app; `penstock run examples/own_sink.py` finds it by this name."""
    log = ps.sources.PartitionedLog("own-sink/log", "app string, ms long", partitions=1)
    log.append(0, [{"app": "shop", "ms": 120}, {"app": "shop", "ms": 80}, {"app": "blog", "ms": 40}])

    made = ps.Job("slowest", storage="own-sink/storage")
    requests = made.read(log.read(spark), uid="requests")
    slowest = requests.key_by("app").aggregate(ms=F.max("ms"), uid="slowest")
    slowest.write_to(JsonFolder("own-sink/out"), uid="slowest-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("own-sink")).run(available_now=True)
    print(sorted(read_folder("own-sink/out"), key=lambda row: row["app"]))
