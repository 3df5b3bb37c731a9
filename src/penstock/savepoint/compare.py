"""Two savepoints or checkpoints side by side: which rows appeared, changed and went, state by state. Driver; no Spark.

Rows are matched by what tells them apart, whatever the parallelism, backend and `max_parallelism` of either side. What is compared is what
is stored, since one row and a thousand may have the same average. When a value was last touched is not compared, nor when an early result
is due; neither are tables that only say when something else is due: they follow from the others. Large tables are first
dealt out into files by the hash of their keys, and compared pair by pair: what has to fit into memory is a pair of files, not the state.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.long_work import each
from penstock.operators.aggregate.columns import Kind, aggregate_of
from penstock.operators.aggregate.distinct import in_order
from penstock.operators.grouping import equal_rows
from penstock.operators.views import ROW, Shown, View
from penstock.savepoint.contents import Contents, OperatorContents
from penstock.state.ddl import spark_type
from penstock.state.keys import GROUP_SHIFT, ORDER, SORT_KEY, Flags, rows_equal

PORTION_ROWS = 1_000_000
"""The number of rows of both sides that are compared at once."""
MOST_PORTIONS = 512
"""The largest number of files that are open at once; a process may have 1024. With more files, portions are larger."""
EXAMPLES = 5
APPEARED, CHANGED, WENT = "appeared", "changed", "went"
STORED_AS = "stored as"
"""In an example: the parts of aggregates, where their results are the same."""
_PART = "__part_"

_HASH = (1 << GROUP_SHIFT) - 1
Row = dict[str, Any]
Positions = npt.NDArray[np.int64]


@dataclass
class StateDifference:
    """How a state differs. Examples are rows as a user sees them; of what changed, before and after, with parts where only these differ."""

    operator: str
    state: str
    before: int = 0
    after: int = 0
    """Rows."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((APPEARED, CHANGED, WENT), 0))
    examples: dict[str, list[Row]] = field(default_factory=lambda: {APPEARED: [], CHANGED: [], WENT: []})
    refused: str = ""
    """Why rows could not be compared: their columns are others."""

    @property
    def is_same(self) -> bool:
        """Whether both sides are equal in all respects."""
        return not self.refused and not any(self.counts.values())


@dataclass(frozen=True)
class SavepointDifference:
    """All states of both sides."""

    states: tuple[StateDifference, ...]
    positions: dict[str, tuple[Any, Any]]
    """The positions of sources that differ; None if a side does not have the source."""

    @property
    def is_same(self) -> bool:
        """Whether all state is the same. Positions may differ: rows that were read need not have changed anything."""
        return all(state.is_same for state in self.states)


def compare(before: Contents, after: Contents, *, examples: int = EXAMPLES) -> SavepointDifference:
    """Read all state of both, and compare."""
    uids = [*before.operators, *(uid for uid in after.operators if uid not in before.operators)]
    states = [
        found
        for uid in each(uids, "comparing", "operator")
        for found in _operator(uid, before.operators.get(uid), after.operators.get(uid), examples)
    ]
    sources = {**before.positions, **after.positions}
    pairs = {uid: (before.positions.get(uid), after.positions.get(uid)) for uid in sources}
    return SavepointDifference(
        tuple(states), {uid: pair for uid, pair in pairs.items() if pair[0] != pair[1]}
    )


def _operator(
    uid: str, before: OperatorContents | None, after: OperatorContents | None, examples: int
) -> Iterator[StateDifference]:
    one, other = (_tables(side) for side in (before, after))
    for name in [*one, *(name for name in other if name not in one)]:
        yield from _Table(uid, (before, one.get(name)), (after, other.get(name)), examples).states()


def _tables(side: OperatorContents | None) -> dict[str, View]:
    """One view for each stored table. That of the row of a key stands for all states in it."""
    found: dict[str, View] = {}
    for view in () if side is None else side.views.values():
        found.setdefault(view.table.name, view)
    return found


_Side = tuple[OperatorContents | None, View | None]


class _Table:
    """One table of both sides."""

    def __init__(self, uid: str, before: _Side, after: _Side, examples: int) -> None:
        self._uid, self._sides, self._most = uid, (before, after), examples
        self._views = [view for _, view in (before, after) if view is not None]
        self._found = {name: StateDifference(uid, name) for name in self._names()}

    def _names(self) -> list[str]:
        """A row of values is several states, everything else is one."""
        every = [one.name for view in self._views for one in view.value] if self._is_row else []
        return list(dict.fromkeys(every)) if self._is_row else [self._views[0].name]

    @property
    def _is_row(self) -> bool:
        return self._views[0].name == ROW

    def states(self) -> list[StateDifference]:
        """Compare the two sides operator by operator."""
        refused = self._refused()
        if refused:
            for state in self._found.values():
                state.refused = refused
        else:
            with ExitStack() as stack:
                for portion in self._portions(stack):
                    self._compare(*portion)
        return list(self._found.values())

    def _refused(self) -> str:
        """Rows whose columns have other types cannot be matched, or are all different."""
        if len(self._views) == 1:
            return ""
        one, other = (_types(view) for view in self._views)
        known = [name for name in one if name in other] if self._is_row else list({**one, **other})
        differs = [name for name in known if one.get(name) != other.get(name)]
        if not differs:
            return ""
        said = ", ".join(
            f"{name} is {one.get(name, 'not there')} and {other.get(name, 'not there')}" for name in differs
        )
        return f"the columns differ: {said}"

    # ── rows in portions ───────────────────────────────────────────────────────────────────────

    def _portions(self, stack: ExitStack) -> Iterator[tuple[pa.Table, pa.Table]]:
        number = self._how_many()
        if number == 1:
            yield self._whole(0), self._whole(1)
            return
        folder = Path(tempfile.mkdtemp(prefix="penstock-diff-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for side in (0, 1):
            self._deal_out(side, folder, number)
        for at in range(number):
            yield self._dealt(0, folder, at), self._dealt(1, folder, at)

    def _how_many(self) -> int:
        rows = 0
        for side, view in self._sides:
            if side is not None and view is not None:
                known = side.rows_of(view)
                # the number of rows is not recorded: rather too many portions
                rows += side.size // 16 if known is None else known
        return min(MOST_PORTIONS, max(1, -(-rows // PORTION_ROWS)))

    def _stored(self, side: int) -> Iterator[pa.RecordBatch]:
        """Rows with the hash of their key, their stored identity, their columns as users see them, and partial aggregates."""
        contents, view = self._sides[side]
        if contents is None or view is None:
            return
        schema = _schema(view)
        for part in contents.parts_of(view):
            for batch in view.whole(part.rows()):
                hashes = pa.array(batch.column(SORT_KEY).to_numpy() & _HASH)
                order = (
                    batch.column(ORDER) if view.table.ordered else pa.array(np.zeros(len(batch), np.int64))
                )
                identity = [batch.column(name) for name in view.table.identity.names]
                shown = view.shown(batch).columns
                parts = [_comparable(part.name, batch.column(part.name)) for part in _parts(view)]
                yield pa.RecordBatch.from_arrays([hashes, order, *identity, *shown, *parts], schema=schema)

    def _whole(self, side: int) -> pa.Table:
        view = self._sides[side][1] or self._views[0]
        return pa.Table.from_batches(self._stored(side), _schema(view))

    def _deal_out(self, side: int, folder: Path, number: int) -> None:
        view = self._sides[side][1]
        if view is None:
            return
        with ExitStack() as stack:
            writers = [
                stack.enter_context(pa.ipc.new_file(folder / f"{side}-{at}", _schema(view)))
                for at in range(number)
            ]
            for batch in self._stored(side):
                owner = batch.column(0).to_numpy() % number
                for at in np.unique(owner).tolist():
                    writers[at].write_batch(batch.filter(pa.array(owner == at)))

    def _dealt(self, side: int, folder: Path, at: int) -> pa.Table:
        view = self._sides[side][1]
        if view is None:
            return _schema(self._views[0]).empty_table()
        with pa.ipc.open_file(folder / f"{side}-{at}") as file:
            return file.read_all()

    # ── one portion ────────────────────────────────────────────────────────────────────────────

    def _compare(self, before: pa.Table, after: pa.Table) -> None:
        identity = 2 + len(self._views[0].table.identity)
        matched = _matched(before, after, identity)
        for state in self._found.values():
            columns = [name for one in self._shown(state) for name in _compared(one)]
            one, other = (_values(table, columns) for table in (before, after))
            has = [self._present(state, table) for table in (before, after)]
            self._count(state, matched.with_values(one, other, *has), before, after)

    def _shown(self, state: StateDifference) -> list[Shown]:
        """The columns of a state: one of the row of a key, or all of a table."""
        if not self._is_row:
            return list(self._views[0].value)
        return [next(one for view in self._views for one in view.value if one.name == state.state)]

    def _present(self, state: StateDifference, table: pa.Table) -> Flags:
        """Flags of the rows that belong to the state. A null value does not; an aggregate always does."""
        if not self._is_row:
            return np.ones(len(table), np.bool_)
        if state.state not in table.column_names:
            return np.zeros(len(table), np.bool_)
        if any(one.parts for one in self._shown(state)):
            return np.ones(len(table), np.bool_)
        found: Flags = _one_array(table.column(state.state)).is_valid().to_numpy(zero_copy_only=False)
        return found

    def _count(self, state: StateDifference, found: _Found, before: pa.Table, after: pa.Table) -> None:
        state.before += found.before
        state.after += found.after
        shown = [one.name for one in self._views[0].identity]
        columns = [*shown, *(one.name for one in self._shown(state))]
        for what, rows, table in ((APPEARED, found.appeared, after), (WENT, found.went, before)):
            state.counts[what] += len(rows)
            wanted = rows[: self._most - len(state.examples[what])]
            state.examples[what] += _rows(table, wanted, columns)
        state.counts[CHANGED] += len(found.changed_before)
        most = self._most - len(state.examples[CHANGED])
        left, right = found.changed_before[:most], found.changed_after[:most]
        pairs = zip(_rows(before, left, columns), _rows(after, right, columns), strict=True)
        parts = [part.name for one in self._shown(state) for part in one.parts]
        stored = zip(_parts_of(before, left, parts), _parts_of(after, right, parts), strict=True)
        for (one, other), as_stored in zip(pairs, stored, strict=True):
            key = {name: one[name] for name in shown}
            values = [{name: row[name] for name in columns if name not in shown} for row in (one, other)]
            if parts and repr(values[0]) == repr(values[1]):
                values = [{**row, STORED_AS: more} for row, more in zip(values, as_stored, strict=True)]
            state.examples[CHANGED].append({**key, "before": values[0], "after": values[1]})


@dataclass(frozen=True)
class _Found:
    before: int
    after: int
    appeared: Positions
    went: Positions
    changed_before: Positions
    changed_after: Positions


@dataclass(frozen=True)
class _Matched:
    """Matches the rows of two tables by identity: pairs, and rows without a partner."""

    pairs: tuple[Positions, Positions]
    alone: tuple[Positions, Positions]

    def with_values(
        self, one: list[pa.Array], other: list[pa.Array], has_one: Flags, has_other: Flags
    ) -> _Found:
        """The same for rows with values; rows without a value do not belong to the state."""
        left, right = self.pairs
        there, then = has_one[left], has_other[right]
        both = there & then
        differs = both.copy()
        if one and other:
            at = np.flatnonzero(both)
            same = rows_equal(
                [column.take(pa.array(left[at])) for column in one],
                [column.take(pa.array(right[at])) for column in other],
            )
            differs[at] = ~same
        else:
            differs[:] = False
        went = np.concatenate([self.alone[0][has_one[self.alone[0]]], left[there & ~then]])
        appeared = np.concatenate([self.alone[1][has_other[self.alone[1]]], right[then & ~there]])
        return _Found(int(has_one.sum()), int(has_other.sum()), appeared, went, left[differs], right[differs])


def _matched(before: pa.Table, after: pa.Table, identity: int) -> _Matched:
    both = pa.concat_tables([_identity(table, identity) for table in (before, after)]).combine_chunks()
    columns = [_one_array(column) for column in both.columns]
    order, starts = equal_rows([columns[0].to_numpy(), columns[1].to_numpy()], columns[2:])
    pairs = np.diff(starts) > 1
    first, second = order[starts[:-1][pairs]], order[starts[:-1][pairs] + 1]
    lone = order[starts[:-1][~pairs]]
    size = len(before)
    return _Matched((first, second - size), (lone[lone < size], lone[lone >= size] - size))


def _identity(table: pa.Table, columns: int) -> pa.Table:
    """By position: two columns may have one name. Named the same on both sides."""
    found = table.select(list(range(columns)))
    return found.rename_columns([str(at) for at in range(columns)])


def _schema(view: View) -> pa.Schema:
    stored = [pa.field(f"__identity_{one.name}", one.type) for one in view.table.identity]
    numbers = [pa.field("__hash", pa.int64()), pa.field("__order", pa.int64())]
    parts = [pa.field(_PART + one.name, one.type) for one in _parts(view)]
    return pa.schema([*numbers, *stored, *view.schema, *parts])


def _parts(view: View) -> list[pa.Field]:
    return [part for one in view.value for part in one.parts]


def _comparable(name: str, column: pa.Array) -> pa.Array:
    """A part of an aggregate, so that equal ones are the same: the values of a set may have come in any order."""
    whose = aggregate_of(name)
    is_set = whose is not None and whose[1] is Kind.COUNT_DISTINCT and pa.types.is_list(column.type)
    return in_order(column) if is_set else column


def _compared(shown: Shown) -> list[str]:
    """The columns in which rows are compared."""
    return [_PART + part.name for part in shown.parts] or [shown.name]


def _types(view: View) -> dict[str, str]:
    stored = {one.name: spark_type(one.type) for one in view.table.identity}
    return stored | {one.name: _type(one) for one in view.columns}


def _type(shown: Shown) -> str:
    kind = spark_type(shown.type)
    parts = ", ".join(f"{part.name} {spark_type(part.type)}" for part in shown.parts)
    return f"{kind} (stored as {parts})" if parts else kind


def _values(table: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    return [_one_array(table.column(name)) for name in names if name in table.column_names]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _rows(table: pa.Table, at: Positions, columns: Sequence[str]) -> list[Row]:
    names = [name for name in columns if name in table.column_names]
    rows: list[Row] = table.select(names).take(pa.array(at)).to_pylist()
    return rows


def _parts_of(table: pa.Table, at: Positions, parts: Sequence[str]) -> list[Row]:
    """The parts of aggregates, by their own names."""
    if not parts:
        return [{} for _ in at]
    found = _rows(table, at, [_PART + part for part in parts])
    return [{name.removeprefix(_PART): value for name, value in row.items()} for row in found]
