"""State that changes its form at a start: every row of every table is what the model says, on every backend and at any parallelism."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.checkpoint.state_columns import columns_of, stored_layout
from penstock.errors import IncompatibleStateError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.aggregate.distinct import AGGREGATES
from penstock.operators.process.keyed import KeyedProcess
from penstock.operators.state.declarations import DECLARED_STATES, ValueState, state_layout
from penstock.recovery.state_match import StateMatch, match_state
from penstock.recovery.state_migration import StateMigration
from penstock.recovery.state_plan import TtlChanges, redistribute
from penstock.state import rewriting
from penstock.state.backends import backend_named
from penstock.state.backends.base import (
    VALUES,
    OnRescale,
    Parts,
    StateLayout,
    TableLayout,
    Workplace,
    with_stamps,
)
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.ddl import arrow_schema, arrow_type
from penstock.state.handle import Due, StateHandle
from penstock.state.keys import GROUP_SHIFT, KeyBatch, owners
from penstock.state.lifetimes import LONG_AGO_US, Lifetime, StateTime
from penstock.state.rewriting import conversion
from penstock.state.subtask_rows import SUBTASK
from penstock.storage import LocalStorage
from services.tiers import share

UID = "cards"
MAX_PARALLELISM = 8
BACKENDS = ["filesystem", "memory", "rocksdb"]
KEY = arrow_schema("card string, shop long")
NOW_US = 1_000
"""Of the checkpoint; stamps are numbers below 100."""
SWITCHED_ON_US = 500


@dataclass(frozen=True)
class Kind:
    """Two types of which one becomes the other, and what a number is as a value of each."""

    stored: str
    wanted: str
    before: Any
    after: Any


KINDS = [
    Kind("string", "string", lambda n: f"text {n}", lambda n: f"text {n}"),
    Kind("byte", "short", lambda n: n % 128, lambda n: n % 128),
    Kind("short", "float", lambda n: -n, lambda n: float(-n)),
    Kind("int", "long", lambda n: n, lambda n: n),
    Kind("int", "double", lambda n: 2**31 - 1 - n, lambda n: float(2**31 - 1 - n)),
    Kind("float", "double", lambda n: n + 0.5, lambda n: n + 0.5),
    Kind("decimal(6,2)", "decimal(20,2)", lambda n: Decimal(n) / 4, lambda n: Decimal(n) / 4),
    Kind("struct<a:int,b:string>", "struct<b:string,c:date,a:long>", lambda n: {"a": n or None, "b": "x"}, lambda n: {"b": "x", "c": None, "a": n or None}),
    Kind("array<struct<a:byte>>", "array<struct<a:int,z:array<int>>>", lambda n: [None, *({"a": at} for at in range(n % 4))], lambda n: [None, *({"a": at, "z": None} for at in range(n % 4))]),
    Kind("map<string,array<int>>", "map<string,array<long>>", lambda n: [("k", [n, None]), ("l", None)][: n % 3], lambda n: [("k", [n, None]), ("l", None)][: n % 3]),
    Kind("map<short,struct<v:int>>", "map<int,struct<w:string,v:long>>", lambda n: [(n, {"v": n})], lambda n: [(n, {"w": None, "v": n})]),
]  # fmt: skip


FATES = ["same", "converted", "dropped", "added", "renewed"]


@dataclass(frozen=True)
class State:
    """One state of the operator: what it was, and what becomes of it."""

    kind: Kind
    holder: str
    fate: str
    stamped: tuple[bool, bool] = (False, False)


def kinds_of_state() -> st.SearchStrategy[State]:
    return st.builds(
        State,
        st.sampled_from(KINDS),
        st.sampled_from(["value", "value", "map", "list", "set", "whole", "split"]),
        st.sampled_from(FATES),
        st.tuples(st.booleans(), st.booleans()),
    )


def lifetime(name: str, *, before: bool) -> Lifetime:
    """What was stamped up to 50 has expired; the next version would keep it for ever."""
    return Lifetime((name,), f"__touched_{name}", NOW_US - 50 if before else 1 << 50)


def layout_of(states: dict[str, State], *, before: bool) -> StateLayout:
    """What the job of one version keeps."""
    other = "added" if before else "dropped"
    there = {name: state for name, state in states.items() if state.fate != other}
    columns, lifetimes, tables = [], [], []
    for name in sorted(there):
        state, stamped = there[name], there[name].stamped[0 if before else 1]
        if state.fate == "renewed" and not before:
            ddl = "array<array<boolean>>"  # what nothing can become
        else:
            ddl = state.kind.stored if before or state.fate == "same" else state.kind.wanted
        if state.holder == "value":
            columns.append(pa.field(name, arrow_type(ddl)))
            lifetimes += [lifetime(name, before=before)] if stamped else []
            continue
        mortal = (lifetime(name, before=before),) if stamped else ()
        tables.append(_table(name, state.holder, ddl, mortal))
    value = with_stamps(pa.schema(columns), tuple(lifetimes))
    return StateLayout(KEY, value, tuple(tables), tuple(lifetimes), DECLARED_STATES)


def _table(name: str, holder: str, ddl: str, mortal: tuple[Lifetime, ...]) -> TableLayout:
    value = pa.schema([pa.field(name, arrow_type(ddl))])
    if holder in ("whole", "split"):
        identity = pa.schema([SUBTASK, (f"{name}_position", pa.int64())])
        return TableLayout(name, identity, value, on_rescale=OnRescale(holder))
    if holder == "set":
        return TableLayout(
            name, pa.schema([*KEY, (f"{name}_{ddl}", pa.int64())]), pa.schema([]), by_time=True
        )
    kind = pa.string() if holder == "map" else pa.int64()
    sub = (f"{name}_key" if holder == "map" else f"{name}_position", kind)
    return TableLayout(name, pa.schema([*KEY, sub]), with_stamps(value, mortal), lifetimes=mortal)


def sort_key(number: int) -> int:
    return ((number * 7 % MAX_PARALLELISM) << GROUP_SHIFT) | number // 2


def cells(state: State, name: str, number: int, *, before: bool) -> dict[str, Any]:
    """A value and its stamp, where there is one; the model of both forms."""
    absent = number % 5 == 0 and state.holder == "value"
    value = None if absent else state.kind.before(number)
    stamp = None if absent else number % 100
    if not before and not absent:
        value = value if state.fate == "same" else state.kind.after(number)
        stamp = stamp if state.stamped[0] else SWITCHED_ON_US
    return {name: value, f"__touched_{name}": stamp}


def has_expired(state: State, number: int) -> bool:
    """Whether it was gone when the job went on."""
    return state.stamped[0] and state.holder in ("value", "map", "list") and number % 100 <= 50


def rows_of(
    states: dict[str, State], layout: StateLayout, numbers: list[int], *, before: bool
) -> dict[str, list[dict[str, Any]]]:
    """The rows that keys have in all tables, as they were written or as they must be now."""
    kept = [fate for fate in FATES if fate != "added"] if before else ["same", "converted"]
    carried = {name: one for name, one in states.items() if one.fate in kept}
    found: dict[str, list[dict[str, Any]]] = {}
    for name, table in layout.by_name.items():
        rows = [
            {"__sort_key": sort_key(n), "card": f"card {n}", "shop": n} | row
            for n in numbers
            for row in (
                value_rows(carried, table, n, before=before)
                if name == VALUES
                else own_rows(carried.get(name), table, n, before=before)
            )
        ]
        found[name] = [{one: row.get(one) for one in numbered_schema(table).names} for row in rows]
    return found


def value_rows(
    carried: dict[str, State], table: TableLayout, number: int, *, before: bool
) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {}
    for name, state in carried.items():
        if state.holder == "value" and (before or not has_expired(state, number)):
            row |= cells(state, name, number, before=before)
    if any(row.get(name) is not None for name in table.visible.names):
        yield row


def own_rows(
    state: State | None, table: TableLayout, number: int, *, before: bool
) -> Iterator[dict[str, Any]]:
    if state is None or table.on_rescale is not OnRescale.BY_KEY:
        return
    for at in range(number % 3):
        if before or not has_expired(state, number + at):
            own = {"__order": at * 3, table.identity.names[-1]: str(at) if state.holder == "map" else at}
            yield own | cells(state, table.name, number + at, before=before)


def subtask_rows(state: State, name: str, texts: int, index: int) -> list[dict[str, Any]]:
    return [
        {"__sort_key": index << GROUP_SHIFT, "__order": at, "__subtask": index, f"{name}_position": at, name: state.kind.before(10 * index + at)}
        for at in range(texts)
    ]  # fmt: skip


@dataclass
class Site:
    """A job's storage, a checkpoint of one version of an operator, and the next version that goes on with it."""

    root: Path
    states: dict[str, State]
    numbers: list[int]
    stored: StateLayout = field(init=False)
    wanted: StateLayout = field(init=False)

    def __post_init__(self) -> None:
        self.storage = LocalStorage(self.root / "job")
        self.stored, self.wanted = (layout_of(self.states, before=before) for before in (True, False))

    def place(self, index: int, parallelism: int, stem: str) -> Workplace:
        return Workplace(
            self.storage, self.root / stem, SubtaskId(UID, index), parallelism, MAX_PARALLELISM, 5, f"{stem}-5-{index}-0",
            time=StateTime(NOW_US),
        )  # fmt: skip

    @property
    def switched_on_us(self) -> dict[str, int]:
        """Since when the new times to live hold."""
        wanted, stored = (columns_of(layout).lifetimes.keys() for layout in (self.wanted, self.stored))
        return dict.fromkeys(wanted - stored, SWITCHED_ON_US)

    def write(self, backend: str, parallelism: int) -> list[StateHandle]:
        """The checkpoint, in two batches, so that there are two files."""
        return [self._written(backend, parallelism, index) for index in range(parallelism)]

    def _written(self, backend: str, parallelism: int, index: int) -> StateHandle:
        handle: StateHandle | None = None
        middle = len(self.numbers) // 2
        for batch, numbers in enumerate((self.numbers[:middle], self.numbers[middle:])):
            place = self.place(index, parallelism, f"{batch}")
            with closing(backend_named(backend).open(place, self.stored, handle)) as state:
                for name, rows in rows_of(self.states, self.stored, numbers, before=True).items():
                    table = self.stored.by_name[name]
                    of_subtask = batch and table.on_rescale is not OnRescale.BY_KEY
                    own = subtask_rows(self.states[name], name, index + 1, index) if of_subtask else rows
                    found = pa.RecordBatch.from_pylist(own, numbered_schema(table))
                    mine = owners(found["__sort_key"].to_numpy() >> GROUP_SHIFT, parallelism) == index
                    _write(state, table, found.filter(pa.array(mine)))
                handle = state.freeze()
            for name in handle.files:
                if self.storage.size(name) is None:
                    self.storage.upload(place.local_path(name), name)
        assert handle is not None
        return msgspec.structs.replace(handle, generation=9, due=Due(event_us=index + 1))

    def changed(self) -> StateMatch:
        """As the driver decides it from the metadata, and as a task is told it."""
        allowed = {name for name, state in self.states.items() if state.fate in ("dropped", "renewed")}
        found = match_state(stored_layout(columns_of(self.stored)), self.wanted, allowed)
        found.check(UID, 5)
        copy: StateMatch = pickle.loads(pickle.dumps(found))
        assert copy == found
        return copy

    def taken_over(self, former: list[StateHandle], backend: str, parallelism: int) -> list[StateHandle]:
        handles = redistribute(
            former, uid=UID, parallelism=parallelism, version=CheckpointId(5), backend=backend
        )
        task = StateMigration(
            self.storage,
            backend_named(backend),
            self.root / "next",
            RunId(7),
            parallelism,
            MAX_PARALLELISM,
            {UID: self.wanted},
            frozenset(),
            NOW_US,
            former={UID: former} if len(former) != parallelism and self.wanted.of_subtasks else {},
            changes={UID: self.changed().change},
            anew_on_us={UID: self.switched_on_us},
        )
        return [task(handle, 0).handle for handle in handles.values()]

    def content(self, handles: list[StateHandle]) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self.wanted.by_name}
        for handle in handles:
            place = self.place(handle.subtask.index, len(handles), "read")
            place = replace(place, time=StateTime(NOW_US, self.switched_on_us))
            with closing(backend_named(handle.backend).open(place, self.wanted, handle)) as state:
                for name, table in self.wanted.by_name.items():
                    rows = pa.Table.from_batches(state.table(name).numbered(), numbered_schema(table))
                    rows.validate(full=True)
                    if table.on_rescale is OnRescale.BY_KEY:
                        groups = rows["__sort_key"].to_numpy() >> GROUP_SHIFT
                        assert (owners(groups, len(handles)) == handle.subtask.index).all()
                    found[name] += rows.to_pylist()
        return found


def _write(state: Any, table: TableLayout, batch: pa.RecordBatch) -> None:
    batch = batch.take(pa.array(np.argsort(batch["__sort_key"].to_numpy(), kind="stable")))
    orders = batch["__order"].to_numpy() if table.ordered else None
    keys = KeyBatch(batch["__sort_key"].to_numpy(), batch.select(table.identity.names), orders)
    (state if table.name == VALUES else state.table(table.name)).write(keys, batch.select(table.value.names))


@settings(
    max_examples=share(80), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    states=st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), kinds_of_state(), max_size=5),
    backends=st.tuples(st.sampled_from(BACKENDS), st.sampled_from(BACKENDS)),
    parallelisms=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    numbers=st.lists(st.integers(0, 30_000), unique=True, max_size=40),
    portion=st.sampled_from([3, 1000]),
)
def test_every_row_is_what_the_model_says(
    tmp_path_factory, states, backends, parallelisms, *, numbers, portion
) -> None:
    """Random states are kept, converted, dropped, added and begun anew, from P to Q subtasks and from one backend to another."""
    states = {
        name: replace(one, fate="same") if one.holder == "set" and one.fate == "converted" else one
        for name, one in states.items()
    }
    site = Site(tmp_path_factory.mktemp("site"), states, numbers)
    (before, after), (former, parallelism) = backends, parallelisms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "PORTION_ROWS", portion)
        handles = site.taken_over(site.write(before, former), after, parallelism)
    assert {handle.backend for handle in handles} == {after}
    assert {handle.generation >= 9 for handle in handles} == {True}
    assert {handle.due for handle in handles} == {Due(event_us=1)}
    found = site.content(handles)
    for name, rows in rows_of(states, site.wanted, numbers, before=False).items():
        table = site.wanted.by_name[name]
        if table.on_rescale is OnRescale.BY_KEY:
            wanted = pa.Table.from_pylist(rows, numbered_schema(table)).to_pylist()
            assert sorted(map(repr, found[name])) == sorted(map(repr, wanted)), name
        else:
            _check_subtask_rows(states[name], name, found[name], former, parallelism)


def _check_subtask_rows(
    state: State, name: str, found: list[dict[str, Any]], former: int, parallelism: int
) -> None:
    is_new = state.fate == "converted"
    make, kind = (state.kind.after, state.kind.wanted) if is_new else (state.kind.before, state.kind.stored)
    made = [make(10 * index + at) for index in range(former) for at in range(index + 1)]
    one = pa.array(made, arrow_type(kind)).to_pylist()
    copies = parallelism if state.holder == "whole" and former != parallelism else 1
    kept = state.fate in ("same", "converted")
    assert sorted(repr(row[name]) for row in found) == sorted(map(repr, one * copies if kept else []))


CANNOT = [
    ("long", "int"), ("long", "double"), ("int", "float"), ("double", "float"), ("int", "string"), ("string", "binary"),
    ("decimal(10,2)", "decimal(10,3)"), ("decimal(10,2)", "decimal(12,4)"), ("decimal(10,2)", "decimal(9,2)"), ("int", "decimal(20,0)"),
    ("date", "timestamp"), ("timestamp_ntz", "timestamp"), ("boolean", "int"),
    ("struct<a:int,b:int>", "struct<a:int>"), ("struct<a:int>", "struct<A:int>"), ("struct<a:long>", "struct<a:int>"),
    ("array<long>", "array<int>"), ("array<int>", "int"), ("map<string,long>", "map<string,int>"), ("map<int,int>", "map<string,int>"),
    ("struct<a:int>", "map<string,int>"),
]  # fmt: skip


@pytest.mark.parametrize("pair", CANNOT, ids=" to ".join)
def test_what_could_lose_a_value_is_no_conversion(pair: tuple[str, str]) -> None:
    """A narrower type, a field less, another name or another kind: nothing is converted by guess."""
    assert conversion(*map(arrow_type, pair)) is None


def test_a_new_field_must_be_one_that_can_be_missing() -> None:
    """What is new in a struct is null in what is stored: a field that may not be null cannot be new."""
    stored = pa.struct([("a", pa.int32())])
    assert (
        conversion(stored, pa.struct([("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)])) is None
    )
    assert conversion(stored, pa.struct([pa.field("a", pa.int32(), nullable=False)])) is None
    assert conversion(pa.struct([pa.field("a", pa.int32(), nullable=False)]), stored) is not None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.stored} to {kind.wanted}")
def test_parts_of_columns_are_converted(kind: Kind) -> None:
    """A slice of a column, with nulls, becomes what its values alone become."""
    numbers = [3, 1, None, 7, 0, 5, None, 2]
    stored = pa.array([None if n is None else kind.before(n) for n in numbers], arrow_type(kind.stored))
    wanted = pa.array([None if n is None else kind.after(n) for n in numbers], arrow_type(kind.wanted))
    how = conversion(stored.type, wanted.type)
    assert how is not None
    for first in range(len(numbers)):
        for behind in range(first, len(numbers) + 1):
            found = how(stored[first:behind])
            found.validate(full=True)
            assert found.equals(wanted[first:behind])


def layout(
    ddl: str, *tables: TableLayout, key: str = "k string", parts: Parts = DECLARED_STATES
) -> StateLayout:
    return StateLayout(arrow_schema(key), arrow_schema(ddl) if ddl else pa.schema([]), tables, parts=parts)


def table(name: str, sub: str, value: str, *, key: str = "k string") -> TableLayout:
    return TableLayout(name, arrow_schema(f"{key}, {sub}"), arrow_schema(value))


REFUSED = {
    "key": (layout("n long"), layout("n long", key="k long"), ["key: k string -> k long (rows are found by it)", "drop_state=('op',)"]),
    "narrower": (layout("n long"), layout("n int"), ["n: long -> int (its values cannot become these)", "drop_state=('op.n',)"]),
    "gone": (layout("m int, n long"), layout("n long"), ["m: int (gone)", "drop_state=('op.m',)"]),
    "several": (
        layout("m int, n long, o int"),
        layout("n string, o long, p date"),
        ["m: int (gone)", "n: long -> string (its", "o: int -> long (goes along)", "p: date (new, begins empty)", "drop_state=('op.m', 'op.n')"],
    ),
    "keys of a map": (
        layout("", table("m", "m_key int", "m long")),
        layout("", table("m", "m_key long", "m long")),
        ["m: map<int,long> -> map<long,long> (its", "drop_state=('op.m',)"],
    ),
    "a list of a map": (
        layout("", table("m", "m_key long", "m long")),
        layout("", table("m", "m_position long", "m long")),
        ["m: map<long,long> -> list<long> (its"],
    ),
    "a value to a map": (
        layout("m long"),
        layout("", table("m", "m_key long", "m long")),
        ["m: long -> map<long,long> (its"],
    ),
    "an aggregate is new": (
        layout("__n_count long", parts=AGGREGATES),
        layout("__n_count long, __mean_sum double, __mean_count long", parts=AGGREGATES),
        ["mean: sum double, count long (new, it would have nothing of what came before)", "drop_state=('op.mean',)"],
    ),
    "another aggregate": (
        layout("__n_count long", parts=AGGREGATES),
        layout("__n_count_distinct long", table("__n_distinct", "__n_distinct_0 long", "v int"), parts=AGGREGATES),
        ["n: long -> ", "drop_state=('op.n',)"],
    ),
    "inside": (
        layout("", table("windows of 1 h", "at long", "n long"), parts=Parts()),
        layout("", table("windows of 2 h", "at long", "n long"), parts=Parts()),
        ["windows of 1 h: rows (k string, at long) with (n long) (gone)", "drop_state=('op',)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_shows_the_difference(name: str) -> None:
    """State by state, in Spark's names of types, with the names that allow the loss."""
    stored, wanted, texts = REFUSED[name]
    with pytest.raises(IncompatibleStateError) as refusal:
        match_state(stored, wanted).check("op", 7)
    assert [text for text in texts if text not in str(refusal.value)] == []
    assert "operator 'op': its state in checkpoint 7 does not fit the job; nothing was changed" in str(
        refusal.value
    )


def test_an_allowed_loss_is_named_state_by_state() -> None:
    """One name allows one loss; what fits is kept although it is named: the same command again loses nothing more."""
    stored, wanted = layout("m int, n long"), layout("n string")
    with pytest.raises(IncompatibleStateError, match="n: long -> string"):
        match_state(stored, wanted, {"m"}).check("op", 7)
    match_state(stored, wanted, {"m", "n"}).check("op", 7)
    again = match_state(wanted, wanted, {"m", "n"})
    assert not again.is_other_form
    assert set(again.change.tables[VALUES].carried) == {"k", "n"}


def test_a_new_aggregate_that_is_allowed_counts_from_nought() -> None:
    """Known keys have a count of 0 and no sum, as if there had been no row."""
    stored = layout("__n_count long", parts=AGGREGATES)
    wanted = layout("__mean_sum double, __mean_count long, __n_count long", parts=AGGREGATES)
    found = match_state(stored, wanted, {"mean"})
    found.check("op", 7)
    rows = pa.RecordBatch.from_pylist(
        [{"__sort_key": 1, "k": "a", "__n_count": 5}], numbered_schema(stored.by_name[VALUES])
    )
    assert found.change.tables[VALUES].applied(rows).to_pylist() == [
        {"__sort_key": 1, "k": "a", "__mean_sum": None, "__mean_count": 0, "__n_count": 5}
    ]


def test_another_order_of_columns_is_another_form() -> None:
    """Files have their columns in an order: another one needs no word, but has to be written."""
    found = match_state(layout("m int, n long"), layout("n long, m int"))
    assert found.is_other_form
    assert found.differences == ()


def test_inside_operators_numbers_may_become_wider() -> None:
    """The rows of a window or join keep what they are; only their numbers have more room."""
    stored = layout("", table("rows", "at long", "n int, s struct<a:int>"), parts=Parts())
    wanted = layout("", table("rows", "at long", "s struct<a:int,b:int>, n long"), parts=Parts())
    match_state(stored, wanted).check("op", 7)
    more = layout("", table("rows", "at long", "n int, s struct<a:int>, m int"), parts=Parts())
    with pytest.raises(IncompatibleStateError, match=r"drop_state=\('op',\)"):
        match_state(stored, more).check("op", 7)


class Plain(KeyedProcess):
    n = ValueState("long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        return ()


class Timed(Plain):
    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Any:
        return ()


def test_timers_come_and_go_as_states_do() -> None:
    """`on_timer` may be added; where it is gone, the timers that were set have to be allowed to be lost."""
    plain, timed = (state_layout(made, arrow_schema("k string")) for made in (Plain(), Timed()))
    added = match_state(plain, timed)
    added.check("op", 7)
    assert [str(one) for one in added.differences] == ["timers: timers, clock timers (new, begins empty)"]
    with pytest.raises(
        IncompatibleStateError, match=r"timers, clock timers \(gone\)(?s:.)*drop_state=\('op.timers',\)"
    ):
        match_state(timed, plain).check("op", 7)
    match_state(timed, plain, {"timers"}).check("op", 7)


def test_timers_by_the_clock_do_not_live_by_event_time() -> None:
    """In an operator that gets timers, those by the clock count from no watermark: it may be far ahead of them, and they would stay."""
    timed = state_layout(Timed(), arrow_schema("k string"))
    switched_on = TtlChanges({"op": timed}, {"op": {}}, now_us=5, watermarks_us={"op": 1 << 60}).switched_on[
        "op"
    ]
    assert switched_on == {"__timers_at": 1 << 60, "__clock_timers_at": LONG_AGO_US}
