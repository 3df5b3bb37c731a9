"""The life of a job in sentences: what the log tells, and the one line that a terminal shows. Pure; driver."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime

from penstock import start_options
from penstock.guarantee import Guarantee
from penstock.recovery.restore_plan import RestorePlan
from penstock.savepoint.manifest import Manifest
from penstock.status.live import Progress
from penstock.wording import counted, duration, event_moment, size

LIFE = logging.getLogger("penstock.job")
"""Tells when a run begins and from where, and how the job ends."""
RATE_OVER_S = 10.0
"""Rows a second are those of so long: much shorter and the number jumps from batch to batch."""
MORE = "..."


def started(job: str, parallelism: int, guarantee: Guarantee, point: RestorePlan, now: float) -> str:
    """Which run begins, from where, and with which guarantee."""
    parts = [_origin(point, now)]
    checkpoint = point.checkpoint
    if checkpoint is not None and checkpoint.operators and checkpoint.parallelism != parallelism:
        parts.append(f"rescaled from {checkpoint.parallelism} to {counted(parallelism, 'subtask')}")
    if point.last_read > point.id:
        parts.append(f"batches up to {point.last_read} are not read again")
    return f"job {job}, run {point.run}, {'; '.join(parts)}; {guarantee}"


def given(job: str, folder: str, manifest: Manifest) -> str:
    """What a start was given to begin with."""
    of = manifest.origin.job
    made_of = f" of job {of}, checkpoint {manifest.checkpoint}" if of else ""
    return f"job {job} was given the savepoint {folder}{made_of}, {size(manifest.size)}"


def adopted(job: str, *, now: bool) -> str:
    """Whether it begins with it, or goes on."""
    if now:
        return f"job {job} begins with this savepoint: its state is loaded"
    return f"job {job} has begun with this savepoint before: it goes on from its newest checkpoint"


def _origin(point: RestorePlan, now: float) -> str:
    checkpoint = point.checkpoint
    if checkpoint is None:
        return "begins from nothing: there is no checkpoint"
    when = _ago(now - checkpoint.completed_at)
    return f"goes on from checkpoint {checkpoint.checkpoint} of run {checkpoint.run}, completed {when}"


def _ago(seconds: float) -> str:
    """Whole seconds: this is looked at again and again. A clock that is behind another machine's is no reason for a minus."""
    whole = round(seconds)
    return f"{duration(whole)} ago" if whole >= 1 else "just now"


def ended(job: str, how: str, progress: Progress) -> str:
    """How the job ended, and how far it came."""
    run = f"run {progress.run}, " if progress.run else ""
    parts = (*_counts(progress), *_left_out(progress), _last_checkpoint(progress))
    return f"job {job} {how}: {run}{', '.join(parts)}{_restarts(progress)}"


def _counts(progress: Progress) -> Iterator[str]:
    yield counted(progress.batches, "batch", "batches")
    counts_are_out = progress.batches and not progress.rows_in and not _are_counted(progress)
    yield "its rows are not counted yet" if counts_are_out else f"{counted(progress.rows_in, 'row')} in"


def _are_counted(progress: Progress) -> bool:
    return any(source.looked_at for source in progress.sources.values())


def _left_out(progress: Progress) -> Iterator[str]:
    """From the job's first batch on."""
    for kind, found in (("bad row", progress.bad_records), ("late row", progress.late_rows)):
        rows = {uid: number for uid, number in sorted(found.items()) if number}
        if len(rows) == 1:
            yield counted(sum(rows.values()), kind)
        elif rows:  # no sum: one row may be among those of several
            yield f"{kind}s ({'; '.join(f'{uid} {number:,}' for uid, number in rows.items())})"


def event_time_left(job: str, progress: Progress, *, drainable: bool) -> str:
    """How far event time came, and what is still open; '' where nothing goes by it. `drainable`: whether a drain would have closed that."""
    if not progress.watermarks:
        return ""
    still_open = [f"{uid} (next at {_utc(at)})" for uid, at in sorted(progress.due_next.items())]
    what = f"still open: {', '.join(still_open)}" if still_open else "nothing is open"
    advice = f"; the next run goes on with it, {start_options.drain()} closes it" if drainable else ""
    return f"job {job}: {_reached(progress.watermarks)}, {what}{advice if still_open else ''}"


def _reached(watermarks: Mapping[str, datetime | None]) -> str:
    shown = {uid: "none yet" if at is None else _utc(at) for uid, at in sorted(watermarks.items())}
    if len(set(shown.values())) == 1:
        return f"watermark {next(iter(shown.values()))}"
    return f"watermarks ({'; '.join(f'{uid} {at}' for uid, at in shown.items())})"


def _utc(at: datetime) -> str:
    return f"{event_moment(at)} UTC"


def _last_checkpoint(progress: Progress) -> str:
    return f"last checkpoint {progress.checkpoint}" if progress.checkpoint >= 0 else "no checkpoint"


def _restarts(progress: Progress) -> str:
    """Since the first start of the job, as `status` and the pages count them."""
    return f", {counted(progress.restarts_total, 'restart')}" if progress.restarts_total else ""


class Rate:
    """Rows a second over the last while, from what is read off a counter now and then."""

    def __init__(self, over_s: float = RATE_OVER_S) -> None:
        self._over_s = over_s
        self._seen: deque[tuple[float, int]] = deque()

    def rows_per_s(self, rows: int, at: float) -> float:
        """`rows` is the count at the time `at` (s)."""
        self._seen.append((at, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= at - self._over_s:  # noqa: PLR2004 - one is as old as that, the others younger
            self._seen.popleft()
        since, before = self._seen[0]
        return (rows - before) / (at - since) if at > since else 0.0


def live_line(progress: Progress, doing: str, rows_per_s: float, now: float, columns: int) -> str:
    """What the job does now, in one line of at most `columns` characters."""
    parts = [
        f"{doing}, run {progress.run}" if progress.run else doing,
        *_counts(progress),
        f"{rows_per_s:,.0f} rows/s",
        _last_checkpoint(progress) + _age(progress, now),
    ]
    line = ", ".join(parts) + _restarts(progress)
    return line if len(line) <= columns else line[: max(0, columns - len(MORE))] + MORE[: max(0, columns)]


def _age(progress: Progress, now: float) -> str:
    if progress.checkpoint < 0 or not progress.checkpoint_at:
        return ""
    return f", {_ago(now - progress.checkpoint_at)}"
