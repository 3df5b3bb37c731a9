"""The tables of records of a `MySQL` sink, in the database of its target: how they are made. Driver; the names also in tasks.

Names of jobs and sinks are compared byte by byte, whatever collation the database has.
"""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.sinks.mysql.server import Session, code, pymysql_module, said
from penstock.sinks.mysql.table import Layout, quoted
from penstock.sinks.sql.records import COMMITS, IDENTITY, TRANSACTIONS, staging_columns, staging_table

_DENIED = {1044, 1142}
_NAME = "varchar(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
_IDENTITY_COLUMNS = (
    f"job {_NAME}, sink {_NAME}, run bigint NOT NULL, checkpoint bigint NOT NULL, subtask bigint NOT NULL, "
    "attempt bigint NOT NULL, token char(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, row_total bigint"
)


def create_records(session: Session, staged: Layout | None) -> None:
    """Make what is missing."""
    wanted = {COMMITS: f"({_IDENTITY_COLUMNS}, PRIMARY KEY ({IDENTITY}))"}
    if staged is not None:
        wanted[TRANSACTIONS] = (
            "(id bigint PRIMARY KEY AUTO_INCREMENT, staged_in varchar(64) NOT NULL, "
            f"{_IDENTITY_COLUMNS}, UNIQUE ({IDENTITY}))"
        )
        wanted[staged_in(staged)] = _staging_columns(staged)
    for table, columns in wanted.items():
        if not session.has(table):
            _create(session, f"CREATE TABLE IF NOT EXISTS {table} {columns} ENGINE = InnoDB", table)


def _create(session: Session, statement: str, table: str) -> None:
    try:
        session.execute(statement)
    except pymysql_module().Error as error:
        if code(error) not in _DENIED:
            raise
        raise ConfigError(
            f"the table {table}, in which the sink keeps its records, cannot be made: {said(error)}; let somebody who may run "
            f"{statement}; GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO ...",
            table=table,
        ) from error


def staged_in(layout: Layout) -> str:
    """Name the table that holds staged rows of this layout."""
    return staging_table(layout.table, _staging_columns(layout))


def _staging_columns(layout: Layout) -> str:
    columns = [
        f"{quoted(column.name)} {column.declared}{f' COLLATE {column.collation}' if column.collation else ''} "
        f"{'NOT NULL' if column.not_null else 'NULL'}"
        for column in layout.columns
    ]
    return staging_columns(columns, layout.checks)
