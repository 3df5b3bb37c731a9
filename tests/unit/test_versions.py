"""Where Sparks differ, and that what is said about versions in several places is one thing. Each test holds on every Spark."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import msgspec
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import types as T

import penstock.spark
from penstock.errors import ConfigError, CorruptStateError
from penstock.sources import PartitionedLog
from penstock.spark.log_source import Pace, PacedLogReader
from penstock.spark.versions import TESTED, arrow_schema, arrow_type, refuse_untested, with_version
from services.spark_kafka_connector import parts_for
from services.spark_versions import PINS, ROOT, Outcome, constraints_for, outcome, table

KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13"


@pytest.mark.parametrize("version", ["3.5.9", "4.4.0", "5.0.0", "40.0.0", "4"])
def test_a_spark_outside_the_range_is_refused(version: str) -> None:
    """The error says which version it is and which were tested."""
    with pytest.raises(ConfigError, match=rf"PySpark {version}; .* 4\.0, 4\.1, 4\.2 and 4\.3"):
        refuse_untested(version)


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "4.3.0.dev1", "4.3"])
def test_a_spark_inside_the_range_is_taken(version: str) -> None:
    """Patch releases and vendors' own numbers behind them are not looked at."""
    refuse_untested(version)


def test_nothing_of_ours_is_imported_on_such_a_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before an import fails on something that the other Spark lacks."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(ConfigError, match="tested"):
        importlib.reload(penstock.spark)


def test_the_same_versions_are_named_everywhere() -> None:
    """The range of pyproject.toml, the check, the environments and the newest pin agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    last = int(TESTED[-1].partition(".")[2])
    assert f"pyspark>={TESTED[0]},<4.{last + 1}" in project["dependencies"]
    assert tuple(PINS) == TESTED
    assert all(pins["pyspark"].startswith(f"{spark}.") for spark, pins in PINS.items())
    assert f"pyspark=={PINS[TESTED[-1]]['pyspark']}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_timestamps_are_in_utc() -> None:
    """Whatever the argument for it is called."""
    instant = pa.timestamp("us", tz="UTC")
    assert arrow_type(T.TimestampType()) == instant
    nested = T.StructType().add("at", T.ArrayType(T.TimestampType())).add("n", T.LongType())
    assert arrow_schema(nested).field("at").type.value_type == instant
    assert arrow_type(T.TimestampNTZType()) == pa.timestamp("us")


@pytest.mark.parametrize(
    ("package", "version", "expected"),
    [
        (KAFKA, "4.0.2", f"{KAFKA}:4.0.2"),
        (KAFKA, "4.1.0.dev3", f"{KAFKA}:4.1.0"),
        (f"{KAFKA}:4.2.0", "4.0.2", f"{KAFKA}:4.2.0"),
        ("org.postgresql:postgresql:42.7.7", "4.0.2", "org.postgresql:postgresql:42.7.7"),
    ],
)
def test_packages_of_sparks_own_follow_the_spark_that_runs(package: str, version: str, expected: str) -> None:
    """Only those that are named without a version."""
    assert with_version(package, version) == expected


@pytest.mark.parametrize("spark", TESTED)
def test_every_spark_has_a_kafka_connector(spark: str) -> None:
    """Put together of parts, it is not newer than the Spark, nor of another generation than it needs to be."""
    connector = parts_for(PINS[spark]["pyspark"])[0][2]
    assert connector <= PINS[spark]["pyspark"]


# ── environments ───────────────────────────────────────────────────────────────────────────────────


def test_an_environment_differs_in_what_is_pinned_for_it() -> None:
    """A Spark's own versions replace those of constraints.txt, and nothing else changes."""
    made = constraints_for("4.0", "# why\npandas-stubs==3.1\npandas==2.3.3\npyspark==4.3.0\nrich==15.0.0\n")
    pins = {f"{name}=={version}" for name, version in PINS["4.0"].items()}
    assert set(made.splitlines()) == {"# why", "pandas-stubs==3.1", "rich==15.0.0"} | pins


def test_a_report_becomes_a_line_of_the_table(tmp_path: Path) -> None:
    """Failures and errors are named; a report that is missing is a failure."""
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        "<testcase classname='t' name='a'/><testcase classname='t' name='b'><skipped/></testcase>"
        "<testcase classname='t' name='c'><failure/></testcase><testcase classname='t' name='d'><error/></testcase>"
        "</testsuite></testsuites>"
    )
    found = outcome("4.0", report, 90.0)
    assert found == Outcome("4.0", 1, 2, 1, 90.0, ("t::c", "t::d"))
    assert outcome("4.1", tmp_path / "none.xml", 1.0).failed == 1
    assert "failed on 4.0: t::c" in table([found])


# ── a log on a Spark without limits ────────────────────────────────────────────────────────────────


class Reading:
    """A log of 30 and 10 rows, and its reader with the notes that jobs would write."""

    def __init__(self, folder: Path) -> None:
        self.log = PartitionedLog(folder / "log", "n long", 2)
        self.append(0, 30)
        self.append(1, 10)
        self.note = folder / "note"

    def append(self, partition: int, count: int) -> None:
        self.log.append(partition, [{"n": n} for n in range(count)])

    def reader(self, rows_per_batch: int | None, pace: Pace | None) -> PacedLogReader:
        if pace is not None:
            self.note.write_bytes(msgspec.json.encode(pace))
        schema = T.StructType().add("n", T.LongType())
        return PacedLogReader(self.log, schema, rows_per_batch, self.note)


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path)


def test_a_reader_that_is_not_asked_for_a_limit_keeps_it(reading: Reading) -> None:
    """Each answer is one batch further than the last, up to the end that the note names, whatever is appended meanwhile."""
    reader = reading.reader(12, Pace(until={0: 30, 1: 10}))
    reading.append(0, 5)
    ends = [reader.latestOffset() for _ in range(5)]
    assert [sum(end.values()) for end in ends] == [12, 24, 36, 40, 40]
    assert ends[-1] == {"0": 30, "1": 10}


def test_a_run_that_goes_on_sees_what_is_appended(reading: Reading) -> None:
    """Without an end in the note the reader follows the log."""
    reader = reading.reader(100, Pace())
    assert reader.latestOffset() == {"0": 30, "1": 10}
    reading.append(1, 3)
    assert reader.latestOffset() == {"0": 30, "1": 13}


def test_a_reader_goes_on_from_where_spark_stands(reading: Reading) -> None:
    """Spark names the position of a restarted query by an empty range, and plans the batch that was under way."""
    reader = reading.reader(12, Pace())
    assert reader.partitions({"0": 20, "1": 4}, {"0": 20, "1": 4}) == []
    assert reader.latestOffset() == {"0": 26, "1": 10}


def test_beside_other_sources_everything_comes_at_once(reading: Reading) -> None:
    """Spark asks once, wherever the query stands, so that the answer is the end of the log."""
    reader = reading.reader(12, Pace(at_once=True))
    assert [reader.latestOffset() for _ in range(2)] == [{"0": 30, "1": 10}] * 2


def test_a_query_of_another_kind_can_have_no_limit(reading: Reading) -> None:
    """Without a note all is read at once; a limit that nobody can keep is refused."""
    assert reading.reader(None, None).latestOffset() == {"0": 30, "1": 10}
    with pytest.raises(ConfigError, match=r"rows_per_batch=12.*Spark before 4\.2"):
        reading.reader(12, None).latestOffset()


def test_rows_that_a_log_has_lost_are_missed(reading: Reading) -> None:
    """Also where Spark gives no start to compare with: when it plans a batch that ends before it begins."""
    reader = reading.reader(None, Pace(at_once=True))
    end = reader.latestOffset()
    with pytest.raises(CorruptStateError, match="up to offset 31, but the log ends at 30"):
        reader.partitions({"0": 31, "1": 10}, end)
