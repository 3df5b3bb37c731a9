"""Numbers and moments as pages say them, on top of `penstock.wording`. Pure.

Moments are said in UTC, and pages say so: whoever reads over the shoulder of somebody in another place reads the same.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.wording import duration, event_moment

_THOUSAND = 1000
_UNITS = ("", "k", "M", "G", "T")
_MICROSECONDS = 1_000_000
_JUST_NOW_S = 0.95
_LATEST_S = 250_000_000_000
"""No calendar goes further; a file may say anything."""
NOTHING = "\N{EN DASH}"


def lasted(seconds: float) -> str:
    """`42 s`; nothing lasts less than no time, whatever clocks and files say."""
    return duration(max(0.0, seconds))


def capital(text: str) -> str:
    """With a capital at its beginning."""
    return text[:1].upper() + text[1:]


def milliseconds(ms: float) -> str:
    """`56 ms`, `1.3 s`; a dash for nothing."""
    return duration(ms / _THOUSAND) if ms > 0 else NOTHING


def compact(number: float) -> str:
    """`7`, `0.4`, `950`, `12.4 k`, `3.1 M`: three digits are enough to see how much it is."""
    size = abs(number)
    for unit in _UNITS[:-1]:
        if size < _THOUSAND - 0.5:
            return f"{_three_digits(size if number >= 0 else -size)}{f' {unit}' if unit else ''}"
        size /= _THOUSAND
    return f"{_three_digits(size if number >= 0 else -size)} {_UNITS[-1]}"


def _three_digits(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if abs(number) < 99.95 else f"{number:.0f}"  # noqa: PLR2004 - one decimal below 100


def rate(rows_per_s: float) -> str:
    """`12.4 k rows/s`."""
    return f"{compact(rows_per_s)} rows/s"


def moment(at: float) -> str:
    """`2026-11-17 03:12:44`, in UTC; a dash for none."""
    found = _calendar(at)
    return NOTHING if found is None else f"{found:%Y-%m-%d %H:%M:%S}"


def clock_time(at: float) -> str:
    """`03:12:44`, in UTC, where the day is clear."""
    found = _calendar(at)
    return NOTHING if found is None else f"{found:%H:%M:%S}"


def near(at: float, now: float) -> str:
    """The time alone where it is of the same day, in UTC; else with the day."""
    same_day = moment(at).partition(" ")[0] == moment(now).partition(" ")[0]
    return clock_time(at) if same_day else moment(at)


def machine_time(at: float) -> str:
    """The same for the attribute of a `time` element."""
    found = _calendar(at)
    return "" if found is None else f"{found:%Y-%m-%dT%H:%M:%SZ}"


def _calendar(at: float) -> datetime | None:
    return datetime.fromtimestamp(at, UTC) if 0 < at < _LATEST_S else None


def ago(at: float, now: float) -> str:
    """`12 s ago`; a dash for no moment at all."""
    if at <= 0:
        return NOTHING
    gone_s = now - at
    return "just now" if gone_s < _JUST_NOW_S else f"{duration(gone_s)} ago"


def lasting(since: float, now: float) -> str:
    """`for 3 h 2 min`; '' where nobody knows since when."""
    return f"for {duration(max(0.0, now - since))}" if since > 0 else ""


def behind(watermark_us: int | None, now: float) -> str:
    """How far event time is behind the clock: `4.2 s`; a dash where there is none. `ahead` where rows come from the future."""
    if watermark_us is None:
        return NOTHING
    gone_s = now - watermark_us / _MICROSECONDS
    return duration(gone_s) if gone_s >= 0 else f"{duration(-gone_s)} ahead"


def watermark_moment(watermark_us: int | None) -> str:
    """The moment itself, as `wording.event_moment` writes it."""
    if watermark_us is None:
        return NOTHING
    try:
        return event_moment(datetime.fromtimestamp(0, UTC) + timedelta(microseconds=watermark_us))
    except OverflowError:  # a file may say anything
        return NOTHING


def value_text(value: Any) -> str | None:
    """A value of state as it is stored, every digit of it; None for null. Maps, lists and structs are written as JSON."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def shortened(text: str, longest: int) -> str:
    """A text with its middle left out: both ends of a name tell more than one."""
    if len(text) <= longest:
        return text
    front = longest // 2
    return f"{text[:front]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - (longest - 1 - front) :]}"
