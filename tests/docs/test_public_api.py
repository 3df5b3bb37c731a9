"""The public names, with their signatures, are as the snapshot says: a change of the interface is seen in review."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock as ps

SNAPSHOT = Path(__file__).resolve().parents[1] / "golden" / "public-api.txt"


def signature(thing: Any) -> str:
    """The parameters as they are written."""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def described(name: str, thing: Any) -> Iterator[str]:
    """A line for the name, and one for each public member of a class."""
    if not inspect.isclass(thing):
        yield f"{name}{signature(thing) if callable(thing) else ''}"
        return
    yield f"class {name}{signature(thing)}"
    for member, value in sorted(inspect.getmembers_static(thing)):
        if member.startswith("_") or not any(member in vars(base) for base in thing.__mro__ if _ours(base)):
            continue
        plain = getattr(value, "__func__", value)
        yield f"    {member}{signature(plain) if callable(plain) else ''}"


def _ours(base: type) -> bool:
    return base.__module__.startswith("penstock")


def current() -> str:
    """The interface as it is now."""
    names = sorted(ps.__all__)
    return "\n".join(line for name in names for line in described(name, getattr(ps, name))) + "\n"


def test_the_interface_is_as_the_snapshot_says() -> None:
    """Whoever changes a public name or signature writes the snapshot anew: python tests/docs/test_public_api.py."""
    assert current() == SNAPSHOT.read_text()


if __name__ == "__main__":
    SNAPSHOT.write_text(current())
