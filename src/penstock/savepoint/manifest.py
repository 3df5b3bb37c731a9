"""`savepoint.json`, the manifest of a savepoint: written last and checked when it is read. Driver and executors.

A folder is a savepoint if and only if it has this file. All names in it are relative, and stay below the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec
import xxhash

from penstock.checkpoint.metadata import is_note
from penstock.checkpoint.model import Barrier, OperatorColumns
from penstock.decoding import decoded
from penstock.errors import ConfigError, CorruptStateError, IncompatibleStateError
from penstock.ids import CheckpointId, is_name
from penstock.ownership.claim import JOB_FILE
from penstock.state.handle import Due
from penstock.state.keys import MAX_KEY_GROUPS
from penstock.storage import Storage

MANIFEST = "savepoint.json"
MAKING = "making.json"
"""The file that names the attempt that makes a savepoint in this folder."""
FORMAT = 1
MOST_BYTES = 256 << 20
"""A larger manifest is not read: its size depends on the number of files, not on the size of the state."""

MOST_SHOWN = 5
"""The number of folders that an error proposes."""

_FILE = re.compile(r"(state/[^/\0]+/[^/\0]+|sources)/[^/\0]+")


class SavedFile(msgspec.Struct, frozen=True):
    """One file of the folder."""

    path: str
    size: int
    checksum: str
    rows: int = 0
    part: int = 0
    """The subtask whose rows it holds."""


class SavedOperator(msgspec.Struct, frozen=True):
    """The state of an operator: its typed columns, and for each table the files that hold its rows."""

    columns: OperatorColumns
    files: dict[str, tuple[SavedFile, ...]] = {}
    generation: int = 0
    due: Due = Due()
    over_us: int | None = None
    """See `StateHandle.over_us`."""

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        return sum(file.rows for file in self.files.get(table, ()))


class Origin(msgspec.Struct, frozen=True):
    """The checkpoint that a savepoint was made of. `identity` distinguishes two jobs of the same name."""

    job: str = ""
    identity: str = ""
    checkpoint: int = -1
    run: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a job needs to go on from here, anywhere."""

    id: str
    """Drawn when it was made: a job that has adopted it knows it by this."""
    origin: Origin = Origin()
    checkpoint: int
    mode: str
    parallelism: int
    """Of the files: part i holds the key groups g with g mod parallelism = i."""
    max_parallelism: int
    made_at: float = 0.0
    made_by: str = ""
    """The version of Penstock."""
    now_us: int = 0
    barrier: Barrier = Barrier()
    """Positions and event time. The names in its source log are those of files in this folder."""
    operators: dict[str, SavedOperator] = {}
    bad_records: dict[str, int] = {}
    late_rows: dict[str, int] = {}

    @property
    def number(self) -> CheckpointId:
        """The number of the checkpoint from which a job continues."""
        return CheckpointId(self.checkpoint)

    @property
    def files(self) -> Iterator[SavedFile]:
        """Every file of the folder but the manifest itself."""
        for operator in self.operators.values():
            for files in operator.files.values():
                yield from files
        for note in self.barrier.source_log:
            yield SavedFile(note.name, note.size, note.checksum)

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(file.size for file in self.files)


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    checksum: str
    savepoint: msgspec.Raw


_ENVELOPES = msgspec.json.Decoder(_Envelope)  # made before there are threads, see `snapshot.mailbox`
_MANIFESTS = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest as the bytes of `savepoint.json`."""
    body = msgspec.json.encode(manifest)
    envelope = _Envelope(FORMAT, xxhash.xxh3_64_hexdigest(body), msgspec.Raw(body))
    return msgspec.json.format(msgspec.json.encode(envelope), indent=1)


def read_manifest(folder: Storage) -> Manifest:
    """Read and check the manifest; the files it names are looked at when they are used."""
    return checked_manifest(_read(folder), folder)


def checked_manifest(data: bytes, folder: Storage) -> Manifest:
    """Decode a manifest; raises `CorruptStateError` or `IncompatibleStateError` if it is not valid."""
    try:
        envelope = decoded(_ENVELOPES, data)
        if envelope.format != FORMAT:
            raise IncompatibleStateError(
                f"the savepoint {folder.uri} has format {envelope.format}, this version of Penstock reads format {FORMAT}; nothing was "
                "changed; use the version that made it",
                format=envelope.format,
            )
        body = bytes(envelope.savepoint)
        found = xxhash.xxh3_64_hexdigest(msgspec.json.format(body, indent=-1))
        if found != envelope.checksum:
            raise _corrupt(folder, f"its checksum is {found}, expected {envelope.checksum}")
        manifest = decoded(_MANIFESTS, body)
    except msgspec.MsgspecError as error:
        raise _corrupt(folder, str(error)) from error
    _check(manifest, folder)
    return manifest


def _read(folder: Storage) -> bytes:
    size = folder.size(MANIFEST)
    if size is None:
        raise ConfigError(
            f"{folder.uri} is no savepoint: it has no {MANIFEST}; {_what_is_there(folder)}", folder=folder.uri
        )
    if size > MOST_BYTES:
        raise _corrupt(folder, f"it has {size} bytes, the most is {MOST_BYTES}")
    return folder.get(MANIFEST)


def _what_is_there(folder: Storage) -> str:
    """Explains what the folder is instead of a savepoint, and what to use."""
    there = folder.names()
    savepoints, jobs = _folders_with(MANIFEST, there), _folders_with(JOB_FILE, there)
    if MAKING in there:
        return "one was being made there, and was never finished: make another"
    if JOB_FILE in there:
        return "it is the storage of a job, and `penstock savepoint` makes one of its newest checkpoint"
    if savepoints:
        return f"there are savepoints in it, give one of them: {_some(savepoints)}"
    if jobs:
        return f"it has the storage of jobs in it, and `penstock savepoint` makes one of a job: {_some(jobs)}"
    return (
        f"it has other files, such as {there[0]}; check the path"
        if there
        else "nothing is there; check the path"
    )


def _folders_with(file: str, names: Iterable[str]) -> list[str]:
    return [name.removesuffix(f"/{file}") for name in names if name.endswith(f"/{file}")]


def _some(names: list[str]) -> str:
    rest = len(names) - MOST_SHOWN
    return ", ".join(names[:MOST_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _check(manifest: Manifest, folder: Storage) -> None:
    """Refuse impossible entries: names outside the folder, parts that do not exist, tables that no operator has."""
    for file in manifest.files:
        if not _FILE.fullmatch(file.path) or ".." in file.path.split("/") or "." in file.path.split("/"):
            raise _corrupt(folder, f"it names {file.path!r}, which is no file of a savepoint")
        if file.size < 0 or file.rows < 0 or not 0 <= file.part < max(manifest.parallelism, 1):
            raise _corrupt(folder, f"its entry for {file.path!r} is impossible: {file}")
    for uid in manifest.operators:
        if not is_name(uid):
            raise _corrupt(folder, f"it has state of {uid!r}, which is no uid of an operator")
    for note in manifest.barrier.source_log:
        if not is_note(note.path):
            raise _corrupt(folder, f"it has a note {note.path!r}, which no source of Spark's makes")
    _check_numbers(manifest, folder)
    if len({file.path for file in manifest.files}) < sum(1 for _ in manifest.files):
        raise _corrupt(folder, "it names a file twice")


def _check_numbers(manifest: Manifest, folder: Storage) -> None:
    if not 0 < manifest.parallelism <= manifest.max_parallelism <= MAX_KEY_GROUPS:
        raise _corrupt(
            folder, f"parallelism {manifest.parallelism} of at most {manifest.max_parallelism} cannot be"
        )
    if manifest.checkpoint < 0:
        raise _corrupt(folder, f"checkpoint {manifest.checkpoint} cannot be")


def _corrupt(folder: Storage, problem: str) -> CorruptStateError:
    return CorruptStateError(
        f"{MANIFEST} in {folder.uri} is corrupt: {problem}; nothing was changed; take another copy of the savepoint",
        folder=folder.uri,
    )
