"""The type language of state and schemas: Spark's DDL, read without Spark. Driver and executors.

    arrow_type("map<string,array<decimal(10,2)>>")
    arrow_schema("user string, visits long, last: timestamp")

Every type maps to the Arrow type that Spark itself uses for it, so that columns cross into Spark without a cast. `NOT NULL` is accepted
and has no effect: absent state reads as null.

`schema_ddl` and `type_ddl` also accept Spark's type objects and lists of columns. They only read attributes of these objects: nothing here
imports PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from penstock.errors import ConfigError

_FLAT_TYPES = {
    "long": pa.int64(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "string": pa.string(),
    "double": pa.float64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}
_NAMES = {kind: name for name, kind in reversed(_FLAT_TYPES.items())}
"""The first of several names."""
ALLOWED_TYPES = (*_FLAT_TYPES, "decimal(p,s)", "array<type>", "map<type,type>", "struct<name:type,...>")

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")
_END = "end of text"
_MAX_DEPTH = 64
_MAX_PRECISION = 38


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type that a Spark type such as 'array<string>' stands for."""
    parser = _Parser(ddl)
    found = parser.type()
    parser.expect_end()
    return found


def spark_type(kind: pa.DataType) -> str:
    """The DDL name of an Arrow type, such as 'long' or 'array<string>'; Arrow's own name for a type that Spark does not have."""
    if pa.types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(kind, str(kind))


def canonical(kind: pa.DataType) -> pa.DataType:
    """The type with all parts nullable, as state of user code has it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, canonical(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(canonical(kind.key_type), canonical(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(canonical(kind.value_type))
    return kind


def arrow_schema(ddl: str) -> pa.Schema:
    """The Arrow schema of columns such as 'user string, visits long'."""
    parser = _Parser(ddl)
    fields = parser.fields()
    parser.expect_end()
    return pa.schema(fields)


class _Parser:
    """Recursive descent over the text; `_token` is what comes next and `_start` where it stands."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError(
                f"{text!r} is not a type: give text such as 'long' or 'array<string>'", text=text, position=0
            )
        self._text = text
        self._token = ""
        self._quoted = False
        self._start = 0
        self._end = 0
        self._depth = 0
        self._advance()

    def type(self) -> pa.DataType:
        """Read one type, and refuse types that are nested too deep."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"types are nested more than {_MAX_DEPTH} deep")
        found = self._type()
        self._depth -= 1
        return found

    def fields(self) -> list[pa.Field]:
        """Read 'name type, name type' with an optional colon and NOT NULL."""
        fields: list[pa.Field] = []
        seen: set[str] = set()
        while True:
            # Column names are not case-sensitive in Spark, so 'a' and 'A' would be one ambiguous column.
            if self._token.lower() in seen:
                self._fail(f"column {self._token!r} occurs twice (names are not case-sensitive)")
            seen.add(self._token.lower())
            name = self._name()
            self._skip(":")
            fields.append(pa.field(name, self.type()))
            self._not_null()
            if not self._skip(","):
                return fields

    def expect_end(self) -> None:
        """Fail if any text is left."""
        if self._token != _END:
            self._fail(f"expected the end, found {self._token!r}")

    def _type(self) -> pa.DataType:
        word = "" if self._quoted else self._token.lower()
        flat = _FLAT_TYPES.get(word)
        if flat is not None:
            self._advance()
            return flat
        if word == "decimal":
            return self._decimal()
        if word == "array":
            (item,) = self._arguments(1)
            return pa.list_(item)
        if word == "map":
            key, value = self._arguments(2)
            return pa.map_(key, value)
        if word == "struct":
            return self._struct()
        return self._fail(f"expected a type, found {self._token!r}")

    def _arguments(self, count: int) -> list[pa.DataType]:
        self._advance()
        self._expect("<")
        types = [self.type()]
        while len(types) < count:
            self._expect(",")
            types.append(self.type())
        self._expect(">")
        return types

    def _struct(self) -> pa.DataType:
        self._advance()
        self._expect("<")
        fields = self.fields()
        self._expect(">")
        return pa.struct(fields)

    def _decimal(self) -> pa.DataType:
        at = self._start
        self._advance()
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._number()
            scale = self._number() if self._skip(",") else 0
            self._expect(")")
        if not (1 <= precision <= _MAX_PRECISION and scale <= precision):
            self._start = at
            self._fail(
                f"decimal({precision},{scale}) does not exist: precision is 1 to 38, scale 0 to precision"
            )
        return pa.decimal128(precision, scale)

    def _not_null(self) -> None:
        if not self._quoted and self._token.lower() == "not":
            self._advance()
            if self._quoted or self._token.lower() != "null":
                self._fail(f"expected NULL after NOT, found {self._token!r}")
            self._advance()

    def _name(self) -> str:
        if not self._quoted and not re.fullmatch(r"\w+", self._token):
            self._fail(f"expected a column name, found {self._token!r}")
        return self._advance()

    def _number(self) -> int:
        if self._quoted or not self._token.isdecimal():
            self._fail(f"expected a number, found {self._token!r}")
        return int(self._advance())

    def _skip(self, sign: str) -> bool:
        if self._quoted or self._token != sign:
            return False
        self._advance()
        return True

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            self._fail(f"expected {sign!r}, found {self._token!r}")

    def _advance(self) -> str:
        """Move to the next token; returns the one before it."""
        before = self._token
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            rest = self._text[self._end :]
            self._start = len(self._text) - len(rest.lstrip())
            self._quoted = False
            self._token = rest.strip()[:1] or _END
            if self._token != _END:
                self._fail(f"unexpected character {self._token!r}")
            return before
        self._quoted = match.group(1) is not None
        self._start = match.start(match.lastindex or 0) - self._quoted
        self._token = match.group(1).replace("``", "`") if self._quoted else match.group(2) or match.group(3)
        self._end = match.end()
        return before

    def _fail(self, problem: str) -> NoReturn:
        raise ConfigError(
            f"cannot read the type {self._text!r}: {problem} at position {self._start}; "
            f"allowed types are {', '.join(ALLOWED_TYPES)}",
            text=self._text,
            position=self._start,
        )


if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

    Type = str | DataType
    """The type of a state or a column."""
    Columns = str | StructType | Sequence[str | tuple[str, Type] | StructField]
    """The columns of a schema."""

_PLAIN_NAME = re.compile(r"\w+")


def schema_ddl(given: Columns) -> str:
    """The DDL of columns in any accepted form. Raises `ConfigError` for any other."""
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
    """The DDL of a type in any accepted form. Raises `ConfigError` for any other."""
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
                f"schema has {given!r} as one of its columns, but it names several; write one column per text, such as 'app string'",
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
    """The DDL of one of Spark's types. The caller refuses types that Penstock does not have."""
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
