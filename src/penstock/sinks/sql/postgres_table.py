"""The table that a `Postgres` sink writes to: how the catalogue is read and what types keep. Driver; the SQL also on executors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.sinks.sql.postgres_server import PostgresSession
from penstock.sinks.sql.postgres_values import TYPES
from penstock.sinks.sql.server import SqlSession
from penstock.sinks.sql.table import STAGED_KEY, Column, Layout, TargetTable
from penstock.sinks.sql.values import ValueKind, fraction_digits, kind_of, needed_scale

_FIND = """SELECT n.nspname, c.relkind::text, c.relpersistence::text FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)"""
_MAY = "SELECT bool_and(has_table_privilege(to_regclass(%s), needed)) FROM unnest(%s::text[]) AS needed"
_BELOW = """CROSS JOIN LATERAL (WITH RECURSIVE chain(oid, typmod) AS (SELECT a.atttypid, a.atttypmod
        UNION ALL SELECT n.typbasetype, n.typtypmod FROM chain c JOIN pg_type n ON n.oid = c.oid WHERE n.typtype = 'd')
        SELECT chain.* FROM chain JOIN pg_type n ON n.oid = chain.oid WHERE n.typtype <> 'd') AS below(type, typmod)
    JOIN pg_type t ON t.oid = below.type"""
"""The type below a domain, or below a domain of domains."""
_KEEPS_TEXTS = """t.typname NOT IN ('name', 'char') AND t.typcategory <> 'C' AND (t.typcategory <> 'A' OR below.typmod < 0 AND
    EXISTS (SELECT FROM pg_type e WHERE e.oid = t.typelem AND e.typtype NOT IN ('c', 'd') AND e.typname NOT IN ('name', 'char')))"""
"""`name` keeps 63 bytes of a text and "char" keeps one; in arrays and rows, lengths and scales truncate silently."""
_COLUMNS = f"""SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, a.attnotnull,
    a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a',
    (SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname) FROM pg_collation l
        JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation AND l.oid <> d.typcollation),
    t.typcategory::text, format_type(t.oid, below.typmod), {_KEEPS_TEXTS}
    FROM pg_attribute a JOIN pg_type d ON d.oid = a.atttypid {_BELOW}
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""  # noqa: S608 - constants
_NOW = f"""LOCK TABLE ONLY {{table}} IN ROW EXCLUSIVE MODE;
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname FROM pg_attribute a {_BELOW}
    WHERE a.attrelid = to_regclass({{name}}) AND a.attnum > 0 AND NOT a.attisdropped"""  # noqa: S608 - constants
_UNIQUE = """SELECT i.indexrelid::text, array_agg(a.attname::text) FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
    AND k.place <= i.indnkeyatts GROUP BY i.indexrelid"""
_INDEXED = """SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree' CROSS JOIN LATERAL unnest(i.indkey::int2[]) AS k(attnum)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = to_regclass(%s) AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid ORDER BY 1"""
_CHECKS = """SELECT c.conname, pg_get_constraintdef(c.oid), array(SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) FROM pg_constraint c
    WHERE c.conrelid = to_regclass(%s) AND c.contype = 'c' ORDER BY 1"""
_NOT_FROM_TEXT = {"N", "B", "D", "T"}
"""Categories of types (number, boolean, date and time, interval) that a column of text does not fit."""
_STAGED_COLUMNS = """SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 2 AND NOT attisdropped
    ORDER BY attnum"""
_MOST_DIGITS = 6
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "i": "an index",
    "S": "a sequence",
}


@dataclass(frozen=True)
class PostgresColumn(Column):
    """A column of PostgreSQL. A domain counts as the type below it; `collation` is None if it is that of the type."""

    category: str
    below: str
    keeps_texts: bool

    @override
    def fits(self, data_type: pa.DataType) -> bool:
        kind = kind_of(data_type)
        if kind is ValueKind.TEXT:
            return self.keeps_texts and self.category not in _NOT_FROM_TEXT and self.type != "bytea"
        return kind is ValueKind.NULL or self.type in TYPES[kind].fitting

    @override
    def keeps_digits(self, data_type: pa.DataType) -> bool:
        wanted = needed_scale(data_type)
        found = re.search(r",(-?\d+)\)", self.below) if self.type == "numeric" else None
        keeps_scale = wanted is None or found is None or int(found[1]) >= wanted
        return keeps_scale and self.kept_digits >= fraction_digits(data_type)

    @property
    def kept_digits(self) -> int:
        """The number of digits below a second that a column of times keeps; -1 if it does not keep seconds."""
        if self.type == "interval" and " " in self.below and "second" not in self.below:
            return -1
        found = re.search(r"\((\d)\)", self.below)
        return int(found[1]) if found else _MOST_DIGITS

    @property
    def longest(self) -> int | None:
        """The maximum number of characters in a column of text; None if there is no limit."""
        found = re.search(r"\((\d+)\)", self.below) if self.type in {"varchar", "bpchar"} else None
        return int(found[1]) if found else None


class PostgresTable(TargetTable):
    """The table that a `Postgres` sink writes to."""

    server = "PostgreSQL"
    unique_index_must = ", not deferrable"

    @override
    def type_name(self, data_type: pa.DataType) -> str:
        return TYPES[kind_of(data_type)].name

    @override
    def widen_sql(self, field: pa.Field, column: PostgresColumn) -> str:
        return f"ALTER TABLE {self.quoted} ALTER COLUMN {self.column(field.name)} TYPE {self.type_name(field.type)}"

    @override
    def upsert_sql(self, insert: str, columns: Sequence[str], rows: str) -> str:
        """Insert only the last row of each key, because ON CONFLICT cannot update a row twice."""
        changes = [
            f"{self.column(name)} = excluded.{self.column(name)}" for name in columns if not self.is_key(name)
        ]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        key = self.listed(self.key)
        last = (
            f"SELECT DISTINCT ON ({key}) {self.listed(columns)} {rows} ORDER BY {key}, {STAGED_KEY[1]} DESC"
        )
        return f"{insert} {last} ON CONFLICT ({key}) DO {action}"

    @override
    def find(self, session: SqlSession) -> bool:
        found = session.execute(_FIND, [self.quoted])
        for _, kind, persistence in found:
            if kind not in {"r", "p"}:
                raise ConfigError(
                    f"{self.quoted} is {_KINDS.get(kind, 'no table')}; name a table",
                    table=self.name,
                    kind=kind,
                )
            if persistence != "p":
                raise ConfigError(
                    f"table {self.quoted} is {'temporary' if persistence == 't' else 'unlogged'}: committed rows would be lost "
                    f"when the server crashes; run ALTER TABLE {self.quoted} SET LOGGED, or name another table",
                    table=self.name,
                )
        return bool(found)

    def name_hint(self) -> str:
        """Return a hint if the name looks like schema.table, because names are not split."""
        schema, dot, name = self.name.partition(".")
        if not dot:
            return ""
        return f" (names are used exactly as given: did you mean schema={schema!r}, table={name!r}?)"

    @override
    def found_schema(self, session: SqlSession) -> str:
        found = session.execute(_FIND, [self.quoted])
        if found or self.schema is not None:
            return str(found[0][0] if found else self.schema)
        return str(session.execute("SELECT coalesce(current_schema(), 'public')")[0][0])

    @override
    def declared_columns(self, session: SqlSession) -> list[PostgresColumn]:
        return [PostgresColumn(*row) for row in session.execute(_COLUMNS, [self.quoted])]

    @override
    def staged_columns(self, session: SqlSession, schema: str | None, staged_in: str) -> list[str]:
        return [name for (name,) in session.execute(_STAGED_COLUMNS, [session.quoted(schema, staged_in)])]

    @override
    def may(self, session: SqlSession, rights: Sequence[str], columns: Sequence[PostgresColumn]) -> bool:
        return bool(session.execute(_MAY, [self.quoted, list(rights)])[0][0])

    @override
    def unique_keys(self, session: SqlSession) -> dict[str, set[str]]:
        return {index: set(names) for index, names in session.execute(_UNIQUE, [self.quoted])}

    @override
    def checks(self, session: SqlSession, columns: Sequence[str]) -> list[str]:
        return [
            f"CONSTRAINT {self.column(name)} {text}"
            for name, text, needed in session.execute(_CHECKS, [self.quoted])
            if set(needed) <= set(columns)
        ]

    def indexed(self, session: SqlSession, columns: Sequence[str]) -> Iterable[tuple[str, ...]]:
        """Yield the written columns of each B-tree."""
        written = set(columns)
        for (names,) in session.execute(_INDEXED, [self.quoted]):
            yield tuple(filter(written.__contains__, names))


def locked(layout: Layout, session: PostgresSession, schema: pa.Schema) -> Layout:
    """Lock the table until the open transaction ends and return its current layout; refuse a table that no longer fits."""
    now = set(session.execute(_NOW.format(table=layout.name, name=session.literal(layout.name))))
    if {(column.name, column.declared, column.type) for column in layout.columns} <= now:
        return layout
    return PostgresTable(layout.table, layout.schema, ()).check_existing(session, schema)
