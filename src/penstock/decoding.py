"""Decodes JSON that others may have written, or that a bad disk has changed, with one kind of error. Everywhere."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_T = TypeVar("_T")
_LARGEST_FLOAT = 1e15
"""Of seconds since the epoch, milliseconds, rates and bytes."""
_LARGEST_INT = 2**63 - 1
_SHOWN_DIGITS = 30


def decoded(decoder: msgspec.json.Decoder[_T], data: bytes | msgspec.Raw) -> _T:
    """What the bytes say. Raises `msgspec.DecodeError` for all that is not of that kind.

    msgspec itself raises other errors for bytes that are not UTF-8, and for nesting that is too deep.
    """
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is no UTF-8: {error}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def sanely_decoded(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """The same for measurements: a number that cannot have been measured is an error, too.

    With such a number sums and times overflow, far from here, and for all jobs that are shown together.
    """
    found = decoded(decoder, data)
    refuse_absurd(msgspec.json.decode(data))
    return found


def refuse_absurd(value: object) -> None:
    """Raise `msgspec.DecodeError` for such a number, anywhere in nested lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            refuse_absurd(one)
    elif isinstance(value, int | float) and abs(value) > (
        _LARGEST_FLOAT if isinstance(value, float) else _LARGEST_INT
    ):
        raise msgspec.DecodeError(f"it says {str(value)[:_SHOWN_DIGITS]}, which cannot have been measured")
