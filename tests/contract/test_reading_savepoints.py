"""What is in savepoints and checkpoints, and how two differ: without Spark, whichever backend and parallelism they come from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_savepoints import BACKENDS, Site, rows_of, sort_key

from penstock.checkpoint.metadata import name_of, write_metadata
from penstock.checkpoint.model import Completed
from penstock.checkpoint.state_columns import columns_of
from penstock.cli.main import main
from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import NO_CHECKPOINT
from penstock.operators.aggregate.columns import (
    AggregateColumn,
    Kind,
    Partial,
    state_schema,
    stored_aggregates,
)
from penstock.operators.join.input_rows import MATCHED, PLACE
from penstock.operators.state.timers import EVENT_TIME, timer_table
from penstock.operators.views import ROW, View, whole_keys
from penstock.ownership.claim import claim, record_descent
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.savepoint import compare as comparing
from penstock.savepoint.compare import APPEARED, CHANGED, WENT, SavepointDifference, compare
from penstock.savepoint.contents import Contents, checkpoint_contents, held_checkpoint, savepoint_contents
from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import MANIFEST, Manifest, SavedOperator, encode, read_manifest
from penstock.savepoint.stored_rows import owning
from penstock.savepoint.table_files import read_table, table_folder, write_table
from penstock.savepoint.views import stored_view, views_of
from penstock.state.backends.base import VALUES, StateLayout, TableLayout
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.ddl import arrow_schema
from penstock.state.lifetimes import Lifetime, Measure
from penstock.state.local_files import fingerprint
from penstock.storage import LocalStorage

Penstock = Callable[..., tuple[int, str, str]]


def save(root: Path, numbers: list[int], backend: str = "filesystem", parallelism: int = 2) -> Path:
    """A savepoint of a job that has the rows of some numbers."""
    site = Site(root)
    folder = root / "saved"
    create_savepoint(
        site.storage, site.checkpoint(backend, parallelism, numbers), LocalStorage(folder), token="5a"
    )
    return folder


def read(contents: Contents, name: str | None, **options: Any) -> list[dict[str, Any]]:
    operator = contents.operator("cards")
    view = operator.find(name, **options)
    return [
        row
        for part in operator.parts_of(view)
        for batch in view.rows(part.rows())
        for row in batch.to_pylist()
    ]


# ── what a user sees ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_is_read_as_a_savepoint_of_it(tmp_path: Path, backend: str) -> None:
    """Both show the same rows, without sort numbers and stamps, whichever backend wrote them."""
    site = Site(tmp_path)
    numbers = list(range(20))
    completed = site.checkpoint(backend, 3, numbers)
    create_savepoint(site.storage, completed, LocalStorage(tmp_path / "saved"), token="5a")
    saved, there = savepoint_contents(tmp_path / "saved"), checkpoint_contents(site.storage, completed)
    assert list(saved.operator("cards").views) == [ROW, "n", "seen", "shops", "timers", "rules / all"]
    for name in (None, "n", "seen", "shops", "rules / all"):
        found = read(saved, name)
        assert sorted(map(repr, found)) == sorted(map(repr, read(there, name)))
        assert not any(column.startswith("__") for row in found for column in row)
    truth = rows_of(numbers)
    assert len(read(saved, None)) == len(truth[VALUES])
    assert {row["card"] for row in read(saved, "seen")} == {f"card {n}" for n in numbers if n % 3 == 0}
    wanted = [{name: row[name] for name in ("card", "shop", "shops_key", "shops")} for row in truth["shops"]]
    assert sorted(map(repr, read(saved, "shops"))) == sorted(map(repr, wanted))
    assert saved.operator("cards").tables["shops"].rows == len(truth["shops"])
    assert there.operator("cards").tables["shops"].rows is None


def test_what_is_stored(tmp_path: Path) -> None:
    """`internal` shows the stored table, by the name of the state or of the table."""
    saved = savepoint_contents(save(tmp_path, [1, 2, 3]))
    assert list(read(saved, None, internal=True)[0]) == [
        "__sort_key",
        "card",
        "shop",
        "n",
        "seen",
        "__touched_seen",
    ]
    assert list(read(saved, "n", internal=True)[0]) == list(read(saved, VALUES, internal=True)[0])
    assert list(read(saved, "shops", internal=True)[0])[:2] == ["__sort_key", "__order"]
    with pytest.raises(ConfigError, match="no state is called 'nothing'"):
        read(saved, "nothing", internal=True)


def test_lists_are_numbered_from_0_on_across_batches() -> None:
    """Places have no gaps, also where two keys share a sort key and a list goes on in the next batch."""
    table = TableLayout("l", arrow_schema("k string, l_position long"), arrow_schema("l long"))
    layout = StateLayout(arrow_schema("k string"), pa.schema([]), (table,))
    view = views_of(columns_of(layout))["l"]
    stored = [
        (1, 10, "a"),
        (1, 11, "b"),
        (1, 20, "a"),
        (1, 21, "a"),
        (1, 22, "b"),
        (2, 5, "c"),
        (3, 7, "d"),
        (3, 9, "d"),
    ]
    rows = [
        {"__sort_key": number, "__order": place, "k": key, "l_position": place, "l": place}
        for number, place, key in stored
    ]
    schema = stored_view(columns_of(layout), "l").schema
    for size in range(1, len(rows) + 1):
        batches = [
            pa.RecordBatch.from_pylist(rows[at : at + size], schema) for at in range(0, len(rows), size)
        ]
        found = [tuple(row.values()) for batch in view.rows(batches) for row in batch.to_pylist()]
        assert found == [
            ("a", 0, 10), ("b", 0, 11), ("a", 1, 20), ("a", 2, 21), ("b", 1, 22), ("c", 0, 5), ("d", 0, 7), ("d", 1, 9),
        ]  # fmt: skip
        assert sum(len(batch) for batch in whole_keys(batches)) == len(rows)


def test_aggregates_are_known_by_their_columns() -> None:
    """An average of decimals and a sum of decimals are stored in columns of the same kinds, and told apart all the same."""
    total, count = pa.decimal128(18, 2), pa.int64()
    specs = [
        AggregateColumn(name, kind, (Partial(f"__{name}_sum", Kind.SUM, total), Partial(f"__{name}_count", Kind.COUNT, count)), output)
        for name, kind, output in (("mean", Kind.AVG, pa.decimal128(12, 6)), ("paid", Kind.SUM, total))
    ]  # fmt: skip
    found = stored_aggregates(list(state_schema(specs)))
    assert [(one.name, one.kind, one.output) for one in found] == [
        (one.name, one.kind, one.output) for one in specs
    ]
    plain = stored_aggregates([pa.field("__x_sum", pa.float64()), pa.field("__x_count", count)])
    assert [(one.kind, one.output) for one in plain] == [(Kind.AVG, pa.float64())]


# ── only some keys ─────────────────────────────────────────────────────────────────────────────────


def test_only_the_row_groups_of_a_key_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file says which sort keys each of its row groups has; only those are read in which a wanted one can be."""
    table = TableLayout("t", arrow_schema("k long"), arrow_schema("v long"), ordered=False)
    schema = pa.schema([pa.field("__sort_key", pa.int64(), nullable=False), *table.identity, *table.value])
    batches = [
        pa.RecordBatch.from_pylist([{"__sort_key": n, "k": n, "v": n} for n in range(at, at + 10)], schema)
        for at in range(0, 100, 10)
    ]
    folder = LocalStorage(tmp_path / "saved")
    file = write_table(folder, "state/x/t/0.parquet", batches, table, part=0, scratch=tmp_path)
    assert file is not None
    groups: list[Any] = []
    plain = pq.ParquetFile.iter_batches

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        groups.extend(options["row_groups"])
        return plain(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    found = list(read_table(folder, file, table, tmp_path, np.array([3, 55, 59, 1000])))
    assert groups == [0, 5]
    assert sum(map(len, found)) == 20
    assert list(read_table(folder, file, table, tmp_path, np.array([1000]))) == []
    assert sum(map(len, read_table(folder, file, table, tmp_path))) == 100


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_only_the_parts_of_a_key_are_read(tmp_path: Path, parallelism: int) -> None:
    """A key is in the part of the subtask that owns its group: reading that one finds it, whatever the table."""
    saved = savepoint_contents(save(tmp_path, list(range(20)), parallelism=parallelism))
    operator = saved.operator("cards")
    for number in range(20):
        wanted = np.array([sort_key(number)])
        view = operator.find("n")
        parts = owning(operator.parts_of(view), wanted, parallelism)
        assert len(parts) <= 1
        rows = [row for part in parts for batch in view.rows(part.rows(wanted)) for row in batch.to_pylist()]
        assert {"card": f"card {number}", "shop": number, "n": number} in rows
        assert all(sort_key(row["n"]) == wanted[0] for row in rows)


# ── two of them ────────────────────────────────────────────────────────────────────────────────────


def found(difference: SavepointDifference) -> dict[str, tuple[int, int, int]]:
    return {
        state.state: (state.counts[APPEARED], state.counts[CHANGED], state.counts[WENT])
        for state in difference.states
        if not state.is_same
    }


@pytest.mark.parametrize("other", [("rocksdb", 3), ("memory", 1), ("filesystem", 8)])
def test_the_same_state_is_the_same(tmp_path: Path, other: tuple[str, int]) -> None:
    """Another backend and parallelism changes nothing of what belongs to keys."""
    before = savepoint_contents(save(tmp_path / "a", list(range(20))))
    after = savepoint_contents(save(tmp_path / "b", list(range(20)), *other))
    assert set(found(compare(before, after))) <= {"rules / all"}  # which every subtask has for itself
    assert compare(before, before).is_same


@pytest.mark.parametrize("portion", [1_000_000, 7])
def test_what_appeared_changed_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    """Counts and examples by state, whether all rows are compared at once or in portions."""
    monkeypatch.setattr(comparing, "PORTION_ROWS", portion)
    before = savepoint_contents(save(tmp_path / "a", list(range(20))))
    root = save(tmp_path / "b", [*range(5, 20), 30, 33])
    after = savepoint_contents(_changed(root, "cards", VALUES, {"card 7": 70, "card 8": None}))
    difference = compare(before, after)
    assert not difference.is_same
    shops = sum(n % 4 for n in (30, 33)), 0, sum(n % 4 for n in range(5))
    assert found(difference) == {"n": (2, 1, 6), "seen": (2, 0, 2), "shops": shops, "timers": (2, 0, 5)}
    n = next(state for state in difference.states if state.state == "n")
    assert (n.before, n.after) == (20, 16)
    assert n.examples[CHANGED] == [{"card": "card 7", "shop": 7, "before": {"n": 7}, "after": {"n": 70}}]
    assert sorted(row["card"] for row in n.examples[APPEARED]) == ["card 30", "card 33"]
    assert len(n.examples[WENT]) == 5
    assert found(compare(after, before))["n"] == (6, 1, 2)


def _changed(folder: Path, operator: str, table: str, values: dict[str, int | None]) -> Path:
    """A savepoint in which somebody has corrected values."""
    storage = LocalStorage(folder)
    manifest = read_manifest(storage)
    files = []
    for file in manifest.operators[operator].files[table]:
        rows = pq.read_table(folder / file.path)
        new = [values.get(row["card"], row["n"]) for row in rows.to_pylist()]
        at = rows.column_names.index("n")
        (folder / file.path).unlink()  # linked with what it was made of
        pq.write_table(
            rows.set_column(at, rows.schema.field(at), pa.array(new, pa.int64())), folder / file.path
        )
        size, checksum = fingerprint(folder / file.path)
        files.append(msgspec.structs.replace(file, size=size, checksum=checksum))
    saved = manifest.operators[operator]
    saved = msgspec.structs.replace(saved, files={**saved.files, table: tuple(files)})
    storage.put(MANIFEST, encode(msgspec.structs.replace(manifest, operators={operator: saved})))
    return folder


def test_operators_and_states_of_one_side_only(tmp_path: Path) -> None:
    """What one side has not at all appeared or went; columns of other types are not compared, and said."""
    contents = savepoint_contents(save(tmp_path, [1, 2, 3]))
    nothing = replace(contents, operators={})
    difference = compare(contents, nothing)
    assert {state.state: state.counts[WENT] for state in difference.states}["n"] == 3
    assert found(compare(nothing, contents))["n"] == (3, 0, 0)
    view = contents.operator("cards").views["n"]
    wide = View(
        "shops",
        "map",
        TableLayout("shops", view.table.identity, arrow_schema("shops string")),
        view.key,
        view.identity,
        view.value,
    )
    other = contents.operator("cards")
    changed = type(other)(other.uid, other.columns, other.tables, other.size, {"shops": wide})
    refused = compare(contents, replace(contents, operators={"cards": changed}))
    (shops,) = [state for state in refused.states if state.state == "shops"]
    assert "the columns differ: " in shops.refused
    assert not refused.is_same


def lay_down(root: Path, layout: StateLayout, table: str, rows: list[dict[str, Any]]) -> Contents:
    """A savepoint of one operator `op`, with these rows as they are stored."""
    folder = LocalStorage(root)
    kind = layout.by_name[table]
    batch = pa.RecordBatch.from_pylist(rows, schema=numbered_schema(kind))
    file = write_table(
        folder, f"{table_folder('op', table)}/0.parquet", [batch], kind, part=0, scratch=root.parent
    )
    saved = SavedOperator(columns_of(layout), {table: (file,)} if file else {})
    manifest = Manifest(
        id=root.name,
        checkpoint=1,
        mode="exactly-once",
        parallelism=1,
        max_parallelism=128,
        operators={"op": saved},
    )
    folder.put(MANIFEST, encode(manifest))
    return savepoint_contents(root)


KEY = arrow_schema("k string")
MEAN = AggregateColumn(
    "mean",
    Kind.AVG,
    (Partial("__mean_sum", Kind.SUM, pa.float64()), Partial("__mean_count", Kind.COUNT, pa.int64())),
    pa.float64(),
)
SUM = AggregateColumn("rows", Kind.SUM, (Partial("__rows_sum", Kind.SUM, pa.int64()),), pa.int64())


def test_aggregates_are_compared_by_their_parts(tmp_path: Path, penstock: Penstock) -> None:
    """The same mean of one row and of a thousand is not the same state; an example shows how it is stored."""
    layout = StateLayout(KEY, state_schema([MEAN]))
    before, after = (
        lay_down(
            tmp_path / f"{n}",
            layout,
            VALUES,
            [{"__sort_key": 5, "k": "x", "__mean_sum": 2.0 * n, "__mean_count": n}],
        )
        for n in (1, 1000)
    )
    (mean,) = compare(before, after).states
    assert mean.counts == {APPEARED: 0, CHANGED: 1, WENT: 0}
    stored = [{"mean": 2.0, "stored as": {"__mean_sum": 2.0 * n, "__mean_count": n}} for n in (1, 1000)]
    assert mean.examples[CHANGED] == [{"k": "x", "before": stored[0], "after": stored[1]}]
    code, out, _ = penstock("diff", tmp_path / "1", tmp_path / "1000")
    assert code == 1
    assert 'k=x: 2.0, {"__mean_sum": 2.0, "__mean_count": 1} -> 2.0, {"__mean_sum": 2000.0' in out


def test_an_aggregate_that_gives_null_is_there(tmp_path: Path) -> None:
    """A key of which all amounts were null is a key."""
    layout = StateLayout(KEY, state_schema([SUM]))
    row = {"__sort_key": 5, "k": "x", "__rows_sum": None}
    there, nothing = (
        lay_down(tmp_path / name, layout, VALUES, some) for name, some in (("a", [row]), ("b", []))
    )
    assert found(compare(there, nothing)) == {"rows": (0, 0, 1)}
    assert found(compare(nothing, there)) == {"rows": (1, 0, 0)}
    assert compare(there, there).is_same


def test_aggregates_that_are_stored_otherwise_are_not_compared(tmp_path: Path) -> None:
    """A sum of doubles is no mean of them, though both are doubles of one name."""
    total = AggregateColumn("mean", Kind.SUM, MEAN.partials[:1], pa.float64())
    before, after = (
        lay_down(tmp_path / spec.kind.name, StateLayout(KEY, state_schema([spec])), VALUES, [])
        for spec in (MEAN, total)
    )
    (mean,) = compare(before, after).states
    assert mean.refused == (
        "the columns differ: mean is double (stored as __mean_sum double, __mean_count long) and double (stored as __mean_sum double)"
    )


def test_when_a_value_was_touched_is_not_compared(tmp_path: Path) -> None:
    """State that differs only in its stamps is the same."""
    lifetime = Lifetime(("n",), "__touched_n", 10**15, Measure.CLOCK)
    layout = StateLayout(KEY, arrow_schema("n long, __touched_n long"), lifetimes=(lifetime,))
    before, after = (
        lay_down(tmp_path / f"{at}", layout, VALUES, [{"__sort_key": 5, "k": "x", "n": 1, "__touched_n": at}])
        for at in (10**15, 2 * 10**15)
    )
    assert read_op(before) == read_op(after) == [{"k": "x", "n": 1}]
    assert compare(before, after).is_same


def test_columns_of_a_user_keep_their_names(tmp_path: Path) -> None:
    """Whoever has a column `matched`, `rows` or `at` sees it; that of Penstock is called otherwise, and both are compared."""
    values = pa.schema([("matched", pa.string()), MATCHED, ("__event_left", pa.int64())])
    table = TableLayout("rows of the left input within bounds", pa.schema([*KEY, PLACE]), values)
    layout = StateLayout(KEY, pa.schema([]), (table,))
    row = {"__sort_key": 1, "__order": 1, "k": "x", PLACE.name: 1, "matched": "no", MATCHED.name: True}
    before, user, own = (
        lay_down(tmp_path / name, layout, table.name, [{**row, "__event_left": 1, **other}])
        for name, other in (("a", {}), ("b", {"matched": "yes"}), ("c", {MATCHED.name: False}))
    )
    assert read_op(before) == [{"k": "x", "matched": "no", "penstock_matched": True}]
    assert found(compare(before, user)) == found(compare(before, own)) == {"left": (0, 1, 0)}
    layout = StateLayout(
        arrow_schema("at string"),
        pa.schema([("__penstock_rows_so_far_of_5", pa.int64()), *state_schema([SUM])]),
    )
    assert list(views_of(columns_of(layout))) == [ROW, "penstock_rows", "rows"]
    timers = StateLayout(layout.key, pa.schema([]), (timer_table(EVENT_TIME, layout.key),))
    assert views_of(columns_of(timers))["timers"].schema.names == ["at", "penstock_at"]


def read_op(contents: Contents) -> list[dict[str, Any]]:
    operator = contents.operator("op")
    view = operator.find(None)
    return [
        row
        for part in operator.parts_of(view)
        for batch in view.rows(part.rows())
        for row in batch.to_pylist()
    ]


# ── the command line ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Penstock:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return int(exit_.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def job(tmp_path: Path) -> Completed:
    """A job in storage with one completed checkpoint."""
    site = Site(tmp_path)
    record_descent(claim(site.storage, 1.0), NO_CHECKPOINT)
    completed = msgspec.structs.replace(
        site.checkpoint("filesystem", 2, list(range(20))), run=1, completed_at=1.7e9
    )
    write_metadata(site.storage, completed)
    return completed


def test_inspect_prints_what_there_is(penstock: Penstock, tmp_path: Path) -> None:
    """Operators, states with their columns, rows and sizes, positions, who made it and when."""
    folder = save(tmp_path, list(range(20)))
    code, out, _ = penstock("inspect", folder)
    assert code == 0
    assert "savepoint of job fraud at checkpoint 5, made " in out
    assert "by Penstock " in out
    assert "│ shops       │ map           │ shops_key string, shops array<long> " in out
    code, out, _ = penstock("inspect", folder, "--json")
    told = json.loads(out)
    assert (told["what"], told["job"], told["checkpoint"], told["positions"]) == (
        "savepoint",
        "fraud",
        5,
        {"clicks": 3},
    )
    assert told["operators"]["cards"]["tables"]["__values"]["rows"] == 20
    assert told["operators"]["cards"]["states"]["timers"]["kind"] == "rows"
    assert told["operators"]["cards"]["key"] == {"card": "string", "shop": "long"}


def test_inspect_shows_the_newest_checkpoint_of_a_job(
    penstock: Penstock, tmp_path: Path, job: Completed
) -> None:
    """By storage and name, or by the folder of the job; without a hold, since no row is read."""
    for arguments in ((tmp_path, "job"), (tmp_path / "job",)):
        code, out, _ = penstock("inspect", *arguments, "--json")
        told = json.loads(out)
        assert (code, told["what"], told["checkpoint"]) == (0, "checkpoint", 5)
        assert told["made_at"] == datetime.fromtimestamp(job.completed_at, UTC).isoformat(
            timespec="milliseconds"
        )
    code, out, _ = penstock("inspect", tmp_path, "job")
    assert "checkpoint 5 of job fraud, completed 2023-11-14" in out


def test_inspect_of_something_else(penstock: Penstock, tmp_path: Path) -> None:
    """A folder without a savepoint is refused with what it is not."""
    code, _, err = penstock("inspect", tmp_path)
    assert code == 2
    assert "is no savepoint" in err


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "nothing is there; check the path"),
        (["notes.txt"], "it has other files, such as notes.txt"),
        (["job.json", "runs/1.json"], "it is the storage of a job, and `penstock savepoint` makes one"),
        (["a/savepoint.json", "b/savepoint.json"], "there are savepoints in it, give one of them: a, b"),
        ([f"{n}/savepoint.json" for n in range(7)], "give one of them: 0, 1, 2, 3, 4 and 2 more"),
        (
            ["views/job.json"],
            "it has the storage of jobs in it, and `penstock savepoint` makes one of a job: views",
        ),
        (["making.json"], "was never finished: make another"),
    ],
)
def test_where_no_savepoint_is_what_is_there_is_said(tmp_path: Path, files: list[str], said: str) -> None:
    """Who gives the folder above it, or a job's, is told so."""
    storage = LocalStorage(tmp_path)
    for name in files:
        storage.put(name, b"{}")
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_manifest(storage)


def test_diff_ends_as_diff_does(penstock: Penstock, tmp_path: Path, job: Completed) -> None:
    """0 for the same, 1 for different, 2 for what could not be compared; a job's folder stands for its newest checkpoint."""
    same, other = save(tmp_path / "a", list(range(20))), save(tmp_path / "b", list(range(21)))
    code, out, _ = penstock("diff", same, tmp_path / "job")
    assert (code, out) == (0, "all state is the same\n")
    code, out, _ = penstock("diff", same, other)
    assert code == 1
    assert "+ cards n: card=card 20, shop=20, n=20" in out
    code, out, _ = penstock("diff", same, other, "--json", "--examples", "0")
    states = {state["state"]: state for state in json.loads(out)["states"]}
    assert states["n"]["appeared"] == 1
    assert states["n"]["examples"]["appeared"] == []
    path = next((other / "state/cards/values").iterdir())
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    code, out, err = penstock("diff", same, other)
    assert (code, out) == (2, "")
    assert f"values/{path.name} of the savepoint" in err
    assert not any((tmp_path / "job/holds").glob("*"))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """One that is too short or missing before a row is read, one with a wrong checksum before a row of it is given."""
    folder = save(tmp_path, list(range(20)))
    path = next((folder / "state/cards/values").iterdir())
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(CorruptStateError, match="it is missing"):
        savepoint_contents(folder)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptStateError, match="its checksum is"):
        read(savepoint_contents(folder), None)


def _with_manifest(folder: Path, **changes: Any) -> None:
    """Its operator described otherwise, with a right checksum."""
    manifest = read_manifest(LocalStorage(folder))
    saved = manifest.operators["cards"]
    described = msgspec.structs.replace(saved, **changes)
    LocalStorage(folder).put(
        MANIFEST, encode(msgspec.structs.replace(manifest, operators={"cards": described}))
    )


def _other_columns(folder: Path) -> None:
    saved = read_manifest(LocalStorage(folder)).operators["cards"]
    _with_manifest(folder, columns=msgspec.structs.replace(saved.columns, schema=b"no schema"))


def _other_kind(folder: Path) -> None:
    saved = read_manifest(LocalStorage(folder)).operators["cards"]
    tables = {
        name: msgspec.structs.replace(table, on_rescale="somehow")
        for name, table in saved.columns.tables.items()
    }
    _with_manifest(folder, columns=msgspec.structs.replace(saved.columns, tables=tables))


def _first_file(folder: Path, **changes: Any) -> None:
    saved = read_manifest(LocalStorage(folder)).operators["cards"]
    first, *others = saved.files[VALUES]
    files = {**saved.files, VALUES: (msgspec.structs.replace(first, **changes), *others)}
    _with_manifest(folder, files=files)


def _other_number_of_rows(folder: Path) -> None:
    _first_file(folder, rows=10**12)


def _text_that_is_none(folder: Path) -> None:
    """A file of the right columns, in which a text is no UTF-8."""
    path = folder / read_manifest(LocalStorage(folder)).operators["cards"].files[VALUES][0].path
    table = pq.read_table(path)
    texts = pa.array([b"\xff" * 6] * len(table), pa.binary()).view(pa.string())
    at = table.schema.get_field_index("card")
    path.unlink()
    pq.write_table(table.set_column(at, table.schema.field(at), texts), path)
    size, checksum = fingerprint(path)
    _first_file(folder, size=size, checksum=checksum)


@pytest.mark.parametrize(
    ("damage", "command", "said"),
    [
        (_other_columns, "inspect", "savepoint.json in file:.* is corrupt: .* cannot be read"),
        (_other_kind, "inspect", "savepoint.json in file:.* is corrupt: .*'somehow'"),
        (_other_columns, "diff", "savepoint.json in file:.* is corrupt"),
        (_other_number_of_rows, "diff", r"values/0-\w+.parquet of the savepoint .* is corrupt: it has .* rows, expected 10{12}"),
        (_text_that_is_none, "diff", r"values/0-\w+.parquet of the savepoint .* is corrupt: .*UTF"),
    ],
)  # fmt: skip
def test_what_no_job_writes_is_refused_in_words(
    penstock: Penstock, tmp_path: Path, damage: Callable[[Path], None], command: str, said: str
) -> None:
    """Damage that has a right checksum is said with the file, and with what to do; nothing of Arrow's own comes through."""
    good, folder = save(tmp_path / "good", list(range(20))), save(tmp_path / "bad", list(range(20)))
    damage(folder)
    code, out, err = penstock(command, folder, *([good] if command == "diff" else []))
    assert (code, out) == (2 if command == "diff" else 3, "")
    assert re.search(f"^penstock: .*{said}", err)
    assert "nothing was changed" in err
    assert "take another copy of the savepoint" in err


def test_metadata_that_no_job_writes_is_refused_in_words(
    penstock: Penstock, tmp_path: Path, job: Completed
) -> None:
    """The same of a checkpoint."""
    state = msgspec.structs.replace(job.operators["cards"], schema=b"")
    (tmp_path / "job" / name_of(job).metadata).unlink()
    write_metadata(LocalStorage(tmp_path / "job"), msgspec.structs.replace(job, operators={"cards": state}))
    code, out, err = penstock("inspect", tmp_path / "job")
    assert (code, out) == (3, "")
    assert f"{name_of(job).metadata} in file:" in err
    assert "restore an older checkpoint" in err


# ── without Penstock ───────────────────────────────────────────────────────────────────────────────

ALONE = """
import json, sys
{read}
assert "penstock" not in sys.modules
print(json.dumps(rows))
"""
READERS = {
    "duckdb": """
import duckdb
found = duckdb.sql(f"select card, n, seen.at is not null from read_parquet('{sys.argv[1]}/state/cards/values/*.parquet') order by n")
rows = [list(row) for row in found.fetchall()]
""",
    "pandas": """
import pandas
found = pandas.read_parquet(sys.argv[1] + "/state/cards/values").sort_values("n")
rows = [[row.card, row.n, row.seen is not None] for row in found.itertuples()]
""",
}


@pytest.mark.parametrize("reader", READERS)
def test_tables_can_be_read_without_penstock(tmp_path: Path, reader: str) -> None:
    """DuckDB or pandas alone reads the state of a savepoint, in a process that has not imported Penstock."""
    folder = save(tmp_path, list(range(20)))
    code = ALONE.format(read=READERS[reader])
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [[f"card {n}", n, n % 3 == 0] for n in range(20)]


def test_a_job_that_never_ran_has_no_state(tmp_path: Path) -> None:
    """A wrong name is told from a job that has no checkpoint yet, and leaves no folder behind."""
    storage = LocalStorage(tmp_path / "job")
    with pytest.raises(ConfigError, match="no job ever ran in"), held_checkpoint(storage):
        pass
    assert not storage.root.exists()
    check_job_record(storage, JobRecord("job", 128))
    with pytest.raises(ConfigError, match="has no completed checkpoint"), held_checkpoint(storage):
        pass
