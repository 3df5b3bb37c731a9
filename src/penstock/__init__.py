"""Flink's fault tolerance for Spark Structured Streaming. This is the only public door."""

from typing import TYPE_CHECKING

from penstock.config import Checkpointing, Duration, Mode, OnBadRecord, OnCancel
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
from penstock.late_names import LateNames
from penstock.operators.batch_columns import BatchColumns
from penstock.operators.batch_process import BatchKeys, BatchProcess, BatchRows, BatchTimers
from penstock.operators.batch_state import BatchState
from penstock.operators.batch_tables import BatchList, BatchMap
from penstock.operators.folded_state import AggregateFunction, AggregatingState, ReducingState
from penstock.operators.keyed_co_process import KeyedCoProcess
from penstock.operators.keyed_process import Context, KeyedProcess
from penstock.operators.list_state import ListState
from penstock.operators.map_state import MapState
from penstock.operators.process import Process
from penstock.operators.raw_state import RawState
from penstock.operators.rows import Row, Rows
from penstock.operators.side_outputs import SideOutput
from penstock.operators.states import ValueState
from penstock.operators.subtask_states import BroadcastState, OperatorListState
from penstock.operators.time_to_live import TimeToLive
from penstock.operators.timers import Timer
from penstock.operators.window_kinds import count_window, session, sliding, tumbling
from penstock.operators.window_process import TimeWindow, WindowProcess
from penstock.state.backends import FilesystemBackend, MemoryBackend, RocksdbBackend, StateBackend
from penstock.storage import LocalStorage, Storage
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock import sinks, sources
    from penstock.checkpoint.completed import Completed
    from penstock.engine.observer import Progress
    from penstock.guarantee import Guarantee
    from penstock.job import Job
    from penstock.keyed_streams import (
        BroadcastStream,
        ConnectedKeyedStreams,
        ConnectedStream,
        ConnectedStreams,
        KeyedStream,
        WindowedStream,
    )
    from penstock.recovery.restart import (
        RestartStrategy,
        exponential_delay,
        failure_rate,
        fixed_delay,
        no_restart,
    )
    from penstock.savepoint.contents import OperatorContents
    from penstock.spark.handle import JobHandle, Status
    from penstock.spark.saved_state import SavedState, read_savepoint, read_state
    from penstock.spark.savepoint_rewriting import rewrite_savepoint
    from penstock.spark.savepoint_writing import write_savepoint
    from penstock.spark.session import local_session
    from penstock.streams import Stream, Written

AT_LEAST_ONCE = Mode.AT_LEAST_ONCE
AT_MOST_ONCE = Mode.AT_MOST_ONCE
EXACTLY_ONCE = Mode.EXACTLY_ONCE
DELETE_ON_CANCELLATION = OnCancel.DELETE_ON_CANCELLATION
RETAIN_ON_CANCELLATION = OnCancel.RETAIN_ON_CANCELLATION


__all__ = [
    "AT_LEAST_ONCE",
    "AT_MOST_ONCE",
    "DELETE_ON_CANCELLATION",
    "EXACTLY_ONCE",
    "RETAIN_ON_CANCELLATION",
    "AggregateFunction",
    "AggregatingState",
    "BadRecordError",
    "BatchColumns",
    "BatchKeys",
    "BatchList",
    "BatchMap",
    "BatchProcess",
    "BatchRows",
    "BatchState",
    "BatchTimers",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointFailedError",
    "Checkpointing",
    "CommitLostError",
    "Completed",
    "ConfigError",
    "ConnectedKeyedStreams",
    "ConnectedStream",
    "ConnectedStreams",
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
    "KeyedCoProcess",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "LocalStorage",
    "MapState",
    "MemoryBackend",
    "Mode",
    "OnBadRecord",
    "OnCancel",
    "OperatorContents",
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
    "SavedState",
    "SideOutput",
    "SourceLostError",
    "StateBackend",
    "Status",
    "Storage",
    "Stream",
    "TimeToLive",
    "TimeWindow",
    "Timer",
    "UnavailableError",
    "UserCodeError",
    "ValueState",
    "WindowProcess",
    "WindowedStream",
    "Written",
    "__version__",
    "count_window",
    "exponential_delay",
    "failure_rate",
    "fixed_delay",
    "local_session",
    "no_restart",
    "read_savepoint",
    "read_state",
    "rewrite_savepoint",
    "session",
    "sinks",
    "sliding",
    "sources",
    "tumbling",
    "write_savepoint",
]


_LATE_NAMES = LateNames(
    __name__,
    {
        "BroadcastStream": "keyed_streams",
        "Completed": "checkpoint.completed",
        "ConnectedKeyedStreams": "keyed_streams",
        "ConnectedStream": "keyed_streams",
        "ConnectedStreams": "keyed_streams",
        "Guarantee": "guarantee",
        "Job": "job",
        "JobHandle": "spark.handle",
        "KeyedStream": "keyed_streams",
        "OperatorContents": "savepoint.contents",
        "Progress": "engine.observer",
        "RestartStrategy": "recovery.restart",
        "SavedState": "spark.saved_state",
        "Status": "spark.handle",
        "Stream": "streams",
        "WindowedStream": "keyed_streams",
        "Written": "streams",
        "exponential_delay": "recovery.restart",
        "failure_rate": "recovery.restart",
        "fixed_delay": "recovery.restart",
        "local_session": "spark.session",
        "no_restart": "recovery.restart",
        "read_savepoint": "spark.saved_state",
        "read_state": "spark.saved_state",
        "rewrite_savepoint": "spark.savepoint_rewriting",
        "sinks": "sinks",
        "sources": "sources",
        "write_savepoint": "spark.savepoint_writing",
    },
)
"""What only a driver needs. Whatever lives in the spark package is among it: the rest works without PySpark being imported."""
__getattr__, __dir__ = _LATE_NAMES.get, _LATE_NAMES.all
