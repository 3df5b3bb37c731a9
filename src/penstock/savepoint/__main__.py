"""The process that makes a savepoint beside a driver, see `beside`."""

from __future__ import annotations

import os
import sys
import threading

import msgspec
import pyarrow as pa

from penstock.checkpoint.metadata import CheckpointName, read_metadata
from penstock.ids import CheckpointId, RunId
from penstock.savepoint.beside import Said, Wish
from penstock.savepoint.create import create_savepoint
from penstock.storage import open_storage

_WISHES = msgspec.json.Decoder(Wish)


def main() -> None:
    """Read the wish, make the savepoint, say how it goes."""
    wish = _WISHES.decode(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    pa.set_cpu_count(1)  # one core is enough to take from the job
    try:
        storage = open_storage(wish.storage)
        name = CheckpointName(CheckpointId(wish.checkpoint), RunId(wish.run))
        completed = read_metadata(storage, name)
        create_savepoint(
            storage,
            completed,
            open_storage(wish.to),
            token=wish.token,
            committed=wish.committed,
            told=lambda done, of: _say(Said(done, of)),
        )
    except Exception as error:  # noqa: BLE001 - raised again in the driver
        _say(Said(failed=str(error) or type(error).__name__, error=type(error).__name__))


def _end_with_the_driver() -> None:
    """Not through `sys.stdin`: at its end Python would wait for a lock that this thread has."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
