"""Rows that an operator or a sink cannot process, in a job that goes on without them: counted, and kept as dead letters. Executors.

User code rejects rows one by one with `ctx.reject(row, "why")`, while its call goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError, PenstockError, UserCodeError
from penstock.operators.state.cells import StateAssignedError
from penstock.operators.values.rows import Row, Rows
from penstock.places import place_in_user_code, safe_text

LETTER = pa.schema(
    [
        ("operator", pa.string()),
        ("reason", pa.string()),
        ("key", pa.string()),
        ("row", pa.string()),
        ("batch", pa.int64()),
    ]
)
"""A dead letter: the uid of the operator or sink, why, the key columns and the whole row as JSON, and the batch."""

ROWS = "__penstock_rows"
"""Among what Spark has aggregated: how many rows it stands for."""
ROW = "__penstock_row"
"""The same, of rows without a key: the row itself."""

_LONGEST_REASON = 2_000
_LETTERS_IN_A_BATCH = 1_024
Tolerates = Callable[[Exception], bool]
"""Whether an exception of user code is about the row, rather than about a server, the machine or Penstock."""


class BadRows:
    """The bad rows of one task."""

    def __init__(self, uid: str, batch: int, *, kept: bool) -> None:
        self.uid = uid
        self.count = 0
        self.first_reason = ""
        self._batch = batch
        self.kept = kept
        """Whether they are kept as dead letters, and not only counted."""
        self._letters: list[tuple[str, str | None, str]] = []

    def add(
        self,
        rows: pa.Table | pa.RecordBatch,
        reasons: Sequence[str],
        key_names: Sequence[str] = (),
    ) -> None:
        """Take rows, each with its reason."""
        self._count(rows.num_rows, reasons[0])
        if not self.kept:
            return
        columns = {
            name: _plain_column(column) for name, column in zip(rows.schema.names, rows.columns, strict=True)
        }
        shown = {reason: _shown(reason) for reason in set(reasons)}
        for at, reason in enumerate(reasons):
            row = {name: values[at] for name, values in columns.items()}
            key = _json({name: row[name] for name in key_names}) if key_names else None
            self._letters.append((shown[reason], key, _json(row)))

    def note(self, reason: str) -> None:
        """Set the reason to report first, where the reason of the first row only says that another row was at fault."""
        self.first_reason = self.first_reason or _shown(reason)

    def add_number(self, rows: int, reason: str) -> None:
        """Count rows of which only the number is known."""
        self._count(rows, reason)

    def _count(self, rows: int, reason: str) -> None:
        self.first_reason = self.first_reason or _shown(reason)
        self.count += rows

    def letters(self) -> list[pa.RecordBatch]:
        """The dead letters, in batches."""
        starts = range(0, len(self._letters), _LETTERS_IN_A_BATCH)
        return [self._encoded(self._letters[start : start + _LETTERS_IN_A_BATCH]) for start in starts]

    def _encoded(self, letters: list[tuple[str, str | None, str]]) -> pa.RecordBatch:
        reasons, keys, rows = zip(*letters, strict=True)
        number = len(letters)
        columns = ([self.uid] * number, reasons, keys, rows, [self._batch] * number)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LETTER, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=LETTER)


def reason_of(error: Exception) -> str:
    """Why a row is bad, as text: the message of Penstock's error, or the exception of user code and its line."""
    if isinstance(error, PenstockError):
        return str(error.facts.get("reason", error))
    place = place_in_user_code(error.__traceback__)
    where = "" if place is None else f" ({place.file}:{place.line})"
    return f"{type(error).__name__}: {error}{where}"


def is_of_the_row(error: Exception, may_pass: Tolerates) -> bool:
    """Whether another row might do better. Errors that may pass by themselves, and Penstock's errors about other things, end the run."""
    if isinstance(error, PenstockError):
        return isinstance(error, BadRecordError)
    if isinstance(error, StateAssignedError):  # no other row would do better
        return False
    return not may_pass(error)


def _shown(reason: str) -> str:
    """Secrets are masked before the text is cut, because half an address is not recognised."""
    text = safe_text(reason)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


# ── rows that user code rejects ────────────────────────────────────────────────────────────────────


class Rejected(NamedTuple):
    """A row of a call, and why it is bad."""

    row: Row
    reason: str


class RejectedRows:
    """The rows that the current call rejects. They are held until the call succeeds."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.rows: Rows | None = None
        """The rows of the current call; None while no call may reject rows."""
        self._held: dict[tuple[type[Row], int], Rejected] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, row: Any, reason: object) -> None:
        """Reject a row of the call; rejecting it twice changes nothing."""
        if self.rows is None or not self.rows.holds(row):
            raise no_row_of_the_call(self.operator, row)
        self._held.setdefault((type(row), row._at), Rejected(row, str(reason)))  # noqa: SLF001 - not to be taken for a column

    def withdrawn(self) -> list[Rejected]:
        """Return the rows rejected since the last call, and forget them."""
        found = list(self._held.values())
        self._held.clear()
        return found


class EndsTheRun(RejectedRows):
    """For a job in which a bad row ends the run, also if user code catches the error."""

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
        """Raise the error again that user code may have caught."""
        if self._error is not None:
            raise self._error


def take_over(rejected: list[Rejected], bad: BadRows, key_names: list[str]) -> None:
    """Add the rows that a successful call has rejected to the bad rows."""
    for row, reason in rejected:
        came = row._as_it_came()  # noqa: SLF001 - not to be taken for a column
        bad.add(came.rows, [reason], key_names if came.keys is None else came.keys)


def no_row_of_the_call(operator: str, row: object) -> UserCodeError:
    """The error for a mistake in user code. No other row would do better, so it ends the run also where bad rows are skipped."""
    kind = type(row).__name__
    return UserCodeError(
        f"operator {operator}: reject({kind}, ...) takes a row out of the rows that process() was called with, inside that call",
        operator=operator,
        is_wrong_name=True,
    )


def nothing_to_reject(operator: str) -> UserCodeError:
    """The error for `reject` in a call that has no rows to reject."""
    return UserCodeError(
        f"operator {operator}: reject() is there for process() of a KeyedProcess, KeyedCoProcess or Process. A row may be in several "
        "windows, and a BatchProcess has columns: filter such rows out before, or emit them to a SideOutput",
        operator=operator,
        is_wrong_name=True,
    )


# ── a row as JSON ───────────────────────────────────────────────────────────────────────────────────


def _json(row: Mapping[str, Any]) -> str:
    return msgspec.json.encode(row, enc_hook=str).decode()


def _plain_column(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        return [_plain(value) for value in column.to_pylist()]
    except (UnicodeDecodeError, ValueError, OverflowError, LookupError):
        return [_plain_scalar(value) for value in column]


def _plain_scalar(scalar: pa.Scalar) -> Any:
    try:
        return _plain(scalar.as_py())
    except UnicodeDecodeError:
        if pa.types.is_nested(scalar.type):
            return _nested(scalar)
        return {"base64": scalar.as_buffer().to_pybytes()}
    except (ValueError, OverflowError, LookupError):
        if pa.types.is_nested(scalar.type):
            return _nested(scalar)
        return _text(scalar)


def _text(scalar: pa.Scalar) -> str:
    """For values beyond Python's calendar and numbers, and for moments in a time zone that only Java knows."""
    try:
        if pa.types.is_timestamp(scalar.type) and scalar.type.tz is not None:
            scalar = scalar.cast(pa.timestamp(scalar.type.unit, "UTC"))
        return str(scalar.cast(pa.string()).as_py())
    except pa.ArrowException:
        return f"<{scalar.type} that cannot be written>"


def _nested(scalar: pa.Scalar) -> Any:
    """A struct, list or map that contains something without a Python value, field by field."""
    if pa.types.is_struct(scalar.type):
        return {name: _plain_scalar(scalar[name]) for name in scalar.type.names}
    if pa.types.is_map(scalar.type):
        entries = scalar.values
        return [[_plain_scalar(one[0]), _plain_scalar(one[1])] for one in entries]
    return [_plain_scalar(one) for one in scalar.values]


def _plain(value: Any) -> Any:
    """Values that JSON can express: NaN and infinity as text, and names of fields as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
