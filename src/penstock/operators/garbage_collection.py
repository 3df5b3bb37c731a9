"""Fewer passes of Python's garbage collector while many small objects are made. Executors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""How many objects may be new before the collector looks; Python's own 700 make it look all the time, even at all that is imported."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect rarely inside, and as before afterwards. Never not at all: user code may leave cycles behind."""
    before = gc.get_threshold()
    if 0 < before[0] < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
