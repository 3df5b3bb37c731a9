"""Moments in the life of a job at which it may be killed, seen from outside by what appears in its folders."""

from __future__ import annotations

import enum
import os
import random
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from known_truth import JOB, Site

from builders.checkpoints import checkpoint_ids
from penstock.ownership.claim import newest_run
from services.tiers import everything

KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS") or (3 if everything() else 2))
"""How many kills a test should make: a few, unless `make chaos` asks for more."""


class Moment(enum.Enum):
    """What has just appeared when the kill comes."""

    RUN_CLAIMED = "the run claimed the job"
    RUN_RESTORED = "the run recorded where it goes on from"
    BATCH_PLANNED = "Spark planned a batch"
    ROWS_STAGED = "a sink staged rows"
    STATE_STORED = "a state file was uploaded"
    BATCH_DONE = "Spark noted a batch as done"
    COMPLETED = "a checkpoint completed"
    OUTPUT_VISIBLE = "a commit moved a file into place"
    ANY = "any time"

    @property
    def before_first_batch(self) -> bool:
        return self in (Moment.RUN_CLAIMED, Moment.RUN_RESTORED)


def look(site: Site, moment: Moment) -> set[str]:  # noqa: PLR0911 - one line a moment
    """The files whose appearance is the moment."""
    store = site.storage.root
    match moment:
        case Moment.RUN_CLAIMED:
            return set(_files(store / "runs", ".json"))
        case Moment.RUN_RESTORED:
            return set(_files(store / "runs", ".restored"))
        case Moment.BATCH_PLANNED:
            return set(_noted_by_spark(store / "spark", "offsets"))
        case Moment.BATCH_DONE:
            return set(_noted_by_spark(store / "spark", "commits"))
        case Moment.STATE_STORED:
            return set().union(*(state_files(site, uid) for uid in _entries(store / "state")))
        case Moment.ROWS_STAGED:
            folders = (
                *site.root.glob("views.db.penstock/*/views-out"),
                *site.files_path.glob("_penstock/*/links-out"),
            )
            return {name for folder in folders for name in _entries(folder) if name.startswith(JOB)}
        case Moment.COMPLETED:
            chks = (name for name in _entries(store) if name.startswith("chk-"))
            return {name for name in chks if (store / name / "_metadata").exists()}
        case Moment.OUTPUT_VISIBLE:
            return set(_files(site.files_path, ".parquet"))
        case Moment.ANY:
            return set()


def state_files(site: Site, uid: str) -> set[str]:
    """What an operator has in storage."""
    return set(_files(site.storage.root / "state" / uid, ".arrow"))


def newest_checkpoint(site: Site) -> int:
    return max(checkpoint_ids(site.storage), default=-1)


def first_batch_done(site: Site) -> bool:
    """Whether the newest run has stored state."""
    run = newest_run(site.storage)
    return any(name.startswith(f"{run}-") for name in look(site, Moment.STATE_STORED))


def hesitate(rng: random.Random, moment: Moment) -> None:
    """Let a little time pass, so that the kill falls on what follows the moment too."""
    longest_s = 3.0 if moment is Moment.ANY else rng.choice([0.0, 0.005, 0.05])
    shortest_s = 0.2 if moment is Moment.ANY else 0.0
    time.sleep(rng.uniform(shortest_s, longest_s))


def _entries(folder: Path) -> Iterable[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is needed, fast
    except OSError:
        return []


def _files(folder: Path, suffix: str) -> Iterator[str]:
    return (name for name in _entries(folder) if name.endswith(suffix) and not name.startswith("."))


def _noted_by_spark(logs: Path, kind: str) -> Iterator[str]:
    """Entries of all runs' progress logs, without those that a run filled its own with: these are readable for their owner alone."""
    for run in _entries(logs):
        for name in _entries(logs / run / kind):
            with suppress(FileNotFoundError):
                if name.isdigit() and (logs / run / kind / name).stat().st_mode & stat.S_IROTH:
                    yield f"{run}/{name}"
