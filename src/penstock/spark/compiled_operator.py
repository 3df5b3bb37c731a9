"""One operator with its types, and from what it is compiled. Driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from penstock.config import OnBadRecord
from penstock.errors import InternalError
from penstock.graph import (
    Graph,
    Keyed,
    Node,
)
from penstock.operators.aggregates import AggregateSpec
from penstock.operators.dedupe import DedupeSpec
from penstock.operators.everything import EVERYTHING
from penstock.operators.outputs import BAD
from penstock.operators.top_rows import TopSpec
from penstock.spark.broadcast import BroadcastSide
from penstock.spark.dead_letters import LETTERS
from penstock.spark.distinct_values import DistinctValues
from penstock.spark.joins import CompiledJoin, CompiledLookup
from penstock.spark.key_columns import check_keys, float_keys, with_key
from penstock.spark.operator_times import OperatorTimes
from penstock.spark.second_input import SecondColumns
from penstock.spark.tagged_rows import Beside
from penstock.spark.versions import arrow_type
from penstock.spark.windows import CompiledWindow
from penstock.state.backends.base import StateLayout

_P = TypeVar("_P")


@dataclass(frozen=True)
class CompiledOperator:
    """A keyed operator with its types."""

    node: Keyed
    layout: StateLayout
    result: StructType
    on_bad_record: OnBadRecord
    float_keys: tuple[str, ...] = ()
    specs: tuple[AggregateSpec, ...] = ()
    partials: tuple[Column, ...] = ()
    distinct: tuple[DistinctValues, ...] = ()
    beside: Beside = field(default_factory=dict)
    """What its task gives beside the results: dead letters and side outputs that somebody wants."""
    sides: tuple[str, ...] = ()
    """The side outputs among them."""
    broadcast: BroadcastSide | None = None
    top: TopSpec | None = None
    window: CompiledWindow | None = None
    dedupe: DedupeSpec | None = None
    second: SecondColumns | None = None
    """The columns of its second input."""
    join: CompiledJoin | None = None
    lookup: CompiledLookup | None = None
    late: pa.Schema | None = None
    """The columns of its late rows, where somebody reads them."""
    late_right: pa.Schema | None = None
    """The same for those of its second input."""
    times: OperatorTimes = field(default_factory=OperatorTimes)
    rows: StructType = field(default_factory=StructType)
    """The columns of its input."""

    @property
    def top_spec(self) -> TopSpec:
        """That of a `Top`."""
        if self.top is None:
            raise InternalError(f"operator {self.node.uid!r} is no top()")
        return self.top

    @property
    def compiled_window(self) -> CompiledWindow:
        """That of a `Window`."""
        if self.window is None:
            raise InternalError(f"operator {self.node.uid!r} is no window")
        return self.window


def known(part: _P | None) -> _P:
    """A part of a compiled operator that operators of its kind have."""
    if part is None:
        raise InternalError("an operator was compiled as one of another kind")
    return part


@dataclass(frozen=True)
class OperatorInput:
    """What is known of an operator before it is compiled: the columns of its rows, their key, and what becomes of bad ones."""

    graph: Graph
    frame_of: Callable[[Node], DataFrame]
    """An empty DataFrame with the columns of any stream before it."""
    frame: DataFrame
    key: pa.Schema
    float_keys: tuple[str, ...]
    on_bad_record: OnBadRecord

    @classmethod
    def of(cls, node: Keyed, graph: Graph, frame_of: Callable[[Node], DataFrame]) -> OperatorInput:
        """Raises `ConfigError` for keys that cannot be."""
        frame = with_key(frame_of(node.upstream), node.keys)
        if node.keys:
            check_keys(frame, node.keys, node.uid)
        key = pa.schema([pa.field(name, arrow_type(frame.schema[name].dataType)) for name in node.keys])
        return cls(graph, frame_of, frame, key, float_keys(frame, node.keys), graph.policy(node))

    @property
    def letters(self) -> Beside:
        """The dead letters, where somebody wants them."""
        return {BAD: LETTERS} if self.on_bad_record is OnBadRecord.KEEP else {}

    def operator(self, node: Keyed, layout: StateLayout, result: StructType) -> CompiledOperator:
        """What all kinds have; the caller adds what its own has."""
        return CompiledOperator(
            node,
            layout,
            result,
            self.on_bad_record,
            self.float_keys,
            beside=self.letters,
            rows=self.frame.drop(EVERYTHING).schema,
        )
