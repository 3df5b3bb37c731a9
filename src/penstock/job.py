"""What the user builds: read -> key_by -> process | aggregate -> transform -> write_to. Driver.

Everything that can be checked without data is checked here or in `start`, before Spark runs anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import Checkpointing, Duration, OnBadRecord, seconds, whole_number
from penstock.config import on_bad_record as checked_policy
from penstock.errors import ConfigError, PenstockError, shown_alone
from penstock.graph import (
    Aggregate,
    Broadcast,
    Graph,
    Node,
    Operator,
    Output,
    Process,
    Side,
    Source,
    Transform,
    Union,
    parse_orders,
)
from penstock.guarantee import Guarantee
from penstock.ids import checked_name
from penstock.loading import refuse_while_loading
from penstock.operators.process import Process as UnkeyedProcess
from penstock.operators.side_outputs import checked_side
from penstock.own_code import OrderBy, add_process
from penstock.recovery.restart import RestartStrategy, exponential_delay
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateBackend
from penstock.state.keys import MAX_KEY_GROUPS
from penstock.storage import Storage, open_job_storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.spark.handle import JobHandle, Status
    from penstock.state.declared import Columns

DEFAULT_MAX_PARALLELISM = 128


class Job:
    """A streaming job with checkpoints. The name and the storage are its identity: the same two go on where it stopped.

    `storage` is a path or URI below which the job gets a folder of its own, or a `Storage` whose root is the job's.
    `on_bad_record`: what becomes of a row that an operator or sink cannot take, "fail" or "skip"; each may say otherwise.
    """

    def __init__(
        self,
        name: str,
        *,
        storage: str | Path | Storage,
        backend: str | StateBackend = "filesystem",
        parallelism: int = 2,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        checkpoint: Checkpointing | None = None,
        restart: RestartStrategy | None = None,
        trigger: Duration | None = None,
        local_dir: str | Path | None = None,
        local_recovery: bool = True,
        on_bad_record: OnBadRecord | str = "fail",
    ) -> None:
        self.name = checked_name("job name", name)
        self.storage = storage if isinstance(storage, Storage) else open_job_storage(storage, name)
        self.backend = backend if isinstance(backend, StateBackend) else backend_named(backend)
        self.max_parallelism = whole_number(
            "max_parallelism", max_parallelism, minimum=1, maximum=MAX_KEY_GROUPS
        )
        self.parallelism = whole_number("parallelism", parallelism, minimum=1)
        if parallelism > max_parallelism:
            raise ConfigError(
                f"parallelism={parallelism} is more than max_parallelism={max_parallelism}: there are only that many key groups to "
                "share out; lower parallelism (max_parallelism can be chosen only before the first run)",
                parallelism=parallelism,
                max_parallelism=max_parallelism,
            )
        self.checkpoint = checkpoint or Checkpointing()
        self.restart = restart or exponential_delay()
        self.trigger_s = None if trigger is None else seconds("trigger", trigger)
        self.local_dir = None if local_dir is None else Path(local_dir)
        self.local_recovery = local_recovery
        self.graph = Graph(on_bad_record=checked_policy(on_bad_record))

    def read(self, frame: DataFrame, *, uid: str, replayable: bool | None = None) -> Stream:
        """Add a source: any streaming DataFrame, with whatever stateless SQL is already in it.

        `replayable` states whether the source can deliver the same records again; Penstock knows it of Spark's own sources.
        """
        if not getattr(frame, "isStreaming", False):
            raise ConfigError(f"source {uid!r} is not a streaming DataFrame: use spark.readStream", uid=uid)
        source = Source(self.graph.new_uid("source", uid), frame, replayable)
        self.graph.sources.append(source)
        return Stream(self, source)

    def guarantee(self) -> Guarantee:
        """The end-to-end guarantee of the job as it is now, and what limits it.

        Raises `ConfigError` for a mode that cannot be kept, and for a source that `start` would refuse.
        """
        from penstock.spark.inspection import guarantee_of

        return guarantee_of(self)

    def start(
        self,
        *,
        available_now: bool = False,
        restore: int | None = None,
        takeover: bool = False,
        drop_state: tuple[str, ...] = (),
    ) -> JobHandle:
        """Start the job in the background, from its newest checkpoint if it has one.

        `available_now`: end when the input known now is done. `restore`: go on from this retained checkpoint instead of the newest.
        `takeover`: fence off a run that seems to be alive. `drop_state`: uids of operators whose stored state may be lost.
        """
        refuse_while_loading("start()")
        from penstock.spark.handle import JobHandle, StartOptions

        if restore is not None:
            whole_number("restore", restore, minimum=0)
        dropped = _checked_uids(drop_state)
        try:
            return JobHandle.start(self, StartOptions(available_now, restore, takeover, dropped))
        except PenstockError as error:
            failure = shown_alone(error)
        raise failure

    def run(
        self,
        *,
        available_now: bool = False,
        restore: int | None = None,
        takeover: bool = False,
        drop_state: tuple[str, ...] = (),
    ) -> Status:
        """`start`, show how it goes, and wait for the end; returns how it came. Arguments as for `start`.

        Ctrl-C or SIGTERM stops the job with a last checkpoint, and `run` returns. A second one ends it now, without: `run` then
        raises `KeyboardInterrupt`, or `SystemExit` for SIGTERM. Signals reach Python's main thread only: called in another, it takes none.
        """
        refuse_while_loading("run()")
        from penstock.spark.foreground import in_foreground

        def start() -> JobHandle:
            return self.start(
                available_now=available_now, restore=restore, takeover=takeover, drop_state=drop_state
            )

        try:
            return in_foreground(self, start).status
        except (PenstockError, KeyboardInterrupt) as error:
            failure = shown_alone(error)
        raise failure


class Stream:
    """Rows on their way: what `read`, `transform`, `aggregate` and `process` return."""

    def __init__(self, job: Job, node: Node) -> None:
        self._job = job
        self._node = node

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Apply any DataFrame function to each batch: SQL, joins with static tables, repartitioning.

        It sees one batch at a time, so an aggregate in it is an aggregate of that batch. It is called once on an empty DataFrame at
        the start, to learn the columns, and then for every batch.
        """
        if not callable(function):
            raise ConfigError(f"transform({function!r}): it takes a function from DataFrame to DataFrame")
        return Stream(self._job, Transform(self._node, function))

    def union(self, other: Stream) -> Stream:
        """This stream and another with the same columns, as one."""
        if other._job is not self._job:
            raise ConfigError("union: both streams must belong to the same job")
        return Stream(self._job, Union(self._node, other._node))

    def key_by(self, *columns: str) -> KeyedStream:
        """Say what belongs together: rows with equal values in these columns share state."""
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise ConfigError(f"key_by{columns!r}: it takes the names of one or more columns")
        if len(set(columns)) != len(columns):
            raise ConfigError(f"key_by{columns!r}: a column is named twice")
        return KeyedStream(self._job, self._node, columns)

    def process(
        self, operator: UnkeyedProcess, *, schema: Columns, uid: str, order_by: OrderBy = ()
    ) -> Stream:
        """Run own Python code without a key: a `Process`, which sees the rows of a subtask and has lists of its own.

        Rows of one partition of the input go to one subtask, and keep their order. `schema` and `order_by` are as in `process` behind
        `key_by`. What `process` raises ends the run.
        """
        node = add_process(
            self._job.graph, self._node, (), None, operator, schema=schema, uid=uid, order_by=order_by
        )
        return Stream(self._job, node)

    def broadcast(self, *, order_by: OrderBy = ()) -> BroadcastStream:
        """A small stream, such as rules or rates, of which every subtask of an operator is to see all rows: for `connect`.

        `order_by`: columns ('at', 'at asc' or 'at desc') that put the rows of a batch in order. Without it every subtask sees them in
        the same order, but in no promised one.
        """
        return BroadcastStream(self._job, self._node, order_by)

    def connect(self, other: BroadcastStream) -> ConnectedStream:
        """Let the operator that comes next see a broadcast stream, too: `payments.connect(rules.broadcast()).process(...)`."""
        return ConnectedStream(self._job, self._node, (), other)

    def bad_records(self) -> Stream:
        """The rows that this operator could not take, which then do not end the job: a stream of `operator, reason, key, row, batch`.

        Write it to any sink: it is part of the same checkpoint. `row` and `key` are JSON.
        """
        if not isinstance(self._node, Aggregate | Process):
            raise ConfigError(
                "bad_records(): ask it of what process, aggregate or write_to returned; other parts of a stream have no bad rows"
            )
        if not self._node.keys:
            raise ConfigError(
                f"bad_records(): operator {self._node.uid!r} has no key, and no bad rows either; what a Process raises ends the run",
                uid=self._node.uid,
            )
        return Stream(self._job, self._job.graph.bad_records(self._node))

    def side(self, name: str) -> Stream:
        """The rows that this operator emits to a side output: a stream with the columns that its class declares.

        It is part of the same batch and checkpoint as the results, and may have several readers. What nobody reads is dropped.
        """
        if not isinstance(self._node, Process):
            raise ConfigError(
                f"side({name!r}): ask it of what process returned; other parts of a stream have no side outputs"
            )
        node = self._node
        return Stream(self._job, Side(node, checked_side(node.operator, name, node.uid)))

    def write_to(
        self, sink: TwoPhaseCommitSink, *, uid: str, on_bad_record: OnBadRecord | str | None = None
    ) -> Written:
        """End the stream in a sink. A stream may have several. `on_bad_record`: "fail" or "skip" rows that the sink refuses."""
        if not isinstance(sink, TwoPhaseCommitSink):
            raise ConfigError(
                f"write_to({sink!r}): it takes a sink, such as penstock.sinks.Files(...)", uid=uid
            )
        graph = self._job.graph
        output = Output(graph.new_uid("sink", uid), self._node, sink)
        _say(graph, uid, on_bad_record)
        graph.outputs.append(output)
        return Written(self._job, output)


class Written:
    """A stream that ends in a sink: what `write_to` returns."""

    def __init__(self, job: Job, output: Output) -> None:
        self._job = job
        self._output = output

    def bad_records(self) -> Stream:
        """The rows that the sink refuses, which then do not end the job: see `Stream.bad_records`."""
        return Stream(self._job, self._job.graph.bad_records(self._output))


class _WithOwnCode:
    """What own code can be put behind: a stream with a key, or one beside which there is a broadcast stream."""

    def __init__(self, job: Job, node: Node, keys: tuple[str, ...]) -> None:
        self._job = job
        self._node = node
        self._keys = keys
        self._broadcast: Broadcast | None = None

    def process(
        self,
        operator: Operator,
        *,
        schema: Columns,
        uid: str,
        order_by: OrderBy = (),
        on_bad_record: OnBadRecord | str | None = None,
    ) -> Stream:
        """Run own Python code with state: a `KeyedProcess` key by key, a `BatchProcess` in columns; without a key a `Process`.

        `schema`: the columns of its results, as DDL, a `StructType` or a list such as ["app string", ("n", "long")].
        `order_by`: columns ('at', 'at asc' or 'at desc') that put the rows of a key in order within a batch.
        `on_bad_record`: "fail", or "skip" rows without a key and rows of a key for which `process` raises.
        Behind `connect`, its `process_broadcast` is given the rows of the broadcast stream, in every batch before all others.
        """
        graph = self._job.graph
        if on_bad_record is not None and not self._keys:
            raise ConfigError(
                f"operator {uid!r}: on_bad_record={on_bad_record!r} is for operators with a key; what a Process raises ends the run",
                uid=uid,
            )
        node = add_process(
            graph,
            self._node,
            self._keys,
            self._broadcast,
            operator,
            schema=schema,
            uid=uid,
            order_by=order_by,
        )
        _say(graph, uid, on_bad_record)
        return Stream(self._job, node)


class KeyedStream(_WithOwnCode):
    """A stream whose rows are grouped by key."""

    def aggregate(
        self, *columns: Column, uid: str, on_bad_record: OnBadRecord | str | None = None, **named: Column
    ) -> Stream:
        """Keep SQL aggregates per key over everything so far; emits the new values of every key that changed in a batch.

        Spark computes the aggregate of the batch, Penstock merges it into the state: count, count_if, sum, min, max, avg, bool_and,
        bool_or, bit_and, bit_or, bit_xor. Anything that cannot be merged exactly is refused by name.
        A column is named by its argument, `pv=F.count("*")`, or by its alias, `F.count("*").alias("page views")`: so it may have any name.
        `on_bad_record`: "fail" or "skip" rows whose key is null.
        """
        from penstock.spark.aggregate_names import named_aggregates

        aggregates = named_aggregates(columns, named, keys=self._keys, uid=uid)
        node = Aggregate(self._job.graph.new_uid("operator", uid), self._node, self._keys, aggregates)
        _say(self._job.graph, uid, on_bad_record)
        self._job.graph.operators.append(node)
        return Stream(self._job, node)

    def connect(self, other: BroadcastStream) -> ConnectedStream:
        """Let the operator that comes next see a broadcast stream, too: `payments.key_by("card").connect(rules.broadcast())`."""
        return ConnectedStream(self._job, self._node, self._keys, other)


class ConnectedStream(_WithOwnCode):
    """A stream, with or without a key, whose operator sees a broadcast stream beside it: what `connect` returns."""

    def __init__(self, job: Job, node: Node, keys: tuple[str, ...], beside: BroadcastStream) -> None:
        super().__init__(job, node, keys)
        self._broadcast = _connected(job, beside)


class BroadcastStream:
    """A small stream of which every subtask sees all rows: what `broadcast` returns, and `connect` takes."""

    def __init__(self, job: Job, node: Node, order_by: OrderBy) -> None:
        self._job = job
        self._broadcast = Broadcast(node, parse_orders(order_by))


def _connected(job: Job, other: BroadcastStream) -> Broadcast:
    if not isinstance(other, BroadcastStream):
        raise ConfigError(f"connect({other!r}): it takes a broadcast stream, such as rules.broadcast()")
    if other._job is not job:  # noqa: SLF001 - they are made together
        raise ConfigError("connect: both streams must belong to the same job")
    return other._broadcast  # noqa: SLF001 - they are made together


def _say(graph: Graph, uid: str, on_bad_record: OnBadRecord | str | None) -> None:
    if on_bad_record is not None:
        graph.set_on_bad_record(uid, checked_policy(on_bad_record))


def _checked_uids(drop_state: object) -> tuple[str, ...]:
    uids = tuple(drop_state) if isinstance(drop_state, tuple | list | set | frozenset) else None
    if uids is None or not all(isinstance(uid, str) and uid for uid in uids):
        raise ConfigError(
            f"drop_state={drop_state!r} is not allowed: it takes uids of operators, such as drop_state=('views',)",
            drop_state=drop_state,
        )
    return uids
