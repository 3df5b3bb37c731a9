"""JSON for programs; times and rates for people, in one format for all commands. Driver."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.wording import duration

_LATEST_S = 250_000_000_000.0


def print_json(found: Any) -> None:
    """Print one value, indented; structs as objects. Units are in the names."""
    json.dump(msgspec.to_builtins(found), sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def moment(at: float) -> str:
    """Date and time (UTC); '' for one that nobody knows."""
    return "" if not at else _calendar(at).strftime("%Y-%m-%d %H:%M:%S")


def time_of_day(at: float) -> str:
    """Of somebody who knows the date (UTC)."""
    return _calendar(at).strftime("%H:%M:%S")


def iso(at: float) -> str:
    """For programs."""
    return _calendar(at).isoformat(timespec="milliseconds")


def _calendar(at: float) -> datetime:
    """What lies in a storage may be damaged: a moment that no calendar has is the last, or the first, that has a place in it."""
    return datetime.fromtimestamp(min(max(at, 0.0), _LATEST_S), UTC)


def ago(seconds: float) -> str:
    """Whole seconds; a clock that is behind another machine's is no reason for a minus."""
    whole = round(seconds)
    return f"{duration(whole)} ago" if whole >= 1 else "just now"


def lasting(seconds: float) -> str:
    """How long something has lasted, in whole seconds."""
    return duration(max(0, round(seconds)))


def about(seconds: float) -> str:
    """The same in its largest unit alone, for a narrow column: `11 min`, `2 h`."""
    return " ".join(lasting(seconds).split()[:2])


def rate(rows_per_s: float) -> str:
    """`52,310 rows/s`."""
    return f"{rows_per_s:,.0f} rows/s"


def in_brief(text: str, longest: int) -> str:
    """On one line, cut where it is longer. What others wrote may hold control characters, which a terminal would obey."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: max(0, longest - 4)]} ..."


def visible(text: str) -> str:
    """The same without characters that a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
