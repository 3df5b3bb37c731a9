"""A producer that can be watched. In a module of its own, because processes that are killed at once import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WatchedProducer:
    """A real producer that calls `before` and `after` around each of its calls."""

    def __init__(self, producer: Any, before: Callable[[str], None], after: Callable[[str], None]) -> None:
        self._producer, self._before, self._after = producer, before, after

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._before(name)
            result = getattr(self._producer, name)(*arguments, **options)
            self._after(name)
            return result

        return call
