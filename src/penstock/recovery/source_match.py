"""Match the positions of a checkpoint to the sources of the current job, by uid and not by order. Pure; driver.

Spark records positions in the order of the sources, and numbers the folders in which sources keep files of their own. A barrier says which
of them belong to which uid. Here both are put into the order of the current job.

A new source has no position: Spark asks it where to start, as at the first start of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.checkpoint.model import Barrier, SourceFile
from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.job_spec import Numbers, in_order
from penstock.recovery.progress_log import NO_POSITION, entry_of, lines_of, position_of
from penstock.wording import counted, named, start_option


def numbers_of(barrier: Barrier) -> dict[str, tuple[int, ...]]:
    """The sources of a barrier, with the numbers of their streams."""
    if barrier.numbers:
        return barrier.numbers
    lines = lines_of(barrier.progress_log)
    counts = {uid: len(one) if isinstance(one, list) else 1 for uid, one in barrier.positions.items()}
    if lines and sum(counts.values()) != len(lines):
        counts = dict.fromkeys(counts, 1)  # the position of a single stream may be a list
    if lines and counts and sum(counts.values()) != len(lines):
        raise CorruptStateError(
            f"the checkpoint has positions of the {named(list(counts), 'source')}, and Spark's entry in it has {len(lines)}"
        )
    return in_order(counts)


def lines_by_source(barrier: Barrier) -> dict[str, list[str]]:
    """The positions of each source as Spark writes them, one for each of its streams."""
    lines = iter(lines_of(barrier.progress_log))
    return {uid: [next(lines, NO_POSITION) for _ in own] for uid, own in numbers_of(barrier).items()}


def notes_by_source(barrier: Barrier) -> dict[str, list[list[SourceFile]]]:
    """What each source has noted for itself, for each of its streams."""
    by_number: dict[str, list[SourceFile]] = {}
    for file in barrier.source_log:
        by_number.setdefault(file.path.partition("/")[0], []).append(file)
    return {
        uid: [by_number.get(str(number), []) for number in own] for uid, own in numbers_of(barrier).items()
    }


def for_sources(
    barrier: Barrier,
    sources: Numbers,
    *,
    dropped: Sequence[str] = (),
    set_to: Mapping[str, Sequence[str]] | None = None,
) -> Barrier:
    """The barrier for a job with these sources.

    `dropped`: sources that the job no longer has and whose positions may be lost. `set_to`: positions by choice, as Spark writes them, one
    for each stream; a stream that gets none forgets what it has noted, and begins at its start.
    """
    if not barrier.positions:
        return barrier  # nothing has been read yet
    set_to = set_to or {}
    if not barrier.numbers and not barrier.progress_log and list(barrier.positions) == list(sources):
        barrier = msgspec.structs.replace(barrier, numbers={uid: tuple(own) for uid, own in sources.items()})
    lines, notes = lines_by_source(barrier), notes_by_source(barrier)
    _refuse_lost(lines, notes, sources, dropped)
    _refuse_other_streams(lines, sources, set_to)
    for uid, chosen in set_to.items():
        before = notes.get(uid, [])
        lines[uid] = list(chosen)
        notes[uid] = [
            [] if line == NO_POSITION or at >= len(before) else before[at] for at, line in enumerate(chosen)
        ]
    now = {uid: lines.get(uid) or [NO_POSITION] * len(own) for uid, own in sources.items()}
    _refuse_two_minds(now, sources)
    noted = {uid: notes.get(uid) or [[] for _ in own] for uid, own in sources.items()}
    _refuse_two_lists(noted, sources)
    times = barrier.time.sources
    known = {uid: time for uid, time in times.items() if uid in sources and uid not in set_to}
    return Barrier(
        {uid: _shown(own) for uid, own in now.items()},
        entry_of(barrier.progress_log, [line for own in now.values() for line in own]),
        _moved(noted, sources),
        msgspec.structs.replace(barrier.time, sources=known),
        {uid: tuple(own) for uid, own in sources.items()},
    )


def without_position(barrier: Barrier) -> frozenset[int]:
    """The numbers of the streams that have none: they decide where to begin when they are first asked."""
    lines, numbers = lines_by_source(barrier), numbers_of(barrier)
    pairs = (
        (number, line) for uid, own in numbers.items() for number, line in zip(own, lines[uid], strict=True)
    )
    return frozenset(number for number, line in pairs if line == NO_POSITION)


def _shown(lines: Sequence[str]) -> object:
    found = [position_of(line) for line in lines]
    return found[0] if len(found) == 1 else found


def _moved(notes: Mapping[str, Sequence[Sequence[SourceFile]]], sources: Numbers) -> tuple[SourceFile, ...]:
    """The same files, under the numbers of now."""
    found: dict[str, SourceFile] = {}
    for uid, own in sources.items():
        for number, files in zip(own, notes[uid], strict=True):
            for file in files:
                path = f"{number}/{file.path.partition('/')[2]}"
                found[path] = msgspec.structs.replace(file, path=path)
    return tuple(found.values())


def _refuse_lost(
    lines: Mapping[str, Sequence[str]],
    notes: Mapping[str, Sequence[Sequence[SourceFile]]],
    sources: Numbers,
    dropped: Sequence[str],
) -> None:
    began = {uid for uid in lines if any(line != NO_POSITION for line in lines[uid]) or any(notes[uid])}
    lost = [uid for uid in lines if uid in began and uid not in sources and uid not in dropped]
    if lost:
        raise IncompatibleStateError(
            f"the checkpoint has {'a position' if len(lost) == 1 else 'positions'} of the {named(lost, 'source')}, which the job no "
            f"longer reads: it reads {', '.join(sources)}. If it did again some day, it would begin at its start; keep "
            f"{'its uid' if len(lost) == 1 else 'their uids'}, say which uid it has now with "
            f"{start_option(rename={lost[0]: 'its-new-uid'})}, or allow the loss with {start_option(drop_sources=tuple(lost))}",
            stored=list(lines),
            sources=list(sources),
        )


def _refuse_other_streams(
    lines: Mapping[str, Sequence[str]], sources: Numbers, set_to: Mapping[str, Sequence[str]]
) -> None:
    for uid, own in sources.items():
        stored = len(lines.get(uid, own))
        if stored != len(own) and uid not in set_to:
            raise IncompatibleStateError(
                f"source {uid!r} had {counted(stored, 'streaming source')} in it at the checkpoint, and has {len(own)} now: it is "
                f"unknown which position belongs to which; change it back, read the new ones under uids of their own, or say where it "
                f"begins with {start_option(positions={uid: 'start'})}",
                source=uid,
            )


def _refuse_two_minds(lines: Mapping[str, Sequence[str]], sources: Numbers) -> None:
    """Spark reads a stream once, for all who read it: it cannot be at two places."""
    found: dict[int, tuple[str, str]] = {}
    for uid, own in sources.items():
        for number, line in zip(own, lines[uid], strict=True):
            other, at = found.setdefault(number, (uid, line))
            if at != line:
                raise IncompatibleStateError(
                    f"the sources {other!r} and {uid!r} read one and the same DataFrame, so that Spark reads it once for both, but "
                    f"{other!r} would begin at {at} and {uid!r} at {line}; make a DataFrame of its own for each, with "
                    "spark.readStream once more",
                    sources=[other, uid],
                )


def _refuse_two_lists(notes: Mapping[str, Sequence[Sequence[SourceFile]]], sources: Numbers) -> None:
    """A position may be a place in a list that the source has noted: the same place in another list is somewhere else."""
    found: dict[int, tuple[str, set[tuple[str, int, str]]]] = {}
    for uid, own in sources.items():
        for number, files in zip(own, notes[uid], strict=True):
            if not files:
                continue
            noted = {(file.path.partition("/")[2], file.size, file.checksum) for file in files}
            other, before = found.setdefault(number, (uid, noted))
            if before != noted:
                raise IncompatibleStateError(
                    f"the sources {other!r} and {uid!r} read one and the same DataFrame, so that Spark reads it once for both, but each "
                    f"has notes of its own of what it has read (such as a list of files), and these differ: {other!r} has "
                    f"{counted(len(before), 'file')} of them and {uid!r} {len(noted)}; make a DataFrame of its own for each, with "
                    "spark.readStream once more",
                    sources=[other, uid],
                )
