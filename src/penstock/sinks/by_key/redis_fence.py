"""What keeps a task or a driver that was taken for dead from putting old values back into Redis. Tasks, or the driver.

    _penstock:<job>:<sink>      "<run> <batch>", the newest that has written

Each call looks at it under WATCH and writes in the same MULTI: whoever is older is refused, and whoever was frozen between the look and
the write finds that the key has changed. A key a sink, not one a value: values stay what the user asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.errors import CorruptStateError, FencedError
from penstock.sinks.by_key.sink import Origin

PREFIX = "_penstock:"
_NUMBERS = re.compile(rb"(\d+) (\d+)")
_SHOWN = 100


def write_fenced(
    client: Any, origin: Origin, fill: Callable[[Any], None], *, changed: type[Exception]
) -> None:
    """Run what `fill` puts into a pipeline as one MULTI, unless a newer origin has written; `changed` is what redis-py raises then."""
    name = f"{PREFIX}{origin.job}:{origin.sink}"
    own = (origin.run, origin.batch)
    while True:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.watch(name)
            newest = _read(name, pipeline.get(name))
            if newest is not None and newest > own:
                raise _fenced(name, own, newest)
            pipeline.multi()
            if newest != own:
                pipeline.set(name, f"{origin.run} {origin.batch}")
            fill(pipeline)
            try:
                pipeline.execute()
            except changed:
                continue  # somebody moved the fence meanwhile; it only ever moves forward
            return


def check_fence(client: Any, *, changed: type[Exception]) -> None:
    """Run the same commands on a key that is gone after a millisecond: a user without these rights is told before the query.

    That of an earlier check, or of another job's, may go while we watch: the server has taken all commands then, too.
    """
    with client.pipeline(transaction=True) as pipeline:
        pipeline.watch(f"{PREFIX}check")
        pipeline.get(f"{PREFIX}check")
        pipeline.multi()
        pipeline.set(f"{PREFIX}check", "", px=1)
        with suppress(changed):
            pipeline.execute()


def _read(name: str, found: bytes | None) -> tuple[int, int] | None:
    if found is None:
        return None
    numbers = _NUMBERS.fullmatch(found)
    if numbers is None:
        raise CorruptStateError(
            f"nothing was written to Redis: the key {name!r} holds {found[:_SHOWN]!r}, not the run and batch that wrote last; if no other "
            "start of the job is running, delete the key",
            key=name,
        )
    return int(numbers[1]), int(numbers[2])


def _fenced(name: str, own: tuple[int, int], newest: tuple[int, int]) -> FencedError:
    return FencedError(
        f"nothing was written to Redis: run {newest[0]}, batch {newest[1]} of the job has written already, and this is run {own[0]}, "
        f"batch {own[1]}, which was taken for dead; if it is the newest, because the job's storage was put back to an older copy, delete "
        f"the key {name!r}",
        key=name,
        run=own[0],
        newest_run=newest[0],
    )
