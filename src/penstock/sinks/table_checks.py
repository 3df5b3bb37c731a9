"""Settings and checks shared by the sinks that write to a table: mode and key, columns, quoted names. Driver; names also in tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.sinks.json_text import unsupported_in_json
from penstock.state.ddl import spark_type


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


def quoted_name(*names: str, mark: str = '"') -> str:
    """Quote a name for SQL, with its schema if there is one."""
    return ".".join(mark + name.replace(mark, mark * 2) + mark for name in names)


def check_columns(
    schema: pa.Schema,
    key: Sequence[str],
    *,
    target: str,
    ignores_case: bool = False,
    without_form: Callable[[pa.DataType], str | None] = unsupported_in_json,
) -> None:
    """Refuse columns that the target cannot hold, and keys that are not columns. `without_form` names the part of a type it cannot hold."""
    folded = [name.lower() if ignores_case else name for name in schema.names]
    repeated = sorted({name for name in folded if folded.count(name) > 1})
    if repeated:
        case = f" ({target} ignores case)" if ignores_case else ""
        raise ConfigError(f"columns appear more than once{case}: {repeated}; rename them", columns=repeated)
    key_names = {name: name.lower() if ignores_case else name for name in key}
    missing = [name for name, wanted in key_names.items() if wanted not in folded]
    if missing:
        raise ConfigError(f"key names {missing}, but the columns are {schema.names}", columns=missing)
    for field, name in zip(schema, folded, strict=True):
        part = without_form(field.type)
        if part is not None or (name in key_names.values() and pa.types.is_nested(field.type)):
            raise ConfigError(
                f"column {field.name!r} of type {spark_type(field.type)} cannot be written to {target}"
                f"{' as a key' if part is None else f': it has no type for {part}'}; cast or drop it",
                column=field.name,
            )


def check_declared(
    schema: pa.Schema, needs_value: Mapping[str, bool], *, table: str, shown: str, ignores_case: bool = False
) -> None:
    """Refuse columns that the table does not have, and a table with other columns that need a value (NOT NULL, no default)."""
    folded = {name.lower() if ignores_case else name for name in needs_value}
    written = {name: name.lower() if ignores_case else name for name in schema.names}
    missing = [name for name, wanted in written.items() if wanted not in folded]
    if missing:
        raise ConfigError(
            f"table {shown} has no column {', '.join(map(repr, missing))}; add it with ALTER TABLE, or drop it before write_to "
            f"(the table has {list(needs_value)})",
            table=table,
            columns=missing,
        )
    for name, needed in needs_value.items():
        if needed and (name.lower() if ignores_case else name) not in written.values():
            raise ConfigError(
                f"table {shown} needs a value for {name!r} (NOT NULL, no default), but the columns written are {schema.names}",
                table=table,
                column=name,
            )
