"""The table that a `MySQL` sink writes to: its SQL, and what an existing one must look like. Driver; the SQL also on executors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.sinks.json_text import unsupported_in_json
from penstock.sinks.mysql.server import Session, pymysql_module, server_kind
from penstock.sinks.mysql.values import sql_type
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
_FLOATS = {"float", "double"}
_TIMES = {"datetime", "timestamp", "time"}
_MOST_DIGITS = 6
_KEY_TYPES = {"longtext": "varchar(255)", "longblob": "varbinary(255)"}
_EXACT_COLLATION = {"MariaDB": "utf8mb4_nopad_bin", "MySQL": "utf8mb4_0900_bin"}
"""Of keys in tables that the sink makes: by default 'a', 'A' and 'a ' would be one key."""


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Sequence[str]) -> str:
    """Quote names for a list of columns."""
    return ", ".join(map(quoted, names))


@dataclass(frozen=True)
class Column:
    """A column as the catalog has it."""

    name: str
    declared: str
    type: str
    not_null: bool
    has_default: bool
    made_by_server: bool
    collation: str | None

    @property
    def full_type(self) -> str:
        """The same type with all digits that the server can keep."""
        return self.type if self.type in _FLOATS else f"{self.type}({_MOST_DIGITS})"

    def keeps_digits(self, data_type: pa.DataType) -> bool:
        """Tell whether values keep all digits below a second; of numbers, below one."""
        if self.type in _FLOATS:
            return "," not in self.declared
        if self.type == "decimal":
            scale = re.search(r",(\d+)\)", self.declared)
            return int(scale[1] if scale else 0) >= (needed_scale(data_type) or 0)
        found = re.search(r"\((\d)\)", self.declared)
        return self.type not in _TIMES or int(found[1] if found else 0) >= fraction_digits(data_type)


@dataclass(frozen=True)
class Layout:
    """A table that was found and fits, how the written columns are declared, and the checks that need no other columns."""

    table: str
    columns: tuple[Column, ...]
    checks: tuple[str, ...]


class TargetTable:
    """One table, and the columns of its key when rows are upserted."""

    def __init__(self, name: str, key: Sequence[str]) -> None:
        self.name = name
        self.key = tuple(key)

    def create_sql(self, columns: pa.Schema, kind: str) -> str:
        """The statement that makes a table for these columns on this kind of server."""
        parts = []
        for field in columns:
            wanted = sql_type(field.type)
            name = "longtext" if wanted is None else wanted.name
            is_key = field.name in self.key
            declared = _KEY_TYPES.get(name, name) if is_key else name
            declared += f" COLLATE {_EXACT_COLLATION[kind]}" if declared.startswith("varchar") else ""
            parts.append(f"{quoted(field.name)} {declared}{' NOT NULL' if is_key else ''}")
        if self.key:
            parts.append(f"PRIMARY KEY ({listed(self.key)})")
        return (
            f"CREATE TABLE {quoted(self.name)} ({', '.join(parts)}) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"
        )

    def insert_sql(self, staged: str, columns: Sequence[str], transaction: int) -> str:
        """Move the rows of a staged transaction into the table; of several with one key the last counts."""
        insert = (
            f"INSERT INTO {quoted(self.name)} ({listed(columns)}) SELECT {listed(columns)} FROM {quoted(staged)} "  # noqa: S608 - all quoted
            f"WHERE _penstock_transaction = {transaction:d} ORDER BY _penstock_row"
        )
        if not self.key:
            return insert
        key = {name.lower() for name in self.key}
        others = [name for name in columns if name.lower() not in key]
        kept = f"{quoted(self.name)}.{quoted(self.key[0])}"
        changes = [f"{quoted(name)} = VALUES({quoted(name)})" for name in others] or [f"{kept} = {kept}"]
        return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse columns that no table can hold, and keys that are not among them."""
        lowered = [name.lower() for name in schema.names]
        repeated = sorted({name for name in lowered if lowered.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"columns appear more than once (case is ignored): {repeated}; rename them", columns=repeated
            )
        missing = [name for name in self.key if name.lower() not in lowered]
        if missing:
            raise ConfigError(f"key names {missing}, but the columns are {schema.names}", columns=missing)
        for field in schema:
            part = unsupported_in_json(field.type)
            nested_key = field.name in self.key and pa.types.is_nested(field.type)
            if part is not None or nested_key or sql_type(field.type) is None:
                raise ConfigError(
                    f"column {field.name!r} of type {field.type} cannot be written to MySQL or MariaDB"
                    f"{' as a key' if nested_key else ''}; cast or drop it",
                    column=field.name,
                )

    def check_existing(self, session: Session, schema: pa.Schema) -> Layout:
        """Compare with the table."""
        found = session.execute(_FIND, [self.name])
        if not found:
            create = self.create_sql(schema, server_kind(session))
            raise ConfigError(
                f"table {quoted(self.name)} does not exist in this database; run {create}; or let the sink "
                "make it with create=True",
                table=self.name,
            )
        kind, engine = found[0]
        if kind != "BASE TABLE" or str(engine).lower() != "innodb":
            raise ConfigError(
                f"{quoted(self.name)} is a {kind} of the engine {engine}; only tables of InnoDB have transactions; run ALTER TABLE "
                f"{quoted(self.name)} ENGINE = InnoDB, or name another table",
                table=self.name,
                engine=engine,
            )
        rows = session.execute(_COLUMNS, [self.name])
        declared = [
            Column(name, kind, base, bool(null), bool(default), bool(made), collation)
            for name, kind, base, null, default, made, collation, _ in rows
        ]
        self._check_declared(schema, declared)
        written = {name.lower() for name in schema.names}
        self._check_rights(row[-1] for row in rows if row[0].lower() in written)
        if self.key:
            self._check_unique(session)
        key = {name.lower() for name in self.key}
        by_name = {
            column.name.lower(): replace(column, not_null=column.not_null or column.name.lower() in key)
            for column in declared
        }
        columns = tuple(by_name[name.lower()] for name in schema.names)
        return Layout(self.name, columns, tuple(self._checks(session, schema.names)))

    def _checks(self, session: Session, columns: Sequence[str]) -> Iterator[str]:
        """Which checks can be made where the rows are staged: neither server says what columns a check needs, so it is tried."""
        written = f"SELECT {listed(columns)} FROM {quoted(self.name)}"  # noqa: S608 - quoted
        kind = server_kind(session)
        for name, clause in session.execute(_CHECKS[kind], [self.name]):
            try:
                session.execute(f"SELECT 1 FROM ({written} LIMIT 0) AS written WHERE {clause}")  # noqa: S608 - the server's own
            except pymysql_module().Error:
                continue  # it is made at commit
            named = f"CONSTRAINT {quoted(name)} " if kind == "MariaDB" else ""  # MySQL: one name a database
            yield f"{named}CHECK ({clause})"

    def _check_rights(self, of_columns: Iterable[str]) -> None:
        needed = ("insert", "select", "update") if self.key else ("insert",)
        if not all(right in granted.lower().split(",") for granted in of_columns for right in needed):
            rights = ", ".join(needed).upper()
            raise ConfigError(
                f"this user may not write to table {quoted(self.name)}; run GRANT {rights} ON {quoted(self.name)} TO ...",
                table=self.name,
            )

    def _check_unique(self, session: Session) -> None:
        """ON DUPLICATE KEY takes any unique index for the key, so there may be no other."""
        indexes: dict[str, set[str]] = {}
        for index, column, prefix in session.execute(_UNIQUE, [self.name]):
            indexes.setdefault(index, set()).add(
                f"{column}".lower() if prefix is None else f"part of {column}"
            )
        key = {name.lower() for name in self.key}
        if key not in indexes.values():
            raise ConfigError(
                f"mode='upsert' needs a primary key or unique index on exactly {list(self.key)} of table {quoted(self.name)}; run "
                f"ALTER TABLE {quoted(self.name)} ADD UNIQUE ({listed(self.key)})",
                table=self.name,
                key=list(self.key),
            )
        others = sorted(index for index, columns in indexes.items() if columns != key)
        if others:
            raise ConfigError(
                f"mode='upsert' on table {quoted(self.name)}: besides the key {list(self.key)} it has the unique indexes {others}, and "
                "a row that collides there would replace a row with another key; drop them",
                table=self.name,
                indexes=others,
            )

    def _check_declared(self, schema: pa.Schema, declared: Sequence[Column]) -> None:
        by_name = {column.name.lower(): column for column in declared}
        missing = [name for name in schema.names if name.lower() not in by_name]
        if missing:
            raise ConfigError(
                f"table {quoted(self.name)} has no column {', '.join(map(repr, missing))}; add it with ALTER TABLE, or drop it "
                f"before write_to (the table has {[column.name for column in declared]})",
                table=self.name,
                columns=missing,
            )
        written = {name.lower() for name in schema.names}
        for column in declared:
            unset = column.name.lower() not in written and not column.made_by_server
            if unset and column.not_null and not column.has_default:
                raise ConfigError(
                    f"table {quoted(self.name)} needs a value for {column.name!r} (NOT NULL, no default), but the columns "
                    f"written are {schema.names}",
                    table=self.name,
                    column=column.name,
                )
        for field in schema:
            self._check_type(field, by_name[field.name.lower()])

    def _check_type(self, field: pa.Field, column: Column) -> None:
        if column.made_by_server:
            raise ConfigError(
                f"column {column.name!r} of table {quoted(self.name)} is generated by the server; drop it before write_to",
                table=self.name,
                column=column.name,
            )
        wanted = sql_type(field.type)
        if wanted is None or not (pa.types.is_null(field.type) or column.type.lower() in wanted.fitting):
            raise ConfigError(
                f"column {field.name!r} of type {field.type} does not fit into {column.declared} of table {quoted(self.name)}: "
                f"the values would be changed or refused; cast it before write_to, or make the column {wanted and wanted.name}",
                table=self.name,
                column=field.name,
                declared=column.declared,
            )
        if not column.keeps_digits(field.type):
            enough = wanted.name if column.type == "decimal" else column.full_type
            raise ConfigError(
                f"column {field.name!r} of type {field.type} does not fit into {column.declared} of table {quoted(self.name)}: the "
                f"server would cut or round digits; run ALTER TABLE {quoted(self.name)} MODIFY {quoted(field.name)} "
                f"{enough} (with what else it declares, such as NOT NULL), or cast it before write_to",
                table=self.name,
                column=field.name,
                declared=column.declared,
            )
