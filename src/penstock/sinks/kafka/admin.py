"""The client that looks at topics and settings; it notices when the brokers refuse the login. Driver.

librdkafka takes a refused login for something that may pass and tries again until the request has timed out; who refused, and
why, it says only to a callback, which is called while somebody polls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import ConfigError

_POLL_S = 0.02
_REFUSED = "_AUTHENTICATION"
Answer = TypeVar("Answer")


class Admin:
    """`make` makes the client with these further settings; `redacted` takes passwords out of a text."""

    def __init__(
        self, make: Callable[[Mapping[str, Any]], Any], brokers: str, redacted: Callable[[object], str]
    ) -> None:
        self._refusals: list[str] = []
        self._brokers = brokers
        self._redacted = redacted
        self.client = make({"error_cb": self._note})

    def answer(self, asked: Future[Answer], timeout_s: float) -> Answer:
        """Wait for an answer, and not for one that will never come."""
        deadline = SYSTEM_CLOCK.monotonic() + timeout_s
        while not asked.done() and SYSTEM_CLOCK.monotonic() < deadline:
            self.client.poll(_POLL_S)
            if self._refusals:
                raise ConfigError(
                    f"the brokers {self._brokers} refuse the login: {self._redacted(self._refusals[0])}; check the user and the password "
                    "in the options of the sink (sasl.username, sasl.password, sasl.mechanism, or the certificate)",
                    brokers=self._brokers,
                )
        return asked.result(0)

    def _note(self, error: Any) -> None:
        if error.name() == _REFUSED:
            self._refusals.append(error.str())
