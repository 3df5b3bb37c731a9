"""Asking a running job for something without waiting for it: what a page or a REST call does, which answers at once and is asked again.

The job deletes what it has answered after an hour. Wherever somebody asks.
"""

from __future__ import annotations

import msgspec

from penstock.errors import ConfigError
from penstock.ownership.request_client import refuse_unless_running
from penstock.ownership.requests import (
    ID_DIGITS,
    Facts,
    Kind,
    Request,
    is_asked_for,
    put_request,
    read_answer,
    read_request,
    taken_on_by,
)
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.savepoint.trigger import check_folder
from penstock.storage import Storage

USUAL_TIMEOUT_S = 600.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a request by now."""

    request: str
    state: str
    """`waiting` (nobody has taken it on), `under way`, `done`, `failed`, or `unknown`: never asked, or forgotten an hour later."""
    facts: Facts = {}
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("done", "failed", "unknown")


def ask(
    storage: Storage,
    kind: Kind,
    *,
    by: str,
    now: float,
    timeout_s: float = USUAL_TIMEOUT_S,
    request: str = "",
    **options: object,
) -> str:
    """Ask the run that owns the job; returns the id of the request. Raises `ConfigError` when none is alive, or a folder is not allowed.

    `request`: an id that the asker has made. Asked again with the same one, nothing is asked for a second time.
    """
    if is_request_id(request) and outcome(storage, request).state != "unknown":
        _refuse_if_for_something_else(storage, kind, request)
        return request
    to = options.get("to")
    check_folder(storage, to if isinstance(to, str) else None)
    refuse_unless_running(storage, now)
    request = request if is_request_id(request) else SYSTEM_RANDOMNESS.token(ID_DIGITS)
    fields = {"kind": kind, "asked_at": now, "until": now + timeout_s, "by": by, **options}
    put_request(storage, request, msgspec.convert(fields, Request))
    return request


def _refuse_if_for_something_else(storage: Storage, kind: Kind, request: str) -> None:
    try:
        before = read_request(storage, request).kind
    except FileNotFoundError:  # forgotten in this moment
        return
    if before is not kind:
        raise ConfigError(
            f"the id {request} was used before, for a {before}; nothing was asked for; choose another for the {kind}",
            request=request,
        )


def outcome(storage: Storage, request: str) -> Outcome:
    """What has become of it. `request` must be one that `ask` has returned: hexadecimal digits."""
    if not is_request_id(request):
        return Outcome(request=request, state="unknown")
    done = read_answer(storage, request)
    if done is not None:
        return Outcome(
            request=request, state="done" if done.ok else "failed", facts=done.facts, error=done.error
        )
    if not is_asked_for(storage, request):
        return Outcome(request=request, state="unknown")
    return Outcome(request=request, state="waiting" if taken_on_by(storage, request) is None else "under way")


def is_request_id(text: str) -> bool:
    """Whether this can be one: it becomes a part of a file's name."""
    return len(text) == ID_DIGITS and all(digit in "0123456789abcdef" for digit in text)
