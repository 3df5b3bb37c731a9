"""What user code sees and what becomes of what it does."""

from __future__ import annotations

import copy
import gc
import pickle
from contextlib import nullcontext
from datetime import datetime

import pyarrow as pa
import pytest

from penstock.errors import BadRecordError, ConfigError
from penstock.ids import SubtaskId
from penstock.operators import calls
from penstock.operators.grouping import PieceLimits
from penstock.operators.process import run_keyed as run_process_module
from penstock.operators.process.keyed import KeyedProcess
from penstock.operators.process.run_keyed import run_process
from penstock.operators.process.user_code import Context
from penstock.operators.state.declarations import ValueState, value_schema
from penstock.operators.values import encoding
from penstock.operators.values.python_values import python_values
from penstock.operators.values.rows import Rows, RowTable
from penstock.state.backends import MemoryBackend
from penstock.state.backends.base import StateLayout, Workplace
from penstock.state.keys import SORT_KEY
from penstock.storage import LocalStorage

CONTEXT = Context("op", 0, 0, 1)
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Harness:
    """Runs an operator over batches of (key, value) rows with the memory backend."""

    def __init__(self, operator: KeyedProcess, root) -> None:
        self.operator = operator
        self.root = root
        self.handle = None

    def run(self, rows: list[tuple[str, int]], output: pa.Schema = OUTPUT) -> list[dict[str, object]]:
        layout = StateLayout(pa.schema([("k", pa.string())]), value_schema(self.operator))
        place = Workplace(LocalStorage(self.root), self.root, SubtaskId("op", 0), 1, 128, 0, "1-0-0-0")
        state = MemoryBackend().open(place, layout, self.handle)
        keys = [key for key, _ in rows]
        table = pa.table(
            {"k": keys, "v": [value for _, value in rows], SORT_KEY: [ord(key[0]) for key in keys]}
        )
        results = run_process(self.operator, table, state, key_names=["k"], output=output, context=CONTEXT)
        self.handle = state.freeze()
        return pa.Table.from_batches(results, output).to_pylist()

    @property
    def stored_keys(self) -> int:
        return sum(run.rows for run in self.handle.refs)


class Sums(KeyedProcess):
    total = ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.total.value += sum(row.v for row in rows)
        yield key, self.total.value


def test_state_is_per_key_and_lasts(tmp_path):
    """Each key has its own value, and the next batch finds it."""
    harness = Harness(Sums(), tmp_path)
    harness.run([("a", 1), ("b", 10), ("a", 2)])
    assert harness.run([("b", 1), ("c", 5)]) == [{"k": "b", "n": 11}, {"k": "c", "n": 5}]


def test_rows_can_be_looked_at_in_every_way(tmp_path):
    """A row has names, positions and string access; rows have a length, slices, columns and an Arrow form."""

    class Looks(KeyedProcess):
        def process(self, key, rows, ctx):
            assert [row.v for row in rows] == [row["v"] for row in rows] == [row[1] for row in rows]
            assert rows.column("v") == [row.v for row in rows[0:]]
            assert rows.to_arrow()["v"].to_pylist() == rows.column("v")
            yield {"n": rows[-1].v + len(rows), "k": key}

    assert Harness(Looks(), tmp_path).run([("a", 5), ("a", 7)]) == [{"k": "a", "n": 9}]


def test_a_container_changed_in_place_is_kept(tmp_path):
    """A list that user code appends to counts as changed, and a default is not shared between keys."""

    class Collects(KeyedProcess):
        seen = ValueState("array<long>", default=[])

        def process(self, key, rows, ctx):
            self.seen.value.extend(rows.column("v"))
            yield key, len(self.seen.value)

    harness = Harness(Collects(), tmp_path)
    harness.run([("a", 1), ("b", 2)])
    assert harness.run([("a", 3), ("a", 4)]) == [{"k": "a", "n": 3}]
    assert harness.run([("b", 3)]) == [{"k": "b", "n": 2}]


def test_a_cleared_key_takes_no_space(tmp_path):
    """When all values of a key are gone, the key is gone."""

    class Clears(KeyedProcess):
        last = ValueState("long")

        def process(self, key, rows, ctx):
            if rows[0].v:
                self.last.value = rows[0].v
            else:
                self.last.clear()

    harness = Harness(Clears(), tmp_path)
    harness.run([("a", 1), ("b", 2)])
    assert harness.stored_keys == 2
    harness.run([("a", 0)])
    assert harness.stored_keys == 1


def test_keys_that_were_only_read_are_not_written(tmp_path):
    """A batch that changes nothing leaves the version as it was."""

    class Reads(Sums):
        def process(self, key, rows, ctx):
            if rows[0].v:
                yield from super().process(key, rows, ctx)
            else:
                yield key, self.total.value

    harness = Harness(Reads(), tmp_path)
    harness.run([("a", 1)])
    before = harness.handle.refs
    assert harness.run([("a", 0)]) == [{"k": "a", "n": 1}]
    assert harness.handle.refs == before


@pytest.mark.parametrize(
    ("yielded", "text"),
    [
        (("a",), "with 1 value, its schema has 2 columns"),
        ({"x": 1}, "unknown columns"),
        (5, "give a tuple"),
        (("a", "b"), "'b' for 'n'"),
    ],
)
def test_a_wrong_result_is_named(tmp_path, yielded, text):
    """What does not fit the schema is refused with the value and the columns."""

    class Wrong(KeyedProcess):
        def process(self, key, rows, ctx):
            yield yielded

    with pytest.raises(BadRecordError, match=text):
        Harness(Wrong(), tmp_path).run([("a", 1)])


def test_a_value_of_the_wrong_type_is_named(tmp_path):
    """State that cannot be encoded names the state and the value."""

    class Wrong(KeyedProcess):
        total = ValueState("long")

        def process(self, key, rows, ctx):
            self.total.value = "many"

    with pytest.raises(BadRecordError, match="'many' for 'total'"):
        Harness(Wrong(), tmp_path).run([("a", 1)])


def test_state_cannot_be_overwritten_by_mistake():
    """Assigning to the state itself, or using it outside of process, says what to write instead."""
    operator = Sums()
    with pytest.raises(AttributeError, match=r"self\.total\.value"):
        operator.total = 5
    with pytest.raises(ConfigError, match="only inside process"):
        _ = operator.total.value
    with pytest.raises(ConfigError, match="is not a long"):
        ValueState("long", default="zero")


def test_a_row_acts_as_a_named_tuple(tmp_path):
    """A row can be unpacked, compared, hashed, added to, turned into a dictionary and copied, and its values cannot be set."""

    class Looks(KeyedProcess):
        def process(self, key, rows, ctx):
            row = rows[0]
            name, value = row
            assert (name, value) == row == ("a", 5)
            assert row != rows[1]
            assert len({row, rows[0], ("a", 5)}) == 1
            assert (row + (1,), (1,) + row, row[0:1], row[-1]) == (("a", 5, 1), (1, "a", 5), ("a",), 5)  # noqa: RUF005 - that is what is tried
            assert (row._asdict(), row._fields, row._replace(v=6)) == (
                {"k": "a", "v": 5},
                ("k", "v"),
                ("a", 6),
            )
            assert repr(row) == "Row(k='a', v=5)"
            assert pickle.loads(pickle.dumps(row)) == copy.copy(row) == ("a", 5)
            assert sorted(rows, reverse=True) == [rows[1], rows[0]]
            assert list(reversed(rows)) == rows[::-1]
            assert rows[1] in rows
            with pytest.raises(AttributeError):
                row.v = 7
            with pytest.raises(KeyError):
                row["w"]
            with pytest.raises(IndexError):
                rows[2]
            yield row

    assert Harness(Looks(), tmp_path).run([("a", 5), ("a", 7)]) == [{"k": "a", "n": 5}]


def test_only_columns_that_are_looked_at_are_converted():
    """A value that Python cannot hold hurts only those who look at it, in its own row."""
    far = pa.array([2**60, 0], pa.int64()).cast(pa.timestamp("us"))
    rows = Rows(RowTable(pa.table({"v": [1, 2], "far": far})), 0, 2)
    assert [row.v for row in rows] == rows.column("v") == [1, 2]
    assert rows[1].far == rows[1]["far"] == rows[1][1] == datetime.fromisoformat("1970-01-01")
    for look in (
        lambda: rows[0].far,
        lambda: rows[0]["far"],
        lambda: tuple(rows[0]),
        lambda: rows.column("far"),
    ):
        with pytest.raises(BadRecordError, match="column 'far' holds a value that Python cannot read"):
            look()


def test_columns_with_odd_names_are_found_by_name(tmp_path):
    """A column whose name is no Python name has an attribute with its position, as in a named tuple."""
    table = pa.table({"class": [1], "_at": [2], "count": [3], "a b": [4]})
    (row,) = Rows(RowTable(table), 0, 1)
    assert (row["class"], row["_at"], row["count"], row["a b"]) == tuple(row) == (1, 2, 3, 4)
    assert (row._0, row._1, row.count, row._3) == (1, 2, 3, 4)


def test_results_may_be_returned_as_a_list(tmp_path):
    """A list of results is as good as yielding them, and an empty one is no result."""

    class Returns(KeyedProcess):
        def process(self, key, rows, ctx):
            return [(key, row.v) for row in rows if row.v]

    assert Harness(Returns(), tmp_path).run([("a", 1), ("b", 0)]) == [{"k": "a", "n": 1}]


def test_a_result_that_is_no_list_is_named(tmp_path):
    """Returning a number is refused with the number; an error of the user's own comes through as it is."""

    class Number(KeyedProcess):
        def process(self, key, rows, ctx):
            return rows[0].v

    class Fails(KeyedProcess):
        def process(self, key, rows, ctx):
            yield key, len(rows[0].v)

    with pytest.raises(BadRecordError, match=r"process\(\) returned 5; yield results"):
        Harness(Number(), tmp_path).run([("a", 5)])
    with pytest.raises(TypeError, match="has no len"):
        Harness(Fails(), tmp_path).run([("a", 5)])


def test_many_keys_and_many_results_are_handled_in_pieces(tmp_path, monkeypatch):
    """Whatever is cut into pieces inside, every key is called once with all its rows, and results come in the order of keys."""
    monkeypatch.setattr(run_process_module, "LIMITS", PieceLimits(rows=7, bytes=1 << 20))
    monkeypatch.setattr(run_process_module, "OUTPUT_ROWS", 3)
    calls = []

    class Repeats(KeyedProcess):
        count = ValueState("long", default=0)

        def process(self, key, rows, ctx):
            calls.append(key)
            self.count.value += len(rows)
            for row in rows:
                yield key, row.v + self.count.value

    harness = Harness(Repeats(), tmp_path)
    rows = [(letter, at) for at in range(10) for letter in "abcdef"]
    harness.run(rows)
    assert harness.run(rows) == [{"k": letter, "n": at + 20} for letter in "abcdef" for at in range(10)]
    assert calls == list("abcdef") * 2
    assert harness.stored_keys == 6


@pytest.mark.parametrize("fails", [False, True])
def test_the_garbage_collector_is_as_before(tmp_path, fails):
    """User code is run with fewer collections, which ends with it, also when it fails."""
    before, inside = gc.get_threshold(), []

    class Watches(KeyedProcess):
        def process(self, key, rows, ctx):
            inside.append(gc.get_threshold()[0])
            if fails:
                raise RuntimeError("the user is unhappy")

    with pytest.raises(RuntimeError) if fails else nullcontext():
        Harness(Watches(), tmp_path).run([("a", 1)])
    assert inside[0] > before[0]
    assert gc.get_threshold() == before


def test_a_map_is_a_dictionary_always(tmp_path):
    """A map in state reads as the dictionary it was set to, in every batch and wherever it stands; a default in pairs does too."""
    looks = []

    class Pages(KeyedProcess):
        seen = ValueState("map<string,long>", default={})
        pairs = ValueState("map<string,long>", default=[("x", 1)])
        deep = ValueState("struct<all:array<map<long,map<string,long>>>>")

        def process(self, key, rows, ctx):
            looks.append((dict(self.seen.value), self.pairs.value, self.deep.value))
            self.seen.value["x"] = self.seen.value.get("x", 0) + len(rows)
            self.deep.value = {"all": [{1: {"y": 2}}, None]}

    harness = Harness(Pages(), tmp_path)
    for _ in range(2):
        harness.run([("a", 1)])
    assert looks == [({}, {"x": 1}, None), ({"x": 1}, {"x": 1}, {"all": [{1: {"y": 2}}, None]})]


def test_a_map_in_a_row_is_a_dictionary():
    """A map column of the input gives dictionaries by every way of looking at it."""
    maps = pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int64()))
    rows = Rows(RowTable(pa.table({"m": maps})), 0, 2)
    assert rows.column("m") == [rows[0].m, rows[1]["m"]] == [{"x": 1}, None]


class Histories(KeyedProcess):
    """Keeps all values of a key as text, and the pages in a map."""

    text = ValueState("string", default="")
    pages = ValueState("map<string,string>", default={})

    def process(self, key, rows, ctx):
        self.text.value += "".join(str(row.v) * 100 for row in rows)
        self.pages.value["all"] = self.text.value
        yield key, self.text.value, self.pages.value


@pytest.mark.parametrize("limit", [1, 200, 1000])
def test_more_state_than_fits_at_once_is_read_and_written_in_parts(tmp_path, monkeypatch, limit):
    """Pieces are counted in bytes of rows and of state, and columns in several chunks are written and handed on."""
    monkeypatch.setattr(run_process_module, "LIMITS", PieceLimits(rows=1000, bytes=limit))
    monkeypatch.setattr(encoding, "CHUNK_BYTES", limit)
    monkeypatch.setattr(encoding, "STEP", 2)
    output = pa.schema([("k", pa.string()), ("t", pa.string()), ("m", pa.map_(pa.string(), pa.string()))])
    loads = []
    monkeypatch.setattr(
        calls, "python_values", lambda column: loads.append(len(column)) or python_values(column)
    )
    harness = Harness(Histories(), tmp_path)
    for value in (1, 7):
        loads.clear()
        found = harness.run([(letter, value) for letter in "abcdefgh"], output)
    text = "1" * 100 + "7" * 100
    assert found == [{"k": letter, "t": text, "m": [("all", text)]} for letter in "abcdefgh"]
    assert max(loads) < 8
