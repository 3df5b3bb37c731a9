"""The files of requests to a running job, written by any process that reaches its storage. No port is needed. Driver and clients.

    requests/<id>.json    the request, and its deadline; written by the client
    requests/<id>.taken   created exclusively, by the run that accepts the request, or by the client that withdraws it
    requests/<id>.done    the result, created exclusively

What always holds:
1. Only the run that owns the job performs a request, after it has accepted it and then checked its claim.
2. A withdrawn request is never performed, and an accepted one cannot be withdrawn. A client that withdraws deletes all three files,
   the request first. So a run that has accepted a request checks that it still exists before it does anything.
3. An expired request is answered as expired. A request that cannot be read, or that is unknown, is answered as such.
4. When a run dies in the middle, the next run performs the request again or answers it: only an answer ends a request.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.errors import CorruptStateError
from penstock.ids import RunId
from penstock.ownership.records import read_small
from penstock.places import safe_text
from penstock.storage import Storage

ID_DIGITS = 32
LONGEST_ERROR = 4000
LONGEST_NAME = 200
"""Characters of the name of the asker."""
PROGRAM = "the program itself"
"""Who asks through the handle of a job: that needs no file."""
LATEST = 1e11
"""No time is later, in seconds since the epoch: some thousand years."""

Facts = dict[str, Any]
"""What an answer says besides yes or no: names with numbers and texts."""

_FILE = re.compile(r"requests/([0-9a-f]{1,64})\.(json|taken|done)")


class Kind(enum.StrEnum):
    """What a job can be asked for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    CANCEL = "cancel"


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. A field that this version does not know is refused: it may be what matters to the asker."""

    kind: Kind
    asked_at: float
    until: float
    """The time after which no run begins with it, by the clock of the asker."""
    savepoint: bool = False
    """For a stop: whether to make a savepoint."""
    to: str | None = None
    """The folder of the savepoint, as a path or URI that the driver can open; None: a new one beside the job."""
    drain: bool = False
    """For a stop: whether to end event time first."""
    by: str = ""
    """Who asks, for people."""


class Taken(msgspec.Struct, frozen=True):
    """The run that accepted the request; None: its client has withdrawn it."""

    run: int | None


class Done(msgspec.Struct, frozen=True):
    """The result of a request: facts, or the error."""

    ok: bool
    facts: Facts = {}
    error: str = ""
    kind: str = ""
    """The class of the error."""

    @classmethod
    def failed(cls, error: BaseException | str) -> Done:
        """The result of a request that failed."""
        kind = "" if isinstance(error, str) else type(error).__name__
        return cls(ok=False, error=safe_text(str(error))[:LONGEST_ERROR], kind=kind)


_REQUESTS = msgspec.json.Decoder(Request)
_TAKEN = msgspec.json.Decoder(Taken)
_DONE = msgspec.json.Decoder(Done)


class Listing:
    """What one look at `requests/` shows."""

    def __init__(self, storage: Storage) -> None:
        self._kinds: dict[str, set[str]] = {}
        for match in map(_FILE.fullmatch, storage.names("requests")):
            if match:
                self._kinds.setdefault(match[1], set()).add(match[2])

    @property
    def open(self) -> list[str]:
        """The ids of those that wait for an answer."""
        return [name for name, kinds in self._kinds.items() if _waits(kinds)]

    @property
    def over(self) -> list[str]:
        """The ids of those that are answered, or of which only a part is left."""
        return [name for name, kinds in self._kinds.items() if not _waits(kinds)]


def _waits(kinds: set[str]) -> bool:
    return "json" in kinds and "done" not in kinds


def files_of(request_id: str) -> list[str]:
    """Everything about a request, in the order of deletion: without the first the others are not read."""
    return [f"requests/{request_id}.{kind}" for kind in ("json", "taken", "done")]


def put_request(storage: Storage, request_id: str, request: Request) -> None:
    """Write a request into the job's storage."""
    storage.put(f"requests/{request_id}.json", msgspec.json.encode(request))


def read_request(storage: Storage, request_id: str) -> Request:
    """The request. Raises `CorruptStateError` if it cannot be decoded, `FileNotFoundError` if it is gone."""
    name = f"requests/{request_id}.json"
    try:
        return _clamped(read_small(storage, name, _REQUESTS))
    except msgspec.DecodeError as error:
        raise CorruptStateError(
            f"{name} in {storage.uri} is no request that this version of Penstock understands: {error}; nothing was done; ask with the "
            "version that runs the job",
            name=name,
        ) from error


def _clamped(request: Request) -> Request:
    """Times with which one can reckon, and a name that is one line of a log, whatever was written."""
    asked_at, until = (min(max(0.0, time), LATEST) for time in (request.asked_at, request.until))
    by = "".join(one for one in " ".join(request.by.split()) if one.isprintable())[:LONGEST_NAME]
    return msgspec.structs.replace(request, asked_at=asked_at, until=until, by=by)


def is_asked_for(storage: Storage, request_id: str) -> bool:
    """Whether the request still exists. After `take_on` the answer is final: a decision is deleted after its request."""
    return storage.size(f"requests/{request_id}.json") is not None


def take_on(storage: Storage, request_id: str, run: RunId) -> bool:
    """Decide to perform it; false when its asker has taken it back. True also when an earlier run had decided so, and died.

    `is_asked_for` and the claim have to be checked after it, before anything is done.
    """
    return _decided(storage, request_id, run) is not None


def take_back(storage: Storage, request_id: str) -> bool:
    """Decide that it is never performed; false when a run has taken it on."""
    return _decided(storage, request_id, None) is None


def taken_on_by(storage: Storage, request_id: str) -> int | None:
    """The run that has taken it on, if one has."""
    try:
        return read_small(storage, f"requests/{request_id}.taken", _TAKEN).run
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _decided(storage: Storage, request_id: str, by: RunId | None) -> int | None:
    """The decision, which is this one if there was none before. A damaged one counts as the asker's: nothing is done then."""
    if storage.create(f"requests/{request_id}.taken", msgspec.json.encode(Taken(by))):
        return by
    return taken_on_by(storage, request_id)


def answer(storage: Storage, request_id: str, done: Done) -> bool:
    """Write the result; false if there is one already."""
    return storage.create(f"requests/{request_id}.done", msgspec.json.encode(done))


def read_answer(storage: Storage, request_id: str) -> Done | None:
    """The result; None if there is none yet."""
    name = f"requests/{request_id}.done"
    try:
        return read_small(storage, name, _DONE)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{name} in {storage.uri} is not readable: {error}", name=name) from error


def forget_requests(storage: Storage, requests: Iterable[str]) -> None:
    """Delete all files of these requests."""
    storage.delete([name for request_id in requests for name in files_of(request_id)])
