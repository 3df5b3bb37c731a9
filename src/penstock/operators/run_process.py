"""Run a `KeyedProcess` over the rows of a task: state of all keys is read and written in one go. Executors."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.cells import ColumnCell
from penstock.operators.encoding import to_array
from penstock.operators.given_rows import as_given, as_given_flat, may_change
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
            calls = _Calls(operator, process, piece.grouped, cells, context)
            for chunk in calls.run(output):
                results.extend(in_batches(calls.encoded(chunk, output)))
            if sides is not None:
                encode_sides(sides)
            if cells.all:
                calls.write_state(state)
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


class _Chunk:
    """Results that are encoded together, and how many there were when each key began whose turn came among them."""

    __slots__ = ("before", "began", "results")

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.began: list[int] = []
        self.before = 0
        """So many keys had begun before; the last of them may have more results."""

    @property
    def newest(self) -> int:
        """The key whose turn it is, by its position in the piece."""
        return self.before + len(self.began) - 1

    def clear(self) -> None:
        """Make room for the next results."""
        self.before += len(self.began)
        self.began.clear()
        self.results.clear()

    def by_key(self) -> Iterator[tuple[int, list[Any]]]:
        """The results of each key that has any, with its position in the piece."""
        for at, (start, end) in enumerate(pairwise([0, *self.began, len(self.results)])):
            if start < end:
                yield self.before + at - 1, self.results[start:end]


class _Calls:
    """The calls for the keys of one piece. Of which key a result or a state is that does not fit is looked for only when one is met."""

    def __init__(
        self,
        operator: KeyedProcess,
        process: Callable[..., Any],
        piece: Grouped,
        cells: Cells,
        context: Context,
    ) -> None:
        self._operator = operator
        self._process = process
        self._cells = cells
        self._context = context
        self._columns = piece.keys
        self._table = RowTable(piece.table)
        self._starts: list[int] = piece.starts.tolist()
        self._keys = python_keys(piece.keys.columns)

    def run(self, output: pa.Schema) -> Iterator[_Chunk]:
        """Process the keys. The chunk is the same each time, with other results."""
        chunk = _Chunk()
        called = self._called(chunk)
        results = map(as_given if may_change(output) else as_given_flat, chain.from_iterable(called))
        while True:
            try:
                chunk.results.extend(islice(results, OUTPUT_ROWS))
            except TypeError as error:
                self._check_iterable(called, chunk.newest, error)
                raise
            if not chunk.results:
                return
            yield chunk
            chunk.clear()

    def _called(self, chunk: _Chunk) -> Generator[Iterable[Any], None, None]:
        """What each key gives; whatever stands in this loop is paid once per key. A list knows its length also while it is extended."""
        process, table, starts, context = self._process, self._table, self._starts, self._context
        every, ends = self._cells.all, bool(self._cells.ending)
        given, begin = chunk.results, chunk.began.append
        for index, key, start, stop in zip(
            range(len(self._keys)), self._keys, starts[:-1], starts[1:], strict=True
        ):
            begin(len(given))
            for cell in every:
                cell.at = index
            results = process(key, Rows(table, start, stop), context)
            if results is not None:
                yield results
            if ends:
                self._cells.end_call()

    def encoded(self, chunk: _Chunk, output: pa.Schema) -> pa.Table:
        """Results as columns; raises `BadRecordError` with the key whose results do not fit the schema."""
        uid = self._context.operator
        try:
            return to_table(chunk.results, output, yielded(uid))
        except BadRecordError:
            for index, results in chunk.by_key():
                try:
                    to_table(results, output, yielded(uid))
                except BadRecordError as error:
                    raise self._of(index, error) from None
            raise

    def write_state(self, state: OpenState) -> None:
        """Write what was set; raises `BadRecordError` with the key whose value does not fit."""
        uid = self._context.operator
        try:
            write_back(self._operator, self._columns, self._cells, state, uid)
            self._cells.write_tables()
        except BadRecordError:
            columns = unfit_state(self._operator, self._cells.columns, uid)
            for index, error in chain(columns, self._cells.unfit_rows()):
                raise self._of(index, error) from None
            raise

    def _check_iterable(self, called: Generator[Any, None, None], index: int, cause: TypeError) -> None:
        """Say what is wrong when it is the results themselves, and not what they were made from."""
        results = inspect.getgeneratorlocals(called).get("results", ())
        if not isinstance(results, Iterable):
            raise self._of(index, not_iterable(results, self._context.operator)) from cause

    def _of(self, index: int, error: BadRecordError) -> BadRecordError:
        rows = Rows(self._table, self._starts[index], self._starts[index + 1])
        error.facts.update(key=self._keys[index], row=rows)
        return error


def not_iterable(results: Any, operator: str) -> BadRecordError:
    """The call for a key gave something that holds no results."""
    return BadRecordError(
        f"operator {operator}: process() returned {results!r}; yield results, or return a list of them"
    )


def python_keys(columns: pa.RecordBatch) -> list[Any]:
    """The keys as user code sees them."""
    values = [python_values(column) for column in columns.columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


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
            encode_sides(sides)
        return process(*given)

    return call


def encode_sides(sides: SideRows) -> None:
    """Take over what was emitted since the last time; raises `BadRecordError` for a row that does not fit."""
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
        return _by_name(result, output.names)
    raise BadRecordError(
        f"{said} {result!r}; give a tuple with one value per column "
        f"({', '.join(output.names)}) or a dictionary"
    )


def _by_name(result: Any, columns: list[str]) -> Any:
    """A named tuple, or a row of PySpark's, that has the columns in another order; all others go by position."""
    names = getattr(result, "__fields__", None) or getattr(result, "_fields", None)
    if names is None or list(names) == columns or sorted(names) != sorted(columns):
        return result
    by_name = dict(zip(names, result, strict=True))
    return tuple(by_name[name] for name in columns)


def write_back(operator: KeyedProcess, keys: KeyBatch, cells: Cells, state: OpenState, uid: str) -> None:
    """Write what was set; raises `BadRecordError`, with nothing written, for a value that does not fit."""
    by_column = cells.touched()
    touched = np.zeros(len(keys), dtype=np.bool_)
    for flags in by_column.values():
        touched |= flags
    if not touched.any():
        return
    schema = value_schema(operator)
    columns = {
        field.name: to_array(
            cells.columns[field.name].values, field, f"operator {uid}: {cells.columns[field.name].made}"
        )
        for field in schema
    }
    stamps = {
        stamp.name: stamp.column(columns[name], by_column[name], state.now_us)
        for name, stamp in cells.stamps.items()
    }
    write_values(state, keys, pa.table({**columns, **stamps}), touched)


def unfit_state(
    operator: KeyedProcess, cells: Mapping[str, ColumnCell], uid: str
) -> Iterator[tuple[int, BadRecordError]]:
    """The keys, by their position, to whose state something was set that does not fit, and what it is."""
    for column in value_schema(operator):
        cell = cells[column.name]
        for index in np.flatnonzero(np.frombuffer(bytes(cell.dirty), dtype=np.bool_)).tolist():
            try:
                to_array([cell.values[index]], column, f"operator {uid}: {cell.made}")
            except BadRecordError as error:
                yield index, error


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
