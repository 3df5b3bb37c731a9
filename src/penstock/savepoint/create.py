"""Create a savepoint of a completed checkpoint in a folder. Driver, or its child process; the running job is not affected.

The order makes it safe: claim the folder, write every file, and write the manifest last. Without the manifest there is no savepoint. A
failure removes its files, and the next attempt deletes the files of a process that died. The caller makes sure that the checkpoint's
files are not deleted meanwhile (`ownership.holds`).

Savepoints of checkpoints and of DataFrames both use `Attempt`. Several attempts may work in one folder at the same time: one that was
thought dead, and the one that replaced it. This is safe, because:

1. The mark of an attempt is part of the name of every file that it writes, so no two attempts write the same file.
2. Only one attempt writes the manifest. Only afterwards does it delete files of other attempts, and only those that existed before it.
3. An attempt that does not win deletes its own files. An attempt that does not know whether it has won deletes nothing.

`making.json` tells people and other requests that an attempt is running. Nothing depends on it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from penstock.checkpoint.model import Barrier, Completed, OperatorState, SourceFile
from penstock.checkpoint.state_columns import stored_layout
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.decoding import decoded
from penstock.errors import (
    ConfigError,
    CorruptStateError,
    IncompatibleStateError,
    PenstockError,
    UnavailableError,
)
from penstock.ids import SYSTEM_RANDOMNESS, Randomness
from penstock.ownership.job_record import read_job_record
from penstock.recovery.history import check_committed
from penstock.recovery.started_batches import resume_barrier
from penstock.savepoint.manifest import (
    MAKING,
    MANIFEST,
    Manifest,
    Origin,
    SavedFile,
    SavedOperator,
    encode,
    read_manifest,
)
from penstock.savepoint.stored_rows import StoredSubtask
from penstock.savepoint.table_files import note_file, table_file, write_table
from penstock.state.backends.base import StateLayout
from penstock.state.handle import Due, StateHandle, over_in_all
from penstock.storage import Storage
from penstock.version import __version__

MARK_DIGITS = 8
_OURS = re.compile(
    rf"(?:state/[^/]+/[^/]+|sources)/\d+-(?P<mark>[0-9a-f]{{{MARK_DIGITS}}})(?:-\d+)?(?:\.parquet)?"
)
"""The file names that `tables.table_file` and `tables.note_file` make."""


class _Maker(msgspec.Struct, frozen=True):
    """The content of `making.json`: the running attempt."""

    token: str
    mark: str


_MAKERS = msgspec.json.Decoder(_Maker)


def new_mark(randomness: Randomness = SYSTEM_RANDOMNESS) -> str:
    """That of a new attempt."""
    return randomness.token(MARK_DIGITS)


def same_request(one: str, other: str) -> bool:
    """Whether two tokens belong to one request: the part after `-` is that of an attempt."""
    return one.partition("-")[0] == other.partition("-")[0]


@dataclass
class Attempt:
    """An attempt to make a savepoint in a folder that was claimed for it."""

    to: Storage
    token: str
    mark: str
    _may_have_won: bool = field(default=False, init=False)

    def finish(self, manifest: Manifest) -> Manifest:
        """Make it a savepoint. Returns what is in the folder: this one, or what another attempt of the same request has made."""
        there = self.to.names()
        if MANIFEST in there:
            return self._lost()
        self._refuse_if_replaced()
        self._refuse_if_incomplete(manifest, there)
        strays = _strays(there, manifest)
        self.to.delete([name for name in strays if self._is_mine(name)])
        self._may_have_won, content = True, encode(manifest)
        if not self.to.create(MANIFEST, content) and self.to.get(MANIFEST) != content:
            return self._lost()
        self._refuse_if_incomplete(manifest, self.to.names())
        self.to.delete(strays)
        self._leave()
        return manifest

    def give_up(self) -> None:
        """Delete what it has written, unless it may be a savepoint."""
        if not self._may_have_won:
            self.to.delete([name for name in self.to.names() if self._is_mine(name)])
            self._leave()

    def _lost(self) -> Manifest:
        """Another attempt was the first."""
        self._may_have_won = False
        self.give_up()
        made = read_manifest(self.to)
        if not same_request(made.id, self.token):
            raise ConfigError(
                f"{self.to.uri} has a savepoint of another request by now; choose another folder",
                folder=self.to.uri,
            )
        return made

    def _refuse_if_replaced(self) -> None:
        """Fail early and with a clear message if the folder was emptied and another request has begun there."""
        maker = _maker(self.to)
        if maker is not None and not same_request(maker.token, self.token):
            raise ConfigError(
                f"{self.to.uri} was emptied while a savepoint was made there, and another request makes one there now; choose another "
                "folder",
                folder=self.to.uri,
            )

    def _refuse_if_incomplete(self, manifest: Manifest, there: list[str]) -> None:
        missing = sorted({file.path for file in manifest.files} - set(there))
        if missing:
            raise UnavailableError(
                f"a part of the savepoint {self.to.uri} has been deleted while it was made, such as {missing[0]}; there is no savepoint; "
                "delete what is left, and make another",
                folder=self.to.uri,
                missing=len(missing),
            )

    def _is_mine(self, name: str) -> bool:
        ours = _OURS.fullmatch(name)
        return ours is not None and ours["mark"] == self.mark

    def _leave(self) -> None:
        maker = _maker(self.to)
        if maker is not None and maker.mark == self.mark:
            self.to.delete([MAKING])


def claim_folder(to: Storage, token: str, randomness: Randomness = SYSTEM_RANDOMNESS) -> Attempt:
    """Begin to make a savepoint in an empty folder, or in one where an earlier attempt of the same request has begun.

    Raises `ConfigError` where anything else lies.
    """
    to.check_place()
    attempt = Attempt(to, token, new_mark(randomness))
    mine = msgspec.json.encode(_Maker(token, attempt.mark))
    if not to.create(MAKING, mine):
        _refuse_if_taken(to, token)
        to.put(MAKING, mine)
        foreign = [
            name for name in to.names() if name not in {MAKING, MANIFEST} and not _OURS.fullmatch(name)
        ]
    else:
        foreign = [name for name in to.names() if name != MAKING]
    if foreign:
        attempt.give_up()
        raise _taken(to, foreign)
    return attempt


def refuse_if_taken(to: Storage, token: str) -> None:
    """Raise what `claim_folder` would raise, without claiming the folder: for callers that first do something irreversible."""
    to.check_place()
    there = to.names()
    if MAKING in there:
        _refuse_if_taken(to, token)
    elif there and not _is_of(to, token):
        raise _taken(to, there)


def _is_of(to: Storage, token: str) -> bool:
    """Whether the savepoint there belongs to this request: made by a run that died before it answered."""
    try:
        return same_request(read_manifest(to).id, token)
    except (ConfigError, CorruptStateError, IncompatibleStateError):
        return False


def _taken(to: Storage, names: list[str]) -> ConfigError:
    what = "a savepoint" if MANIFEST in names else f"other files, such as {names[0]}"
    return ConfigError(f"{to.uri} holds {what}; choose an empty folder", folder=to.uri)


def _refuse_if_taken(to: Storage, token: str) -> None:
    maker = _maker(to)
    if maker is not None and same_request(maker.token, token):
        return
    if to.size(MANIFEST) is not None:
        raise ConfigError(f"{to.uri} holds a savepoint; choose an empty folder", folder=to.uri)
    raise ConfigError(
        f"{to.uri} holds an unfinished savepoint of another request: it is being made, or was given up; choose another folder, or "
        "delete it",
        folder=to.uri,
    )


@contextlib.contextmanager
def attempting(to: Storage, token: str, randomness: Randomness = SYSTEM_RANDOMNESS) -> Iterator[Attempt]:
    """Claim a folder; when something fails, what was written is deleted, and the folder can be used again."""
    attempt = claim_folder(to, token, randomness)
    try:
        yield attempt
    except BaseException:
        with contextlib.suppress(PenstockError, OSError):  # what failed first is what matters
            attempt.give_up()
        raise


def made_before(to: Storage, token: str) -> Manifest | None:
    """The savepoint that an earlier attempt of the same request has finished without answering. Deletes the files that it left."""
    if to.size(MANIFEST) is None:
        return None
    there = to.names()  # before the manifest is read: what comes later may be of a savepoint that replaces it
    made = read_manifest(to)
    if not same_request(made.id, token):
        return None
    if MAKING in there:
        to.delete([*_strays(there, made), MAKING])
    return made


def _strays(there: list[str], manifest: Manifest) -> list[str]:
    """Of these files those that are of a savepoint, and not of this one."""
    needed = {file.path for file in manifest.files}
    return [name for name in there if _OURS.fullmatch(name) and name not in needed]


def _maker(to: Storage) -> _Maker | None:
    """The attempt that `making.json` names, if it can be read."""
    try:
        return decoded(_MAKERS, to.get(MAKING))
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


ReportProgress = Callable[[int, int], None]
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
    report: ReportProgress = lambda _done, _of: None,
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> Manifest:
    """Write a savepoint into the empty folder `to`. `token` is its id: that of a request, then `-` and that of an attempt, if any.

    A second call for the same request starts again in the same folder, even if the other attempt still runs. The first one that finishes
    counts, and both return its savepoint.

    `committed`: all promised transactions of the checkpoint are known to be committed, even if it is not recorded yet.
    Raises `ConfigError` for a folder with other files, and for a checkpoint with promised transactions that are not known to be committed,
    because a savepoint promises nothing.
    """
    if not committed:
        check_committed(job_storage, completed)
    known = made_before(to, token)
    if known is not None:
        return known
    with attempting(to, token, randomness) as attempt:
        work = Path(tempfile.mkdtemp(prefix="penstock-savepoint-", dir=scratch))
        try:
            made = _Making(job_storage, completed, to, attempt.mark, work, clock, report).manifest(token)
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
    report: ReportProgress

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
                self.report(done, of)
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
