"""The job as the user drew it: sources, operators, transforms, sinks. Pure; driver.

DataFrames and Columns are only passed through here: the spark package looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.config import FAIL, FOLLOW_CLOCK, Duration, EventTime, OnBadRecord, seconds
from penstock.errors import ConfigError, PenstockError
from penstock.ids import checked_name
from penstock.operators.base import (
    LEFT,
    Node,
    Operator,
)
from penstock.operators.event_time import ANY_TIME, TimeColumn, TimeLimits, widest
from penstock.places import AT, Place, calling_place
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.state.lifetimes import in_microseconds
from penstock.wording import with_article

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TimeSettings:
    """The event-time settings of a source: durations in microseconds."""

    column: str
    out_of_order_us: int
    """So much older than the newest row of its partition a row may be."""
    idle_after_us: int | None
    """A partition without rows for so long is not waited for; None: it always is."""
    ahead_us: int | None
    """An event time so far ahead of the clock is absurd, and does not move the watermark; None: none is."""
    partition: tuple[str, ...] | None = None
    """The columns that tell the partitions of the source apart; None: found out from the source, () for one watermark for all of it."""
    refuses_absurd: bool = False
    in_positions: bool = False
    """Whether the positions of the source name its partitions, so that one is known before it has rows."""
    follows_clock: bool = False
    """Whether event time goes on with the clock while all partitions are idle; otherwise it stays."""

    @classmethod
    def of(cls, options: EventTime, partition: tuple[str, ...], *, in_positions: bool) -> TimeSettings:
        """What the user wrote, for a source whose partitions these columns tell apart."""
        return cls(
            options.column,
            in_microseconds(seconds("out_of_order", options.out_of_order)),
            _or_none("idle_after", options.idle_after),
            _or_none("max_ahead", options.max_ahead),
            partition,
            options.bad_event_time == FAIL,
            in_positions,
            options.when_all_idle == FOLLOW_CLOCK,
        )


def _or_none(setting: str, value: Duration | None) -> int | None:
    return None if value is None else in_microseconds(seconds(setting, value))


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A streaming DataFrame. `replayable` overrides what Penstock finds out by itself."""

    uid: str
    frame: DataFrame
    replayable: bool | None
    event_time: TimeSettings | None = None

    @property
    def inputs(self) -> tuple[Node, ...]:
        """A source has no inputs: rows begin here."""
        return ()

    def row_time(self) -> TimeColumn | None:
        """The column that the user named."""
        return None if self.event_time is None else TimeColumn(self.event_time.column)

    def time_limits(self) -> TimeLimits | None:
        """What the user said about absurd times."""
        time = self.event_time
        return None if time is None else TimeLimits(time.ahead_us, time.refuses_absurd)

    are_results = False
    """No operator has made them."""


@dataclass(frozen=True, eq=False)
class Transform(Node):
    """Any function from DataFrame to DataFrame; it must not keep state of its own."""

    upstream: Node
    function: Callable[[DataFrame], DataFrame]
    place: Place | None = None
    """The line of the user's program that added it."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The stream that it transforms."""
        return (self.upstream,)

    def row_time(self) -> TimeColumn | None:
        """The time of the stream, whose column is expected to stay; `spark/event_times.py` checks that."""
        return self.upstream.row_time()

    def time_limits(self) -> TimeLimits | None:
        """The limits are those of the stream."""
        return self.upstream.time_limits()

    @property
    def are_results(self) -> bool:
        """As those of the stream are."""
        return self.upstream.are_results

    def revising(self) -> Operator | None:
        """The operator before it, whose results it transforms one by one."""
        return self.upstream.revising()


@dataclass(frozen=True, eq=False)
class Union(Node):
    """Two streams with the same columns, read as one."""

    left: Node
    right: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The rows of both streams come into it."""
        return (self.left, self.right)

    def row_time(self) -> TimeColumn | None:
        """The column of both. Raises `ConfigError` where they have different ones."""
        left, right = self.left.row_time(), self.right.row_time()
        if left is None or right is None:
            return left or right
        if (left.column, left.earlier_us) == (right.column, right.earlier_us):
            return left if left.of_results else right
        raise ConfigError(
            f"union: one stream has its event time in {left.column!r}, the other in {right.column!r}; say which column counts where it is "
            "used, such as window(..., event_time='at'), or give both the same name before the union",
            left=left.column,
            right=right.column,
        )

    def time_limits(self) -> TimeLimits | None:
        """The widest of both: after a union the source of a row is unknown. So rows are refused only where all sources refuse them.

        Each source also checks its own rows as it reads them (`spark/event_times.py`).
        """
        return widest([one for one in (self.left.time_limits(), self.right.time_limits()) if one is not None])

    @property
    def are_results(self) -> bool:
        """Some of them are, if those of one stream are."""
        return self.left.are_results or self.right.are_results

    def revising(self) -> Operator | None:
        """The first that is before one of its streams."""
        return self.left.revising() or self.right.revising()

    @property
    def parts(self) -> list[Node]:
        """The streams that meet in it and in the unions directly before it."""
        return [part for one in self.inputs for part in (one.parts if isinstance(one, Union) else [one])]


def streams_that_meet(node: Node) -> list[tuple[Node, TimeLimits]]:
    """Those of a union, however many, if they believe times up to different moments; otherwise the stream itself, alone."""
    whole = node.time_limits() or ANY_TIME
    every = node.parts if isinstance(node, Union) else [node]
    parts = [(part, part.time_limits() or whole) for part in every]
    return parts if any(own.ahead_us != whole.ahead_us for _, own in parts) else [(node, whole)]


@dataclass(frozen=True, eq=False)
class Output:
    """A sink at the end of a stream."""

    uid: str
    upstream: Node
    sink: TwoPhaseCommitSink

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The stream that ends in the sink."""
        return (self.upstream,)


@dataclass(frozen=True, eq=False)
class BadRecords(Node):
    """The rows that an operator or a sink could not take."""

    of: Operator | Output

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The operator, or the stream that ends in the sink."""
        return (self.of.upstream,) if isinstance(self.of, Output) else (self.of,)

    def row_time(self) -> TimeColumn | None:
        """Dead letters have no event time."""
        return None

    def time_limits(self) -> TimeLimits | None:
        """There is no time to judge."""
        return ANY_TIME

    are_results = False
    """They are rows that gave none."""


@dataclass(frozen=True, eq=False)
class Side(Node):
    """What an operator gives to one of its side outputs."""

    of: Operator
    name: str

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The operator that gives them."""
        return (self.of,)

    def row_time(self) -> TimeColumn | None:
        """As the results have it."""
        found = self.of.row_time()
        return None if found is None else replace(found, of_results=True)

    def time_limits(self) -> TimeLimits | None:
        """Times of results are believed."""
        return ANY_TIME

    are_results = True
    """An operator has made them."""


@dataclass(frozen=True, eq=False)
class Late(Node):
    """The rows that came too late for an operator, as they came."""

    of: Operator
    input: str = LEFT
    """Of which of its inputs, where it has two."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The operator that gives them."""
        return (self.of,)

    @property
    def stream(self) -> Node:
        """The stream whose rows these are."""
        second = self.of.second_input
        return self.of.upstream if second is None or self.input == LEFT else second.upstream

    def row_time(self) -> TimeColumn | None:
        """The time is that of the stream."""
        return self.stream.row_time()

    def time_limits(self) -> TimeLimits | None:
        """The limits are those of the stream."""
        return self.stream.time_limits()

    @property
    def are_results(self) -> bool:
        """As those of the stream are."""
        return self.stream.are_results


@dataclass
class Graph:
    """All parts of a job, in the order they were added, so upstream comes first."""

    sources: list[Source] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    _places: dict[str, Place] = field(default_factory=dict)
    on_bad_record: OnBadRecord = OnBadRecord.FAIL
    """The default policy."""
    _said: dict[str, OnBadRecord] = field(default_factory=dict)
    _bad_records: dict[str, BadRecords] = field(default_factory=dict)

    def set_on_bad_record(self, uid: str, policy: OnBadRecord) -> None:
        """Say what becomes of the bad rows of one operator or sink."""
        self._said[uid] = policy

    def bad_records(self, node: Operator | Output) -> BadRecords:
        """The dead letters of an operator or sink; from now on it keeps them."""
        said = self._said.get(node.uid)
        if said is not None:
            raise ConfigError(
                f"{node.uid!r} has on_bad_record={said.value!r}, so that it keeps no bad rows, but its bad_records() are asked for; "
                "leave one of the two out",
                uid=node.uid,
            )
        return self._bad_records.setdefault(node.uid, BadRecords(node))

    def policy(self, node: Operator | Output) -> OnBadRecord:
        """What becomes of the bad rows of an operator or sink. Dead letters that a sink refuses are not skipped by default."""
        if node.uid in self._bad_records:
            return OnBadRecord.KEEP
        usual = OnBadRecord.FAIL if _has_letters(node.upstream) else self.on_bad_record
        return self._said.get(node.uid, usual)

    def check_bad_records(self) -> None:
        """Refuse dead letters that go nowhere: rows would be lost, although they were to be kept."""
        written = {id(node) for output in self.outputs for node in _nodes_before(output.upstream)}
        for uid, letters in self._bad_records.items():
            if id(letters) not in written:
                raise ConfigError(
                    f"the bad_records() of {uid!r} are written nowhere: end them in a sink with write_to(...), or do not ask for them "
                    "and set on_bad_record='skip'",
                    uid=uid,
                )

    def sides_read(self, node: Operator) -> tuple[str, ...]:
        """The side outputs of an operator that go to a sink or another operator, in the order of their names."""
        ends = [node for part in self.consumers() for node in part.inputs]
        sides = (one for end in ends for one in _nodes_before(end) if isinstance(one, Side))
        return tuple(sorted({side.name for side in sides if side.of is node}))

    def gives_late_rows(self, node: Operator, of: str = LEFT) -> bool:
        """Whether the late rows of one input of an operator are read."""
        ends = (node for part in self.consumers() for node in part.inputs)
        late = (one for end in ends for one in _nodes_before(end) if isinstance(one, Late))
        return any(one.of is node and one.input == of for one in late)

    def new_uid(self, kind: str, uid: str) -> str:
        """Check a uid, and that nothing else in the job has it."""
        checked_name(f"uid of {with_article(kind)}", uid)
        for part in self.parts():
            if part.uid == uid:
                raise ConfigError(
                    f"uid {uid!r} is used twice, by {with_article(_word(part))} and {with_article(kind)}; state and "
                    "transactions are found by it, so every source, operator and sink needs its own",
                    uid=uid,
                )
        place = calling_place()
        if place is not None:
            self._places[uid] = place
        return uid

    def say_where(self, error: BaseException, uid: str) -> None:
        """Add to an error the line of the user's program where this part of the job is made, unless it has a line already."""
        place = self._places.get(uid)
        has_one = any(note.startswith(AT) for note in getattr(error, "__notes__", ()))
        if place is not None and not has_one:
            error.add_note(f"{AT}{place}")

    @contextmanager
    def saying_where(self, uid: str) -> Iterator[None]:
        """The same for errors that are raised inside."""
        try:
            yield
        except PenstockError as error:
            self.say_where(error, uid)
            raise

    def add(self, operator: Operator) -> None:
        """Add an operator, or refuse it: its uid must be new, and there must be event time where it needs some."""
        self.new_uid("operator", operator.uid)
        self._check_event_time(operator)
        self.operators.append(operator)

    def _check_event_time(self, node: Operator) -> None:
        """Refuse what goes by event time where none ever comes. A column that is named there says the time of rows, and no watermark."""
        need = node.needs_event_time()
        if need is not None and not self.event_time_sources(node):
            raise ConfigError(
                f"operator {node.uid!r} {need.does}, but no source that it reads has event time, so that {need.otherwise}; write "
                f"job.read(..., event_time='column'){need.instead}",
                operator=node.uid,
            )

    def event_time_sources(self, operator: Operator) -> frozenset[str]:
        """The sources with event time whose rows come to an operator: its watermark is the lowest of theirs. Others do not hold it."""
        return frozenset(
            node.uid
            for before in operator.inputs
            for node in _nodes_before(before)
            if isinstance(node, Source) and node.event_time is not None
        )

    def upstream_operators(self) -> dict[str, tuple[str, ...]]:
        """For each operator the uids of all operators upstream of it, in topological order."""
        return {
            operator.uid: tuple(uid for node in operator.inputs for uid in _operators_before(node))
            for operator in self.operators
        }

    def consumers(self) -> Iterator[Operator | Output]:
        """Everything that streams end in."""
        yield from self.operators
        yield from self.outputs

    def parts(self) -> Iterator[Source | Operator | Output]:
        """Everything that has a uid."""
        yield from self.sources
        yield from self.consumers()


def _word(part: Source | Operator | Output) -> str:
    return "source" if isinstance(part, Source) else "sink" if isinstance(part, Output) else "operator"


def _operators_before(node: Node) -> Iterator[str]:
    return (one.uid for one in _nodes_before(node) if isinstance(one, Operator))


def _has_letters(node: Node) -> bool:
    """Whether dead letters are among the rows, as they are or transformed; what an operator makes of them are results."""
    match node:
        case BadRecords():
            return True
        case Transform():
            return _has_letters(node.upstream)
        case Union():
            return _has_letters(node.left) or _has_letters(node.right)
        case _:
            return False


def _nodes_before(node: Node) -> Iterator[Node]:
    """The node and all from which its rows come, near and far."""
    yield node
    for before in node.inputs:
        yield from _nodes_before(before)
