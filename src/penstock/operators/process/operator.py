"""The operator of own code: what the user declared, and what is refused before anything starts. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.operators.base import Broadcast, Node, Operator, SecondInput
from penstock.operators.outputs import SideOutput, check_sides, declared_sides
from penstock.operators.process.co import KeyedCoProcess
from penstock.operators.process.columns import BatchProcess
from penstock.operators.process.keyed import KeyedCode, KeyedProcess
from penstock.operators.process.unkeyed import Process
from penstock.operators.process.user_code import (
    check_call,
    check_open_and_close,
    refuse_results,
    takes_broadcast,
)
from penstock.operators.state.declarations import keyed_states, lives_by_event_time, subtask_states
from penstock.operators.state.subtask_states import BroadcastState, OperatorListState
from penstock.operators.state.timers import takes_timers
from penstock.operators.values.row_order import Order, OrderBy, parse_orders
from penstock.state.ddl import arrow_schema, schema_ddl

if TYPE_CHECKING:
    from penstock.state.ddl import Columns


_KEYED = ("key", "rows", "ctx")
_UNKEYED = ("rows", "ctx")
_BATCH = ("keys", "batch", "state")
_TIMER = ("key", "timer", "ctx")
_TIMERS = ("keys", "timers", "state")
OwnCode = KeyedCode | BatchProcess | Process
"""An object of a class that the user wrote."""


def check_parameters(operator: KeyedCode | BatchProcess | Process, uid: str) -> None:
    """Refuse a function of an operator that cannot take what it is given: every call of it would fail."""
    if isinstance(operator, BatchProcess):
        check_call(operator, operator.process_batch, _BATCH, uid)
    elif isinstance(operator, KeyedCoProcess):
        check_call(operator, operator.process_left, _KEYED, uid)
        check_call(operator, operator.process_right, _KEYED, uid)
    else:
        check_call(operator, operator.process, _KEYED if isinstance(operator, KeyedCode) else _UNKEYED, uid)
    if isinstance(operator, KeyedCode) and takes_timers(operator):
        check_call(operator, operator.on_timer, _TIMER, uid)
    if isinstance(operator, BatchProcess) and takes_timers(operator):
        check_call(operator, operator.on_timers, _TIMERS, uid)
    check_open_and_close(operator, uid)
    if takes_broadcast(operator):
        check_call(operator, operator.process_broadcast, _UNKEYED, uid)


@dataclass(frozen=True, eq=False)
class ProcessOperator(Operator):
    """The user's own Python code: per key, in columns, or without a key (`keys` is empty then)."""

    code: OwnCode
    results: pa.Schema
    """The columns of its results."""
    order_by: tuple[Order, ...] = ()
    broadcast: Broadcast | None = None
    right: SecondInput | None = None
    """The other stream of a `KeyedCoProcess`."""

    has_side_outputs: ClassVar[bool] = True

    @classmethod
    def checked(
        cls,
        uid: str,
        upstream: Node,
        keys: tuple[str, ...],
        code: OwnCode,
        *,
        schema: Columns,
        order_by: OrderBy,
        broadcast: Broadcast | None = None,
        right: SecondInput | None = None,
    ) -> ProcessOperator:
        """Check the arguments; raises a `ConfigError` that says what is wrong. Without `keys` it is code without a key."""
        _check_kind(code, uid, keyed=bool(keys))
        _check_inputs(code, uid, two=right is not None)
        check_parameters(code, uid)
        check_sides(code, _base(code), uid)
        _check_states(code, uid)
        _check_broadcast(code, uid, has_side=broadcast is not None)
        results = arrow_schema(schema_ddl(schema))
        return cls(uid, upstream, keys, code, results, parse_orders(order_by, "order_by"), broadcast, right)

    def describe(self) -> str:
        """The class that the user wrote."""
        return type(self.code).__name__

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The broadcast stream is one of its inputs."""
        return (*super().inputs, *(() if self.broadcast is None else (self.broadcast.upstream,)))

    @property
    def second_input(self) -> SecondInput | None:
        """The right stream of a `KeyedCoProcess`."""
        return self.right

    @property
    def lives_by_event_time(self) -> bool:
        """Whether a state of the class says so."""
        return lives_by_event_time(self.code)

    @property
    def own_code(self) -> object | None:
        """The object that the user made."""
        return self.code

    def side_outputs(self) -> Mapping[str, SideOutput]:
        """The side outputs that the class declares."""
        return declared_sides(self.code)


def _base(operator: OwnCode) -> type[OwnCode]:
    kinds = (KeyedCoProcess, KeyedProcess, BatchProcess, Process)
    return next(kind for kind in kinds if isinstance(operator, kind))


def _check_inputs(operator: OwnCode, uid: str, *, two: bool) -> None:
    """A `KeyedCoProcess` has two inputs, all others have one."""
    name = type(operator).__name__
    if two and not isinstance(operator, KeyedCoProcess):
        raise ConfigError(
            f"operator {uid!r}: {name} is a {_base(operator).__name__}, but two streams are connected; make it a KeyedCoProcess, with "
            "process_left and process_right",
            uid=uid,
        )
    if not two and isinstance(operator, KeyedCoProcess):
        raise ConfigError(
            f"operator {uid!r}: {name} is a KeyedCoProcess, which needs two streams: left.key_by('k').connect(right.key_by('id')).process("
            "...); for one stream make it a KeyedProcess",
            uid=uid,
        )
    if isinstance(operator, KeyedCoProcess) and type(operator).process is not KeyedCoProcess.process:
        raise ConfigError(
            f"operator {uid!r}: {name} has a process() of its own, which would not see which stream a row is of; write process_left() and "
            "process_right()",
            uid=uid,
        )


def _check_kind(operator: object, uid: str, *, keyed: bool) -> None:
    """The three kinds of own code differ in what they are called with."""
    wanted = "KeyedProcess or BatchProcess" if keyed else "Process"
    if isinstance(operator, Process) and keyed:
        raise ConfigError(
            f"operator {uid!r}: {type(operator).__name__} is a Process, which has no key; leave key_by(...) out, or make it a KeyedProcess",
            uid=uid,
        )
    if isinstance(operator, KeyedCode | BatchProcess) and not keyed:
        raise ConfigError(
            f"operator {uid!r}: {type(operator).__name__} is a {_base(operator).__name__}, which needs a key; write "
            "stream.key_by('column').process(...), or make it a Process, which has none",
            uid=uid,
        )
    if not isinstance(operator, KeyedCode | BatchProcess | Process):
        made = f"; write {operator.__name__}()" if isinstance(operator, type) else ""
        raise ConfigError(
            f"process({operator!r}): it takes an instance of a {wanted} subclass{made}", uid=uid
        )


def _check_states(operator: OwnCode, uid: str) -> None:
    """Refuse state of a key where there is none, and lists of subtasks where there is one."""
    name = type(operator).__name__
    if isinstance(operator, Process):
        for state, declared in keyed_states(operator).items():
            raise ConfigError(
                f"operator {uid!r}: {name} is a Process, which has no key, but its state {state!r} is a {type(declared).__name__}, which "
                "every key has for itself; use an OperatorListState, or key_by(...) and a KeyedProcess",
                operator=uid,
                state=state,
            )
        return
    for state, declared in subtask_states(operator).items():
        if isinstance(declared, OperatorListState):
            raise ConfigError(
                f"operator {uid!r}: {name} is a {_base(operator).__name__}, but its state {state!r} is an OperatorListState, which belongs "
                "to a subtask and not to a key; use a ListState, or a Process without a key",
                operator=uid,
                state=state,
            )


def _check_broadcast(operator: OwnCode, uid: str, *, has_side: bool) -> None:
    """A broadcast side, `process_broadcast` and a `BroadcastState` are of use only together."""
    name = type(operator).__name__
    states = [
        state for state, declared in subtask_states(operator).items() if isinstance(declared, BroadcastState)
    ]
    if not has_side:
        has = f"a BroadcastState {states[0]!r}" if states else "process_broadcast()"
        if states or takes_broadcast(operator):
            raise ConfigError(
                f"operator {uid!r}: {name} has {has}, but no broadcast side that it could come from; write "
                "stream.connect(rules.broadcast()).process(...)",
                operator=uid,
            )
        return
    if not takes_broadcast(operator):
        raise ConfigError(
            f"operator {uid!r}: {name} does not say what to do with the rows of its broadcast side; write "
            "def process_broadcast(self, rows, ctx)",
            operator=uid,
        )
    if not states:
        raise ConfigError(
            f"operator {uid!r}: {name} has no BroadcastState, so that what process_broadcast() learns would be forgotten after the batch; "
            "write one into the class, such as rules = ps.BroadcastState('string', 'long')",
            operator=uid,
        )
    refuse_results(operator, uid)
