"""A server that says no is told from one that does not answer."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
import redis

from penstock.errors import ConfigError, UnavailableError, refuses_login
from penstock.recovery.restart import may_pass
from penstock.spark.failure_messages import retries_start

REFUSED = [
    pymysql.err.OperationalError(1045, "Access denied for user 'me'@'host' (using password: YES)"),
    pymysql.err.OperationalError(1049, "Unknown database 'nowhere'"),
    pymysql.err.OperationalError(1142, "INSERT command denied to user 'me'@'host' for table 'views'"),
    psycopg.OperationalError('connection failed: FATAL:  password authentication failed for user "me"'),
    psycopg.OperationalError('connection failed: FATAL:  database "nowhere" does not exist'),
    psycopg.errors.InsufficientPrivilege("permission denied for table views"),
    redis.exceptions.AuthenticationError("WRONGPASS invalid username-password pair"),
]
AWAY = [
    pymysql.err.OperationalError(2003, "Can't connect to MySQL server on 'host'"),
    pymysql.err.OperationalError(1040, "Too many connections"),
    psycopg.OperationalError("connection failed: Connection refused"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
    redis.exceptions.ConnectionError("Connection refused"),
    sqlite3.OperationalError("database is locked"),
]


@pytest.mark.parametrize("error", REFUSED, ids=repr)
def test_a_refusal_is_no_outage(error: Exception) -> None:
    """User, password, database and rights are settings: waiting does not mend them, so the failure counts as one that comes again."""
    assert refuses_login(error)
    assert not may_pass(error)


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_an_outage_is_no_refusal(error: Exception) -> None:
    """A server that is away, busy or locked may be there again."""
    assert not refuses_login(error)
    assert may_pass(error)


def test_a_start_waits_for_an_outage_and_not_for_a_login() -> None:
    """A start that meets a server that is away is tried again; one that is refused ends, before anything is changed for good."""
    assert retries_start(UnavailableError("no answer", denied=False))
    assert retries_start(UnavailableError("no answer"))
    assert not retries_start(UnavailableError("Access denied", denied=True))
    assert not retries_start(ConfigError("wrong"))
