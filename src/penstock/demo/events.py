"""The input of the demonstration: page views, written into a partitioned log a column at a time. Supervisor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.demo.settings import DemoSettings
from penstock.sources import PartitionedLog

SCHEMA = "app string, page string, user long, event long"
_PIECE_ROWS = 65_536
_PAGES = 200
_USERS = 50_000
_SEED = 20_240_229


def write_events(
    settings: DemoSettings, on_progress: Callable[[int], None] = lambda _: None
) -> PartitionedLog:
    """Write all page views; `event` numbers them from 0, so that a single one that is lost or doubled shows."""
    log = PartitionedLog(settings.log_path, SCHEMA, settings.partitions)
    rng = np.random.default_rng(_SEED)
    written = 0
    for piece in range(-(-settings.events // _PIECE_ROWS)):
        rows = min(_PIECE_ROWS, settings.events - written)
        for partition, part in enumerate(
            np.array_split(np.arange(written, written + rows), settings.partitions)
        ):
            if len(part):
                log.append(
                    (partition + piece) % settings.partitions,
                    _page_views(part, settings.apps, rng),
                    sync=False,
                )
        written += rows
        on_progress(written)
    log.end_offsets()  # from here on every row is on disk
    return log


def _page_views(events: np.ndarray, apps: int, rng: np.random.Generator) -> pa.Table:
    """A few apps get most of the views, as in life."""
    weights = 1 / np.arange(1, apps + 1)
    app = rng.choice(apps, size=len(events), p=weights / weights.sum())
    page = rng.integers(_PAGES, size=len(events))
    return pa.table(
        {
            "app": _named("app-", app, apps),
            "page": _named("/page/", page, _PAGES),
            "user": pa.array(rng.integers(_USERS, size=len(events))),
            "event": pa.array(events),
        }
    )


def _named(prefix: str, numbers: np.ndarray, count: int) -> pa.Array:
    width = len(str(count - 1))
    names = pa.array([f"{prefix}{number:0{width}d}" for number in range(count)])
    return names.take(pa.array(numbers))
