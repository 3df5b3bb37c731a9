"""Somebody who does not own the simulated job and reads its newest checkpoint, with a hold, while the job goes on.

It runs the code that readers run, in a process that stands still before every I/O call. Its hold is renewed whenever the job moves, as a
thread of its own does it: so nothing that it reads may vanish, but for what it begins again once.
"""

from __future__ import annotations

import random

from penstock.checkpoint.completed import Completed
from penstock.errors import ConfigError
from penstock.ids import CheckpointId
from penstock.ownership.claim import read_descents
from penstock.ownership.holds import ANY, put_hold, release_hold
from penstock.recovery.history import read_history, read_newest
from penstock.testing.simulation.lifeline import Fate, Lifeline, SimulatedProcess, Violation, WatchedStorage
from penstock.testing.simulation.site import Site


class Reader:
    """One reading, from its hold to the last file."""

    def __init__(self, site: Site, token: str, rng: random.Random) -> None:
        self._site = site
        self._token = token
        self._lifeline = Lifeline(Fate(pauses_before=1))
        self._storage = WatchedStorage(site.storage, self._lifeline, rng)
        self._holds = False
        self._chosen = ANY, 0
        self._there_was_one = bool(read_history(site.storage, read_descents(site.storage)).whole)
        self.read: list[CheckpointId] = []
        """The checkpoints that it has begun to read."""
        self._process = SimulatedProcess(self._work, self._lifeline)
        self._process.start()

    @property
    def alive(self) -> bool:
        """Whether it has more to do."""
        return self._process.alive

    def renew(self) -> None:
        """Its hold is good for as long as it lives."""
        if self._holds and self.alive:
            checkpoint, run = self._chosen
            put_hold(self._site.storage, self._token, self._site.clock.wall(), checkpoint=checkpoint, run=run)

    def go_on(self, calls: int | None) -> None:
        """Let it make so many more I/O calls (None: all it wants); raises `Violation` if what it held was not kept."""
        self._process.go_on(calls)
        failure = self._process.failure
        if isinstance(failure, ConfigError) and not self._there_was_one:
            return  # there was no checkpoint to read
        if failure is not None:
            raise Violation(
                f"a reader with a hold has begun with {self.read}, and failed: {type(failure).__name__}: {failure}"
            ) from failure

    def choose(self) -> None:
        """Let it come so far that it knows what it reads, and has read nothing."""
        while self.alive and not self.read:
            self.go_on(1)

    def die(self) -> None:
        """End it where it stands: its hold is left to end by itself."""
        self._process.kill()

    def _work(self) -> None:
        put_hold(self._storage, self._token, self._site.clock.wall())
        self._holds = True
        try:
            read_newest(self._storage, self._read, self._only)
        finally:
            self._holds = False
        release_hold(self._storage, self._token)

    def _only(self, checkpoint: int, run: int) -> None:
        self._chosen = checkpoint, run
        put_hold(self._storage, self._token, self._site.clock.wall(), checkpoint=checkpoint, run=run)

    def _read(self, completed: Completed) -> None:
        self.read.append(completed.id)
        for name in sorted(completed.files):
            self._storage.get(name)
