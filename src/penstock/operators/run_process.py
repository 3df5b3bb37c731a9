"""Run a `KeyedProcess` over the rows of a task: state of all keys is read and written in one go. Executors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.cells import ColumnCell
from penstock.operators.encoding import to_array
from penstock.operators.grouping import Grouped, group_rows
from penstock.operators.keyed_process import Cells, Context, KeyedProcess, bind
from penstock.operators.pieces import PieceLimits, pieces_with_state
from penstock.operators.python_values import python_values
from penstock.operators.rows import Row, Rows, RowTable
from penstock.operators.side_outputs import SideRows
from penstock.operators.states import value_schema
from penstock.state.backends.base import OpenState
from penstock.state.keys import KeyBatch
from penstock.state.sizes import in_batches
from penstock.wording import counted

OUTPUT_ROWS = 8_192
"""Results that are encoded together: few enough that they are gone before Python's collector looks at them a second time."""

LIMITS = PieceLimits(rows=1 << 18, bytes=256 << 20)
"""Rows and values of state that are Python objects at the same time."""

YOUNG_OBJECTS = 50_000
"""How many objects may be new before Python's collector looks; its own 700 make it look all the time, even at all that is imported."""


def run_process(
    operator: KeyedProcess,
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    output: pa.Schema,
    context: Context,
    sides: SideRows | None = None,
) -> list[pa.RecordBatch]:
    """Process every key of the table once; returns the results in batches. `sides` has what was emitted in the end."""
    cells = bind(operator)
    process = operator.process if sides is None else _encoding(operator.process, sides)
    results: list[pa.RecordBatch] = []
    with rare_collections():
        for piece in pieces_with_state(
            group_rows(table, key_names), state if cells.columns else None, LIMITS
        ):
            cells.load(piece, state, context)
            called = _call(process, piece.grouped, cells, context)
            results.extend(_encode(called, output, context.operator))
            if sides is not None:
                _encode_sides(sides)
            if cells.columns:
                write_back(operator, piece.grouped.keys, cells.columns, state, context.operator)
            cells.write_tables()
    return results


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect rarely inside, and as before afterwards. It is never switched off, because user code may leave cycles behind."""
    before = gc.get_threshold()
    if 0 < before[0] < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _call(process: Callable[..., Any], piece: Grouped, cells: Cells, context: Context) -> Iterator[Any]:
    """Process the keys of a piece; whatever stands in this loop is paid once per key."""
    table = RowTable(piece.table)
    starts = piece.starts.tolist()
    every, ends = cells.all, bool(cells.ending)
    keys = python_keys(piece.keys.columns)
    for index, key, start, stop in zip(range(len(keys)), keys, starts[:-1], starts[1:], strict=True):
        for cell in every:
            cell.at = index
        results = process(key, Rows(table, start, stop), context)
        if results is not None:
            try:
                yield from results
            except TypeError as error:
                check_iterable(results, context.operator, error)
                raise
        if ends:
            cells.end_call()


def check_iterable(results: Any, operator: str, cause: TypeError) -> None:
    """Say what is wrong when it is the results themselves, and not what they were made from."""
    if not isinstance(results, Iterable):
        raise BadRecordError(
            f"operator {operator}: process() returned {results!r}; yield results, or return a list of them"
        ) from cause


def python_keys(columns: pa.RecordBatch) -> list[Any]:
    """The keys as user code sees them."""
    values = [python_values(column) for column in columns.columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def _encode(results: Iterator[Any], output: pa.Schema, operator: str) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(results, OUTPUT_ROWS)):
        yield from in_batches(to_table(chunk, output, yielded(operator)))


def yielded(operator: str) -> str:
    """The beginning of a message about a result."""
    return f"operator {operator}: process() yielded"


def emitted(sides: SideRows, name: str) -> str:
    """The same about a row of a side output."""
    return f"{sides.who(name)}: process() emitted"


def _encoding(process: Callable[..., Any], sides: SideRows) -> Callable[..., Any]:
    """The same, and before each call what is due of the calls before: an error in that is not about the key of the next."""

    def call(*given: Any) -> Any:
        if sides.holds(OUTPUT_ROWS):
            _encode_sides(sides)
        return process(*given)

    return call


def _encode_sides(sides: SideRows) -> None:
    for name, rows in sides.withdrawn().items():
        for start in range(0, len(rows), OUTPUT_ROWS):
            chunk = rows[start : start + OUTPUT_ROWS]
            sides.keep(name, in_batches(to_table(chunk, sides.schemas[name], emitted(sides, name))))


def to_table(chunk: list[Any], output: pa.Schema, said: str) -> pa.Table:
    """Rows of user code as columns; raises `BadRecordError`, which begins with `said`, for one that does not fit the schema."""
    width = len(output.names)
    plain = chunk
    if set(map(type, chunk)) != {tuple}:
        plain = [_as_tuple(result, output, said) for result in chunk]
    if set(map(len, plain)) != {width}:
        wrong = next(result for result in plain if len(result) != width)
        raise BadRecordError(
            f"{said} {wrong!r} with {counted(len(wrong), 'value')}, its schema has "
            f"{counted(width, 'column')} ({', '.join(output.names)})"
        )
    columns = [
        to_array(list(map(itemgetter(index), plain)), field, said) for index, field in enumerate(output)
    ]
    return pa.Table.from_arrays(columns, schema=output)


def _as_tuple(result: Any, output: pa.Schema, said: str) -> Any:
    if isinstance(result, Mapping):
        unknown = sorted(set(result) - set(output.names), key=repr)
        if unknown:
            raise BadRecordError(f"{said} unknown columns {unknown}: {result!r}")
        return tuple(result.get(name) for name in output.names)
    if isinstance(result, tuple | list | Row):
        return result
    raise BadRecordError(
        f"{said} {result!r}; give a tuple with one value per column "
        f"({', '.join(output.names)}) or a dictionary"
    )


def write_back(
    operator: KeyedProcess, keys: KeyBatch, cells: Mapping[str, ColumnCell], state: OpenState, uid: str
) -> None:
    """Write what was set; raises `BadRecordError`, with nothing written, for a value that does not fit."""
    touched = np.zeros(len(keys), dtype=np.bool_)
    for cell in cells.values():
        touched |= np.frombuffer(cell.dirty, dtype=np.bool_)
    if not touched.any():
        return
    schema = value_schema(operator)
    columns = [
        to_array(cells[field.name].values, field, f"operator {uid}: {cells[field.name].made}")
        for field in schema
    ]
    write_values(state, keys, pa.Table.from_arrays(columns, schema=schema), touched)


def write_values(state: OpenState, keys: KeyBatch, values: pa.Table, touched: npt.NDArray[np.bool_]) -> None:
    """Write the values of the keys that were touched; a key without any value is forgotten."""
    if not touched.any():
        return
    if not touched.all():
        at = pa.array(np.flatnonzero(touched))
        keys, values = KeyBatch(keys.sort_keys[touched], keys.columns.take(at)), values.take(at)
    start = 0
    for batch in in_batches(values):
        state.write(keys.slice(start, start + batch.num_rows), batch, _all_null(batch))
        start += batch.num_rows


def _all_null(values: pa.RecordBatch) -> Any:
    empty = np.ones(values.num_rows, dtype=np.bool_)
    for column in values.columns:
        empty &= column.is_null().to_numpy(zero_copy_only=False)
    return empty if empty.any() else None
