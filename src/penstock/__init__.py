"""Flink's fault tolerance for Spark Structured Streaming. This is the only public door."""

from typing import TYPE_CHECKING

from penstock import sinks, sources
from penstock.config import Checkpointing, Mode, OnCancel
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
    SourceLostError,
    UnavailableError,
    UserCodeError,
)
from penstock.guarantee import Guarantee
from penstock.job import Job, KeyedStream, Stream
from penstock.operators.batch_process import BatchKeys, BatchProcess, BatchRows
from penstock.operators.batch_state import BatchState
from penstock.operators.keyed_process import Context, KeyedProcess, ValueState
from penstock.recovery.restart import exponential_delay, failure_rate, fixed_delay, no_restart

if TYPE_CHECKING:
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
    "BadRecordError",
    "BatchKeys",
    "BatchProcess",
    "BatchRows",
    "BatchState",
    "CheckpointFailedError",
    "Checkpointing",
    "CommitLostError",
    "ConfigError",
    "Context",
    "CorruptStateError",
    "FencedError",
    "Guarantee",
    "IncompatibleStateError",
    "InternalError",
    "Job",
    "JobFailedError",
    "KeyedProcess",
    "KeyedStream",
    "Mode",
    "OnCancel",
    "PenstockError",
    "SourceLostError",
    "Stream",
    "UnavailableError",
    "UserCodeError",
    "ValueState",
    "__version__",
    "exponential_delay",
    "failure_rate",
    "fixed_delay",
    "local_session",
    "no_restart",
    "sinks",
    "sources",
]


def __getattr__(name: str) -> object:
    """`local_session` lives in the spark package, which is imported only by those who use it."""
    if name == "local_session":
        from penstock.spark.session import local_session

        return local_session
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
