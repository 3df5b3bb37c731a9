"""Every sink as the test of hostile values drives it, and how a reader sees what a row holds in one column."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import json
import math
import pickle
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import hostile_values as values
import pyarrow as pa
import pyarrow.dataset
import pytest
from sql_targets import MySQLTarget, PostgresTarget

from penstock import sinks
from penstock.errors import BadRecordError
from penstock.operators.bad_records import BadRows
from penstock.run.sink_writer import TransactionWriter, write_checked
from penstock.sinks import TransactionContext, TwoPhaseCommitSink
from penstock.testing.sink_contract import through_json

NOT_TEXT = tuple(name for name in values.SCHEMA.names if name not in {"id", "text"})


class Target(ABC):
    """A sink, and how a reader sees what one row holds in one column."""

    without: ClassVar[tuple[str, ...]] = ()
    """Columns for which the target has no form; they are refused before the query."""
    forgets: ClassVar[tuple[float, ...]] = ()
    """Floats that are documented to become null."""
    one_by_one: ClassVar[bool] = False
    """Whether the reader here can only tell rows apart that were written alone."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder
        self.schema = pa.schema([field for field in values.SCHEMA if field.name not in self.without])
        self.columns = [name for name in self.schema.names if name != "id"]
        self._numbers = itertools.count(1)
        self.open(request)
        self._driver = self.sink()
        self._driver.validate(self.schema)

    def open(self, request: pytest.FixtureRequest) -> None:  # noqa: B027 - most need nothing
        """Make ready what the sink writes to."""

    @abstractmethod
    def sink(self) -> TwoPhaseCommitSink: ...

    @abstractmethod
    def rows(self) -> dict[int, Any]:
        """What a reader sees, by id."""

    @abstractmethod
    def plain(self, column: str, row: Any) -> Any:
        """One value of it in the form of `hostile_values`."""

    def taken(self, given: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Write each as a row of its own: what no task refuses must be committed, and found as it was."""
        prepared: dict[int, Any] = {}
        for column, value in given:
            number = next(self._numbers)
            transaction = self._staged(number, column, value)
            if transaction is not None:
                prepared[number] = (column, value, transaction)
        self._driver.commit_all([transaction for _, _, transaction in prepared.values()])
        seen = self.rows()
        for number, (column, value, _) in prepared.items():
            found = self.plain(column, seen[number])
            assert values.same(column, self.documented(column, value), found), (
                f"{column}: {value!r} became {found!r}"
            )
        return [(column, value) for column, value, _ in prepared.values()]

    def sifted(self, given: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Write all in one task that may leave rows out: those that it takes, each found as it was; the others are dead letters."""
        asked = {next(self._numbers): one for one in given}
        task = pickle.loads(pickle.dumps(self._driver))
        bad = BadRows("out", 1, kept=True)
        first = min(asked)
        sifter = TransactionWriter(task, TransactionContext("hostile", "out", 1, first, 0, 0), bad)
        rows = [values.row(self.schema, number, *one) for number, one in asked.items()]
        sifter.write([pa.concat_batches(rows)])
        self._driver.commit_all([] if sifter.open is None else [through_json(sifter.open)])
        letters = [json.loads(one["row"])["id"] for batch in bad.letters() for one in batch.to_pylist()]
        assert len(set(letters)) == len(letters) == bad.count
        seen, taken = self.rows(), [number for number in asked if number not in letters]
        assert not any(number in seen for number in letters)
        for number in taken:
            column, value = asked[number]
            assert values.same(column, self.documented(column, value), self.plain(column, seen[number]))
        return [asked[number] for number in taken]

    def _staged(self, number: int, column: str, value: Any) -> Any:
        task = pickle.loads(pickle.dumps(self._driver))
        transaction = task.begin_transaction(TransactionContext("hostile", "out", 1, number, 0, 0))
        try:
            write_checked(task, transaction, values.row(self.schema, number, column, value))
            return through_json(task.pre_commit(transaction))
        except BadRecordError:
            task.abort(transaction)
            return None

    def documented(self, column: str, value: Any) -> Any:
        """What becomes of a value by the words of the documentation; almost always itself."""
        gone = isinstance(value, float) and any(
            math.isnan(value) if math.isnan(one) else value == one for one in self.forgets
        )
        return None if gone else value


class InArrow(Target):
    """What is read is a table of Arrow."""

    def rows(self) -> dict[int, Any]:
        table = self.table()
        return {number.as_py(): table.slice(place, 1) for place, number in enumerate(table.column("id"))}

    @abstractmethod
    def table(self) -> pa.Table: ...

    def plain(self, column: str, row: Any) -> Any:
        return values.of_arrow(column, row.column(column)[0])


class ParquetFiles(InArrow):
    partition_by: ClassVar[tuple[str, ...]] = ()

    def sink(self) -> TwoPhaseCommitSink:
        return sinks.Files(self.folder / "out", partition_by=self.partition_by)

    def table(self) -> pa.Table:
        named = pa.schema([values.SCHEMA.field(name) for name in self.partition_by])
        folders = pyarrow.dataset.partitioning(named, flavor="hive") if self.partition_by else None
        return pyarrow.dataset.dataset(self.folder / "out", format="parquet", partitioning=folders).to_table()


class FilesByText(ParquetFiles):
    """The value is in the name of a folder; an empty text is the folder of null, as with Spark."""

    partition_by = ("text",)
    without = NOT_TEXT

    def documented(self, column: str, value: Any) -> Any:
        return value or None


class FilesByDay(ParquetFiles):
    partition_by = ("day",)
    without = tuple(name for name in values.SCHEMA.names if name not in {"id", "day"})


class DeltaTable(InArrow):
    partition_by: ClassVar[tuple[str, ...]] = ()

    def sink(self) -> TwoPhaseCommitSink:
        return sinks.DeltaLake(self.folder / "table", partition_by=self.partition_by)

    def table(self) -> pa.Table:
        return deltalake.DeltaTable(self.folder / "table").to_pyarrow_table()


class DeltaByText(DeltaTable):
    partition_by = ("text",)
    without = NOT_TEXT

    def documented(self, column: str, value: Any) -> Any:
        return value or None


class WriteAheadLog(InArrow):
    def open(self, request: pytest.FixtureRequest) -> None:
        self.handed: list[pa.Table] = []

    def sink(self) -> TwoPhaseCommitSink:
        return sinks.WriteAheadLog(self._keep, staging=self.folder / "staging")

    def _keep(self, table: pa.Table, _checkpoint: int, _transaction: str) -> None:
        self.handed.append(table)

    def table(self) -> pa.Table:
        return pa.concat_tables(self.handed)


class InJson(Target):
    """What is read are JSON documents, which know neither NaN nor infinity."""

    forgets = (math.nan, math.inf, -math.inf)

    def rows(self) -> dict[int, Any]:
        return {row["id"]: row for row in map(json.loads, self.documents())}

    @abstractmethod
    def documents(self) -> Iterable[bytes]: ...

    def plain(self, column: str, row: Any) -> Any:
        return values.of_json(column, row[column])


class JsonFiles(InJson):
    def sink(self) -> TwoPhaseCommitSink:
        return sinks.Files(self.folder / "out", "json")

    def documents(self) -> Iterable[bytes]:
        files = (self.folder / "out").glob("*.json")
        return (line for path in files for line in path.read_bytes().splitlines())


class KafkaJson(InJson):
    settings: ClassVar[dict[str, Any]] = {"key": "id"}
    topic_settings: ClassVar[dict[str, str]] = {}

    def open(self, request: pytest.FixtureRequest) -> None:
        self.broker = request.getfixturevalue("kafka")
        self.topic = self.broker.new_topic(1, **self.topic_settings)

    def sink(self) -> TwoPhaseCommitSink:
        where = {"staging": self.folder / "staging", "commits_topic": f"commits-of-{self.topic}"}
        return sinks.Kafka(self.broker.address, self.topic, **where, **self.settings)

    def documents(self) -> Iterable[bytes]:
        return (message.value() for message in self.broker.read(self.topic))


class KafkaCompacted(KafkaJson):
    """The value is the key of a message in a topic that takes none without."""

    settings: ClassVar[dict[str, Any]] = {"key": "text", "value": "id"}
    topic_settings: ClassVar[dict[str, str]] = {"cleanup_policy": "compact"}
    without = NOT_TEXT

    def rows(self) -> dict[int, Any]:
        return {int(message.value()): message.key() for message in self.broker.read(self.topic)}

    def plain(self, column: str, row: Any) -> Any:
        return row


class RedisHash(Target):
    settings: ClassVar[dict[str, Any]] = {}

    def open(self, request: pytest.FixtureRequest) -> None:
        self.server = request.getfixturevalue("redis_server")
        with self.server.client() as client:
            client.flushall()

    def sink(self) -> TwoPhaseCommitSink:
        where = {"visible": "with the checkpoint", "staging": self.folder / "staging"}
        return sinks.Redis(self.server.url, key="{id}", **where, **self.settings)

    def rows(self) -> dict[int, Any]:
        return _Read(self._client(), "hget")

    def plain(self, column: str, row: Any) -> Any:
        found = row(column)
        return values.of_text(column, found if found is None or column == "raw" else found.decode())

    def _client(self) -> Any:
        client = self.server.client()
        client.connection_pool.connection_kwargs["decode_responses"] = False
        return client


class RedisText(RedisHash):
    settings: ClassVar[dict[str, Any]] = {"value": "real"}
    without = tuple(name for name in values.SCHEMA.names if name not in {"id", "real"})

    def rows(self) -> dict[int, Any]:
        return _Read(self._client(), "get")

    def plain(self, column: str, row: Any) -> Any:
        return values.of_text(column, row())


class RedisJson(RedisHash):
    settings: ClassVar[dict[str, Any]] = {"json": [name for name in values.SCHEMA.names if name != "id"]}
    forgets = InJson.forgets

    def rows(self) -> dict[int, Any]:
        return _Read(self._client(), "get")

    def plain(self, column: str, row: Any) -> Any:
        return values.of_json(column, json.loads(row())[column])


class _Read(dict[int, Any]):
    """Asks the server when it is asked."""

    def __init__(self, client: Any, command: str) -> None:
        self._ask = getattr(client, command)

    def __getitem__(self, number: int) -> Any:
        return functools.partial(self._ask, str(number))


class CsvFiles(Target):
    without = ("raw", *values.NESTED)
    one_by_one = True

    def sink(self) -> TwoPhaseCommitSink:
        return sinks.Files(self.folder / "out", "csv")

    def rows(self) -> dict[int, Any]:
        found = (self._row(path.read_bytes().decode()) for path in (self.folder / "out").glob("*.csv"))
        return {int(row["id"]): row for row in found}

    def _row(self, text: str) -> dict[str, Any]:
        """Python's reader does not tell null from an empty text, which has quotes; the text is the second column."""
        names, fields = csv.reader(io.StringIO(text, newline=""), strict=True)
        row: dict[str, Any] = {name: field or None for name, field in zip(names, fields, strict=True)}
        empty = text.partition("\n")[2].split(",")[1] == '""'
        return {**row, "text": "" if empty else row["text"]}

    def plain(self, column: str, row: Any) -> Any:
        return values.of_text(column, row[column])


class SQLite(Target):
    forgets = (math.nan,)

    @property
    def path(self) -> Path:
        return self.folder / "out.db"

    def sink(self) -> TwoPhaseCommitSink:
        return sinks.SQLite(self.path, "results")

    def rows(self) -> dict[int, Any]:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            database.row_factory = sqlite3.Row
            return {row["id"]: dict(row) for row in database.execute("SELECT * FROM results")}

    def plain(self, column: str, row: Any) -> Any:
        return values.of_text(column, row[column])

    def create(self, columns: str, options: str = "") -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            database.execute(f"CREATE TABLE results (id INTEGER PRIMARY KEY, {columns}) {options}")


class StrictSQLite(SQLite):
    """A table that has an opinion of its own."""

    def open(self, request: pytest.FixtureRequest) -> None:
        kinds = {
            "text": "TEXT CHECK (length(text) < 10)",
            "whole": "INTEGER CHECK (whole > -1000)",
            "real": "REAL",
        }
        kinds |= {"raw": "BLOB", "flag": "INTEGER"}
        self.create(", ".join(f"{name} {kinds.get(name, 'TEXT')}" for name in self.columns), "STRICT")


class SQLUpsert(SQLite):
    """Through the driver of SQLite, which takes no decimals and gives no times back."""

    without = ("moment", "local", "day")

    def open(self, request: pytest.FixtureRequest) -> None:
        self.create(", ".join(self.columns))

    def sink(self) -> TwoPhaseCommitSink:
        where = {"visible": "with the checkpoint", "staging": self.folder / "staging"}
        return sinks.SQLUpsert(functools.partial(sqlite3.connect, self.path), "results", ["id"], **where)


class PostgresPrepared(Target):
    options: ClassVar[dict[str, Any]] = {}

    def open(self, request: pytest.FixtureRequest) -> None:
        options = {"create": True, **self.options}
        self.target = type("Hostile", (PostgresTarget,), {"create_table": "SELECT 1", "options": options})()
        self.target.use(request.getfixturevalue("postgres_server"))

    def sink(self) -> TwoPhaseCommitSink:
        return self.target.make_sink()

    def rows(self) -> dict[int, Any]:
        """Times as numbers: Python has no date after the year 9999."""
        shown = ", ".join(f"{self._shown(name)} AS {name}" for name in self.schema.names)
        return {row["id"]: row for row in self.target.query(f"SELECT {shown} FROM results")}

    def _shown(self, column: str) -> str:
        match column:
            case "day":
                return "day - DATE '1970-01-01'"
            case "moment" | "local":
                return f"(extract(epoch FROM {column}) * 1000000)::bigint"
        return column

    def plain(self, column: str, row: Any) -> Any:
        found = row[column]
        return found if column in {"day", "moment", "local"} else values.of_python(column, found)


class PostgresStaged(PostgresPrepared):
    options: ClassVar[dict[str, Any]] = {"transactions": "staged"}


class PostgresUpsert(PostgresPrepared):
    options: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": ["id"]}


class MariaDBPrepared(Target):
    options: ClassVar[dict[str, Any]] = {}

    def open(self, request: pytest.FixtureRequest) -> None:
        options = {"create": True, **self.options}
        self.target = type("Hostile", (MySQLTarget,), {"create_table": "SELECT 1", "options": options})()
        self.target.use(request.getfixturevalue("mariadb_server"))

    def sink(self) -> TwoPhaseCommitSink:
        return self.target.make_sink()

    def rows(self) -> dict[int, Any]:
        return {row["id"]: row for row in self.target.query("SELECT * FROM results")}

    def plain(self, column: str, row: Any) -> Any:
        return values.of_python(column, row[column])


class MariaDBStaged(MariaDBPrepared):
    options: ClassVar[dict[str, Any]] = {"transactions": "staged"}


class MariaDBUpsert(MariaDBPrepared):
    options: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": ["id"]}


ALL = [
    *(ParquetFiles, FilesByText, FilesByDay, JsonFiles, CsvFiles, DeltaTable, DeltaByText, WriteAheadLog),
    *(SQLite, StrictSQLite, SQLUpsert, RedisHash, RedisText, RedisJson, KafkaJson, KafkaCompacted),
    *(PostgresPrepared, PostgresStaged, PostgresUpsert, MariaDBPrepared, MariaDBStaged, MariaDBUpsert),
]
NO_FORM = {SQLUpsert: {"exact"}}
"""Columns of which a driver takes no value at all, which only the task finds out."""
