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
from penstock.lazy_imports import LateNames
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock import sinks, sources
    from penstock.checkpoint.completed import Completed
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
    from penstock.log_fields import JsonLines, LogFields, log_as_json
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
    from penstock.progress_display import show_progress
    from penstock.recovery.restart import (
        RestartStrategy,
        exponential_delay,
        failure_rate,
        fixed_delay,
        no_restart,
    )
    from penstock.savepoint.contents import OperatorContents
    from penstock.spark.handle import JobHandle
    from penstock.spark.saved_state import SavedState, read_savepoint, read_state
    from penstock.spark.savepoint_rewriting import rewrite_savepoint
    from penstock.spark.savepoint_writing import write_savepoint
    from penstock.spark.session import local_session
    from penstock.spark.status import Status
    from penstock.state.backends import FilesystemBackend, MemoryBackend, RocksdbBackend, StateBackend
    from penstock.status.events import Event
    from penstock.status.listeners import Listener
    from penstock.status.live import Progress
    from penstock.status.otel import OpenTelemetry
    from penstock.storage import LocalStorage, Storage
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
    "Event",
    "FencedError",
    "FilesystemBackend",
    "Guarantee",
    "IncompatibleStateError",
    "InternalError",
    "Job",
    "JobFailedError",
    "JobHandle",
    "JsonLines",
    "KeyedCoProcess",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "Listener",
    "LocalStorage",
    "LogFields",
    "MapState",
    "MemoryBackend",
    "Mode",
    "OnBadRecord",
    "OnCancel",
    "OpenTelemetry",
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
    "log_as_json",
    "no_restart",
    "read_savepoint",
    "read_state",
    "rewrite_savepoint",
    "session",
    "show_progress",
    "sinks",
    "sliding",
    "sources",
    "tumbling",
    "write_savepoint",
]


_LATE_NAMES = LateNames(
    __name__,
    {
        "AggregateFunction": "operators.folded_state",
        "AggregatingState": "operators.folded_state",
        "BatchColumns": "operators.batch_columns",
        "BatchKeys": "operators.batch_process",
        "BatchList": "operators.batch_tables",
        "BatchMap": "operators.batch_tables",
        "BatchProcess": "operators.batch_process",
        "BatchRows": "operators.batch_process",
        "BatchState": "operators.batch_state",
        "BatchTimers": "operators.batch_process",
        "BroadcastState": "operators.subtask_states",
        "BroadcastStream": "keyed_streams",
        "Completed": "checkpoint.completed",
        "ConnectedKeyedStreams": "keyed_streams",
        "ConnectedStream": "keyed_streams",
        "ConnectedStreams": "keyed_streams",
        "Event": "status.events",
        "Context": "operators.keyed_process",
        "FilesystemBackend": "state.backends",
        "Guarantee": "guarantee",
        "JsonLines": "log_fields",
        "LogFields": "log_fields",
        "log_as_json": "log_fields",
        "show_progress": "progress_display",
        "Job": "job",
        "JobHandle": "spark.handle",
        "KeyedCoProcess": "operators.keyed_co_process",
        "KeyedProcess": "operators.keyed_process",
        "KeyedStream": "keyed_streams",
        "Listener": "status.listeners",
        "OpenTelemetry": "status.otel",
        "ListState": "operators.list_state",
        "LocalStorage": "storage",
        "MapState": "operators.map_state",
        "MemoryBackend": "state.backends",
        "OperatorContents": "savepoint.contents",
        "OperatorListState": "operators.subtask_states",
        "Process": "operators.process",
        "Progress": "status.live",
        "RawState": "operators.raw_state",
        "ReducingState": "operators.folded_state",
        "RestartStrategy": "recovery.restart",
        "RocksdbBackend": "state.backends",
        "Row": "operators.rows",
        "Rows": "operators.rows",
        "SavedState": "spark.saved_state",
        "SideOutput": "operators.side_outputs",
        "StateBackend": "state.backends",
        "Status": "spark.status",
        "Storage": "storage",
        "Stream": "streams",
        "TimeToLive": "operators.time_to_live",
        "TimeWindow": "operators.window_process",
        "Timer": "operators.timers",
        "ValueState": "operators.states",
        "WindowProcess": "operators.window_process",
        "WindowedStream": "keyed_streams",
        "Written": "streams",
        "count_window": "operators.window_kinds",
        "exponential_delay": "recovery.restart",
        "failure_rate": "recovery.restart",
        "fixed_delay": "recovery.restart",
        "local_session": "spark.session",
        "no_restart": "recovery.restart",
        "read_savepoint": "spark.saved_state",
        "read_state": "spark.saved_state",
        "rewrite_savepoint": "spark.savepoint_rewriting",
        "session": "operators.window_kinds",
        "sinks": "sinks",
        "sliding": "operators.window_kinds",
        "sources": "sources",
        "tumbling": "operators.window_kinds",
        "write_savepoint": "spark.savepoint_writing",
    },
)
"""What is imported when it is asked for: a supervisor, a command that looks at storage and a Python worker each need little of it, and
without a name of the spark package PySpark is not imported."""
__getattr__, __dir__ = _LATE_NAMES.get, _LATE_NAMES.all
