"""An exclusive create over a store whose answers may get lost. Driver and executors, and the simulation.

The store has a conditional put. Its answer may be wrong in both directions: what was stored is reported as an error (the connection
breaks, the server answers 500 or 503 or too late), and a client that retries by itself is told that the name exists, by its own object.
So each create has a token of its own, which is stored with the object. After any answer but "stored", the token of the object decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.errors import UnavailableError

PAUSES_S = (0.05, 0.2, 0.8, 2.0)
"""Between the attempts of one create. There is one attempt more."""


class ConditionalStore(Protocol):
    """What an exclusive create needs of a store. Every failure is an `UnavailableError`."""

    def put_new(self, name: str, data: bytes, token: str) -> bool:
        """Store an object with its token if the name is free. False: the store says that it is not."""

    def token_of(self, name: str) -> str | None:
        """The token of the object of this name; '' if it has none, None if there is no object."""


def create_once(
    store: ConditionalStore, name: str, data: bytes, *, token: str, sleep: Callable[[float], None]
) -> bool:
    """Store an object that has exactly one creator; returns whether this call is it.

    Raises `UnavailableError` if that cannot be found out: the object may exist then, or come into being later.
    """
    failed = None
    for pause_s in (None, *PAUSES_S):
        try:
            if pause_s is not None:
                sleep(pause_s)
                if (mine := _is_mine(store, name, token)) is not None:
                    return mine
            if store.put_new(name, data, token):
                return True
            if (mine := _is_mine(store, name, token)) is not None:
                return mine
        except UnavailableError as error:
            if error.facts.get("denied"):
                raise
            failed = error
    if (mine := _is_mine(store, name, token)) is not None:
        return mine
    raise failed or _contradiction(name)


def _is_mine(store: ConditionalStore, name: str, token: str) -> bool | None:
    """Whether the object was created with this token; None if there is no object."""
    found = store.token_of(name)
    return None if found is None else found == token


def _contradiction(name: str) -> UnavailableError:
    return UnavailableError(
        f"the store says that {name!r} exists, and then that it does not, again and again: another writer is changing it",
        name=name,
    )
