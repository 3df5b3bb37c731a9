"""What the sink `SQLite` does beyond the contract: values, upserts, constraints, existing tables."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet
import pytest
from sink_targets import (
    rows_in_table,
)

from penstock.errors import (
    BadRecordError,
    CommitLostError,
    ConfigError,
    UnavailableError,
)
from penstock.sinks import SQLite, TransactionContext
from penstock.sinks.sqlite_table import first_refused
from penstock.testing.sink_contract import JOB, SINK, through_json

MOMENT = dt.datetime(2026, 11, 2, 12, 30, 0, 5)  # noqa: DTZ001 - a column may have no zone


def write_rows(sink: SQLite, table: pa.Table, *, checkpoint: int = 1) -> None:
    sink.validate(table.schema)
    sink.commit(stage_rows(sink, table, checkpoint=checkpoint))


def stage_rows(sink: SQLite, table: pa.Table, *, checkpoint: int = 1) -> Any:
    transaction = sink.begin_transaction(TransactionContext(JOB, SINK, 1, checkpoint, 0, 0))
    for batch in table.to_batches():
        sink.write(transaction, batch)
    return through_json(sink.pre_commit(transaction))


def execute(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


def test_sqlite_values(tmp_path: Path) -> None:
    """Each kind of value has the documented form and storage class."""
    table = pa.table(
        {
            "small": pa.array([7], pa.int8()),
            "yes": [True],
            "real": pa.array([1.5], pa.float32()),
            "nan": [float("nan")],
            "text": pa.array(["007"]).dictionary_encode(),
            "date": [MOMENT.date()],
            "time": [MOMENT.time()],
            "at": pa.array([MOMENT], pa.timestamp("us", "Europe/Amsterdam")),
            "local": pa.array([MOMENT], pa.timestamp("us")),
            "money": pa.array([decimal.Decimal("0.0000000001")], pa.decimal128(38, 10)),
            "bytes": [b"\x00\xff"],
            "list": [[1, None, 3]],
            "nested": [{"day": MOMENT.date(), "n": decimal.Decimal("1.10")}],
            "missing": pa.nulls(1),
        }
    )
    write_rows(SQLite(tmp_path / "db", "t"), table)
    assert rows_in_table(tmp_path / "db", "t") == [
        {
            "small": 7,
            "yes": 1,
            "real": 1.5,
            "nan": None,
            "text": "007",
            "date": "2026-11-02",
            "time": "12:30:00.000005",
            "at": "2026-11-02T12:30:00.000005Z",
            "local": "2026-11-02T12:30:00.000005",
            "money": "0.0000000001",
            "bytes": b"\x00\xff",
            "list": "[1,null,3]",
            "nested": '{"day":"2026-11-02","n":"1.10"}',
            "missing": None,
        }
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([1, 2**62], pa.timestamp("us")),
        pa.array([-(2**62), 1], pa.timestamp("us", "UTC")),
        pa.array([2**30], pa.date32()),
    ],
    ids=str,
)
def test_value_out_of_range(column: pa.Array, tmp_path: Path) -> None:
    """A number, a time or a date that cannot be stored as it is is refused in the task, naming the column."""
    with pytest.raises(BadRecordError, match="'big'"):
        write_rows(SQLite(tmp_path / "db", "t"), pa.table({"big": column}))


def test_first_and_last_day(tmp_path: Path) -> None:
    """The whole calendar from year 1 to 9999 can be stored."""
    days = [dt.date.min, dt.date.max]
    times = [dt.datetime.combine(dt.date.min, dt.time.min), dt.datetime.combine(dt.date.max, dt.time.max)]
    table = pa.table({"day": days, "at": times})
    write_rows(SQLite(tmp_path / "db", "t"), table)
    first, last = rows_in_table(tmp_path / "db", "t")
    assert first == {"day": "0001-01-01", "at": "0001-01-01T00:00:00.000000"}
    assert last == {"day": "9999-12-31", "at": "9999-12-31T23:59:59.999999"}


def test_sqlite_upsert_keeps_the_newest(tmp_path: Path) -> None:
    """The row of the last checkpoint wins, also when all checkpoints are committed by one call; other rows stay."""
    sink = SQLite(tmp_path / "db", "t", mode="upsert", key=["id", "day"])
    tables = [pa.table({"day": ["mon"] * 2, "id": [1, n], "v": [f"v{n}", "first"]}) for n in (5, 6, 7)]
    sink.validate(tables[0].schema)
    sink.commit_all([stage_rows(sink, table, checkpoint=n) for n, table in enumerate(tables)])
    assert sorted((row["id"], row["v"]) for row in rows_in_table(tmp_path / "db", "t")) == [
        (1, "v7"),
        (5, "first"),
        (6, "first"),
        (7, "first"),
    ]


def test_sqlite_upsert_of_keys_alone(tmp_path: Path) -> None:
    """A table that has only key columns keeps one row a key."""
    sink = SQLite(tmp_path / "db", "t", mode="upsert", key="id")
    write_rows(sink, pa.table({"id": [1, 1, 2]}))
    assert rows_in_table(tmp_path / "db", "t") == [{"id": 1}, {"id": 2}]


def test_sqlite_upsert_into_a_table_with_a_unique_index(tmp_path: Path) -> None:
    """A unique index serves as the key, and columns that the job does not write keep their values."""
    path = tmp_path / "db"
    execute(
        path,
        "CREATE TABLE t (n INTEGER PRIMARY KEY, ID INTEGER, v TEXT, note TEXT DEFAULT 'kept')",
        "CREATE UNIQUE INDEX by_id ON t (ID)",
    )
    sink = SQLite(path, "t", mode="upsert", key=["id"])
    write_rows(sink, pa.table({"id": [1], "v": ["old"]}))
    execute(path, "UPDATE t SET note = 'by hand'")
    write_rows(sink, pa.table({"id": [1], "v": ["new"]}), checkpoint=2)
    assert rows_in_table(path, "t") == [{"n": 1, "ID": 1, "v": "new", "note": "by hand"}]


def test_sqlite_null_in_a_key(tmp_path: Path) -> None:
    """A NULL key is refused in the task: SQLite would never find it again and insert it each time."""
    sink = SQLite(tmp_path / "db", "t", mode="upsert", key=["id"])
    with pytest.raises(BadRecordError, match=r"'id'.*v='x'"):
        write_rows(sink, pa.table({"id": [1, None], "v": ["y", "x"]}))


def test_sqlite_null_in_a_not_null_column(tmp_path: Path) -> None:
    """A NULL, or a NaN, that the existing table refuses is found in the task, before any checkpoint promises it."""
    execute(tmp_path / "db", "CREATE TABLE t (id INTEGER, V REAL NOT NULL)")
    sink = SQLite(tmp_path / "db", "t")
    with pytest.raises(BadRecordError, match=r"refuses NULL.*id=2"):
        write_rows(sink, pa.table({"id": [1, 2], "v": [1.0, float("nan")]}))


def test_sqlite_constraint_names_the_row(tmp_path: Path) -> None:
    """A row that the table refuses at commit is named, nothing of the commit is kept, and repairing the table lets it go on."""
    path = tmp_path / "db"
    execute(path, "CREATE TABLE t (id INTEGER UNIQUE, name TEXT)", "INSERT INTO t VALUES (7, 'mine')")
    sink = SQLite(path, "t")
    table = pa.table({"id": [5, 6, 7, 8], "name": ["a", "b", "c", "d"]})
    sink.validate(table.schema)
    staged = stage_rows(sink, table)
    with pytest.raises(CommitLostError, match=r"UNIQUE.*t\.id.*id=7, name='c'") as caught:
        sink.commit(staged)
    assert caught.value.facts["row"] == {"id": 7, "name": "c"}
    assert len(rows_in_table(path, "t")) == 1
    execute(path, "DELETE FROM t WHERE id = 7")
    sink.commit(staged)
    assert [row["id"] for row in rows_in_table(path, "t")] == [5, 6, 7, 8]


@pytest.mark.parametrize("strict", ["", " STRICT"])
def test_sqlite_rules_of_a_table_whose_key_is_an_index(strict: str, tmp_path: Path) -> None:
    """A row is tried in the task for itself alone: a CHECK refuses it there, other rows, keys and indexes do not."""
    path = tmp_path / "db"
    execute(
        path,
        f"CREATE TABLE t (id INTEGER, v TEXT CHECK (json_extract(v, '$') < 10), seat TEXT UNIQUE){strict}",
        "CREATE UNIQUE INDEX by_id ON t (id)",
    )
    sink = SQLite(path, "t", mode="upsert", key=["id"])
    write_rows(sink, pa.table({"id": [1, 1, 2], "v": ["1", "2", "3"], "seat": ["A", "B", "A"]}))
    assert [(row["v"], row["seat"]) for row in rows_in_table(path, "t")] == [("2", "B"), ("3", "A")]
    for refused, why in (("11", "CHECK"), ("no JSON", "malformed JSON")):
        with pytest.raises(BadRecordError, match=f"{why}.*id=3"):
            write_rows(sink, pa.table({"id": [1, 3], "v": ["1", refused], "seat": ["A", "C"]}))


def test_sqlite_rules_that_cannot_be_tried() -> None:
    """Where no table in memory can have the same rules, the rows are left to the commit."""
    create = "CREATE TABLE t (id INTEGER CHECK (known_to_the_user(id)))"
    assert first_refused(create, "INSERT INTO t VALUES (?)", 1, [(1,)]) is None


def test_sqlite_column_dropped_before_the_commit(tmp_path: Path) -> None:
    """A table that was changed under the job gives an error that a person can act on; then the commit goes on."""
    path = tmp_path / "db"
    execute(path, "CREATE TABLE t (id INTEGER, name TEXT)")
    sink = SQLite(path, "t")
    staged = stage_rows(sink, pa.table({"id": [5], "name": ["a"]}))
    execute(path, "ALTER TABLE t DROP COLUMN name")
    with pytest.raises(CommitLostError, match=r"name.*repair the table"):
        sink.commit(staged)
    execute(path, "ALTER TABLE t ADD COLUMN name TEXT")
    sink.commit(staged)
    assert rows_in_table(path, "t") == [{"id": 5, "name": "a"}]


def test_sqlite_locked_by_another_writer(tmp_path: Path) -> None:
    """While another process holds the database the commit is unavailable, not lost; afterwards it succeeds."""
    path = tmp_path / "db"
    execute(path, "CREATE TABLE t (id INTEGER)")
    sink = SQLite(path, "t", busy_timeout="10ms")
    staged = stage_rows(sink, pa.table({"id": [5]}))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UnavailableError, match="locked"):
        sink.commit(staged)
    other.close()
    sink.commit(staged)
    assert rows_in_table(path, "t") == [{"id": 5}]


@pytest.mark.parametrize("settings", [{}, {"mode": "upsert", "key": ['a "key"']}], ids=["append", "upsert"])
def test_sqlite_odd_names(settings: dict[str, Any], tmp_path: Path) -> None:
    """Reserved words, and names with quotes, spaces, SQL, capitals and other alphabets in them, are names, nothing else."""
    name = 'Results"; DROP TABLE x; --'
    sink = SQLite(tmp_path / "my data?.db", name, **settings)
    row = {'a "key"': 1, "select": "x", "?": 2, "before": 3, "Ключ 日本": 4, "100%s": 5}
    write_rows(sink, pa.Table.from_pylist([row]))
    with contextlib.closing(sqlite3.connect(tmp_path / "my data?.db")) as database:
        found = database.execute('SELECT * FROM "{}"'.format(name.replace('"', '""')))
        columns = [column for column, *_ in found.description]
        assert [dict(zip(columns, values, strict=True)) for values in found] == [row]


@pytest.mark.parametrize(
    ("table", "settings", "named"),
    [
        ("CREATE TABLE t (id INTEGER)", {}, "no column 'v'"),
        ("CREATE TABLE t (id INTEGER, v TEXT, w INTEGER NOT NULL)", {}, "'w'"),
        ("CREATE TABLE t (id TEXT, v TEXT)", {}, "'id'"),
        ("CREATE TABLE t (id INTEGER, v NUMERIC)", {}, "'v'"),
        ("CREATE TABLE t (id INTEGER, v BLOB) STRICT", {}, None),
        ("CREATE TABLE t (id INTEGER, v TEXT)", {"mode": "upsert", "key": ["id"]}, "unique index"),
        (
            "CREATE TABLE t (id INTEGER, v TEXT, PRIMARY KEY (id, v))",
            {"mode": "upsert", "key": ["id"]},
            "unique index",
        ),
        (
            "CREATE TABLE t (id INTEGER, v TEXT, PRIMARY KEY (id, v))",
            {"mode": "upsert", "key": ["v", "id"]},
            None,
        ),
        ("CREATE VIEW t AS SELECT 1 AS id, 'x' AS v", {}, "view"),
        ("CREATE TABLE t (id INTEGER, v TEXT AS (id + 1))", {}, "v"),
        ("CREATE TABLE t (id INTEGER, v)", {}, None),
        ("CREATE TABLE t (id BIGINT, v VARCHAR(20))", {}, None),
        ("CREATE TABLE other (x)", {"mode": "upsert", "key": ["nope"]}, "nope"),
    ],
)
def test_sqlite_checks_an_existing_table(
    table: str, settings: dict[str, Any], named: str | None, tmp_path: Path
) -> None:
    """A table that cannot take the rows is refused before the job starts, naming what is wrong; a fitting one is not."""
    execute(tmp_path / "db", table)
    sink = SQLite(tmp_path / "db", "t", **settings)
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    if named is None:
        sink.validate(schema)
    else:
        with pytest.raises(ConfigError, match=named):
            sink.validate(schema)


def test_sqlite_validate_creates_no_table(tmp_path: Path) -> None:
    """Checking a sink leaves neither a database nor a table behind."""
    schema = pa.schema([("id", pa.int64())])
    SQLite(tmp_path / "db", "t").validate(schema)
    assert not (tmp_path / "db").exists()
    execute(tmp_path / "db", "CREATE TABLE other (x)")
    SQLite(tmp_path / "db", "t").validate(schema)
    assert sqlite3.connect(tmp_path / "db").execute("SELECT name FROM sqlite_master").fetchall() == [
        ("other",)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"table": "t", "mode": "replace"},
        {"table": "t", "mode": "upsert"},
        {"table": "t", "key": ["id"]},
        {"table": "sqlite_x"},
        {"table": "_penstock_commits"},
        {"table": ""},
    ],
)
def test_sqlite_refuses_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    """Settings that mean nothing are refused when the sink is made."""
    with pytest.raises(ConfigError):
        SQLite(tmp_path / "db", **settings)


def test_sqlite_refuses_what_is_no_database(tmp_path: Path) -> None:
    """A file that is no database is refused before the job starts."""
    (tmp_path / "db").write_text("this is a text file, not a database, and it is long enough to show it" * 20)
    with pytest.raises(ConfigError, match="not a database"):
        SQLite(tmp_path / "db", "t").validate(pa.schema([("id", pa.int64())]))


def test_sqlite_columns_that_differ_by_case(tmp_path: Path) -> None:
    """SQLite takes A and a for one column, so the sink refuses both together."""
    with pytest.raises(ConfigError, match="more than once"):
        SQLite(tmp_path / "db", "t").validate(pa.schema([("a", pa.int64()), ("A", pa.int64())]))
