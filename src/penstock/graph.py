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
from penstock.operators.keyed_process import KeyedProcess
from penstock.operators.process import Process as UnkeyedProcess
from penstock.operators.row_order import Order
from penstock.operators.time_to_live import TimeToLive
from penstock.places import AT, Place, calling_place
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.wording import with_article

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, eq=False)
class Source:
    """A streaming DataFrame. `replayable` overrides what Penstock finds out by itself."""

    uid: str
    frame: DataFrame
    replayable: bool | None


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


Node = Source | Transform | Union | Aggregate | Process | Top | BadRecords | Side
Keyed = Aggregate | Process | Top


def inputs_of(part: Keyed | Output) -> tuple[Node, ...]:
    """All from which its rows come: the stream, and the broadcast side where there is one."""
    beside = part.broadcast if isinstance(part, Process) else None
    return (part.upstream,) if beside is None else (part.upstream, beside.upstream)


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
        case Aggregate() | Process() | Top():
            for before in inputs_of(node):
                yield from _nodes_before(before)
        case BadRecords():
            yield from _nodes_before(node.of.upstream if isinstance(node.of, Output) else node.of)
        case Side():
            yield from _nodes_before(node.of)
