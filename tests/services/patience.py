"""How long a test waits for what must come: longer than the slowest machine takes, for this is only against hanging.

Not much longer: a few tests that hang must not use up the time of a whole run, which would then say nothing of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

PATIENCE_S = 300.0


def tries(pause_s: float) -> Iterator[None]:
    """One now, then one after each pause, until patience ends."""
    end = time.monotonic() + PATIENCE_S
    yield
    while time.monotonic() < end:
        time.sleep(pause_s)
        yield


def wait_for(what: Callable[[], bool]) -> None:
    """Return when it is so."""
    for _ in tries(0.1):
        if what():
            return
    raise TimeoutError("it did not come")
