"""What the sink `Files` does beyond the contract: formats, partitions, settings."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet
import pytest
from sink_targets import ParquetFiles, PartitionedFiles

from penstock.errors import (
    BadRecordError,
    CommitLostError,
    ConfigError,
)
from penstock.sinks import Files, SQLite, TransactionContext, WriteAheadLog
from penstock.sinks.staged_files import MAX_OPEN_FILES
from penstock.sinks.staging import folders_up_to
from penstock.testing.sink_contract import JOB, SINK, through_json

MOMENT = dt.datetime(2026, 11, 2, 12, 30, 0, 5)  # noqa: DTZ001 - a column may have no zone


def write_files(sink: Files, *tables: pa.Table) -> None:
    sink.validate(tables[0].schema)
    transaction = sink.begin_transaction(TransactionContext(JOB, SINK, 1, 1, 0, 0))
    for table in tables:
        for batch in table.to_batches():
            sink.write(transaction, batch)
    sink.commit(through_json(sink.pre_commit(transaction)))


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A user who lets everybody read, and write, what is made without further ado."""
    before = os.umask(0)
    yield
    os.umask(before)


SHARED = {
    "parquet": lambda root: Files(root / "out"),
    "json": lambda root: Files(root / "out", format="json"),
    "csv": lambda root: Files(root / "out", format="csv", partition_by=["day"]),
    "sqlite": lambda root: SQLite(root / "out.db", "rows"),
    "staging": lambda root: WriteAheadLog(print, staging=root / "out" / "staging"),
}


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.usefixtures("open_to_all")
def test_staged_rows_are_for_this_user_alone(tmp_path: Path, kind: str) -> None:
    """Nobody else reads rows before they are committed, and not those that never are."""
    sink = SHARED[kind](tmp_path)
    sink.validate(pa.schema({"day": pa.int64(), "n": pa.int64()}))
    transaction = sink.begin_transaction(TransactionContext(JOB, SINK, 1, 1, 0, 0))
    sink.write(transaction, pa.record_batch({"day": [1, 2], "n": [3, 4]}))
    staged = [path for path in tmp_path.rglob("*") if path.suffix in (".staged", ".arrow")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in staged] == [0o600] * len(staged)
    assert len(staged) == (2 if kind == "csv" else 1)
    sink.pre_commit(transaction)
    assert [stat.S_IMODE(path.stat().st_mode) for path in staged] == [0o600] * len(staged)
    if not isinstance(sink, Files):
        folders = folders_up_to(staged[0].parent, sink.staging)
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3


@pytest.mark.parametrize("mask", [0o002, 0o027])
def test_files_in_their_places_have_the_usual_modes(tmp_path: Path, mask: int) -> None:
    """Readers of other users see what is committed, as the umask of the tasks says; the driver's is not asked."""
    sink = Files(tmp_path / "out", partition_by=["day"])
    before = os.umask(mask)
    try:
        transaction = sink.begin_transaction(TransactionContext(JOB, SINK, 1, 1, 0, 0))
        sink.write(transaction, pa.record_batch({"day": [1, 2], "n": [3, 4]}))
        prepared = sink.pre_commit(transaction)
    finally:
        os.umask(before)
    sink.commit(prepared)
    files = list((tmp_path / "out").glob("day=*/*.parquet"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o666 & ~mask] * 2


def test_torn_line_in_the_commit_log(tmp_path: Path) -> None:
    """A line of the log that a crash cut off proves nothing, and does not spoil the next line."""
    suite = ParquetFiles()
    suite.path = tmp_path / "out"
    torn, whole = suite.staged([1], checkpoint=1), suite.staged([2], checkpoint=2)
    suite.sink().commit(torn)
    log = next((suite.path / "_penstock" / JOB / SINK / "committed").iterdir())
    log.write_bytes(log.read_bytes()[:-3])
    suite.sink().commit(whole)
    suite.sink().commit(whole)
    with pytest.raises(CommitLostError):
        suite.sink().commit(torn)


def test_manifest_cannot_move_files_elsewhere(tmp_path: Path) -> None:
    """A manifest that names a place outside the sink's folder is not obeyed."""
    suite = ParquetFiles()
    suite.path = tmp_path / "out"
    prepared = suite.staged([1])
    manifest = next(suite.path.rglob("manifest"))
    content = json.loads(manifest.read_text())
    content["files"][0]["final"] = "../elsewhere.parquet"
    manifest.write_text(json.dumps(content))
    with pytest.raises(CommitLostError, match="outside"):
        suite.sink().commit(prepared)
    assert not (tmp_path / "elsewhere.parquet").exists()


def test_small_batches_become_one_row_group(tmp_path: Path) -> None:
    """Many small batches are gathered; more rows than a row group make several."""
    tables = [pa.table({"id": range(n * 10, n * 10 + 10)}) for n in range(100)]
    write_files(Files(tmp_path / "one"), *tables)
    write_files(Files(tmp_path / "four", row_group_rows=250), *tables)
    groups = {}
    for name in ("one", "four"):
        file = pyarrow.parquet.ParquetFile(next((tmp_path / name).glob("part-1-1-0-0-*.parquet")))
        groups[name] = file.num_row_groups
        assert file.read().column("id").to_pylist() == list(range(1000))
    assert groups == {"one": 1, "four": 4}


def test_partitions_read_back_by_their_values(tmp_path: Path) -> None:
    """Values with odd characters, null, dates and numbers come back from the folder names; columns leave the files."""
    days = [dt.date(2026, 11, 2), dt.date(2026, 11, 3)]
    texts = ["a/b=c", "100%", "née: #1?", None, "..", 'x"y\\z']
    table = pa.table(
        {
            "text": pa.array([t for t in texts for _ in days]),
            "day": pa.array(days * len(texts)),
            "n": pa.array(range(12), pa.int32()),
        }
    )
    write_files(Files(tmp_path / "out", partition_by=["text", "day"]), table)
    partitioning = pyarrow.dataset.partitioning(
        pa.schema([("text", pa.string()), ("day", pa.date32())]), flavor="hive"
    )
    back = pyarrow.dataset.dataset(
        str(tmp_path / "out"), format="parquet", partitioning=partitioning
    ).to_table()
    assert back.select(table.schema.names).sort_by("n").to_pylist() == table.to_pylist()
    assert pyarrow.parquet.read_schema(next((tmp_path / "out").rglob("*.parquet"))).names == ["n"]


def test_more_partitions_than_open_files(tmp_path: Path) -> None:
    """A transaction with more partitions than files may be open writes every row."""
    count = 3 * MAX_OPEN_FILES
    table = pa.table({"p": list(range(count)) * 2, "n": range(2 * count)})
    write_files(Files(tmp_path / "out", format="json", partition_by="p"), table, table.slice(0, count))
    back = pyarrow.dataset.dataset(str(tmp_path / "out"), format="json", partitioning="hive").to_table()
    assert sorted(back.column("n").to_pylist()) == sorted([*range(2 * count), *range(count)])


def test_partition_value_too_long_for_a_folder(tmp_path: Path) -> None:
    """A value that no folder name can hold is refused in the task, naming the column."""
    with pytest.raises(BadRecordError, match="'p'"):
        write_files(Files(tmp_path, partition_by="p"), pa.table({"p": ["x" * 300], "n": [1]}))


def a_file(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("not a folder")


def a_link_to_another_disk(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    here, places = folder.parent.stat().st_dev, (Path("/dev/shm"), Path("/var/tmp"), Path("/tmp"))
    elsewhere = [place for place in places if place.is_dir() and place.stat().st_dev != here]
    if not elsewhere:
        pytest.skip("there is only one file system here")
    folder.symlink_to(tempfile.mkdtemp(dir=elsewhere[0]))


@pytest.mark.parametrize("put", [a_file, a_link_to_another_disk])
def test_a_folder_into_which_nothing_can_be_moved(put: Callable[[Path], None], tmp_path: Path) -> None:
    """The task refuses it; put there after the rows were staged it ends the job, and taken away the commit goes on."""
    suite = PartitionedFiles()
    suite.path = tmp_path / "out"
    prepared = suite.staged([1, 2])
    in_the_way = suite.path / "name=name 2"
    put(in_the_way)
    with pytest.raises(BadRecordError, match=r"name=name 2.* cannot be moved"):
        suite.begun([2])
    for _ in range(2):
        with pytest.raises(CommitLostError, match=r"(another file system|a file where a folder).*are kept"):
            suite.sink().commit(prepared)
    target = in_the_way.resolve()
    in_the_way.unlink()
    shutil.rmtree(target, ignore_errors=True)
    suite.sink().commit(prepared)
    suite.assert_visible(1, 2)


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    """Folders that are short enough one by one can make a path that no file can have: refused in the task."""
    names = [f"p{number}" for number in range(20)]
    table = pa.table({**{name: ["x" * 240] for name in names}, "n": [1]})
    with pytest.raises(BadRecordError, match="more than 4095 bytes"):
        write_files(Files(tmp_path, partition_by=names), table)


def test_json_values(tmp_path: Path) -> None:
    """Each kind of value has the documented form in JSON."""
    table = pa.table(
        {
            "date": [dt.date(2026, 11, 2)],
            "at": pa.array([MOMENT], pa.timestamp("us", "Europe/Amsterdam")),
            "local": pa.array([MOMENT], pa.timestamp("ns")),
            "money": [decimal.Decimal("12345678901234567890.10")],
            "bytes": [b"\x00\xff"],
            "nan": [float("nan")],
            "map": pa.array([[("a", MOMENT)]], pa.map_(pa.string(), pa.timestamp("ns"))),
            "nested": [{"list": [1, None], "text": 'quote " newline \n'}],
            "missing": pa.nulls(1, pa.string()),
        }
    )
    write_files(Files(tmp_path, format="json"), table)
    lines = next(tmp_path.glob("*.json")).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "date": "2026-11-02",
            "at": "2026-11-02T12:30:00.000005Z",
            "local": "2026-11-02T12:30:00.000005000",
            "money": "12345678901234567890.10",
            "bytes": "AP8=",
            "nan": None,
            "map": {"a": "2026-11-02T12:30:00.000005"},
            "nested": {"list": [1, None], "text": 'quote " newline \n'},
            "missing": None,
        }
    ]


@pytest.mark.parametrize(
    "column", [pa.array([2**62], pa.timestamp("us")), pa.array([2**30], pa.date32())], ids=str
)
def test_json_time_out_of_range(column: pa.Array, tmp_path: Path) -> None:
    """A time that ISO 8601 cannot name is refused in the task."""
    with pytest.raises(BadRecordError, match="JSON"):
        write_files(Files(tmp_path, format="json"), pa.table({"at": column}))


def test_csv_options(tmp_path: Path) -> None:
    """A delimiter and a header can be chosen; null and the empty string stay different."""
    table = pa.table({"a": ["x;y", None, ""], "b": [1, 2, 3]})
    write_files(Files(tmp_path, format="csv", delimiter=";", header=False), table)
    assert next(tmp_path.glob("*.csv")).read_text().splitlines() == ['"x;y";1', ";2", '"";3']


NESTED = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
PLAIN = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("b", pa.binary()), ("_h", pa.string())])


@pytest.mark.parametrize(
    ("options", "schema", "named"),
    [
        ({"format": "csv"}, NESTED, "'tags'"),
        ({"format": "csv"}, PLAIN, "'b'"),
        ({"format": "json"}, pa.schema([("i", pa.month_day_nano_interval())]), "'i'"),
        ({"format": "parquet"}, pa.schema([("i", pa.month_day_nano_interval())]), "interval"),
        ({"format": "parquet"}, pa.schema([("a", pa.int64()), ("a", pa.string())]), "'a'"),
        ({"compression": "middle-out"}, PLAIN, "middle-out"),
        ({"partition_by": ["day"]}, PLAIN, "'day'"),
        ({"partition_by": ["x"]}, PLAIN, "'x'"),
        ({"partition_by": ["_h"]}, PLAIN, "'_h'"),
        ({"partition_by": ["id"]}, pa.schema([("id", pa.int64())]), "every column"),
    ],
)
def test_files_refuse_columns(options: dict[str, Any], schema: pa.Schema, named: str, tmp_path: Path) -> None:
    """Columns that cannot be written are refused before the job starts, by name."""
    with pytest.raises(ConfigError, match=named):
        Files(tmp_path, **options).validate(schema)


@pytest.mark.parametrize(
    "options",
    [
        {"format": "orc"},
        {"format": "json", "compression": "zip"},
        {"format": "csv", "delimiter": "ab"},
        *({"format": "csv", "delimiter": one} for one in "0e.-+: T"),
        {"format": "csv", "header": "yes"},
        {"row_group_rows": 0},
    ],
)
def test_files_refuse_settings(options: dict[str, Any], tmp_path: Path) -> None:
    """Unknown formats and options are refused when the sink is made."""
    with pytest.raises(ConfigError):
        Files(tmp_path, **options)


def test_files_refuse_a_folder_that_is_a_file(tmp_path: Path) -> None:
    """A path that cannot be a folder is refused before the job starts."""
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written"):
        Files(tmp_path / "out").validate(PLAIN)
