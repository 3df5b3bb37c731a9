"""The process that reads state for the dashboard, see `state_beside`."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.checkpoint.metadata import CheckpointName, read_metadata
from penstock.dashboard.state_beside import LARGEST_ANSWER_BYTES, NO_ROOM, Failed, Wish
from penstock.errors import CorruptStateError, UnavailableError
from penstock.ids import CheckpointId, RunId
from penstock.status.stored_state import USUAL_LIMITS, answer
from penstock.storage import LocalStorage, Storage, open_storage
from penstock.wording import size

_WISHES = msgspec.json.Decoder(Wish)


def main() -> int:
    """Read the wish, then the state within its limits, and say what was found; returns the exit code."""
    wish = _WISHES.decode(sys.stdin.buffer.read())
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _bound(wish)
    try:
        sys.stdout.buffer.write(_found(wish))
    except Exception as error:  # noqa: BLE001 - raised again in the dashboard
        if _is_want_of_memory(error):
            return NO_ROOM
        failed = Failed(type(error).__name__, str(error) or type(error).__name__)
        sys.stdout.buffer.write(msgspec.json.encode(failed))
        return 1
    return 0


def _found(wish: Wish) -> bytes:
    storage = open_storage(wish.storage)
    name = CheckpointName(CheckpointId(wish.checkpoint), RunId(wish.run))
    completed = read_metadata(storage, name)
    _refuse_links(storage, [name.metadata, *sorted(completed.files)])
    encoded = msgspec.json.encode(answer(storage, completed, wish.question))
    if len(encoded) > LARGEST_ANSWER_BYTES:
        raise UnavailableError(
            f"what was found in {wish.question.state} of {wish.question.operator} has {size(len(encoded))}, and no more than "
            f"{size(LARGEST_ANSWER_BYTES)} are shown; read this state with Spark, by ps.read_state",
            operator=wish.question.operator,
        )
    return encoded


def _refuse_links(storage: Storage, names: Iterable[str]) -> None:
    """What lies behind one may be state of another job, which this one's readers are not to see."""
    linked = next((one for one in names if isinstance(storage, LocalStorage) and storage.leads_away(one)), "")
    if linked:
        raise CorruptStateError(
            f"{linked} in {storage.uri} is a link, or lies behind one: Penstock makes none there, and nothing behind it was shown; look "
            "who made it",
            file=linked,
        )


def _bound(wish: Wish) -> None:
    """What holds however native code comes by its memory. A dashboard that dies cannot end this process, so it ends by itself, too."""
    _at_most(resource.RLIMIT_CPU, math.ceil(wish.seconds))
    _at_most(resource.RLIMIT_FSIZE, USUAL_LIMITS.fetched_bytes)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _at_most(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGESIZE") + wish.memory_bytes)


def _at_most(what: int, most: int) -> None:
    """Never more than this process was given from above."""
    _, above = resource.getrlimit(what)
    most = most if above == resource.RLIM_INFINITY else min(most, above)
    resource.setrlimit(what, (most, most))


def _is_want_of_memory(error: BaseException | None) -> bool:
    """Also where it was told as something else."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    sys.exit(main())
