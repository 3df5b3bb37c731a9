"""What Spark's sources note for themselves, below `sources/` of the progress log: kept in storage with the checkpoint. Driver.

A file source lists here which files it has read, in `<source>/<n>` or, every ten entries, all of them in `<source>/<n>.compact`. Kafka
notes where a first start began. Without it a restored file source would read everything again, and Spark syncs none of it to disk. So each
file is copied once, under a name of its own, and a checkpoint names the copies that it needs as it names files of state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import xxhash

from penstock.checkpoint.completed import SourceFile
from penstock.errors import CorruptStateError
from penstock.ids import RunId
from penstock.storage import Storage

COPIES = "state/_sources"
"""Beside the folders of operators, none of which can have this name."""

_NUMBERED = re.compile(r"(\d+)(\.compact)?")


@dataclass
class SourceLog:
    """The notes in one run's progress log, and the copies of them."""

    storage: Storage
    folder: str
    run: RunId
    _copies: dict[str, SourceFile] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    """The sources that have notes from before this run."""

    def bring_back(self, files: Iterable[SourceFile]) -> None:
        """Put what a checkpoint names where Spark looks for it."""
        for file in files:
            self.storage.put(f"{self.folder}/{file.path}", self._checked(file))
            self._copies[file.path] = file
            self._known.add(_source_of(file.path))

    def notes_of(self, folder: str) -> dict[str, bytes]:
        """What the sources of an earlier run have noted, by path; raises `FileNotFoundError` where it is being taken away."""
        return {path: self.storage.get(f"{folder}/{path}") for path in self._paths(folder)}

    def take_up(self, found: Mapping[str, bytes], numbers: Mapping[str, str]) -> None:
        """Go on with the notes of an earlier run, for each source of which nothing is known yet: `numbers` has the new by the old ones.

        A source's notes are those of one run: two may have noted the same under different numbers. A crash of the machine may have
        emptied some; then an older run's are taken, or none.
        """
        for old in {_source_of(path) for path in found} & numbers.keys():
            new = numbers[old]
            notes = {path: data for path, data in found.items() if _source_of(path) == old}
            if new not in self._known and all(data.strip(b"\0") for data in notes.values()):
                for path, data in notes.items():
                    self.storage.put(f"{self.folder}/{new}/{path.partition('/')[2]}", data)
                self._known.add(new)

    def keep(self) -> tuple[SourceFile, ...]:
        """Copy what is new; returns all that a query needs that goes on from the batch under way."""
        needed = _needed(self._paths(self.folder))
        for path in needed:
            if path not in self._copies:
                self._copies[path] = self._copy(path)
        self._copies = {path: self._copies[path] for path in needed}
        return tuple(self._copies.values())

    def _paths(self, folder: str) -> list[str]:
        """What sources have noted; names with a dot in front are Hadoop's own."""
        paths = (name.removeprefix(f"{folder}/") for name in self.storage.names(folder))
        return [path for path in paths if not path.rpartition("/")[2].startswith(".")]

    def _copy(self, path: str) -> SourceFile:
        data = self.storage.get(f"{self.folder}/{path}")
        name = f"{COPIES}/{self.run}-{path.replace('/', '-')}"
        self.storage.put(name, data)
        return SourceFile(path, name, len(data), xxhash.xxh3_64_hexdigest(data))

    def _checked(self, file: SourceFile) -> bytes:
        try:
            data = self.storage.get(file.name)
        except FileNotFoundError as error:
            raise CorruptStateError(
                f"{file.name} is missing in {self.storage.uri}: without it the source would read again what it has read; bring it back "
                "from a copy, or restore an older checkpoint",
                name=file.name,
            ) from error
        if (len(data), xxhash.xxh3_64_hexdigest(data)) != (file.size, file.checksum):
            raise CorruptStateError(
                f"{file.name} in {self.storage.uri} is corrupt: {len(data)} bytes, expected {file.size} with checksum {file.checksum}; "
                "bring it back from a copy, or restore an older checkpoint",
                name=file.name,
            )
        return data


def _source_of(path: str) -> str:
    """Spark gives each source a folder, by its place in the query."""
    return path.partition("/")[0]


def _needed(paths: list[str]) -> list[str]:
    """Without what a compacted file has taken in."""
    compacted: dict[str, int] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        match = _NUMBERED.fullmatch(name)
        if match and match[2]:
            compacted[folder] = max(compacted.get(folder, 0), int(match[1]))
    return [path for path in paths if not _superseded(path, compacted)]


def _superseded(path: str, compacted: dict[str, int]) -> bool:
    folder, _, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    return bool(match and folder in compacted and int(match[1]) < compacted[folder])
