"""A simulated job that is saved and begins with its own savepoint: whatever dies while it is made or adopted, nothing is lost."""

from __future__ import annotations

import logging
import random
from pathlib import Path

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.metadata import is_committed
from penstock.config import Mode
from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import Randomness
from penstock.job_spec import JobSpec
from penstock.ownership.claim import read_descents
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.recovery.history import read_history
from penstock.recovery.state_migration import RunRestoreTasks
from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import Manifest, read_manifest
from penstock.savepoint.restore import GivenSavepoint, restore_savepoint
from penstock.storage import Storage
from penstock.testing.simulation.lifeline import Lifeline, Violation, WatchedStorage
from penstock.testing.simulation.site import Site
from penstock.testing.virtual import VirtualStorage


class SavepointStart:
    """What somebody does before a run: make a savepoint of the newest checkpoint, and tell the run to begin with it."""

    def __init__(self, site: Site, spec: JobSpec, lifeline: Lifeline, rng: random.Random) -> None:
        self._site, self._spec = site, spec
        self._plain = VirtualStorage("virtual://savepoint")
        self._folder: Storage = WatchedStorage(self._plain, lifeline, rng)

    def begin(self, run_tasks: RunRestoreTasks, names: Randomness) -> None:
        """Make it and adopt it, where there is a checkpoint whose promises are kept."""
        check_job_record(self._site.storage, JobRecord(self._spec.name, self._spec.max_parallelism))
        newest = self._newest()
        manifest = None if newest is None else self._made(newest, names)
        if manifest is None:
            return
        if read_manifest(self._plain) != manifest:
            raise Violation("a savepoint is not what it was when it was made")
        try:
            restore_savepoint(
                self._spec,
                GivenSavepoint(self._folder, manifest),
                clock=self._site.clock,
                run_tasks=run_tasks,
                randomness=names,
            )
        except ConfigError as refused:
            begun_beyond = "has started batch" in str(refused) and Mode.AT_MOST_ONCE in (
                self._spec.mode,
                self._site.workload.promise_of_state,
            )
            if not self._site.disturbed and not begun_beyond:
                raise Violation(
                    f"nobody else was there, and the savepoint is refused: {refused}"
                ) from refused
            logging.getLogger(__name__).info("somebody went on meanwhile: %s", refused)

    def _newest(self) -> Completed | None:
        storage = self._spec.storage
        whole = read_history(storage, read_descents(storage)).whole
        if not whole or (whole[-1].transactions and not is_committed(storage, whole[-1])):
            return None
        return whole[-1]

    def _made(self, newest: Completed, names: Randomness) -> Manifest | None:
        scratch = Path(self._site.root / "scratch")
        scratch.mkdir(exist_ok=True)
        try:
            return create_savepoint(
                self._spec.storage,
                newest,
                self._folder,
                token="simulated",  # noqa: S106 - a name
                clock=self._site.clock,
                scratch=scratch,
                randomness=names,
            )
        except (FileNotFoundError, CorruptStateError):
            if not self._site.disturbed:
                raise
            return None  # a run thought dead has subsumed it: nobody holds it here
