"""`top`: keep the first rows of each key in an order.

`top_rows.py` has the two cases: every row counts, or each value of `of` counts once, with its newest row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.config import whole_number
from penstock.errors import ConfigError
from penstock.operators.base import Node, Operator, Spec, Task, TaskContext
from penstock.operators.grouping import Grouped, PieceLimits, group_rows, pieces
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.state.table_rows import PieceRows
from penstock.operators.top_rows import PLACE, ArrivedRows, Ranked, update_top, update_top_of_values
from penstock.operators.values.row_order import Order, OrderBy, parse_orders
from penstock.operators.views import StoredTable, TableView, plain
from penstock.state.backends.base import OpenState, StateLayout, TableLayout
from penstock.state.sizes import in_batches

MOST_ROWS = 10_000
"""The most rows that `top` keeps and emits for a key."""
RANK = pa.field("rank", pa.int32())
"""The column that results have after those of the stream."""
LIMITS = PieceLimits(bytes=256 << 20)


@dataclass(frozen=True, eq=False)
class Top(Operator):
    """The first `n` rows of each key in an order; with `of` each value of these columns counts once, with its newest row."""

    n: int
    by: tuple[Order, ...]
    of: tuple[str, ...]
    newest: tuple[Order, ...]

    @classmethod
    def checked(
        cls,
        uid: str,
        upstream: Node,
        keys: tuple[str, ...],
        n: int,
        *,
        by: OrderBy,
        of: str | Sequence[str],
        order_by: OrderBy,
    ) -> Top:
        """Check the arguments; raises a `ConfigError` that says what is wrong."""
        whole_number("n", n, minimum=1, maximum=MOST_ROWS)
        orders, values, newest = parse_orders(by, "by"), _names("of", of), parse_orders(order_by, "order_by")
        if not orders:
            raise ConfigError(
                f"top {uid!r}: by names no column; say which rows come first: by='amount desc'", uid=uid
            )
        if newest and not values:
            raise ConfigError(
                f"top {uid!r}: order_by says which row of a value is the newest, and there is no of=...; where every row counts, by "
                "decides",
                uid=uid,
            )
        shared = [name for name in values if name in keys]
        if shared:
            raise ConfigError(
                f"top {uid!r}: of names {shared[0]!r}, a key column: all rows of a key have the same value in it",
                uid=uid,
            )
        return cls(uid, upstream, keys, n, orders, values, newest)

    def describe(self) -> str:
        """The number of rows that it keeps of a key."""
        return f"top {self.n}"


def _names(argument: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(
            f"{argument}={given!r}: it takes the names of columns, each once", **{argument: given}
        )
    return names


@dataclass(frozen=True)
class TopSpec(Spec):
    """The options of `top`, and the columns of the stream. `of` and `newest` are empty where every row counts."""

    columns: pa.Schema
    keys: tuple[str, ...]
    n: int
    by: tuple[Order, ...]
    of: tuple[str, ...] = ()
    newest: tuple[Order, ...] = ()

    @property
    def output(self) -> pa.Schema:
        """The columns of the results."""
        return pa.schema([*self.columns, RANK])

    @property
    def kept(self) -> pa.Schema:
        """The columns of a row beside its key; those of `of` first."""
        others = [field for field in self.columns if field.name not in (*self.keys, *self.of)]
        return pa.schema([*self._fields(self.of), *others])

    @property
    def own_order(self) -> tuple[Order, ...]:
        """The order within a key, without key columns."""
        return tuple(order for order in self.by if order.column not in self.keys)

    def _fields(self, names: Sequence[str]) -> list[pa.Field]:
        return [self.columns.field(name) for name in names]

    def layout(self) -> StateLayout:
        """The tables of rows. The order is in their names, so that a checkpoint with rows of another order is refused by name."""
        key, kept = pa.schema(self._fields(self.keys)), list(self.kept)
        name = f"top {self.n} by {', '.join(map(str, self.by))}"
        if not self.of:
            return StateLayout(key, pa.schema([]), (TableLayout(name, pa.schema([*key, PLACE]), self.kept),))
        identity, value = pa.schema([*key, *kept[: len(self.of)]]), pa.schema(kept[len(self.of) :])
        names = (f"rows of {', '.join(self.of)}", f"{name} of {', '.join(self.of)}")
        return StateLayout(key, pa.schema([]), tuple(TableLayout(name, identity, value) for name in names))

    @classmethod
    def shown(cls, table: StoredTable) -> TableView | None:
        """The first rows, and with `of` all rows that count."""
        word = next((word for word in ("top", "rows") if table.name.startswith(f"{word} ")), None)
        if word is None:
            return None
        own = plain(field for field in table.own if field.name != PLACE.name)
        return TableView(word, "rows", own, table.value)

    def task(self, context: TaskContext) -> Task:
        """The work of one subtask."""
        return TopTask(context, self)


@dataclass
class TopTask(Task):
    """The first rows of each key."""

    spec: TopSpec

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """All first rows of the keys for which they have changed."""
        return {RESULTS: run_top(self.spec, rows.own, state)}


def run_top(spec: TopSpec, table: pa.Table, state: OpenState) -> list[pa.RecordBatch]:
    """Take the rows in; returns the first rows of every key for which they have changed."""
    results: list[pa.RecordBatch] = []
    for piece in pieces(group_rows(table, list(spec.keys)), LIMITS):
        for top in _update(spec, piece, state):
            results.extend(in_batches(_output(spec, top, piece)))
    return results


def _update(spec: TopSpec, piece: Grouped, state: OpenState) -> Iterator[Ranked]:
    new = ArrivedRows(spec, piece)
    tables = [PieceRows(state.table(one.name), one, piece.keys) for one in spec.layout().tables]
    if spec.of:
        every, first = tables
        return update_top_of_values(spec, every, first, new)
    (rows,) = tables
    return update_top(spec, rows, new, state.generation)


def _output(spec: TopSpec, top: Ranked, piece: Grouped) -> pa.Table:
    keys = piece.keys.columns.take(pa.array(top.rows.key_index))
    columns = {
        **dict(zip(keys.schema.names, keys.columns, strict=True)),
        **dict(zip(top.rows.table.column_names, top.rows.table.columns, strict=True)),
        RANK.name: pa.array((top.rank + 1).astype(np.int32)),
    }
    return pa.table([columns[name] for name in spec.output.names], schema=spec.output)
