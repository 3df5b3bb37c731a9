"""Shared by all loops that call user code: limits, the encoding of results, and the place that an error names. Executors.

The loops themselves are in `process` (key by key, in columns, without a key) and in `window/own_code.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.grouping import PieceLimits
from penstock.operators.outputs import SideRows
from penstock.operators.values.encoding import to_array
from penstock.operators.values.python_values import python_values
from penstock.operators.values.rows import Row
from penstock.places import place_of_function
from penstock.state.sizes import in_batches
from penstock.wording import counted

OUTPUT_ROWS = 8_192
"""Results that are encoded together: few enough to be gone before Python's collector visits them a second time."""
LIMITS = PieceLimits(rows=1 << 18, bytes=256 << 20)
"""Rows and values of state that are Python objects at the same time."""
YOUNG_OBJECTS = 50_000
"""New objects before Python's collector runs. With its default of 700 it runs all the time, and also visits all imported objects."""
PROCESS, ON_TIMER = "process()", "on_timer()"


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python's garbage collector run rarely inside. It is never switched off, because user code may create cycles."""
    before = gc.get_threshold()
    if 0 < before[0] < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def not_iterable(results: Any, operator: str, call: str = PROCESS) -> BadRecordError:
    """The error for a call that returned something other than results."""
    return BadRecordError(
        f"operator {operator}: {call} returned {results!r}; yield results, or return a list of them"
    )


def python_keys(columns: pa.RecordBatch) -> list[Any]:
    """The keys as user code sees them."""
    values = [python_values(column) for column in columns.columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def yielded(operator: str, call: str = PROCESS) -> str:
    """The beginning of a message about a result."""
    return f"operator {operator}: {call} yielded"


def emitted(sides: SideRows, name: str) -> str:
    """The beginning of a message about a row of a side output."""
    return f"{sides.who(name)}: process() emitted"


def encode_sides(sides: SideRows) -> None:
    """Encode the rows emitted since the last call; raises `BadRecordError` for a row that does not fit."""
    for name, rows in sides.withdrawn().items():
        for start in range(0, len(rows), OUTPUT_ROWS):
            chunk = rows[start : start + OUTPUT_ROWS]
            sides.keep(name, in_batches(to_table(chunk, sides.schemas[name], emitted(sides, name))))


def to_table(chunk: list[Any], output: pa.Schema, prefix: str) -> pa.Table:
    """Rows of user code as columns; raises `BadRecordError`, which begins with `prefix`, for one that does not fit the schema."""
    width = len(output.names)
    plain = chunk
    if set(map(type, chunk)) != {tuple}:
        plain = [_as_tuple(result, output, prefix) for result in chunk]
    if set(map(len, plain)) != {width}:
        wrong = next(result for result in plain if len(result) != width)
        raise BadRecordError(
            f"{prefix} {wrong!r} with {counted(len(wrong), 'value')}, its schema has "
            f"{counted(width, 'column')} ({', '.join(output.names)})"
        )
    columns = [
        to_array(list(map(itemgetter(index), plain)), field, prefix) for index, field in enumerate(output)
    ]
    return pa.Table.from_arrays(columns, schema=output)


Blamed = tuple[str, list[Any], Callable[[BadRecordError], BadRecordError]]
"""One of several calls: its name, its results, and how an error about them says whose they are."""


def encode_calls(results: list[Any], output: pa.Schema, operator: str, calls: Iterable[Blamed]) -> pa.Table:
    """The results of many calls as columns. Only where one does not fit are the calls looked at, for the error to say which gave it."""
    try:
        return to_table(results, output, yielded(operator))
    except BadRecordError:
        for call, own, blamed in calls:
            try:
                to_table(own, output, yielded(operator, call))
            except BadRecordError as error:
                raise blamed(error) from None
        raise


def _as_tuple(result: Any, output: pa.Schema, prefix: str) -> Any:
    if isinstance(result, Mapping):
        unknown = sorted(set(result) - set(output.names), key=repr)
        if unknown:
            raise BadRecordError(f"{prefix} unknown columns {unknown}: {result!r}")
        return tuple(result.get(name) for name in output.names)
    if isinstance(result, tuple | list | Row):
        return _by_name(result, output.names)
    raise BadRecordError(
        f"{prefix} {result!r}; give a tuple with one value per column "
        f"({', '.join(output.names)}) or a dictionary"
    )


def _by_name(result: Any, columns: list[str]) -> Any:
    """Reorder a named tuple or a PySpark row that has the columns in another order; others go by position."""
    names = getattr(result, "__fields__", None) or getattr(result, "_fields", None)
    if names is None or list(names) == columns or sorted(names) != sorted(columns):
        return result
    by_name = dict(zip(names, result, strict=True))
    return tuple(by_name[name] for name in columns)


@contextmanager
def blamed_on(code: Callable[..., object]) -> Iterator[None]:
    """Add the place of the function to errors about its results, which are found only when the results are encoded."""
    try:
        yield
    except BadRecordError as error:
        error.facts.setdefault("code", place_of_function(code))
        raise
