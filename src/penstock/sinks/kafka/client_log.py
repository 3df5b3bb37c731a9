"""What librdkafka says, in our log, thinned. Driver.

While brokers are away its clients say so several times a second, each, in lines that look alike. Who waits for what is said by the
coordinator, once a minute; the reason is in the error of the sink, which asks here. The lines themselves are in the log at level DEBUG.
Whatever is not about a connection is passed on, each kind once a minute.
"""

from __future__ import annotations

import logging
import re
import threading

from penstock.clock import SYSTEM_CLOCK, Clock

_CONNECTION = {"FAIL", "ERROR"}
"""A connection that broke or could not be made, and the same again as an error of the client."""
_TRANSACTION_FAILED = "TXNERR"
_EACH_KIND_EVERY_S = 60.0
_NEWS_FOR_S = 60.0
_DETAILS = re.compile(r"^\[thrd:[^\]]*\]: |\(after .*\)$")
_log = logging.getLogger(__name__)


class ClientLog:
    """A logger as confluent-kafka calls it: `log(level, format, kind, client, text)`; from any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._trouble: tuple[float, str] | None = None
        self._said_s: dict[str, float] = {}
        self._failure = ""

    def log(self, level: int, form: str, *arguments: object) -> None:
        """Take a line."""
        kind, *_, text = map(str, arguments) if arguments else ("", form)
        with self._lock:
            level = self._level(level, kind, text)
        _log.log(level, form, *arguments)

    @property
    def trouble(self) -> str | None:
        """Why the last connection failed, if that was within the last minute."""
        with self._lock:
            if self._trouble is None or self._clock.monotonic() - self._trouble[0] > _NEWS_FOR_S:
                return None
            return self._trouble[1]

    def forget_failure(self) -> None:
        """A transaction begins."""
        with self._lock:
            self._failure = ""

    @property
    def failure(self) -> str:
        """Why the transaction failed, in the client's words: its errors say only that it did. Empty if it did not."""
        with self._lock:
            return self._failure

    def _level(self, level: int, kind: str, text: str) -> int:
        now_s = self._clock.monotonic()
        if kind in _CONNECTION:
            self._trouble = (now_s, _DETAILS.sub("", text).strip())
            return logging.DEBUG
        if kind == _TRANSACTION_FAILED:
            self._failure = self._failure or text
        if now_s - self._said_s.get(kind, -_EACH_KIND_EVERY_S) < _EACH_KIND_EVERY_S:
            return logging.DEBUG
        self._said_s[kind] = now_s
        return level
