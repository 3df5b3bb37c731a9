"""Flink's fault tolerance for Spark Structured Streaming. This is the only public door."""

from typing import TYPE_CHECKING

from penstock.config import Checkpointing, EventTime, Mode, OnBadRecord, OnCancel
from penstock.errors import (
    BadRecordError,
    ConfigError,
    JobFailedError,
    PenstockError,
    UnavailableError,
    UserCodeError,
)
from penstock.lazy_imports import LateNames
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock import errors, sinks, sources, testing, types, windows
    from penstock.dashboard.ui_options import Ui
    from penstock.job import Job
    from penstock.log_fields import log_as_json
    from penstock.long_work import show_progress
    from penstock.operators.outputs import SideOutput
    from penstock.operators.process.co import KeyedCoProcess
    from penstock.operators.process.columns import BatchProcess
    from penstock.operators.process.keyed import KeyedProcess
    from penstock.operators.process.unkeyed import Process
    from penstock.operators.state.declarations import ValueState
    from penstock.operators.state.folded_state import AggregateFunction, AggregatingState, ReducingState
    from penstock.operators.state.list_state import ListState
    from penstock.operators.state.map_state import MapState
    from penstock.operators.state.raw_state import RawState
    from penstock.operators.state.subtask_states import BroadcastState, OperatorListState
    from penstock.operators.state.ttl import TimeToLive
    from penstock.operators.window.base import WindowProcess
    from penstock.recovery.restart import exponential_delay, failure_rate, fixed_delay, no_restart
    from penstock.spark.local_session import local_session
    from penstock.spark.saved_state import read_savepoint, read_state
    from penstock.spark.savepoint_rewriting import rewrite_savepoint
    from penstock.spark.savepoint_writing import write_savepoint
    from penstock.state.backends import FilesystemBackend, MemoryBackend, RocksdbBackend, StateBackend
    from penstock.status.listeners import Listener
    from penstock.status.otel import OpenTelemetry
    from penstock.storage import LocalStorage, Storage

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
    "BatchProcess",
    "BroadcastState",
    "Checkpointing",
    "ConfigError",
    "EventTime",
    "FilesystemBackend",
    "Job",
    "JobFailedError",
    "KeyedCoProcess",
    "KeyedProcess",
    "ListState",
    "Listener",
    "LocalStorage",
    "MapState",
    "MemoryBackend",
    "Mode",
    "OnBadRecord",
    "OnCancel",
    "OpenTelemetry",
    "OperatorListState",
    "PenstockError",
    "Process",
    "RawState",
    "ReducingState",
    "RocksdbBackend",
    "SideOutput",
    "StateBackend",
    "Storage",
    "TimeToLive",
    "Ui",
    "UnavailableError",
    "UserCodeError",
    "ValueState",
    "WindowProcess",
    "__version__",
    "errors",
    "exponential_delay",
    "failure_rate",
    "fixed_delay",
    "local_session",
    "log_as_json",
    "no_restart",
    "read_savepoint",
    "read_state",
    "rewrite_savepoint",
    "show_progress",
    "sinks",
    "sources",
    "testing",
    "types",
    "windows",
    "write_savepoint",
]


_LATE_NAMES = LateNames(
    __name__,
    {
        "dashboard.ui_options": ("Ui",),
        "job": ("Job",),
        "log_fields": ("log_as_json",),
        "long_work": ("show_progress",),
        "operators.outputs": ("SideOutput",),
        "operators.process.co": ("KeyedCoProcess",),
        "operators.process.columns": ("BatchProcess",),
        "operators.process.keyed": ("KeyedProcess",),
        "operators.process.unkeyed": ("Process",),
        "operators.state.declarations": ("ValueState",),
        "operators.state.folded_state": ("AggregateFunction", "AggregatingState", "ReducingState"),
        "operators.state.list_state": ("ListState",),
        "operators.state.map_state": ("MapState",),
        "operators.state.raw_state": ("RawState",),
        "operators.state.subtask_states": ("BroadcastState", "OperatorListState"),
        "operators.state.ttl": ("TimeToLive",),
        "operators.window.base": ("WindowProcess",),
        "recovery.restart": ("exponential_delay", "failure_rate", "fixed_delay", "no_restart"),
        "spark.local_session": ("local_session",),
        "spark.saved_state": ("read_savepoint", "read_state"),
        "spark.savepoint_rewriting": ("rewrite_savepoint",),
        "spark.savepoint_writing": ("write_savepoint",),
        "state.backends": ("FilesystemBackend", "MemoryBackend", "RocksdbBackend", "StateBackend"),
        "status.listeners": ("Listener",),
        "status.otel": ("OpenTelemetry",),
        "storage": ("LocalStorage", "Storage"),
        "errors": (),
        "sinks": (),
        "sources": (),
        "testing": (),
        "types": (),
        "windows": (),
    },
)
"""What is imported when it is asked for: a supervisor, a command that looks at storage and a Python worker each need little of it, and
without a name of the spark package PySpark is not imported."""
__getattr__, __dir__ = _LATE_NAMES.get, _LATE_NAMES.all
