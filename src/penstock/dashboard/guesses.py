"""Tokens that were shown and are not the right one: answered one at a time, and logged. The dashboard's process.

Whoever has the right token never waits: only an answer that says no does.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.wording import counted

_log = logging.getLogger(__name__)

PAUSE_S = 0.2
"""Between two answers to all who guess: five guesses a second, however many guess."""
LOG_EVERY_S = 60.0
"""A line for each would fill the disk."""


class Guesses:
    """Those of one server. By its event loop."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._untold = 0
        self._told_at = float("-inf")

    async def one_more(self, who: str) -> None:
        """Wait for its turn, and tell, before it is answered."""
        self._untold += 1
        now = self._clock.monotonic()
        if now - self._told_at >= LOG_EVERY_S:
            _log.warning(
                "the dashboard was shown %s, the last by %s", counted(self._untold, "wrong token"), who
            )
            self._untold, self._told_at = 0, now
        async with self._turn:
            await asyncio.sleep(PAUSE_S)
