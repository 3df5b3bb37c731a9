"""`sinks.SQLUpsert` through a DB-API driver: the contract where it applies, styles, repetition, bad rows."""

from __future__ import annotations

import functools
import pickle
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import psycopg
import pyarrow as pa
import pymysql
import pytest
from sink_targets import rows_in_table
from sql_targets import PostgresUpsert, fresh

from penstock.errors import BadRecordError, CommitLostError, ConfigError, UnavailableError
from penstock.sinks import Delivery, SQLUpsert, TransactionContext
from penstock.sinks.upsert_statement import UpsertStatement
from penstock.testing.sink_contract import SinkContract
from services.mariadb_process import PASSWORD as MARIADB_PASSWORD

CONTEXT = TransactionContext(job="contract", sink="table", run=1, checkpoint=1, subtask=0, attempt=0)
SCHEMA = pa.schema([("app", pa.string()), ("day", pa.int64()), ("n", pa.int64())])
KEY = ("app", "day")


class StagedUpsert(SinkContract):
    """Behind a staging folder it is held to the contract of all sinks."""

    style = "on conflict"

    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.path, self.staging = tmp_path / "out.db", tmp_path / "staging"
        make_table(self.path, "CREATE TABLE results (id INTEGER PRIMARY KEY, name TEXT)")

    def make_sink(self) -> SQLUpsert:
        connect = functools.partial(sqlite3.connect, self.path)
        return SQLUpsert(
            connect, "results", ["id"], style=self.style, visible="with the checkpoint", staging=self.staging
        )

    def visible_rows(self) -> list[dict[str, Any]]:
        return rows_in_table(self.path, "results")


class TestOnConflict(StagedUpsert):
    pass


class TestDeleteAndInsert(StagedUpsert):
    style = "delete and insert"


def make_table(
    path: Path, sql: str = "CREATE TABLE results (app TEXT, day INTEGER, n INTEGER, UNIQUE (app, day))"
) -> None:
    database = sqlite3.connect(path)
    database.execute(sql)
    database.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_table(tmp_path / "out.db")
    return tmp_path / "out.db"


def sink_on(path: Path, **settings: Any) -> SQLUpsert:
    return SQLUpsert(functools.partial(sqlite3.connect, path), "results", KEY, **settings)


def task(sink: SQLUpsert, rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA, *, run: int = 1) -> Any:
    """One task, on an instance as a task gets it."""
    sink.validate(schema)
    copy = pickle.loads(pickle.dumps(sink))
    transaction = copy.begin_transaction(msgspec.structs.replace(CONTEXT, run=run))
    for row in rows:
        named = dict(zip(schema.names, row, strict=True))
        copy.write(transaction, pa.RecordBatch.from_pylist([named], schema=schema))
    return copy.pre_commit(transaction)


def seen(path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows_in_table(path, "results"))


@pytest.mark.parametrize("style", ["on conflict", "delete and insert"])
def test_the_same_rows_twice_are_no_harm(style: str, path: Path) -> None:
    """Rows are there when the task ends; of several with one key the last counts; written again they stay as they are."""
    sink = sink_on(path, style=style)
    for _ in range(2):
        sink.commit(task(sink, [("a", 1, 1), ("b", 1, 2), ("a", 1, 3), ("a", 2, 4)]))
        assert seen(path) == [("a", 1, 3), ("a", 2, 4), ("b", 1, 2)]
    assert sink.delivery is Delivery.IDEMPOTENT


def test_a_step_back_at_once_and_none_with_the_checkpoint(path: Path, tmp_path: Path) -> None:
    """What a failed attempt wrote at once is seen, then an older value, then the right one; staged it is never seen."""
    at_once = sink_on(path)
    history = []
    for n in (10, 30, 20, 30):  # the checkpoint holds 10; after 30 the job fails and reads smaller batches
        task(at_once, [("a", 1, n)])
        history.append(seen(path)[0][2])
    assert history == [10, 30, 20, 30]
    later = sink_on(path, visible="with the checkpoint", staging=tmp_path / "staging")
    later.abort(task(later, [("a", 1, 99)]))
    assert seen(path) == [("a", 1, 30)]
    later.commit(task(later, [("a", 1, 40)]))
    assert seen(path) == [("a", 1, 40)]


@pytest.mark.parametrize("visible", ["at once", "with the checkpoint"])
def test_an_old_value_is_back_until_the_key_is_next_written(visible: str, path: Path, tmp_path: Path) -> None:
    """A task or driver that wakes up late writes over a newer value, which comes back with the next write; guarantee() says so."""
    staging = tmp_path / "staging" if visible == "with the checkpoint" else None
    sink = sink_on(path, visible=visible, staging=staging)
    late = pickle.loads(pickle.dumps(sink))
    late_one = late.begin_transaction(CONTEXT)
    late.write(late_one, pa.RecordBatch.from_pylist([{"app": "a", "day": 1, "n": 1}], schema=SCHEMA))
    sink.commit(task(sink, [("a", 1, 2)], run=2))
    late.commit(late.pre_commit(late_one))
    sink.commit(task(sink, [("b", 1, 2)], run=2))
    assert seen(path) == [("a", 1, 1), ("b", 1, 2)]
    sink.commit(task(sink, [("a", 1, 3)], run=2))
    assert seen(path) == [("a", 1, 3), ("b", 1, 2)]
    assert "the key has an older value until it is next written" in sink.explanation


def test_a_task_writes_all_or_nothing(path: Path) -> None:
    """A row that the table refuses is named, is a bad record, and takes the others of its task with it."""
    path.unlink()
    make_table(
        path,
        "CREATE TABLE results (app TEXT, day INTEGER, n INTEGER CHECK (n < 100), PRIMARY KEY (app, day))",
    )
    refused = r"IntegrityError: CHECK constraint failed.*refuses the row \{'app': 'b', 'day': 1, 'n': 100\}"
    with pytest.raises(BadRecordError, match=refused):
        task(sink_on(path), [("a", 1, 1), ("b", 1, 100), ("c", 1, 2)])
    assert seen(path) == []


def test_a_locked_database_is_tried_again(path: Path) -> None:
    """What may pass is UnavailableError, and the same rows go through afterwards."""
    locked = sqlite3.connect(path)
    sink = SQLUpsert(
        functools.partial(sqlite3.connect, path, timeout=0), "results", KEY, style="delete and insert"
    )
    locked.execute("BEGIN EXCLUSIVE")
    copy = pickle.loads(pickle.dumps(sink))
    batch = pa.RecordBatch.from_pylist([{"app": "a", "day": 1, "n": 1}], schema=SCHEMA)
    transaction = copy.begin_transaction(CONTEXT)
    copy.write(transaction, batch)
    with pytest.raises(UnavailableError, match="database is locked"):
        copy.pre_commit(transaction)
    locked.rollback()
    locked.close()
    task(sink, [("a", 1, 1)])
    assert seen(path) == [("a", 1, 1)]


def test_columns_that_are_not_written_stay(path: Path) -> None:
    """On conflict only the columns of the stream change."""
    database = sqlite3.connect(path)
    with database:
        database.execute("ALTER TABLE results ADD COLUMN note TEXT")
        database.execute("INSERT INTO results VALUES ('a', 1, 1, 'by hand')")
    database.close()
    task(sink_on(path), [("a", 1, 2)])
    assert seen(path) == [("a", 1, 2, "by hand")]


def test_only_a_key(tmp_path: Path) -> None:
    """A table that has no other columns takes each key once."""
    make_table(tmp_path / "out.db", "CREATE TABLE results (app TEXT PRIMARY KEY)")
    sink = SQLUpsert(functools.partial(sqlite3.connect, tmp_path / "out.db"), "main.results", "app")
    for _ in range(2):
        task(sink, [("a",), ("b",)], pa.schema([("app", pa.string())]))
    assert seen(tmp_path / "out.db") == [("a",), ("b",)]


def test_lists_become_json_and_names_are_quoted(tmp_path: Path) -> None:
    """Nested values are JSON texts; a name with quotes and percent signs is a name."""
    make_table(tmp_path / "out.db", 'CREATE TABLE results ("a ""b%" TEXT PRIMARY KEY, tags TEXT)')
    schema = pa.schema([('a "b%', pa.string()), ("tags", pa.list_(pa.int64()))])
    sink = SQLUpsert(functools.partial(sqlite3.connect, tmp_path / "out.db"), "results", 'a "b%')
    task(sink, [("x", [1, 2])], schema)
    assert seen(tmp_path / "out.db") == [("x", "[1,2]")]


@pytest.mark.parametrize(
    ("paramstyle", "marks"),
    [
        ("qmark", "?, ?"),
        ("format", "%s, %s"),
        ("pyformat", "%s, %s"),
        ("numeric", ":1, :2"),
        ("named", ":c0, :c1"),
    ],
)
def test_marks_of_values(paramstyle: str, marks: str) -> None:
    """Each way of PEP 249 to mark a value is known; a percent sign in a name is doubled where it would be a mark."""
    statement = UpsertStatement("s.t", ["k", "a%"], ["k"], "on conflict", paramstyle)
    name = '"a%%"' if marks.startswith("%") else '"a%"'
    assert statement.statements() == [
        (
            f'INSERT INTO "s"."t" ("k", {name}) VALUES ({marks}) ON CONFLICT ("k") DO UPDATE SET {name} = excluded.{name}',
            ("k", "a%"),
        )
    ]
    assert statement.parameters([1, 2]) == ({"c0": 1, "c1": 2} if paramstyle == "named" else (1, 2))


def test_the_words_of_mysql() -> None:
    """MySQL quotes with backticks and updates on a duplicate key; with nothing to update the key is set to itself."""
    both = UpsertStatement("t", ["k", "a`b"], ["k"], "on duplicate key", "pyformat").statements()
    assert both[0][0] == (
        "INSERT INTO `t` (`k`, `a``b`) VALUES (%s, %s) ON DUPLICATE KEY UPDATE `a``b` = VALUES(`a``b`)"
    )
    only = UpsertStatement("t", ["k"], ["k"], "on duplicate key", "pyformat").statements()
    assert only[0][0].endswith("ON DUPLICATE KEY UPDATE `k` = VALUES(`k`)")


def test_named_values_go_through_a_driver(path: Path) -> None:
    """What a driver with names is given, it takes."""
    task(sink_on(path, paramstyle="named"), [("a", 1, 1), ("a", 1, 2)])
    assert seen(path) == [("a", 1, 2)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"connect": "sqlite:///x"}, "takes a function"),
        ({"connect": lambda path: None}, "cannot be called with them"),
        ({"table": ""}, "is not a name"),
        ({"table": "a..b"}, "is not a name"),
        ({"key": []}, "key must name"),
        ({"key": [7]}, "key must name"),
        ({"style": "merge"}, "style 'merge'"),
        ({"paramstyle": "dollar"}, "paramstyle 'dollar'"),
        ({"visible": "with the checkpoint"}, "needs staging"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    """What can never work is refused when the sink is made."""
    usual = {"connect": sqlite3.connect, "table": "results", "key": ["id"]}
    with pytest.raises(ConfigError, match=said):
        SQLUpsert(**{**usual, "connect": lambda: None, **settings})


def test_targets_that_do_not_fit(path: Path) -> None:
    """A missing table, column or unique key is found before the query starts, and nothing is changed."""
    connect = functools.partial(sqlite3.connect, path)
    wrong = [
        SQLUpsert(connect, "nowhere", KEY),
        SQLUpsert(connect, "results", ["app"]),
        SQLUpsert(connect, "results", ["m"]),
    ]
    for sink in wrong:
        with pytest.raises(ConfigError):
            sink.validate(SCHEMA)
    with pytest.raises(ConfigError, match="'results' cannot be written"):
        sink_on(path).validate(pa.schema([*SCHEMA, ("extra", pa.int64())]))
    with pytest.raises(ConfigError, match="more than once"):
        sink_on(path).validate(pa.schema([*SCHEMA, ("n", pa.int64())]))
    assert seen(path) == []


def test_a_database_that_cannot_be_reached(path: Path) -> None:
    """It is not taken for one without the table, before the query starts."""
    sink = SQLUpsert(functools.partial(sqlite3.connect, path / "x"), "results", KEY)
    with pytest.raises(UnavailableError, match=r"cannot be reached.*unable to open database file"):
        sink.validate(SCHEMA)


class Overtaken(sqlite3.Connection):
    """Another attempt of the task writes the same key first, once."""

    others: ClassVar[list[str]] = []

    def cursor(self, *arguments: Any) -> Any:
        if self.others:
            raise sqlite3.IntegrityError(self.others.pop())
        return super().cursor(*arguments)


def test_a_key_that_another_attempt_wrote_in_between(path: Path) -> None:
    """Rows that cannot go together go one by one, and a database that takes each of them has no bad row."""
    sink = SQLUpsert(
        functools.partial(sqlite3.connect, path, factory=Overtaken), "results", KEY, paramstyle="qmark"
    )
    transaction = sink.begin_transaction(CONTEXT)
    sink.write(transaction, pa.RecordBatch.from_pylist([{"app": "a", "day": 1, "n": 1}], schema=SCHEMA))
    Overtaken.others.append("UNIQUE constraint failed")
    sink.pre_commit(transaction)
    assert seen(path) == [("a", 1, 1)]


@pytest.mark.parametrize("visible", ["at once", "with the checkpoint"])
@pytest.mark.parametrize("style", ["on conflict", "delete and insert"])
def test_a_key_that_the_database_compares_without_case(
    style: str, visible: str, path: Path, tmp_path: Path
) -> None:
    """Keys that are the same for the database are one row, and the last of them counts, in every style."""
    path.unlink()
    make_table(
        path,
        "CREATE TABLE results (app TEXT COLLATE NOCASE, day INTEGER, n INTEGER, PRIMARY KEY (app, day))",
    )
    staging = tmp_path / "staging" if visible == "with the checkpoint" else None
    sink = sink_on(path, style=style, visible=visible, staging=staging)
    for rows, expected in (
        ([("a", 1, 1), ("A", 1, 2)], 2),
        ([("a", 1, 3), ("A", 1, 4), ("a", 1, 5)], 5),
        ([("b", 1, 0), ("A", 1, 6)], 6),
    ):
        sink.commit(task(sink, rows))
        assert [row[2] for row in seen(path) if row[0].lower() == "a"] == [expected]


def test_a_value_that_the_driver_cannot_send(path: Path, tmp_path: Path) -> None:
    """The task names it and the job ends, in both ways: trying again would change nothing."""
    schema = pa.schema([*list(SCHEMA)[:2], ("n", pa.uint64())])
    rows = [("a", 1, 2**63)]
    staged = sink_on(path, visible="with the checkpoint", staging=tmp_path / "staging")
    for sink in (sink_on(path), staged):
        with pytest.raises(BadRecordError, match=r"refuses the row \{'app': 'a'"):
            task(sink, rows, schema)


class Flaky(sqlite3.Connection):
    """A connection that is lost when rows go through it, one by one too."""

    def execute(self, *_: Any) -> Any:
        raise sqlite3.InterfaceError("connection already closed")

    def cursor(self, *_: Any) -> Any:
        return self.execute()


def test_a_connection_that_breaks_blames_no_row(path: Path) -> None:
    """A row is only to blame if the database still answers afterwards."""
    sink = SQLUpsert(
        functools.partial(sqlite3.connect, path, factory=Flaky), "results", KEY, paramstyle="qmark"
    )
    transaction = sink.begin_transaction(CONTEXT)
    sink.write(transaction, pa.RecordBatch.from_pylist([{"app": "a", "day": 1, "n": 1}], schema=SCHEMA))
    with pytest.raises(UnavailableError, match="already closed; check the database"):
        sink.pre_commit(transaction)


ODD_NAMES = ["before", "Select", "a b", "100%s %d", 'qu"o`te', "Ключ", "日本"]
"""Reserved words, capitals, spaces, quotes, marks of values, other alphabets."""


def written_with_odd_names(connect: Any, style: str) -> list[dict[str, Any]]:
    """Write two rows of one key into the table 'The Table' and return what was written."""
    schema = pa.schema([(name, pa.int64()) for name in ODD_NAMES])
    sink = SQLUpsert(connect, "The Table", ODD_NAMES[0], style=style)
    task(sink, [(1, *range(len(ODD_NAMES) - 1)), (1, *range(1, len(ODD_NAMES)))], schema)
    return [dict(zip(ODD_NAMES, (1, *range(1, len(ODD_NAMES))), strict=True))]


@pytest.mark.parametrize("style", ["on duplicate key", "delete and insert"])
def test_odd_names_in_mariadb(style: str, mariadb_server) -> None:
    """Names are taken letter by letter, whatever the style."""
    mariadb_server.query("CREATE OR REPLACE DATABASE odd_names")
    columns = ", ".join("`" + name.replace("`", "``") + "` int" for name in ODD_NAMES)
    mariadb_server.query(f"CREATE TABLE `The Table` ({columns}, PRIMARY KEY (`before`))", "odd_names")
    settings = {
        "host": "127.0.0.1",
        "port": mariadb_server.port,
        "user": "owner",
        "password": MARIADB_PASSWORD,
    }
    rows = written_with_odd_names(functools.partial(pymysql.connect, database="odd_names", **settings), style)
    assert mariadb_server.query("SELECT * FROM `The Table`", "odd_names") == rows


@pytest.mark.parametrize("style", ["on conflict", "delete and insert"])
def test_odd_names_in_postgres(style: str, postgres_server) -> None:
    """Names are taken letter by letter, whatever the style."""
    suite = fresh(PostgresUpsert, postgres_server)
    columns = ", ".join('"' + name.replace('"', '""') + '" int' for name in ODD_NAMES)
    suite.execute(f'CREATE TABLE "The Table" ({columns}, PRIMARY KEY (before))')
    dsn = postgres_server.dsn(database=suite.database)
    rows = written_with_odd_names(functools.partial(psycopg.connect, dsn), style)
    assert suite.query('SELECT * FROM "The Table"') == rows


WITH_A_RULE = (
    "CREATE TABLE results (app TEXT, day INTEGER, n INTEGER CHECK (n < 100), PRIMARY KEY (app, day))"
)


def remade(path: Path, sql: str) -> None:
    path.unlink()
    make_table(path, sql)


def test_staged_rows_are_tried_in_the_task(path: Path, tmp_path: Path) -> None:
    """What the database would refuse at commit is refused before a checkpoint promises it; what was tried is not to be seen."""
    remade(path, WITH_A_RULE)
    sink = sink_on(path, visible="with the checkpoint", staging=tmp_path / "staging")
    with pytest.raises(BadRecordError, match=r"CHECK.*refuses the row \{'app': 'b'"):
        task(sink, [("a", 1, 99), ("b", 1, 100)])
    assert seen(path) == []


FAMILY = "CREATE TABLE family (id int PRIMARY KEY, parent int REFERENCES family (id), seat varchar(9) UNIQUE, age int CHECK (age > 0))"
FAMILY_SCHEMA = pa.schema(
    [(name, pa.string() if name == "seat" else pa.int64()) for name in ("id", "parent", "seat", "age")]
)


def with_foreign_keys(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA foreign_keys = ON")
    return database


def committed_in_order(connect: Any, style: str, staging: Path) -> None:
    """Stage rows that need each other before any is committed, and one that no order makes right."""
    sink = SQLUpsert(connect, "family", "id", style=style, visible="with the checkpoint", staging=staging)
    rows = [(1, None, "B", 1), (2, 1, "A", 1), (3, 2, "C", None), (4, 2, "A", 1)]
    *good, bad = [task(sink, [row], FAMILY_SCHEMA, run=run) for run, row in enumerate(rows, 1)]
    with pytest.raises(BadRecordError, match=r"refuses the row \{'id': 5"):
        task(sink, [(2, 1, "A", 1), (5, 1, "E", -1)], FAMILY_SCHEMA)
    sink.commit_all(good)
    with pytest.raises(CommitLostError, match=r"refuses the row \{'id': 4.*Change the target"):
        sink.commit(bad)


def test_rows_may_need_those_that_are_staged_before_them(tmp_path: Path) -> None:
    """A parent that is still staged, or a unique value that a staged row frees, refuses nothing in the task; a CHECK does."""
    path = tmp_path / "out.db"
    make_table(path, FAMILY)
    connect = functools.partial(with_foreign_keys, path)
    with connect() as database:
        database.execute("INSERT INTO family VALUES (1, NULL, 'A', 1)")
    committed_in_order(connect, "on conflict", tmp_path / "staging")
    expected = [(1, None, "B", 1), (2, 1, "A", 1), (3, 2, "C", None)]
    assert database.execute("SELECT * FROM family ORDER BY id").fetchall() == expected
    database.close()


def test_rows_may_need_those_that_are_staged_before_them_in_postgres(tmp_path: Path, postgres_server) -> None:
    """The same where an error ends the transaction that rows are tried in."""
    suite = fresh(PostgresUpsert, postgres_server)
    suite.execute(FAMILY)
    suite.execute("INSERT INTO family VALUES (1, NULL, 'A', 1)")
    dsn = postgres_server.dsn(database=suite.database)
    committed_in_order(functools.partial(psycopg.connect, dsn), "on conflict", tmp_path)
    assert [row["seat"] for row in suite.query("SELECT seat FROM family ORDER BY id")] == ["B", "A", "C"]


def test_rows_may_need_those_that_are_staged_before_them_in_mariadb(tmp_path: Path, mariadb_server) -> None:
    """The same with numbers for errors, and a driver that calls a CHECK an outage."""
    mariadb_server.query("CREATE OR REPLACE DATABASE family")
    mariadb_server.query(FAMILY, "family")
    settings = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "owner", "database": "family"}
    connect = functools.partial(pymysql.connect, password=MARIADB_PASSWORD, **settings)
    sink = SQLUpsert(
        connect, "family", "id", style="on duplicate key", visible="with the checkpoint", staging=tmp_path
    )
    child = task(sink, [(2, 1, "B", 1)], FAMILY_SCHEMA)
    with pytest.raises(CommitLostError, match="foreign key"):
        sink.commit(child)
    with pytest.raises(BadRecordError, match=r"CONSTRAINT.*refuses the row \{'id': 5"):
        task(sink, [(2, 1, "A", 1), (5, None, "E", -1)], FAMILY_SCHEMA)
    sink.commit_all([task(sink, [(1, None, "A", 1)], FAMILY_SCHEMA), child])
    assert [row["seat"] for row in mariadb_server.query("SELECT seat FROM family ORDER BY id", "family")] == [
        "A",
        "B",
    ]


def test_a_login_that_is_refused_is_a_wrong_setting(mariadb_server) -> None:
    """PyMySQL calls it an outage; the job does not start, and nobody waits for it to pass."""
    settings = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "owner"}
    sink = SQLUpsert(functools.partial(pymysql.connect, password="wr0ng", **settings), "family", "id")
    with pytest.raises(ConfigError, match=r"Access denied.*check user, password, database and rights"):
        sink.validate(FAMILY_SCHEMA)


DEFERRED = "CREATE TABLE results (app TEXT, day INTEGER, n INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED, UNIQUE (app, day))"


def refused_by_the_commit_itself(connect: Any, staging: Path) -> None:
    with pytest.raises(BadRecordError, match=r"FOREIGN KEY|foreign key"):
        task(SQLUpsert(connect, "results", KEY), [("a", 1, 99)])
    staged = SQLUpsert(connect, "results", KEY, visible="with the checkpoint", staging=staging)
    prepared = task(staged, [("a", 1, 99)])
    with pytest.raises(CommitLostError, match="Change the target"):
        staged.commit(prepared)
    with connect() as database:
        database.execute("INSERT INTO parents VALUES (99)")
    staged.commit(prepared)


def test_a_constraint_that_the_database_looks_at_when_it_commits(path: Path, tmp_path: Path) -> None:
    """Rows that a deferred constraint refuses are bad ones, not a database that is away; with the table mended they go through."""
    remade(path, DEFERRED)
    make_table(path, "CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    refused_by_the_commit_itself(functools.partial(with_foreign_keys, path), tmp_path / "staging")
    assert seen(path) == [("a", 1, 99)]


def test_a_constraint_that_postgres_looks_at_when_it_commits(tmp_path: Path, postgres_server) -> None:
    """The same where a commit that fails is a rollback."""
    suite = fresh(PostgresUpsert, postgres_server)
    suite.execute("DROP TABLE results")
    suite.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    suite.execute(DEFERRED)
    dsn = postgres_server.dsn(database=suite.database)
    refused_by_the_commit_itself(functools.partial(psycopg.connect, dsn), tmp_path)
    assert suite.query("SELECT * FROM results") == [{"app": "a", "day": 1, "n": 99}]


class LostAtCommit(sqlite3.Connection):
    """A connection that is lost when it commits."""

    def commit(self) -> None:
        self.close()
        super().commit()


def test_a_connection_that_breaks_at_commit_blames_no_row(path: Path) -> None:
    """What a driver calls a wrong call may be a connection that is gone: the rows are tried again."""
    connect = functools.partial(sqlite3.connect, path, factory=LostAtCommit)
    sink = SQLUpsert(connect, "results", KEY, paramstyle="qmark")
    transaction = sink.begin_transaction(CONTEXT)
    sink.write(transaction, pa.RecordBatch.from_pylist([{"app": "a", "day": 1, "n": 1}], schema=SCHEMA))
    with pytest.raises(UnavailableError, match=r"closed database\.; check the database"):
        sink.pre_commit(transaction)


def test_rows_cannot_be_tried_on_a_connection_that_commits_by_itself(path: Path, tmp_path: Path) -> None:
    """Autocommit is refused before the query where rows wait for the checkpoint: they would be seen when they are tried."""
    connect = functools.partial(sqlite3.connect, path, isolation_level=None)
    sink = SQLUpsert(connect, "results", KEY, visible="with the checkpoint", staging=tmp_path / "staging")
    with pytest.raises(ConfigError, match="autocommit"):
        sink.validate(SCHEMA)


def test_a_table_that_was_changed_before_the_commit(path: Path, tmp_path: Path) -> None:
    """A rule made after the rows were staged ends the job with the row; changed back, the table gets them at the next start."""
    sink = sink_on(path, visible="with the checkpoint", staging=tmp_path / "staging")
    prepared = task(sink, [("a", 1, 100)])
    remade(path, WITH_A_RULE)
    with pytest.raises(CommitLostError, match=r"refuses the row \{'app': 'a'.*commits them first"):
        sink.commit(prepared)
    remade(path, "CREATE TABLE results (app TEXT, day INTEGER, n INTEGER, PRIMARY KEY (app, day))")
    sink.commit(prepared)
    assert len(seen(path)) == 1


def test_a_null_in_the_key_is_refused(path: Path) -> None:
    """A row without a key is a bad record, found in the task."""
    with pytest.raises(BadRecordError, match="'day' is part of the key"):
        task(sink_on(path), [("a", None, 1)])


class Silent:
    """A connection whose package says nothing about its marks."""

    def cursor(self) -> sqlite3.Cursor:
        return sqlite3.connect(":memory:").cursor()

    def commit(self) -> None: ...

    rollback = close = commit


def test_a_driver_that_does_not_say_how_it_marks_values() -> None:
    """The setting to give is named."""
    with pytest.raises(ConfigError, match="set paramstyle= to one of"):
        SQLUpsert(Silent, "results", KEY).validate(SCHEMA)


def test_a_secret_in_the_connection_is_not_shown() -> None:
    """A partial may hold a password: only its kind is printed."""
    sink = SQLUpsert(functools.partial(sqlite3.connect, "password=trout"), "results", KEY)
    assert "trout" not in repr(sink)
