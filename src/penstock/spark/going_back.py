"""From a restore point to where the run begins: positions, state, parallelism. Driver."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.config import Mode
from penstock.errors import IncompatibleStateError
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.rescale import redistribute
from penstock.recovery.restore import RestorePoint
from penstock.spark import progress_log
from penstock.spark.compiled import Compiled
from penstock.spark.inspection import replayable_positions
from penstock.spark.progress_log import ProgressLog
from penstock.spark.rescaling import Rescaling
from penstock.spark.source_log import SourceLog
from penstock.state.handle import StateHandle

if TYPE_CHECKING:
    from penstock.job import Job

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GoingBack:
    """What the job as it is now makes of a checkpoint that an earlier run wrote."""

    job: Job
    compiled: Compiled
    point: RestorePoint

    def check_sources(self) -> None:
        """Spark records positions by the order of the sources: another order would hand one source the position of another."""
        stored = list(self.point.barrier.positions)
        now = [source.uid for source in self.job.graph.sources]
        if stored and stored != now:
            raise IncompatibleStateError(
                f"the job goes on after batch {self.point.last_read}, which has positions of the sources {', '.join(stored)}, in this "
                f"order; the job reads {', '.join(now)}; read the same sources in the same order",
                stored=stored,
                sources=now,
            )

    def handles(self, drop_state: tuple[str, ...]) -> dict[SubtaskId, StateHandle]:
        """The state of every subtask at the present parallelism; refuses what does not fit the job."""
        stored = self.point.checkpoint.operators if self.point.checkpoint else {}
        orphans = sorted(set(stored) - set(self.compiled.operators) - set(drop_state))
        if orphans:
            raise IncompatibleStateError(
                f"checkpoint {self.point.id} holds state of the operators {', '.join(orphans)}, which the job no longer has; keep "
                f"their uids, or allow the loss with drop_state={tuple(orphans)!r}"
            )
        handles: dict[SubtaskId, StateHandle] = {}
        for uid, operator in self.compiled.operators.items():
            if uid in stored and uid not in drop_state:
                _check_layout(uid, (stored[uid].key, stored[uid].value), operator.described_layout)
                handles |= redistribute(
                    stored[uid].handles,
                    uid=uid,
                    parallelism=self.job.parallelism,
                    version=self.point.id,
                    backend=self.job.backend.name,
                )
        return handles

    def tell_what_cannot_be_dropped(self, drop_state: tuple[str, ...]) -> None:
        """Say which uids are no operators of the job or of the checkpoint: likely they are misspelt."""
        stored = self.point.checkpoint.operators if self.point.checkpoint else {}
        _tell_unknown(set(drop_state) - set(stored), set(self.compiled.operators), self.point.id)

    def rescaled(
        self, handles: dict[SubtaskId, StateHandle], local_dir: Path
    ) -> dict[SubtaskId, StateHandle]:
        """The handles with which the first batch begins: after a change of parallelism every subtask takes its part over first."""
        checkpoint = self.point.checkpoint
        if checkpoint is None or checkpoint.parallelism == self.job.parallelism:
            return handles
        rescaling = Rescaling(
            self.job.storage,
            self.job.backend,
            local_dir,
            self.point.run,
            self.job.parallelism,
            self.job.max_parallelism,
            {uid: operator.layout for uid, operator in self.compiled.operators.items()},
        )
        return rescaling.perform(self.compiled.session, handles)

    def set_out(self) -> tuple[ProgressLog, SourceLog]:
        """Fill this run's progress log: Spark goes on after `point.last_read`. Returns it, with what the sources have noted so far."""
        barrier = self.point.barrier
        if self.job.checkpoint.delivery_mode is Mode.AT_MOST_ONCE:
            entry = progress_log.without_positions(
                barrier.progress_log, replayable_positions(self.job.graph.sources)
            )
            barrier = msgspec.structs.replace(barrier, progress_log=entry)
        log = ProgressLog(self.job.storage, self.point.run)
        return log, progress_log.set_out(log, self.point.last_read, barrier)


def _tell_unknown(not_stored: set[str], operators: set[str], checkpoint: CheckpointId) -> None:
    """Not refused: a supervisor starts the same command again, after the start that dropped the state."""
    unknown = sorted(not_stored - operators)
    if unknown:
        _log.warning(
            "drop_state names %s, of which neither the job nor checkpoint %d knows anything: nothing is dropped for it. The job has the "
            "operators %s",
            *(", ".join(map(repr, unknown)), checkpoint, ", ".join(sorted(operators)) or "(none)"),
        )


Layout = tuple[Mapping[str, str], Mapping[str, str]]


def _check_layout(uid: str, stored: Layout, now: Layout) -> None:
    if stored != now:
        raise IncompatibleStateError(
            f"operator {uid!r}: its state has key {stored[0]} and values {stored[1]}, the job has {now[0]} and {now[1]}; change the job "
            f"back, give the operator another uid, or allow the loss with drop_state=({uid!r},)",
            operator=uid,
        )
