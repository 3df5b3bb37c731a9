"""The formats of the `Files` sink: the columns that each can hold (driver), and how rows are written (executors)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.sinks.json_text import json_lines, refuse_odd_years, unsupported_in_json
from penstock.sinks.sql.values import is_bytes
from penstock.state.ddl import spark_type

MAX_BUFFERED_BYTES = 64 << 20
_FILE_BUFFER_BYTES = 1 << 20
_IN_NUMBERS_AND_TIMES = "+-.: "


class RowFile(ABC):
    """One file that is being written. `flush` moves `buffered_bytes` from memory to the file."""

    buffered_bytes: int = 0

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows to the file."""

    def flush(self) -> None:  # noqa: B027 - most formats buffer no rows
        """Write buffered rows to the file."""

    @abstractmethod
    def close(self) -> None:
        """Write buffered rows and close the file. It is not synced."""


class FileFormat(ABC):
    """A format with its settings; it is pickled into tasks."""

    extension: ClassVar[str]

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Raise `ConfigError` for columns that the format cannot hold."""

    @abstractmethod
    def open(self, path: Path, schema: pa.Schema) -> RowFile:
        """Begin a file; an existing empty one keeps its mode."""


class Parquet(FileFormat):
    """Parquet; small batches are gathered into row groups of a useful size."""

    extension = "parquet"

    def __init__(self, *, compression: str = "zstd", row_group_rows: int = 1 << 17) -> None:
        if not isinstance(row_group_rows, int) or row_group_rows < 1:
            raise ConfigError(f"row_group_rows must be a whole number above 0, not {row_group_rows!r}")
        self.compression = compression
        self.row_group_rows = row_group_rows

    @override
    def check(self, schema: pa.Schema) -> None:
        """Write an empty file in memory to find out what pyarrow refuses."""
        try:
            pyarrow.parquet.ParquetWriter(
                pa.BufferOutputStream(), schema, compression=self.compression
            ).close()
        except (pa.ArrowException, ValueError, OSError) as error:
            raise ConfigError(
                f"these columns cannot be written as Parquet with compression {self.compression!r}: {error}; cast or drop them, or "
                "use another compression",
                schema=str(schema),
            ) from error

    @override
    def open(self, path: Path, schema: pa.Schema) -> RowFile:
        writer = pyarrow.parquet.ParquetWriter(str(path), schema, compression=self.compression)
        return _ParquetFile(writer, self.row_group_rows)


class _ParquetFile(RowFile):
    def __init__(self, writer: pyarrow.parquet.ParquetWriter, row_group_rows: int) -> None:
        self._writer = writer
        self._row_group_rows = row_group_rows
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._buffer.append(batch)
        self._buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        if self._buffered_rows >= self._row_group_rows or self.buffered_bytes >= MAX_BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            self._writer.write_table(pa.Table.from_batches(self._buffer), row_group_size=self._row_group_rows)
        self._buffer, self._buffered_rows, self.buffered_bytes = [], 0, 0

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._writer.close()


class JsonLinesFormat(FileFormat):
    """One JSON object per line; see `penstock.sinks.json_text` for the form of the values."""

    extension = "json"

    @override
    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            part = unsupported_in_json(field.type)
            if part is not None:
                raise ConfigError(
                    f"column {field.name!r} of type {spark_type(field.type)} cannot be written as JSON: there is no "
                    f"form for {part}; cast or drop it before write_to",
                    column=field.name,
                )

    @override
    def open(self, path: Path, schema: pa.Schema) -> RowFile:
        return _JsonFile(path)


class _JsonFile(RowFile):
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=_FILE_BUFFER_BYTES)

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(json_lines(batch))

    def close(self) -> None:
        self._file.close()


class Csv(FileFormat):
    """Comma-separated text with a header; a null is an empty field, an empty string is ''."""

    extension = "csv"

    def __init__(self, *, delimiter: str = ",", header: bool = True) -> None:
        if not isinstance(delimiter, str) or len(delimiter.encode()) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"delimiter must be one ASCII character, not {delimiter!r}")
        if delimiter.isalnum() or delimiter in _IN_NUMBERS_AND_TIMES:
            raise ConfigError(
                f"delimiter {delimiter!r} can be part of a number, a time or a boolean, which are written without quotes: no reader "
                "could find the end of a field; use a comma, a semicolon, a tab or a bar",
                delimiter=delimiter,
            )
        if not isinstance(header, bool):
            raise ConfigError(f"header must be True or False, not {header!r}")
        self.delimiter = delimiter
        self.header = header

    @override
    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if _no_csv_form(field.type):
                raise ConfigError(
                    f"column {field.name!r} of type {spark_type(field.type)} cannot be written as CSV; use to_json() or base64() on it "
                    "before write_to, or use format='parquet' or 'json'",
                    column=field.name,
                )

    @override
    def open(self, path: Path, schema: pa.Schema) -> RowFile:
        options = pyarrow.csv.WriteOptions(include_header=self.header, delimiter=self.delimiter)
        return _CsvFile(path, schema, options)


class _CsvFile(RowFile):
    def __init__(self, path: Path, schema: pa.Schema, options: pyarrow.csv.WriteOptions) -> None:
        self._file = path.open("wb", buffering=_FILE_BUFFER_BYTES)
        self._writer = pyarrow.csv.CSVWriter(self._file, schema, write_options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        refuse_odd_years(batch)
        self._writer.write_batch(batch)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()


def _no_csv_form(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return _no_csv_form(data_type.value_type)
    return is_bytes(data_type) or pa.types.is_nested(data_type) or bool(pa.types.is_interval(data_type))


_FORMATS: dict[str, type[FileFormat]] = {"parquet": Parquet, "json": JsonLinesFormat, "csv": Csv}


def file_format(name: str, options: dict[str, Any]) -> FileFormat:
    """Build a format from the user's settings."""
    kind = _FORMATS.get(name)
    if kind is None:
        raise ConfigError(f"format {name!r} is not known; use one of {sorted(_FORMATS)}", format=name)
    try:
        return kind(**options)
    except TypeError as error:
        raise ConfigError(
            f"an option of format {name!r} is not known: {error}", options=dict(options)
        ) from error
