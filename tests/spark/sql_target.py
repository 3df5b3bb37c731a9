"""A SQL server as the tests of jobs see it: PostgreSQL and MariaDB behind the same few words."""

from __future__ import annotations

from typing import Any

import psycopg

import penstock as ps


class PostgresServer:
    """PostgreSQL, in the database that is there from the start."""

    kind = ps.sinks.Postgres

    def __init__(self, process: Any) -> None:
        self.process = process

    def sink(self, table: str, **options: Any) -> ps.sinks.Postgres:
        return ps.sinks.Postgres(self.process.dsn(), table, **options)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.process.dsn(), autocommit=True) as connection:
            answer = connection.execute(statement)
            return answer.fetchall() if answer.description else []

    def prepared(self) -> list[str]:
        """What waits on the server for a commit of these jobs; other tests leave their own."""
        found = self.query("SELECT gid FROM pg_prepared_xacts")
        return [gid for (gid,) in found if gid.startswith("penstock:pv-")]

    def kill(self) -> None:
        self.process.process.kill()
        self.process.process.wait()

    def start(self) -> None:
        self.process.kill()  # which starts it again, as soon as the sessions of the old one have ended


class MariaDBServer:
    """MariaDB, in a database of these tests."""

    kind = ps.sinks.MariaDB

    def __init__(self, process: Any) -> None:
        self.process = process
        process.query("CREATE DATABASE IF NOT EXISTS spark_tests")

    def sink(self, table: str, **options: Any) -> ps.sinks.MariaDB:
        return ps.sinks.MariaDB(self.process.url("spark_tests"), table, **options)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.process.query(statement, "spark_tests")]

    def prepared(self) -> list[str]:
        """What waits on the server for a commit of these jobs; other tests leave their own."""
        names = [str(row[-1]) for row in self.query("XA RECOVER")]
        return [name for name in names if "pv-" in name]

    def kill(self) -> None:
        self.process.kill()

    def start(self) -> None:
        self.process.start()
