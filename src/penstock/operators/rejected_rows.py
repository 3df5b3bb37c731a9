"""Rows that the user's code rejects by itself, with `ctx.reject(row, "why")`: one by one, while the call goes on. Executors."""

from __future__ import annotations

from typing import Any, NamedTuple

from typing_extensions import override

from penstock.errors import BadRecordError, UserCodeError
from penstock.operators.bad_records import BadRecords
from penstock.operators.rows import Row, Rows


class Rejected(NamedTuple):
    """A row of a call, and why it is bad."""

    row: Row
    reason: str


class RejectedRows:
    """What the call that is being made rejects. It counts when the call does: until then it is held."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.rows: Rows | None = None
        """Those of the call that is being made; None while there is none that may reject."""
        self._held: dict[tuple[type[Row], int], Rejected] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, row: Any, reason: object) -> None:
        """Take a row of the call; the same row once more changes nothing."""
        if self.rows is None or not self.rows.holds(row):
            raise no_row_of_the_call(self.operator, row)
        self._held.setdefault((type(row), row._at), Rejected(row, str(reason)))  # noqa: SLF001 - not to be taken for a column

    def withdrawn(self) -> list[Rejected]:
        """What was rejected since this was last called; what is not kept is gone."""
        found = list(self._held.values())
        self._held.clear()
        return found


class EndsTheRun(RejectedRows):
    """Where a bad row ends the run. What user code does with the error changes nothing of that."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self._error: BadRecordError | None = None

    @override
    def take(self, row: Any, reason: object) -> None:
        if not isinstance(row, Row):
            raise no_row_of_the_call(self.operator, row)
        self._error = BadRecordError(
            f"operator {self.operator}: a row was rejected: {reason}. Nothing of this batch is kept; read bad_records(), or set "
            "on_bad_record='skip', to go on without such rows",
            operator=self.operator,
            row=row,
        )
        raise self._error

    def check(self) -> None:
        """Raise what was rejected, although user code may have caught it."""
        if self._error is not None:
            raise self._error


def take_over(rejected: list[Rejected], bad: BadRecords, key_names: list[str]) -> None:
    """Make bad rows of what a call that counts has rejected."""
    for row, reason in rejected:
        came = row._as_it_came()  # noqa: SLF001 - not to be taken for a column
        bad.add(came.rows, [reason], key_names if came.keys is None else came.keys)


def no_row_of_the_call(operator: str, row: object) -> UserCodeError:
    """About a mistake in user code: no other row would do better, so that it ends the run whatever is set for bad rows."""
    kind = type(row).__name__
    return UserCodeError(
        f"operator {operator}: reject({kind}, ...) takes a row out of the rows that process() was called with, inside that call",
        operator=operator,
        is_wrong_name=True,
    )


def nothing_to_reject(operator: str) -> UserCodeError:
    """Of a context that knows of no rows to reject."""
    return UserCodeError(
        f"operator {operator}: reject() is there for process() of a KeyedProcess, KeyedCoProcess or Process. A row may be in several "
        "windows, and a BatchProcess has columns: filter such rows out before, or emit them to a SideOutput",
        operator=operator,
        is_wrong_name=True,
    )
