"""Rows as Kafka messages: the columns of key, value, headers and partition. Checked on the driver, made in tasks.

Messages are staged as complete Arrow batches: `key`, `value` (bytes, null for none),
`partition` (-1: by key), and a column `header:<name>` for each header. So a commit does not depend on the settings of
messages; their topic is in the transaction, see `commit_session.KafkaTransaction`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError, ConfigError
from penstock.sinks.json_text import json_lines, json_texts, unsupported_in_json
from penstock.state.ddl import spark_type
from penstock.wording import counted

ANY_PARTITION = -1
MESSAGE_OVERHEAD_BYTES = 128
"""More than Kafka adds to one message: lengths, offsets, the frame of a batch of one."""
_HEADER = "header:"
_FORMATS = ("json", "bytes")

Message = tuple[Any, ...]
"""The positional arguments of a producer after the topic: value, key, partition; with headers also two callbacks, a time, the headers."""


@dataclass(frozen=True)
class MessageLimits:
    """The limits of the topic, read before the query starts."""

    partitions: int | None = None
    message_bytes: int = 1_000_000
    keys_needed: bool = False
    """A compacted topic accepts no message without a key."""


@dataclass(frozen=True)
class MessageLayout:
    """The columns of a message; a task gets it with the limits of the topic."""

    key: str | None
    value: str | tuple[str, ...] | None
    headers: Mapping[str, str]
    partition: str | None
    format: str
    limits: MessageLimits = MessageLimits()

    @classmethod
    def of(
        cls,
        *,
        key: str | None,
        value: str | Sequence[str] | None,
        headers: Mapping[str, str] | Sequence[str],
        partition: str | None,
        form: str,
    ) -> MessageLayout:
        """Check the settings that do not depend on the schema."""
        if form not in _FORMATS:
            raise ConfigError(f"format {form!r} is not known; use one of {list(_FORMATS)}", format=form)
        if form == "bytes" and not isinstance(value, str):
            raise ConfigError(
                "format='bytes' needs value='<column>': the column whose bytes are the value of a message",
                value=value,
            )
        columns = value if value is None or isinstance(value, str) else tuple(value)
        if columns == () or isinstance(headers, str):
            raise ConfigError(
                f"value={value!r} and headers={headers!r} must name columns in a list or mapping"
            )
        named = dict(headers) if isinstance(headers, Mapping) else {name: name for name in headers}
        return cls(key, columns, named, partition, form)

    def within(self, limits: MessageLimits) -> MessageLayout:
        """Return the layout with the limits of the topic."""
        if limits.keys_needed and self.key is None:
            raise ConfigError(
                "the topic is compacted (its cleanup.policy) and accepts no message without a key; set key='<column>', or write "
                "to another topic"
            )
        return replace(self, limits=limits)

    def check(self, schema: pa.Schema) -> None:
        """Raise `ConfigError` for a schema that does not fit."""
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"columns appear more than once: {repeated}; rename them before write_to", columns=repeated
            )
        texts = [] if self.format == "json" else [self.key, self.value]
        for name in filter(None, [*texts, *self.headers.values()]):
            assert isinstance(name, str)
            self._check_type(schema, name, _is_text, "binary or string")
        if self.partition is not None:
            self._check_type(schema, self.partition, pa.types.is_integer, "a whole number")
        for name in self._json_columns(schema) if self.format == "json" else ():
            part = unsupported_in_json(_field(schema, name).type)
            if part is not None:
                raise ConfigError(
                    f"column {name!r} cannot be written as JSON: there is no form for {part}; cast or drop it before write_to",
                    column=name,
                )

    def messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn rows into messages as they are staged."""
        columns = {
            "key": self._key(batch),
            "value": self._value(batch),
            "partition": self._partition(batch),
            **{_HEADER + name: _as_binary(batch.column(column)) for name, column in self.headers.items()},
        }
        made = pa.RecordBatch.from_pydict(columns)
        self._refuse_too_large(made)
        return made

    def _json_columns(self, schema: pa.Schema) -> list[str]:
        value = schema.names if self.value is None else self.value
        named = [value] if isinstance(value, str) else list(value)
        return named if self.key is None else [self.key, *named]

    def _check_type(self, schema: pa.Schema, name: str, accepts: object, wanted: str) -> None:
        field = _field(schema, name)
        if not callable(accepts) or not accepts(field.type):
            raise ConfigError(
                f"column {name!r} has type {spark_type(field.type)}, and a Kafka sink with format={self.format!r} needs "
                f"{wanted} there; cast it before write_to",
                column=name,
                type=str(field.type),
            )

    def _key(self, batch: pa.RecordBatch) -> pa.Array:
        if self.key is None:
            return pa.nulls(batch.num_rows, pa.binary())
        column = batch.column(self.key)
        if self.limits.keys_needed and column.null_count:
            raise BadRecordError(
                f"column {self.key!r}, the key of the messages, is null in {counted(column.null_count, 'row')}, and the topic is "
                "compacted: it accepts no message without a key; filter or fill them before write_to",
                column=self.key,
            )
        return _as_binary(column if _is_text(column.type) else json_texts(column))

    def _value(self, batch: pa.RecordBatch) -> pa.Array:
        if self.format == "bytes":
            return _as_binary(batch.column(self.value))
        if isinstance(self.value, str):
            return _as_binary(json_texts(batch.column(self.value)))
        chosen = batch if self.value is None else batch.select(list(self.value))
        lines = json_lines(chosen).split(b"\n")  # a newline inside a text is escaped in JSON
        return pa.array(lines[: batch.num_rows], pa.binary())

    def _partition(self, batch: pa.RecordBatch) -> pa.Array:
        if self.partition is None:
            return pa.repeat(pa.scalar(ANY_PARTITION, pa.int32()), batch.num_rows)
        column = batch.column(self.partition)
        known = self.limits.partitions
        ends = pc.min_max(column).as_py()
        if ends["min"] is not None and (ends["min"] < 0 or (known is not None and ends["max"] >= known)):
            wrong = ends["min"] if ends["min"] < 0 else ends["max"]
            raise BadRecordError(
                f"column {self.partition!r} has the partition {wrong}, but the topic has only the partitions 0 to "
                f"{'...' if known is None else known - 1}; correct it, or use null to let Kafka choose",
                column=self.partition,
                partition=wrong,
            )
        return pc.fill_null(column.cast(pa.int32()), pa.scalar(ANY_PARTITION, pa.int32()))

    def _refuse_too_large(self, made: pa.RecordBatch) -> None:
        """Refuse messages that the broker would refuse at commit, while the job can still go back."""
        total = pa.repeat(pa.scalar(MESSAGE_OVERHEAD_BYTES, pa.int64()), made.num_rows)
        for name in made.schema.names:
            if name != "partition":
                length = pc.fill_null(pc.binary_length(made.column(name)), 0)
                total = pc.add(total, pc.add(length.cast(pa.int64()), len(name)))
        largest = pc.max(total).as_py() or 0
        if largest > self.limits.message_bytes:
            raise BadRecordError(
                f"a message of {largest} bytes is larger than the topic accepts ({self.limits.message_bytes} bytes); raise "
                "max.message.bytes of the topic (and the option message.max.bytes, if you gave it), or filter such rows before write_to",
                size_bytes=largest,
                limit_bytes=self.limits.message_bytes,
            )


def staged_messages(batch: pa.RecordBatch) -> Iterator[Message]:
    """Read staged messages back, one by one."""
    columns = [batch.column(name).to_pylist() for name in ("value", "key", "partition")]
    names = [name.removeprefix(_HEADER) for name in batch.schema.names if name.startswith(_HEADER)]
    if not names:
        return zip(*columns, strict=True)
    values = zip(*(batch.column(_HEADER + name).to_pylist() for name in names), strict=True)
    headers = (
        [(name, header) for name, header in zip(names, row, strict=True) if header is not None]
        for row in values
    )
    return zip(*columns, repeat(None), repeat(None), repeat(0), headers)


def _field(schema: pa.Schema, name: str) -> pa.Field:
    if name not in schema.names:
        raise ConfigError(
            f"there is no column {name!r} for a Kafka sink; the columns are {schema.names}", column=name
        )
    return schema.field(name)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
    )


def _as_binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())
