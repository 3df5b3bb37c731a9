"""Joins of two inputs in a cluster of tests: their columns, rows and operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from builders.operator_cluster import BuiltIn
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.join import interval
from penstock.operators.join.input_rows import InputColumns
from penstock.operators.join.spec import JoinSpec
from penstock.operators.process.user_code import Context
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from penstock.state.handle import Due

LEFT = arrow_schema("l long, key string, l_at timestamp")


RIGHT = arrow_schema("r_at timestamp_ntz, id string, r long")


TRAVEL = pa.schema(
    [("k", pa.string()), ("side", pa.string()), ("key", pa.string()), ("at", pa.int64()), ("n", pa.int64())]
)


Row = tuple[str, str | None, int, int]
"""Which input, key, event time, number."""


def left_input() -> InputColumns:
    return InputColumns(LEFT, ("key",), TimeColumn("l_at"))


def right_input() -> InputColumns:
    return InputColumns(RIGHT, ("id",), TimeColumn("r_at"))


class Join(BuiltIn):
    """The operator; late rows are put aside."""

    uses_time = True

    def __init__(self, spec: JoinSpec) -> None:
        self.spec = spec
        self.late: list[int] = []
        self._due = Due()

    def layout(self, key: pa.Schema) -> StateLayout:
        return self.spec.layout()

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        raise NotImplementedError

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        sides = {}
        for side, names, schema in (("left", ("n", "key", "at"), LEFT), ("right", ("at", "key", "n"), RIGHT)):
            own = rows.filter(pa.array([one == side for one in rows.column("side").to_pylist()], pa.bool_()))
            columns = [own.column(name).cast(f.type) for name, f in zip(names, schema, strict=True)]
            table = pa.table(columns, schema=schema)
            sides[side] = table.append_column("__sort_key", own.column("__sort_key"))
        joined = interval.run_join(self.spec, sides["left"], sides["right"], state, clock, operator="op")
        self.late += joined.late_left.column("l").to_pylist() + joined.late_right.column("r").to_pylist()
        self._due = joined.due
        return joined.results

    def due(self, state: OpenState, clock: OperatorClock) -> Due:
        return self._due


def table(rows: list[Row]) -> pa.Table:
    columns = [
        [row[1] or "null" for row in rows],
        *([row[at] for row in rows] for at in range(4)),
    ]
    return pa.table([pa.array(one, f.type) for one, f in zip(columns, TRAVEL, strict=True)], schema=TRAVEL)


def micros(moment: Any) -> int:
    return round(moment.timestamp() * 1_000_000)


def shown(spec: JoinSpec, rows: list[dict[str, Any]]) -> Counter[tuple[int | None, int | None, int | None]]:
    for row in rows:
        if row["r"] is None:
            assert row["r_at"] is None
        if row["l"] is None:
            assert row["l_at"] is None
    start = (lambda row: micros(row["window_start"])) if spec.windows else (lambda row: None)
    return Counter((row["l"], row["r"], start(row)) for row in rows)
