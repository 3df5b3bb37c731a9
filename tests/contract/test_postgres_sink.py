"""The sink `Postgres` on a real server: the contract of all sinks, and what it promises beyond it."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import random
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_targets import ALL, PostgresPrepared, PostgresStaged, PostgresUpsert, fresh, new_database

from penstock.errors import (
    BadRecordError,
    CommitLostError,
    ConfigError,
    CorruptStateError,
    InternalError,
    UnavailableError,
)
from penstock.sinks import Postgres, TransactionContext
from penstock.sinks.sql.postgres.binary import binary_rows
from penstock.sinks.sql.postgres.server import PostgresSession
from penstock.sinks.sql.postgres.table import locked
from penstock.testing.sink_contract import JOB, SINK, through_json


class TestPostgresPrepared(PostgresPrepared):
    pass


class TestPostgresStaged(PostgresStaged):
    pass


class TestPostgresUpsert(PostgresUpsert):
    pass


@pytest.fixture(params=ALL, ids=lambda kind: kind.__name__)
def suite(request, postgres_server) -> Any:
    return fresh(request.param, postgres_server)


def written(sink: Postgres, batch: pa.RecordBatch, **context: Any) -> Any:
    """Validate, write one batch, pre-commit."""
    usual = {"job": JOB, "sink": SINK, "run": 1, "checkpoint": 1, "subtask": 0, "attempt": 0}
    sink.validate(batch.schema)
    transaction = sink.begin_transaction(TransactionContext(**{**usual, **context}))
    sink.write(transaction, batch)
    return through_json(sink.pre_commit(transaction))


# ── values ─────────────────────────────────────────────────────────────────────────────────────

UTC = dt.UTC
VALUES: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "whole": (pa.int64(), "bigint", [2**63 - 1, -(2**63), 0]),
    "small": (pa.int8(), "smallint", [127, -128, None]),
    "single": (pa.float32(), "real", [1.5, None, float("inf")]),
    "double": (pa.float64(), "double precision", [0.1, None, -1e300]),
    "exact": (pa.decimal128(38, 10), "numeric", [decimal.Decimal("0.0000000001"), None, decimal.Decimal(12)]),
    "yes": (pa.bool_(), "boolean", [True, False, None]),
    "day": (pa.date32(), "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "clock": (pa.time64("us"), "time", [dt.time(23, 59, 59, 999999), None, dt.time(0)]),
    "local": (
        pa.timestamp("us"),
        "timestamp",
        [
            dt.datetime.fromisoformat("2026-03-29T02:30:00.000001"),
            None,
            dt.datetime.fromisoformat("0001-01-01"),
        ],
    ),
    "instant": (
        pa.timestamp("us", "Europe/Berlin"),
        "timestamptz",
        [dt.datetime(2026, 7, 1, 12, tzinfo=UTC), None, dt.datetime(1969, 1, 1, tzinfo=UTC)],
    ),
    "span": (
        pa.duration("us"),
        "interval",
        [dt.timedelta(days=-3, microseconds=7), None, dt.timedelta(hours=30)],
    ),
    "bytes": (pa.binary(), "bytea", [b"\x00\xff\n\\", b"", None]),
    "words": (pa.string(), "text", ['a"b,c\n\\.\r\n\\N', "", None]),
    "choice": (pa.dictionary(pa.int8(), pa.string()), "varchar(5)", ["ä€😀", None, "NULL"]),
    "some": (pa.list_(pa.int64()), "jsonb", [[1, None], [], None]),
    "pair": (pa.struct([("a", pa.string())]), "json", [{"a": 'q"'}, {"a": None}, None]),
    "nothing": (pa.null(), "integer", [None, None, None]),
}


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_values_come_back_as_they_were(transactions: str, postgres_server) -> None:
    """Every type of column, with its extremes, NULL, empty and awkward texts, arrives unchanged."""
    suite = fresh(PostgresPrepared, postgres_server)
    columns = ", ".join(f'"{name}" {declared}' for name, (_, declared, _) in VALUES.items())
    suite.execute(f"CREATE TABLE everything ({columns})")
    sink = Postgres(suite.server.dsn(database=suite.database), "everything", transactions=transactions)
    batch = pa.record_batch({name: pa.array(values, kind) for name, (kind, _, values) in VALUES.items()})
    sink.commit(written(sink, batch))
    expected = [{name: values[n] for name, (_, _, values) in VALUES.items()} for n in range(3)]
    with suite.server.connect(suite.database) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        assert [list(row) for row in connection.execute("SELECT * FROM everything")] == [
            list(row.values()) for row in expected
        ]


BY_TEXT = {"exact"}
"""Of these types, those that have no binary form here."""


def test_values_by_themselves(postgres_server) -> None:
    """Each type in a table of its own arrives unchanged, in binary form wherever there is one, also from the middle of a batch."""
    suite = fresh(PostgresPrepared, postgres_server)
    for name, (kind, declared, values) in VALUES.items():
        suite.execute(f'CREATE TABLE "{name}" (value {declared})')
        sink = Postgres(suite.server.dsn(database=suite.database), name)
        batch = pa.record_batch({"value": pa.array([None, *values, *values, None], kind)}).slice(1, 6)
        sink.validate(batch.schema)
        written_as_text = binary_rows(batch, [sink._layout.columns[0].type]) is None
        assert written_as_text == (name in BY_TEXT), name
        sink.commit(written(sink, batch))
        with suite.server.connect(suite.database) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = [value for (value,) in connection.execute(f'SELECT value FROM "{name}"')]
        assert found == [*values, *values], name


@pytest.mark.parametrize(
    ("values", "declared"),
    [
        (pa.array([1], pa.timestamp("ns")), "timestamp"),
        (pa.array([2**40], pa.int64()), "int4"),
        (pa.array([2**63], pa.uint64()), "int8"),
        (pa.array([10_000_000], pa.date32()), "date"),
        (pa.array([5], pa.int64()), "numeric"),
        (pa.array(["6a2f41a3-c54c-fce8-32d2-0324e1c32e22"]), "uuid"),
    ],
)
def test_what_the_server_has_to_read_as_text(values: pa.Array, declared: str) -> None:
    """A value that the binary form of its column cannot hold as it is, or of a type without one, is not bent to fit."""
    assert binary_rows(pa.record_batch({"value": values}), [declared]) is None


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_one_column_of_nulls(transactions: str, postgres_server) -> None:
    """A row that is nothing but a NULL is a row."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute("CREATE TABLE lonely (word text)")
    sink = Postgres(suite.server.dsn(database=suite.database), "lonely", transactions=transactions)
    sink.commit(written(sink, pa.record_batch({"word": pa.array([None, "", None, "x"])})))
    words = [row["word"] for row in suite.query("SELECT word FROM lonely")]
    assert sorted(words, key=repr) == ["", "x", None, None]


KEPT: dict[str, tuple[list[Any], list[Any]]] = {
    "varchar(3)": (["abc", "ab ", "€😀ä", None], ["abc ", "abcd", "abcd "]),
    "below": (["abc"], ["abc "]),
    "further_below": (["abc"], ["abc "]),
    "char(3)": (["abc", " ab"], ["ab ", "abc ", "abcd"]),
    "bit(3)": (["101"], ["1", "1111"]),
    "integer[]": (["{1,2}"], ["{x}"]),
    "cidr": (["10.0.0.0/8"], ["10.0.0.1/8"]),
    "text": (["a "], ["a\0"]),
}
"""By the type of a column: values that it keeps, and values that it would cut, bend or refuse."""


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_a_value_is_kept_or_refused(transactions: str, postgres_server) -> None:
    """What a column would not give back as it was is refused in the task, with the row; all else comes back."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute("CREATE DOMAIN below AS varchar(3)")
    suite.execute("CREATE DOMAIN further_below AS below")
    for number, (declared, (kept, refused)) in enumerate(KEPT.items()):
        suite.execute(f"CREATE TABLE t{number} (n bigint, v {declared})")
        sink = Postgres(suite.server.dsn(database=suite.database), f"t{number}", transactions=transactions)
        sink.commit(written(sink, pa.record_batch({"n": range(len(kept)), "v": kept})))
        for value in refused:
            with pytest.raises(BadRecordError) as error:
                written(sink, pa.record_batch({"n": [0, 1], "v": [kept[0], value]}))
            assert error.value.facts["row"] == {"n": 1, "v": value}, declared
            sink.abort(sink._writing.transaction.as_transaction())
        assert [row["v"] for row in suite.query(f"SELECT v::text FROM t{number} ORDER BY n")] == kept, (
            declared
        )
        assert suite.left_behind() == 0


@pytest.mark.parametrize(
    "also", [{}, {"exact": pa.array([1, 2], pa.decimal128(5, 0))}], ids=["binary", "csv"]
)
def test_text_that_is_no_utf8(also: dict[str, Any], suite) -> None:
    """Bytes that Spark took for text are refused in the task, with the row."""
    suite.execute("ALTER TABLE results ADD exact numeric")
    names = pa.array([b"ok\n", b"\n\xff\xfe\n"]).view(pa.string())
    batch = pa.record_batch({"id": [1, 2], "name": names, **also})
    sink = suite.make_sink()
    with pytest.raises(BadRecordError, match=r"UTF8.*id=2") as refused:
        written(sink, batch)
    assert refused.value.facts["row"]["name"] == b"\n\xff\xfe\n"
    sink.abort(sink._writing.transaction.as_transaction())


def test_names_that_need_quoting(postgres_server) -> None:
    """Reserved words, and names with spaces, quotes, percent signs, capitals and other alphabets, are taken letter by letter, in every mode."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute('CREATE SCHEMA "My %s Schema"')
    batch = pa.record_batch(
        {
            'a"b': [1, 1],
            "100%s %d": ["x", "y"],
            "select": [1.5, 2.5],
            "Ä.b": [True, False],
            "before": [1, 2],
            "Ключ 日本": [3, 4],
        }
    )
    for options in ({}, {"transactions": "staged"}, {"mode": "upsert", "key": ['a"b']}):
        table = f'The "Table" {options}.x'
        sink = Postgres(
            suite.server.dsn(database=suite.database), table, schema="My %s Schema", create=True, **options
        )
        prepared = written(sink, batch)
        sink.commit(prepared)
        sink.commit(prepared)
        quoted = table.replace('"', '""')
        rows = suite.query(f'SELECT * FROM "My %s Schema"."{quoted}" ORDER BY 2')
        expected = batch.to_pylist()
        assert rows == (expected[1:] if "key" in options else expected)


# ── upserts ────────────────────────────────────────────────────────────────────────────────────


def named(*rows: tuple[int | None, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": number, "name": name} for number, name in rows], schema=PostgresUpsert.schema
    )


def test_upsert_takes_the_last_of_a_key(postgres_server) -> None:
    """Within a batch, over batches and over checkpoints the last row of a key counts, also in one commit_all."""
    suite = fresh(PostgresUpsert, postgres_server)
    first = written(suite.make_sink(), named((1, "a"), (2, "a"), (1, "b")), checkpoint=1)
    second = written(suite.make_sink(), named((2, "b"), (3, "a"), (3, "b"), (3, "c")), checkpoint=2)
    suite.sink().commit_all([first, second])
    assert sorted(row["name"] for row in suite.visible_rows()) == ["b", "b", "c"]
    suite.sink().commit(written(suite.make_sink(), named((3, "d")), checkpoint=3))
    suite.sink().commit(first)
    assert {row["id"]: row["name"] for row in suite.visible_rows()} == {1: "b", 2: "b", 3: "d"}


def test_upserts_of_one_key_do_not_wait_for_each_other(postgres_server) -> None:
    """The next batch writes the same key while the one before is not committed; it would wait for ever if rows were locked."""
    suite = fresh(PostgresUpsert, postgres_server)
    sink = suite.make_sink(lock_timeout_s=0.001)
    waiting = [written(sink, named((1, str(checkpoint))), checkpoint=checkpoint) for checkpoint in range(5)]
    sink.commit_all(waiting)
    assert suite.visible_rows() == [{"id": 1, "name": "4"}]


def test_upsert_keeps_columns_that_it_does_not_write(postgres_server) -> None:
    """A column of the table that the job does not have keeps its value."""
    suite = fresh(PostgresUpsert, postgres_server)
    suite.execute("ALTER TABLE results ADD note text DEFAULT 'new'")
    suite.execute("INSERT INTO results VALUES (1, 'old', 'mine')")
    suite.sink().commit(suite.staged([1, 2]))
    rows = sorted((row["id"], row["name"], row["note"]) for row in suite.visible_rows())
    assert rows == [(1, "name 1", "mine"), (2, "name 2", "new")]


def test_upsert_with_a_collation_of_its_own(postgres_server) -> None:
    """Which of the staged rows have one key is decided by the collation of the table's key, not by that of the database."""
    suite = fresh(PostgresUpsert, postgres_server)
    suite.execute('CREATE COLLATION "My %s Order" FROM "C"')
    suite.execute('CREATE TABLE words (word text COLLATE "My %s Order" PRIMARY KEY, note text)')
    sink = Postgres(suite.server.dsn(database=suite.database), "words", mode="upsert", key=["word"])
    waiting = written(sink, pa.record_batch({"word": ["a", "B", "a"], "note": ["1", "2", "3"]}))
    staged = suite.query("SELECT staged_in FROM _penstock_transactions")[0]["staged_in"]
    columns = (
        f"SELECT column_name, collation_name FROM information_schema.columns WHERE table_name = '{staged}'"
    )
    collations = {row["column_name"]: row["collation_name"] for row in suite.query(columns)}
    assert (collations["word"], collations["note"]) == ("My %s Order", None)
    sink.commit(waiting)
    assert {row["word"]: row["note"] for row in suite.query("SELECT * FROM words")} == {"a": "3", "B": "2"}


def incompressible(length: int) -> str:
    return base64.b64encode(random.Random(length).randbytes(length)).decode()[:length]


@pytest.mark.parametrize(
    "options", [{}, {"transactions": "staged"}, {"mode": "upsert", "key": ["word", "n"]}]
)
def test_values_that_are_too_long_for_an_index(options: dict[str, Any], postgres_server) -> None:
    """What the index would refuse is refused in the task, with the row; what is staged, up to the last byte, is committed."""
    suite = fresh(PostgresUpsert, postgres_server)
    suite.execute('CREATE TABLE "100% words" (word text, n bigint, PRIMARY KEY (word, n))')
    sink = Postgres(suite.server.dsn(database=suite.database), "100% words", **options)
    sink.validate(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    outcomes = []
    for length in (10_000, *range(2704, 2640, -8), 100):
        transaction = sink.begin_transaction(suite.context(checkpoint=length))
        sink.write(transaction, pa.record_batch({"word": ["first"], "n": [length]}))
        try:
            sink.write(
                transaction,
                pa.record_batch({"word": ["x" * 10_000, incompressible(length)], "n": [length, 7]}),
            )
        except BadRecordError as refused:
            outcomes.append(refused.facts["row"]["n"])
            sink.abort(transaction)
        else:
            sink.commit(through_json(sink.pre_commit(transaction)))
            outcomes.append(None)
    assert outcomes[:2] == [7, 7]
    assert outcomes[-2:] == [None, None]
    assert suite.left_behind() == 0


def test_an_upsert_of_nothing_but_the_key(postgres_server) -> None:
    """Keys that are there stay, new ones come."""
    suite = fresh(PostgresUpsert, postgres_server)
    suite.execute("INSERT INTO results VALUES (1, 'old')")
    sink = suite.make_sink()
    sink.commit(written(sink, pa.record_batch({"id": [1, 2, 2]})))
    assert sorted(row["id"] for row in suite.visible_rows()) == [1, 2]


# ── rows that the table refuses ────────────────────────────────────────────────────────────────

REFUSED = [
    ("ALTER TABLE results ALTER name SET NOT NULL", (7, None), "not-null"),
    ("ALTER TABLE results ADD CONSTRAINT positive CHECK (id > 0)", (-7, "x"), "positive"),
    ("ALTER TABLE results ALTER id TYPE smallint", (70_000, "x"), "out of range"),
    ("ALTER TABLE results ALTER name TYPE varchar(5)", (7, "x" * 6), "too long"),
    ("SELECT 1", (7, "a\0b"), "0x00"),
]


@pytest.mark.parametrize(("change", "row", "said"), REFUSED, ids=["null", "check", "range", "length", "zero"])
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_row_that_the_table_refuses(kind, change: str, row: Any, said: str, postgres_server) -> None:
    """The row and the reason are named while the job can go back, and nothing of the batch is kept."""
    suite = fresh(kind, postgres_server)
    suite.execute(change)
    sink = suite.sink()
    transaction = sink.begin_transaction(suite.context())
    sink.write(transaction, named((1, "ok")))
    with pytest.raises(BadRecordError, match=said) as refused:
        sink.write(transaction, named((2, "a\n\rb"), (3, "c\nd\ne"), row, (4, "ok")))
    assert refused.value.facts["row"] == {"id": row[0], "name": row[1]}
    sink.abort(transaction)
    suite.assert_visible()
    assert suite.left_behind() == 0


def test_a_key_that_is_taken(postgres_server) -> None:
    """Prepared, a row that breaks a unique constraint or a foreign key is refused in the task, with the row."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute("ALTER TABLE results ADD CONSTRAINT only_one UNIQUE (id)")
    suite.execute("INSERT INTO results VALUES (5, 'first')")
    with pytest.raises(BadRecordError, match=r"only_one.*\(id\)=\(5\).*name='name 5'"):
        suite.begun([4, 5, 6])
    suite.execute("CREATE TABLE known (name text PRIMARY KEY)")
    suite.execute("ALTER TABLE results ADD FOREIGN KEY (name) REFERENCES known NOT VALID")
    with pytest.raises(BadRecordError, match="foreign key"):
        suite.begun([8])


GUARD = """CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN



    IF NEW.id = 7 THEN
        RAISE EXCEPTION 'seven is not welcome';
    END IF;
    RETURN NEW;
END $$"""


@pytest.mark.parametrize(
    ("when", "row"), [("BEFORE", {"id": 7, "name": "name 7"}), ("AFTER", None)], ids=["before", "after"]
)
@pytest.mark.parametrize("size", [3, 30])
def test_a_row_that_a_trigger_refuses(when: str, row: Any, size: int, postgres_server) -> None:
    """The line of COPY names the row, not the line of the trigger's function; without one no row is named."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute(GUARD)
    suite.execute(f"CREATE TRIGGER t {when} INSERT ON results FOR EACH ROW EXECUTE FUNCTION guard()")
    with pytest.raises(BadRecordError, match="seven is not welcome") as refused:
        suite.begun([8, 7, *range(9, 7 + size)])
    assert refused.value.facts["row"] == row


def test_a_constraint_that_is_checked_late(postgres_server) -> None:
    """A deferred constraint speaks in pre_commit, and nothing is left."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute("ALTER TABLE results ADD CONSTRAINT late UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(BadRecordError, match=r"late.*\(id\)=\(1\)"):
        suite.staged([1, 1])
    assert suite.left_behind() == 0


def test_staged_rows_that_the_table_refuses_at_commit(postgres_server) -> None:
    """Nothing of the commit is kept, the rows stay staged, and when the table is repaired they are committed."""
    suite = fresh(PostgresStaged, postgres_server)
    suite.execute("ALTER TABLE results ADD CONSTRAINT only_one UNIQUE (id)")
    suite.execute("INSERT INTO results VALUES (5, 'name 5')")
    waiting = [suite.staged([1, 2], checkpoint=1), suite.staged([5, 6], checkpoint=2)]
    with pytest.raises(CommitLostError, match=r"only_one.*\(id\)=\(5\).*stay staged"):
        suite.sink().commit_all(waiting)
    suite.assert_visible(5)
    assert len(suite.unfinished()) == 2
    suite.execute("DELETE FROM results")
    suite.sink().commit_all(waiting)
    suite.assert_visible(1, 2, 5, 6)


def test_a_row_that_another_prepared_transaction_holds(postgres_server) -> None:
    """Two uncommitted transactions with one unique key: the second gives up after the lock time-out and says why."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute("ALTER TABLE results ADD UNIQUE (id)")
    first = suite.staged([1])
    sink = suite.make_sink(lock_timeout_s=0.05)
    sink.validate(suite.schema)
    transaction = sink.begin_transaction(suite.context(checkpoint=2))
    with pytest.raises(UnavailableError, match="lock timeout"):
        sink.write(transaction, suite.batch([1]))
    sink.abort(transaction)
    suite.sink().commit(first)
    suite.assert_visible(1)


# ── whose transactions ─────────────────────────────────────────────────────────────────────────


def test_two_jobs_side_by_side(suite) -> None:
    """A job that recovers aborts its own transactions; those of another job on the table are committed as if nothing was."""
    mine = suite.staged([1], job="mine")
    other = suite.staged([2], job="other")
    for found in suite.sink().find_transactions("mine", SINK):
        suite.sink().abort(through_json(found))
    suite.sink().commit(other)
    suite.assert_visible(2)
    with pytest.raises(CommitLostError):
        suite.sink().commit(mine)


def test_names_as_long_as_they_may_be(suite) -> None:
    """Two jobs whose names differ in the hundredth letter do not meet, and their names fit the server's limits."""
    names = ["j" * 99 + end for end in "ab"]
    place = {"run": 2**31, "checkpoint": 2**40, "subtask": 99_999, "attempt": 2**40}
    waiting = [suite.staged([n], job=job, sink="s" * 100, **place) for n, job in enumerate(names)]
    for job in names:
        assert suite.unfinished(job, "s" * 100) == [tuple(place.values())]
    suite.sink().commit_all(waiting)
    suite.assert_visible(0, 1)


def test_transactions_of_other_databases_and_of_others(postgres_server) -> None:
    """What is prepared in another database, or by somebody else under a similar name, is neither listed nor touched."""
    here, there = fresh(PostgresPrepared, postgres_server), fresh(PostgresPrepared, postgres_server)
    there.staged([1])
    prepared = here.staged([2])
    gid = here.query("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")[0]["gid"]
    for name in (f"{gid}x", gid.rpartition(".")[0] + ".nonsense", "it''s mine"):
        here.execute("SELECT 1")
        with here.server.connect(here.database) as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO results VALUES (99, 'theirs')")
            connection.execute(f"PREPARE TRANSACTION '{name}'")
    assert here.unfinished() == [(1, 1, 0, 0)]
    here.sink().commit(prepared)
    here.assert_visible(2)
    assert here.left_behind() == 3
    assert there.left_behind() == 1


def test_a_transaction_outlives_a_change_of_settings(postgres_server) -> None:
    """What was prepared is committed by a sink that stages now, and the other way round, in the order given."""
    suite = fresh(PostgresPrepared, postgres_server)
    prepared = suite.staged([1], checkpoint=1)
    staging = suite.make_sink(transactions="staged")
    staged = written(staging, suite.batch([2]), checkpoint=2)
    assert len(suite.unfinished()) == 2
    staging.commit_all([prepared, staged])
    suite.sink().commit_all([staged, prepared])
    suite.assert_visible(1, 2)
    assert suite.left_behind() == 0


def test_zombie_cannot_pre_commit_what_was_aborted(suite) -> None:
    """An attempt that goes on after the driver has aborted it has lost its session, and leaves nothing."""
    zombie = suite.sink()
    transaction = zombie.begin_transaction(suite.context())
    zombie.write(transaction, suite.batch([1]))
    suite.sink().abort(through_json(transaction))
    with pytest.raises(UnavailableError):
        zombie.pre_commit(transaction)
    zombie.abort(transaction)
    assert suite.left_behind() == 0
    suite.assert_visible()


def test_write_to_a_transaction_of_somebody_else(suite) -> None:
    """An instance writes only to what it has begun."""
    with pytest.raises(InternalError, match="did not begin"):
        suite.sink().write(suite.staged([1]), suite.batch([2]))


@pytest.mark.parametrize(
    "change", [{"token": "x'; DROP"}, {"job": "a.b"}, {"run": "one"}, {"checkpoint": -5}, {"how": 1}]
)
def test_nonsense_from_a_checkpoint(change: dict[str, Any], suite) -> None:
    """A transaction that was changed in storage becomes no SQL: it is refused as corrupt."""
    nonsense = {**suite.staged([1]), **change}
    for call in (suite.sink().commit, suite.sink().abort):
        with pytest.raises(CorruptStateError):
            call(nonsense)


def test_staged_rows_that_somebody_deleted(postgres_server) -> None:
    """Fewer rows than promised are not committed as if they were all."""
    suite = fresh(PostgresStaged, postgres_server)
    prepared = suite.staged([1, 2, 3])
    table = suite.query("SELECT staged_in FROM _penstock_transactions")[0]["staged_in"]
    suite.execute(f"DELETE FROM {table} WHERE id = 2")
    with pytest.raises(
        CommitLostError, match=r"contract\.out\.1\.1\.0\.0.*2 of its rows are staged.* 3 rows"
    ):
        suite.sink().commit(prepared)
    suite.assert_visible()


def test_a_table_that_was_changed_between_runs(suite) -> None:
    """Rows staged for the table as it was are committed; later ones use the new column."""
    first = suite.staged([1])
    if not isinstance(
        suite, PostgresPrepared
    ):  # a prepared transaction holds a lock that ALTER TABLE waits for
        suite.execute("ALTER TABLE results ADD extra text DEFAULT 'none'")
    suite.sink().commit(first)
    suite.execute("ALTER TABLE results ADD IF NOT EXISTS extra text DEFAULT 'none'")
    sink = suite.make_sink()
    sink.commit(written(sink, pa.record_batch({"id": [2], "extra": ["e"]}), checkpoint=2))
    rows = sorted((row["id"], row["extra"]) for row in suite.visible_rows())
    assert rows == [(1, "none"), (2, "e")]


@pytest.mark.parametrize(("kind", "value"), [("numeric", decimal.Decimal(5)), ("integer", 5)])
def test_a_type_that_is_changed_while_the_job_runs(kind: str, value: Any, postgres_server) -> None:
    """The next batch is written for the type that the column has now, not in the binary form of the old one."""
    suite = fresh(PostgresPrepared, postgres_server)
    sink = suite.sink()
    suite.execute(f"ALTER TABLE results ALTER id TYPE {kind}")
    transaction = sink.begin_transaction(suite.context())
    sink.write(transaction, suite.batch([5]))
    sink.commit(through_json(sink.pre_commit(transaction)))
    assert suite.visible_rows() == [{"id": value, "name": "name 5"}]


@pytest.mark.parametrize("change", ["ALTER id TYPE double precision", "DROP id", "ALTER id TYPE text"])
def test_a_type_that_no_longer_fits(change: str, postgres_server) -> None:
    """A column that is changed while the job runs to one that could not hold the values unchanged is refused by name."""
    suite = fresh(PostgresPrepared, postgres_server)
    sink = suite.sink()
    suite.execute(f"ALTER TABLE results {change}")
    transaction = sink.begin_transaction(suite.context())
    with pytest.raises(ConfigError, match="'id'"):
        sink.write(transaction, suite.batch([5]))
    sink.abort(transaction)
    assert suite.left_behind() == 0


def test_no_type_is_changed_once_it_was_looked_at(postgres_server) -> None:
    """From the look at the columns to the end of the transaction ALTER TABLE waits."""
    suite = fresh(PostgresPrepared, postgres_server)
    layout = suite.sink()._layout
    with suite.server.connect(suite.database) as writer, suite.server.connect(suite.database) as other:
        writer.execute("BEGIN")
        assert locked(layout, PostgresSession(writer), suite.schema) is layout
        other.execute("SET lock_timeout = '20ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("ALTER TABLE results ALTER id TYPE double precision")
        other.rollback()


def test_nothing_is_left_after_commits(suite) -> None:
    """After a commit there is no prepared transaction and no staged row, only the proof."""
    suite.sink().commit_all([suite.staged([n], checkpoint=n) for n in range(3)])
    assert suite.left_behind() == 0
    assert suite.query("SELECT count(*), sum(rows) FROM _penstock_commits") == [{"count": 3, "sum": 3}]


def test_two_databases_of_one_job(postgres_server) -> None:
    """A new database is a new target: the proof in the old one does not count."""
    suite = fresh(PostgresStaged, postgres_server)
    prepared = suite.staged([1])
    suite.sink().commit(prepared)
    suite.database = new_database(postgres_server)
    suite.execute(suite.create_table)
    with pytest.raises(CommitLostError, match="neither staged nor recorded"):
        suite.sink().commit(prepared)
