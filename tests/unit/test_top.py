"""The first rows of each key, against a plain Python model, on every backend, whatever happens in between."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import cmp_to_key
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import BuiltIn, OperatorCluster
from penstock.operators import columns, top_rows
from penstock.operators import top as run_module
from penstock.operators.grouping import PieceLimits
from penstock.operators.process.user_code import Context
from penstock.operators.state import table_rows
from penstock.operators.state.table_rows import PieceRows, Portion
from penstock.operators.top import TopSpec, run_top
from penstock.operators.top_rows import KeyedRows
from penstock.operators.values.row_order import Order, parse_orders
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
COLUMNS = arrow_schema(
    "product string, k string, sold double, at long, name string, raw binary, wide decimal(38,2), tags array<string>"
)
LIMITS_OF_BYTES: list[tuple[Any, str]] = [
    (table_rows, "PORTION_BYTES"),
    (top_rows, "NEW_BYTES"),
    (top_rows, "WHOLE_BYTES"),
    (top_rows, "ROWS_AT_ONCE"),
]
Row = dict[str, Any]


def spec(n: int, by: str, of: str = "", newest: str = "") -> TopSpec:
    names = tuple(of.split()) if of else ()
    return TopSpec(
        COLUMNS,
        ("k",),
        n,
        parse_orders(by.split(", "), "by"),
        names,
        parse_orders(newest.split(", "), "order_by") if newest else (),
    )


SPECS = [
    spec(1, "sold desc"),
    spec(3, "name, sold"),
    spec(2, "wide desc, raw desc, k"),
    spec(1, "sold desc", "product"),
    spec(2, "sold, name desc", "product"),
    spec(3, "raw, sold desc", "product"),
    spec(2, "sold desc", "product", "at"),
    spec(2, "name desc", "product sold", "at desc, name"),
    spec(2, "at", "sold"),
]


class Top(BuiltIn):
    """The operator."""

    def __init__(self, top: TopSpec) -> None:
        self.spec = top

    def layout(self, key: pa.Schema) -> StateLayout:
        assert self.spec.layout().key == key
        return self.spec.layout()

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        return run_top(self.spec, rows, state)


@pytest.mark.parametrize("name", ["key_index", "gone", "rank_", "position"])
@pytest.mark.parametrize("of", [(), ("p",)])
def test_columns_may_have_any_name(tmp_path: Path, name: str, of: tuple[str, ...]) -> None:
    """No name of a column is one that is used inside."""
    columns = arrow_schema(f"k string, p string, {name} long")
    top = TopSpec(columns, ("k",), 1, (Order(name, descending=True),), of)
    cluster = OperatorCluster(tmp_path, top.output)
    rows = pa.table({"k": ["a", "a"], "p": ["x", "y"], name: pa.array([1, 2], pa.int64())})
    for _ in range(2):
        found = cluster.batch(Top(top), rows)
    assert all(row[name] == 2 for row in found)


# ── the model ──────────────────────────────────────────────────────────────────────────────────


def comparing(orders: tuple[Order, ...]) -> Callable[[Row], Any]:
    """Spark's order: null is the smallest, NaN the greatest."""

    def compare(left: Row, right: Row) -> int:
        for order in orders:
            a, b = (place(row[order.column]) for row in (left, right))
            if a != b:
                return (1 if a > b else -1) * (-1 if order.descending else 1)
        return 0

    return cmp_to_key(compare)


def place(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


class Model:
    """Keeps every row, and sorts all of them."""

    def __init__(self, top: TopSpec) -> None:
        self.spec = top
        self.rows: dict[str, list[Row]] = {}
        self.tops: dict[str, list[Row]] = {}

    def batch(self, rows: list[Row]) -> list[Row]:
        for row in rows:
            self.rows.setdefault(row["k"], []).append(row)
        changed = []
        for key in {row["k"] for row in rows}:
            top = self.top(key)
            if list(map(text, top)) != list(map(text, self.tops.get(key, []))):
                self.tops[key] = top
                changed += [{**row, "rank": rank} for rank, row in enumerate(top, 1)]
        return changed

    def top(self, key: str) -> list[Row]:
        rows = self.rows[key]
        if self.spec.of:
            newest: dict[Any, Row] = {}
            for row in sorted(rows, key=comparing(self.spec.newest)):
                newest[tuple(place(row[name]) for name in self.spec.of)] = self.one_zero(row)
            ties = tuple(Order(name) for name in self.spec.of)
            rows = sorted(newest.values(), key=comparing((*self.spec.by, *ties)))
        return sorted(rows, key=comparing(self.spec.by))[: self.spec.n]

    def one_zero(self, row: Row) -> Row:
        numbers = {name: row[name] + 0.0 for name in self.spec.of if isinstance(row[name], float)}
        return {**row, **numbers}


# ── random batches ─────────────────────────────────────────────────────────────────────────────

rows_ = st.fixed_dictionaries(
    {
        "product": st.none() | st.sampled_from(["", "tea", "milk", "é"]),
        "k": st.sampled_from("pqr"),
        "sold": st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5, -2.0, math.inf]),
        "at": st.none() | st.integers(-2, 2),
        "name": st.none() | st.sampled_from(["", "a", "ab", "\uffff", "𐍈"]),
        "raw": st.none() | st.sampled_from([b"", b"\x00", b"\x7f", b"\xff"]),
        "wide": st.none() | st.integers(-1, 1).map(lambda one: one * 10**30),
        "tags": st.none() | st.lists(st.sampled_from(["x", "y"]), max_size=1),
    }
)
batches = st.lists(rows_, min_size=1, max_size=8)
events = st.lists(batches | batches | st.sampled_from([1, 2, 3]), min_size=3, max_size=8)


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, COLUMNS)


def text(row: Row) -> str:
    wide = None if row["wide"] is None else int(row["wide"])
    return repr([wide if name == "wide" else row[name] for name in COLUMNS.names]) + str(row.get("rank"))


def shown(rows: list[Row]) -> list[str]:
    return sorted(map(text, rows))


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    top=st.sampled_from(SPECS),
    events=events,
    rows=st.sampled_from([1, 100]),
    few=st.sampled_from([0, 64]),
    at_once=st.sampled_from([(1, 40), (150, 1 << 20), (1 << 20, 1 << 20)]),
)
@settings(max_examples=share(50))
def test_it_is_what_a_sort_of_all_rows_says(  # noqa: PLR0917 - hypothesis gives them by name
    backend: str, top: TopSpec, events: list[Any], rows: int, few: int, at_once: tuple[int, int]
) -> None:
    """Over random batches, lost machines and rescales, keys whose first rows changed, and only these, give all of them with their ranks."""
    model = Model(top)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "LIMITS", PieceLimits(bytes=1 << 20, rows=rows))
        patch.setattr(table_rows, "FEW_ROWS", few)
        few_bytes, in_an_array = at_once
        for module, limit in LIMITS_OF_BYTES:
            patch.setattr(module, limit, few_bytes)
        patch.setattr(columns, "NARROW_BYTES", in_an_array)
        cluster = OperatorCluster(Path(folder), top.output, backend)
        for event in events:
            if isinstance(event, int):
                cluster.rescale(event)
                cluster.batch(Top(top), table_of([]))
                continue
            assert shown(cluster.batch(Top(top), table_of(event))) == shown(model.batch(event))


# ── what it costs ──────────────────────────────────────────────────────────────────────────────


def row(product: str, sold: float, k: str = "p") -> Row:
    return dict.fromkeys(COLUMNS.names) | {"k": k, "product": product, "sold": float(sold)}


def test_a_key_is_read_as_a_whole_only_where_one_of_its_first_fell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that rise, or fall without giving up their place, are compared with the first ones only."""
    read: list[int] = []
    portions = PieceRows.portions

    def counted(piece: PieceRows, wanted: Any = None) -> Iterator[Portion]:
        if wanted is not None:
            read.append(int(wanted.sum()))
        return portions(piece, wanted)

    monkeypatch.setattr(PieceRows, "portions", counted)
    operator = Top(spec(2, "sold desc", "product"))
    cluster = OperatorCluster(tmp_path, operator.spec.output)

    def batch(*given: Row) -> list[tuple[str, int]]:
        results = cluster.batch(operator, table_of(list(given)))
        return [(one["product"], one["rank"]) for one in sorted(results, key=lambda one: one["rank"])]

    assert batch(*(row(f"p{at}", at) for at in range(50))) == [("p49", 1), ("p48", 2)]
    assert batch(row("p1", 60), row("p2", 3)) == [("p1", 1), ("p49", 2)]
    assert batch(row("p1", 50), row("p3", 10)) == [("p1", 1), ("p49", 2)]
    assert batch(row("p3", 11)) == []
    assert batch(row("p49", 5), row("p48", 70)) == [("p48", 1), ("p1", 2)]
    assert not read
    assert batch(row("p1", 5)) == [("p48", 1), ("p47", 2)]
    assert read == [1]


@pytest.mark.parametrize(
    "top", [spec(2, "sold"), spec(2, "sold desc", "product", "at")], ids=["rows", "values"]
)
def test_no_more_than_fits_is_looked_at_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: TopSpec
) -> None:
    """However much a key has in a batch, and however much is stored: what is put in order is bounded by `n` and the limits."""
    sizes: list[int] = []
    then = KeyedRows.then

    def measured(rows: KeyedRows, others: KeyedRows) -> KeyedRows:
        both = then(rows, others)
        sizes.append(both.table.nbytes)
        return both

    monkeypatch.setattr(KeyedRows, "then", measured)
    for module, limit in LIMITS_OF_BYTES:
        monkeypatch.setattr(module, limit, 4096)
    monkeypatch.setattr(top_rows, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(run_module, "LIMITS", PieceLimits(bytes=4096))
    cluster, model = OperatorCluster(tmp_path, top.output), Model(top)
    many = [{**row(f"p{at}", at), "name": "x" * 500} for at in range(100)]
    wide = [{**row("p", 1, f"k{at}"), "name": "x" * 500} for at in range(100)]
    fallen = [row(f"p{at}", -1) for at in (98, 99)]
    for batch in (many, wide, [*fallen, *(row("q", 0, f"k{at}") for at in range(100))]):
        assert shown(cluster.batch(Top(top), table_of(batch))) == shown(model.batch(batch))
    assert max(sizes) < 4 * 4096


@pytest.mark.parametrize(
    "top", [spec(2, "sold desc"), spec(2, "sold desc", "product")], ids=["rows", "values"]
)
def test_no_more_than_the_first_rows_are_kept_as_such(tmp_path: Path, top: TopSpec) -> None:
    """What is no longer among the first is forgotten there."""
    cluster = OperatorCluster(tmp_path, top.output)
    for at in range(5):
        cluster.batch(Top(top), table_of([row(f"p{at}", at, k) for k in "pq"]))
    *others, first = top.layout().tables
    assert sorted((one["k"], one["product"]) for one in cluster.rows_in(first.name)) == [
        (k, f"p{at}") for k in "pq" for at in (3, 4)
    ]
    assert [len(cluster.rows_in(other.name)) for other in others] == [10] * len(others)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": 0, "by": "sold"}, "n=0"),
        ({"n": 3, "by": "sold descending"}, r"by='sold descending'.*asc or desc"),
        ({"n": 3, "by": ()}, "by names no column"),
        ({"n": 3, "by": "sold", "order_by": "at"}, r"there is no of=\.\.\."),
        ({"n": 3, "by": "sold", "of": "shop"}, "of names 'shop', a key column"),
        ({"n": 3, "by": "sold", "of": ("a", "a")}, r"of=\('a', 'a'\).*each once"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    """Before Spark is asked for anything."""
    stream = ps.types.KeyedStream(ps.Job("tops", storage=tmp_path), None, ("shop",))  # type: ignore[arg-type]
    with pytest.raises(ps.ConfigError, match=says):
        stream.top(arguments.pop("n"), **arguments, uid="best")
