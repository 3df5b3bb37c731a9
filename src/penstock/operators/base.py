"""An operator in its three forms: what the user declared, what it is once its columns are known, and what runs in a subtask.

`Operator` is a node of the job's graph: its uid, its inputs, its key and its options. Everything that plans a job asks it. Driver.
`Spec` is the operator typed against the columns of its input, in Arrow: the layout of its state, the columns of its results, how its
state is shown. It is pickled into tasks. Driver and executors.
`Task` is the work of one subtask in one batch: rows and state in, rows out. Executors.

The Spark side, which makes a `Spec` from DataFrames and prepares the rows for tasks, is in `spark/operators`, and is found by the class of
the operator in `spark/operators/registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from penstock.config import OnBadRecord
from penstock.errors import InternalError
from penstock.operators.bad_records import BadRows
from penstock.operators.event_time import ANY_TIME, LateRows, OperatorClock, TimeColumn, TimeLimits
from penstock.operators.grouping import null_keys
from penstock.operators.inputs import RightInput, TaskRows
from penstock.operators.outputs import Outputs, SideOutput, Tags
from penstock.operators.values.row_order import Order
from penstock.operators.views import StoredTable, TableView, TimestampColumn
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY

LEFT, RIGHT = "left", "right"
"""The inputs of an operator: `LEFT` is the stream that it was called on, `RIGHT` its second input."""


# ── what the user declared ─────────────────────────────────────────────────────────────────────────


class Node(ABC):
    """A stream of rows in the graph of a job: a source, a transform, an operator, or one of its outputs."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[Node, ...]:
        """The streams from which its rows come directly."""

    @abstractmethod
    def row_time(self) -> TimeColumn | None:
        """The column with the time of its rows, as far as the graph knows it; None where no source before it has event time."""

    @abstractmethod
    def time_limits(self) -> TimeLimits | None:
        """Which times of its rows are believed; None where nothing is known about them."""

    @property
    @abstractmethod
    def are_results(self) -> bool:
        """Whether an operator has made its rows, or some of them."""

    def revising(self) -> Operator | None:
        """The operator that made its rows, where a later one of them may replace an earlier one."""
        return None

    def event_time_column(self) -> TimeColumn | None:
        """Its `row_time` with its limits."""
        found = self.row_time()
        return None if found is None else found.within(self.time_limits() or ANY_TIME)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """A stream of which every subtask of an operator sees all rows."""

    upstream: Node
    order_by: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False)
class SecondInput:
    """The right stream of an operator with two. Its key has the types of the left one's, and may have other names."""

    upstream: Node
    keys: tuple[str, ...]
    event_time: str | None = None
    order_by: tuple[Order, ...] = ()


@dataclass(frozen=True)
class EventTimeNeed:
    """Why an operator needs event time, for the error where no source before it has any."""

    does: str
    """What it does by event time."""
    otherwise: str
    """What would happen without."""
    instead: str = ""
    """What else the user can do."""


@dataclass(frozen=True, eq=False)
class Operator(Node):
    """What the user declared. A subclass adds its options as fields, and overrides what differs from the answers here."""

    uid: str
    upstream: Node
    keys: tuple[str, ...]
    """The key columns of its stream; empty where it has no key."""

    may_reject_rows: ClassVar[bool] = True
    """Whether rows can be bad for it: rows without a key, or rows that own code rejects."""
    has_side_outputs: ClassVar[bool] = False
    """Whether it can have side outputs."""
    late_inputs: ClassVar[tuple[str, ...]] = ()
    """The inputs whose rows can come too late, and are then in `late()`."""

    @abstractmethod
    def describe(self) -> str:
        """What it does, in a few words, for the plan that people see: `dedupe within 1 h`."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Its stream, and its second input where it has one."""
        second = self.second_input
        return (self.upstream,) if second is None else (self.upstream, second.upstream)

    @property
    def second_input(self) -> SecondInput | None:
        """Its right stream, where it has two."""
        return None

    @property
    def order_by(self) -> tuple[Order, ...]:
        """The order in which own code gets its rows; empty where it has no own code, or takes them as they come."""
        return ()

    @property
    def judges_by_time(self) -> bool:
        """Whether rows can be late for it."""
        return False

    @property
    def lives_by_event_time(self) -> bool:
        """Whether part of its state has a time to live in event time."""
        return False

    @property
    def partly_aggregated(self) -> bool:
        """Whether Spark groups the rows of a batch before a task counts them."""
        return False

    @property
    def end_column(self) -> str | None:
        """The column of its results with the end of the stretch of time that each is about, where it has one."""
        return None

    @property
    def revised_by(self) -> tuple[str, ...]:
        """The options because of which a later result replaces an earlier one; such results must not be added up."""
        return ()

    @property
    def allowed_lateness_us(self) -> int | None:
        """How long its windows are kept after they have closed; None where it has no windows."""
        return None

    @property
    def own_code(self) -> object | None:
        """The object of the user's that is pickled into its tasks."""
        return None

    def code_spec(self, columns: pa.Schema, key: pa.Schema, time: TimeColumn | None) -> Spec:  # noqa: ARG002
        """The spec of its own code, typed against the columns of its stream; `time` is its event time, where rows can be late for it."""
        raise InternalError(f"operator {self.uid!r} has no own code that its columns alone describe")

    def side_outputs(self) -> Mapping[str, SideOutput]:
        """Its declared side outputs, by name."""
        return {}

    def needs_event_time(self) -> EventTimeNeed | None:
        """Why it needs a source with event time; None where it does not."""
        if self.lives_by_event_time:
            other = ", or leave out by='event_time'"
            return EventTimeNeed("has a time to live by event time", "nothing would ever expire", other)
        return None

    def result_time(self) -> TimeColumn | None:
        """The column with the time of its results: by default that of its rows."""
        found = self.upstream.row_time()
        return None if found is None else replace(found, of_results=True)

    def row_time(self) -> TimeColumn | None:
        """The time of its results."""
        return self.result_time()

    def time_limits(self) -> TimeLimits | None:
        """Times of results are believed."""
        return ANY_TIME

    are_results = True
    """The rows of an operator are results."""

    def revising(self) -> Operator | None:
        """The operator itself, where an option makes it give several results for one thing."""
        return self if self.revised_by else None


# ── typed against its input ────────────────────────────────────────────────────────────────────────


class Spec(ABC):
    """An operator with the columns of its input. It knows Arrow, and neither Spark nor the graph."""

    @abstractmethod
    def layout(self) -> StateLayout:
        """The tables of its state. Its `parts` say what may change from one version of the job to the next."""

    @property
    @abstractmethod
    def output(self) -> pa.Schema:
        """The columns of its results."""

    @abstractmethod
    def task(self, context: TaskContext) -> Task:
        """The work of one subtask in one batch. Called on an executor, once for each attempt."""

    @property
    def second_input(self) -> RightInput | None:
        """Its second input, where it has one."""
        return None

    @property
    def broadcast(self) -> tuple[str, ...] | None:
        """The columns of its broadcast input, where it has one."""
        return None

    def sides(self) -> Tags:
        """The columns of the side outputs that are read, by tag."""
        return {}

    @classmethod
    def shown(cls, table: StoredTable) -> TableView | None:  # noqa: ARG003
        """What a user sees of a stored table, if it is one of this operator's. A table that no spec knows is shown as it is stored.

        It is recognised by its names: what is stored does not say which operator wrote it, and must be read without the job.
        """
        return None

    @classmethod
    def shown_as(cls, column: str) -> str | None:  # noqa: ARG003
        """The name under which a user sees a value that this operator stores beside others; '' for one that only the operator needs.

        None for a column that is not one of this operator's: it is shown as it is stored.
        """
        return None

    @classmethod
    def placed_by(cls, layout: StateLayout) -> TimestampColumn | None:  # noqa: ARG003
        """The number that, with the key, decides in which subtask rows of a stored state lie; None where the key alone decides."""
        return None

    @classmethod
    def refused_values(cls, layout: StateLayout) -> str:  # noqa: ARG003
        """Why a user cannot write the values of keys of a stored state; '' where that is possible, or it is not one of this operator's."""
        return ""


# ── what runs in a subtask ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class TaskContext:
    """What a task knows about its place and time, and where it puts the rows that it leaves out."""

    uid: str
    keys: tuple[str, ...]
    subtask: int
    parallelism: int
    batch: int
    clock: OperatorClock
    over_us: int | None
    """Windows that end by this moment are no longer in the state that the batch opens; None if unknown."""
    on_bad_record: OnBadRecord
    bad: BadRows
    late: LateRows
    late_right: LateRows
    tolerates: Callable[[Exception], bool]
    """Whether an exception of own code is the fault of the row, so that the job may skip the row."""


@dataclass
class Task(ABC):
    """One operator in one subtask and one batch. The engine (`run/subtask.py`) opens its state, calls it, and freezes the state."""

    context: TaskContext

    takes_null_keys: ClassVar[bool] = False
    """Whether rows without a key are rows like others. Otherwise they are bad rows, and the task never sees them."""

    @abstractmethod
    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """Update the state with the rows; returns results and side outputs by tag. Rows that it leaves out go to `bad` or `late`.

        It is called when there are rows. A task that uses time is also called without any, when something may be due in its state.
        """

    @property
    def uses_time(self) -> bool:
        """Whether the passing of time changes its state: a timer fires, a window closes."""
        return False

    def due(self) -> Due:
        """The moments for which the state waits after `apply`. One that is too early costs a batch; one that is missing never fires."""
        return Due()

    @property
    def timers_fired(self) -> int:
        """How many timers have fired in `apply`: each counts as a row that may be bad."""
        return 0

    def over_us(self) -> int | None:
        """The moment up to which `apply` has removed windows from the state; None for an operator without event-time windows."""
        return None

    # ── rows as Spark hands them over ──

    def rows_given(self, table: pa.Table) -> int:
        """The number of rows of the stream that these rows stand for."""
        return int(table.num_rows)

    def shown_columns(self, table: pa.Table) -> list[str]:
        """The columns that an error shows of a row without a key."""
        return [name for name in table.column_names if name != SORT_KEY]

    def without_null_keys(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows that have a key; the others are bad rows."""
        flags, reasons = null_keys(table, list(keys))
        if not reasons:
            return table
        self.context.bad.add(table.filter(pa.array(flags)).drop_columns([SORT_KEY]), reasons, keys)
        return table.filter(pa.array(~flags))
