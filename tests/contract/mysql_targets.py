"""The sink `MySQL` as the contract suite drives it: every test has a database of its own on one real MariaDB."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest

from penstock.sinks import MariaDB
from penstock.testing.sink_contract import SinkContract

_NUMBERS = itertools.count()


class MySQLTarget(SinkContract):
    options: ClassVar[dict[str, Any]] = {}
    create_table = (
        "CREATE TABLE results (id bigint, name varchar(100)) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"
    )

    @pytest.fixture(autouse=True)
    def target(self, mariadb_server) -> None:
        self.use(mariadb_server)

    def use(self, server) -> None:
        self.server = server
        self.database = f"test_{next(_NUMBERS)}"
        server.query(f"CREATE DATABASE {self.database}")
        self.execute(self.create_table)

    def make_sink(self, **changes: Any) -> MariaDB:
        return MariaDB(self.server.url(self.database), "results", **{**self.options, **changes})

    def visible_rows(self) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM results")

    def execute(self, statement: str) -> None:
        self.query(statement)

    def query(self, statement: str) -> list[dict[str, Any]]:
        return self.server.query(statement, self.database)

    def drop_records(self) -> None:
        """Make the server forget all that the sink has ever made in it."""
        for row in self.query("SHOW TABLES LIKE '\\_penstock\\_%'"):
            self.execute(f"DROP TABLE {next(iter(row.values()))}")

    def left_behind(self) -> int:
        """How many rows or transactions of any job of this test wait in the server."""
        staged = [next(iter(row.values())) for row in self.query("SHOW TABLES LIKE '\\_penstock\\_staged%'")]
        tables = ["_penstock_transactions", *staged] if staged else []
        rows = sum(self.query(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables)
        return rows + len(self.unfinished())


class MySQLPrepared(MySQLTarget):
    pass


class MySQLStaged(MySQLTarget):
    options: ClassVar[dict[str, Any]] = {"transactions": "staged"}


class MySQLUpsert(MySQLTarget):
    options: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": ["id"]}
    create_table = "CREATE TABLE results (id bigint PRIMARY KEY, name varchar(100)) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"


ALL = [MySQLPrepared, MySQLStaged, MySQLUpsert]


def fresh(kind: type[MySQLTarget], server) -> Any:
    """A target outside of the suite."""
    suite = kind()
    suite.use(server)
    return suite
