"""The sinks speak one language: one word for a server's address, one type for durations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock import sinks
from penstock.errors import ConfigError

POSTGRES = partial(sinks.Postgres, "host=h", "t")
MYSQL = partial(sinks.MySQL, "mysql://u:p@h/d", "t")
REDIS = partial(sinks.Redis, "redis://h", key="{app}")
SQLITE = partial(sinks.SQLite, "/data/out.db", "t")
KAFKA = partial(sinks.Kafka, "h:9092", "t", staging="/data/staging")


@pytest.mark.parametrize(
    "kind",
    [sinks.Kafka, sinks.Postgres, sinks.MySQL, sinks.MariaDB, sinks.Redis],
    ids=lambda kind: kind.__name__,
)
def test_a_server_has_an_address(kind: type) -> None:
    """Every sink that is told where a server is calls it `address`, and takes it first."""
    assert next(iter(inspect.signature(kind).parameters)) == "address"


@pytest.mark.parametrize("name", [name for name in sinks.__all__ if name != "Transaction"])
def test_no_argument_carries_its_unit(name: str) -> None:
    """A duration is a text such as '30s' or a timedelta, so that no argument of a sink ends in a unit of time."""
    arguments = inspect.signature(getattr(sinks, name)).parameters
    assert not [argument for argument in arguments if argument.endswith(("_s", "_ms", "_seconds"))]


@pytest.mark.parametrize(
    ("make", "argument", "value", "said"),
    [
        (POSTGRES, "lock_timeout", 30, "not a duration"),
        (POSTGRES, "lock_timeout", "0s", "too short"),
        (MYSQL, "lock_timeout", "30", "not a duration"),
        (MYSQL, "lock_timeout", "0ms", "too short"),
        (SQLITE, "busy_timeout", 10.0, "not a duration"),
        (REDIS, "timeout", "0s", "too short"),
        (REDIS, "expire", 3600, "not a duration"),
        (KAFKA, "commit_timeout", 5, "not a duration"),
    ],
)
def test_a_wrong_duration_is_refused_by_name(
    make: Callable[..., Any], argument: str, value: object, said: str
) -> None:
    """It is refused when the sink is made, with the argument and the value."""
    with pytest.raises(ConfigError, match=f"^{argument}={value!r} is {said}"):
        make(**{argument: value})


@pytest.mark.parametrize("address", [5, [], ["h:9092", ""], "", None])
def test_brokers_that_cannot_be_read(address: Any) -> None:
    """An address of Kafka's that is no text and no list of texts is refused when the sink is made."""
    with pytest.raises(ConfigError, match=r"^address=.* does not name Kafka brokers"):
        sinks.Kafka(address, "t", staging="/data/staging")
