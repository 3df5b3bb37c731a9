"""What is in a savepoint, or in a checkpoint of a job, without Spark: operators, states, sizes, positions, event time. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.checkpoint.metadata import name_of
from penstock.checkpoint.model import Barrier, Completed, OperatorColumns, OperatorState
from penstock.checkpoint.state_columns import stored_layout
from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import CheckpointId
from penstock.operators.state.timers import watermark
from penstock.operators.views import View
from penstock.ownership.claim import JOB_FILE
from penstock.ownership.holds import holding
from penstock.recovery.history import choose, steady_history
from penstock.savepoint.manifest import MANIFEST, Manifest, SavedOperator, read_manifest
from penstock.savepoint.stored_rows import CheckpointedPart, Part, SavedPart, StoredSubtask
from penstock.savepoint.views import find_view, placed_by, stored_view, views_of
from penstock.storage import Storage, open_storage
from penstock.wording import counted, did_you_mean, size


@dataclass(frozen=True)
class TableContents:
    """One stored table: how many rows it has and how many bytes these take, and the parts they are in. None where they are not counted."""

    name: str
    rows: int | None
    size: int | None
    parts: tuple[Part, ...] = field(repr=False)


@dataclass(frozen=True)
class OperatorContents:
    """The state of an operator."""

    uid: str
    columns: OperatorColumns = field(repr=False)
    tables: Mapping[str, TableContents]
    """As they are stored, by name."""
    size: int
    views: Mapping[str, View] = field(repr=False)
    """The states that a user knows, by name."""

    @property
    def key(self) -> dict[str, str]:
        """The columns of the key, with their types."""
        return dict(self.columns.key)

    @property
    def states(self) -> dict[str, str]:
        """The states that can be asked for by name, and what kind each of them is."""
        return {name: view.kind for name, view in self.views.items() if name}

    @property
    def rows(self) -> int | None:
        """The number of rows in all tables."""
        every = [table.rows for table in self.tables.values()]
        return None if None in every else sum(filter(None, every))

    def rows_of(self, view: View) -> int | None:
        """Rows of the table in which a state is."""
        table = self.tables.get(view.table.name)
        return 0 if table is None else table.rows

    def find(self, name: str | None, *, internal: bool = False) -> View:
        """The state of this name, or with `internal` all that is stored for it."""
        return stored_view(self.columns, name) if internal else find_view(self.columns, name, self.uid)

    def parts_of(self, view: View) -> list[Part]:
        """Where the rows of a state are."""
        table = self.tables.get(view.table.name)
        parts = [] if table is None else list(table.parts)
        return [part for part in parts if part.number == 0] if view.one_copy else parts

    def is_placed_by_key(self, view: View) -> bool:
        """Whether the key alone decides in which subtask the rows of a state lie."""
        placed = placed_by(stored_layout(self.columns))
        return placed is None or placed.column not in view.table.identity.names


@dataclass(frozen=True)
class Contents:
    """Everything that is known before a row is read."""

    what: str
    """`savepoint` or `checkpoint`."""
    uri: str
    id: str
    job: str
    checkpoint: int
    run: int
    mode: str
    parallelism: int
    max_parallelism: int
    made_at: datetime
    made_by: str
    """The version of Penstock; '' where it is not recorded."""
    barrier: Barrier = field(repr=False)
    operators: Mapping[str, OperatorContents]
    bad_records: Mapping[str, int] = field(default_factory=dict)
    late_rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def positions(self) -> dict[str, Any]:
        """Where reading goes on, by source."""
        return dict(self.barrier.positions)

    @property
    def watermarks(self) -> dict[str, datetime | None]:
        """How far event time has come, by operator; None where it is unknown."""
        return {uid: watermark(us) for uid, us in self.barrier.time.counted_from_us.items()}

    @property
    def source_watermarks(self) -> dict[str, datetime | None]:
        """The event time reached by each source."""
        return {uid: watermark(one.watermark_us) for uid, one in self.barrier.time.sources.items()}

    @property
    def size(self) -> int:
        """The bytes of the state of all operators."""
        return sum(operator.size for operator in self.operators.values())

    def operator(self, uid: str) -> OperatorContents:
        """The operator of this uid."""
        found = self.operators.get(uid)
        if found is None:
            close = did_you_mean(uid, self.operators)
            there = ", ".join(map(repr, self.operators)) or "none"
            raise ConfigError(
                f"no operator {uid!r} has state in {self}; there are: {there}{f'; {close}' if close else ''}",
                operator=uid,
            )
        return found

    def __str__(self) -> str:
        at = self.made_at.strftime("%Y-%m-%d %H:%M:%S UTC")
        if self.what == "checkpoint":
            return f"checkpoint {self.checkpoint} of job {self.job}, completed {at}, in {self.uri}"
        by = f" by Penstock {self.made_by}" if self.made_by else ""
        return f"savepoint of job {self.job} at checkpoint {self.checkpoint}, made {at}{by}, in {self.uri}"

    def described(self) -> Iterator[str]:
        """The summary in lines of text for people."""
        yield str(self)
        yield f"  {self.mode}, parallelism {self.parallelism} of {self.max_parallelism}, {size(self.size)} of state"
        for source, at in self.positions.items():
            reached = self.source_watermarks.get(source)
            yield f"  source {source}: {at}{f', event time {reached:%Y-%m-%d %H:%M:%S}' if reached else ''}"
        for uid, operator in self.operators.items():
            rows = "" if operator.rows is None else f", {counted(operator.rows, 'row')}"
            reached = self.watermarks.get(uid)
            time = f", event time {reached:%Y-%m-%d %H:%M:%S}" if reached else ""
            key = ", ".join(f"{name} {kind}" for name, kind in operator.key.items())
            yield f"  operator {uid} by ({key}): {size(operator.size)}{rows}{time}"
            for view in operator.views.values():
                if view.name:
                    yield f"    {view.name}: {view.kind}"


# ── of a savepoint ─────────────────────────────────────────────────────────────────────────────────


def savepoint_contents(path: str | Path) -> Contents:
    """What is in the savepoint at a path or URI. Every file it needs is there, and as long as it should be."""
    folder = open_storage(path)
    manifest = read_manifest(folder)
    _check_sizes(folder, manifest)
    with _making_sense(f"{MANIFEST} in {folder.uri}", "take another copy of the savepoint"):
        return Contents(
            what="savepoint",
            uri=folder.uri,
            id=manifest.id,
            job=manifest.origin.job,
            checkpoint=manifest.checkpoint,
            run=manifest.origin.run,
            mode=manifest.mode,
            parallelism=manifest.parallelism,
            max_parallelism=manifest.max_parallelism,
            made_at=datetime.fromtimestamp(manifest.made_at, UTC),
            made_by=manifest.made_by,
            barrier=manifest.barrier,
            operators={uid: _saved(folder, uid, saved) for uid, saved in manifest.operators.items()},
            bad_records=manifest.bad_records,
            late_rows=manifest.late_rows,
        )


@contextmanager
def _making_sense(file: str, instead: str) -> Iterator[None]:
    """What a file says, whose checksum is right, may still be what no version of ours writes: other columns, other kinds, other numbers."""
    try:
        yield
    except (CorruptStateError, pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError) as error:
        why = error.facts["why"] if isinstance(error, CorruptStateError) else f"it makes no sense: {error!r}"
        raise CorruptStateError(
            f"{file} is corrupt: {why}; nothing was changed; {instead}", file=file
        ) from error


def _saved(folder: Storage, uid: str, saved: SavedOperator) -> OperatorContents:
    layouts = stored_layout(saved.columns).by_name
    tables = {
        name: TableContents(
            name,
            saved.rows(name),
            sum(file.size for file in saved.files.get(name, ())),
            tuple(SavedPart(folder, file, table) for file in saved.files.get(name, ())),
        )
        for name, table in layouts.items()
    }
    for name, table in tables.items():
        if table.parts and not len(layouts[name].identity):
            raise ValueError(f"the table {name!r} of {uid!r} has rows, and nothing that tells them apart")
    total = sum(table.size or 0 for table in tables.values())
    return OperatorContents(uid, saved.columns, tables, total, views_of(saved.columns))


def _check_sizes(folder: Storage, manifest: Manifest) -> None:
    """Cheap, and on the driver, so the user sees the error itself. The reader of a file checks its checksum."""
    for file in manifest.files:
        found = folder.size(file.path)
        if found != file.size:
            problem = "it is missing" if found is None else f"it has {found} bytes, expected {file.size}"
            raise CorruptStateError(
                f"{file.path} of the savepoint {folder.uri} is corrupt: {problem}; take another copy of the savepoint",
                file=file.path,
                folder=folder.uri,
            )


# ── of a checkpoint ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def held_checkpoint(storage: Storage, checkpoint: int | None = None) -> Iterator[Contents]:
    """What is in the newest completed checkpoint, or in a certain one. Inside the block nothing of it is deleted, whatever the job does."""
    newest_contents(storage, checkpoint)  # where there is no job, not even a folder is made for the hold
    with holding(storage, "its state is read") as held:
        contents = newest_contents(storage, checkpoint)
        held.only(contents.checkpoint, contents.run)
        yield contents


def newest_contents(storage: Storage, checkpoint: int | None = None) -> Contents:
    """The same for those who read no rows."""
    wanted = None if checkpoint is None else CheckpointId(checkpoint)
    found = choose(steady_history(storage), wanted=wanted)
    if not found and storage.size(JOB_FILE) is None:
        raise ConfigError(
            f"no job ever ran in {storage.uri}, so there is no state to read; check the storage and the name, `penstock list` shows "
            "which jobs there are",
            storage=storage.uri,
        )
    if not found:
        raise ConfigError(
            f"the job in {storage.uri} has no completed checkpoint, so there is no state to read; wait for its first one",
            storage=storage.uri,
        )
    return checkpoint_contents(storage, found[-1])


def checkpoint_contents(storage: Storage, completed: Completed) -> Contents:
    """What is in a completed checkpoint."""
    with _making_sense(f"{name_of(completed).metadata} in {storage.uri}", "restore an older checkpoint"):
        return Contents(
            what="checkpoint",
            uri=storage.uri,
            id="",
            job=completed.job,
            checkpoint=completed.checkpoint,
            run=completed.run,
            mode=completed.mode,
            parallelism=completed.parallelism,
            max_parallelism=completed.max_parallelism,
            made_at=datetime.fromtimestamp(completed.completed_at, UTC),
            made_by="",
            barrier=completed.barrier,
            operators={
                uid: _checkpointed(storage, completed, uid, state)
                for uid, state in completed.operators.items()
            },
            bad_records=completed.bad_records,
            late_rows=completed.late_rows,
        )


def _checkpointed(storage: Storage, completed: Completed, uid: str, state: OperatorState) -> OperatorContents:
    subtasks: Sequence[StoredSubtask] = [
        StoredSubtask.of(storage, completed, state, handle) for handle in state.handles if handle.refs
    ]
    tables = {
        name: TableContents(name, None, None, tuple(CheckpointedPart(one, name) for one in subtasks))
        for name in stored_layout(state.columns).by_name
    }
    total = sum(handle.size for handle in state.handles)
    return OperatorContents(uid, state.columns, tables, total, views_of(state.columns))
