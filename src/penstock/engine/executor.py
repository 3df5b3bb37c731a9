"""What a task may ask of the process it runs in: a Python worker of Spark's, or a virtual one. Executors."""

from __future__ import annotations

from typing import Protocol

from penstock.clock import Clock
from penstock.engine.assignment import Answer
from penstock.snapshot.merger import Merge
from penstock.snapshot.messages import Message
from penstock.snapshot.uploader import Upload


class Executor(Protocol):
    """Made on the driver and sent along with the task."""

    @property
    def clock(self) -> Clock:
        """Time, as it passes there."""
        ...

    def attempt(self) -> int:
        """A number that no other attempt of any task of the run has."""
        ...

    def partition(self) -> int:
        """Which of the tasks that do the same this one is."""
        ...

    def answer(self, answer: Answer) -> None:
        """Tell the driver what came out. It counts only if this attempt is kept."""
        ...

    def upload(self, upload: Upload) -> None:
        """Make state durable later, in the background; the worker may die before."""
        ...

    def merge(self, merge: Merge) -> None:
        """Merge state later, in the background; the worker may die before."""
        ...

    def tell(self, message: Message) -> None:
        """Tell the driver at once, whatever becomes of this attempt. Raises OSError when it cannot be reached."""
        ...
