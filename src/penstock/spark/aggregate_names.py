"""The names of the columns that `aggregate` is given: by argument, or by alias. Driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from penstock.errors import ConfigError


def named_aggregates(
    columns: Sequence[Column], named: Mapping[str, Column], *, keys: Sequence[str], uid: str
) -> dict[str, Column]:
    """The columns by name, in the order in which they were written; a name that is missing or taken is refused."""
    pairs = [(_alias(column, position, uid), column) for position, column in enumerate(columns, 1)]
    pairs.extend(named.items())
    if not pairs:
        raise ConfigError(
            f"aggregate {uid!r}: name at least one column, such as pv=F.count('*') or F.count('*').alias('pv')",
            uid=uid,
        )
    taken = {key.lower(): "the name of a key column too" for key in keys}
    for name, _ in pairs:
        if name.lower() in taken:
            raise ConfigError(
                f"aggregate {uid!r}: {name!r} is {taken[name.lower()]} (upper and lower case are not told apart); choose another name",
                uid=uid,
                column=name,
            )
        taken[name.lower()] = "the name of two columns"
    return dict(pairs)


def _alias(column: Column, position: int, uid: str) -> str:
    if not isinstance(column, ClassicColumn):
        raise ConfigError(
            f"aggregate {uid!r}: argument {position} is {column!r}; it takes columns of a classic Spark session, such as "
            "F.count('*').alias('pv')",
            uid=uid,
            position=position,
        )
    names = _names(column._jc.node())
    if len(names) != 1 or not names[0]:
        raise ConfigError(
            f"aggregate {uid!r}: argument {position}, {column._jc.toString()}, has no name of its own; write pv=F.count('*') or "
            "F.count('*').alias('pv')",
            uid=uid,
            position=position,
        )
    return names[0]


def _names(node: Any) -> list[str]:
    """Those that a column was given; a generator's may be several."""
    if _class(node) == "SqlExpression":  # F.expr("count(1) AS pv") is text until Spark parses it
        session: Any = SparkSession.active()
        node = session._jsparkSession.sessionState().sqlParser().parseExpression(node.expression())
    if _class(node) != "Alias":
        return []
    name = node.name()
    return [name] if isinstance(name, str) else [str(name.apply(at)) for at in range(name.size())]


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())
