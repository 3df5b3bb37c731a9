"""The table that a `Postgres` sink writes to: its SQL, and what an existing one must look like. Driver; the SQL also on executors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.sinks.json_text import unsupported_in_json
from penstock.sinks.postgres.server import psycopg_module
from penstock.sinks.postgres.values import PLAIN_TEXT, sql_type
from penstock.sinks.sql.values import fraction_digits, needed_scale

_FIND = """SELECT c.oid::bigint, n.nspname, c.relkind::text, c.relpersistence::text,
    has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)"""
_BELOW = """CROSS JOIN LATERAL (WITH RECURSIVE chain(oid, typmod) AS (SELECT a.atttypid, a.atttypmod
        UNION ALL SELECT n.typbasetype, n.typtypmod FROM chain c JOIN pg_type n ON n.oid = c.oid WHERE n.typtype = 'd')
        SELECT chain.* FROM chain JOIN pg_type n ON n.oid = chain.oid WHERE n.typtype <> 'd') AS below(type, typmod)
    JOIN pg_type t ON t.oid = below.type"""
"""The type below a domain, or below a domain of domains."""
_KEEPS_TEXTS = """t.typname NOT IN ('name', 'char') AND t.typcategory <> 'C' AND (t.typcategory <> 'A' OR below.typmod < 0 AND
    EXISTS (SELECT FROM pg_type e WHERE e.oid = t.typelem AND e.typtype NOT IN ('c', 'd') AND e.typname NOT IN ('name', 'char')))"""
"""`name` keeps 63 bytes of a text and "char" keeps one; in arrays and rows lengths and scales cut without a word."""
_COLUMNS = f"""SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, t.typcategory::text, a.attnotnull,
    a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a', format_type(t.oid, below.typmod),
    (SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname) FROM pg_collation l
        JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation AND l.oid <> d.typcollation),
    {_KEEPS_TEXTS}
    FROM pg_attribute a JOIN pg_type d ON d.oid = a.atttypid {_BELOW}
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""  # noqa: S608 - constants
_NOW = f"""LOCK TABLE ONLY {{table}} IN ROW EXCLUSIVE MODE;
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname FROM pg_attribute a {_BELOW}
    WHERE a.attrelid = to_regclass({{name}}) AND a.attnum > 0 AND NOT a.attisdropped"""  # noqa: S608 - constants
_UNIQUE = """SELECT array_agg(a.attname::text) FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
    AND k.place <= i.indnkeyatts GROUP BY i.indexrelid"""
_INDEXED = """SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree' CROSS JOIN LATERAL unnest(i.indkey::int2[]) AS k(attnum)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = %s AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid ORDER BY 1"""
_CHECKS = """SELECT c.conname, pg_get_constraintdef(c.oid), array(SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) FROM pg_constraint c
    WHERE c.conrelid = %s AND c.contype = 'c' ORDER BY 1"""
_NOT_FROM_TEXT = {"N", "B", "D", "T"}
"""Categories of types (number, boolean, date and time, span of time) that a column of texts does not belong into."""
_MOST_DIGITS = 6
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "i": "an index",
    "S": "a sequence",
}


def quoted(*names: str) -> str:
    """Quote a name, or a name with its schema, for SQL."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Sequence[str]) -> str:
    """Quote names for a list of columns."""
    return ", ".join(map(quoted, names))


@dataclass(frozen=True)
class Column:
    """A column as the catalog has it; a domain counts as the type below it. `collation` only if it is not that of the type."""

    name: str
    declared: str
    type: str
    category: str
    not_null: bool
    has_default: bool
    made_by_server: bool
    below: str
    collation: str | None
    keeps_texts: bool

    @property
    def kept_digits(self) -> int:
        """How many digits below a second a column of times keeps; -1 if not even all seconds."""
        if self.type == "interval" and " " in self.below and "second" not in self.below:
            return -1
        found = re.search(r"\((\d)\)", self.below)
        return int(found[1]) if found else _MOST_DIGITS

    @property
    def longest(self) -> int | None:
        """How many characters a column of texts takes; None if there is no limit."""
        found = re.search(r"\((\d+)\)", self.below) if self.type in {"varchar", "bpchar"} else None
        return int(found[1]) if found else None

    def keeps_scale(self, data_type: pa.DataType) -> bool:
        """Tell whether exact numbers keep all their digits below one."""
        wanted = needed_scale(data_type)
        found = re.search(r",(-?\d+)\)", self.below) if self.type == "numeric" else None
        return wanted is None or found is None or int(found[1]) >= wanted


@dataclass(frozen=True)
class Layout:
    """A table that was found and fits: where it is, and how the written columns are declared."""

    schema: str
    table: str
    columns: tuple[Column, ...]
    checks: tuple[str, ...]
    indexed: tuple[tuple[str, ...], ...]
    """The written columns of each B-tree."""

    @property
    def name(self) -> str:
        """The quoted name."""
        return quoted(self.schema, self.table)

    def locked(self, connection: Any, schema: pa.Schema) -> Layout:
        """How the columns are declared now, and until the open transaction ends; a table that no longer fits is refused."""
        literal = psycopg_module().sql.Literal(self.name).as_string(connection)
        answer = connection.execute(_NOW.format(table=self.name, name=literal))
        answer.nextset()
        if {(column.name, column.declared, column.type) for column in self.columns} <= set(answer.fetchall()):
            return self
        return TargetTable(self.table, self.schema, ()).check_existing(connection, schema)


class TargetTable:
    """One table, and the columns of its key when rows are upserted."""

    def __init__(self, name: str, schema: str | None, key: Sequence[str]) -> None:
        self.name = name
        self.schema = schema
        self.key = tuple(key)

    @property
    def quoted(self) -> str:
        """The name as SQL writes it."""
        return quoted(self.name) if self.schema is None else quoted(self.schema, self.name)

    def create_sql(self, columns: pa.Schema) -> str:
        """The statement that makes a table for these columns."""
        parts = [
            f"{quoted(field.name)} {sql_type(field.type).name}{' NOT NULL' if field.name in self.key else ''}"
            for field in columns
        ]
        if self.key:
            parts.append(f"PRIMARY KEY ({listed(self.key)})")
        return f"CREATE TABLE {self.quoted} ({', '.join(parts)})"

    def insert_sql(self, staged: str, columns: Sequence[str], transaction: int) -> str:
        """Move the rows of a staged transaction into the table; of several with one key the last counts."""
        rows = f"FROM {staged} WHERE _penstock_transaction = {transaction:d}"
        insert = f"INSERT INTO {self.quoted} ({listed(columns)}) "
        if not self.key:
            return f"{insert}SELECT {listed(columns)} {rows} ORDER BY _penstock_row"
        changes = [f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in self.key]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        key = listed(self.key)
        last = f"SELECT DISTINCT ON ({key}) {listed(columns)} {rows} ORDER BY {key}, _penstock_row DESC"
        return f"{insert}{last} ON CONFLICT ({key}) DO {action}"

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse columns that no table can hold, and keys that are not among them."""
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise ConfigError(f"columns appear more than once: {repeated}; rename them", columns=repeated)
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise ConfigError(f"key names {missing}, but the columns are {schema.names}", columns=missing)
        for field in schema:
            part = unsupported_in_json(field.type)
            if part is not None or (field.name in self.key and pa.types.is_nested(field.type)):
                raise ConfigError(
                    f"column {field.name!r} of type {field.type} cannot be written to PostgreSQL"
                    f"{' as a key' if part is None else f': there is no form for {part}'}; cast or drop it",
                    column=field.name,
                )

    def found_schema(self, connection: Any) -> str:
        """The schema that the table is in, or would be made in."""
        found = connection.execute(_FIND, [self.quoted]).fetchone()
        if found is not None or self.schema is not None:
            return str(found[1] if found else self.schema)
        return str(connection.execute("SELECT coalesce(current_schema(), 'public')").fetchone()[0])

    def check_existing(self, connection: Any, schema: pa.Schema) -> Layout:
        """Compare with the table."""
        found = connection.execute(_FIND, [self.quoted]).fetchone()
        if found is None:
            raise ConfigError(
                f"table {self.quoted} does not exist in this database{self._dotted()}; run {self.create_sql(schema)}; "
                "or let the sink make it with create=True",
                table=self.name,
            )
        oid, where, kind, persistence, may_insert, may_update = found
        self._check_kind(kind, persistence)
        if not may_insert or (self.key and not may_update):
            rights = "INSERT, SELECT, UPDATE" if self.key else "INSERT"
            raise ConfigError(
                f"this user may not write to table {self.quoted}; run GRANT {rights} ON {self.quoted} TO ...",
                table=self.name,
            )
        declared = [Column(*row) for row in connection.execute(_COLUMNS, [oid])]
        self._check_declared(schema, declared)
        if self.key and not any(
            set(names) == set(self.key) for (names,) in connection.execute(_UNIQUE, [oid])
        ):
            raise ConfigError(
                f"mode='upsert' needs a primary key or unique index on exactly {list(self.key)} of table {self.quoted}, not "
                f"deferrable; run CREATE UNIQUE INDEX ON {self.quoted} ({listed(self.key)})",
                table=self.name,
                key=list(self.key),
            )
        by_name = {
            column.name: replace(column, not_null=column.not_null or column.name in self.key)
            for column in declared
        }
        checks = [
            f"CONSTRAINT {quoted(name)} {text}"
            for name, text, names in connection.execute(_CHECKS, [oid])
            if set(names) <= set(schema.names)
        ]
        written = set(schema.names)
        indexes = [
            tuple(filter(written.__contains__, names)) for (names,) in connection.execute(_INDEXED, [oid])
        ]
        return Layout(
            where, self.name, tuple(by_name[name] for name in schema.names), tuple(checks), tuple(indexes)
        )

    def _dotted(self) -> str:
        schema, dot, name = self.name.partition(".")
        return (
            f" (names are taken as they are: did you mean schema={schema!r}, table={name!r}?)" if dot else ""
        )

    def _check_kind(self, kind: str, persistence: str) -> None:
        if kind not in {"r", "p"}:
            raise ConfigError(
                f"{self.quoted} is {_KINDS.get(kind, 'no table')}; name a table", table=self.name, kind=kind
            )
        if persistence != "p":
            raise ConfigError(
                f"table {self.quoted} is {'temporary' if persistence == 't' else 'unlogged'}: committed rows would be lost "
                f"when the server crashes; run ALTER TABLE {self.quoted} SET LOGGED, or name another table",
                table=self.name,
            )

    def _check_declared(self, schema: pa.Schema, declared: Sequence[Column]) -> None:
        by_name = {column.name: column for column in declared}
        missing = [name for name in schema.names if name not in by_name]
        if missing:
            raise ConfigError(
                f"table {self.quoted} has no column {', '.join(map(repr, missing))}; add it with ALTER TABLE, or drop it "
                f"before write_to (the table has {list(by_name)})",
                table=self.name,
                columns=missing,
            )
        for column in declared:
            if column.name not in schema.names and column.not_null and not column.has_default:
                raise ConfigError(
                    f"table {self.quoted} needs a value for {column.name!r} (NOT NULL, no default), but the columns written "
                    f"are {schema.names}",
                    table=self.name,
                    column=column.name,
                )
        for field in schema:
            self._check_type(field, by_name[field.name])

    def _check_type(self, field: pa.Field, column: Column) -> None:
        if column.made_by_server:
            raise ConfigError(
                f"column {column.name!r} of table {self.quoted} is generated by the server; drop it before write_to",
                table=self.name,
                column=column.name,
            )
        wanted = sql_type(field.type)
        if wanted is PLAIN_TEXT:
            fits = pa.types.is_null(field.type) or (
                column.keeps_texts and column.category not in _NOT_FROM_TEXT and column.type != "bytea"
            )
        else:
            fits = column.type in wanted.fitting
        if not fits:
            raise ConfigError(
                f"column {field.name!r} of type {field.type} does not fit into {column.declared} of table {self.quoted}: the "
                f"values would be changed or refused; cast it before write_to, or make the column {wanted.name}",
                table=self.name,
                column=field.name,
                declared=column.declared,
            )
        if column.kept_digits < fraction_digits(field.type) or not column.keeps_scale(field.type):
            raise ConfigError(
                f"column {field.name!r} of type {field.type} does not fit into {column.declared} of table {self.quoted}: the server "
                f"would cut or round digits; run ALTER TABLE {self.quoted} ALTER COLUMN {quoted(field.name)} TYPE "
                f"{wanted.name}, or cast it before write_to",
                table=self.name,
                column=field.name,
                declared=column.declared,
            )
