"""The table that a `MySQL` sink writes to: how the catalogue is read and what types keep. Driver; the SQL also on executors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.sinks.sql.mysql_server import pymysql_module, server_kind
from penstock.sinks.sql.mysql_values import type_for
from penstock.sinks.sql.server import SqlSession
from penstock.sinks.sql.table import STAGED_KEY, Column, TargetTable
from penstock.sinks.sql.values import fraction_digits, needed_scale

_FIND = "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?"
_COLUMNS = """SELECT column_name, column_type, data_type, is_nullable = 'NO', column_default IS NOT NULL OR
    extra LIKE '%auto_increment%', extra LIKE '%GENERATED' AND extra NOT LIKE '%DEFAULT_GENERATED%', collation_name,
    privileges FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position"""
_UNIQUE = """SELECT index_name, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0"""
_CHECKS = {
    "MariaDB": """SELECT constraint_name, check_clause FROM information_schema.check_constraints
        WHERE constraint_schema = DATABASE() AND table_name = ? ORDER BY 1""",
    "MySQL": """SELECT constraint_name, check_clause FROM information_schema.check_constraints
        JOIN information_schema.table_constraints USING (constraint_schema, constraint_name)
        WHERE table_schema = DATABASE() AND table_name = ? AND constraint_type = 'CHECK' ORDER BY 1""",
}
_STAGED_COLUMNS = """SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?
    AND ordinal_position > 2 ORDER BY ordinal_position"""
_FLOATS = {"float", "double"}
_TIMES = {"datetime", "timestamp", "time"}
_MOST_DIGITS = 6
_KEY_TYPES = {"longtext": "varchar(255)", "longblob": "varbinary(255)"}
_EXACT_COLLATION = {"MariaDB": "utf8mb4_nopad_bin", "MySQL": "utf8mb4_0900_bin"}
"""The collation of keys in tables that the sink creates; by default 'a', 'A' and 'a ' would be equal."""


@dataclass(frozen=True)
class MySQLColumn(Column):
    """A column of MySQL or MariaDB."""

    granted: str
    """The rights of this user on it, in lower case."""

    @override
    def fits(self, data_type: pa.DataType) -> bool:
        wanted = type_for(data_type)
        return pa.types.is_null(data_type) or (wanted is not None and self.type.lower() in wanted.fitting)

    @property
    def full_type(self) -> str:
        """The same type with all digits that the server can keep."""
        return self.type if self.type in _FLOATS else f"{self.type}({_MOST_DIGITS})"

    @override
    def keeps_digits(self, data_type: pa.DataType) -> bool:
        if self.type in _FLOATS:
            return "," not in self.declared
        if self.type == "decimal":
            scale = re.search(r",(\d+)\)", self.declared)
            return int(scale[1] if scale else 0) >= (needed_scale(data_type) or 0)
        found = re.search(r"\((\d)\)", self.declared)
        return self.type not in _TIMES or int(found[1] if found else 0) >= fraction_digits(data_type)


class MySQLTable(TargetTable):
    """The InnoDB table that a `MySQL` or `MariaDB` sink writes to."""

    server = "MySQL or MariaDB"
    quote = "`"
    ignores_case = True

    @override
    def without_form(self, data_type: pa.DataType) -> str | None:
        return str(data_type) if type_for(data_type) is None else super().without_form(data_type)

    @override
    def type_name(self, data_type: pa.DataType) -> str:
        wanted = type_for(data_type)
        return "longtext" if wanted is None else wanted.name

    @override
    def declared_type(self, session: SqlSession, field: pa.Field) -> str:
        """Return the type for CREATE TABLE; an index needs texts of limited length."""
        name = self.type_name(field.type)
        declared = _KEY_TYPES.get(name, name) if self.is_key(field.name) else name
        collation = f" COLLATE {_EXACT_COLLATION[server_kind(session)]}"
        return declared + (collation if declared.startswith("varchar") else "")

    @override
    def create_sql(self, session: SqlSession, columns: pa.Schema) -> str:
        return f"{super().create_sql(session, columns)} ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"

    @override
    def widen_sql(self, field: pa.Field, column: MySQLColumn) -> str:
        enough = self.type_name(field.type) if column.type == "decimal" else column.full_type
        return f"ALTER TABLE {self.quoted} MODIFY {self.column(field.name)} {enough} (with what else it declares, such as NOT NULL)"

    @override
    def upsert_sql(self, insert: str, columns: Sequence[str], rows: str) -> str:
        """Insert the rows in order; a later row with the same key updates the earlier one."""
        others = [self.column(name) for name in columns if not self.is_key(name)]
        kept = f"{self.quoted}.{self.column(self.key[0])}"
        changes = [f"{name} = VALUES({name})" for name in others] or [f"{kept} = {kept}"]
        in_order = f"SELECT {self.listed(columns)} {rows} ORDER BY {STAGED_KEY[1]}"
        return f"{insert} {in_order} ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    @override
    def find(self, session: SqlSession) -> bool:
        found = session.execute(_FIND, [self.name])
        for kind, engine in found:
            if kind != "BASE TABLE" or str(engine).lower() != "innodb":
                raise ConfigError(
                    f"{self.quoted} is a {kind} of the engine {engine}; only InnoDB tables have transactions; run ALTER TABLE "
                    f"{self.quoted} ENGINE = InnoDB, or name another table",
                    table=self.name,
                    engine=engine,
                )
        return bool(found)

    @override
    def declared_columns(self, session: SqlSession) -> list[MySQLColumn]:
        return [
            MySQLColumn(
                name, declared, kind, bool(null), bool(default), bool(made), collation, rights.lower()
            )
            for name, declared, kind, null, default, made, collation, rights in session.execute(
                _COLUMNS, [self.name]
            )
        ]

    @override
    def staged_columns(self, session: SqlSession, schema: str | None, staged_in: str) -> list[str]:
        return [name for (name,) in session.execute(_STAGED_COLUMNS, [staged_in])]

    @override
    def may(self, session: SqlSession, rights: Sequence[str], columns: Sequence[MySQLColumn]) -> bool:
        return all(right.lower() in column.granted.split(",") for column in columns for right in rights)

    @override
    def unique_keys(self, session: SqlSession) -> dict[str, set[str]]:
        indexes: dict[str, set[str]] = {}
        for index, column, prefix in session.execute(_UNIQUE, [self.name]):
            name = f"{column}".lower() if prefix is None else f"part of {column}"
            indexes.setdefault(index, set()).add(name)
        return indexes

    def check_unique(self, indexes: Mapping[str, set[str]]) -> None:
        """Refuse other unique indexes, because ON DUPLICATE KEY applies to any of them."""
        super().check_unique(indexes)
        key = {name.lower() for name in self.key}
        others = sorted(index for index, columns in indexes.items() if columns != key)
        if others:
            raise ConfigError(
                f"mode='upsert' on table {self.quoted}: besides the key {list(self.key)} it has the unique indexes {others}, and "
                "a row that collides there would replace a row with another key; drop them",
                table=self.name,
                indexes=others,
            )

    @override
    def checks(self, session: SqlSession, columns: Sequence[str]) -> Iterator[str]:
        """Yield the CHECKs that need only these columns. Neither server lists the columns of a check, so each is tried."""
        written = f"SELECT {self.listed(columns)} FROM {self.quoted}"  # noqa: S608 - quoted
        kind = server_kind(session)
        for name, clause in session.execute(_CHECKS[kind], [self.name]):
            try:
                session.execute(f"SELECT 1 FROM ({written} LIMIT 0) AS written WHERE {clause}")  # noqa: S608 - the server's own
            except pymysql_module().Error:
                continue  # it is checked at commit
            # MySQL: one name a database
            named = f"CONSTRAINT {self.column(name)} " if kind == "MariaDB" else ""
            yield f"{named}CHECK ({clause})"
