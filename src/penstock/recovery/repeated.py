"""A failure that comes again at the same batch is of the user's code or data: another attempt would only meet it again. Pure; both.

What may pass by itself, such as a server that does not answer, is never counted: for that there is the restart strategy.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.logins import refuses_login

MOST_IN_A_ROW = 3
MOST_IN_A_ROW_AVAILABLE_NOW = 2
LEAST_TIME_S = 120.0
"""A job that nobody waits for goes on at least so long: not every outage can be told from a mistake, and most are over by then."""

_MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Kinds of OSError that are about a name that somebody wrote down."""
_NAMES = frozenset({"OperationalError", "InterfaceError", "KafkaException", "RpcError", "AutoReconnect"})
_ENDS = (
    *("Timeout", "TimeoutError", "TimeoutException", "TimedOut", "Unavailable", "UnavailableError"),
    *("ConnectionError", "ConnectError", "ConnectionFailure", "NetworkError"),
)
"""What clients of servers call it when the server does not answer. DB-API has a name for it; most others follow a habit."""


@dataclass(frozen=True)
class Failure:
    """A failure as far as it can be recognised: its batch, and a cause that reads the same when the same happens again.

    Without a batch or a cause it may pass by itself.
    """

    batch: int | None = None
    cause: str = ""


def times_in_a_row(failures: Sequence[Failure]) -> int:
    """How often the newest failure has come without another in between; 0 for one that may pass."""
    newest = failures[-1]
    if newest.batch is None or not newest.cause:
        return 0
    others = [index for index, failure in enumerate(failures) if failure != newest]
    return len(failures) - 1 - (others[-1] if others else -1)


def would_come_again(failures: Sequence[Failure], times: Sequence[float], *, available_now: bool) -> bool:
    """Whether the newest failure has come so often that one more attempt is of no use; somebody waits for `available_now`.

    `times` (s) says of each failure when it came.
    """
    in_a_row = times_in_a_row(failures)
    if available_now:
        return in_a_row >= MOST_IN_A_ROW_AVAILABLE_NOW
    return in_a_row >= MOST_IN_A_ROW and times[-1] - times[-in_a_row] >= LEAST_TIME_S


def may_pass(error: BaseException) -> bool:
    """Whether an exception of user code is about the network or the machine, and not about the code."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and not isinstance(error, _MISTAKES)):
        return True
    return any(isinstance(one, ConnectionError | TimeoutError) or _of_a_client(one) for one in _chain(error))


def may_pass_by_name(name: str) -> bool:
    """The same of an exception of which only the name of its class is known, with or without a module."""
    short = name.rpartition(".")[2]
    kind = getattr(builtins, short, None) if name == short else None
    if isinstance(kind, type):
        return issubclass(kind, MemoryError | OSError) and not issubclass(kind, _MISTAKES)
    return short in _NAMES or short.endswith(_ENDS)


def _of_a_client(error: BaseException) -> bool:
    if refuses_login(error):
        return False  # clients call it an outage; it is a setting
    if getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":
        return False  # a mistake in the SQL, for which SQLite has no class of its own
    return any(may_pass_by_name(f"{kind.__module__}.{kind.__name__}") for kind in type(error).__mro__)


def place_of(error: BaseException) -> str:
    """Where an exception was raised. Its text may differ from attempt to attempt: which row is met first is chance."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
        if frames
        else type(error).__name__
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that led to it."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
