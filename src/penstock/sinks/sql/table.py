"""The table that a sink for a SQL server writes to: its SQL, and what an existing one must look like. Driver; the SQL also on executors.

A server says how its catalogue is read, how its types keep values, and the words of its SQL that differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.sinks.json_text import unsupported_in_json
from penstock.sinks.sql.server import SqlSession
from penstock.sinks.table_checks import check_columns, check_declared, quoted_name
from penstock.state.ddl import spark_type

STAGED_KEY = ("_penstock_transaction", "_penstock_row")
"""The first columns of a staging table: the number of the transaction, and of the row in it."""


@dataclass(frozen=True)
class Column(ABC):
    """A column in the catalogue. `type` is the declared type without its parameters, `collation` is None if it is the default."""

    name: str
    declared: str
    type: str
    not_null: bool
    has_default: bool
    made_by_server: bool
    collation: str | None

    @property
    def needs_value(self) -> bool:
        """Whether a row without a value for it is refused."""
        return self.not_null and not self.has_default and not self.made_by_server

    @abstractmethod
    def fits(self, data_type: pa.DataType) -> bool:
        """Return whether the column stores values of this type unchanged."""

    @abstractmethod
    def keeps_digits(self, data_type: pa.DataType) -> bool:
        """Return whether values keep all digits after the decimal point, or below a second."""


@dataclass(frozen=True)
class Layout:
    """An existing table that fits: its place, the declarations of the written columns, and the checks that need only these columns."""

    schema: str | None
    table: str
    name: str
    """The quoted name, with its schema."""
    columns: tuple[Any, ...]
    definitions: tuple[str, ...]
    """The columns in SQL."""
    checks: tuple[str, ...]
    indexed: tuple[tuple[str, ...], ...] = ()
    """The written columns of each index that limits the length of values."""


class TargetTable(ABC):
    """One table, and the columns of its key when rows are upserted."""

    server: ClassVar[str]
    """Its name in messages."""
    quote: ClassVar[str] = '"'
    ignores_case: ClassVar[bool] = False
    """Whether names of columns are compared without regard to case."""
    unique_index_must: ClassVar[str] = ""
    """Further conditions for the index of an upsert, for messages."""

    def __init__(self, name: str, schema: str | None, key: Sequence[str]) -> None:
        self.name = name
        self.schema = schema
        self.key = tuple(key)

    @property
    def quoted(self) -> str:
        """The quoted name, with its schema."""
        return self.column(*filter(None, (self.schema, self.name)))

    def column(self, *names: str) -> str:
        """Quote a name for SQL."""
        return quoted_name(*names, mark=self.quote)

    def listed(self, names: Iterable[str]) -> str:
        """Quote names for a list of columns."""
        return ", ".join(map(self.column, names))

    def folded(self, name: str) -> str:
        """Return the name of a column in the form that the server compares."""
        return name.lower() if self.ignores_case else name

    def is_key(self, name: str) -> bool:
        """Return whether a column belongs to the key."""
        return self.folded(name) in map(self.folded, self.key)

    def without_form(self, data_type: pa.DataType) -> str | None:
        """Return the part of a type that the server cannot store; None if it can store all of it."""
        return unsupported_in_json(data_type)

    @abstractmethod
    def type_name(self, data_type: pa.DataType) -> str:
        """Return the best type for a column of these values."""

    def declared_type(self, session: SqlSession, field: pa.Field) -> str:  # noqa: ARG002 - not all servers are queried
        """Return the type for CREATE TABLE, where a key may need another one."""
        return self.type_name(field.type)

    @abstractmethod
    def widen_sql(self, field: pa.Field, column: Any) -> str:
        """Return the statement that makes a column keep all digits."""

    @abstractmethod
    def upsert_sql(self, insert: str, columns: Sequence[str], rows: str) -> str:
        """Complete an INSERT so that it replaces rows with the same key; of several rows with the same key the last one counts."""

    @abstractmethod
    def find(self, session: SqlSession) -> bool:
        """Return whether the table exists; refuse views and the like, and tables that would lose rows."""

    def found_schema(self, session: SqlSession) -> str | None:  # noqa: ARG002 - there may be no schemas
        """Return the schema of the table, or the one in which it would be created; None if databases have no schemas."""
        return self.schema

    @abstractmethod
    def declared_columns(self, session: SqlSession) -> Sequence[Any]:
        """Return the columns of the table, in order."""

    @abstractmethod
    def staged_columns(self, session: SqlSession, schema: str | None, staged_in: str) -> list[str]:
        """Return the names of the target's columns in a staging table."""

    @abstractmethod
    def may(self, session: SqlSession, rights: Sequence[str], columns: Sequence[Any]) -> bool:
        """Return whether this user has these rights on the written columns."""

    @abstractmethod
    def unique_keys(self, session: SqlSession) -> Mapping[str, set[str]]:
        """Return the columns of each unique index, by the name of the index."""

    @abstractmethod
    def checks(self, session: SqlSession, columns: Sequence[str]) -> Iterable[str]:
        """Return the CHECKs of the table that need only these columns."""

    def indexed(self, session: SqlSession, columns: Sequence[str]) -> Iterable[tuple[str, ...]]:  # noqa: ARG002 - not all servers
        """Return the written columns of each index that limits the length of values."""
        return ()

    def name_hint(self) -> str:
        """Return what may be wrong with the name of a table that does not exist."""
        return ""

    def create_sql(self, session: SqlSession, columns: pa.Schema) -> str:
        """Return the statement that creates a table for these columns."""
        parts = [
            f"{self.column(field.name)} {self.declared_type(session, field)}{' NOT NULL' if self.is_key(field.name) else ''}"
            for field in columns
        ]
        if self.key:
            parts.append(f"PRIMARY KEY ({self.listed(self.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.quoted} ({', '.join(parts)})"

    def insert_sql(self, staged: str, columns: Sequence[str], transaction: int) -> str:
        """Return the statement that moves the rows of a staged transaction into the table."""
        insert = f"INSERT INTO {self.quoted} ({self.listed(columns)})"
        rows = f"FROM {staged} WHERE {STAGED_KEY[0]} = {transaction:d}"
        if self.key:
            return self.upsert_sql(insert, columns, rows)
        return f"{insert} SELECT {self.listed(columns)} {rows} ORDER BY {STAGED_KEY[1]}"

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse columns that no table can hold, and keys that are not columns."""
        check_columns(
            schema,
            self.key,
            target=self.server,
            ignores_case=self.ignores_case,
            without_form=self.without_form,
        )

    def check_existing(self, session: SqlSession, schema: pa.Schema) -> Layout:
        """Check that the table exists and fits the schema; returns its layout."""
        if not self.find(session):
            raise ConfigError(
                f"table {self.quoted} does not exist in this database{self.name_hint()}; run {self.create_sql(session, schema)}; "
                "or let the sink create it with create=True",
                table=self.name,
            )
        declared = {self.folded(column.name): column for column in self.declared_columns(session)}
        self._check_declared(schema, declared)
        written = [declared[self.folded(name)] for name in schema.names]
        self._check_rights(session, written)
        if self.key:
            self.check_unique(self.unique_keys(session))
        columns = [replace(each, not_null=each.not_null or self.is_key(each.name)) for each in written]
        where = self.found_schema(session)
        return Layout(
            where,
            self.name,
            session.quoted(where, self.name),
            tuple(columns),
            tuple(map(self._definition, columns)),
            tuple(self.checks(session, schema.names)),
            tuple(self.indexed(session, schema.names)),
        )

    def check_unique(self, indexes: Mapping[str, set[str]]) -> None:
        """Refuse an upsert without the unique index that the server needs."""
        if set(map(self.folded, self.key)) not in indexes.values():
            raise ConfigError(
                f"mode='upsert' needs a primary key or unique index on exactly {list(self.key)} of table {self.quoted}"
                f"{self.unique_index_must}; run ALTER TABLE {self.quoted} ADD UNIQUE ({self.listed(self.key)})",
                table=self.name,
                key=list(self.key),
            )

    def _definition(self, column: Column) -> str:
        collation = f" COLLATE {column.collation}" if column.collation else ""
        null = "NOT NULL" if column.not_null else "NULL"
        return f"{self.column(column.name)} {column.declared}{collation} {null}"

    def _check_rights(self, session: SqlSession, written: Sequence[Column]) -> None:
        needed = ("INSERT", "SELECT", "UPDATE") if self.key else ("INSERT",)
        if not self.may(session, needed, written):
            raise ConfigError(
                f"this user may not write to table {self.quoted}; run GRANT {', '.join(needed)} ON {self.quoted} TO ...",
                table=self.name,
            )

    def _check_declared(self, schema: pa.Schema, declared: Mapping[str, Column]) -> None:
        needs_value = {column.name: column.needs_value for column in declared.values()}
        check_declared(
            schema, needs_value, table=self.name, shown=self.quoted, ignores_case=self.ignores_case
        )
        for field in schema:
            self._check_type(field, declared[self.folded(field.name)])

    def _check_type(self, field: pa.Field, column: Column) -> None:
        if column.made_by_server:
            raise ConfigError(
                f"column {column.name!r} of table {self.quoted} is generated by the server; drop it before write_to",
                table=self.name,
                column=column.name,
            )
        if not column.fits(field.type):
            why = (
                f"the values would be changed or refused; cast it before write_to, or make the column "
                f"{self.type_name(field.type)}"
            )
        elif not column.keeps_digits(field.type):
            why = f"the server would cut or round digits; run {self.widen_sql(field, column)}, or cast it before write_to"
        else:
            return
        raise ConfigError(
            f"column {field.name!r} of type {spark_type(field.type)} does not fit into {column.declared} of table {self.quoted}: {why}",
            table=self.name,
            column=field.name,
            declared=column.declared,
        )
