"""Formats counts, durations, sizes, times and names for people: one way in logs, errors, tables and pages. Times are in UTC. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

import msgspec

_SECOND_MS, _MINUTE_S, _HOUR_S, _DAY_S = 1000, 60, 3600, 86400
_KILOBYTE = 1024


def counted(number: int, one: str, several: str = "") -> str:
    """`1 row`, `2 rows`, `1,500 rows`; a plural that is more than an `s` is given."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'user'?`, or nothing where no known name is like it."""
    found = get_close_matches(name, [one for one in known if one != name], n=1)
    return f"did you mean {found[0]!r}?" if found else ""


def named(names: Sequence[str], one: str, several: str = "") -> str:
    """`operator a`, `operators a, b`."""
    return f"{one if len(names) == 1 else several or one + 's'} {', '.join(names)}"


def with_article(noun: str) -> str:
    """`a sink`, `an operator`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "min": 60_000_000, "s": 1_000_000, "ms": 1_000}


def exactly(us: int) -> str:
    """A duration in the largest unit that gives a whole number: two of them are the same if, and only if, this is."""
    for unit, length in _UNITS_US.items():
        if us and us % length == 0:
            return f"{us // length} {unit}"
    return f"{us} us"


def in_so_many_us(said: str) -> int | None:
    """The duration of which `exactly` says this, in microseconds; None for what it never says."""
    number, _, unit = said.partition(" ")
    length = {**_UNITS_US, "us": 1}.get(unit)
    return None if length is None or not number.isdecimal() else int(number) * length


def duration(seconds: float) -> str:
    """`4.2 ms`, `56 ms`, `1.3 s`, `42 s`, `2 min 5 s`, `1 h 3 min`, `2 d 4 h`: as exact as a person wants it."""
    ms = seconds * _SECOND_MS
    if round(ms) < _SECOND_MS:
        return f"{_short(ms)} ms"
    if round(seconds) < _MINUTE_S:
        return f"{_short(seconds)} s"
    return _long(round(seconds))


def _short(number: float) -> str:
    """One decimal below 10, unless it is nought."""
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"  # noqa: PLR2004


def _long(seconds: int) -> str:
    if seconds < _HOUR_S:
        return _two(seconds, _MINUTE_S, "min", 1, "s")
    if seconds < _DAY_S:
        return _two(seconds, _HOUR_S, "h", _MINUTE_S, "min")
    return _two(seconds, _DAY_S, "d", _HOUR_S, "h")


def _two(whole: int, large: int, of_large: str, small: int, of_small: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {of_large}" + (f" {rest} {of_small}" if rest else "")


def size(size_bytes: float) -> str:
    """`512 B`, `8.0 KB`, `1.2 GB`; a KB is 1,024 bytes."""
    if size_bytes < _KILOBYTE:
        return f"{size_bytes:.0f} B"
    for unit in ("KB", "MB", "GB"):
        size_bytes /= _KILOBYTE
        if size_bytes < _KILOBYTE:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / _KILOBYTE:.1f} TB"


def event_moment(at: datetime) -> str:
    """A watermark, the end of a window or the moment of a timer, everywhere with the same digits: `2026-11-18 12:00:00.25`, in UTC.

    A watermark, and the last moment of a window, is a microsecond before the time that people know it by. No digit is left out: two moments
    that are shown the same are the same, so that a timer that waits never looks as if it had been missed.
    """
    nearly = at.replace(tzinfo=None)
    whole = nearly if nearly == datetime.max else nearly + timedelta(microseconds=1)  # noqa: DTZ901 - without a zone, as the other
    text = f"{whole:%Y-%m-%d %H:%M:%S.%f}"
    return text.rstrip("0").rstrip(".")


def storable(text: str) -> str:
    """Text of others that can be sent and stored: Python holds what is no UTF-8, such as odd names of files, in half characters."""
    return text.encode("utf-8", "backslashreplace").decode()


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


def utc_moment(at: float) -> str:
    """`2026-11-17 03:12:44`, in UTC; a dash for none."""
    found = _calendar(at)
    return NOTHING if found is None else f"{found:%Y-%m-%d %H:%M:%S}"


def clock_time(at: float) -> str:
    """`03:12:44`, in UTC, where the day is clear."""
    found = _calendar(at)
    return NOTHING if found is None else f"{found:%H:%M:%S}"


def near(at: float, now: float) -> str:
    """The time alone where it is of the same day, in UTC; else with the day."""
    same_day = utc_moment(at).partition(" ")[0] == utc_moment(now).partition(" ")[0]
    return clock_time(at) if same_day else utc_moment(at)


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
    """`for 3 h 2 min`; '' where the beginning is unknown."""
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


NOT_SHOWN = "(its text is not shown: it may have values of rows in it)"
"""In place of a text of others, where `show_rows=False`."""


# ── options of a start ─────────────────────────────────────────────────────────────────────────


class _Asked:
    """Where the start was requested. One for the process: a restart in another thread names options in the same way."""

    on_the_command_line = False


@contextmanager
def asked_on_the_command_line() -> Iterator[None]:
    """Inside the context, options are named as on the command line."""
    before, _Asked.on_the_command_line = _Asked.on_the_command_line, True
    try:
        yield
    finally:
        _Asked.on_the_command_line = before


def command_line_option(name: str) -> str:
    """An argument of `Job.start` on the command line, where an option that is repeated is singular: `--drop-source`."""
    # every user of the machine can see the command line: it has the file with the token
    if name == "ui_token":
        return "--ui-token-file"
    return f"--{name.removesuffix('s').replace('_', '-')}"


def start_option(name: str = "", **given: object) -> str:
    """Options of a start as their user writes them: `restore=3` in a program, `--restore 3` on the command line; or the name of one."""
    if not _Asked.on_the_command_line:
        return name or ", ".join(f"{option}={value!r}" for option, value in given.items())
    if name:
        return command_line_option(name)
    return " ".join(
        command_line_option(option) + typed for option, value in given.items() for typed in _typed(value)
    )


def _typed(value: object) -> list[str]:
    """What follows the option, each time that it is given."""
    if value is True:
        return [""]
    if isinstance(value, Mapping):
        return [f" {key}={one}" for key, one in value.items()]
    return [f" {one}" for one in value] if isinstance(value, tuple) else [f" {value}"]
