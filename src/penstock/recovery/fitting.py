"""From what an earlier run left to what the job as it is now goes on from: uids of now, sources in their order, positions as asked.

Pure; driver. Nothing in storage is changed for it: the same is made of it again, until a checkpoint of the new kind is complete. Only what
nobody could make again is recorded, in `recovery.started_batches`: positions set by choice, and where new sources have decided to begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from penstock import start_options
from penstock.checkpoint.completed import Barrier, Completed
from penstock.errors import ConfigError
from penstock.ids import NO_CHECKPOINT
from penstock.job_spec import Numbers, Uids
from penstock.recovery.restore import Fitted, RestorePoint
from penstock.recovery.restore_options import Latest, PositionChoice, RestoreOptions, choose_position
from penstock.recovery.source_match import for_sources, lines_by_source
from penstock.recovery.started_batches import BarrierOverride, StartedBatch
from penstock.recovery.uid_renames import check_renames, renamed_barrier, renamed_checkpoint
from penstock.wording import named


def unknown_end(uid: str) -> list[str]:
    """For who cannot ask sources."""
    raise ConfigError(f"nobody knows where the source {uid!r} ends", uid=uid)


@dataclass(frozen=True)
class JobNow:
    """The job that is to go on, and what its start was told."""

    sources: Numbers
    uids: Uids
    changes: RestoreOptions = field(default_factory=RestoreOptions)
    latest: Latest = unknown_end

    @property
    def former(self) -> Mapping[str, str]:
        """Old uids by new ones."""
        return {new: old for old, new in self.changes.rename.items()}

    def fit(self, point: RestorePoint, drop_state: tuple[str, ...] = ()) -> RestorePoint:
        """The same point for this job. `drop_state`: operators that begin anew, also in time."""
        point = self._renamed(point)
        barrier, set_before = point.barrier, point.positions_set
        choices = self._choices(barrier, set_before, point)
        matched = for_sources(
            barrier,
            self.sources,
            dropped=self.changes.drop_sources,
            set_to={uid: choice.lines for uid, choice in choices.items()},
        )
        said = (
            *(choice.said for choice in choices.values()),
            *self._told_again(set_before, choices),
            *self._dropped(barrier),
        )
        return replace(
            point,
            begun=self._begun(point, matched, chosen=bool(choices)),
            fitted=Fitted(point.checkpoint, _without_time_of(drop_state, matched), self.former, said),
        )

    def _renamed(self, point: RestorePoint) -> RestorePoint:
        rename = self.changes.rename
        checkpoint, begun = point.checkpoint, point.begun
        check_renames(checkpoint, point.barrier, self.uids, rename)
        if begun is not None and rename:
            instead = begun.instead
            begun = msgspec.structs.replace(
                begun,
                barrier=renamed_barrier(begun.barrier, rename),
                instead=instead
                and msgspec.structs.replace(instead, barrier=renamed_barrier(instead.barrier, rename)),
                positions_set={rename.get(uid, uid): one for uid, one in begun.positions_set.items()},
            )
        renamed: Completed | None = checkpoint and renamed_checkpoint(checkpoint, rename)
        unfitted = replace(point, begun=begun, fitted=None)
        here = replace(unfitted, retained=(renamed,) if renamed else ())
        return replace(unfitted, fitted=Fitted(renamed, here.barrier))

    def _choices(
        self, barrier: Barrier, set_before: Mapping[str, object], point: RestorePoint
    ) -> dict[str, PositionChoice]:
        """Those that are to be made: what was asked for before, and done, is not done again."""
        asked = {uid: value for uid, value in self.changes.positions.items() if set_before.get(uid) != value}
        if asked and point.last_read == NO_CHECKPOINT:
            raise ConfigError(
                f"{start_options.positions()} says where the {named(list(asked), 'source')} {'goes' if len(asked) == 1 else 'go'} on, but "
                "the job has no checkpoint yet: it begins where the options of the source say, such as Kafka's startingOffsets",
                sources=list(asked),
            )
        stored = lines_by_source(barrier)
        return {
            uid: choose_position(uid, value, stored.get(uid, ()), len(self.sources[uid]), self.latest)
            for uid, value in asked.items()
        }

    def _begun(self, point: RestorePoint, matched: Barrier, *, chosen: bool) -> StartedBatch | None:
        """What this run records: the same as the one before it, or what was chosen."""
        begun = point.begun
        if not chosen and begun is None:
            return None
        begun = begun or StartedBatch(point.run, Barrier())
        begun = msgspec.structs.replace(begun, positions_set=dict(self.changes.positions))
        if point.begun_decides:
            # Its time is kept as it was recorded: who goes on from another checkpoint sees it otherwise, see `with_state_of`.
            time = msgspec.structs.replace(begun.barrier.time, sources=matched.time.sources)
            return msgspec.structs.replace(begun, barrier=msgspec.structs.replace(matched, time=time))
        if (chosen or begun.instead) and point.checkpoint:
            instead = BarrierOverride(point.checkpoint.checkpoint, point.checkpoint.run, matched)
            return msgspec.structs.replace(begun, instead=instead)
        return begun

    def _told_again(
        self, set_before: Mapping[str, object], choices: Mapping[str, PositionChoice]
    ) -> list[str]:
        again = [uid for uid in self.changes.positions if uid in set_before and uid not in choices]
        said = (
            f"{start_options.positions()} was asked for {', '.join(again)} before, and done: the job goes on from there, and does not go "
            "there again. To go there again, start the job once without it"
        )
        return [said] if again else []

    def _dropped(self, barrier: Barrier) -> list[str]:
        dropped = self.changes.drop_sources
        lost = [uid for uid in dropped if uid in barrier.positions]
        unknown = [uid for uid in dropped if uid not in barrier.positions]
        option = start_options.drop_sources()
        said = f"{option}: where the {named(lost, 'source')} had come to is forgotten"
        nothing = f"{option} names {', '.join(unknown)}, of which the checkpoint has no position: nothing is dropped for it"
        return [*([said] if lost else []), *([nothing] if unknown else [])]


def _without_time_of(operators: tuple[str, ...], barrier: Barrier) -> Barrier:
    return msgspec.structs.replace(barrier, time=barrier.time.without(operators)) if operators else barrier
