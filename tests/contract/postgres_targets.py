"""The sink `Postgres` as the contract suite drives it: every test has a database of its own on one real server."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.rows import dict_row

from penstock.sinks import Postgres
from penstock.testing.sink_contract import SinkContract

_END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_SCHEMAS = r"SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$'"
_TAKEN: dict[int, dict[str, str]] = {}
"""By the server's port: who has which database. Making one takes longer than emptying that of a test that is over."""


def new_database(server) -> str:
    """Give the running test an empty database."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    taken = _TAKEN.setdefault(server.port, {})
    name = next((name for name, holder in taken.items() if holder != test), None)
    if name is None:
        name = f"test_{len(taken)}"
        server.reader("postgres").execute(f"CREATE DATABASE {name}")
    else:
        _make_empty(server.reader(name))
    taken[name] = test
    return name


def _make_empty(reader: psycopg.Connection) -> None:
    reader.execute(_END_SESSIONS)
    for (gid,) in reader.execute(_PREPARED).fetchall():
        reader.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(psycopg.sql.Literal(gid)))
    for (schema,) in reader.execute(_SCHEMAS).fetchall():
        reader.execute(f"DROP SCHEMA {schema} CASCADE")
    reader.execute("CREATE SCHEMA public")
    reader.execute("GRANT USAGE ON SCHEMA public TO public")


class PostgresTarget(SinkContract):
    options: ClassVar[dict[str, Any]] = {}
    create_table = "CREATE TABLE results (id bigint, name text)"

    @pytest.fixture(autouse=True)
    def target(self, postgres_server) -> None:
        self.use(postgres_server)

    def use(self, server) -> None:
        self.server = server
        self.database = new_database(server)
        self.execute(self.create_table)

    def make_sink(self, **changes: Any) -> Postgres:
        return Postgres(self.server.dsn(database=self.database), "results", **{**self.options, **changes})

    def visible_rows(self) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM results")

    def execute(self, statement: str) -> None:
        self.server.reader(self.database).execute(statement)

    def query(self, statement: str) -> list[dict[str, Any]]:
        reader = self.server.reader(self.database)
        return reader.cursor(row_factory=dict_row).execute(statement).fetchall()

    def drop_records(self) -> None:
        """Make the server forget all that the sink has ever made in it."""
        for row in self.query(
            r"SELECT relname FROM pg_class WHERE relname LIKE '\_penstock\_%' AND relkind = 'r'"
        ):
            self.execute(f"DROP TABLE {row['relname']}")

    def left_behind(self) -> int:
        """How many rows or transactions wait in the server, whoever they belong to."""
        prepared = self.query("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        staged = self.query(
            "SELECT relname FROM pg_class WHERE relname LIKE '\\_penstock\\_staged%' AND relkind = 'r'"
        )
        tables = ["_penstock_transactions", *(row["relname"] for row in staged)] if staged else []
        return len(prepared) + sum(
            self.query(f"SELECT count(*) FROM {table}")[0]["count"] for table in tables
        )


class PostgresPrepared(PostgresTarget):
    pass


class PostgresStaged(PostgresTarget):
    options: ClassVar[dict[str, Any]] = {"transactions": "staged"}


class PostgresUpsert(PostgresTarget):
    options: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": ["id"]}
    create_table = "CREATE TABLE results (id bigint PRIMARY KEY, name text)"


ALL = [PostgresPrepared, PostgresStaged, PostgresUpsert]


def fresh(kind: type[PostgresTarget], server) -> Any:
    """A target outside of the suite."""
    suite = kind()
    suite.use(server)
    return suite
