"""What a user may write for a schema or a type, as DDL: DDL itself, Spark's types, a list of columns. Driver.

Spark's types are only looked at: nothing here imports PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.state.types import arrow_schema, arrow_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

    Type = str | DataType
    """The type of a state or a column."""
    Columns = str | StructType | Sequence[str | tuple[str, Type] | StructField]
    """The columns of a schema."""

_PLAIN_NAME = re.compile(r"\w+")


def schema_ddl(given: Columns) -> str:
    """The DDL of columns, whatever they were written as; what cannot be read is refused."""
    if isinstance(given, list | tuple):
        ddl = ", ".join(_column(one) for one in given)
    elif _is_spark_type(given) and hasattr(given, "fields"):
        ddl = _fields(given.fields, " ")
    elif isinstance(given, str):
        ddl = given
    else:
        raise ConfigError(
            f"schema={given!r} is not a schema: it takes DDL such as 'app string, n long', a StructType, or a list of columns such as "
            f"['app string', ('n', 'long')]{_made(given)}",
            schema=given,
        )
    if not ddl.strip():
        raise ConfigError(
            f"schema={given!r} has no columns: name at least one, such as 'app string'", schema=given
        )
    arrow_schema(ddl)
    return ddl


def type_ddl(given: Type) -> str:
    """The DDL of a type; what cannot be read is refused."""
    if not isinstance(given, str) and not _is_spark_type(given):
        raise ConfigError(
            f"type={given!r} is not a type: it takes DDL such as 'long' or 'array<string>', or a type of Spark's such as LongType()"
            f"{_made(given)}",
            type=given,
        )
    ddl = _type(given)
    arrow_type(ddl)
    return ddl


def _column(given: object) -> str:
    """One column of a list."""
    if isinstance(given, str):
        if len(arrow_schema(given)) != 1:
            raise ConfigError(
                f"schema has {given!r} as one of its columns, which are several; write one a text, such as 'app string'",
                column=given,
            )
        return given
    name, kind = _name_and_type(given)
    return f"{_name(name)} {type_ddl(kind)}"


def _name_and_type(given: Any) -> tuple[str, Any]:
    pair = (given.name, given.dataType) if hasattr(given, "dataType") else given
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str) and bool(pair[0])  # noqa: PLR2004
    if not is_pair or not (isinstance(pair[1], str) or _is_spark_type(pair[1])):
        raise ConfigError(
            f"schema has {given!r} as one of its columns: it takes 'name type', a pair such as ('n', 'long') or ('n', LongType()), or a "
            f"StructField{_made(pair[1] if is_pair else given)}",
            column=given,
        )
    return pair[0], pair[1]


def _type(kind: Any) -> str:
    """The DDL of a type of Spark's; what Penstock has no type for is refused by who reads it."""
    if isinstance(kind, str):
        return kind
    if hasattr(kind, "fields"):
        return f"struct<{_fields(kind.fields, ':')}>"
    if hasattr(kind, "elementType"):
        return f"array<{_type(kind.elementType)}>"
    if hasattr(kind, "keyType"):
        return f"map<{_type(kind.keyType)},{_type(kind.valueType)}>"
    return str(kind.simpleString())


def _fields(fields: Sequence[Any], between: str) -> str:
    return ", ".join(f"{_name(field.name)}{between}{_type(field.dataType)}" for field in fields)


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _is_spark_type(given: object) -> bool:
    return (
        not isinstance(given, type)
        and type(given).__module__.startswith("pyspark.")
        and hasattr(given, "simpleString")
    )


_SPARKS_NAMES = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "binary"}


def _made(given: object) -> str:
    if not isinstance(given, type):
        return ""
    if given in _SPARKS_NAMES:
        return f"; for Python's {given.__name__} write {_SPARKS_NAMES[given]!r}"
    return f"; {given.__name__} is a class: write {given.__name__}()"
