"""The names and numbers that everything else is keyed by, and the random tokens among them. Driver and executors."""

from __future__ import annotations

import random
import re
import secrets
from typing import NewType

import msgspec

from penstock.errors import ConfigError

JobName = NewType("JobName", str)
Uid = NewType("Uid", str)
"""The stable id of a source, operator or sink: state and transactions are matched by it."""

CheckpointId = NewType("CheckpointId", int)
"""A checkpoint is the end of a batch, so it carries that batch's number."""

SparkBatch = NewType("SparkBatch", int)
"""Spark's number of a batch. It counts only batches that read, so it is lower than the `CheckpointId` after a run has made ticks."""

RunId = NewType("RunId", int)
"""The fencing token: the highest run that was ever started owns the job."""

NO_CHECKPOINT = CheckpointId(-1)

LONGEST_NAME = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}")


class SubtaskId(msgspec.Struct, frozen=True, order=True):
    """One parallel part of an operator or sink."""

    uid: str
    index: int

    def __str__(self) -> str:
        return f"{self.uid}-{self.index}"


def is_name(value: str) -> bool:
    """Whether this can be the uid of something, or the name of a job."""
    return _NAME.fullmatch(value) is not None


def checked_name(kind: str, value: object) -> str:
    """Return `value` if it can stand in a file name, a table name and a log line alike."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigError(
            f"{kind} {value!r} is not allowed: use 1 to {LONGEST_NAME} letters, digits, '_' and '-', "
            "starting with a letter or digit",
            kind=kind,
            value=value,
        )
    return value


UNIQUE_DIGITS = 32


class Randomness:
    """Tokens and jitter. By default the system is asked each time, so that forked workers never draw the same.

    A simulation hands in a seeded generator, and draws the same in every replay.
    """

    def __init__(self, generator: random.Random | None = None) -> None:
        self._generator = generator or random.SystemRandom()

    def token(self, digits: int = UNIQUE_DIGITS) -> str:
        """A token of this many hexadecimal digits. With the default length no two are ever equal."""
        return f"{self._generator.getrandbits(4 * digits):0{digits}x}"

    def between(self, low: float, high: float) -> float:
        """A number of this range, every part of it as likely as any other."""
        return self._generator.uniform(low, high)


SYSTEM_RANDOMNESS = Randomness()


def secret_bytes(count: int) -> bytes:
    """Bytes that cannot be guessed; no simulation replays them."""
    return secrets.token_bytes(count)
