"""Describes an exception of user code in a task: its line, the key, the row, and which names there are. Executors.

All of it is read from the exception, where it was raised: code that fails seldom pays nothing while it works.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import FrameType
from typing import Any

from penstock.errors import PenstockError
from penstock.operators.process.columns import BatchProcess
from penstock.operators.process.keyed import KeyedCode
from penstock.operators.process.unkeyed import Process
from penstock.operators.process.user_code import Context, OpensAndCloses
from penstock.operators.state.batch_tables import BatchColumns
from penstock.operators.state.cells import Cell, StateAssignedError
from penstock.operators.state.declarations import declared_state
from penstock.operators.state.timers import Timer
from penstock.operators.values.rows import Row, Rows, UnknownColumnError
from penstock.places import Place, place_in_user_code, place_of_frame, user_frames
from penstock.wording import did_you_mean

MOST_CHARACTERS = 300
_OF_CONTEXT = ("emit", "reject", "set_timer", "delete_timer", "watermark", "now")


@dataclass(frozen=True)
class FailedCall:
    """The known facts about a failed call; '' and None for what is not known."""

    place: Place | None = None
    key: str = ""
    row: str = ""
    names: str = ""
    """Which there are, where the code has used one that there is not."""
    is_wrong_name: bool = False
    """Whether the code uses a name that does not exist, or assigns to state: no second attempt helps."""


def failed_call(error: BaseException) -> FailedCall:
    """Collect the facts about an exception, where it is caught."""
    seen = user_frames(error.__traceback__)
    frames = [frame for frame, _ in seen]
    names = _names(error, frames)
    called = [place_of_frame(frame, line) for frame, line in seen if _is_call(frame)]
    return FailedCall(
        place_in_user_code(error.__traceback__) or (called[0] if called else _code(error)),
        _shown_fact(error, "key") or _key(frames),
        _shown_fact(error, "row") or _row(error, frames),
        names,
        bool(names)
        or isinstance(error, NameError | StateAssignedError)
        or _fact(error, "is_wrong_name") is not None,
    )


def _code(error: BaseException) -> Place | None:
    code = _fact(error, "code")
    return code if isinstance(code, Place) else None


def shown(value: object) -> str:
    """A value of any kind for a message, cut where it is long."""
    try:
        text = _columns(value) if isinstance(value, Mapping) else repr(value)
    except Exception as error:  # noqa: BLE001 - the user's own repr, or text that is no UTF-8: this is not what failed
        return f"(it cannot be shown: {type(error).__name__})"
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def _columns(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


def _fact(error: BaseException, name: str) -> object:
    return error.facts.get(name) if isinstance(error, PenstockError) else None


def _shown_fact(error: BaseException, name: str) -> str:
    fact = _fact(error, name)
    if isinstance(fact, Rows):
        return _first_of(fact)
    return "" if fact is None else shown(fact)


# ── which key, which row ───────────────────────────────────────────────────────────────────────


def _arguments(frame: FrameType) -> list[object]:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return [frame.f_locals.get(name) for name in names]


def _is_call(frame: FrameType) -> bool:
    """Whether it is of a method of the user's operator, which may be in an installed package."""
    return isinstance(next(iter(_arguments(frame)), None), OpensAndCloses)


def _key(frames: list[FrameType]) -> str:
    """The key that `process` or `on_timer` was called with."""
    for frame in frames:
        arguments = _arguments(frame)
        if (
            frame.f_code.co_name in ("process", "process_left", "process_right", "on_timer")
            and len(arguments) > 1
            and isinstance(arguments[0], OpensAndCloses)
            and not isinstance(arguments[0], BatchProcess | Process)
        ):
            return shown(arguments[1])
    return ""


def _row(error: BaseException, frames: list[FrameType]) -> str:
    """The one that the code has in its hands, or the only one; else the first of those that it was called with, or the timer."""
    if isinstance(error, AttributeError) and isinstance(error.obj, Row):
        return _shown_row(error.obj)
    for row in _held(frames, Row):
        return _shown_row(row)
    for rows in _held(frames, Rows):
        if len(rows):
            return _first_of(rows)
    for timer in _held(frames, Timer):
        return shown(timer)
    return ""


def _first_of(rows: Rows) -> str:
    more = f" (the first of {len(rows)})" if len(rows) > 1 else ""
    return f"{_shown_row(rows[0])}{more}"


def _held(frames: list[FrameType], kind: type) -> Iterator[Any]:
    for frame in reversed(frames):
        yield from (value for value in reversed(frame.f_locals.values()) if isinstance(value, kind))


def _shown_row(row: Any) -> str:
    try:
        values = row._asdict()
    except Exception as error:  # noqa: BLE001 - a value that cannot be read: this is not what failed
        return f"(it cannot be shown: {type(error).__name__})"
    return shown(values)


# ── which names there are ──────────────────────────────────────────────────────────────────────


def _names(error: BaseException, frames: list[FrameType]) -> str:
    match error:
        case UnknownColumnError():
            return _listed("columns", error.there_are, error.name)
        case AttributeError():
            return _attributes(error.obj, error.name or "")
        case NameError() if frames:
            return did_you_mean(
                error.name or "", [*frames[-1].f_locals, *frames[-1].f_globals, *dir(builtins)]
            )
        case _:
            return ""


def _attributes(owner: object, name: str) -> str:
    match owner:
        case Row():
            return _listed("columns", owner._fields, name)
        case BatchColumns():
            return f'{_listed("columns", owner.column_names, name)}; write batch["name"]'
        case KeyedCode() | BatchProcess() | Process():
            return _listed("states", declared_state(owner), name, also=vars(owner))
        case Cell():
            return owner.members
        case Context():
            public = [field.name for field in fields(owner) if not field.name.startswith("_")]
            return _listed("fields of the context", public, name, also=_OF_CONTEXT)
        case _:
            return ""


def _listed(what: str, there_are: Iterable[str], name: str, also: Iterable[str] = ()) -> str:
    known = list(there_are)
    close = did_you_mean(name, [*known, *also])
    return f"{what}: {', '.join(known) or 'none'}{f'; {close}' if close else ''}"
