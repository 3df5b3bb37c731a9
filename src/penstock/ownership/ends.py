"""How a run ended, and why: `runs/<k>.ended`. For people: no start reads it, so that nothing wrong with it is in a start's way. Driver."""

from __future__ import annotations

import enum

import msgspec

from penstock.ids import RunId
from penstock.ownership.records import read_record
from penstock.storage import Storage
from penstock.wording import storable

LONGEST_WHY = 1000
"""Characters of an error's text: a text with a user's rows in it may have any length."""


class RunOutcome(enum.StrEnum):
    """The ways in which a run ends when it can still say so."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    FENCED = "fenced"
    RESTARTED = "restarted"
    """It failed, and the same start tries again with the next run."""


class RunEnd(msgspec.Struct, frozen=True):
    """The last word of a run."""

    run: int
    how: str
    at: float
    error: str = ""
    """The class of what made it end; '' when nothing did."""
    why: str = ""


_ENDS = msgspec.json.Decoder(RunEnd)


def end_of(run: RunId, how: RunOutcome, at: float, error: BaseException | None = None) -> RunEnd:
    """What is written down about an end."""
    if error is None:
        return RunEnd(run, how, at)
    return RunEnd(run, how, at, type(error).__name__, _cut(str(error)))


def record_end(storage: Storage, end: RunEnd) -> None:
    """Write it down. A later word replaces it: a run that was to be tried again may find that it has lost the job."""
    storage.put(f"runs/{end.run}.ended", msgspec.json.encode(end))


def read_end(storage: Storage, run: RunId) -> RunEnd | None:
    """What a run said last; None when it said nothing. Raises `CorruptStateError` when that is not readable."""
    try:
        return read_record(storage, f"runs/{run}.ended", _ENDS)
    except FileNotFoundError:
        return None


def _cut(said: str) -> str:
    text = storable(said)
    return text if len(text) <= LONGEST_WHY else f"{text[: LONGEST_WHY - 4]} ..."
