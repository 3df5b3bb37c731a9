"""`_metadata`: what is written is read back, and what is not what was written is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from builders.checkpoints import checkpoint_ids
from builders.protocol_story import completed, transaction
from penstock.checkpoint.metadata import (
    decode,
    encode,
    exists,
    is_committed,
    mark_committed,
    name_of,
    read_metadata,
    write_metadata,
)
from penstock.checkpoint.model import Barrier, OperatorState, SourceFile
from penstock.errors import CorruptStateError, IncompatibleStateError, InternalError, UnavailableError
from penstock.ids import SubtaskId
from penstock.state.handle import FileRef, StateHandle
from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def test_round_trip(storage: LocalStorage) -> None:
    """Everything in it comes back."""
    written = completed(7, "state/a", "state/b", transactions=(transaction(7),))
    write_metadata(storage, written)
    assert read_metadata(storage, name_of(written)) == written
    assert written.files == {"state/a", "state/b"}
    assert written.state_bytes == 20


def test_only_metadata_makes_a_checkpoint(storage: LocalStorage) -> None:
    """Checkpoints are listed by number, and a folder without metadata is none."""
    for number in (10, 9):
        write_metadata(storage, completed(number))
    storage.put("chk-11-r3/_committed", b"")
    storage.put("chk-12-r3/_metadata.old", b"")
    assert checkpoint_ids(storage) == [9, 10]


@pytest.mark.parametrize("position", range(0, 600, 23))
def test_any_changed_byte_is_noticed(position: int) -> None:
    """No damage goes unseen, wherever it is."""
    data = bytearray(encode(completed(7, "state/a", transactions=(transaction(7),))))
    data[position % len(data)] ^= 0x10
    with pytest.raises((CorruptStateError, IncompatibleStateError), match="chk-7-r1/_metadata"):
        decode(bytes(data), "chk-7-r1/_metadata")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"null", b'{"format":1}', b"\xff\xfe", encode(completed(7))[:-20]]
)
def test_anything_else_is_refused(data: bytes) -> None:
    """A cut or foreign file is corrupt, not a crash of the reader."""
    with pytest.raises(CorruptStateError, match="chk-7-r1/_metadata"):
        decode(data, "chk-7-r1/_metadata")


def test_another_format_is_refused() -> None:
    """A file of a later version says so."""
    envelope = msgspec.json.decode(encode(completed(7))) | {"format": 99}
    with pytest.raises(
        IncompatibleStateError, match="has format 99, this version of Penstock reads format 4"
    ):
        decode(msgspec.json.encode(envelope), "chk-7-r1/_metadata")


def test_writing_again_what_is_there(storage: LocalStorage) -> None:
    """A repeated write of the same checkpoint is no conflict."""
    write_metadata(storage, completed(7))
    write_metadata(storage, completed(7))
    assert exists(storage, completed(7))


def test_a_checkpoint_is_never_written_over(storage: LocalStorage) -> None:
    """A different checkpoint of the same number and the same run is a bug."""
    write_metadata(storage, completed(7))
    with pytest.raises(InternalError, match="exists already, with other content"):
        write_metadata(storage, completed(7, "state/other"))
    assert not exists(storage, completed(7, "state/other"))


def test_two_runs_never_use_one_name(storage: LocalStorage) -> None:
    """Checkpoints of one number by two runs lie side by side, so that deleting the one leaves the other."""
    for run in (1, 2):
        write_metadata(storage, completed(7, run=run))
    storage.delete(name_of(completed(7, run=1)).files)
    assert read_metadata(storage, name_of(completed(7, run=2))).run == 2


def test_metadata_in_the_folder_of_another_checkpoint_is_refused(storage: LocalStorage) -> None:
    """A file that was copied to another place is not the checkpoint that the place is named after."""
    storage.put(name_of(completed(8)).metadata, encode(completed(7)))
    with pytest.raises(
        CorruptStateError, match="chk-8-r3/_metadata is corrupt: it holds checkpoint 7 of run 3"
    ):
        read_metadata(storage, name_of(completed(8)))


def test_a_lost_answer_is_seen_through(storage: LocalStorage) -> None:
    """A write that was performed although it reported an error is found to exist."""
    plan = FaultPlan(failures=(PlannedFailure(operation="create", performed=True),))
    faulty = FaultyStorage(storage, plan)
    with pytest.raises(UnavailableError):
        write_metadata(faulty, completed(7))
    assert exists(faulty, completed(7))
    assert not exists(faulty, completed(8))


def test_committed_mark(storage: LocalStorage) -> None:
    """The mark holds for the checkpoint of that run only, and goes before the metadata when a checkpoint is deleted."""
    assert not is_committed(storage, completed(7, run=1))
    mark_committed(storage, completed(7, run=1))
    assert is_committed(storage, completed(7, run=1))
    assert not is_committed(storage, completed(7, run=2))
    assert name_of(completed(7)).files[-1] == name_of(completed(7)).metadata


@pytest.mark.parametrize(
    "name",
    [
        "runs/1.json",
        "job.json",
        "state/../runs/1.json",
        "/etc/passwd",
        "../other-job/state/views/1-1-0-0.arrow",
        "chk-7-r1/_metadata",
    ],
)
def test_names_of_other_files_are_refused(name: str) -> None:
    """What a checkpoint names is deleted when it is subsumed: metadata with a right checksum that names other files is corrupt."""
    handle = StateHandle(SubtaskId("views", 0), "filesystem", 7, (FileRef(1, 1, "0", name),))
    hostile = msgspec.structs.replace(
        completed(7), parallelism=1, operators={"views": OperatorState({}, {}, (handle,))}
    )
    with pytest.raises(CorruptStateError, match="is no file of state; nothing was read or deleted"):
        decode(encode(hostile), "chk-7-r1/_metadata")
    note = SourceFile("0/../../../x", "state/_sources/1", 1, "0")
    climbing = msgspec.structs.replace(completed(7), barrier=Barrier(source_log=(note,)))
    with pytest.raises(CorruptStateError, match="which is no file of state"):
        decode(encode(climbing), "chk-7-r1/_metadata")
