"""`sinks.DeltaLake`: the contract of all sinks, one Delta commit a checkpoint, replay, crashes, compaction, bad tables."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import pyarrow as pa
import pytest
from test_sink_crashes import CRASHES, with_reader

from penstock.errors import BadRecordError, CommitLostError, ConfigError, UnavailableError
from penstock.sinks import Delivery, DeltaLake
from penstock.sinks import delta_lake as sink_module
from penstock.sinks.delta_lake import app_id, partition_values
from penstock.sinks.staging import CommitLog, StagedTransaction
from penstock.testing.sink_contract import JOB, SINK, SinkContract
from services.patience import PATIENCE_S


class DeltaTarget(SinkContract):
    options: ClassVar[dict[str, Any]] = {}

    def use(self, path: Path) -> DeltaTarget:
        self.path = path
        return self

    def make_sink(self) -> DeltaLake:
        return DeltaLake(self.path, **self.options)

    def visible_rows(self) -> list[dict[str, Any]]:
        if not deltalake.DeltaTable.is_deltatable(str(self.path)):
            return []
        return self.table().to_pyarrow_table().to_pylist()

    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.path)


class PartitionedDelta(DeltaTarget):
    options: ClassVar[dict[str, Any]] = {"partition_by": ["name"]}


class TestDeltaLake(DeltaTarget):
    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.use(tmp_path / "table")


class TestPartitionedDeltaLake(PartitionedDelta):
    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.use(tmp_path / "table")


@pytest.fixture
def delta(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget().use(tmp_path / "table")


def staged_checkpoints(delta: DeltaTarget, *checkpoints: int) -> list[Any]:
    return [delta.staged([10 * c + s], checkpoint=c, subtask=s) for c in checkpoints for s in (0, 1)]


def test_one_delta_commit_a_checkpoint(delta: DeltaTarget) -> None:
    """All transactions of a commit_all are one version of the table, with the application version of the newest."""
    delta.sink().commit_all(staged_checkpoints(delta, 1, 2))
    assert delta.table().version() == 1  # version 0 created it
    assert delta.table().transaction_version(app_id(JOB, SINK)) == 2
    delta.sink().commit_all(staged_checkpoints(delta, 3))
    assert delta.table().version() == 2
    delta.assert_visible(10, 11, 20, 21, 30, 31)
    assert delta.make_sink().delivery is Delivery.TRANSACTIONAL


def test_a_replay_makes_no_delta_commit(delta: DeltaTarget) -> None:
    """A commit repeated by another process, also without our own record of it, finds its rows in the table."""
    staged = staged_checkpoints(delta, 1, 2)
    delta.sink().commit_all(staged)
    forget_records(delta)
    delta.sink().commit_all(staged)
    assert delta.table().version() == 1
    delta.assert_visible(10, 11, 20, 21)


def forget_records(delta: DeltaTarget) -> None:
    for log in delta.path.rglob("committed/*.log"):
        log.unlink()


def test_numbers_that_begin_again_are_not_a_replay(delta: DeltaTarget) -> None:
    """After the job's storage was deleted, or an older checkpoint restored, the same and smaller numbers bring new rows."""
    delta.sink().commit_all(staged_checkpoints(delta, 7, 8))
    delta.sink().commit(delta.staged([1], checkpoint=8))
    delta.sink().commit(delta.staged([2], checkpoint=3))
    delta.sink().commit(delta.staged([3], checkpoint=4))
    delta.assert_visible(70, 71, 80, 81, 1, 2, 3)


class CrashingDelta(PartitionedDelta):
    def row(self, number: int) -> dict[str, Any]:
        return {"id": number, "name": f"name {number % 2}"}


def stopped_everywhere(tmp_path: Path, afterwards: Any) -> None:
    for changes in range(200):
        delta = CrashingDelta().use(tmp_path / str(changes))
        staged = [delta.staged(range(4), checkpoint=1), delta.staged(range(4, 8), checkpoint=2)]
        stopped = CRASHES.run(lambda: delta.sink().commit_all(staged), changes=changes)  # noqa: B023 - called at once
        afterwards(delta, staged)
        if not stopped:
            assert changes > 10
            return
    raise AssertionError("the commit never got through")


def test_commit_goes_on_after_a_crash_anywhere(tmp_path: Path) -> None:
    """Wherever commit_all stops, a reader sees all or nothing, and the next one makes every row visible once."""
    seen = set()

    def recover(delta: DeltaTarget, staged: list[Any]) -> None:
        seen.add(len(list(delta.visible_rows())))
        delta.sink().commit_all(staged)
        delta.assert_visible(*range(8))
        assert delta.unfinished() == []
        assert delta.table().version() == 1

    stopped_everywhere(tmp_path, recover)
    assert seen == {0, 8}


def test_abort_after_a_crash_anywhere(tmp_path: Path) -> None:
    """Wherever commit_all stops, an abort leaves a table that can be read, whole or empty, and takes no file from it."""
    seen = set()

    def recover(delta: DeltaTarget, staged: list[Any]) -> None:
        for found in delta.sink().find_transactions(JOB, SINK):
            delta.sink().abort(found)
        rows = sorted(row["id"] for row in delta.visible_rows())
        assert rows in ([], list(range(8)))
        seen.add(len(rows))
        assert delta.unfinished() == []
        if rows:
            delta.sink().commit_all(staged)
            delta.assert_visible(*range(8))
        else:
            assert list(delta.path.glob("name=*/*.parquet")) == []
            with pytest.raises(CommitLostError):
                delta.sink().commit_all(staged)

    stopped_everywhere(tmp_path, recover)
    assert seen == {0, 8}


KILLED = """
import json, os, signal, sys
from penstock.sinks import DeltaLake

path, when, transactions = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

class Dies(DeltaLake):
    def _commit_to_delta(self, *arguments):
        if when == "after":
            super()._commit_to_delta(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

Dies(path).commit_all(transactions)
"""


@pytest.mark.parametrize(("when", "visible"), [("before", []), ("after", [10, 11, 20, 21])])
@pytest.mark.parametrize("compacted", [False, True])
def test_killed_around_the_delta_commit(
    when: str, visible: list[int], compacted: bool, delta: DeltaTarget
) -> None:
    """After kill -9 on either side of the Delta commit the next one makes it all, once, also if others rewrote the files meanwhile."""
    staged = staged_checkpoints(delta, 1, 2)
    command = [sys.executable, "-c", KILLED, str(delta.path), when, json.dumps(staged)]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    delta.assert_visible(*visible)
    if compacted:
        delta.table().optimize.compact()
    delta.sink().commit_all(staged)
    delta.assert_visible(10, 11, 20, 21)
    delta.sink().commit_all(staged)
    delta.assert_visible(10, 11, 20, 21)
    assert delta.unfinished() == []


def test_abort_of_what_delta_has(delta: DeltaTarget) -> None:
    """What Delta has committed cannot be aborted any more: it is noted as committed, for good, and its files stay."""
    staged = staged_checkpoints(delta, 1)
    command = [sys.executable, "-c", KILLED, str(delta.path), "after", json.dumps(staged)]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    delta.sink().abort(staged[0])
    delta.assert_visible(10, 11)
    assert CommitLog(delta.path / "_penstock" / JOB / SINK / "committed").committed(
        [StagedTransaction.read(staged[0])]
    )
    delta.sink().commit_all(staged)
    delta.assert_visible(10, 11)
    assert delta.unfinished() == []


def test_abort_in_another_life_of_the_job(delta: DeltaTarget) -> None:
    """Numbers that began again prove nothing: what Delta has committed keeps its files."""
    old = [delta.staged([1], run=9, checkpoint=700)]
    command = [sys.executable, "-c", KILLED, str(delta.path), "after", json.dumps(old)]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    delta.sink().commit(delta.staged([2], run=1, checkpoint=1))
    delta.sink().abort(old[0])
    delta.assert_visible(1, 2)


def test_a_reader_never_sees_a_part(delta: DeltaTarget) -> None:
    """A reader sees the rows of all transactions of a commit_all or of none, and never a file that is gone."""
    delta.sink()
    seen: list[int] = []

    def write() -> None:
        for checkpoint in range(10):
            delta.sink().commit_all(
                [delta.staged(range(50), checkpoint=checkpoint, subtask=s) for s in (0, 1)]
            )

    with_reader(lambda: seen.append(len(list(delta.visible_rows()))), write)
    assert {count % 100 for count in seen} == {0}
    assert seen[-1] == 1000


def test_two_jobs_append_to_one_table(delta: DeltaTarget) -> None:
    """A commit that another writer overtook is made on top of it."""
    mine, theirs = delta.staged([1], job="mine"), delta.staged([2], job="theirs")
    overtaken = delta.sink()
    publish = overtaken._publish

    def late(moved: Any) -> None:
        delta.sink().commit(theirs)
        publish(moved)

    overtaken._publish = late
    overtaken.commit(mine)
    delta.assert_visible(1, 2)
    assert delta.table().transaction_version(app_id("mine", SINK)) == 1


def test_partition_values(tmp_path: Path) -> None:
    """Strings with odd characters, whole numbers, booleans, dates and nulls come back from the folders."""
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("n", pa.int32()),
            ("flag", pa.bool_()),
            ("day", pa.date32()),
        ]
    )
    rows = [
        {"id": 1, "text": "a b/c%d=é", "n": -5, "flag": True, "day": dt.date(2026, 11, 15)},
        {"id": 2, "text": None, "n": None, "flag": None, "day": None},
    ]
    sink = DeltaLake(tmp_path / "table", partition_by=["text", "n", "flag", "day"])
    sink.validate(schema)
    delta = DeltaTarget().use(tmp_path / "table")
    transaction = sink.begin_transaction(delta.context())
    sink.write(transaction, pa.RecordBatch.from_pylist(rows, schema=schema))
    sink.commit(sink.pre_commit(transaction))
    assert sorted(delta.visible_rows(), key=lambda row: row["id"]) == rows
    assert partition_values("a%2Fb=x%25/c=__HIVE_DEFAULT_PARTITION__/part.parquet") == {
        "a/b": "x%",
        "c": None,
    }


def test_types_come_back(tmp_path: Path) -> None:
    """What Spark hands to a sink is read back from the table as it was."""
    row = {
        "at": dt.datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=dt.UTC),
        "price": 15,
        "tags": ["a", None],
        "place": {"x": 1.5},
        "raw": b"\x00\xff",
        "small": 7,
    }
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("x", pa.float64())])),
            ("raw", pa.binary()),
            ("small", pa.int16()),
        ]
    )
    delta = DeltaTarget().use(tmp_path / "table")
    delta.schema = schema
    delta.row = lambda number: row
    delta.sink().commit(delta.staged([1]))
    assert list(delta.visible_rows()) == pa.RecordBatch.from_pylist([row], schema=schema).to_pylist()


def test_a_file_that_somebody_took_is_not_named(delta: DeltaTarget) -> None:
    """A moved file that is gone before the Delta commit is an error, never a version of the table that cannot be read."""
    prepared = delta.staged([1, 2])
    driver = delta.sink()
    publish = driver._publish

    def vacuumed(moved: Any) -> None:
        for file in delta.path.glob("*.parquet"):
            file.unlink()
        publish(moved)

    driver._publish = vacuumed
    with pytest.raises(CommitLostError, match="2 rows"):
        driver.commit(prepared)
    delta.assert_visible()


def existing(path: Path, schema: pa.Schema, **settings: Any) -> DeltaLake:
    deltalake.DeltaTable.create(str(path), deltalake.Schema.from_arrow(schema), **settings)
    return DeltaLake(path)


ID_NAME = DeltaTarget.schema


@pytest.mark.parametrize(
    ("schema", "settings", "said"),
    [
        (pa.schema([("id", pa.int64())]), {}, "'name' is .* missing"),
        (pa.schema([("id", pa.int32()), ("name", pa.string())]), {}, "'id' is .*long.*integer"),
        (ID_NAME, {"partition_by": ["name"]}, r"partitioned by \['name'\]"),
        (ID_NAME.append(pa.field("must", pa.int64(), nullable=False)), {}, r"no null in \['must'\]"),
        (ID_NAME, {"configuration": {"delta.enableChangeDataFeed": "true"}}, "requires more of its writers"),
    ],
)
def test_tables_that_do_not_fit(
    schema: pa.Schema, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """An existing table is compared before the query starts."""
    with pytest.raises(ConfigError, match=said):
        existing(tmp_path / "table", schema, **settings).validate(ID_NAME)


def other_columns(path: Path) -> None:
    fields = [("id", pa.int32()), ("other", pa.string())]
    table = pa.table([pa.array([], kind) for _, kind in fields], names=[name for name, _ in fields])
    deltalake.write_deltalake(path, table, mode="overwrite", schema_mode="overwrite")


def other_folders(path: Path) -> None:
    table = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    deltalake.write_deltalake(path, table, mode="overwrite", schema_mode="overwrite", partition_by=["id"])


def a_rule(path: Path) -> None:
    deltalake.DeltaTable(path).alter.add_constraint({"small": "id < 100"})


CHANGES = [
    (other_columns, "'id' is .*long.*integer"),
    (other_folders, r"partitioned by \['id'\]"),
    (a_rule, "constraints"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_table_that_was_changed_after_the_rows_were_staged(
    change: Callable[[Path], None], said: str, delta: DeltaTarget
) -> None:
    """The commit looks at the table it finds: what does not fit any more ends the job, and the table stays as it was."""
    delta.sink().commit(delta.staged([1], checkpoint=1))
    driver, prepared = delta.sink(), delta.staged([2], checkpoint=2)
    change(delta.path)
    version = delta.table().version()
    for _ in range(2):
        with pytest.raises(CommitLostError, match=f"{said}.*Change the table back"):
            driver.commit(prepared)
    assert delta.table().version() == version
    delta.table().restore(1)
    driver.commit(prepared)
    delta.assert_visible(1, 2)


def test_a_table_that_is_changed_while_a_commit_looks_at_it(
    delta: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta refuses the commit, and the next try sees the change."""
    prepared, driver = delta.staged([1]), delta.sink()
    look = sink_module.refuse_nulls

    def too_late(*arguments: Any) -> None:
        look(*arguments)
        monkeypatch.undo()
        a_rule(delta.path)

    monkeypatch.setattr(sink_module, "refuse_nulls", too_late)
    with pytest.raises(UnavailableError):
        driver.commit(prepared)
    with pytest.raises(CommitLostError, match="constraints"):
        driver.commit(prepared)
    delta.assert_visible()


def test_nulls_where_the_table_allows_none_any_more(tmp_path: Path) -> None:
    """A file that was written when they were allowed is not committed."""
    delta = DeltaTarget().use(tmp_path / "table")
    delta.row = lambda number: {"id": number, "name": None}
    prepared, driver = delta.staged([1]), delta.sink()
    shutil.rmtree(delta.path / "_delta_log")
    existing(delta.path, pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)]))
    with pytest.raises(CommitLostError, match=r"no null in \['name'\]"):
        driver.commit(prepared)
    delta.assert_visible()


def test_a_constraint_is_refused(tmp_path: Path) -> None:
    """What the table checks in every row would not be checked by appending files."""
    sink = existing(tmp_path / "table", ID_NAME)
    deltalake.DeltaTable(tmp_path / "table").alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(ConfigError, match="requires more of its writers"):
        sink.validate(ID_NAME)


@pytest.mark.parametrize("name", ["", "__HIVE_DEFAULT_PARTITION__", None])
def test_a_partition_that_is_null_to_readers_where_the_table_forbids_it(
    name: str | None, tmp_path: Path
) -> None:
    """It is found in the task: in the table it would make all rows unreadable."""
    delta = PartitionedDelta().use(tmp_path / "table")
    delta.schema = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    delta.sink().commit(delta.staged([1]))
    sink = delta.sink()
    transaction = sink.begin_transaction(delta.context(checkpoint=2))
    with pytest.raises(BadRecordError, match="'name'"):
        sink.write(transaction, pa.RecordBatch.from_pylist([{"id": 2, "name": name}], schema=ID_NAME))
    delta.assert_visible(1)


def test_nulls_that_the_table_forbids(tmp_path: Path) -> None:
    """They are found in the task, while the job can go back; columns that the stream lacks are null."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("more", pa.string())]
    )
    sink = existing(tmp_path / "table", schema)
    sink.validate(ID_NAME)
    delta = DeltaTarget().use(tmp_path / "table")
    transaction = sink.begin_transaction(delta.context())
    with pytest.raises(BadRecordError, match=r"'id' .* may not be null"):
        sink.write(transaction, pa.RecordBatch.from_pylist([{"id": None, "name": "x"}], schema=ID_NAME))
    sink.abort(transaction)
    delta.sink().commit(delta.staged([1]))
    assert list(delta.visible_rows()) == [{"id": 1, "name": "name 1", "more": None}]


@pytest.mark.parametrize(
    "schema", [pa.schema([("x", pa.duration("us"))]), pa.schema([("x", pa.month_day_nano_interval())])]
)
def test_columns_without_a_form(schema: pa.Schema, tmp_path: Path) -> None:
    """Types that Delta does not have are refused before the query starts, and no table is made."""
    with pytest.raises(ConfigError):
        DeltaLake(tmp_path / "table").validate(schema)
    assert not (tmp_path / "table" / "_delta_log").exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What to install is said when the sink is made."""
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[delta\]'"):
        DeltaLake(tmp_path)


def test_paths_that_hold_something_else(tmp_path: Path) -> None:
    """A file in the way, and a table whose log is broken, are said before anything starts, with the path and one line of why."""
    schema = pa.schema([("app", pa.string())])
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="of a DeltaLake sink cannot be written"):
        DeltaLake(tmp_path / "file").validate(schema)
    log = tmp_path / "broken" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"broken cannot be used.*repair the table") as refused:
        DeltaLake(tmp_path / "broken").validate(schema)
    assert "\n" not in str(refused.value)


def test_only_local_paths() -> None:
    """A path in an object store is refused when the sink is made."""
    with pytest.raises(ConfigError, match="s3"):
        DeltaLake("s3://bucket/table")


def test_what_readers_of_delta_do_not_list(delta: DeltaTarget) -> None:
    """Staged rows are in no file that a vacuum of the table would look at."""
    delta.staged([1])
    table = delta.table()
    assert table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False) == []
    assert [path.name for path in (delta.path / "_penstock").iterdir()] == [JOB]
