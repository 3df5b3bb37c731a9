"""What the sinks for SQL servers share: the name of a transaction, and what was asked for. Driver and executors.

A server limits the length of a transaction's name (PostgreSQL 199 bytes, XA 64 and 64), so a name holds the
beginnings of job and sink for people, and a digest of both in full for the comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.errors import CommitLostError, ConfigError
from penstock.sinks import transaction as named
from penstock.sinks.tables import checked_mode
from penstock.sinks.transaction import NamedTransaction

PREPARED: Final = "prepared"
STAGED: Final = "staged"


class SqlTransaction(NamedTransaction, frozen=True, kw_only=True):
    """One whose rows wait in the server, prepared or in a table; `how` stays true when settings change."""

    how: Literal["prepared", "staged"] = PREPARED

    @property
    def numbers(self) -> str:
        """The part of the name behind job and sink."""
        return self.name.removeprefix(f"{self.job}.{self.sink}.")


msgspec.json.Decoder(SqlTransaction)  # so that `convert` meets a type that is known, see `snapshot.mailbox`


def owner_digest(*parts: str) -> str:
    """Tell job and sink (and where they write) from all others, in 16 characters."""
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()


class Way(NamedTuple):
    """How rows go into a table: the mode, the columns of the key, and how transactions wait for their commit."""

    mode: str
    key: tuple[str, ...]
    transactions: str


def checked_way(mode: str, key: Sequence[str] | str | None, transactions: str | None) -> Way:
    """Refuse what makes no sense; say what was left out."""
    if mode in {PREPARED, STAGED}:
        raise ConfigError(
            f"mode {mode!r} is not known; mode is 'append' or 'upsert', and how rows wait for their commit is transactions={mode!r}",
            mode=mode,
        )
    checked, columns = checked_mode(mode, key)
    return Way(checked, columns, _checked_transactions(transactions, checked))


def _checked_transactions(transactions: str | None, mode: str) -> str:
    """Return how transactions wait for their commit: prepared for appended rows, staged for upserted ones."""
    if transactions is None:
        return PREPARED if mode == "append" else STAGED
    if transactions not in {PREPARED, STAGED}:
        raise ConfigError(
            f"transactions {transactions!r} is not known; use {PREPARED!r} or {STAGED!r}",
            transactions=transactions,
        )
    if transactions == PREPARED and mode == "upsert":
        raise ConfigError(
            "mode='upsert' with transactions='prepared' would stop the job: a prepared transaction keeps its rows locked "
            "until the checkpoint completes, and the next batch with the same key waits for them; leave transactions out",
            transactions=transactions,
            mode=mode,
        )
    return transactions


def checked_identifier(setting: str, value: object, *, longest_bytes: int) -> str:
    """Return a name of a table or schema; it is taken letter by letter, and none of Penstock's own."""
    if not isinstance(value, str) or not value or "\0" in value or value.lower().startswith("_penstock"):
        raise ConfigError(
            f"{setting} {value!r} cannot be used: give a name that does not start with '_penstock'",
            setting=setting,
            value=value,
        )
    if len(value.encode()) > longest_bytes:
        raise ConfigError(
            f"{setting} {value!r} is longer than the {longest_bytes} bytes that the server keeps of a name",
            setting=setting,
            value=value,
        )
    return value


def lost(transaction: SqlTransaction, where: str, why: str) -> CommitLostError:
    """Say that a promised commit cannot be made."""
    look = "If the sink's address, schema or table was changed, start the job once with the old one"
    return named.lost(transaction, where=where, why=why, look=look)
