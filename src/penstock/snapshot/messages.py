"""What executors tell the driver besides Spark's own results. Driver and executors.

Acknowledgements that decide about a batch travel with Spark's task results, so they count only for attempts that Spark
kept. These messages travel beside it: an upload that ended long after its task, or why a task failed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.ids import SubtaskId
from penstock.places import Place
from penstock.state.handle import FileRef, StateHandle
from penstock.wording import storable


class UploadDone(msgspec.Struct, frozen=True, tag="upload-done"):
    """Every file of the handle is in storage."""

    run: int
    handle: StateHandle
    async_ms: float


class UploadFailed(msgspec.Struct, frozen=True, tag="upload-failed"):
    """A file of the handle could not be stored; others of `files` may have been. `asked`: the files of the handle that was to be stored."""

    run: int
    subtask: SubtaskId
    version: int
    cause: str
    asked: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    tried: int | None = None
    """The version that `files` are of, where it is a newer one than was asked for."""


class TaskFailed(msgspec.Struct, frozen=True, tag="task-failed"):
    """A task is about to fail; `error` names the class in `penstock.errors`, or is '' for any other exception.

    Of another one `place` says where it was raised, and `may_pass` whether it is about the network or the machine.
    """

    run: int
    batch: int
    subtask: SubtaskId
    error: str
    cause: str
    file: str = ""
    place: str = ""
    may_pass: bool = False
    at: Place | None = None
    """The line of the user's code."""
    key: str = ""
    row: str = ""
    names: str = ""
    """Those that there are, where the user's code has used one that there is not."""
    is_wrong_name: bool = False
    notes: tuple[str, ...] = ()
    """What else was said of the exception on its way."""


class MergeDone(msgspec.Struct, frozen=True, tag="merge-done"):
    """Files were merged in the background and the result is in storage; no result when no row was left."""

    run: int
    subtask: SubtaskId
    replaced: tuple[str, ...]
    merged: FileRef | None
    duration_ms: float


class MergeFailed(msgspec.Struct, frozen=True, tag="merge-failed"):
    """Files could not be merged, or the result not be stored; they stay as they are."""

    run: int
    subtask: SubtaskId
    cause: str
    file: str = ""
    """What was to take their place; it may be in storage."""


Message = UploadDone | UploadFailed | TaskFailed | MergeDone | MergeFailed


def encoded(message: Message) -> bytes:
    """For the way to the driver. A cause that is no UTF-8 must not keep it from arriving: what cannot be written is spelt out."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(message)))


def _writable(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case list() | tuple():
            return [_writable(each) for each in value]
        case dict():
            return {name: _writable(each) for name, each in value.items()}
    return value
