"""The sinks for SQL servers as the contract suite drives them: every test has a database of its own on one real server of each kind.

What a promise of all these sinks needs to know about a server is said here, so that the tests of it are written once.
"""

from __future__ import annotations

import itertools
import os
import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row

from penstock.sinks import MariaDB, Postgres, TransactionContext
from penstock.sinks.table_checks import quoted_name
from penstock.testing.sink_contract import JOB, SINK, SinkContract, through_json
from services import mariadb_process, postgres_process

PASSWORD = postgres_process.PASSWORD
assert mariadb_process.PASSWORD == PASSWORD
STAGED: dict[str, Any] = {"transactions": "staged"}
_NUMBERS = itertools.count()
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["id"]}


class SqlTarget(SinkContract):
    """One table in a database of its own."""

    options: ClassVar[dict[str, Any]] = {}
    id_column = "id bigint"
    table_of: ClassVar[str]
    """CREATE TABLE, but for the column `id`."""
    table_options = ""
    """What follows the columns in CREATE TABLE, where texts of every kind shall fit."""
    fixture: ClassVar[str]
    """Which of the servers that run."""
    sink_class: ClassVar[Callable[..., Any]]
    quote: ClassVar[str]
    driver: ClassVar[str]
    extra: ClassVar[str]
    scheme: ClassVar[str]
    longest_name: ClassVar[int]
    staged_tables: ClassVar[str]
    """The query for the tables of the sink that hold staged rows."""
    row_total: ClassVar[str]
    """The column of proofs that says how many rows a transaction has."""
    sessions: ClassVar[str]
    """The query for the other sessions in the database."""

    @pytest.fixture(autouse=True)
    def target(self, request: pytest.FixtureRequest) -> None:
        self.use(request.getfixturevalue(self.fixture))

    @property
    def create_table(self) -> str:
        return self.table_of.format(self.id_column)

    def use(self, server: Any) -> None:
        self.server = server
        self._validated: dict[str, bytes] = {}
        self.database = self.new_database()
        self.execute(self.create_table)

    def sink(self) -> Any:
        """Validated once, as on a driver, and copied for each process; again after whatever the test has changed."""
        asked = f"{self.database} {self.options}"
        if asked not in self._validated:
            self._validated[asked] = pickle.dumps(super().sink())
        return pickle.loads(self._validated[asked])

    def make_sink(self, table: str = "results", **changes: Any) -> Any:
        return self.sink_class(self.address(), table, **{**self.options, **changes})

    def visible_rows(self) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM results")

    def execute(self, statement: str) -> None:
        """Change something; what was validated before has to be looked at again."""
        self._validated.clear()
        self.run(statement)

    def left_behind(self) -> int:
        """How many rows or transactions wait in the server."""
        staged = self.names(self.staged_tables)
        tables = ["_penstock_transactions", *staged] if staged else []
        rows = sum(self.query(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables)
        return rows + self.prepared()

    def drop_records(self) -> None:
        """Make the server forget all that the sink has ever made in it."""
        for table in self.names(self.staged_tables.replace("staged", "")):
            self.execute(f"DROP TABLE {table}")

    def staged_in(self) -> str:
        """The table that holds the rows of a staged transaction."""
        return self.query("SELECT staged_in FROM _penstock_transactions")[0]["staged_in"]

    def names(self, statement: str) -> list[str]:
        return [next(iter(row.values())) for row in self.query(statement)]

    def quoted(self, name: str) -> str:
        return quoted_name(name, mark=self.quote)

    @abstractmethod
    def new_database(self) -> str: ...

    @abstractmethod
    def address(self, *, database: str | None = None, **login: str) -> str: ...

    @abstractmethod
    def run(self, statement: str) -> None: ...

    @abstractmethod
    def query(self, statement: str) -> list[dict[str, Any]]: ...

    @abstractmethod
    def prepared(self) -> int:
        """How many transactions are prepared in this database, whoever they belong to."""

    @abstractmethod
    def add_user(self, *grants: str) -> str:
        """Make a user who may do just this (`INSERT ON results`); returns the address for it."""

    @abstractmethod
    def reader(self) -> AbstractContextManager[Callable[[], int]]:
        """Something that counts the rows of the table, on a connection of its own."""

    @staticmethod
    @abstractmethod
    def own_server() -> AbstractContextManager[Any]:
        """A server that may be killed."""

    @staticmethod
    @abstractmethod
    def kill_server(server: Any) -> None: ...

    @staticmethod
    @abstractmethod
    def start_server(server: Any) -> None: ...


_END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_SCHEMAS = r"SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$'"
_TAKEN: dict[int, dict[str, str]] = {}
"""By the server's port: who has which database. Making one takes longer than emptying that of a test that is over."""


class PostgresTarget(SqlTarget):
    table_of = "CREATE TABLE results ({}, name text)"
    fixture = "postgres_server"
    sink_class = Postgres
    quote = '"'
    driver, extra, scheme, longest_name = "psycopg", "postgres", "postgresql", 63
    staged_tables = r"SELECT relname FROM pg_class WHERE relname LIKE '\_penstock\_staged%' AND relkind = 'r'"
    row_total = "rows"
    sessions = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def new_database(self) -> str:
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        taken = _TAKEN.setdefault(self.server.port, {})
        name = next((name for name, holder in taken.items() if holder != test), None)
        if name is None:
            name = f"test_{len(taken)}"
            self.server.reader("postgres").execute(f"CREATE DATABASE {name}")
        else:
            _make_empty(self.server.reader(name))
        taken[name] = test
        return name

    def address(self, *, database: str | None = None, **login: str) -> str:
        return self.server.dsn(database=database or self.database, **login)

    def run(self, statement: str) -> None:
        self.server.reader(self.database).execute(statement)

    def query(self, statement: str) -> list[dict[str, Any]]:
        reader = self.server.reader(self.database)
        return reader.cursor(row_factory=dict_row).execute(statement).fetchall()

    def prepared(self) -> int:
        return len(self.query(_PREPARED))

    def add_user(self, *grants: str) -> str:
        user = f"guest_{next(_NUMBERS)}"
        self.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'")
        for grant in grants:
            self.execute(f"GRANT {grant} TO {user}")
        return self.address(user=user)

    def reader(self) -> AbstractContextManager[Callable[[], int]]:
        return _Counter(self.server.connect(self.database), lambda row: row[0])

    @staticmethod
    def own_server() -> AbstractContextManager[Any]:
        return postgres_process.running()

    @staticmethod
    def kill_server(server: Any) -> None:
        server.process.kill()
        server.process.wait()

    @staticmethod
    def start_server(server: Any) -> None:
        server.kill()  # it starts it again


def _make_empty(reader: psycopg.Connection) -> None:
    reader.execute(_END_SESSIONS)
    for (gid,) in reader.execute(_PREPARED).fetchall():
        reader.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(psycopg.sql.Literal(gid)))
    for (schema,) in reader.execute(_SCHEMAS).fetchall():
        reader.execute(f"DROP SCHEMA {schema} CASCADE")
    reader.execute("CREATE SCHEMA public")
    reader.execute("GRANT USAGE ON SCHEMA public TO public")


class MySQLTarget(SqlTarget):
    table_options = " ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"
    table_of = "CREATE TABLE results ({}, name varchar(100))" + table_options
    fixture = "mariadb_server"
    sink_class = MariaDB
    quote = "`"
    driver, extra, scheme, longest_name = "pymysql", "mysql", "mysql", 64
    staged_tables = r"SHOW TABLES LIKE '\_penstock\_staged%'"
    row_total = "row_total"
    sessions = "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"

    def new_database(self) -> str:
        name = f"test_{next(_NUMBERS)}"
        self.server.query(f"CREATE DATABASE {name}")
        return name

    def address(self, *, database: str | None = None, **login: str) -> str:
        return self.server.url(database or self.database, **login)

    def run(self, statement: str) -> None:
        self.server.query(statement, self.database)

    def query(self, statement: str) -> list[dict[str, Any]]:
        return self.server.query(statement, self.database)

    def prepared(self) -> int:
        """Of the usual job: the server has one list for all databases."""
        return len(self.unfinished())

    def add_user(self, *grants: str) -> str:
        user = f"guest_{next(_NUMBERS)}"
        self.execute(f"CREATE USER {user}@127.0.0.1 IDENTIFIED BY '{PASSWORD}'")
        for grant in grants:
            self.execute(f"GRANT {grant.replace(' ON ', f' ON {self.database}.')} TO {user}@127.0.0.1")
        return self.address(user=user)

    def reader(self) -> AbstractContextManager[Callable[[], int]]:
        return _Counter(self.server.connect(self.database), lambda row: row["n"])

    @staticmethod
    def own_server() -> AbstractContextManager[Any]:
        return mariadb_process.running()

    @staticmethod
    def kill_server(server: Any) -> None:
        server.kill()

    @staticmethod
    def start_server(server: Any) -> None:
        server.start()


class _Counter(AbstractContextManager[Callable[[], int]]):
    def __init__(
        self, connection: psycopg.Connection | pymysql.Connection, number: Callable[[Any], int]
    ) -> None:
        self._connection = connection
        self._number = number

    def __enter__(self) -> Callable[[], int]:
        cursor = self._connection.cursor()

        def count() -> int:
            cursor.execute("SELECT count(*) AS n FROM results")
            return self._number(cursor.fetchone())

        return count

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class PostgresPrepared(PostgresTarget):
    pass


class PostgresStaged(PostgresTarget):
    options: ClassVar[dict[str, Any]] = STAGED


class PostgresUpsert(PostgresTarget):
    options: ClassVar[dict[str, Any]] = UPSERT
    id_column = "id bigint PRIMARY KEY"


class MySQLPrepared(MySQLTarget):
    pass


class MySQLStaged(MySQLTarget):
    options: ClassVar[dict[str, Any]] = STAGED


class MySQLUpsert(MySQLTarget):
    options: ClassVar[dict[str, Any]] = UPSERT
    id_column = "id bigint PRIMARY KEY"


ALL: list[type[Any]] = [
    PostgresPrepared,
    PostgresStaged,
    PostgresUpsert,
    MySQLPrepared,
    MySQLStaged,
    MySQLUpsert,
]
PREPARED_ONES: list[type[Any]] = [PostgresPrepared, MySQLPrepared]
STAGED_ONES: list[type[Any]] = [PostgresStaged, MySQLStaged]
UPSERTS: list[type[Any]] = [PostgresUpsert, MySQLUpsert]


def fresh(kind: type[SqlTarget], server: Any) -> Any:
    """A target outside of the suite."""
    suite = kind()
    suite.use(server)
    return suite


def each_of(kinds: Sequence[type[Any]]) -> Any:
    """A fixture: a target of each of these kinds, one after the other."""

    def made(request: pytest.FixtureRequest) -> Any:
        return fresh(request.param, request.getfixturevalue(request.param.fixture))

    return pytest.fixture(params=kinds, ids=lambda kind: kind.__name__)(made)


def written(sink: Any, batch: Any, **context: Any) -> Any:
    """Validate, write one batch, pre-commit."""
    usual = {"job": JOB, "sink": SINK, "run": 1, "checkpoint": 1, "subtask": 0, "attempt": 0}
    sink.validate(batch.schema)
    transaction = sink.begin_transaction(TransactionContext(**{**usual, **context}))
    sink.write(transaction, batch)
    return through_json(sink.pre_commit(transaction))
