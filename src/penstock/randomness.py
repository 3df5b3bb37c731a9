"""The only place where chance comes in: names that nobody else has, jitter, secrets. Driver and executors."""

from __future__ import annotations

import random
import secrets

UNIQUE_DIGITS = 32


class Randomness:
    """Tokens and jitter. By default the system is asked each time, so that forked workers never draw the same.

    A simulation hands in a seeded generator, and draws the same in every replay.
    """

    def __init__(self, generator: random.Random | None = None) -> None:
        self._generator = generator or random.SystemRandom()

    def token(self, digits: int = UNIQUE_DIGITS) -> str:
        """So many hexadecimal digits; with the usual number of them no two are ever the same."""
        return f"{self._generator.getrandbits(4 * digits):0{digits}x}"

    def between(self, low: float, high: float) -> float:
        """A number of this range, every part of it as likely as any other."""
        return self._generator.uniform(low, high)


SYSTEM_RANDOMNESS = Randomness()


def secret_bytes(count: int) -> bytes:
    """Bytes that nobody can guess; no simulation replays them."""
    return secrets.token_bytes(count)
