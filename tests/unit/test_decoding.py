"""Files that anybody may have written, or that a bad disk has changed: no UTF-8, nested without end. Each reader says so in its own words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.checkpoint.metadata import CheckpointName, read_metadata
from penstock.decoding import decoded
from penstock.errors import CorruptStateError
from penstock.ids import CheckpointId, RunId
from penstock.ownership.claim import JOB_FILE, read_run
from penstock.ownership.heartbeat import last_beat
from penstock.ownership.holds import find_holds
from penstock.ownership.job_record import read_job_record
from penstock.recovery.started_batches import last_started
from penstock.requests.request_files import read_request
from penstock.savepoint.manifest import MANIFEST, read_manifest
from penstock.status.journal import Budget, read_live, read_segment, segment_name
from penstock.storage import LocalStorage, Storage

_DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
REQUEST = "a" * 32
SEGMENT = segment_name(1.0, "0" * 16, Budget.RUNS, 1)
Read = Callable[[Storage], object]

REFUSED: dict[str, tuple[str, bytes, Read]] = {
    "request": (f"requests/{REQUEST}.json", b'{"kind":"\xff"}', lambda found: read_request(found, REQUEST)),
    "claim": ("runs/1.json", b'{"run":1,"host":"\xff"}', lambda found: read_run(found, RunId(1))),
    "heartbeat": ("runs/1.alive", b'{"run":"\xff"}', lambda found: last_beat(found, RunId(1))),
    "metadata": (
        "chk-3-r1/_metadata",
        b'{"format":1,"checksum":"\xff","checkpoint":{}}',
        lambda found: read_metadata(found, CheckpointName(CheckpointId(3), RunId(1))),
    ),
    "begun": ("begun/1.json", b'{"\xff":1}', last_started),
    "job": (JOB_FILE, b'{"name":"\xff"}', read_job_record),
    "manifest": (MANIFEST, b'{"format":1,"checksum":"\xff","savepoint":{}}', read_manifest),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
def test_what_is_no_text_of_ours_is_corrupt(kind: str, nested: bool, tmp_path: Path) -> None:
    """Not an error of Python's, which nobody expects where such a file is read."""
    name, data, read = REFUSED[kind]
    storage = LocalStorage(tmp_path)
    storage.put(name, _DEEP if nested else data)
    with pytest.raises(CorruptStateError):
        read(storage)


@pytest.mark.parametrize("data", [b'{"token":"\xff","until":9.0}', _DEEP])
def test_a_hold_of_others_ends_no_run(data: bytes, tmp_path: Path) -> None:
    """The coordinator looks for holds in the middle of a checkpoint: what it cannot read holds nothing, and is deleted."""
    storage = LocalStorage(tmp_path)
    name = f"holds/{'a' * 16}.json"
    storage.put(name, data)
    found = find_holds(storage, 1.0)
    assert found.good == []
    assert found.old == [name]


def test_what_people_see_passes_over_it(tmp_path: Path) -> None:
    """One line of a journal is in no other's way, and of what a run does nothing is known."""
    storage = LocalStorage(tmp_path)
    storage.put("runs/1.live", b'{"run":1,"at":1.0,"status":"\xff"}')
    bad = b'{"event":"asked","at":1.0,"run":1,"what":"\xff"}\n'
    good = b'{"event":"asked","at":2.0,"run":1,"what":"stop"}\n'
    storage.put(SEGMENT, bad + good)
    assert read_live(storage, 1) is None
    read = read_segment(storage, SEGMENT)
    assert [event.at for event in read.events] == [2.0]
    assert read.unreadable == 1


def test_decoded_says_what_is_wrong() -> None:
    """In one kind of error."""
    assert decoded(msgspec.json.Decoder(str), b'"a"') == "a"
    for wrong in (b'"\xff"', b"[", _DEEP):
        with pytest.raises(msgspec.DecodeError):
            decoded(msgspec.json.Decoder(str), wrong)
