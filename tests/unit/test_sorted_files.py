"""Sorted files: equality of keys, lookup, merge, the policy that chooses what to merge, and the file format."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptStateError, IncompatibleStateError, UnavailableError
from penstock.state.backends.base import VALUES, StateLayout
from penstock.state.backends.file_backends import INLINE_FILES, MAX_FILES, choose_inline, choose_merge
from penstock.state.backends.sorted_file import (
    FileHeader,
    TableHeader,
    encode_sorted_file,
    load_sorted_file,
    write_sorted_file,
)
from penstock.state.backends.sorted_lookup import lookup
from penstock.state.backends.sorted_rows import Ownership, SortedBatch, SortedTable, merge_tables
from penstock.state.ddl import arrow_schema, arrow_type
from penstock.state.handle import FileRef
from penstock.state.keys import GROUP_SHIFT, KeyBatch, rows_equal

LAYOUT = StateLayout(arrow_schema("k string"), arrow_schema("n long"))
HEADER = FileHeader(
    uid="views", subtask=0, parallelism=1, max_parallelism=128, tables={VALUES: TableHeader(identity=1)}
)
ALL = Ownership(0, 1)

Row = tuple[int, str, int | None]  # sort key, key, value (None: tombstone)


def batch_of(rows: list[Row]) -> SortedBatch:
    sort_keys, keys, values = zip(*rows, strict=True)
    deleted = pa.array([value is None for value in values]) if None in values else None
    return SortedBatch(
        np.array(sort_keys, dtype=np.int64),
        deleted,
        (pa.array(keys, pa.string()),),
        (pa.array(values, pa.int64()),),
    )


def file_of(*batches: list[Row]) -> SortedTable:
    return tuple(batch_of(rows) for rows in batches)


def keys_of(*pairs: tuple[int, str]) -> KeyBatch:
    sort_keys, keys = zip(*pairs, strict=True)
    return KeyBatch(np.array(sort_keys, dtype=np.int64), pa.record_batch([pa.array(keys)], names=["k"]))


def merged_rows(files: list[SortedTable], **settings: object) -> list[Row]:
    options = {"ownership": ALL, "keep_tombstones": False} | settings
    rows: list[Row] = []
    for batch in merge_tables(files, **options):  # type: ignore[arg-type]
        columns = (batch.sort_keys.tolist(), batch.keys[0].to_pylist(), batch.values[0].to_pylist())
        rows += zip(*columns, strict=True)
    return rows


OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
NAN = math.nan
EQUALITY = [
    ("int", [1, 2, None, None, 5], [1, 3, None, 4, None], [1, 0, 1, 0, 0]),
    ("double", [NAN, NAN, 1.5, None, NAN, 0.1], [NAN, OTHER_NAN, 1.5, None, None, 0.2], [1, 1, 1, 1, 0, 0]),
    ("string", ["", "ä", None], [None, "ä", None], [0, 1, 1]),
    ("binary", [b"\0", b"", b"a"], [b"\0", b"\0", b"a\0"], [1, 0, 0]),
    ("boolean", [True, False, None], [True, True, False], [1, 0, 0]),
    (
        "struct<a:int,b:double>",
        [{"a": 1, "b": NAN}, {"a": 1, "b": 2.0}, None, None, {"a": None, "b": None}],
        [{"a": 1, "b": NAN}, {"a": 1, "b": 3.0}, None, {"a": 1, "b": 1.0}, None],
        [1, 0, 1, 0, 0],
    ),
    (
        "array<double>",
        [[], [1.0, NAN], [1.0], [None], None, None, [1.0, 2.0], [3.0]],
        [[], [1.0, NAN], [1.0, 2.0], [None], None, [], [1.0, 3.0], [3.0]],
        [1, 1, 0, 1, 1, 0, 0, 1],
    ),
    ("array<array<string>>", [[["a"], []], [["a"]], [["b"], None]], [[["a"], []], [["c"]], [["b"], None]], [1, 0, 1]),
    ("map<string,double>", [[("a", NAN)], [("a", 1.0)], None], [[("a", NAN)], [("b", 1.0)], None], [1, 0, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "left", "right", "expected"), EQUALITY, ids=[case[0] for case in EQUALITY])
def test_equality(ddl: str, left: list[object], right: list[object], expected: list[int]) -> None:
    """Keys are equal as Spark groups them: exactly, with null equal to null and NaN to NaN, also inside."""
    kind = arrow_type(ddl)
    left_array, right_array = pa.array(left, kind), pa.array(right, kind)
    assert rows_equal([left_array], [right_array]).astype(int).tolist() == expected
    # The same through slices, whose offsets are not zero.
    padded = [pa.concat_arrays([array.slice(0, 1), array]).slice(1) for array in (left_array, right_array)]
    assert rows_equal([padded[0]], [padded[1]]).astype(int).tolist() == expected


def test_equality_of_several_columns() -> None:
    """A key of two columns is equal only when both are."""
    left, right = (
        [pa.array([1, 1, 2]), pa.array(["a", "b", "c"])],
        [pa.array([1, 1, 3]), pa.array(["a", "x", "c"])],
    )
    assert rows_equal(left, right).tolist() == [True, False, False]


def test_lookup_goes_on_over_collisions_and_batches() -> None:
    """A key is found behind others with its sort key, also when these lie in an earlier record batch."""
    file = file_of([(1, "a", 10), (5, "b", 20), (5, "c", 30)], [(5, "d", 40), (5, "e", 50), (9, "f", 60)])
    keys = keys_of((0, "z"), (1, "a"), (1, "x"), (5, "c"), (5, "e"), (5, "x"), (9, "f"), (10, "g"))
    values, found = lookup([file], keys, LAYOUT.value)
    assert values.column("n").to_pylist() == [None, 10, None, 30, 50, None, 60, None]
    assert found.tolist() == [False, True, False, True, True, False, True, False]


def test_lookup_stops_at_the_newest_answer() -> None:
    """The newest file that knows a key decides, and a tombstone decides that there is none."""
    newest = file_of([(1, "a", None), (2, "b", 21)])
    older = file_of([(1, "a", 10), (2, "b", 20), (3, "c", 30)])
    oldest = file_of([(0, "z", 5), (3, "c", 3)])
    values, found = lookup(
        [newest, older, oldest], keys_of((0, "z"), (1, "a"), (2, "b"), (3, "c")), LAYOUT.value
    )
    assert values.column("n").to_pylist() == [5, None, 21, 30]
    assert found.tolist() == [True, False, True, True]


def test_lookup_tells_null_from_absent() -> None:
    """A stored null is found; an absent key is not."""
    stored = batch_of([(1, "a", 1)])
    stored = SortedBatch(stored.sort_keys, None, stored.keys, (pa.nulls(1, pa.int64()),))
    values, found = lookup([(stored,)], keys_of((1, "a"), (2, "b")), LAYOUT.value)
    assert values.column("n").to_pylist() == [None, None]
    assert found.tolist() == [True, False]


def test_lookup_without_value_columns() -> None:
    """State that is only a set of keys answers which of them it has."""
    stored = batch_of([(1, "a", 1)])
    file = (SortedBatch(stored.sort_keys, None, stored.keys, ()),)
    values, found = lookup([file], keys_of((1, "a"), (2, "b")), pa.schema([]))
    assert (values.num_rows, values.num_columns) == (2, 0)
    assert found.tolist() == [True, False]


def test_merge_keeps_the_newest_of_each_key() -> None:
    """A merge hides older rows of a key, not other keys with its sort key, and drops tombstones when told to."""
    newest = file_of([(5, "c", 31), (5, "a", None)])
    older = file_of([(5, "a", 10), (5, "b", 20), (5, "c", 30), (7, "d", 40)])
    assert merged_rows([newest, older]) == [(5, "c", 31), (5, "b", 20), (7, "d", 40)]
    kept = merged_rows([newest, older], keep_tombstones=True)
    assert kept == [(5, "c", 31), (5, "a", None), (5, "b", 20), (7, "d", 40)]


def test_merge_drops_foreign_key_groups() -> None:
    """Rows of key groups that another subtask owns are dropped."""
    file = file_of([(group << GROUP_SHIFT, f"key {group}", group) for group in range(6)])
    rows = merged_rows([file], ownership=Ownership(1, 3))
    assert [value for _, _, value in rows] == [1, 4]


rows_of_a_file = st.dictionaries(st.integers(0, 30), st.integers(0, 99) | st.none(), min_size=1, max_size=25)


@given(
    files=st.lists(rows_of_a_file, min_size=1, max_size=6), piece_bytes=st.sampled_from([1, 60, 200, 1 << 30])
)
def test_merge_in_pieces_equals_a_dictionary(files: list[dict[int, int | None]], piece_bytes: int) -> None:
    """However small its pieces are, a merge holds what updating a dictionary from old to new would hold, in order."""
    truth: dict[int, int | None] = {}
    for rows in reversed(files):
        truth.update(rows)
    # Three keys share each sort key.
    built = [file_of(sorted((key // 3, str(key), value) for key, value in rows.items())) for rows in files]
    kept = merged_rows(built, keep_tombstones=True, piece_bytes=piece_bytes)
    assert {int(key): value for _, key, value in kept} == truth
    assert len(kept) == len(truth)
    assert [row[0] for row in kept] == sorted(key // 3 for key in truth)
    live = {int(key): value for _, key, value in merged_rows(built, piece_bytes=piece_bytes)}
    assert live == {key: value for key, value in truth.items() if value is not None}


KB = 1024
MB = 1024 * KB


def sized(*sizes: int, tombstones: int = 0) -> list[FileRef]:
    """Files of these bytes, newest first, a row for every 100; `tombstones` in the newest."""
    files = [FileRef(size // 100, size, "", f"file-{i}") for i, size in enumerate(sizes)]
    return [msgspec.structs.replace(file, tombstones=0 if i else tombstones) for i, file in enumerate(files)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], None),
        ([KB], None),
        ([KB, KB, KB], None),
        ([KB, KB, KB, KB], range(4)),
        ([KB, 2 * KB, 100 * KB, 127 * KB], range(4)),
        ([KB, KB, KB, KB, 9 * MB], range(4)),
        ([KB, KB, KB, 9 * MB], None),
        ([KB, 200 * KB, 200 * KB, 200 * KB, 200 * KB, 9 * MB], range(1, 5)),
        ([KB, 9 * MB, KB, KB, KB, KB], range(6)),
        ([5 * MB, 5 * MB, 9 * MB], range(3)),
        ([5 * MB, 9 * MB], None),
        ([9 * MB, KB], range(2)),
        ([90 * KB, 30 * KB, KB], None),
    ],
)
def test_choose_merge(sizes: list[int], expected: range | None) -> None:
    """Four neighbours of a level are merged, with lower ones between; all, when the newer are as large as the oldest."""
    assert choose_merge(sized(*sizes)) == expected


def test_deleted_rows_count_twice() -> None:
    """Tombstones that hide more than half of the oldest file bring its space back."""
    assert choose_merge(sized(MB, 9 * MB, tombstones=9 * MB // 250)) is None
    assert choose_merge(sized(MB, 9 * MB, tombstones=9 * MB // 220)) == range(2)


def merged_size(files: list[FileRef], live: int) -> int:
    """Rows overwritten in a newer file are gone after a merge; there are never more than `live` bytes of distinct keys."""
    return min(sum(file.size for file in files), live)


@pytest.mark.parametrize("changed", [50 * KB, 300 * KB, 5 * MB])
def test_files_and_space_are_bounded_in_a_long_life(changed: int) -> None:
    """With 20 MB alive and any part of it changed in a batch: never many files, never more than twice the space."""
    live = 20 * MB
    files = sized(live)
    most_files = most_bytes = 0
    for batch in range(400):
        files = [FileRef(changed // 100, changed, "", f"batch-{batch}"), *files]
        window = choose_merge(files)
        if window is not None:
            size = merged_size(files[window.start : window.stop], live)
            merged = FileRef(size // 100, size, "", f"merged-{batch}")
            files[window.start : window.stop] = [merged]
        most_files = max(most_files, len(files))
        most_bytes = max(most_bytes, sum(file.size for file in files))
    assert most_files <= MAX_FILES
    assert most_bytes <= 2 * live + changed


@given(sizes=st.lists(st.integers(1, 10_000_000), min_size=1, max_size=200))
def test_the_number_of_files_is_bounded(sizes: list[int]) -> None:
    """Whatever the sizes of batches, never more than MAX_FILES files remain after a merge, and a merge makes fewer."""
    files: list[FileRef] = []
    for batch, size in enumerate(sizes):
        files.insert(0, FileRef(1, size, "", f"batch-{batch}"))
        window = choose_merge(files)
        if window is not None:
            assert len(window) >= 2
            total = sum(file.size for file in files[window.start : window.stop])
            files[window.start : window.stop] = [FileRef(1, total, "", f"merged-{batch}")]
        assert len(files) <= MAX_FILES


def test_merging_is_amortised() -> None:
    """With equal batches of new keys a row is rewritten about once for each doubling, not once for each batch."""
    files: list[FileRef] = []
    rewritten = 0
    for batch in range(4096):
        files.insert(0, FileRef(1, 200 * KB, "", f"batch-{batch}"))
        window = choose_merge(files)
        if window is not None:
            total = sum(file.size for file in files[window.start : window.stop])
            rewritten += total
            files[window.start : window.stop] = [FileRef(1, total, "", f"merged-{batch}")]
    assert sum(file.size for file in files) == 4096 * 200 * KB
    assert rewritten <= 12 * 4096 * 200 * KB  # 4096 = 2 ** 12


NOBODY: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("sizes", "merging", "expected"),
    [
        ([KB, KB, KB, 9 * MB], NOBODY, None),
        ([KB, KB, KB, KB, 9 * MB], NOBODY, range(4)),
        ([KB, KB, KB, KB], frozenset({"file-3"}), None),
        ([KB, KB, KB, KB, KB], frozenset({"file-4"}), range(4)),
        ([MB] * INLINE_FILES, NOBODY, None),
        ([MB] * (INLINE_FILES + 1), NOBODY, range(INLINE_FILES // 2)),
        ([MB] * (INLINE_FILES + 1), frozenset({"file-5"}), range(5)),
        ([MB] * (INLINE_FILES + 1), frozenset({"file-0"}), None),
    ],
)
def test_choose_inline(sizes: list[int], merging: frozenset[str], expected: range | None) -> None:
    """A batch merges tiny files, and the newest of too many; never one that is being merged elsewhere."""
    assert choose_inline([(f"file-{i}", size) for i, size in enumerate(sizes)], merging) == expected


def test_a_file_is_mapped_and_appears_whole(tmp_path: Path) -> None:
    """A written file opens without allocating its columns, and no unfinished file stays behind."""
    rows = 100_000
    columns = batch_of([(i, str(i), i) for i in range(rows)])
    ref = write_sorted_file(
        tmp_path / "a" / "sorted.arrow", "sorted.arrow", {VALUES: [columns]}, layout=LAYOUT, header=HEADER
    )
    assert ref is not None
    before = pa.total_allocated_bytes()
    file = load_sorted_file(ref, tmp_path / "a" / "sorted.arrow", LAYOUT)
    assert pa.total_allocated_bytes() - before < rows
    assert file.rows == ref.rows == rows
    assert file.table(VALUES)[0].keys[0].equals(columns.keys[0])
    assert [path.name for path in tmp_path.rglob("*.*")] == ["sorted.arrow"]


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    """Nothing is written for no rows."""
    assert (
        write_sorted_file(tmp_path / "sorted", "sorted", {VALUES: iter(())}, layout=LAYOUT, header=HEADER)
        is None
    )
    assert encode_sorted_file({VALUES: iter(())}, layout=LAYOUT, header=HEADER) is None
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_path_is_unavailable(tmp_path: Path) -> None:
    """A file that cannot be written says where."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnavailableError, match="cannot write the working file"):
        write_sorted_file(
            tmp_path / "file" / "sorted",
            "sorted",
            {VALUES: [batch_of([(1, "a", 1)])]},
            layout=LAYOUT,
            header=HEADER,
        )


def inline(layout: StateLayout = LAYOUT, header: FileHeader = HEADER) -> FileRef:
    ref = encode_sorted_file({VALUES: [batch_of([(1, "a", 1)])]}, layout=layout, header=header)
    assert ref is not None
    return ref


def test_another_layout_is_incompatible() -> None:
    """A file with other columns, types or another split of key and values is refused, naming both."""
    ref = inline()
    for key, value in (
        ("k string", "n int"),
        ("k string", "m long"),
        ("k string, n long", ""),
        ("n long", "k string"),
    ):
        layout = StateLayout(arrow_schema(key), arrow_schema(value) if value else pa.schema([]))
        with pytest.raises(
            IncompatibleStateError, match=r"holds key \(k string\) and values \(n long\), the job now"
        ):
            load_sorted_file(ref, ref.inline, layout)


def test_another_format_is_incompatible() -> None:
    """A file of a later format is refused with both numbers."""
    ref = inline(header=msgspec.structs.replace(HEADER, format=4))
    with pytest.raises(
        IncompatibleStateError, match=r"has format 4, this version of Penstock reads format 3"
    ):
        load_sorted_file(ref, ref.inline, LAYOUT)


def test_what_is_no_run_is_corrupt() -> None:
    """Bytes that are no Arrow file, a file without a header and a wrong number of rows are refused."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("k", pa.string())])):
        pass
    for data in (b"", b"no file at all", sink.getvalue().to_pybytes()):
        with pytest.raises(CorruptStateError, match="no readable sorted file of state"):
            load_sorted_file(FileRef(rows=1, size=len(data), checksum="0"), data, LAYOUT)
    ref = inline()
    with pytest.raises(CorruptStateError, match="holds 1 row, the checkpoint says 2"):
        load_sorted_file(FileRef(rows=2, size=ref.size, checksum=ref.checksum), ref.inline, LAYOUT)
