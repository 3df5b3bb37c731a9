"""Writing and reading `chk-<n>/_metadata`: one small file, written last, atomically, and checked when it is read. Driver.

A checkpoint exists if and only if this file does. It is created exclusively, so a zombie cannot write over the owner's.
"""

from __future__ import annotations

import logging
import re

import msgspec
import xxhash

from penstock.checkpoint.completed import FORMAT, Completed
from penstock.errors import CorruptStateError, InternalError
from penstock.ids import CheckpointId, RunId
from penstock.recovery.fencing import check_owner, in_line_of_descent, read_descents
from penstock.storage import Storage

_log = logging.getLogger(__name__)
_NAME = re.compile(r"chk-(\d+)/_metadata")


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    checksum: str
    checkpoint: msgspec.Raw


_ENVELOPES = msgspec.json.Decoder(_Envelope)  # made before there are threads, see `snapshot.mailbox`
_COMPLETED = msgspec.json.Decoder(Completed)


def metadata_name(checkpoint: int) -> str:
    """Where the metadata of a checkpoint lies."""
    return f"chk-{checkpoint}/_metadata"


def files_of(checkpoint: int) -> list[str]:
    """What lies in the folder of a checkpoint, in the order of deletion: the metadata goes last, it is what others are found by."""
    return [_committed_name(checkpoint), metadata_name(checkpoint)]


def _committed_name(checkpoint: int) -> str:
    return f"chk-{checkpoint}/_committed"


def mark_committed(storage: Storage, completed: Completed) -> None:
    """Note that every transaction the checkpoint promised is committed, so that nobody need ask the sinks again."""
    storage.put(_committed_name(completed.checkpoint), str(completed.run).encode())


def is_committed(storage: Storage, completed: Completed) -> bool:
    """Whether `mark_committed` was reached. If not, the transactions may be committed all the same."""
    try:
        return storage.get(_committed_name(completed.checkpoint)) == str(completed.run).encode()
    except FileNotFoundError:
        return False


def encode(completed: Completed) -> bytes:
    """The bytes of `_metadata`."""
    body = msgspec.json.encode(completed)
    return msgspec.json.encode(_Envelope(FORMAT, xxhash.xxh3_64_hexdigest(body), msgspec.Raw(body)))


def decode(data: bytes, name: str) -> Completed:
    """Read `_metadata` back, or raise `CorruptStateError` that says what is wrong with it."""
    try:
        envelope = _ENVELOPES.decode(data)
        found = xxhash.xxh3_64_hexdigest(bytes(envelope.checkpoint))
        if envelope.format != FORMAT:
            raise CorruptStateError(
                f"{name} has format {envelope.format}; this version reads format {FORMAT}"
            )
        if found != envelope.checksum:
            raise CorruptStateError(f"{name} is corrupt: checksum {found}, expected {envelope.checksum}")
        return _COMPLETED.decode(envelope.checkpoint)
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{name} is corrupt: {error}", name=name) from error


def write_metadata(storage: Storage, completed: Completed) -> None:
    """Make the checkpoint exist. What a fenced run left under the same number is replaced; nothing else ever is."""
    name = metadata_name(completed.checkpoint)
    data = encode(completed)
    if storage.create(name, data):
        return
    existing = storage.get(name)
    if existing == data:
        return  # an earlier try succeeded although it reported an error
    if _is_valid(storage, existing, name):
        check_owner(storage, RunId(completed.run))  # most likely a newer run wrote it
        raise InternalError(f"{name} in {storage.uri} exists already and belongs to this job's history")
    _log.warning("%s was left by a run that does not belong to this job's history; it is replaced", name)
    storage.delete([name])
    if not storage.create(name, data):
        raise InternalError(f"{name} in {storage.uri} was written by another run in the same moment")


def exists(storage: Storage, completed: Completed) -> bool:
    """Whether this very checkpoint was written; for when a write reported an error."""
    try:
        return storage.get(metadata_name(completed.checkpoint)) == encode(completed)
    except FileNotFoundError:
        return False


def _is_valid(storage: Storage, data: bytes, name: str) -> bool:
    try:
        other = decode(data, name)
    except CorruptStateError:
        return False
    return in_line_of_descent(other.id, RunId(other.run), read_descents(storage))


def checkpoint_ids(storage: Storage) -> list[CheckpointId]:
    """The numbers of all checkpoints that have metadata, valid or not, ascending."""
    matches = (_NAME.fullmatch(name) for name in storage.names())
    return sorted(CheckpointId(int(match[1])) for match in matches if match)


def read_metadata(storage: Storage, checkpoint: CheckpointId) -> Completed:
    """Read one checkpoint's metadata."""
    name = metadata_name(checkpoint)
    return decode(storage.get(name), name)
