"""Positions that somebody gives to a `PartitionedLog`, held against the log itself before anything is written. Driver.

Spark hands a position to the source in the middle of the query. What is wrong there fails every run again, so it is looked at before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import ConfigError
from penstock.graph import Source
from penstock.recovery.restore_options import LATEST, START, RestoreOptions
from penstock.savepoint.restore import GivenSavepoint
from penstock.sources.partitioned_log import PartitionedLog
from penstock.spark.inspection import leaf_options, leaves
from penstock.spark.log_source import FORMAT as LOG
from penstock.wording import counted


def check_log_positions(
    sources: Sequence[Source], changes: RestoreOptions, savepoint: GivenSavepoint | None
) -> None:
    """Refuse a start whose `positions=`, or whose savepoint, says of a log what it does not have."""
    stored = {} if savepoint is None else savepoint.manifest.barrier.positions
    given = {changes.rename.get(uid, uid): one for uid, one in stored.items()} | dict(changes.positions)
    for source in sources:
        if given.get(source.uid) not in (None, START, LATEST):
            check_position(source, given[source.uid])


def check_position(source: Source, position: Any) -> None:
    """The same for one source; a list has a position for each of the streams in it."""
    found = leaves(source.frame)
    several = position if len(found) > 1 else [position]
    if not isinstance(several, list) or len(several) != len(found):
        return  # refused elsewhere, with what is wrong
    for leaf, options, one in zip(found, leaf_options(source.frame), several, strict=True):
        if leaf.kind == LOG and one is not None:
            _check(source.uid, PartitionedLog(options["path"]), one)


def _check(uid: str, log: PartitionedLog, position: Any) -> None:
    ends = {str(partition): end for partition, end in log.end_offsets().items()}
    if not isinstance(position, Mapping) or set(position) != set(ends):
        raise _refused(uid, log, position, f"has {counted(len(ends), 'partition')}", ends)
    for partition, end in ends.items():
        offset = position[partition]
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= end:
            raise _refused(uid, log, position, f"has {counted(end, 'row')} in partition {partition}", ends)


def _refused(uid: str, log: PartitionedLog, position: Any, has: str, ends: Mapping[str, int]) -> ConfigError:
    return ConfigError(
        f"source {uid!r} is to go on at {position}, and its log {log.path} {has}; nothing was written or changed. Give the offset of the "
        f"next row for every partition, at most where the log ends: {dict(ends)}",
        source=uid,
        position=position,
        ends=dict(ends),
    )
