"""Reading JSON that others may have written, or that a bad disk has changed: with one kind of error. Everywhere."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def decoded(decoder: msgspec.json.Decoder[_T], data: bytes | msgspec.Raw) -> _T:
    """What the bytes say. Raises `msgspec.DecodeError` for all that is not of that kind.

    msgspec itself raises other errors for bytes that are no UTF-8, and for what is nested too deeply.
    """
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is no UTF-8: {error}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
