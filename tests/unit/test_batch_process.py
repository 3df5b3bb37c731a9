"""What user code sees in columns, and what becomes of what it does."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_harness import CONTEXT, OperatorHarness
from penstock.operators.grouping import PieceLimits
from penstock.operators.process import columns as run_module
from penstock.operators.values import array_like
from services.tiers import share

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


@pytest.fixture
def harness(tmp_path):
    return OperatorHarness(tmp_path, ["k"], OUTPUT)


def rows(*pairs: tuple[str, int]) -> pa.Table:
    return pa.table(
        {"k": [key for key, _ in pairs], "v": pa.array([value for _, value in pairs], pa.int64())}
    )


def by_key(table: pa.Table) -> dict[str, int]:
    return dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))


class Sums(ps.BatchProcess):
    """The sum of `v` per key, with NumPy."""

    total = ps.ValueState("long", default=0)

    def process_batch(self, keys, batch, state):
        state["total"] = pc.add(
            state["total"], pa.array(np.add.reduceat(batch["v"].to_numpy(), batch.starts))
        )
        return {"k": keys["k"], "n": state["total"]}


class KeyedSums(ps.KeyedProcess):
    """The same key by key."""

    total = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.total.value += sum(rows.column("v"))
        yield key, self.total.value


class PandasSums(Sums):
    def process_batch(self, keys, batch, state):
        sums = batch.to_pandas().groupby(batch.key_index)["v"].sum()
        state["total"] = state["total"].to_pandas() + sums
        return keys.to_pandas().assign(n=state["total"].to_pandas())


class PolarsSums(Sums):
    def process_batch(self, keys, batch, state):
        frame = batch.to_polars().with_columns(at=pl.Series(batch.key_index))
        sums = frame.group_by("at").agg(pl.col("v").sum()).sort("at")["v"]
        state["total"] = pl.Series(state["total"]) + sums
        return keys.to_polars().with_columns(n=pl.Series(state["total"]))


class ArrowSums(Sums):
    def process_batch(self, keys, batch, state):
        table = batch.to_arrow().append_column("at", pa.array(batch.key_index))
        sums = table.group_by("at", use_threads=False).aggregate([("v", "sum")]).sort_by("at")["v_sum"]
        state["total"] = pc.add(state["total"], sums)
        yield None
        yield keys.to_arrow().append_column("n", state["total"])


@pytest.mark.parametrize(
    "operator", [Sums(), PandasSums(), PolarsSums(), ArrowSums()], ids=lambda one: type(one).__name__
)
def test_state_is_per_key_and_lasts(harness, operator):
    """Each key has its own value, and the next batch finds it, in whichever library the user works."""
    harness.run(operator, rows(("a", 1), ("b", 10), ("a", 2)))
    assert by_key(harness.run(operator, rows(("b", 1), ("c", 5)))) == {"b": 11, "c": 5}
    assert harness.state() == {("a",): (3,), ("b",): (11,), ("c",): (5,)}


BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-9, 9)), min_size=1), min_size=1, max_size=4
)


@settings(max_examples=share(40))
@given(
    batches=BATCHES,
    forms=st.lists(st.booleans(), min_size=4, max_size=4),
    piece_bytes=st.sampled_from([1, 100, 1 << 20]),
)
def test_both_forms_give_the_same(tmp_path_factory, batches, forms, piece_bytes):
    """Key by key, in columns, or changing between the two from batch to batch: same results, same state."""
    root = tmp_path_factory.mktemp("both")
    reference, mixed = (OperatorHarness(root / name, ["k"], OUTPUT) for name in "rm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "LIMITS", PieceLimits(rows=1000, bytes=piece_bytes))
        for batch, form in zip(batches, forms, strict=False):
            expected = reference.run(KeyedSums(), rows(*batch))
            assert mixed.run(Sums() if form else KeyedSums(), rows(*batch)).equals(expected)
            assert mixed.state() == reference.state()


def test_what_the_call_is_given(harness):
    """Keys are distinct; rows are ordered by key, in the order they came; positions and starts say whose they are."""
    calls = []

    class Looks(ps.BatchProcess):
        def process_batch(self, keys, batch, state):
            calls.append(state.context)
            assert (len(keys), len(batch), len(state)) == (3, 5, 3)
            assert keys.column_names == ["k"]
            assert batch.column_names == ["k", "v"]
            assert batch.key_index.dtype == batch.starts.dtype == np.int64
            assert keys["k"].take(pa.array(batch.key_index)).equals(batch["k"])
            assert batch["k"].take(pa.array(batch.starts)).equals(keys["k"])
            found = {
                key: batch["v"].filter(pc.equal(batch["k"], key)).to_pylist() for key in keys["k"].to_pylist()
            }
            assert found == {"a": [1, 4, 5], "b": [2], "c": [3]}
            assert keys.to_pandas()["k"].tolist() == keys.to_polars()["k"].to_list() == keys["k"].to_pylist()

    result = harness.run(Looks(), rows(("a", 1), ("b", 2), ("c", 3), ("a", 4), ("a", 5)))
    assert result.num_rows == 0
    assert calls == [CONTEXT]


def test_a_large_batch_comes_in_pieces_of_whole_keys(harness, monkeypatch):
    """Every key is in one call, with all its rows."""
    monkeypatch.setattr(run_module, "LIMITS", PieceLimits(rows=1000, bytes=100))
    calls = []

    class Looks(Sums):
        def process_batch(self, keys, batch, state):
            calls.append((keys["k"].to_pylist(), len(batch)))
            return super().process_batch(keys, batch, state)

    found = harness.run(Looks(), rows(*((letter, 1) for _ in range(9) for letter in "abcdefgh")))
    assert by_key(found) == dict.fromkeys("abcdefgh", 9)
    assert len(calls) > 1
    assert sorted(key for keys, _ in calls for key in keys) == list("abcdefgh")
    assert all(count == 9 * len(keys) for keys, count in calls)


ARRAYS = {
    "list": [1, None, 3],
    "tuple": (1, None, 3),
    "arrow": pa.array([1, None, 3]),
    "arrow chunks": pa.chunked_array([[1, None], [3]]),
    "arrow int8": pa.array([1, None, 3], pa.int8()),
    "numpy objects": np.array([1, None, 3], dtype=object),
    "pandas": pd.Series([1, None, 3]),
    "pandas Int64": pd.Series([1, None, 3], dtype="Int64"),
    "pandas objects": pd.Series([1, None, 3], dtype=object),
    "polars": pl.Series([1, None, 3]),
    "polars u32": pl.Series([1, None, 3], dtype=pl.UInt32),
}


class Assigns(ps.BatchProcess):
    """Sets one state to what it was made with."""

    total = ps.ValueState("long", default=0)
    name = ps.ValueState("string")

    def __init__(self, values, state="total"):
        self.values = values
        self.state = state

    def process_batch(self, keys, batch, state):
        state[self.state] = self.values


THREE = rows(("a", 1), ("b", 1), ("c", 1))


@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_state_takes_every_kind_of_array(harness, values):
    """Arrow, NumPy, pandas, polars or a list; null means that there is no value, and such a key takes no space."""
    harness.run(Assigns(values), THREE)
    assert harness.state() == {("a",): (None, 1), ("c",): (None, 3)}


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x", "y", "z"], pa.large_string()),
        pl.Series(["x", "y", "z"], dtype=pl.Categorical),
        np.array(["x", "y", "z"]),
        pd.Series(["x", "y", "z"], dtype="category"),
    ],
    ids=["large", "polars categories", "numpy", "pandas categories"],
)
def test_text_of_every_kind_is_text(harness, values):
    """Text is stored as text, however a library keeps it."""
    harness.run(Assigns(values, "name"), THREE)
    assert harness.state() == {("a",): ("x", None), ("b",): ("y", None), ("c",): ("z", None)}


@pytest.mark.parametrize(
    ("values", "state", "text"),
    [
        ([1, 2], "total", "state 'total' to 2 values for 3 keys"),
        (np.zeros((3, 2)), "total", "state 'total' to .*1-dimensional"),
        (5, "total", "state 'total' to 5; give one value a row"),
        ([1, "many", 3], "total", "state 'total' to 'many' for 'total', which is not of type long"),
        (
            pa.array([1, 2, 3]),
            "name",
            "state 'name' to values of type long, such as 1; it is declared as string",
        ),
        (
            pa.array(["1", "2", "3"]),
            "total",
            "state 'total' to values of type string, such as '1'; it is declared as long",
        ),
        (
            np.array([1.5, 2, 3]),
            "total",
            "state 'total' to values of type double that do not all fit into long: .*1.5",
        ),
        (np.array([1, "x", 3], dtype=object), "total", "state 'total' to .*'x'.* which is not of type long"),
        (pa.array([2**63, 0, 0], pa.uint64()), "total", "9223372036854775808"),
        ([1, 2, 3], "count", "used the state 'count'; declared are: name, total"),
    ],
)
def test_a_wrong_assignment_is_named(harness, values, state, text):
    """What cannot be stored is refused with the operator, the state, the value and what would fit."""
    with pytest.raises(ps.BadRecordError, match=f"operator op: process_batch.*{text}"):
        harness.run(Assigns(values, state), THREE)


def test_defaults_are_read_but_not_stored(harness):
    """A state with a default has no nulls, one without has; reading changes nothing."""

    class Reads(Assigns):
        tags = ps.ValueState("array<string>", default=["new"])

        def process_batch(self, keys, batch, state):
            assert state["total"].to_pylist() == [0, 0, 0]
            assert state["name"].to_pylist() == [None] * 3
            assert state["tags"].to_pylist() == [["new"]] * 3

    harness.run(Reads(None), THREE)
    assert harness.state() == {}
    assert harness.handle.refs == ()


def test_keys_that_did_not_change_are_not_written(harness):
    """Assigning what is there already writes nothing; setting the default where nothing was does."""
    harness.run(Assigns([1, 2, 0]), THREE)
    assert harness.state() == {("a",): (None, 1), ("b",): (None, 2), ("c",): (None, 0)}
    before = harness.handle.refs
    harness.run(Assigns(np.array([1, 2, 0])), THREE)
    assert harness.handle.refs == before


@pytest.mark.parametrize(
    "mask",
    [
        [True, None, False],
        np.array([True, False, False]),
        pa.array([True, None, False]),
        pl.Series([True, None, False]),
        pd.Series([True, False, False]),
    ],
    ids=["list", "numpy", "arrow", "polars", "pandas"],
)
def test_deleted_keys_are_forgotten(harness, mask):
    """All values of the keys in the mask are gone, at once for the call itself; what is assigned later counts."""

    class Forgets(Assigns):
        tags = ps.ValueState("array<string>")

        def process_batch(self, keys, batch, state):
            if state["name"].null_count:
                state["name"], state["total"], state["tags"] = ["x", "y", "z"], [1, 2, 3], [["t"]] * 3
                return
            state.delete(mask)
            assert state["total"].to_pylist() == [0, 2, 3]
            assert state["tags"].to_pylist() == [None, ["t"], ["t"]]
            if self.values:
                state["total"] = self.values

    harness.run(Forgets(None), THREE)
    harness.run(Forgets(None), THREE)
    assert harness.state() == {("b",): ("y", ["t"], 2), ("c",): ("z", ["t"], 3)}
    harness.run(Forgets(None), THREE)  # fills in what was forgotten
    harness.run(Forgets([7, 8, 9]), THREE)
    assert harness.state() == {("a",): (None, None, 7), ("b",): ("y", ["t"], 8), ("c",): ("z", ["t"], 9)}


def test_containers_are_forgotten_too(harness):
    """A deleted key is gone also when all it has is an array, and the keys beside it are not written again."""

    class Tags(ps.BatchProcess):
        tags = ps.ValueState("array<string>")

        def process_batch(self, keys, batch, state):
            if state["tags"].null_count:
                state["tags"] = [["x"]] * len(keys)
            else:
                state.delete(pc.equal(keys["k"], "a"))

    harness.run(Tags(), THREE)
    harness.run(Tags(), THREE)
    assert harness.state() == {("b",): (["x"],), ("c",): (["x"],)}
    before = harness.handle.refs
    harness.run(Tags(), rows(("b", 1), ("c", 1)))
    assert harness.handle.refs == before


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        ([True], "1 value for 3 keys"),
        ([0, 1, 2], "not of type boolean"),
        (np.array([0, 1, 2]), "of type long"),
    ],
)
def test_a_wrong_mask_is_named(harness, mask, text):
    """A mask has one truth value for each key; positions are refused."""

    class Forgets(Assigns):
        def process_batch(self, keys, batch, state):
            state.delete(mask)

    with pytest.raises(ps.BadRecordError, match=f"operator op: .*delete.*{text}"):
        harness.run(Forgets(None), THREE)


class Gives(ps.BatchProcess):
    """Returns what it was made with."""

    def __init__(self, result):
        self.result = result

    def process_batch(self, keys, batch, state):
        return self.result


RESULTS = {
    "dictionary": {"n": [1, None], "k": ["a", "b"]},
    "table": pa.table({"n": [1, None], "k": ["a", "b"]}),
    "record batch": pa.record_batch({"n": pa.array([1, None]), "k": pa.array(["a", "b"])}),
    "pandas": pd.DataFrame({"k": ["a", "b"], "n": [1, None]}, index=[7, 9]),
    "polars": pl.DataFrame({"k": ["a", "b"], "n": [1, None]}),
    "list": [{"k": ["a"], "n": [1]}, None, pa.table({"k": ["b"], "n": pa.nulls(1)})],
    "generator": ({"k": [key], "n": [n]} for key, n in (("a", 1), ("b", None))),
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_results_in_every_form(harness, result):
    """Tables, DataFrames and dictionaries, one or several, with columns in any order."""
    assert harness.run(Gives(result), THREE).to_pylist() == [{"k": "a", "n": 1}, {"k": "b", "n": None}]


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        {"k": [], "n": []},
        pd.DataFrame({"k": [], "n": []}),
        pl.DataFrame(schema={"k": pl.String, "n": pl.Int64}),
        OUTPUT.empty_table(),
    ],
    ids=["none", "list", "dictionary", "pandas", "polars", "arrow"],
)
def test_no_results(harness, result):
    """Nothing, and tables without rows, are fine."""
    assert harness.run(Gives(result), THREE).num_rows == 0


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"k": ["a"]}, "lacks n; its schema has k, n"),
        ({"k": ["a"], "n": [1], "x": [1]}, "has too much: x; its schema has k, n"),
        ({"k": ["a"], "m": [1]}, "lacks n and has too much: m"),
        ({"k": ["a"], "n": [1, 2]}, r"different lengths: {'k': 1, 'n': 2}"),
        ({"k": ["a"], "n": ["b"]}, "column 'n' to 'b' for 'n', which is not of type long"),
        ({"k": ["a"], "n": 1}, "column 'n' to 1; give one value a row"),
        (
            pd.DataFrame({"k": [1], "n": [1]}),
            "column 'k' to values of type long, such as 1; it is declared as string",
        ),
        (pl.DataFrame({"k": ["a"], "n": [0.5]}), "column 'n' to values of type double .* long: .*0.5"),
        ([("a", 1)], r"gave \('a', 1\); give an Arrow table"),
        (5, "gave 5; give an Arrow table"),
        ("text", "gave 'text'; give an Arrow table"),
    ],
)
def test_a_wrong_result_is_named(harness, result, text):
    """What does not fit the schema is refused with the operator, the column and the value."""
    with pytest.raises(ps.BadRecordError, match=f"operator op: .*process_batch.*{text}"):
        harness.run(Gives(result), THREE)


KEYS = {
    "string": (pa.string(), ["", "ä", "b" * 40]),
    "date": (pa.date32(), [date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0"]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]),
    "decimal": (pa.decimal128(38, 2), [Decimal("0.00"), Decimal("-1.10"), Decimal(10) ** 35]),
    "double": (pa.float64(), [0.0, float("inf"), -1e300]),
    "boolean": (pa.bool_(), [True, False, True]),
    "struct": (pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": None}, {"x": 2}]),
}


class CountRows(ps.BatchProcess):
    n = ps.ValueState("long", default=0)

    def process_batch(self, keys, batch, state):
        state["n"] = np.bincount(batch.key_index) + state["n"].to_numpy()
        return keys.to_arrow().append_column("n", state["n"])


class CountRowsOfKey(ps.KeyedProcess):
    n = ps.ValueState("long", default=0)

    def __init__(self, keys):
        self.keys = keys

    def process(self, key, rows, ctx):
        self.n.value += len(rows)
        return [(key, self.n.value) if self.keys == 1 else (*key, self.n.value)]


@pytest.mark.parametrize(("kind", "values"), KEYS.values(), ids=KEYS)
def test_keys_of_every_type(tmp_path, kind, values):
    """Both forms count the rows of each key, and agree on what is stored."""
    repeated = values * 2 + values[:1]
    table = pa.table({"k": pa.array(repeated, kind)})
    schema = pa.schema([("k", kind), ("n", pa.int64())])
    columns, keyed = (OperatorHarness(tmp_path / name, ["k"], schema) for name in "ck")
    found = columns.run(CountRows(), table).to_pylist()
    assert found == keyed.run(CountRowsOfKey(1), table).to_pylist()
    for value in values:
        assert [row["n"] for row in found if row["k"] == value] == [repeated.count(value)]
    assert sum(row["n"] for row in found) == len(repeated)


def test_keys_of_several_columns(tmp_path):
    """A key of several columns is a row of `keys`."""
    table = pa.table(
        {"a": ["x", "x", "y", "x"], "b": pa.array([date(2026, 1, 1), None, None, None]), "v": [1, 2, 3, 4]}
    )
    schema = pa.schema([("a", pa.string()), ("b", pa.date32()), ("n", pa.int64())])
    columns, keyed = (OperatorHarness(tmp_path / name, ["a", "b"], schema) for name in "ck")
    found = columns.run(CountRows(), table)
    assert found.equals(keyed.run(CountRowsOfKey(2), table))
    assert sorted(found["n"].to_pylist()) == [1, 1, 2]
    assert set(columns.state()) == set(keyed.state()) == {("x", date(2026, 1, 1)), ("x", None), ("y", None)}


def test_mistakes_in_the_declaration_are_named():
    """Assigning to declared state, or using it as in a KeyedProcess, says what to write instead; so does a wrong column."""
    operator = Sums()
    with pytest.raises(AttributeError, match=r'total is state: write state\["total"\] = \.\.\.'):
        operator.total = 5
    with pytest.raises(ps.ConfigError, match=r"process_batch\(\) has it as state\['total'\]"):
        _ = operator.total.value


def test_an_unknown_column_is_named(harness):
    """Asking for a column that is not there lists those that are."""

    class Looks(ps.BatchProcess):
        def process_batch(self, keys, batch, state):
            return batch["w"]

    with pytest.raises(ps.BadRecordError, match="the column 'w'; there are k, v"):
        harness.run(Looks(), THREE)


def test_without_polars_the_message_says_what_to_install(harness, monkeypatch):
    """As polars is optional, who asks for it without having it is told how to get it."""
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ps.ConfigError, match=r"\.\[polars\]"):
        harness.run(PolarsSums(), THREE)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_results_of_any_size_are_cut_before_they_are_converted(tmp_path, monkeypatch, kind):
    """A library may hold more text in one array than Spark can take: it comes out in the declared type, in chunks."""
    monkeypatch.setattr(array_like, "CHUNK_BYTES", 20)
    texts = pa.array([f"some text {at}" for at in range(20)]).cast(kind)

    class Texts(ps.BatchProcess):
        def process_batch(self, keys, batch, state):
            return {"t": pa.chunked_array([texts, texts.slice(0, 3)])}

    found = OperatorHarness(tmp_path, ["k"], pa.schema([("t", pa.string())])).run(Texts(), rows(("a", 1)))
    assert found["t"].to_pylist() == [*texts.to_pylist(), *texts.to_pylist()[:3]]
