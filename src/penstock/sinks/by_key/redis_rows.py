"""Rows as Redis keeps them: a key made of columns, and a hash, a text or a JSON object. Executors.

A prepared batch has the column of keys first, then whether the key is deleted, then what is written. Numbers are written in
digits (a boolean is 1 or 0; NaN and the infinities are nan, inf and -inf), times in ISO 8601, decimals with all digits, bytes as they
are, lists and structs as JSON. Redis has no null: a field that is null is removed from its hash, a text that is null with its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError, ConfigError
from penstock.sinks.bad_rows import refuse_null_keys
from penstock.sinks.json_text import json_lines, unsupported_in_json
from penstock.sinks.sqlite.values import storage_batch, storage_class
from penstock.state.ddl import spark_type


class KeyTemplate:
    """A text such as 'views:{app}' in which columns stand in braces; '{{' is a brace."""

    def __init__(self, template: str) -> None:
        if not isinstance(template, str):
            raise ConfigError(f"key must be a text such as 'views:{{app}}', not {template!r}", key=template)
        self.template = template
        try:
            self.parts = list(Formatter().parse(template))
        except ValueError as error:
            raise ConfigError(f"key {template!r} cannot be understood: {error}", key=template) from error
        self.columns = [column for _, column, _, _ in self.parts if column is not None]
        odd = any(spec or conversion for _, _, spec, conversion in self.parts)
        if not self.columns or "" in self.columns or odd:
            raise ConfigError(
                f"key {template!r} must name at least one column in braces, without anything else in them, such as 'views:{{app}}'",
                key=template,
            )

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that are missing or have no one text."""
        for name in self.columns:
            check_column("key", name, schema)
            kind = schema.field(name).type
            if storage_class(kind) not in {"INTEGER", "TEXT"} or pa.types.is_nested(kind):
                raise ConfigError(
                    f"column {name!r} of type {spark_type(kind)} cannot be part of the key {self.template!r}: cast it to "
                    "a string or a whole number",
                    column=name,
                )

    def texts(self, stored: pa.RecordBatch) -> pa.Array:
        """The key of each row; a null in it is refused."""
        refuse_null_keys(stored, self.columns, repr(self.template))
        pieces: list[pa.Array | pa.Scalar] = []
        for literal, column, _, _ in self.parts:
            pieces.append(pa.scalar(literal, pa.large_string()))
            if column is not None:
                pieces.append(stored.column(column).cast(pa.large_string()))
        return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))


class RedisForm:
    """Which columns are written, and as what: kind is 'hash', 'text' or 'json'."""

    def __init__(self, kind: str, columns: Sequence[str] | None) -> None:
        self.kind = kind
        self.columns = columns
        """None: all that are neither in the key nor the mark of a deletion."""

    def written(self, names: Sequence[str], taken: set[str]) -> list[str]:
        """The columns to write."""
        if self.columns is not None:
            return list(self.columns)
        return [name for name in names if name not in taken]

    def check(self, schema: pa.Schema, taken: set[str]) -> None:
        """Refuse columns that are missing or have no form."""
        columns = self.written(schema.names, taken)
        if not columns:
            raise ConfigError(
                "there is no column left to write: all are part of the key", columns=schema.names
            )
        for name in columns:
            check_column("what is written", name, schema)
            part = unsupported_in_json(schema.field(name).type)
            if part is not None:
                raise ConfigError(
                    f"column {name!r} cannot be written to Redis: there is no form for {part}", column=name
                )

    def values(self, batch: pa.RecordBatch, stored: pa.RecordBatch, taken: set[str]) -> pa.RecordBatch:
        """What is written of each row, one column a field, or one column in all."""
        columns = self.written(batch.schema.names, taken)
        if self.kind == "json":
            lines = json_lines(batch.select(columns)).split(b"\n")[: batch.num_rows]
            return pa.RecordBatch.from_arrays([pa.array(lines, pa.large_binary())], names=["json"])
        return stored.select(columns)


def stored_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every column as whole numbers, floating point, text or bytes."""
    try:
        return storage_batch(batch, knows_nan=True)
    except BadRecordError as error:
        raise BadRecordError(
            f"a row cannot be written to Redis: {error.__cause__ or error}", **error.facts
        ) from error


def check_column(part: str, name: str, schema: pa.Schema) -> None:
    """Refuse a name that is not exactly one column."""
    if schema.names.count(name) != 1:
        raise ConfigError(
            f"{part} names the column {name!r}, but the columns are {schema.names}",
            column=name,
            columns=schema.names,
        )
