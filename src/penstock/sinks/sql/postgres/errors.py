"""What errors of PostgreSQL mean for a job, and which row they are about. Driver and executors."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.lazy_imports import optional_package
from penstock.sinks.bad_rows import row_at
from penstock.sinks.sql.server import DriverErrors, Meaning
from penstock.sinks.sql.values import is_text

_MAY_PASS = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE: connection, transaction state, conflict, resources, not ready, operator, system, internal."""
_REFUSES_ROWS = ("22", "23", "P0")
_TOO_LONG = "54000"
"""A row that is too long for an index, or for a page."""
_COPY_LINE = re.compile(r"^COPY .*?, line (\d+)", re.MULTILINE)
"""Where COPY was; the functions of triggers, which the context names before it, have lines too."""
_BUSY_SERVER = ("starting up", "shutting down", "too many", "connection slots", "recovery")


def psycopg_module() -> Any:
    """Import psycopg 3, which only this sink needs."""
    return optional_package("psycopg", needed_by="sinks.Postgres", extra="postgres")


class PostgresErrors(DriverErrors):
    """Those of psycopg, told apart by SQLSTATE."""

    @override
    def all(self) -> type[Exception]:
        kind: type[Exception] = psycopg_module().Error
        return kind

    @override
    def meaning(self, error: Any) -> Meaning:
        """One without a state is about the connection."""
        state = error.sqlstate
        if state is None:
            refused = "FATAL" in str(error) and not any(words in str(error) for words in _BUSY_SERVER)
            return Meaning.NO_LOGIN if refused else Meaning.MAY_PASS
        if state[:2] in _REFUSES_ROWS or state == _TOO_LONG:
            return Meaning.BAD_ROW
        return Meaning.MAY_PASS if state[:2] in _MAY_PASS else Meaning.REFUSED

    @override
    def code(self, error: Any) -> dict[str, Any]:
        return {"sqlstate": error.sqlstate}

    @override
    def said(self, error: Any) -> str:
        parts = [error.diag.message_primary, error.diag.message_detail, error.diag.message_hint]
        found = [part.rstrip(".") for part in parts if part]
        return "; ".join(found) or " ".join(str(error).split()) or "no answer"

    @override
    def is_denied(self, error: Any) -> bool:
        return isinstance(error, psycopg_module().errors.InsufficientPrivilege)


def refused_row(error: Any, batch: pa.RecordBatch, *, as_text: bool) -> dict[str, Any] | None:
    """Find the row that COPY was at. In CSV it counts lines, and a value may hold some (of the first row, carriage returns)."""
    found = _COPY_LINE.findall(error.diag.context or "")
    if not found:
        return None
    at = int(found[-1])
    if not as_text:
        return row_at(batch, at - 1) if at <= batch.num_rows else None
    texts = [field.name for field in batch.schema if is_text(field.type)]
    line, end = 0, "\r"
    for index in range(batch.num_rows):
        row = row_at(batch, index)
        line += 1 + sum(_ends(row[name], end) for name in texts)
        end = "\n"
        if line >= at:
            return row
    return None


def _ends(value: str | bytes | None, end: str) -> int:
    """How often a text holds this end of a line; it is bytes if it is no UTF-8."""
    if isinstance(value, bytes):
        return value.count(end.encode())
    return 0 if value is None else value.count(end)
