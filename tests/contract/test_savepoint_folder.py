"""The folder of a savepoint while it is being made: whole or none, wherever a maker dies."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.model import OperatorColumns
from penstock.errors import ConfigError
from penstock.ids import LONGEST_NAME
from penstock.operators.window.base import size_of_tumbling
from penstock.savepoint.create import attempting, claim_folder
from penstock.savepoint.manifest import (
    MAKING,
    MANIFEST,
    Manifest,
    SavedFile,
    SavedOperator,
    encode,
    read_manifest,
)
from penstock.savepoint.table_files import read_table, table_file, table_folder, write_table
from penstock.state.backends.base import TableLayout
from penstock.state.backends.sorted_file import numbered_schema
from penstock.storage import LocalStorage, Storage
from penstock.storage.file_system import checked_file_name
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, SimulatedCrash
from penstock.windows import sliding, tumbling

DATA = b"rows"
FILE = SavedFile("state/views/values/0-0123abcd-7.parquet", len(DATA), xxhash.xxh3_64_hexdigest(DATA), 1)
MADE = Manifest(
    id="t1",
    checkpoint=0,
    mode="exactly-once",
    parallelism=1,
    max_parallelism=8,
    operators={"views": SavedOperator(OperatorColumns({}, {}), {"__values": (FILE,)})},
)


def make(to: Storage) -> None:
    with attempting(to, "t1") as attempt:
        to.put(f"state/views/values/0-{attempt.mark}-6.parquet", b"of a task whose answer was lost")
        to.put(FILE.path, DATA)
        attempt.finish(MADE)


def test_whole_or_none(tmp_path: Path) -> None:
    """Crashed before or after any call, a folder is a whole savepoint or none; the same maker goes on, another one is refused."""
    counting = FaultyStorage(LocalStorage(tmp_path / "counted"))
    make(counting)
    for call in range(1, len(counting.calls) + 1):
        for plan in (FaultPlan(crash_before=call), FaultPlan(crash_after=call)):
            root = tmp_path / f"{call}-{plan.crash_before}"
            with pytest.raises(SimulatedCrash):
                make(FaultyStorage(LocalStorage(root), plan))
            folder = LocalStorage(root)
            if folder.size(MANIFEST) is None:
                with pytest.raises(ConfigError, match="is no savepoint"):
                    read_manifest(folder)
                if folder.size(MAKING) is not None:
                    with pytest.raises(ConfigError, match="unfinished savepoint of another request"):
                        claim_folder(folder, "t2")
                make(folder)
            assert read_manifest(folder) == MADE
            assert {FILE.path, MANIFEST} <= set(folder.names()) <= {FILE.path, MANIFEST, MAKING}


def test_what_lies_there_is_not_touched(tmp_path: Path) -> None:
    """Files below the names of ours that somebody else has put there are refused, and left alone."""
    folder = LocalStorage(tmp_path)
    folder.put("state/thesis.txt", b"years of work")
    with pytest.raises(ConfigError, match=r"other files, such as state/thesis\.txt"):
        claim_folder(folder, "t1")
    assert folder.names() == ["state/thesis.txt"]


def test_given_up(tmp_path: Path) -> None:
    """What was written is gone, and the folder can be used again."""
    folder = LocalStorage(tmp_path)
    attempt = claim_folder(folder, "t1")
    folder.put(f"state/views/values/0-{attempt.mark}.parquet", DATA)
    attempt.give_up()
    assert folder.names() == []
    make(folder)


def test_the_size_is_in_the_name() -> None:
    """The name of a table of tumbling windows says how long they are; other names say nothing of the kind."""
    assert size_of_tumbling(str(tumbling("90s"))) == 90_000_000
    assert size_of_tumbling(str(tumbling("1d", offset="3h"))) == 86_400_000_000
    for other in (
        str(sliding("1h", "10min")),
        f"rows of {tumbling('1h')}",
        "windows of 3 rows",
        "early results",
    ):
        assert size_of_tumbling(other) is None


LONG = "покупки_по_магазинам_и_дням_недели_за_последний_год"


def test_a_state_with_a_long_name(tmp_path: Path) -> None:
    """Whatever a state is called, in any script, its rows are written and read again."""
    table = TableLayout(
        LONG, pa.schema([("k", pa.int64()), ("sub", pa.int64())]), pa.schema([("v", pa.int64())])
    )
    rows = pa.RecordBatch.from_arrays([pa.array([1])] * 5, schema=numbered_schema(table))
    folder = LocalStorage(tmp_path / "saved")
    path = table_file("u" * LONGEST_NAME, LONG, 65535, "0123abcd", 2**62)
    file = write_table(folder, path, [rows], table, part=0, scratch=tmp_path)
    assert file is not None
    assert list(read_table(folder, file, table, tmp_path)) == [rows]
    read_manifest_with(folder, file)


def read_manifest_with(folder: Storage, file: SavedFile) -> None:
    """The name is one that a manifest may have."""
    operators = {"views": SavedOperator(OperatorColumns({}, {}), {LONG: (file,)})}
    folder.put(MANIFEST, encode(msgspec.structs.replace(MADE, operators=operators)))
    assert read_manifest(folder).operators == operators


@given(st.lists(st.text(min_size=1, max_size=300), unique=True, max_size=20))
def test_no_two_tables_share_a_folder(names: list[str]) -> None:
    """Also when their names are long and begin alike; one part of a path never has more bytes than file systems allow."""
    names = list(
        dict.fromkeys([*names, *(LONG + name for name in names), *(LONG * 9 + name for name in names)])
    )
    folders = [table_folder("u", name) for name in names]
    assert len(set(folders)) == len(names)
    for folder in folders:
        assert checked_file_name(folder) == folder
        assert max(len(part.encode()) for part in folder.split("/")) <= 255
        assert not re.search(r"%.?$|%.?-", folder)


def test_short_names_are_what_they_were() -> None:
    """They can be read."""
    assert table_folder("views", "by shop") == "state/views/table-by shop"
    assert table_folder("views", "a/b") == "state/views/table-a%2Fb"
