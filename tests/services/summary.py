"""Which servers a test run had, in one line at its end: a test that was skipped must not look like one that passed."""

from __future__ import annotations

from collections.abc import Iterable

NAMES = ("PostgreSQL", "MariaDB", "Kafka", "Redis", "S3", "HDFS", "Flink", "Chromium")
_LONGEST_REASON = 160
_versions: dict[str, str] = {}


def started(name: str, version: str) -> None:
    """A real server answered; its version is said once."""
    _versions[name] = version


def versions() -> dict[str, str]:
    """The servers that answered in this process."""
    return dict(_versions)


def line(skips: Iterable[str], versions: dict[str, str] | None = None) -> str:
    """What ran, and what was skipped and why; empty when no test needed a server.

    A reason of a skip that names a server is about that server, whoever skipped.
    """
    ran = _versions if versions is None else versions
    skipped = {name: reason for reason in skips for name in NAMES if name in reason}
    if not ran and not skipped:
        return ""
    had = ", ".join(f"{name} {ran[name]}" for name in NAMES if name in ran)
    lost = ", ".join(f"{name} ({_short(name, skipped[name])})" for name in NAMES if name in skipped)
    return f"services: {had or 'none'} ran; skipped: {lost or 'none'}"


def _short(name: str, reason: str) -> str:
    words = " ".join(reason.removeprefix("Skipped: ").removeprefix(f"{name}: ").split())
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}..."
