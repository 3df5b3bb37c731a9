"""The embedded log without Spark: what is kept, what is cut off, what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRecordError, ConfigError, CorruptStateError
from penstock.sources import PartitionedLog
from penstock.sources.log_file import HEADER_BYTES
from penstock.spark.log_source import fair_end
from services.tiers import share

SCHEMA = "app string, n long"


def rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"app": f"app-{number % 7}", "n": number} for number in range(first, first + count)]


def numbers(log: PartitionedLog, partition: int = 0, start: int = 0, end: int | None = None) -> list[int]:
    end = log.end_offsets()[partition] if end is None else end
    return [n for batch in log.read_range(partition, start, end) for n in batch.column("n").to_pylist()]


def file_of(log: PartitionedLog, partition: int = 0) -> Path:
    return log.path / f"partition-{partition:05d}.log"


def index_of(log: PartitionedLog, partition: int = 0) -> Path:
    return log.path / f"partition-{partition:05d}.index"


def append_many(path: Path, who: int) -> None:
    log = PartitionedLog(path)
    for number in range(50):
        log.append(0, [{"app": str(who), "n": number}], sync=False)


@pytest.fixture
def log(tmp_path: Path) -> PartitionedLog:
    return PartitionedLog(tmp_path / "log", SCHEMA, 2)


def filled(tmp_path: Path, *counts: int) -> PartitionedLog:
    """Return a log whose partition 0 holds frames of these many rows, numbered from 0 on."""
    log = PartitionedLog(tmp_path / "log", SCHEMA, 1)
    for number, count in enumerate(counts):
        log.append(0, rows(sum(counts[:number]), count))
    return log


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


class TestAppendAndRead:
    def test_offsets_count_rows_of_a_partition(self, log: PartitionedLog) -> None:
        """Append returns the first offset, partitions count for themselves, and an empty append adds nothing."""
        assert [
            log.append(0, rows(0, 3)),
            log.append(0, []),
            log.append(0, rows(3, 2)),
            log.append(1, rows(9, 1)),
        ] == [0, 3, 3, 0]
        assert log.end_offsets() == {0: 5, 1: 1}
        assert numbers(log) == [0, 1, 2, 3, 4]

    def test_any_range_is_the_same_slice(self, tmp_path: Path) -> None:
        """Every range, across frames or inside one, holds exactly its rows."""
        log = filled(tmp_path, 3, 1, 5, 2)
        for start in range(12):
            for end in range(start, 12):
                assert numbers(log, 0, start, end) == list(range(start, end))

    def test_a_large_append_is_read_in_pieces(self, log: PartitionedLog) -> None:
        """More rows than a frame holds are cut, in order, and small frames are joined when read."""
        table = pa.table({"n": pa.array(range(150_000)), "app": pa.array(["x"] * 150_000)})
        log.append(0, table, sync=False)
        for number in range(150_000, 150_100):
            log.append(0, rows(number, 1), sync=False)
        batches = list(log.read_range(0, 0, 150_100))
        assert [batch.num_rows for batch in batches] == [65_536, 65_536, 18_928 + 100]
        assert numbers(log) == list(range(150_100))

    def test_a_second_opening_finds_everything(self, log: PartitionedLog) -> None:
        """What one object wrote another reads, without being told the schema, and goes on after it."""
        log.append(1, rows(0, 4))
        again = PartitionedLog(log.path)
        assert again.append(1, pa.RecordBatch.from_pylist(rows(4, 2))) == 4
        assert numbers(log, 1) == [0, 1, 2, 3, 4, 5]
        assert (again.schema, again.partitions) == (log.schema, 2)

    def test_a_copy_by_pickle_reads_the_same_log(self, log: PartitionedLog) -> None:
        """A log can be sent to another process."""
        log.append(0, rows(0, 2))
        assert numbers(pickle.loads(pickle.dumps(log))) == [0, 1]

    def test_it_can_be_closed_and_used_again(self, log: PartitionedLog) -> None:
        """Close gives the files back; a later call opens them."""
        with log:
            log.append(0, rows(0, 2))
        assert log.append(0, rows(2, 1)) == 2
        assert numbers(log) == [0, 1, 2]

    def test_all_types_come_back_as_they_were(self, tmp_path: Path) -> None:
        """Values of each kind, nulls and nested ones included, are read back equal."""
        ddl = "s string, t timestamp, d date, b binary, x double, k boolean, a array<string>, m map<string,long>"
        when = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
        row = {
            "s": "é",
            "t": when,
            "d": when.date(),
            "b": b"\0",
            "x": 0.1,
            "k": True,
            "a": ["q", None],
            "m": [("z", 1)],
        }
        log = PartitionedLog(tmp_path / "log", ddl, 1)
        log.append(0, [row, dict.fromkeys(row)])
        position = [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]
        assert log.table().to_pylist() == [position[0] | row, position[1] | dict.fromkeys(row)]

    def test_the_table_is_ordered_by_position(self, log: PartitionedLog) -> None:
        """Everything, by partition and offset, also when there is nothing."""
        assert log.table().num_rows == 0
        log.append(1, rows(5, 2))
        log.append(0, rows(0, 2))
        found = log.table()
        assert found.column_names == ["partition", "offset", "app", "n"]
        assert found.select(["partition", "offset", "n"]).to_pydict() == {
            "partition": [0, 0, 1, 1],
            "offset": [0, 1, 0, 1],
            "n": [0, 1, 5, 6],
        }

    @given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=12), cuts=st.data())
    @settings(max_examples=share(25), deadline=None)
    def test_any_way_to_cut_reads_the_same(
        self, tmp_path_factory: pytest.TempPathFactory, counts: list[int], cuts: st.DataObject
    ) -> None:
        """However rows were appended and ranges are chosen, their concatenation is the input."""
        log = filled(tmp_path_factory.mktemp("log"), *counts)
        total = sum(counts)
        points = sorted({0, total, *cuts.draw(st.lists(st.integers(0, total), max_size=5))})
        joined = [n for start, end in itertools.pairwise(points) for n in numbers(log, 0, start, end)]
        assert joined == list(range(total))


class TestRefusals:
    def test_another_schema_or_number_of_partitions_is_refused(self, log: PartitionedLog) -> None:
        """An existing log is not reinterpreted; the same schema in other words is the same."""
        PartitionedLog(log.path, "app  STRING, n bigint", 2)
        with pytest.raises(ConfigError, match="exists with schema"):
            PartitionedLog(log.path, "app string, n int")
        with pytest.raises(ConfigError, match="exists with 2 partitions, not 3"):
            PartitionedLog(log.path, SCHEMA, 3)

    def test_a_log_that_is_not_there_needs_a_schema(self, tmp_path: Path) -> None:
        """Opening nothing is an error that leaves nothing behind."""
        with pytest.raises(ConfigError, match="give schema and partitions"):
            PartitionedLog(tmp_path / "log")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("schema", "partitions"), [("offset long", 1), ("a long, a string", 1), (SCHEMA, 0), (SCHEMA, 10_001)]
    )
    def test_what_cannot_work_is_not_made(self, tmp_path: Path, schema: str, partitions: int) -> None:
        """Columns that reading adds, twins, and impossible numbers of partitions are refused."""
        with pytest.raises(ConfigError):
            PartitionedLog(tmp_path / "log", schema, partitions)

    @pytest.mark.parametrize(
        "bad",
        [
            [{"app": "x", "n": "one"}],
            [{"app": "x", "m": 1}],
            pa.table({"app": ["x"]}),
            pa.table({"app": ["x"], "n": ["y"]}),
        ],
    )
    def test_rows_that_do_not_fit_are_refused_whole(self, log: PartitionedLog, bad: object) -> None:
        """A wrong type, an unknown or a missing column adds nothing."""
        with pytest.raises(BadRecordError, match="nothing was appended"):
            log.append(0, bad)  # type: ignore[arg-type]
        assert log.end_offsets() == {0: 0, 1: 0}

    @pytest.mark.parametrize(
        "bad",
        [
            [(2, "y")],
            ["x"],
            [("app", "n")],
            [{"app": "x", "n": 1}, None],
            "xy",
            {"app": "x", "n": 1},
            5,
            None,
        ],
    )
    def test_what_is_no_row_is_refused(self, log: PartitionedLog, bad: object) -> None:
        """Tuples, texts and a single dictionary are told what a row looks like, and add nothing."""
        with pytest.raises(
            ConfigError, match=r"is a dictionary with the columns app, n.*nothing was appended"
        ):
            log.append(0, bad)  # type: ignore[arg-type]
        assert log.end_offsets() == {0: 0, 1: 0}

    def test_rows_of_a_generator_are_appended(self, log: PartitionedLog) -> None:
        """It can be gone through once only."""
        log.append(0, (row for row in rows(0, 3)))  # type: ignore[arg-type]
        assert numbers(log) == [0, 1, 2]

    def test_a_name_that_is_no_text_is_an_unknown_column(self, log: PartitionedLog) -> None:
        """It is refused as any other, also beside one that is a text."""
        with pytest.raises(BadRecordError, match=r"unknown columns \[1, 'm'\]"):
            log.append(0, [{1: "x", "m": 2}])
        assert log.end_offsets() == {0: 0, 1: 0}

    def test_a_wrong_partition_or_range_is_refused(self, log: PartitionedLog) -> None:
        """Numbers outside the log are errors, not empty answers."""
        with pytest.raises(ConfigError, match="no partition 2"):
            log.append(2, rows(0, 1))
        with pytest.raises(ConfigError, match="no range"):
            log.read_range(0, 3, 1)
        with pytest.raises(CorruptStateError, match="offset 0"):
            list(log.read_range(0, 0, 1))


class TestUnfinishedWrites:
    @pytest.mark.parametrize("kept", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 40, -1])
    def test_a_torn_tail_is_not_delivered_and_then_cut_off(self, tmp_path: Path, kept: int) -> None:
        """However much of the last frame reached the disk, readers stop before it and the next append replaces it."""
        whole = filled(tmp_path, 3, 4)
        size = file_of(whole).stat().st_size
        whole.append(0, rows(7, 5))
        full = file_of(whole).stat().st_size
        whole.close()
        os.truncate(file_of(whole), size + kept if kept > 0 else full - 1)
        log = PartitionedLog(whole.path)
        assert log.end_offsets() == {0: 7}
        assert numbers(log) == list(range(7))
        assert log.append(0, rows(100, 2)) == 7
        assert numbers(log) == [*range(7), 100, 101]
        assert numbers(PartitionedLog(log.path)) == [*range(7), 100, 101]

    def test_a_tail_with_a_wrong_byte_is_unfinished(self, tmp_path: Path) -> None:
        """A last frame of full length whose pages did not all reach the disk counts as torn."""
        log = filled(tmp_path, 3, 4)
        damage(file_of(log), file_of(log).stat().st_size - 20)
        again = PartitionedLog(log.path)
        assert again.end_offsets() == {0: 3}
        assert again.append(0, rows(50, 1)) == 3
        assert numbers(again) == [0, 1, 2, 50]

    def test_zeros_at_the_end_are_unfinished(self, tmp_path: Path) -> None:
        """A file that was lengthened but not filled is read up to its last frame."""
        log = filled(tmp_path, 3)
        os.truncate(file_of(log), file_of(log).stat().st_size + 5000)
        again = PartitionedLog(log.path)
        assert again.end_offsets() == {0: 3}
        again.append(0, rows(3, 1))
        assert numbers(PartitionedLog(log.path)) == [0, 1, 2, 3]

    def test_a_reader_that_saw_the_tail_goes_on_after_it_was_replaced(self, tmp_path: Path) -> None:
        """A reader that stopped before a torn frame delivers what a writer put in its place."""
        writer = filled(tmp_path, 3)
        with file_of(writer).open("ab") as file:
            file.write(b"PSL1 half a frame of a process that died")
        reader = PartitionedLog(writer.path)
        assert reader.end_offsets() == {0: 3}
        PartitionedLog(writer.path).append(0, rows(3, 4))
        assert reader.end_offsets() == {0: 7}
        assert numbers(reader) == list(range(7))


class TestDamage:
    @pytest.mark.parametrize("into", [0, 5, 9, 17, 26, HEADER_BYTES + 30])
    def test_a_broken_frame_in_the_middle_is_an_error(self, tmp_path: Path, into: int) -> None:
        """A wrong byte in any field of a frame that others follow is reported with its place, and never cut off."""
        log = filled(tmp_path, 3)
        position = file_of(log).stat().st_size
        log.append(0, rows(3, 4))
        log.append(0, rows(7, 2))
        size = file_of(log).stat().st_size
        damage(file_of(log), position + into)
        index_of(log).unlink()
        again = PartitionedLog(log.path)
        for call in (again.end_offsets, lambda: again.append(0, rows(9, 1)), lambda: numbers(again, 0, 0, 9)):
            with pytest.raises(CorruptStateError) as raised:
                call()
            assert (
                raised.value.facts["partition"],
                raised.value.facts["offset"],
                raised.value.facts["position"],
            ) == (0, 3, position)
        assert numbers(again, 0, 0, 3) == [0, 1, 2]
        assert file_of(log).stat().st_size == size

    def test_a_file_cut_short_under_a_reader_is_an_error(self, tmp_path: Path) -> None:
        """Rows that were seen and are gone are reported, not silently written again."""
        log = filled(tmp_path, 3, 4)
        log.end_offsets()
        os.truncate(file_of(log), 10)
        with pytest.raises(CorruptStateError, match="cut short"):
            log.end_offsets()
        with pytest.raises(CorruptStateError, match="cut short"):
            log.append(0, rows(0, 1))

    def test_a_broken_description_is_an_error(self, log: PartitionedLog) -> None:
        """What log.json says is checked."""
        (log.path / "log.json").write_text('{"format": 1, "schema": "a long", "partitions": "many"}')
        with pytest.raises(CorruptStateError, match="does not describe a log"):
            PartitionedLog(log.path)


class TestIndex:
    def test_a_missing_index_is_built_again(self, tmp_path: Path) -> None:
        """Without its index the log reads the same, and the next append restores it whole."""
        log = filled(tmp_path, 2, 2, 2)
        before = index_of(log).read_bytes()
        index_of(log).unlink()
        again = PartitionedLog(log.path)
        assert numbers(again, 0, 3, 6) == [3, 4, 5]
        again.append(0, rows(6, 1))
        assert index_of(log).read_bytes()[: len(before)] == before
        assert len(index_of(log).read_bytes()) == 4 * 16

    @pytest.mark.parametrize("content", [b"\xff" * 160, b"\0" * 160, b"\1" * 7, bytes(range(48))])
    def test_a_wrong_index_changes_nothing(self, tmp_path: Path, content: bytes) -> None:
        """A torn or foreign index costs time only, and is replaced by the next append."""
        log = filled(tmp_path, 2, 2, 2)
        right = index_of(log).read_bytes()
        index_of(log).write_bytes(content)
        again = PartitionedLog(log.path)
        assert again.end_offsets() == {0: 6}
        assert [numbers(again, 0, start, 6) for start in range(6)] == [
            list(range(start, 6)) for start in range(6)
        ]
        assert again.append(0, rows(6, 1)) == 6
        assert index_of(log).read_bytes()[:48] == right
        assert numbers(PartitionedLog(log.path)) == list(range(7))

    def test_an_index_that_is_behind_or_torn_is_extended(self, tmp_path: Path) -> None:
        """Entries that a dead writer did not write, or wrote in part, are added by the next one."""
        log = filled(tmp_path, 2, 2, 2)
        right = index_of(log).read_bytes()
        os.truncate(index_of(log), 20)
        PartitionedLog(log.path).append(0, rows(6, 1))
        assert index_of(log).read_bytes()[:48] == right
        assert len(index_of(log).read_bytes()) == 64


class TestConcurrency:
    def test_processes_and_threads_append_without_loss(self, tmp_path: Path) -> None:
        """Rows of two processes and two threads all arrive once, each writer's in its order."""
        log = PartitionedLog(tmp_path / "log", SCHEMA, 1)
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=append_many, args=(log.path, who)) for who in range(2)]
        for worker in workers:
            worker.start()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda who: append_many(log.path, who), (2, 3)))
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        found = log.table().to_pylist()
        assert [row["offset"] for row in found] == list(range(200))
        for who in range(4):
            assert [row["n"] for row in found if row["app"] == str(who)] == list(range(50))

    def test_a_reader_beside_a_writer_sees_only_whole_rows(self, tmp_path: Path) -> None:
        """Ends only grow, and everything before an end can be read at once."""
        log = filled(tmp_path, 1)
        reader = PartitionedLog(log.path)
        done = threading.Event()

        def write() -> None:
            for number in range(1, 200):
                log.append(0, rows(number, 1), sync=False)
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        last = 0
        while not done.is_set():
            end = reader.end_offsets()[0]
            assert end >= last
            assert numbers(reader, 0, last, end) == list(range(last, end))
            last = end
        writer.join()
        assert numbers(reader) == list(range(200))


class TestFairEnd:
    def test_shares_are_even_and_leftovers_go_to_the_others(self) -> None:
        """A partition with little waiting leaves its share to those with more."""
        assert fair_end({0: 0, 1: 0, 2: 0}, {0: 100, 1: 2, 2: 100}, 30) == {0: 14, 1: 2, 2: 14}
        assert fair_end({0: 5, 1: 0}, {0: 5, 1: 3}, 10) == {0: 5, 1: 3}

    @given(waiting=st.lists(st.integers(0, 50), min_size=1, max_size=6), limit=st.integers(1, 20))
    def test_every_row_is_read_once_and_none_waits_for_ever(self, waiting: list[int], limit: int) -> None:
        """Batches are full until the end is reached, and a partition with rows is served within as many batches as there are partitions."""
        start, end = dict.fromkeys(range(len(waiting)), 0), dict(enumerate(waiting))
        unserved = dict.fromkeys(end, 0)
        while start != end:
            reached = fair_end(start, end, limit)
            taken = {partition: reached[partition] - start[partition] for partition in end}
            assert min(taken.values()) >= 0
            assert sum(taken.values()) == min(limit, sum(end.values()) - sum(start.values()))
            for partition, position in start.items():
                hungry = position < end[partition]
                unserved[partition] = unserved[partition] + 1 if hungry and not taken[partition] else 0
                assert unserved[partition] <= 2 * len(waiting)
            start = reached
