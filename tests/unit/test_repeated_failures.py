"""A failure that comes again at the same batch is told from one that may pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import confluent_kafka
import psycopg
import pytest

from penstock.recovery.restart import (
    LEAST_TIME_S,
    Failure,
    exponential_delay,
    failure_rate,
    fixed_delay,
    may_pass,
    may_pass_by_name,
    no_restart,
    place_of,
    times_in_a_row,
    would_come_again,
)

BAD = Failure(7, "counts: ValueError at job.py:3")


@pytest.mark.parametrize(
    ("failures", "times"),
    [
        ([BAD], 1),
        ([BAD, BAD, BAD], 3),
        ([BAD, Failure(8, BAD.cause), BAD], 1),
        ([BAD, Failure(7, "counts: KeyError at job.py:9"), BAD, BAD], 2),
        ([BAD, Failure(), BAD], 1),
        ([BAD, BAD, Failure()], 0),
        ([Failure(7, ""), Failure(7, "")], 0),
        ([Failure(None, BAD.cause)] * 2, 0),
    ],
)
def test_times_in_a_row(failures: list[Failure], times: int) -> None:
    """Only the same cause at the same batch, with nothing else in between, counts."""
    assert times_in_a_row(failures) == times


def test_who_waits_is_told_sooner() -> None:
    """A job ends at the third time in a row, one that reads what is there now at the second."""
    at = [0.0, LEAST_TIME_S, LEAST_TIME_S]
    assert [would_come_again([BAD] * n, at[:n], available_now=False) for n in (1, 2, 3)] == [
        *(False, False),
        True,
    ]
    assert [would_come_again([BAD] * n, [0.0] * n, available_now=True) for n in (1, 2)] == [False, True]
    assert not would_come_again([Failure(7, "")] * 9, list(range(0, 900, 100)), available_now=True)


@pytest.mark.parametrize(
    ("failures", "at", "ends"),
    [
        ([BAD] * 3, [0, 1, 3], False),
        ([BAD] * 8, [0, 1, 3, 5, 9, 14, 22, 119], False),
        ([BAD] * 9, [0, 1, 3, 5, 9, 14, 22, 119, 120], True),
        ([BAD, Failure(), BAD, BAD, BAD], [0, 90, 100, 110, 130], False),
        ([BAD, Failure(), BAD, BAD, BAD], [0, 90, 100, 110, 220], True),
    ],
)
def test_a_job_that_nobody_waits_for_is_given_time(
    failures: list[Failure], at: list[float], ends: bool
) -> None:
    """It ends only when the same was met for two minutes, counted from the first of those in a row."""
    assert would_come_again(failures, at, available_now=False) is ends


def test_a_number_of_attempts_is_kept() -> None:
    """Only a strategy that would go on for ever is cut short."""
    assert fixed_delay(attempts=9).counts_attempts
    assert exponential_delay(attempts=9).counts_attempts
    assert not any(
        strategy.counts_attempts for strategy in (exponential_delay(), failure_rate(), no_restart())
    )


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionRefusedError("no"), True),
        (TimeoutError("no"), True),
        (OSError(28, "No space left on device"), True),
        (MemoryError(), True),
        (raised(RuntimeError("the client's own kind"), ConnectionResetError("no")), True),
        (ZeroDivisionError(), False),
        (FileNotFoundError("lookup.csv"), False),
        (PermissionError("lookup.csv"), False),
        (raised(ValueError("bad row"), KeyError("n")), False),
    ],
)
def test_what_may_pass(error: BaseException, passes: bool) -> None:
    """The network and the machine may get well; a mistake does not."""
    assert may_pass(error) is passes


def refused() -> None:
    psycopg.connect("host=127.0.0.1 port=1 user=x connect_timeout=2")


def shut_down() -> None:
    raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")


def no_broker() -> None:
    raise confluent_kafka.KafkaException(
        confluent_kafka.KafkaError(confluent_kafka.KafkaError._ALL_BROKERS_DOWN)
    )


@pytest.mark.parametrize("call", [refused, shut_down, no_broker])
def test_a_server_that_is_away(call: Callable[[], None]) -> None:
    """What clients of servers raise during an outage may pass, whatever classes they have made for it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each has its own
        call()
    assert may_pass(caught.value)


def test_sqlite_tells_a_lock_from_a_mistake(tmp_path: Path) -> None:
    """A database that is locked may pass; SQL that is wrong, of the same class, does not."""
    with (
        closing(sqlite3.connect(tmp_path / "db")) as first,
        closing(sqlite3.connect(tmp_path / "db", timeout=0)) as second,
    ):
        first.execute("create table t (x)")
        first.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="locked") as locked:
            second.execute("insert into t values (1)")
        with pytest.raises(sqlite3.OperationalError, match="no such table") as wrong:
            first.execute("select * from u")
    assert may_pass(locked.value)
    assert not may_pass(wrong.value)


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("psycopg.OperationalError", True),
        ("redis.exceptions.ConnectionError", True),
        ("requests.exceptions.ReadTimeout", True),
        ("grpc.RpcError", True),
        ("ConnectionRefusedError", True),
        ("MemoryError", True),
        ("FileNotFoundError", False),
        ("KeyError", False),
        ("psycopg.ProgrammingError", False),
        ("print", False),
    ],
)
def test_what_may_pass_by_its_name(name: str, passes: bool) -> None:
    """Of an exception that arrives as text the name of its class decides."""
    assert may_pass_by_name(name) is passes


def test_an_exception_is_recognised_by_its_place() -> None:
    """The same line with another text is the same failure, another line is another."""
    first, second = (raised(ValueError(text)) for text in ("row 1", "row 2"))
    assert place_of(first) == place_of(second)
    assert place_of(first).startswith("ValueError at ")
    with pytest.raises(ValueError) as elsewhere:  # noqa: PT011 - any
        int("x")
    assert place_of(elsewhere.value) != place_of(first)
    assert place_of(ValueError("never raised")) == "ValueError"
