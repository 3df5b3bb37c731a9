"""Flink's fault tolerance for Spark Structured Streaming. This is the only public door."""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock import sinks, sources
from penstock.checkpoint.completed import Completed
from penstock.config import Checkpointing, Duration, Mode, OnBadRecord, OnCancel
from penstock.engine.observer import Progress
from penstock.errors import (
    BadRecordError,
    CheckpointFailedError,
    CommitLostError,
    ConfigError,
    CorruptStateError,
    FencedError,
    IncompatibleStateError,
    InternalError,
    JobFailedError,
    PenstockError,
    RunningAlreadyError,
    SourceLostError,
    UnavailableError,
    UserCodeError,
)
from penstock.guarantee import Guarantee
from penstock.job import BroadcastStream, ConnectedStream, Job, KeyedStream, Stream, Written
from penstock.operators.batch_process import BatchKeys, BatchProcess, BatchRows
from penstock.operators.batch_state import BatchState
from penstock.operators.folded_state import AggregateFunction, AggregatingState, ReducingState
from penstock.operators.keyed_process import Context, KeyedProcess
from penstock.operators.list_state import ListState
from penstock.operators.map_state import MapState
from penstock.operators.process import Process
from penstock.operators.raw_state import RawState
from penstock.operators.rows import Row, Rows
from penstock.operators.side_outputs import SideOutput
from penstock.operators.states import ValueState
from penstock.operators.subtask_states import BroadcastState, OperatorListState
from penstock.recovery.restart import (
    RestartStrategy,
    exponential_delay,
    failure_rate,
    fixed_delay,
    no_restart,
)
from penstock.state.backends import FilesystemBackend, MemoryBackend, RocksdbBackend, StateBackend
from penstock.storage import LocalStorage, Storage

if TYPE_CHECKING:
    from penstock.spark.handle import JobHandle, Status
    from penstock.spark.session import local_session

AT_LEAST_ONCE = Mode.AT_LEAST_ONCE
AT_MOST_ONCE = Mode.AT_MOST_ONCE
EXACTLY_ONCE = Mode.EXACTLY_ONCE
DELETE_ON_CANCELLATION = OnCancel.DELETE_ON_CANCELLATION
RETAIN_ON_CANCELLATION = OnCancel.RETAIN_ON_CANCELLATION

__version__ = "0.1.0"

__all__ = [
    "AT_LEAST_ONCE",
    "AT_MOST_ONCE",
    "DELETE_ON_CANCELLATION",
    "EXACTLY_ONCE",
    "RETAIN_ON_CANCELLATION",
    "AggregateFunction",
    "AggregatingState",
    "BadRecordError",
    "BatchKeys",
    "BatchProcess",
    "BatchRows",
    "BatchState",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointFailedError",
    "Checkpointing",
    "CommitLostError",
    "Completed",
    "ConfigError",
    "ConnectedStream",
    "Context",
    "CorruptStateError",
    "Duration",
    "FencedError",
    "FilesystemBackend",
    "Guarantee",
    "IncompatibleStateError",
    "InternalError",
    "Job",
    "JobFailedError",
    "JobHandle",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "LocalStorage",
    "MapState",
    "MemoryBackend",
    "Mode",
    "OnBadRecord",
    "OnCancel",
    "OperatorListState",
    "PenstockError",
    "Process",
    "Progress",
    "RawState",
    "ReducingState",
    "RestartStrategy",
    "RocksdbBackend",
    "Row",
    "Rows",
    "RunningAlreadyError",
    "SideOutput",
    "SourceLostError",
    "StateBackend",
    "Status",
    "Storage",
    "Stream",
    "UnavailableError",
    "UserCodeError",
    "ValueState",
    "Written",
    "__version__",
    "exponential_delay",
    "failure_rate",
    "fixed_delay",
    "local_session",
    "no_restart",
    "sinks",
    "sources",
]


_IN_SPARK = {"JobHandle": "handle", "Status": "handle", "local_session": "session"}
"""What lives in the spark package, and in which module of it: imported only by those who use it."""


def __getattr__(name: str) -> object:
    """Import what lives in the spark package; whatever needs no Spark works without PySpark being imported."""
    if name in _IN_SPARK:
        return getattr(import_module(f"penstock.spark.{_IN_SPARK[name]}"), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What can be asked for, imported already or not."""
    return sorted({*globals(), *_IN_SPARK})
