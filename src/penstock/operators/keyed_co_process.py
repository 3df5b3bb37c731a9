"""What a user writes to process the rows of two streams with the same key, on one state. Driver (declared) and executors (run)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.errors import BadRecordError
from penstock.operators.keyed_process import Context, KeyedProcess, Output
from penstock.operators.rows import Rows


class KeyedCoProcess(KeyedProcess):
    """Own Python code that sees the rows of one key of two streams, and has one state for both.

    For `left.key_by("k").connect(right.key_by("id")).process(...)`. Declare states, side outputs and `on_timer` as in a `KeyedProcess`.
    """

    @abstractmethod
    def process_left(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key of the left stream in one batch, and yield results as `KeyedProcess.process` does.

        Called once per key and batch, for keys that have such rows, before `process_right` of the same key and batch; called again
        after a recovery, on the state as it was at the checkpoint.
        The classic mistake: to count on a left row coming before the right rows that belong to it. Which batch a row is in depends on
        when it was read: keep in state what came first, on either side.
        """

    @abstractmethod
    def process_right(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key of the right stream in one batch, after `process_left` of the same key and batch."""

    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterator[Output]:
        """Calls `process_left`, then `process_right`, each if it has rows; not to be overridden."""
        left, right = rows.of_inputs()
        for given, call in ((left, self.process_left), (right, self.process_right)):
            if not len(given):
                continue
            results = call(key, given, ctx)
            if results is None:
                continue
            if not isinstance(results, Iterable):
                raise BadRecordError(
                    f"operator {ctx.operator}: {call.__name__}() returned {results!r}; yield results, or return a list of them"
                )
            yield from results
