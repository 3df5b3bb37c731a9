"""The shipped sinks as the contract suite drives them, and how an ordinary reader sees their targets."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet
import pytest

from penstock.sinks import Files, SQLite
from penstock.testing.sink_contract import SinkContract


def rows_in_folder(path: Path, file_format: str) -> list[dict[str, Any]]:
    """Read as an ordinary reader does, which skips names that start with '_'."""
    if not path.exists():
        return []
    found = pyarrow.dataset.dataset(str(path), format=file_format, partitioning="hive")
    return found.to_table().to_pylist() if found.files else []


class FilesTarget(SinkContract):
    file_format = "parquet"
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.path = tmp_path / "out"

    def make_sink(self) -> Files:
        return Files(self.path, format=self.file_format, **self.options)

    def visible_rows(self) -> list[dict[str, Any]]:
        return rows_in_folder(self.path, self.file_format)


class ParquetFiles(FilesTarget):
    pass


class JsonFiles(FilesTarget):
    file_format = "json"


class CsvFiles(FilesTarget):
    file_format = "csv"


class PartitionedFiles(FilesTarget):
    options: ClassVar[dict[str, Any]] = {"partition_by": ["name"]}


class SQLiteAppend(SinkContract):
    mode: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.path = tmp_path / "out.db"

    def make_sink(self) -> SQLite:
        return SQLite(self.path, "results", **self.mode)

    def visible_rows(self) -> list[dict[str, Any]]:
        return rows_in_table(self.path, "results")


class SQLiteUpsert(SQLiteAppend):
    mode: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": ["id"]}


def rows_in_table(path: Path, table: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    database = sqlite3.connect(path)
    database.row_factory = sqlite3.Row
    try:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchone():
            return []
        return [dict(row) for row in database.execute(f'SELECT * FROM "{table}"')]
    finally:
        database.close()


def both(tmp_path: Path) -> list[SinkContract]:
    """One of each family, on targets in one folder."""
    files, table = ParquetFiles(), SQLiteAppend()
    files.path, table.path = tmp_path / "out", tmp_path / "out.db"
    return [files, table]
