"""Spark's own record of a query's progress: `spark/<run>/`, made anew for every run. Driver.

It lies in the job's storage if that is a folder that Spark can write to, and otherwise in the working folder of the driver's machine, where
it can be lost at any time: see `place_of_log`.

Spark writes `offsets/<n>` before batch n and `commits/<n>` after it. Penstock's checkpoint is the truth: a run fills an empty folder of its
own with what the checkpoint says, and Spark finds there a query whose last batch is the checkpoint's. No two runs share a folder, so one
that is fenced and does not know it yet can put nothing into the log of another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, uuid5

import msgspec
import xxhash

from penstock.checkpoint.model import Barrier, SourceFile
from penstock.decoding import decoded
from penstock.errors import CorruptStateError, UnavailableError
from penstock.ids import CheckpointId, RunId, SparkBatch
from penstock.ownership.claim import ancestors, read_descents
from penstock.storage import LocalStorage, Storage

COPIES = "state/_sources"
"""The folder of the copies, next to those of operators. No operator can have this name."""

_NUMBERED = re.compile(r"(\d+)(\.compact)?")


@dataclass
class SourceLog:
    """Files that Spark's sources write below `sources/` of one run's progress log, and their copies in storage.

    A file source lists the files it has read in `<source>/<n>` or, every ten entries, all of them in `<source>/<n>.compact`. Kafka records
    where a first start began. Without these files a restored file source would read everything again, and Spark syncs none of them to
    disk. So each file is copied once, under a name of its own, and a checkpoint names its copies as it names files of state.
    """

    storage: Storage
    folder: str
    run: RunId
    place: Storage | None = None
    """Where Spark's log lies; None: in `storage`, as the copies do."""
    _copies: dict[str, SourceFile] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    """The sources whose files from before this run are already in place, by Spark's number."""

    def bring_back(self, files: Iterable[SourceFile]) -> None:
        """Put the files that a checkpoint names where Spark looks for them."""
        for file in files:
            self._place.put(f"{self.folder}/{file.path}", self._checked(file))
            self._copies[file.path] = file
            self._known.add(_source_of(file.path))

    def notes_of(self, folder: str) -> dict[str, bytes]:
        """The files that sources wrote in an earlier run, by path; raises `FileNotFoundError` if another run is deleting them."""
        return {path: self._place.get(f"{folder}/{path}") for path in self._paths(folder)}

    def take_up(self, found: Mapping[str, bytes], numbers: Mapping[str, str]) -> None:
        """Copy files of an earlier run for each source that has none yet. `numbers`: the current number of a source by its earlier one.

        All files of a source come from one run, because two runs may have written the same content under different numbers. A crash of the
        machine may have emptied some of them; then the files of an older run are used, or none.
        """
        for old in {_source_of(path) for path in found} & numbers.keys():
            new = numbers[old]
            notes = {path: data for path, data in found.items() if _source_of(path) == old}
            if new not in self._known and all(data.strip(b"\0") for data in notes.values()):
                for path, data in notes.items():
                    self._place.put(f"{self.folder}/{new}/{path.partition('/')[2]}", data)
                self._known.add(new)

    def keep(self) -> tuple[SourceFile, ...]:
        """Copy new files; returns the copies that a query needs to resume after the current batch."""
        needed = _needed(self._paths(self.folder))
        for path in needed:
            if path not in self._copies:
                self._copies[path] = self._copy(path)
        self._copies = {path: self._copies[path] for path in needed}
        return tuple(self._copies.values())

    @property
    def _place(self) -> Storage:
        return self.storage if self.place is None else self.place

    def _paths(self, folder: str) -> list[str]:
        """The files of sources, without those of Hadoop, whose names begin with a dot."""
        paths = (name.removeprefix(f"{folder}/") for name in self._place.names(folder))
        return [path for path in paths if not path.rpartition("/")[2].startswith(".")]

    def _copy(self, path: str) -> SourceFile:
        data = self._place.get(f"{self.folder}/{path}")
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
    """The paths, without files whose content a compacted file includes."""
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


FOLDER = "spark"
NO_POSITION = "-"
"""How Spark writes that a source has no position yet."""

Undecided = Mapping[str, Sequence[int]]
"""Sources that have no position yet, with the numbers of their streams."""

_UNDECIDED = "undecided.json"
_UNDECIDED_SOURCES = msgspec.json.Decoder(dict[str, list[int]])
MOST_LOOKS = 20
_OF_A_RUN = re.compile(rf"{FOLDER}/(\d+)/.*")


@dataclass(frozen=True)
class ProgressLog:
    """The folder of one run."""

    storage: Storage
    """Of the job: its history is there."""
    run: RunId
    lies_in: Storage | None = None
    """A folder of the driver's machine; None: the job's storage."""

    @property
    def place(self) -> Storage:
        """Where the folder of this log is."""
        return self.storage if self.lies_in is None else self.lies_in

    @property
    def is_disposable(self) -> bool:
        """Whether it is lost with the driver's machine, so that nothing may be only here."""
        return self.lies_in is not None

    @property
    def folder(self) -> str:
        """The folder of this log in its place."""
        return f"{FOLDER}/{self.run}"

    @property
    def location(self) -> str:
        """Where Spark finds it. Hadoop takes what stands in a path as it is, so a local one must not be escaped."""
        uri = self.place.uri
        root = urlsplit(uri)
        return f"{f'file://{unquote(root.path)}' if root.scheme == 'file' else uri}/{self.folder}"

    def source_log(self) -> SourceLog:
        """The files that the sources of the query write for themselves."""
        return SourceLog(self.storage, f"{self.folder}/sources", self.run, self.lies_in)

    def entry(self, batch: SparkBatch) -> str:
        """Spark's record of where a batch ends, verbatim."""
        return self.place.get(f"{self.folder}/offsets/{batch}").decode()

    def fill(self, last: SparkBatch, entry: str) -> None:
        """Write the log so that Spark takes `last` for its last batch, and for completed.

        Spark also reads the entry before the last: it must exist, and a position in it holds for a source that has none in the last.
        """
        for batch in (last - 1, last) if last > 0 else (last,):
            self._put(f"offsets/{batch}", entry)
        watermark = json.loads(entry.splitlines()[1]).get("batchWatermarkMs", 0)
        self._put(f"commits/{last}", f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')
        # Spark refuses a log without it. The query is the same one in every run of the job.
        self._put("metadata", json.dumps({"id": str(uuid5(NAMESPACE_URL, self.storage.uri))}))

    def say_who_decides(self, sources: Undecided) -> None:
        """Record, before the query starts, which sources have no position and therefore choose in this run where to begin."""
        self._put(_UNDECIDED, json.dumps(sources))

    def who_decides(self) -> dict[str, list[int]]:
        """The sources that `say_who_decides` recorded; none if the run ended before."""
        # a crash of the machine can leave it empty, as it can what sources note
        try:
            return decoded(_UNDECIDED_SOURCES, self.place.get(f"{self.folder}/{_UNDECIDED}"))
        except (
            FileNotFoundError,
            msgspec.DecodeError,
        ):
            return {}

    def _put(self, name: str, text: str) -> None:
        self.place.put(f"{self.folder}/{name}", text.encode())

    def earlier(self) -> dict[int, list[str]]:
        """What the folders of earlier runs hold, by run."""
        found: dict[int, list[str]] = {}
        for match in map(_OF_A_RUN.fullmatch, self.place.names(FOLDER)):
            if match and int(match[1]) < self.run:
                found.setdefault(int(match[1]), []).append(match[0])
        return found

    def empty(self) -> None:
        """Delete what another job of this name left here, before it was deleted and its runs were counted anew."""
        self.place.delete(self.place.names(self.folder))


def place_of_log(storage: Storage, working_folder: Path, owner: str) -> Storage | None:
    """Where the progress logs of a job lie: None for its storage, if Spark can write there without being told how.

    The working folder is named by the address of the storage, and `owner` by the identity that the job has drawn: no other job, and no
    earlier one at the same address, has left anything there.
    """
    return (
        None if urlsplit(storage.uri).scheme == "file" else LocalStorage(working_folder / "progress" / owner)
    )


def fill_progress_log(
    log: ProgressLog,
    last_read: CheckpointId,
    barrier: Barrier,
    undecided: Undecided | None = None,
    anew: Collection[str] = (),
) -> SourceLog:
    """Fill the progress log of a new run, so that Spark continues after batch `last_read`, at the barrier. Deletes those of earlier runs.

    Their content is in a checkpoint or in the record of started batches. One thing may be missing there: where a source chose to begin, in
    a run that ended before its first batch. A log that can be lost is not asked for it: the choice counts once it is recorded.
    `undecided`: the sources without a position. `anew`: those among them whose position in the checkpoint the user has discarded.
    """
    earlier = log.earlier()
    sources = log.source_log()
    undecided = {} if log.is_disposable else undecided or {}
    if log.is_disposable:
        log.empty()
    sources.bring_back(barrier.source_log)
    if last_read >= 0:
        log.fill(SparkBatch(last_read), barrier.progress_log)
    if undecided:
        earlier, left = _left_by(log, sources)
        decided = _Decided(log, anew)
        for run, before, notes in left:
            sources.take_up(notes, _same_sources(decided.of(run, before), undecided))
        log.say_who_decides(undecided)
    names = [name for names in earlier.values() for name in names]
    # The mark of completeness is written after the notes, and deleted before them.
    log.place.delete(sorted(names, key=lambda name: not name.endswith(_UNDECIDED)))
    return sources


def _left_by(
    log: ProgressLog, sources: SourceLog
) -> tuple[dict[int, list[str]], Sequence[tuple[RunId, Undecided, dict[str, bytes]]]]:
    """All files of earlier runs; and for each run, newest first, its undecided sources and the files that they wrote.

    A fenced run that does not know it yet may be moving the files of an older run: it copies them, then deletes them. A listing of one
    folder before the move and of the other after it would miss them. So both are listed until nothing has moved.
    """
    for _ in range(MOST_LOOKS):
        earlier = log.earlier()
        runs = [ProgressLog(log.storage, RunId(run), log.lies_in) for run in sorted(earlier, reverse=True)]
        try:
            left = [(run.run, run.who_decides(), sources.notes_of(f"{run.folder}/sources")) for run in runs]
        except FileNotFoundError:
            continue
        if _noted_in(log.earlier()) == _noted_in(earlier):
            return earlier, left
    raise UnavailableError(
        f"what earlier runs have left in {log.storage.uri}/{FOLDER} changes all the time: another run has taken the job over, or a program "
        "is deleting it",
        folder=FOLDER,
    )


def _noted_in(folders: Mapping[int, Sequence[str]]) -> list[str]:
    """The names of files of sources. Other files are ignored: a fenced run that does not know it yet still writes them."""
    return [name for names in folders.values() for name in names if "/sources/" in name]


class _Decided:
    """Which decisions of earlier runs hold for this one: those of runs that went on from the same checkpoint, or that led to it.

    Another run decided for another history: before the job started from a savepoint, or before a source was reset.
    """

    def __init__(self, log: ProgressLog, anew: Collection[str]) -> None:
        descents = read_descents(log.storage)
        self._from = {one.run: (one.restored_from, one.completed_by) for one in descents}
        self._own = self._from.get(log.run)
        self._ancestors = ancestors(log.run, descents)
        self._anew = anew

    def of(self, run: RunId, undecided: Undecided) -> Undecided:
        """The sources among `undecided` whose choice in that run also holds for this one."""
        if self._own is None or self._from.get(run, self._own) == self._own:
            return undecided
        led_here = run in self._ancestors
        return {uid: own for uid, own in undecided.items() if led_here and uid not in self._anew}


def _same_sources(before: Undecided, now: Undecided) -> dict[str, str]:
    """The current number of each stream by its earlier one, for streams that were undecided then and are now."""
    return {
        str(old): str(new)
        for uid in before.keys() & now.keys()
        if len(before[uid]) == len(now[uid])
        for old, new in zip(before[uid], now[uid], strict=True)
    }


def positions(entry: str) -> list[object]:
    """The position of every streaming source, in the order of the query plan."""
    lines = entry.splitlines()
    if len(lines) < 2 or lines[0] != "v1":  # noqa: PLR2004 - version, metadata, then the sources
        raise CorruptStateError(f"Spark's progress log has an unknown format: {entry[:80]!r}")
    return [position_of(line) for line in lines[2:]]


def position_of(line: str) -> object:
    """What a line of an entry says; None for a source that has no position."""
    if line == NO_POSITION:
        return None
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return line


def lines_of(entry: str) -> list[str]:
    """The position of every streaming source as Spark writes it; none in an entry that is empty."""
    return entry.splitlines()[2:]


def entry_of(entry: str, lines: Sequence[str]) -> str:
    """The entry with these positions instead of its own; one that is empty stays so."""
    return "\n".join([*entry.splitlines()[:2], *lines]) if entry else ""


def without_positions(entry: str, replayable: Sequence[bool]) -> str:
    """The entry with no position for sources that cannot replay: they start anew, at the present."""
    pairs = zip(lines_of(entry), replayable, strict=bool(entry))
    return entry_of(entry, [line if can else NO_POSITION for line, can in pairs])
