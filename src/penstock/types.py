"""The types that annotations of a user's program name. Nothing here is made by hand: streams, handles and rows come from calls."""

from typing import TYPE_CHECKING

from penstock.config import Duration
from penstock.lazy_imports import LateNames

if TYPE_CHECKING:
    from penstock.checkpoint.completed import Completed
    from penstock.guarantee import Guarantee
    from penstock.keyed_streams import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedKeyedStreams,
        ConnectedStreams,
        KeyedStream,
        WindowedStream,
    )
    from penstock.log_fields import JsonLines, LogFields
    from penstock.operators.process.column_state import BatchState
    from penstock.operators.process.columns import BatchKeys, BatchRows, BatchTimers
    from penstock.operators.process.user_code import Context
    from penstock.operators.rows import Row, Rows
    from penstock.operators.state.batch_tables import BatchColumns, BatchList, BatchMap
    from penstock.operators.state.timers import Timer
    from penstock.operators.window.kinds import TimeWindow
    from penstock.recovery.restart import RestartStrategy
    from penstock.savepoint.contents import OperatorContents
    from penstock.spark.job_handle import JobHandle
    from penstock.spark.saved_state import SavedState
    from penstock.spark.status import Status
    from penstock.status.events import Event
    from penstock.status.live import Progress
    from penstock.streams import Stream, Written

__all__ = [
    "BatchColumns",
    "BatchKeys",
    "BatchList",
    "BatchMap",
    "BatchRows",
    "BatchState",
    "BatchTimers",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "Completed",
    "ConnectedKeyedStreams",
    "ConnectedStreams",
    "Context",
    "Duration",
    "Event",
    "Guarantee",
    "JobHandle",
    "JsonLines",
    "KeyedStream",
    "LogFields",
    "OperatorContents",
    "Progress",
    "RestartStrategy",
    "Row",
    "Rows",
    "SavedState",
    "Status",
    "Stream",
    "TimeWindow",
    "Timer",
    "WindowedStream",
    "Written",
]

_LATE_NAMES = LateNames(
    __name__,
    {
        "BatchColumns": "operators.state.batch_tables",
        "BatchKeys": "operators.process.columns",
        "BatchList": "operators.state.batch_tables",
        "BatchMap": "operators.state.batch_tables",
        "BatchRows": "operators.process.columns",
        "BatchState": "operators.process.column_state",
        "BatchTimers": "operators.process.columns",
        "BroadcastConnectedStream": "keyed_streams",
        "BroadcastStream": "keyed_streams",
        "Completed": "checkpoint.completed",
        "ConnectedKeyedStreams": "keyed_streams",
        "ConnectedStreams": "keyed_streams",
        "Context": "operators.process.user_code",
        "Event": "status.events",
        "Guarantee": "guarantee",
        "JobHandle": "spark.job_handle",
        "JsonLines": "log_fields",
        "KeyedStream": "keyed_streams",
        "LogFields": "log_fields",
        "OperatorContents": "savepoint.contents",
        "Progress": "status.live",
        "RestartStrategy": "recovery.restart",
        "Row": "operators.rows",
        "Rows": "operators.rows",
        "SavedState": "spark.saved_state",
        "Status": "spark.status",
        "Stream": "streams",
        "TimeWindow": "operators.window.kinds",
        "Timer": "operators.state.timers",
        "WindowedStream": "keyed_streams",
        "Written": "streams",
    },
    below="penstock",
)
__getattr__, __dir__ = _LATE_NAMES.get, _LATE_NAMES.all
