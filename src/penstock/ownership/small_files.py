"""Small files that anybody may have written who reaches the storage: requests, answers and holds. Driver, and whoever asks.

What lies there must not harm the job that reads it: no pipe that never ends, no file that fills the memory, no nesting that a decoder
cannot follow.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.decoding import decoded
from penstock.storage import Storage
from penstock.wording import size

LARGEST_BYTES = 1 << 20
"""Ours have some hundred, or some thousand with the text of an error."""

_T = TypeVar("_T")


def read_small(storage: Storage, name: str, decoder: msgspec.json.Decoder[_T]) -> _T:
    """What the file says. Raises `msgspec.DecodeError` when it is none of ours, `FileNotFoundError` when no file is there."""
    return decoded(decoder, small_content(storage, name))


def small_content(storage: Storage, name: str) -> bytes:
    """The same, not decoded yet."""
    found = storage.size(name)
    if found is None:
        raise FileNotFoundError(f"there is no file {name} in {storage.uri}")
    if found > LARGEST_BYTES:
        raise msgspec.DecodeError(
            f"it has {size(found)}, and none of ours has more than {size(LARGEST_BYTES)}"
        )
    return storage.get(name)
