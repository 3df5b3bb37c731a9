"""`lookup`: adds the latest row of the same key in another stream to each row. Driver and executors.

In every batch, the rows of the right input are written first; then the rows of the left input look up their keys. The last right row of a
key counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.operators.base import Node, Operator, SecondInput, Task, TaskContext
from penstock.operators.columns import as_batch, rows_at, widened
from penstock.operators.grouping import Piece, PieceLimits, pieces_with_state
from penstock.operators.inputs import TaskRows
from penstock.operators.join.input_rows import ROW, TwoInputSpec, both, grouped_inputs, parted_by_key
from penstock.operators.join.spec import How, On, key_pairs
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.state.ttl import TTL, TimeToLive, TouchTimes, time_to_live
from penstock.operators.values.row_order import OrderBy, parse_orders
from penstock.state.backends.base import OpenState, StateLayout, with_stamps
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import Measure
from penstock.state.sizes import PART_BYTES, Bytes, cut, in_batches, table_row_bytes

LIMITS = PieceLimits(bytes=256 << 20)


@dataclass(frozen=True, eq=False)
class Lookup(Operator):
    """Adds the latest row of the same key in another stream to each row."""

    right: SecondInput
    inner: bool
    ttl: TimeToLive | None = None

    may_reject_rows: ClassVar[bool] = False

    @classmethod
    def checked(
        cls,
        uid: str,
        left: Node,
        right: Node,
        *,
        on: On,
        how: str,
        order_by: OrderBy,
        ttl: TTL | None,
    ) -> Lookup:
        """Check the arguments; raises `ConfigError`."""
        keys, right_keys = key_pairs(on, uid)
        if how not in (How.INNER.value, How.LEFT.value):
            raise ConfigError(
                f"lookup {uid!r}: how={how!r}: rows of the right stream come out beside left ones only; choose 'left' or 'inner'",
                uid=uid,
            )
        lifetime = time_to_live(ttl)
        if lifetime is not None and (lifetime.renews or lifetime.lifetime().measure is not Measure.CLOCK):
            raise ConfigError(
                f"lookup {uid!r}: ttl={ttl!r}: a row of the right stream lives by the clock, from when it was written; give a duration, "
                "and nothing else",
                uid=uid,
            )
        second = SecondInput(right, right_keys, order_by=parse_orders(order_by, "order_by"))
        return cls(uid, left, keys, second, how == How.INNER.value, lifetime)

    @override
    def describe(self) -> str:
        return "lookup"

    @property
    @override
    def second_input(self) -> SecondInput | None:
        return self.right


@dataclass(frozen=True)
class LookupSpec(TwoInputSpec):
    """A lookup typed against its inputs. `inner` drops rows whose key is unknown."""

    inner: bool
    ttl: TimeToLive | None = None

    @override
    def layout(self) -> StateLayout:
        kept = self.right.kept
        lifetimes = () if self.ttl is None else (self.ttl.lifetime(*kept.names),)
        return StateLayout(self.key, with_stamps(kept, lifetimes), lifetimes=lifetimes)

    @override
    def task(self, context: TaskContext) -> Task:
        return LookupTask(context, self)


@dataclass
class LookupTask(Task):
    """Adds the latest right row of their key to left rows."""

    spec: LookupSpec

    takes_null_keys: ClassVar[bool] = True
    """A row without a key is not bad: null equals nothing, and so nothing is known of it."""

    @override
    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        return {RESULTS: run_lookup(self.spec, *both(rows), state)}


def run_lookup(spec: LookupSpec, left: pa.Table, right: pa.Table, state: OpenState) -> list[pa.RecordBatch]:
    """Write the right rows of a batch, then look up the keys of its left rows: columns in, columns out."""
    left, without_key = parted_by_key(widened(left).combine_chunks(), spec.left.keys)
    right = parted_by_key(widened(right).combine_chunks(), spec.right.keys)[0]
    results = list(_unknown(spec, without_key))
    if not left.num_rows + right.num_rows:
        return results
    grouped = grouped_inputs(spec.key, (left, spec.left.keys), (right, spec.right.keys))
    sizes = np.concatenate([table_row_bytes(left), table_row_bytes(right)])
    for piece in pieces_with_state(grouped, state, LIMITS, sizes[grouped.table.column(ROW).to_numpy()]):
        results += _looked_up(spec, piece, left, right, state, sizes=sizes)
    return results


def _looked_up(
    spec: LookupSpec, piece: Piece, left: pa.Table, right: pa.Table, state: OpenState, *, sizes: Bytes
) -> Iterator[pa.RecordBatch]:
    grouped, kept = piece.grouped, spec.right.kept
    at = grouped.table.column(ROW).to_numpy()
    last = at[grouped.starts[1:] - 1]
    told = np.flatnonzero(last >= left.num_rows)
    new = rows_at(right, last[told] - left.num_rows, kept)
    _write(spec, grouped.keys.take(told), new, state)
    key_index = np.repeat(np.arange(len(grouped.keys)), np.diff(grouped.starts))
    is_left = at < left.num_rows
    asking, of_key = at[is_left], key_index[is_left]
    where = np.where(piece.found, np.arange(len(grouped.keys)), -1)
    where[told] = len(grouped.keys) + np.arange(len(told))
    answers = pa.Table.from_batches([piece.stored.select(kept.names), new])
    found = where[of_key]
    if spec.inner:
        asking, found = asking[found >= 0], found[found >= 0]
    of_answers = np.append(table_row_bytes(answers), 0)  # nothing is the last one
    for start, stop in cut(sizes[asking] + of_answers[found], PART_BYTES):
        own = rows_at(left, asking[start:stop], spec.left.columns)
        answer = found[start:stop]
        beside = answers.take(pa.array(answer, mask=answer < 0)).combine_chunks()
        yield from pa.table([*own.columns, *beside.columns], schema=spec.output).to_batches()


def _write(spec: LookupSpec, keys: KeyBatch, new: pa.RecordBatch, state: OpenState) -> None:
    layout = spec.layout()
    touches = TouchTimes(state.now_us)
    stamps = [touches.column(lifetime, np.arange(new.num_rows)) for lifetime in layout.lifetimes]
    state.write(keys, pa.RecordBatch.from_arrays([*new.columns, *stamps], schema=layout.value))


def _unknown(spec: LookupSpec, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """The results of left rows without a key: null equals nothing."""
    if spec.inner or not rows.num_rows:
        return
    for part in in_batches(rows.select(spec.left.columns.names).combine_chunks()):
        own = as_batch(part, spec.left.columns)
        nothing = [pa.nulls(own.num_rows, field.type) for field in spec.right.kept]
        yield pa.RecordBatch.from_arrays([*own.columns, *nothing], schema=spec.output)
