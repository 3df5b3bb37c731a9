"""The sink `Postgres` as the contract suite drives it: every test has a database of its own on one real server."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
from psycopg.rows import dict_row

from penstock.sinks import Postgres
from penstock.testing.sink_contract import SinkContract

_NUMBERS = itertools.count()


def new_database(server) -> str:
    """Make an empty database."""
    name = f"test_{next(_NUMBERS)}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return name


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
        with self.server.connect(self.database) as connection:
            connection.execute(statement)

    def query(self, statement: str) -> list[dict[str, Any]]:
        with self.server.connect(self.database) as connection:
            return connection.cursor(row_factory=dict_row).execute(statement).fetchall()

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
