"""Writing and reading `chk-<n>-r<run>/_metadata`: one small file, written last, atomically, and checked when it is read. Driver.

A checkpoint exists if and only if this file does. The run that completes a checkpoint is in its name, so no name is ever used
twice: what a run listed and deletes later, woken up from a long sleep, is never the work of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import xxhash

from penstock.checkpoint.model import FORMAT, Completed
from penstock.decoding import decoded
from penstock.errors import CorruptStateError, IncompatibleStateError, InternalError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.state.backends.sorted_file import file_label, inline_header
from penstock.state.handle import FileRef, writer_of
from penstock.storage import Storage

_STATE = re.compile(r"state(/[^/\0]+)+")
_NOTE = re.compile(r"\d+(/[^/\0]+)+")


# ── what metadata may name ─────────────────────────────────────────────────────────────────────
# Files that metadata names are read, copied and later deleted. A checksum protects against accidents, not against a file written on
# purpose: a name must not reach beyond the files of state.


def is_note(path: str) -> bool:
    """Whether a source of Spark's may have noted something here: below its number."""
    return _NOTE.fullmatch(path) is not None and _stays(path)


def is_state_file(name: str) -> bool:
    """Whether a file of state, or a copy of a source's note, may be called so."""
    return _STATE.fullmatch(name) is not None and _stays(name)


def check_names(completed: Completed, name: str) -> None:
    """Raise `CorruptStateError` for metadata that names anything else."""
    for file in completed.files:
        if not is_state_file(file):
            raise _foreign(name, file)
    for note in completed.barrier.source_log:
        if not is_note(note.path):
            raise _foreign(name, note.path)


def _stays(path: str) -> bool:
    return not {"..", "."} & set(path.split("/"))


def _foreign(name: str, file: str) -> CorruptStateError:
    return CorruptStateError(
        f"{name} is corrupt: it names {file!r}, which is no file of state; nothing was read or deleted; restore an older checkpoint",
        name=name,
        file=file,
    )


# ── whether handles belong to their subtasks ───────────────────────────────────────────────────
# The name of a state file shows its subtask; an inline file has it in its header. A subtask that gets no files opens none that could
# object, and would silently start empty. So all handles are checked together when metadata is read.


def check_owners(completed: Completed, name: str) -> None:
    """Raise `CorruptStateError` when a handle is misplaced, doubled or missing, or names what another subtask wrote."""
    for uid, operator in completed.operators.items():
        subtasks = [handle.subtask for handle in operator.handles]
        if len(set(subtasks)) < len(subtasks):
            raise _mixed_up(
                name, f"operator {uid} has two handles of one subtask: {', '.join(map(str, subtasks))}"
            )
        if len(subtasks) != completed.parallelism:
            raise _mixed_up(
                name, f"operator {uid} has {len(subtasks)} handles, for {completed.parallelism} subtasks"
            )
        for index, ref in _refs(completed, uid):
            writer = _writer(ref)
            may_be = [SubtaskId(known_as, index) for known_as in (uid, *operator.former_uids)]
            if writer is not None and writer not in may_be:
                raise _mixed_up(
                    name,
                    f"{file_label(ref)}, written by {writer}, stands there as state of {SubtaskId(uid, index)}",
                )


def _refs(completed: Completed, uid: str) -> Iterator[tuple[int, FileRef]]:
    return ((handle.subtask.index, ref) for handle in completed.operators[uid].handles for ref in handle.refs)


def _writer(ref: FileRef) -> SubtaskId | None:
    if ref.name:
        return writer_of(ref.name)
    header = inline_header(ref)
    return SubtaskId(header.uid, header.subtask)


def _mixed_up(name: str, problem: str) -> CorruptStateError:
    return CorruptStateError(
        f"{name} is corrupt, its handles are mixed up: {problem}; restore an older checkpoint", name=name
    )


_NAME = re.compile(r"chk-(\d+)-r(\d+)/(_metadata|_committed)")


class CheckpointName(NamedTuple):
    """The unique name of a checkpoint among all checkpoints of the job. Ordered by number, then by run."""

    checkpoint: CheckpointId
    run: RunId

    @property
    def metadata(self) -> str:
        """The file that makes it exist."""
        return f"{self.folder}/_metadata"

    @property
    def committed(self) -> str:
        """The file that marks the checkpoint as committed."""
        return f"{self.folder}/_committed"

    @property
    def files(self) -> list[str]:
        """The files in its folder, in the order of deletion: the metadata goes last, because the others are found through it."""
        return [self.committed, self.metadata]

    @property
    def folder(self) -> str:
        """The folder of the checkpoint in storage."""
        return f"chk-{self.checkpoint}-r{self.run}"


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    checksum: str
    checkpoint: msgspec.Raw


_ENVELOPES = msgspec.json.Decoder(_Envelope)  # made before there are threads, see `snapshot.mailbox`
_COMPLETED = msgspec.json.Decoder(Completed)


def name_of(completed: Completed) -> CheckpointName:
    """The name of a completed checkpoint."""
    return CheckpointName(completed.id, RunId(completed.run))


def mark_committed(storage: Storage, completed: Completed) -> None:
    """Record that every transaction the checkpoint promised is committed, so that the sinks need not be asked again."""
    storage.put(name_of(completed).committed, str(completed.run).encode())


def is_committed(storage: Storage, completed: Completed) -> bool:
    """Whether `mark_committed` was reached. If not, the transactions may be committed all the same."""
    try:
        return storage.get(name_of(completed).committed) == str(completed.run).encode()
    except FileNotFoundError:
        return False


def encode(completed: Completed) -> bytes:
    """Encode a checkpoint as the bytes of `_metadata`."""
    body = msgspec.json.encode(completed)
    return msgspec.json.encode(_Envelope(FORMAT, xxhash.xxh3_64_hexdigest(body), msgspec.Raw(body)))


def decode(data: bytes, name: str) -> Completed:
    """Decode `_metadata`. Raises `CorruptStateError` with the reason if it is damaged.

    Metadata of another format raises `IncompatibleStateError`: another version of Penstock can read it.
    """
    try:
        envelope = decoded(_ENVELOPES, data)
        found = xxhash.xxh3_64_hexdigest(bytes(envelope.checkpoint))
        if envelope.format != FORMAT:
            raise IncompatibleStateError(
                f"{name} has format {envelope.format}, this version of Penstock reads format {FORMAT}; nothing was changed; start the "
                "job with the version that wrote it",
                name=name,
                format=envelope.format,
            )
        if found != envelope.checksum:
            raise CorruptStateError(f"{name} is corrupt: checksum {found}, expected {envelope.checksum}")
        completed = decoded(_COMPLETED, envelope.checkpoint)
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{name} is corrupt: {error}", name=name) from error
    check_names(completed, name)
    check_owners(completed, name)
    return completed


def write_metadata(storage: Storage, completed: Completed) -> None:
    """Make the checkpoint exist. Called again when it is not known whether an earlier call succeeded."""
    name = name_of(completed).metadata
    data = encode(completed)
    if not storage.create(name, data) and storage.get(name) != data:
        raise InternalError(f"{name} in {storage.uri} exists already, with other content")


def exists(storage: Storage, completed: Completed) -> bool:
    """Whether this very checkpoint was written; for when a write reported an error."""
    try:
        return storage.get(name_of(completed).metadata) == encode(completed)
    except FileNotFoundError:
        return False


def found_checkpoints(storage: Storage) -> list[CheckpointName]:
    """All checkpoints that have metadata, valid or not, ascending."""
    return _with_file(storage, "_metadata")


def committed_checkpoints(storage: Storage) -> list[CheckpointName]:
    """All that have the mark of `mark_committed`, ascending."""
    return _with_file(storage, "_committed")


def _with_file(storage: Storage, file: str) -> list[CheckpointName]:
    matches = (_NAME.fullmatch(name) for name in storage.names())
    return sorted(
        CheckpointName(CheckpointId(int(match[1])), RunId(int(match[2])))
        for match in matches
        if match and match[3] == file
    )


def read_metadata(storage: Storage, name: CheckpointName) -> Completed:
    """Read and decode the metadata of one checkpoint."""
    completed = decode(storage.get(name.metadata), name.metadata)
    if name_of(completed) != name:
        raise CorruptStateError(
            f"{name.metadata} is corrupt: it holds checkpoint {completed.checkpoint} of run {completed.run}"
        )
    return completed
