"""Reads state in a child process with little memory and little time. The dashboard's process, and the child.

A hostile file in the storage may declare few rows and unpack to gigabytes. No declared size is trusted, whatever the backend: the system
limits the memory of the process to `MEMORY_BYTES` (on Linux; other systems do not bound it), and the process is killed after `SECONDS`. The
parent holds the checkpoint, so a killed process leaves no hold.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import child_process
from penstock.checkpoint.metadata import CheckpointName, read_metadata
from penstock.checkpoint.model import Completed
from penstock.dashboard import pages
from penstock.dashboard.responses import json_answer, page_answer
from penstock.dashboard.status_poller import Seen
from penstock.decoding import decoded
from penstock.errors import CorruptStateError, InternalError, UnavailableError, error_named
from penstock.ids import CheckpointId, RunId
from penstock.recovery.history import read_held
from penstock.status.job_watcher import BoundedReading
from penstock.status.stored_state import (
    USUAL_LIMITS,
    FoundRows,
    LargestKeys,
    Question,
    StateContents,
    answer,
    check_question,
    state_contents,
)
from penstock.status.view import CheckpointStatus, CheckpointView
from penstock.storage import LocalStorage, Storage, open_storage
from penstock.wording import duration, size

MEMORY_BYTES = 1 << 30
"""The memory of the process above its initial size; mapped files count."""
SECONDS = 30.0
"""The time of the process. Reading alone is limited to 10 seconds; opening files takes more."""
LARGEST_ANSWER_BYTES = 8 << 20
NO_ROOM = 3
"""The exit code if memory runs out; 1 is any other error, which the process reports."""
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Other memory pools, and pools for each thread, reserve memory that they never use but that counts."""


class StateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to read, and its limits."""

    storage: str
    checkpoint: int
    run: int
    question: Question
    memory_bytes: int
    seconds: float


class StateFailure(msgspec.Struct, frozen=True):
    """The error that the process reports instead of an answer."""

    error: str
    why: str


_FAILURES = msgspec.json.Decoder(StateFailure)


class _GivenUpError(Exception):
    """A limit was reached. Not a `PenstockError`, so that no other checkpoint is tried: it would reach the same limit."""


def read_in_process(storage: Storage, question: Question) -> bytes:
    """The answer as JSON; raises `ConfigError` for a wrong question, `UnavailableError` if a limit was reached."""
    reading = BoundedReading(storage)

    def read(completed: Completed) -> bytes:
        check_question(reading, completed, question)
        return _answered(
            StateRequest(
                storage=storage.uri,
                checkpoint=completed.checkpoint,
                run=completed.run,
                question=question,
                memory_bytes=MEMORY_BYTES,
                seconds=SECONDS,
            )
        )

    try:
        return read_held(reading, read, why=question.why)
    except _GivenUpError as error:
        raise UnavailableError(
            f"the look-up in {question.state} of {question.operator} was given up: {error}. The job is not affected. Read this state "
            "with Spark, using ps.read_state; if it should be small, its files may be forged",
            operator=question.operator,
        ) from error


def _answered(request: StateRequest) -> bytes:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-read-") as scratch,
        child_process.start_module(__name__, request, env={**_ENVIRONMENT, "TMPDIR": scratch}) as child,
    ):
        found = next(child.lines(request.seconds), b"")
        if found is None:
            raise _GivenUpError(f"it took longer than {duration(request.seconds)}")
        if (status := child.wait()) == 0:
            return found
        raise _why(status, found, child.last_words(), request)


def _why(status: int, found: bytes, last_words: str, request: StateRequest) -> Exception:
    room = size(request.memory_bytes)
    if status == NO_ROOM:
        return _GivenUpError(f"it needs more than {room} of memory")
    if status < 0:
        return _GivenUpError(
            f"its process was killed by {signal.Signals(-status).name}, which happens if it needs more than {room} of memory or "
            f"{duration(request.seconds)} of processor time"
        )
    try:
        failed = decoded(_FAILURES, found)
    except msgspec.DecodeError:
        return InternalError(f"the process that reads state ended with {status}: {last_words}")
    return error_named(failed.error, failed.why)


AT_A_TIME = 2
"""The limit of concurrent reads of rows."""
KEPT = 50
MOST_KEYS = 100
_DIGITS = 10
_COLUMN = "key."
_T = TypeVar("_T")
_Name = tuple[str, int, int]
_ROWS = msgspec.json.Decoder(FoundRows)
_LARGEST = msgspec.json.Decoder(LargestKeys)


class StateReader:
    """Reads state for all requests. Thread-safe."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(AT_A_TIME)
        self._contents: dict[_Name, StateContents] = {}

    def contents(self, seen: Seen) -> StateContents | None:
        """The contents of the newest checkpoint; None if there is none. Each checkpoint is read once."""
        retained = next((one for one in seen.view.checkpoints if _is_readable(one)), None)
        if retained is None:
            return None
        name = (seen.job.storage.uri, retained.checkpoint, retained.run)
        found = self._contents.get(name)
        if found is None:
            found = state_contents(BoundedReading(seen.job.storage))
            if len(self._contents) >= KEPT:
                self._contents.clear()
            self._contents[name] = found
        return found

    def reading(self, read: Callable[[], _T]) -> _T:
        """Read rows, unless too many requests do; then raises 503."""
        with self._turn():
            return read()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise HTTPException(
                503,
                f"{AT_A_TIME} other requests are reading state, which is the limit; try again in some seconds",
                {"Retry-After": "5"},
            )
        try:
            yield
        finally:
            self._free.release()


def lookup_routes(seen_job: Callable[[Request], Seen], states: StateReader) -> list[Route]:
    """`GET /jobs/{job}/state/{operator}/{state}.json?key=...`, once for each column of the key, or `key.COLUMN=...`; or `?largest=20`.

    With `.html`, the same as a part of the State page.
    """

    async def answered(request: Request) -> tuple[Question, bytes]:
        storage, question = seen_job(request).job.storage, _question(request)
        return question, await run_in_threadpool(states.reading, lambda: read_in_process(storage, question))

    async def lookup(request: Request) -> Response:
        return json_answer((await answered(request))[1])

    async def part_of_page(request: Request) -> Response:
        question, found = await answered(request)
        return page_answer(pages.found((_LARGEST if question.largest else _ROWS).decode(found)))

    path = "/jobs/{job}/state/{operator}/{state:path}"
    return [Route(f"{path}.json", lookup), Route(f"{path}.html", part_of_page)]


def _question(request: Request) -> Question:
    operator, state = request.path_params["operator"], request.path_params["state"]
    largest = request.query_params.get("largest", "")
    if not largest:
        return Question(operator=operator, state=state, key=asked_key(request))
    most = min(int(largest), MOST_KEYS) if largest.isdecimal() and len(largest) < _DIGITS else MOST_KEYS
    return Question(operator=operator, state=state, largest=max(1, most))


def asked_key(request: Request) -> dict[str, str] | list[str]:
    """The key, by column if the query names columns."""
    query = request.query_params
    named = {name.removeprefix(_COLUMN): query[name] for name in query if name.startswith(_COLUMN)}
    return named or query.getlist("key")


def _is_readable(one: CheckpointView) -> bool:
    return one.retained and one.status is CheckpointStatus.COMPLETED


_REQUESTS = msgspec.json.Decoder(StateRequest)


def main(line: bytes) -> int:
    """In the child: read the state within the limits of the request, and write the answer; returns the exit code."""
    request = _REQUESTS.decode(line)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _bound(request)
    try:
        sys.stdout.buffer.write(_found(request))
        sys.stdout.buffer.write(b"\n")
    except Exception as error:  # noqa: BLE001 - raised again in the dashboard
        if _is_out_of_memory(error):
            return NO_ROOM
        child_process.report(StateFailure(type(error).__name__, str(error) or type(error).__name__))
        return 1
    return 0


def _found(request: StateRequest) -> bytes:
    storage = open_storage(request.storage)
    name = CheckpointName(CheckpointId(request.checkpoint), RunId(request.run))
    completed = read_metadata(storage, name)
    _refuse_links(storage, [name.metadata, *sorted(completed.files)])
    encoded = msgspec.json.encode(answer(storage, completed, request.question))
    if len(encoded) > LARGEST_ANSWER_BYTES:
        raise UnavailableError(
            f"the answer for {request.question.state} of {request.question.operator} has {size(len(encoded))}, more than "
            f"the limit of {size(LARGEST_ANSWER_BYTES)}; read this state with Spark, using ps.read_state",
            operator=request.question.operator,
        )
    return encoded


def _refuse_links(storage: Storage, names: Iterable[str]) -> None:
    """Refuse links: they may lead to the state of another job, which these readers may not see."""
    linked = next((one for one in names if isinstance(storage, LocalStorage) and storage.leads_away(one)), "")
    if linked:
        raise CorruptStateError(
            f"{linked} in {storage.uri} is a link, or is reached through one: Penstock makes no links there, so it was not read; find "
            "out what made it",
            file=linked,
        )


def _bound(request: StateRequest) -> None:
    """Set limits that also hold for native code, and after the death of the dashboard."""
    _at_most(resource.RLIMIT_CPU, math.ceil(request.seconds))
    _at_most(resource.RLIMIT_FSIZE, USUAL_LIMITS.fetched_bytes)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _at_most(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGESIZE") + request.memory_bytes)


def _at_most(what: int, most: int) -> None:
    """Set a limit, at most the inherited one."""
    _, above = resource.getrlimit(what)
    most = most if above == resource.RLIM_INFINITY else min(most, above)
    resource.setrlimit(what, (most, most))


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, even if another error reports it."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
