"""How rows go into a table: appended, or upserted by key. Checked when a sink is made. Driver."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConfigError


def checked_mode(mode: str, key: Sequence[str] | str | None) -> tuple[str, tuple[str, ...]]:
    """Return the mode and the columns of the key, which only an upsert has."""
    if mode not in {"append", "upsert"}:
        raise ConfigError(f"mode {mode!r} is not known; use 'append' or 'upsert'", mode=mode)
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    if mode == "upsert" and not columns:
        raise ConfigError("mode='upsert' needs key=[...], the columns that identify a row", mode=mode)
    if mode == "append" and columns:
        raise ConfigError(f"key={key!r} has no meaning with mode='append'; use mode='upsert'", key=columns)
    return mode, columns
