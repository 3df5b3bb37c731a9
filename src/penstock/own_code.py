"""How own code becomes a part of the job: what can be said of an operator and its streams before anything starts. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.graph import Graph, OwnCode, Process
from penstock.operators.base import Broadcast, Node, SecondInput
from penstock.operators.batch_process import BatchProcess
from penstock.operators.broadcast import refuse_results, takes_broadcast
from penstock.operators.keyed_co_process import KeyedCoProcess
from penstock.operators.keyed_process import KeyedProcess
from penstock.operators.parameters import check_parameters
from penstock.operators.process import Process as UnkeyedProcess
from penstock.operators.row_order import OrderBy, parse_orders
from penstock.operators.side_outputs import check_sides
from penstock.operators.states import keyed_states, subtask_states
from penstock.operators.subtask_states import BroadcastState, OperatorListState
from penstock.state.declared import schema_ddl
from penstock.state.types import arrow_schema

if TYPE_CHECKING:
    from penstock.state.declared import Columns


def add_process(
    graph: Graph,
    upstream: Node,
    keys: tuple[str, ...],
    broadcast: Broadcast | None,
    operator: OwnCode,
    *,
    schema: Columns,
    uid: str,
    order_by: OrderBy,
    right: SecondInput | None = None,
) -> Process:
    """Add an operator to the job, or refuse it; without `keys` it is one without a key."""
    _check_kind(operator, uid, keyed=bool(keys))
    _check_inputs(operator, uid, two=right is not None)
    check_parameters(operator, uid)
    check_sides(operator, _base(operator), uid)
    _check_states(operator, uid)
    _check_broadcast(operator, uid, has_side=broadcast is not None)
    ddl = schema_ddl(schema)
    node = Process(
        uid,
        upstream,
        keys,
        operator,
        ddl,
        arrow_schema(ddl),
        parse_orders(order_by, "order_by"),
        broadcast,
        right,
    )
    graph.add(node)
    return node


def _base(operator: OwnCode) -> type[OwnCode]:
    kinds = (KeyedCoProcess, KeyedProcess, BatchProcess, UnkeyedProcess)
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
    if isinstance(operator, UnkeyedProcess) and keyed:
        raise ConfigError(
            f"operator {uid!r}: {type(operator).__name__} is a Process, which has no key; leave key_by(...) out, or make it a KeyedProcess",
            uid=uid,
        )
    if isinstance(operator, KeyedProcess | BatchProcess) and not keyed:
        raise ConfigError(
            f"operator {uid!r}: {type(operator).__name__} is a {_base(operator).__name__}, which needs a key; write "
            "stream.key_by('column').process(...), or make it a Process, which has none",
            uid=uid,
        )
    if not isinstance(operator, KeyedProcess | BatchProcess | UnkeyedProcess):
        made = f"; write {operator.__name__}()" if isinstance(operator, type) else ""
        raise ConfigError(
            f"process({operator!r}): it takes an instance of a {wanted} subclass{made}", uid=uid
        )


def _check_states(operator: OwnCode, uid: str) -> None:
    """Refuse state of a key where there is none, and lists of subtasks where there is one."""
    name = type(operator).__name__
    if isinstance(operator, UnkeyedProcess):
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
