"""Load the tables of a savepoint into the state of a job's subtasks, whatever their number and backend. Executors.

Each new subtask reads the files that may hold rows of its key groups, and writes those that are its own. Which files these are follows from
what the manifest says about each, and is compared with the rows in it.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.checkpoint.completed import SubtaskReport
from penstock.checkpoint.state_columns import stored_layout
from penstock.errors import CorruptStateError
from penstock.ids import RunId
from penstock.recovery.state_migration import RestoredSubtask
from penstock.savepoint.manifest import Manifest, SavedFile, SavedOperator
from penstock.savepoint.tables import read_table
from penstock.state.backends.base import OnRescale, StateBackend, StateLayout, TableLayout, Workplace
from penstock.state.backends.sorted_rows import Ownership
from penstock.state.handle import StateHandle
from penstock.state.keys import SORT_KEY, key_groups, owners, share_groups
from penstock.state.lifetimes import LONG_AGO_US, StateTime
from penstock.state.local_files import begin_run
from penstock.state.rewriting import upload_new, write_rows
from penstock.state.subtask_rows import SUBTASK, RowsByTable, take_over
from penstock.storage import Storage


@dataclass(frozen=True)
class Load:
    """What a task needs to know to load the state of a subtask. It is called in tasks, on any machine."""

    folder: Storage
    manifest: Manifest
    storage: Storage
    backend: StateBackend
    local_dir: Path
    run: RunId
    parallelism: int
    max_parallelism: int
    former_uids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: frozenset[str] = field(default_factory=frozenset)
    """Operators whose state is to be dropped: their subtasks are empty."""

    def at(self, local_dir: Path) -> Load:
        """See `RestoreTask.at`."""
        return replace(self, local_dir=local_dir)

    def __call__(self, handle: StateHandle, attempt: int) -> RestoredSubtask:
        """Write what is the subtask's own and store it; called again, with another attempt, when a task fails."""
        begin_run(self.local_dir, frozenset())
        uid = handle.subtask.uid
        operator = self.manifest.operators[uid]
        scratch = Path(tempfile.mkdtemp(prefix="penstock-load-", dir=self.local_dir))
        workplace = Workplace.of(
            self, handle.subtask, version=handle.version, attempt=attempt, time=self._time(uid)
        )
        try:
            loading = _Loading(self, operator, workplace, scratch)
            loaded = handle if uid in self.left_out else loading.loaded(handle)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        report = SubtaskReport(handle.subtask, host=socket.gethostname(), **asdict(workplace.origins))
        return RestoredSubtask(loaded, report)

    def _time(self, uid: str) -> StateTime:
        time, lifetimes = self.manifest.barrier.time, self.manifest.operators[uid].columns.lifetimes
        return StateTime(
            self.manifest.now_us,
            {stamp: one.switched_on_us for stamp, one in lifetimes.items()},
            time.watermarks_us.get(uid, LONG_AGO_US),
            time.clock_us or LONG_AGO_US,
        )


@dataclass(frozen=True)
class _Loading:
    load: Load
    operator: SavedOperator
    workplace: Workplace
    scratch: Path

    def loaded(self, handle: StateHandle) -> StateHandle:
        layout = stored_layout(self.operator.columns)
        stored = write_rows(self._rows(layout), layout, self.load.backend, self.workplace)
        if layout.of_subtasks and self._is_rescaled:
            stored = self._of_subtasks(self.workplace, layout, stored)
        if stored is None:
            return handle
        generation = max(self.operator.generation, stored.generation)
        return msgspec.structs.replace(
            stored, generation=generation, due=self.operator.due, over_us=self.operator.over_us
        )

    @property
    def _is_rescaled(self) -> bool:
        return self.workplace.parallelism != self.load.manifest.parallelism

    # ── rows of keys ───────────────────────────────────────────────────────────────────────────

    def _rows(self, layout: StateLayout) -> Iterator[tuple[str, pa.RecordBatch]]:
        for name, table in layout.by_name.items():
            if table.on_rescale is OnRescale.BY_KEY or not self._is_rescaled:  # others are dealt out anew
                for batch in self._own_rows(name, table):
                    yield name, batch

    def _own_rows(self, name: str, table: TableLayout) -> Iterator[pa.RecordBatch]:
        mine = Ownership(self.workplace.subtask.index, self.workplace.parallelism)
        for file in self._files(name):
            for batch in self._read(file, table):
                owned = mine.owned(batch.column(SORT_KEY).to_numpy())
                if owned.any():
                    yield batch if owned.all() else batch.filter(pa.array(owned))

    def _files(self, name: str) -> Sequence[SavedFile]:
        """Those that may hold rows of this subtask's key groups."""
        index, former = self.workplace.subtask.index, self.load.manifest.parallelism
        files = self.operator.files.get(name, ())
        return [file for file in files if share_groups(index, self.workplace.parallelism, file.part, former)]

    def _read(self, file: SavedFile, table: TableLayout) -> Iterator[pa.RecordBatch]:
        """Its rows, all of which are of the part that the manifest says: others would be left out here, and nobody else reads them."""
        folder, parallelism = self.load.folder, self.load.manifest.parallelism
        for batch in read_table(folder, file, table, self.scratch):
            strange = strange_part(batch, table, file.part, parallelism)
            if strange is not None:
                raise CorruptStateError(
                    f"{file.path} of the savepoint {folder.uri} is corrupt: the manifest says that it is part {file.part} of "
                    f"{parallelism}, and it has rows of part {strange}; nothing was changed; take another copy of the savepoint",
                    file=file.path,
                    folder=folder.uri,
                )
            yield batch

    # ── rows of subtasks ───────────────────────────────────────────────────────────────────────

    def _of_subtasks(
        self, place: Workplace, layout: StateLayout, before: StateHandle | None
    ) -> StateHandle | None:
        former = [self._rows_of(part, layout) for part in range(self.load.manifest.parallelism)]
        if not any(rows.num_rows for tables in former for rows in tables.values()):
            return before
        with closing(self.load.backend.open(place, layout, before)) as state:
            take_over(state, layout, former, subtask=place.subtask.index, parallelism=place.parallelism)
            return upload_new(place, state.freeze(), before)

    def _rows_of(self, part: int, layout: StateLayout) -> RowsByTable:
        """What one former subtask had."""
        found: dict[str, pa.Table] = {}
        for table in layout.of_subtasks:
            schema = pa.schema([*table.identity, *table.value])
            files = [file for file in self.operator.files.get(table.name, ()) if file.part == part]
            batches = [batch.select(schema.names) for file in files for batch in self._read(file, table)]
            found[table.name] = pa.Table.from_batches(batches, schema)
        return found


def strange_part(rows: pa.RecordBatch, table: TableLayout, part: int, parallelism: int) -> int | None:
    """Another part that has one of these rows; None where all of them are of this one."""
    found = [owners(key_groups(rows.column(SORT_KEY).to_numpy()), parallelism)]
    if table.on_rescale is not OnRescale.BY_KEY:
        found.append(rows.column(SUBTASK.name).to_numpy())
    return next((int(one[one != part][0]) for one in found if (one != part).any()), None)
