"""Spark's own record of a query's progress, below `spark/` in the job's storage: read, and cut back to a checkpoint. Driver.

Spark writes `offsets/<n>` before batch n and `commits/<n>` after it. Penstock's checkpoint is the truth: in recovery
everything after it is removed, and the entry of the checkpoint itself is written again from the metadata if Spark has purged it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from penstock.errors import CorruptStateError
from penstock.ids import CheckpointId
from penstock.storage import Storage

FOLDER = "spark"
NO_POSITION = "-"
"""How Spark writes that a source has no position yet."""

_ENTRY = re.compile(rf"{FOLDER}/(offsets|commits)/\.?(\d+)(?:\.crc)?")


def read_entry(storage: Storage, batch: CheckpointId) -> str:
    """Spark's record of where a batch ends, verbatim."""
    return storage.get(f"{FOLDER}/offsets/{batch}").decode()


def positions(entry: str) -> list[object]:
    """The position of every streaming source, in the order of the query plan."""
    lines = entry.splitlines()
    if len(lines) < 2 or lines[0] != "v1":  # noqa: PLR2004 - version, metadata, then the sources
        raise CorruptStateError(f"Spark's progress log has an unknown format: {entry[:80]!r}")
    return [None if line == NO_POSITION else _json(line) for line in lines[2:]]


def _json(line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return line


def cut_back(storage: Storage, batch: CheckpointId, entry: str) -> None:
    """Make `batch` the last one that Spark knows of, as done; with `batch` < 0 the query starts from the beginning."""
    if batch < 0:
        storage.delete(storage.names(FOLDER))
        return
    storage.delete([name for name, number in _entries(storage) if number > batch])
    _make_last(storage, batch, entry)


def skip_ahead(storage: Storage, replayable: Sequence[bool]) -> CheckpointId:
    """At most once: take every batch that was ever begun as done; a source that cannot replay starts anew. Returns the last one."""
    begun = [number for name, number in _entries(storage) if "/offsets/" in name]
    if not begun:
        return CheckpointId(-1)
    last = CheckpointId(max(begun))
    entry = without_positions(read_entry(storage, last), replayable)
    _make_last(storage, last, entry)
    return last


def _make_last(storage: Storage, batch: CheckpointId, entry: str) -> None:
    """Write the entry of the last batch, and mark it as done.

    Spark also reads the entry before the last: it must exist, and a position in it holds for a source that has none in the last.
    """
    before = f"{FOLDER}/offsets/{batch - 1}"
    if batch > 0 and (NO_POSITION in entry.splitlines() or before not in storage.names(f"{FOLDER}/offsets")):
        _set(storage, f"offsets/{batch - 1}", entry)
    _set(storage, f"offsets/{batch}", entry)
    _mark_done(storage, batch, entry)


def without_positions(entry: str, replayable: Sequence[bool]) -> str:
    """The entry with no position for sources that cannot replay: they start anew, at the present."""
    lines = entry.splitlines()
    kept = [line if can else NO_POSITION for line, can in zip(lines[2:], replayable, strict=bool(lines))]
    return "\n".join(lines[:2] + kept)


def _mark_done(storage: Storage, batch: CheckpointId, entry: str) -> None:
    if f"{FOLDER}/commits/{batch}" in storage.names(f"{FOLDER}/commits"):
        return
    watermark = json.loads(entry.splitlines()[1]).get("batchWatermarkMs", 0)
    _set(storage, f"commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')


def _set(storage: Storage, name: str, text: str) -> None:
    folder, _, number = name.partition("/")
    storage.delete([f"{FOLDER}/{folder}/.{number}.crc"])  # Hadoop's checksum of what was there before
    storage.put(f"{FOLDER}/{name}", text.encode())


def _entries(storage: Storage) -> list[tuple[str, int]]:
    matches = ((name, _ENTRY.fullmatch(name)) for name in storage.names(FOLDER))
    return [(name, int(match[2])) for name, match in matches if match]
