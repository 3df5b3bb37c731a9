"""The files of a RocksDB database, between its folder and the references of a handle. Runs in tasks on executors.

A version of a database is a manifest and the tables that it lists. Invariants:
1. A table is never changed after it was written, and its number is never used again in the databases that
   descend from it. So a working folder holds hard links to the local copies, and a file that came with the handle
   before keeps its name: checkpoints are incremental.
2. RocksDB may write on in a manifest, so a manifest is copied, never linked.
3. In a handle every database begins with its manifest, so the files of several databases, one after another, can be
   told apart. CURRENT, which only says which manifest counts, is made anew; nothing else is needed to open it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import CorruptStateError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.state.backends.base import FileRef, Workplace
from penstock.state.backends.checksums import HASHED_FILES
from penstock.state.backends.fetch import local_file
from penstock.state.local_files import working_files
from penstock.storage.file_system import link_or_copy

_MANIFEST = re.compile(r"MANIFEST-\d{1,20}")
_TABLE = re.compile(r"\d{1,20}\.sst")


@dataclass(frozen=True)
class DatabaseFiles:
    """One version of one database, as a handle names it."""

    manifest: FileRef
    tables: tuple[FileRef, ...]

    @property
    def label(self) -> str:
        """How messages call the database."""
        return self.manifest.name


def split(refs: Sequence[FileRef]) -> list[DatabaseFiles]:
    """The databases in a handle, each once; after a rescale there are those of several former subtasks."""
    found: list[list[FileRef]] = []
    for ref in refs:
        if _MANIFEST.fullmatch(ref.file):
            found.append([ref])
        elif found and _TABLE.fullmatch(ref.file):
            found[-1].append(ref)
        else:
            raise CorruptStateError(
                f"{ref.name or ref.checksum} stands in the checkpoint as {ref.file!r}, which is no file of a database "
                "in this place; restore an older checkpoint",
                file=ref.name,
                database_file=ref.file,
            )
    return list(dict.fromkeys(DatabaseFiles(manifest, tuple(tables)) for manifest, *tables in found))


@dataclass(frozen=True)
class WorkingFolder:
    """Where one attempt keeps its databases while it works; nobody else ever looks into it."""

    workplace: Workplace
    path: Path

    @classmethod
    def make(cls, workplace: Workplace) -> WorkingFolder:
        """A new folder; what attempts of earlier batches left behind when they were killed is removed."""
        versions = workplace.local_dir / "rocksdb" / str(workplace.subtask)
        path = versions / str(workplace.version) / f"{workplace.stem}-{SYSTEM_RANDOMNESS.token(8)}"
        with working_files(path):
            path.mkdir(parents=True)
            for former in os.scandir(versions):
                if former.name.isdigit() and int(former.name) < workplace.version:
                    shutil.rmtree(former.path, ignore_errors=True)
        return cls(workplace, path)

    def bring(self, name: str, files: DatabaseFiles) -> Path:
        """A folder in which RocksDB can open the database; files that are not on this machine are fetched and verified."""
        folder = self.path / name
        with working_files(folder):
            folder.mkdir()
            for table in files.tables:
                link_or_copy(local_file(self.workplace, table), folder / table.file)
            shutil.copyfile(local_file(self.workplace, files.manifest), folder / files.manifest.file)
            (folder / "CURRENT").write_text(f"{files.manifest.file}\n")
        return folder

    def changed(self, files: DatabaseFiles) -> list[str]:
        """Which working files of a database are not what was stored; they are read again, whatever this process knows about them."""
        found = []
        for ref in (files.manifest, *files.tables):
            local = self.workplace.local_path(ref.name)
            if local.is_file() and HASHED_FILES.hash(local) != (ref.size, ref.checksum):
                found.append(ref.name)
        return found

    def name_files(
        self, snapshot: Path, before: DatabaseFiles | None, rows: Mapping[str, tuple[int, int]]
    ) -> tuple[FileRef, ...]:
        """The references that name the files of a snapshot; new ones lie under their names on this machine when this returns.

        `rows` has the rows and tombstones of the tables that are new.
        """
        known = {(ref.file, ref.size): ref for ref in before.tables} if before else {}
        with working_files(snapshot):
            manifest = (snapshot / "CURRENT").read_text().strip()
            tables = sorted(
                (entry for entry in os.scandir(snapshot) if _TABLE.fullmatch(entry.name)), key=_newest
            )
            return (
                self._name_file(snapshot / manifest, (0, 0)),
                *(
                    known.get((table.name, table.stat().st_size))
                    or self._name_file(Path(table.path), rows.get(table.name, (0, 0)))
                    for table in tables
                ),
            )

    def remove(self) -> None:
        """Forget the folder, and the one of its batch when it was the last in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    def _name_file(self, path: Path, rows: tuple[int, int]) -> FileRef:
        name = self.workplace.new_name(f"-{path.name}")
        local = self.workplace.local_path(name)
        local.parent.mkdir(parents=True, exist_ok=True)
        local.unlink(missing_ok=True)
        link_or_copy(path, local)
        size, checksum = HASHED_FILES.hash(local)
        return FileRef(
            rows=rows[0], size=size, checksum=checksum, name=name, tombstones=rows[1], file=path.name
        )


def _newest(table: os.DirEntry[str]) -> int:
    return -int(table.name.partition(".")[0])
