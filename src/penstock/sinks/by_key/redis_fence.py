"""What keeps a task or a driver that was taken for dead from putting old values back into Redis. Tasks, or the driver.

    _penstock:<job>:<sink>      "<run> <batch>", the newest that has written
    _penstock:<job>             "<run> 0", the newest run of which any sink has written at once
    _penstock:<job>/staged      the same for what is written with the checkpoint

Each call looks at two of them under WATCH and writes in the same MULTI: whoever is older is refused, and whoever was frozen between the
look and the write finds that a key has changed. A key a sink, not one a value: values stay what the user asked for.

The keys of the job are for a sink with a new uid: a task of an older run, in which it had another, is refused all the same. There are two
because a run repeats what an older one has promised, and may by then have written at once. Among staged rows it cannot have: it commits
those of its own only with a checkpoint that makes the older promise void.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
    fences = _fences(origin)
    own = (origin.run, origin.batch)
    while True:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.watch(*fences)
            found = {name: _read(name, pipeline.get(name)) for name in fences}
            for newest in found.values():
                if newest is not None and newest > own:
                    raise _fenced(list(fences), own, newest)
            pipeline.multi()
            for name, reached in fences.items():
                if found[name] != reached:
                    pipeline.set(name, f"{reached[0]} {reached[1]}")
            fill(pipeline)
            try:
                pipeline.execute()
            except changed:
                continue  # somebody moved a fence meanwhile; they only ever move forward
            return


def _fences(origin: Origin) -> dict[str, tuple[int, int]]:
    """The keys, and what they hold when this origin has written."""
    job = f"{PREFIX}{origin.job}"
    of_run = f"{job}/staged" if origin.staged else job
    return {f"{job}:{origin.sink}": (origin.run, origin.batch), of_run: (origin.run, 0)}


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


def _fenced(names: Sequence[str], own: tuple[int, int], newest: tuple[int, int]) -> FencedError:
    by = f"run {newest[0]}, batch {newest[1]}" if newest[1] else f"run {newest[0]}"
    of_sink, of_run = names
    return FencedError(
        f"nothing was written to Redis: {by} of the job has written already, and this is run {own[0]}, batch {own[1]}, which was taken for "
        f"dead; if it is the newest, because the job's storage was put back to an older copy, delete the key {of_sink!r} and the key "
        f"{of_run!r}",
        key=of_sink,
        run=own[0],
        newest_run=newest[0],
    )
