"""The folders below a sink's path into which a commit will move files: looked at in the task, while the job can go back. Executors.

A look is no promise. A folder may change until the commit, which then says so itself (`staging.commit_errors`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.sinks.files import hive_partitions


class PartitionFolders:
    """Where rows go, by the columns `partition_by`; without any all go to `path` itself."""

    def __init__(self, path: Path, partition_by: Sequence[str]) -> None:
        self._path = path
        self.columns = tuple(partition_by)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each folder; '' is `path` itself."""
        if not self.columns:
            return iter([("", batch)])
        return hive_partitions.split(batch, self.columns)

    def refuse_unreachable(self, final: str) -> None:
        """Refuse a file that could not be moved to its place: the path too long, a file in its way, another file system."""
        target = self._path / final
        longest = os.pathconf(self._path, "PC_PATH_MAX") - 1
        if len(os.fsencode(target)) > longest:
            raise self._refused(final, f"its path would have more than {longest} bytes")
        top = self._path.stat()
        for folder in _folders(self._path, final):
            try:
                found = folder.stat()
            except FileNotFoundError:
                return
            except OSError as error:
                raise self._refused(final, str(error)) from error
            if not stat.S_ISDIR(found.st_mode):
                raise self._refused(final, f"{folder} is not a folder")
            if found.st_dev != top.st_dev:
                raise self._refused(final, f"{folder} lies on another file system than {self._path}")

    def _refused(self, final: str, why: str) -> BadRecordError:
        return BadRecordError(
            f"the rows of {os.path.dirname(final)[:200]!r} (partition_by) could not be moved into their folder: {why}; put that right, or "  # noqa: PTH120 - a relative name
            "filter such rows before write_to",
            path=str(self._path / final),
        )


def _folders(path: Path, final: str) -> Iterator[Path]:
    """From the top down."""
    for name in final.split("/")[:-1]:
        path /= name
        yield path
