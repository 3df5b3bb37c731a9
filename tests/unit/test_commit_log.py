"""The proof of commits: what cannot be read is never taken for 'not committed'."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.sinks import staging
from penstock.sinks.staging import CommitLog, StagedTransaction


def transaction(checkpoint: int) -> StagedTransaction:
    return StagedTransaction("views-0a1b2c3d", "out", 1, checkpoint, 0, 0, "00ff00ff00ff00ff")


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hiccup of the disk says nothing about a commit; taken for 'no', it would be made twice or reported as lost."""
    log = CommitLog(tmp_path / "committed")
    log.append([transaction(5)])

    def refuse(folder: object) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    with monkeypatch.context() as broken:
        broken.setattr(os, "listdir", refuse)
        with pytest.raises(UnavailableError):
            log.committed([transaction(5)])
    assert log.committed([transaction(5), transaction(6)]) == {transaction(5)}


def test_two_processes_write_to_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads what the other has written down, and none adds to a file of another."""
    log = CommitLog(tmp_path / "committed")
    log.append([transaction(5)])
    monkeypatch.setattr(staging, "_WRITER", "ffffffff")
    log.append([transaction(6)])
    assert len(list((tmp_path / "committed").iterdir())) == 2
    assert log.committed([transaction(5), transaction(6)]) == {transaction(5), transaction(6)}
