"""The rows of a task in the order of their keys, and cut into pieces of whole keys that fit into memory. Executors.

The order is exact, also where two keys share a sort key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError, InternalError
from penstock.operators.columns import narrowed, one_chunk, widened
from penstock.operators.values.rows import Rows, RowTable
from penstock.state.backends.base import OpenState
from penstock.state.backends.sorted_lookup import no_columns
from penstock.state.keys import SORT_KEY, Flags, KeyBatch, SortKeys, key_groups, owners, rows_equal
from penstock.state.sizes import Bytes, table_row_bytes
from penstock.wording import counted

_SIGN_FREE_BITS = 63


@dataclass(frozen=True)
class Grouped:
    """Rows ordered by key: key i has the rows `starts[i]` to `starts[i + 1]` of `table` (which lacks the sort key).

    Columns that do not fit into one array are widened, until they are cut into pieces.
    """

    keys: KeyBatch
    starts: npt.NDArray[np.int64]
    table: pa.Table


def group_rows(table: pa.Table, key_names: list[str]) -> Grouped:
    """Order rows by key; rows of one key keep the order they came in."""
    sort_keys = _sort_keys(table)
    order = stable_order(sort_keys)
    table = widened(table.drop_columns([SORT_KEY]))
    if not _is_identity(order):
        table, sort_keys = table.take(pa.array(order)), sort_keys[order]
    table = table.combine_chunks()
    differs = _differs(sort_keys, _key_columns(table, key_names))
    if differs.any():
        order = _order_with_collisions(sort_keys, _key_columns(table, key_names), differs)
        table = table.take(pa.array(order)).combine_chunks()
        differs = _differs(sort_keys, _key_columns(table, key_names))
    first = _starts(differs | (sort_keys[1:] != sort_keys[:-1]))[: len(sort_keys)]
    taken = table.select(key_names).take(pa.array(first))
    columns = pa.RecordBatch.from_arrays(list(map(one_chunk, taken.columns)), schema=taken.schema)
    keys = KeyBatch(sort_keys[first], columns)
    return Grouped(keys, np.append(first, len(sort_keys)), table)


def equal_rows(
    numbers: Sequence[SortKeys], columns: Sequence[pa.Array]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The positions that put rows in the order of these numbers, the first ones first, and those equal in `columns` too side by side.

    Also where groups of equal rows start in that order, and after the last. Rows of one group keep the order they came in.
    """
    order = np.lexsort(numbers[::-1])
    changes = np.zeros(max(0, len(order) - 1), dtype=np.bool_)
    for column in numbers:
        ordered = column[order]
        changes |= ordered[1:] != ordered[:-1]
    stretch: SortKeys = np.concatenate(([0], np.cumsum(changes))).astype(np.int64)[: len(order)]
    differs = _differs(stretch, _taken(list(columns), order))
    if differs.any():
        order = order[_order_with_collisions(stretch, _taken(list(columns), order), differs)]
        differs = _differs(stretch, _taken(list(columns), order))
    starts = _starts(differs | changes)[: len(order)]
    return order, np.append(starts, len(order))


def one_row_a_key(table: pa.Table, key_names: list[str]) -> Grouped:
    """`group_rows`, for rows that Spark has aggregated to one per key."""
    grouped = group_rows(table, key_names)
    if len(grouped.keys) != table.num_rows:
        raise InternalError(
            f"{counted(table.num_rows - len(grouped.keys), 'row')} too many: a key came in more than one"
        )
    return grouped


def null_keys(table: pa.Table, key_names: list[str]) -> tuple[Flags, list[str]]:
    """Which rows have no value in a key column, and for each of those why it is bad."""
    missing = [
        table.column(name).is_null().to_numpy() if table.column(name).null_count else None
        for name in key_names
    ]
    flags = np.zeros(table.num_rows, dtype=np.bool_)
    for column in missing:
        if column is not None:
            flags |= column
    first = [
        next(
            name
            for name, column in zip(key_names, missing, strict=True)
            if column is not None and column[row]
        )
        for row in np.flatnonzero(flags).tolist()
    ]
    return flags, [f"the key column {name!r} is null" for name in first]


def check_rows(
    table: pa.Table,
    key_names: list[str],
    *,
    operator: str,
    subtask: int,
    parallelism: int,
    shown: Sequence[str] = (),
) -> None:
    """Refuse null keys, and rows that belong to another subtask (which would split a key's state in two).

    The error shows the columns `shown` of a row without a key.
    """
    for name in key_names:
        nulls = table.column(name).null_count
        if nulls:
            raise BadRecordError(
                f"operator {operator}: {counted(nulls, 'row has', 'rows have')} no value in the key column {name!r}; nothing of this "
                f"batch is kept; filter them out before key_by, or replace null, for instance with coalesce({name}, ...)",
                operator=operator,
                column=name,
                row=Rows(RowTable(_without_key(table, name, shown)), 0, nulls) if shown else None,
            )
    groups = key_groups(_sort_keys(table))
    if len(groups) and not bool((owners(groups, parallelism) == subtask).all()):
        raise InternalError(f"operator {operator}: rows of other subtasks arrived at subtask {subtask}")


def _without_key(table: pa.Table, name: str, shown: Sequence[str]) -> pa.Table:
    positions = [at for at, column in enumerate(table.column_names) if column in shown]
    return table.filter(table.column(name).is_null()).select(positions)


def _sort_keys(table: pa.Table) -> SortKeys:
    numbers: SortKeys = table.column(SORT_KEY).to_numpy()
    return numbers


def _is_identity(order: npt.NDArray[np.intp]) -> bool:
    return bool((order == np.arange(len(order))).all())


def _key_columns(table: pa.Table, key_names: list[str]) -> list[pa.Array]:
    return [one_chunk(table.column(name)) for name in key_names]


def _differs(sort_keys: SortKeys, keys: list[pa.Array]) -> Flags:
    """For every row but the first: whether it has another key than the row before it, under the same sort key."""
    same_number: Flags = sort_keys[1:] == sort_keys[:-1]
    if not same_number.any():
        return same_number
    before, after = [key.slice(0, len(key) - 1) for key in keys], [key.slice(1) for key in keys]
    return same_number & ~rows_equal(before, after)


def _starts(changes: Flags) -> npt.NDArray[np.int64]:
    """The first row of every stretch, where `changes` says that a row (but the first) differs from the one before."""
    return np.concatenate(([0], np.flatnonzero(changes) + 1)).astype(np.int64)


def _order_with_collisions(
    sort_keys: SortKeys, keys: list[pa.Array], differs: Flags
) -> npt.NDArray[np.int64]:
    """Within a stretch of one sort key that several keys share, put equal keys together, in the order of their first row.

    Only such stretches are looked at. In every round the first row that is left of each stretch calls its equals, so there are as many
    rounds as keys that share one sort key.
    """
    stretch = np.concatenate(([0], np.cumsum(sort_keys[1:] != sort_keys[:-1])))
    shared = np.zeros(int(stretch[-1]) + 1, dtype=np.bool_)
    shared[stretch[1:][differs]] = True
    rows = np.flatnonzero(shared[stretch])
    rounds = np.zeros(len(rows), dtype=np.int64)
    left = np.arange(len(rows))
    while len(left):
        of_stretch = stretch[rows[left]]
        changes = of_stretch[1:] != of_stretch[:-1]
        leaders = left[_starts(changes)][np.concatenate(([0], np.cumsum(changes)))]
        called = rows_equal(_taken(keys, rows[left]), _taken(keys, rows[leaders]))
        rounds[left[~called]] += 1
        left = left[~called]
    order = np.arange(len(sort_keys), dtype=np.int64)
    order[rows] = rows[np.lexsort((rounds, stretch[rows]))]
    return order


def _taken(keys: list[pa.Array], rows: npt.NDArray[np.int64]) -> list[pa.Array]:
    at = pa.array(rows)
    return [key.take(at) for key in keys]


def stable_order(sort_keys: SortKeys) -> npt.NDArray[np.int64]:
    """The positions that put the sort keys in ascending order; equal ones stay in the order they came in.

    Sorting plain numbers is much faster than sorting positions by numbers. So the leading bits of the sort key and the position are packed
    into one number and sorted. What the missing bits leave out of order, among a million keys a pair or two, a stable sort mends: it is
    quick on what is sorted almost everywhere.
    """
    if len(sort_keys) < 2:  # noqa: PLR2004 - one row is in order
        return np.arange(len(sort_keys), dtype=np.int64)
    position_bits = (len(sort_keys) - 1).bit_length()
    lowest = int(sort_keys.min())
    key_bits = (int(sort_keys.max()) - lowest).bit_length()
    dropped = max(0, key_bits + position_bits - _SIGN_FREE_BITS)
    packed = (sort_keys - lowest) >> dropped
    packed <<= position_bits
    packed |= np.arange(len(sort_keys), dtype=np.int64)
    packed.sort()
    packed &= (1 << position_bits) - 1
    if dropped:
        ordered = sort_keys[packed]
        if (ordered[1:] < ordered[:-1]).any():
            return packed[np.argsort(ordered, kind="stable")]
    return packed


# ── pieces ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class PieceLimits:
    """The limits of a piece: bytes of rows, bytes of state, rows and keys."""

    bytes: int
    rows: int = 1 << 40


@dataclass(frozen=True)
class Piece:
    """Some keys with all their rows and their stored state."""

    grouped: Grouped
    stored: pa.RecordBatch
    found: npt.NDArray[np.bool_]


def pieces_with_state(
    grouped: Grouped, state: OpenState | None, limits: PieceLimits, sizes: Bytes | None = None
) -> Iterator[Piece]:
    """Pieces in the order of keys, the state of each read when its turn has come; `None` for an operator that keeps none."""
    for piece in pieces(grouped, limits, sizes):
        if state is None:
            yield Piece(piece, no_columns(len(piece.keys)), np.zeros(len(piece.keys), dtype=np.bool_))
            continue
        start = 0
        for stored, found in state.read_parts(piece.keys, limits.bytes):
            stop = start + len(found)
            whole = len(found) == len(piece.keys)
            yield Piece(piece if whole else _part(piece, start, stop), stored, found)
            start = stop


def pieces(grouped: Grouped, limits: PieceLimits, sizes: Bytes | None = None) -> Iterator[Grouped]:
    """Parts in the order of keys; a key is never split, so one that goes beyond the limits is a piece of its own.

    `sizes` are the bytes of each row where the table does not have them itself, but only the numbers of rows.
    """
    starts = grouped.starts
    bytes_before = _bytes_before_keys(grouped, limits.bytes, sizes)
    first = 0
    while first < len(grouped.keys):
        last = int(np.searchsorted(starts, starts[first] + limits.rows, side="right")) - 1
        last = min(last, first + limits.rows)  # keys may come without rows
        if bytes_before is not None:
            room = bytes_before[first] + limits.bytes
            last = min(last, int(np.searchsorted(bytes_before, room, side="right")) - 1)
        last = max(last, first + 1)
        yield _part(grouped, first, last)
        first = last


def _bytes_before_keys(grouped: Grouped, max_bytes: int, sizes: Bytes | None) -> Bytes | None:
    """For every key, and after the last one, the bytes of all rows before it; None where all fit into one piece."""
    if sizes is None:
        if grouped.table.nbytes <= max_bytes:
            return None
        sizes = table_row_bytes(grouped.table)
    before: Bytes = np.concatenate(([0], np.cumsum(sizes)))[grouped.starts]
    return before


def _part(grouped: Grouped, first: int, last: int) -> Grouped:
    """The keys from `first` up to `last`, with their rows; nothing is copied."""
    start, stop = int(grouped.starts[first]), int(grouped.starts[last])
    keys = grouped.keys.slice(first, last)
    columns = narrowed(pa.Table.from_batches([keys.columns])).combine_chunks().to_batches()[0]
    table = grouped.table.slice(start, stop - start)
    return Grouped(
        KeyBatch(keys.sort_keys, columns), grouped.starts[first : last + 1] - start, narrowed(table)
    )
