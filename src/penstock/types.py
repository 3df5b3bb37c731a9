"""The types that annotations of a user's program name. Nothing here is made by hand: streams, handles and rows come from calls."""

from typing import TYPE_CHECKING

from penstock.config import Duration
from penstock.lazy_imports import LateNames

if TYPE_CHECKING:
    from penstock.checkpoint.model import Completed
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
    from penstock.operators.state.batch_tables import BatchColumns, BatchList, BatchMap
    from penstock.operators.state.timers import Timer
    from penstock.operators.values.rows import Row, Rows
    from penstock.operators.window.base import TimeWindow
    from penstock.recovery.restart import RestartStrategy
    from penstock.savepoint.contents import OperatorContents
    from penstock.spark.job_handle import JobHandle
    from penstock.spark.saved_state import SavedState
    from penstock.status.events import Event
    from penstock.status.live import Progress, Status
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
        "checkpoint.model": ("Completed",),
        "guarantee": ("Guarantee",),
        "keyed_streams": (
            "BroadcastConnectedStream",
            "BroadcastStream",
            "ConnectedKeyedStreams",
            "ConnectedStreams",
            "KeyedStream",
            "WindowedStream",
        ),
        "log_fields": ("JsonLines", "LogFields"),
        "operators.process.column_state": ("BatchState",),
        "operators.process.columns": ("BatchKeys", "BatchRows", "BatchTimers"),
        "operators.process.user_code": ("Context",),
        "operators.state.batch_tables": ("BatchColumns", "BatchList", "BatchMap"),
        "operators.state.timers": ("Timer",),
        "operators.values.rows": ("Row", "Rows"),
        "operators.window.base": ("TimeWindow",),
        "recovery.restart": ("RestartStrategy",),
        "savepoint.contents": ("OperatorContents",),
        "spark.job_handle": ("JobHandle",),
        "spark.saved_state": ("SavedState",),
        "status.events": ("Event",),
        "status.live": ("Progress", "Status"),
        "streams": ("Stream", "Written"),
    },
    below="penstock",
)
__getattr__, __dir__ = _LATE_NAMES.get, _LATE_NAMES.all
