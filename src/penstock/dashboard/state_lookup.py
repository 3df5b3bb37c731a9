"""State that somebody wants to see: few readings at a time, since each fetches files. The dashboard's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.dashboard import pages
from penstock.dashboard.answering import json_answer, page_answer
from penstock.dashboard.looking import Seen
from penstock.dashboard.state_beside import answer_beside
from penstock.status.job_watcher import BoundedReading
from penstock.status.stored_state import FoundRows, LargestKeys, Question, StateContents, state_contents
from penstock.status.view import CheckpointStatus, CheckpointView

AT_A_TIME = 2
"""Readings of rows."""
KEPT = 50
MOST_KEYS = 100
_DIGITS = 10
_COLUMN = "key."
_T = TypeVar("_T")
_Name = tuple[str, int, int]
_ROWS = msgspec.json.Decoder(FoundRows)
_LARGEST = msgspec.json.Decoder(LargestKeys)


class StateReader:
    """Reads for all who ask. By many threads."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(AT_A_TIME)
        self._contents: dict[_Name, StateContents] = {}

    def contents(self, seen: Seen) -> StateContents | None:
        """What is in the newest checkpoint; None when there is none. Read once for each checkpoint."""
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
        """Read rows, unless too many do."""
        with self._turn():
            return read()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise HTTPException(
                503,
                f"{AT_A_TIME} others are reading state, and more would take too much from the machine; ask again in some seconds",
                {"Retry-After": "5"},
            )
        try:
            yield
        finally:
            self._free.release()


def lookup_routes(seen_job: Callable[[Request], Seen], states: StateReader) -> list[Route]:
    """`GET /jobs/{job}/state/{operator}/{state}.json?key=...`, once for each column of the key, or `key.COLUMN=...`; or `?largest=20`.

    With `.html` the same as a part of the page of state.
    """

    async def answered(request: Request) -> tuple[Question, bytes]:
        storage, question = seen_job(request).job.storage, _question(request)
        return question, await run_in_threadpool(states.reading, lambda: answer_beside(storage, question))

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
    """The key, by column where columns are named."""
    query = request.query_params
    named = {name.removeprefix(_COLUMN): query[name] for name in query if name.startswith(_COLUMN)}
    return named or query.getlist("key")


def _is_readable(one: CheckpointView) -> bool:
    return one.retained and one.status is CheckpointStatus.COMPLETED
