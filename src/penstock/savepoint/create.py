"""Make a savepoint of a completed checkpoint. Driver, or a process beside it; the running job does not notice.

The order is what makes it safe: claim the folder, write every file, and the manifest last. Without the manifest there is no savepoint.
A failure leaves nothing behind, and a process that dies leaves what the next attempt deletes, see `folder`.
Whoever calls it sees to it that the checkpoint's files are not deleted meanwhile (`ownership.holds`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from penstock.checkpoint.completed import Barrier, Completed, OperatorState, SourceFile
from penstock.checkpoint.state_columns import stored_layout
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import CorruptStateError
from penstock.ids import SYSTEM_RANDOMNESS, Randomness
from penstock.ownership.job_record import read_job_record
from penstock.recovery.history import check_committed
from penstock.recovery.started_batches import resume_barrier
from penstock.savepoint.folder import attempting, made_before
from penstock.savepoint.manifest import Manifest, Origin, SavedFile, SavedOperator
from penstock.savepoint.stored_rows import StoredSubtask
from penstock.savepoint.tables import note_file, table_file, write_table
from penstock.state.backends.base import StateLayout
from penstock.state.handle import Due, StateHandle, over_in_all
from penstock.storage import Storage
from penstock.version import __version__

Told = Callable[[int, int], None]
"""Called with how many files of state are done, and of how many."""


def create_savepoint(
    job_storage: Storage,
    completed: Completed,
    to: Storage,
    *,
    token: str,
    committed: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    scratch: Path | None = None,
    told: Told = lambda _done, _of: None,
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> Manifest:
    """Write the folder `to`, which is empty; `token` is the savepoint's id: that of a request, then `-` and that of an attempt, if any.

    Called again for the same request it begins again in the same folder, also while the other attempt may still be at work. The first
    that is done counts, and both return what that one has made.

    `committed`: it is known that all the checkpoint promised is visible, also if nobody has noted it yet.
    Raises `ConfigError` where somebody else's files lie, and for a checkpoint that has promised transactions of which is not known that
    they are committed: a savepoint promises nothing.
    """
    if not committed:
        check_committed(job_storage, completed)
    known = made_before(to, token)
    if known is not None:
        return known
    with attempting(to, token, randomness) as attempt:
        work = Path(tempfile.mkdtemp(prefix="penstock-savepoint-", dir=scratch))
        try:
            made = _Making(job_storage, completed, to, attempt.mark, work, clock, told).manifest(token)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return attempt.finish(made)


@dataclass(frozen=True)
class _Making:
    storage: Storage
    completed: Completed
    to: Storage
    mark: str
    """In the name of each file."""
    scratch: Path
    clock: Clock
    told: Told

    def manifest(self, token: str) -> Manifest:
        completed = self.completed
        record = read_job_record(self.storage)
        operators = dict(self._operators())
        return Manifest(
            id=token,
            origin=Origin(completed.job, record.identity, completed.checkpoint, completed.run),
            checkpoint=completed.checkpoint,
            mode=completed.mode,
            parallelism=completed.parallelism,
            max_parallelism=completed.max_parallelism,
            made_at=self.clock.wall(),
            made_by=__version__,
            now_us=completed.now_us,
            barrier=self._barrier(),
            operators=operators,
            bad_records=completed.bad_records,
            late_rows=completed.late_rows,
        )

    def _operators(self) -> Iterator[tuple[str, SavedOperator]]:
        of = sum(len(state.handles) for state in self.completed.operators.values())
        done = 0
        for uid, state in self.completed.operators.items():
            layout = stored_layout(state.columns)
            files: dict[str, list[SavedFile]] = {name: [] for name in layout.by_name}
            for handle in state.handles:
                for name, file in self._subtask(layout, state, handle):
                    files[name].append(file)
                done += 1
                self.told(done, of)
            yield (
                uid,
                SavedOperator(
                    state.columns,
                    {name: tuple(found) for name, found in files.items() if found},
                    max((handle.generation for handle in state.handles), default=0),
                    Due.first(handle.due for handle in state.handles),
                    over_in_all(state.handles),
                ),
            )

    def _subtask(
        self, layout: StateLayout, state: OperatorState, handle: StateHandle
    ) -> Iterator[tuple[str, SavedFile]]:
        """All tables of one subtask, as it would read them at the checkpoint."""
        uid, index = handle.subtask.uid, handle.subtask.index
        if not handle.refs:
            return
        subtask = StoredSubtask.of(self.storage, self.completed, state, handle)
        with closing(subtask.open(self.scratch, self.clock)) as rows:
            for name, table in layout.by_name.items():
                path = table_file(uid, name, index, self.mark)
                file = write_table(
                    self.to, path, rows.table(name).numbered(), table, part=index, scratch=self.scratch
                )
                if file is not None:
                    yield name, file

    def _barrier(self) -> Barrier:
        """The same, with copies of what the sources have noted in this folder."""
        barrier = resume_barrier(self.storage, self.completed)
        notes = tuple(self._note(number, note) for number, note in enumerate(barrier.source_log))
        return msgspec.structs.replace(barrier, source_log=notes)

    def _note(self, number: int, note: SourceFile) -> SourceFile:
        name, data = note_file(number, self.mark), self.storage.get(note.name)
        if (len(data), xxhash.xxh3_64_hexdigest(data)) != (note.size, note.checksum):
            raise CorruptStateError(
                f"{note.name} in {self.storage.uri} is corrupt: it has not the checksum {note.checksum}; make the savepoint of another "
                "checkpoint",
                name=note.name,
            )
        self.to.put(name, data)
        return msgspec.structs.replace(note, name=name)
