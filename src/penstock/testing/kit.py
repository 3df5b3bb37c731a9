"""`harness` and `run`: user code under test, as a job would declare it. No Spark."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, repeat
from random import Random
from typing import TYPE_CHECKING, Any, TypedDict, cast

import pyarrow as pa

from penstock.config import Duration, EventTime, OnBadRecord, whole_number
from penstock.config import on_bad_record as checked_policy
from penstock.errors import ConfigError
from penstock.graph import Graph, TimeSettings
from penstock.operators.inputs import check_time_column, no_timestamp
from penstock.operators.process.operator import OwnCode
from penstock.operators.values.row_order import OrderBy
from penstock.operators.window.base import WindowProcess
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateBackend
from penstock.state.ddl import arrow_schema, arrow_type, schema_ddl, spark_type
from penstock.testing.declared import Input, RowsGiven, declared, parsed_moment
from penstock.testing.operator_harness import Harness
from penstock.windows import Windows
from penstock.wording import counted

if TYPE_CHECKING:
    from typing import Unpack

    from penstock.state.ddl import Columns

AnyOwnCode = OwnCode | WindowProcess
Keys = str | tuple[str, ...] | list[str]
MAX_PARALLELISM = 128
FIRST_NOW = "2026-01-01 00:00"
"""The initial time of the virtual clock, unless the test sets it."""
_MOST_FAILURES, _FAILURES_A_BATCH, _CHECKPOINTS_A_BATCH = 3, 0.3, 0.4
"""Of a run with a seed."""


class Options(TypedDict, total=False):
    """The options of `harness` and `run` besides the operator, its rows and its columns."""

    order_by: OrderBy
    event_time: str | EventTime | None
    window: Windows | None
    lateness: Duration
    right_key: Keys
    right_schema: Columns | pa.Schema | None
    right_order_by: OrderBy
    right_event_time: str | EventTime | None
    broadcast_schema: Columns | pa.Schema | None
    broadcast_order_by: OrderBy
    on_bad_record: str
    uid: str
    backend: str | StateBackend
    parallelism: int
    now: datetime | str | None


def harness(
    operator: AnyOwnCode,
    *,
    schema: Columns,
    input_schema: Columns | pa.Schema,
    key: Keys = (),
    order_by: OrderBy = (),
    event_time: str | EventTime | None = None,
    window: Windows | None = None,
    lateness: Duration = "0s",
    right_key: Keys = (),
    right_schema: Columns | pa.Schema | None = None,
    right_order_by: OrderBy = (),
    right_event_time: str | EventTime | None = None,
    broadcast_schema: Columns | pa.Schema | None = None,
    broadcast_order_by: OrderBy = (),
    on_bad_record: str = "fail",
    uid: str = "operator",
    backend: str | StateBackend = "memory",
    parallelism: int = 1,
    now: datetime | str | None = None,
) -> Harness:
    """An operator for a test that sends it rows step by step, without Spark. It refuses what a job refuses, with the same message.

    `schema`, `order_by`, `right_order_by`, `uid`: as in `process`. `key`: as in `key_by`; none for a `Process`.
    `input_schema`: the columns of the rows, as DDL, a `StructType`, a list or an Arrow schema.
    `event_time`: as in `job.read`, for an input of one partition. `window` and `lateness`: as in `window`, for a `WindowProcess`.
    `right_key`, `right_schema`, `right_event_time`: the second stream of a `KeyedCoProcess`.
    `broadcast_schema`, `broadcast_order_by`: the broadcast stream.
    `on_bad_record`: with "skip", bad rows are in `rejected`. `now`: the initial time of the virtual clock; without it, event times
    ahead of the clock are accepted.
    """
    policy = checked_policy(on_bad_record)
    left = _input("rows", input_schema, key, event_time, limited=now is not None)
    right = (
        None
        if right_schema is None
        else _input("right rows", right_schema, right_key, right_event_time, limited=now is not None)
    )
    broadcast = (
        None
        if broadcast_schema is None
        else _input("broadcast rows", broadcast_schema, (), None, limited=False)
    )

    def draw(graph: Graph) -> object:
        options: dict[str, Any] = {"schema": schema, "uid": uid, "order_by": order_by}
        stream: Any = left.keyed(graph) if left.keys else left.stream(graph)
        if window is not None or isinstance(operator, WindowProcess):
            stream = stream.window(window, lateness=lateness)
        elif right is not None:
            stream = stream.connect(right.keyed(graph) if right.keys else right.stream(graph))
            options["right_order_by"] = right_order_by
        elif broadcast is not None:
            stream = stream.connect(broadcast.stream(graph).broadcast(order_by=broadcast_order_by))
        return stream.process(operator, **options)

    found = declared(
        left,
        draw,
        right=right,
        broadcast=broadcast,
        on_bad_record=policy if policy is OnBadRecord.FAIL else OnBadRecord.KEEP,
        max_parallelism=MAX_PARALLELISM,
    )
    return Harness(
        found,
        backend=backend if isinstance(backend, StateBackend) else backend_named(backend),
        parallelism=parallelism,
        now=parsed_moment(now or FIRST_NOW, "now"),
    )


def run(
    operator: AnyOwnCode,
    rows: RowsGiven,
    *,
    schema: Columns,
    input_schema: Columns | pa.Schema | None = None,
    key: Keys = (),
    right: RowsGiven = (),
    broadcast: RowsGiven = (),
    batches: int | Iterable[int] | None = None,
    checkpoint_every: int = 1,
    fail_after: int | Collection[int] = (),
    seed: int | None = None,
    drain: bool = False,
    **options: Unpack[Options],
) -> Harness:
    """Process all rows, in batches cut anywhere, with failures in between; returns the `Harness` with the results.

    `input_schema`: not needed for an Arrow table. All other arguments that are not named here are those of `harness`.
    `batches`: how many rows a batch takes from each input: a number, or a number for each batch. The last batch takes the rest.
    `fail_after`: the numbers of batches, counted from 1, after which the run fails before their checkpoint is complete. Rows since the last
    checkpoint are then read again, in batches of the sizes that come next. `checkpoint_every`: batches between two checkpoints.
    `seed`: draws batches, checkpoints and up to three failures. The results of correct code are the same for every seed.
    `drain`: end the input after the last row.
    """
    if input_schema is None and isinstance(rows, pa.Table):
        input_schema = rows.schema
    if input_schema is None:
        raise ConfigError(
            "run(...): rows that are no Arrow table need input_schema, the columns of the rows, such as 'user string, at timestamp'"
        )
    if isinstance(right, pa.Table):
        options.setdefault("right_schema", right.schema)
    if isinstance(broadcast, pa.Table):
        options.setdefault("broadcast_schema", broadcast.schema)
    test = harness(operator, schema=schema, input_schema=input_schema, key=key, **options)
    failing = {fail_after} if isinstance(fail_after, int) else set(fail_after)
    if seed is not None and (failing or batches is not None):
        raise ConfigError(
            "run(...): seed draws batches and failures, so it excludes batches= and fail_after="
        )
    cuts = _planned_cuts(batches, checkpoint_every, failing) if seed is None else _drawn_cuts(Random(seed))  # noqa: S311 - a test
    made = _read(test, [_sliceable(given) for given in (rows, right, broadcast)], cuts)
    if failing and max(failing) > made:
        raise ConfigError(
            f"run(...): fail_after={fail_after!r}, but the run has only {counted(made, 'batch', 'batches')}"
        )
    if drain:
        test.drain()
    return test


# ── batches and failures ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Cut:
    """One batch: how many rows it takes from each input, and what happens after it."""

    sizes: tuple[int, int, int]
    fails: bool = False
    completes: bool = False
    """Whether its checkpoint is complete."""


def _read(test: Harness, inputs: Sequence[Any], cuts: Iterator[_Cut]) -> int:
    """Give all rows to the test; returns the number of batches. After a failure the rows since the last checkpoint are read again."""
    at = saved = (0, 0, 0)
    made = 0
    while any(start < len(given) for start, given in zip(at, inputs, strict=True)):
        cut = next(cuts)
        made += 1
        ends = tuple(start + size for start, size in zip(at, cut.sizes, strict=True))
        rows, right, broadcast = (
            given[start:end] for given, start, end in zip(inputs, at, ends, strict=True)
        )
        test.batch(rows, right=right, broadcast=broadcast)
        at = cast("tuple[int, int, int]", ends)
        if cut.fails:
            test.fail(replay=False)
            at = saved
        elif cut.completes:
            test.checkpoint()
            saved = at
    return made


def _planned_cuts(
    batches: int | Iterable[int] | None, checkpoint_every: int, failing: Collection[int]
) -> Iterator[_Cut]:
    whole_number("checkpoint_every", checkpoint_every, minimum=1)
    given = () if batches is None else repeat(batches) if isinstance(batches, int) else batches
    sizes = chain((whole_number("batches", one, minimum=1) for one in given), repeat(sys.maxsize))
    for number, size in enumerate(sizes, 1):
        yield _Cut((size, size, size), fails=number in failing, completes=number % checkpoint_every == 0)


def _drawn_cuts(random: Random) -> Iterator[_Cut]:
    failures = 0
    while True:
        most = random.choice((1, 2, 5, 20))
        left, right, broadcast = (random.randint(0, most) for _ in range(3))
        fails = failures < _MOST_FAILURES and random.random() < _FAILURES_A_BATCH
        failures += fails
        yield _Cut((left, right, broadcast), fails, completes=random.random() < _CHECKPOINTS_A_BATCH)


def _sliceable(rows: RowsGiven) -> Any:
    """An Arrow table can be cut like a list."""
    return rows if isinstance(rows, pa.Table) else list(rows)


# ── inputs ─────────────────────────────────────────────────────────────────────────────────────────


def _input(
    uid: str, columns: Columns | pa.Schema, key: Keys, event_time: str | EventTime | None, *, limited: bool
) -> Input:
    """A stream with its columns; `limited`: whether event times ahead of the clock are rejected."""
    schema = _schema(columns)
    options = EventTime(event_time) if isinstance(event_time, str) else event_time
    if options is None:
        return Input(uid, schema, _keys(key))
    check_time_column(uid, options.column, schema.names)
    kind = schema.field(options.column).type
    if not pa.types.is_timestamp(kind):
        raise no_timestamp(uid, options.column, spark_type(kind))
    settings = TimeSettings.of(options, (), in_positions=False)
    return Input(uid, schema, _keys(key), settings if limited else replace(settings, ahead_us=None))


def _keys(key: Keys) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _schema(columns: Columns | pa.Schema) -> pa.Schema:
    """Columns of the types that Spark has."""
    if not isinstance(columns, pa.Schema):
        return arrow_schema(schema_ddl(columns))
    return pa.schema([pa.field(one.name, arrow_type(spark_type(one.type))) for one in columns])
