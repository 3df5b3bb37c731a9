"""The job as the user drew it: sources, operators, transforms, sinks. Pure; driver.

DataFrames and Columns are only passed through here: the spark package looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.config import OnBadRecord
from penstock.errors import ConfigError, PenstockError
from penstock.ids import checked_name
from penstock.operators.batch_process import BatchProcess
from penstock.operators.join_spec import LEFT, How
from penstock.operators.keyed_process import KeyedProcess
from penstock.operators.process import Process as UnkeyedProcess
from penstock.operators.row_order import Order
from penstock.operators.states import lives_by_event_time as has_event_lifetimes
from penstock.operators.time_to_live import TimeToLive
from penstock.operators.timers import EVENT_TIME
from penstock.operators.window_kinds import CountWindows, TimeWindows, Windows
from penstock.operators.window_process import WindowProcess
from penstock.places import AT, Place, calling_place
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.wording import with_article

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class EventTime:
    """What is known about the time of the rows of a source: durations in microseconds."""

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


@dataclass(frozen=True, eq=False)
class Source:
    """A streaming DataFrame. `replayable` overrides what Penstock finds out by itself."""

    uid: str
    frame: DataFrame
    replayable: bool | None
    event_time: EventTime | None = None


@dataclass(frozen=True, eq=False)
class Transform:
    """Any function from DataFrame to DataFrame; it must not keep state of its own."""

    upstream: Node
    function: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, eq=False)
class Union:
    """Two streams with the same columns, read as one."""

    left: Node
    right: Node


@dataclass(frozen=True, eq=False)
class Aggregate:
    """SQL aggregates per key over everything so far."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    columns: dict[str, Column]
    ttl: TimeToLive | None = None


Operator = KeyedProcess | BatchProcess | UnkeyedProcess


@dataclass(frozen=True, eq=False)
class Broadcast:
    """A stream of which every subtask of an operator sees all rows."""

    upstream: Node
    order_by: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False)
class SecondInput:
    """The right one of the two streams of an operator. Its key has the types of the left one's, and may have other names."""

    upstream: Node
    keys: tuple[str, ...]
    event_time: str | None = None
    order_by: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False)
class Process:
    """The user's own Python code: per key, in columns, or without a key (`keys` is empty then)."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    operator: Operator
    schema: str
    output: pa.Schema
    order_by: tuple[Order, ...]
    broadcast: Broadcast | None = None
    right: SecondInput | None = None
    """The other stream of a `KeyedCoProcess`."""


@dataclass(frozen=True, eq=False)
class Top:
    """The first `n` rows of each key in an order; with `of` each value of these columns counts once, with its newest row."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    n: int
    by: tuple[Order, ...]
    of: tuple[str, ...]
    newest: tuple[Order, ...]


@dataclass(frozen=True, eq=False)
class Window:
    """SQL aggregates, or the user's own code, over windows of each key. One of `columns` and `operator` is there."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    windows: Windows
    lateness_us: int = 0
    early_us: int | None = None
    event_time: str | None = None
    """The column that the user named; None for that of the stream."""
    columns: dict[str, Column] = field(default_factory=dict)
    operator: WindowProcess | None = None
    output: pa.Schema | None = None
    """The columns of its results, where there is own code."""
    order_by: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False)
class Dedupe:
    """The first row of each value of the key; none that comes so near to it in event time."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    within_us: int
    event_time: str | None = None
    """The column that the user named; None for that of the stream."""


@dataclass(frozen=True, eq=False)
class Join:
    """Rows of two streams with the same key, side by side: within bounds of time, in the same window, or whatever their time."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    right: SecondInput
    how: How
    within_us: tuple[int, int] | None = None
    windows: TimeWindows | None = None
    event_time: str | None = None
    at: str | None = None
    """The name of a column to add, with the time of each result."""


@dataclass(frozen=True, eq=False)
class Lookup:
    """Rows of a stream with the latest row of their key in another one beside them."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    right: SecondInput
    inner: bool
    ttl: TimeToLive | None = None


@dataclass(frozen=True, eq=False)
class Output:
    """A sink at the end of a stream."""

    uid: str
    upstream: Node
    sink: TwoPhaseCommitSink


@dataclass(frozen=True, eq=False)
class BadRecords:
    """The rows that an operator or a sink could not take."""

    of: Keyed | Output


@dataclass(frozen=True, eq=False)
class Side:
    """What an operator gives to one of its side outputs."""

    of: Process
    name: str


@dataclass(frozen=True, eq=False)
class Late:
    """The rows that came too late for an operator, as they came."""

    of: Keyed
    input: str = LEFT
    """Of which of its inputs, where it has two."""


Keyed = Aggregate | Process | Top | Window | Dedupe | Join | Lookup
Node = Source | Transform | Union | Keyed | BadRecords | Side | Late


def inputs_of(part: Keyed | Output) -> tuple[Node, ...]:
    """All from which its rows come: the stream, and the broadcast side or the second input where there is one."""
    beside = [second_input(part), part.broadcast if isinstance(part, Process) else None]
    return (part.upstream, *(one.upstream for one in beside if one is not None))


def second_input(part: Keyed | Output) -> SecondInput | None:
    """The right stream of an operator that has two."""
    return part.right if isinstance(part, Process | Join | Lookup) else None


def late_from(late: Late) -> Node:
    """The stream whose rows these are."""
    right = second_input(late.of)
    return late.of.upstream if right is None or late.input == LEFT else right.upstream


def judges_by_time(node: Keyed) -> bool:
    """Whether rows come late for an operator."""
    match node:
        case Window():
            return not isinstance(node.windows, CountWindows)
        case Join():
            return node.within_us is not None or node.windows is not None
        case _:
            return isinstance(node, Dedupe)


def lives_by_event_time(node: Keyed) -> bool:
    """Whether something that a user has given a time to live is kept by event time."""
    match node:
        case Aggregate():
            return node.ttl is not None and node.ttl.by == EVENT_TIME
        case Process():
            return has_event_lifetimes(node.operator)
        case _:
            return False


@dataclass
class Graph:
    """All parts of a job, in the order they were added, so upstream comes first."""

    sources: list[Source] = field(default_factory=list)
    operators: list[Keyed] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    _places: dict[str, Place] = field(default_factory=dict)
    on_bad_record: OnBadRecord = OnBadRecord.FAIL
    """What holds where nothing else is said."""
    _said: dict[str, OnBadRecord] = field(default_factory=dict)
    _bad_records: dict[str, BadRecords] = field(default_factory=dict)

    def set_on_bad_record(self, uid: str, policy: OnBadRecord) -> None:
        """Say what becomes of the bad rows of one operator or sink."""
        self._said[uid] = policy

    def bad_records(self, node: Keyed | Output) -> BadRecords:
        """The dead letters of an operator or sink; from now on it keeps them."""
        said = self._said.get(node.uid)
        if said is not None:
            raise ConfigError(
                f"{node.uid!r} has on_bad_record={said.value!r}, so that it keeps no bad rows, but its bad_records() are asked for; "
                "leave one of the two out",
                uid=node.uid,
            )
        return self._bad_records.setdefault(node.uid, BadRecords(node))

    def policy(self, node: Keyed | Output) -> OnBadRecord:
        """What becomes of the bad rows of an operator or sink. Dead letters that a sink refuses are not skipped by default."""
        if node.uid in self._bad_records:
            return OnBadRecord.KEEP
        usual = OnBadRecord.FAIL if _has_letters(node.upstream) else self.on_bad_record
        return self._said.get(node.uid, usual)

    def check_bad_records(self) -> None:
        """Refuse dead letters that go nowhere: rows would be lost, although somebody asked to keep them."""
        written = {id(node) for output in self.outputs for node in _nodes_before(output.upstream)}
        for uid, letters in self._bad_records.items():
            if id(letters) not in written:
                raise ConfigError(
                    f"the bad_records() of {uid!r} are written nowhere: end them in a sink with write_to(...), or do not ask for them "
                    "and set on_bad_record='skip'",
                    uid=uid,
                )

    def sides_read(self, node: Keyed) -> tuple[str, ...]:
        """The side outputs of an operator that go to a sink or another operator, in the order of their names."""
        ends = [node for part in (*self.operators, *self.outputs) for node in inputs_of(part)]
        sides = (one for end in ends for one in _nodes_before(end) if isinstance(one, Side))
        return tuple(sorted({side.name for side in sides if side.of is node}))

    def gives_late_rows(self, node: Keyed, of: str = LEFT) -> bool:
        """Whether somebody reads the rows that come too late for an operator, out of one of its inputs."""
        ends = (node for part in (*self.operators, *self.outputs) for node in inputs_of(part))
        late = (one for end in ends for one in _nodes_before(end) if isinstance(one, Late))
        return any(one.of is node and one.input == of for one in late)

    def new_uid(self, kind: str, uid: str) -> str:
        """Check a uid, and that nothing else in the job has it."""
        checked_name(f"uid of {with_article(kind)}", uid)
        for part in self.parts():
            if part.uid == uid:
                raise ConfigError(
                    f"uid {uid!r} is used twice, by {with_article(type(part).__name__.lower())} and {with_article(kind)}; state and "
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
        """The same for what is raised inside."""
        try:
            yield
        except PenstockError as error:
            self.say_where(error, uid)
            raise

    def check_event_time(self, node: Keyed) -> None:
        """Refuse what goes by event time where none ever comes. A column that is named there says the time of rows, and no watermark."""
        what = _what_event_time_does(node)
        if what is not None and not self.event_time_sources(node):
            raise ConfigError(
                f"operator {node.uid!r} {what[0]}, but no source in front of it has event time, so that {what[1]}; write "
                f"job.read(..., event_time='column'){what[2]}",
                operator=node.uid,
            )

    def event_time_sources(self, operator: Keyed) -> frozenset[str]:
        """The sources with event time whose rows come to an operator: its watermark is the lowest of theirs. Others do not hold it."""
        return frozenset(
            node.uid
            for before in inputs_of(operator)
            for node in _nodes_before(before)
            if isinstance(node, Source) and node.event_time is not None
        )

    def upstream_operators(self) -> dict[str, tuple[str, ...]]:
        """The uids of the operators in front of each operator, near and far; those in front come first in it."""
        return {
            operator.uid: tuple(uid for node in inputs_of(operator) for uid in _operators_before(node))
            for operator in self.operators
        }

    def parts(self) -> Iterator[Source | Keyed | Output]:
        """Everything that has a uid."""
        yield from self.sources
        yield from self.operators
        yield from self.outputs


def _what_event_time_does(node: Keyed) -> tuple[str, str, str] | None:
    """For operators that go by event time: what they do by it, what would become of that without any, and what else one can do."""
    if lives_by_event_time(node):
        other = ", or leave out by='event_time'"
        return "has a time to live by event time", "nothing would ever expire", other
    if isinstance(node, Window) and not isinstance(node.windows, CountWindows):
        return f"cuts rows into {node.windows}", "none of them would ever close", ""
    if isinstance(node, Dedupe) or (isinstance(node, Join) and (node.within_us or node.windows)):
        return "keeps rows as long as event time says", "they would be kept for ever", ""
    return None


def _operators_before(node: Node) -> Iterator[str]:
    return (one.uid for one in _nodes_before(node) if isinstance(one, Keyed))


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
    match node:
        case Source():
            return
        case Union():
            yield from _nodes_before(node.left)
            yield from _nodes_before(node.right)
        case Transform():
            yield from _nodes_before(node.upstream)
        case Aggregate() | Process() | Top() | Window() | Dedupe() | Join() | Lookup():
            for before in inputs_of(node):
                yield from _nodes_before(before)
        case BadRecords():
            yield from _nodes_before(node.of.upstream if isinstance(node.of, Output) else node.of)
        case Side() | Late():
            yield from _nodes_before(node.of)
