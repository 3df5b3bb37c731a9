"""The sinks for SQL servers on real ones: the contract of all sinks, and what all of these promise beyond it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from sql_targets import (
    ALL,
    PREPARED_ONES,
    STAGED,
    STAGED_ONES,
    UPSERTS,
    MySQLPrepared,
    MySQLStaged,
    MySQLUpsert,
    PostgresPrepared,
    PostgresStaged,
    PostgresTarget,
    PostgresUpsert,
    SqlTarget,
    each_of,
    fresh,
    written,
)
from sql_values import MYSQL_KEPT, MYSQL_READS, MYSQL_VALUES, POSTGRES_KEPT, POSTGRES_VALUES

from penstock.errors import (
    BadRecordError,
    CommitLostError,
    CorruptStateError,
    InternalError,
    UnavailableError,
)
from penstock.sinks.sql import server_sink as sql_sink
from penstock.sinks.two_phase_commit import TransactionContext
from penstock.testing.sink_contract import JOB, SINK, through_json
from services.patience import tries


class TestPostgresPrepared(PostgresPrepared):
    pass


class TestPostgresStaged(PostgresStaged):
    pass


class TestPostgresUpsert(PostgresUpsert):
    pass


class TestMySQLPrepared(MySQLPrepared):
    pass


class TestMySQLStaged(MySQLStaged):
    pass


class TestMySQLUpsert(MySQLUpsert):
    pass


suite = each_of(ALL)
prepared = each_of(PREPARED_ONES)
staged = each_of(STAGED_ONES)
upsert = each_of(UPSERTS)


def named(*rows: tuple[int | None, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": number, "name": name} for number, name in rows], schema=SqlTarget.schema
    )


# ── values ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_values_come_back_as_they_were(transactions: str, prepared) -> None:
    """Every type of column, with its extremes, NULL, empty and awkward texts, arrives unchanged; times with a zone in UTC."""
    of_postgres = isinstance(prepared, PostgresTarget)
    values = POSTGRES_VALUES if of_postgres else MYSQL_VALUES
    columns = ", ".join(f"{prepared.quoted(name)} {declared}" for name, (_, declared, _) in values.items())
    prepared.execute(f"CREATE TABLE everything (n bigint, {columns}){prepared.table_options}")
    arrays = {name: pa.array(given, kind) for name, (kind, _, given) in values.items()}
    sink = prepared.make_sink("everything", transactions=transactions)
    rows = len(arrays["whole"])
    sink.commit(written(sink, pa.record_batch({"n": range(rows), **arrays})))
    expected: dict[str, list[Any]] = {name: given for name, (_, _, given) in values.items()} | (
        {} if of_postgres else MYSQL_READS
    )
    found = prepared.query("SELECT * FROM everything ORDER BY n")
    assert found == [{"n": n, **{name: given[n] for name, given in expected.items()}} for n in range(rows)]


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_one_column_of_nulls(transactions: str, prepared) -> None:
    """A row that is nothing but a NULL is a row."""
    prepared.execute("CREATE TABLE lonely (word text)")
    sink = prepared.make_sink("lonely", transactions=transactions)
    sink.commit(written(sink, pa.record_batch({"word": pa.array([None, "", None, "x"])})))
    words = [row["word"] for row in prepared.query("SELECT word FROM lonely")]
    assert sorted(words, key=repr) == ["", "x", None, None]


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_a_value_is_kept_or_refused(transactions: str, prepared) -> None:
    """What a column would not give back as it was is refused in the task, with the row; all else comes back."""
    kept_by, said, shown = MYSQL_KEPT, r"\bv\b", "v"
    if isinstance(prepared, PostgresTarget):
        kept_by, said, shown = POSTGRES_KEPT, "v=", "v::text AS v"
        prepared.execute("CREATE DOMAIN below AS varchar(3)")
        prepared.execute("CREATE DOMAIN further_below AS below")
    for number, (declared, (kept, refused)) in enumerate(kept_by.items()):
        prepared.execute(f"CREATE TABLE t{number} (n bigint, v {declared}){prepared.table_options}")
        sink = prepared.make_sink(f"t{number}", transactions=transactions)
        sink.commit(written(sink, pa.record_batch({"n": range(len(kept)), "v": kept})))
        for value in refused:
            with pytest.raises(BadRecordError, match=said) as error:
                written(sink, pa.record_batch({"n": [0, 1], "v": [kept[0], value]}))
            assert error.value.facts["row"] == {"n": 1, "v": value}, declared
            sink.abort(sink._writing.transaction.as_transaction())
        found = prepared.query(f"SELECT {shown} FROM t{number} ORDER BY n")
        assert [row["v"] for row in found] == kept, declared
    assert prepared.left_behind() == 0


def test_text_that_is_no_utf8(suite) -> None:
    """Bytes that Spark took for text are refused in the task, with the row, in whatever form the rows are sent."""
    suite.execute("ALTER TABLE results ADD exact numeric")
    names = pa.array([b"ok\n", b"\n\xff\xfe\n"]).view(pa.string())
    for also in ({}, {"exact": pa.array([1, 2], pa.decimal128(5, 0))}):
        sink = suite.make_sink()
        with pytest.raises(BadRecordError, match=r"UTF-?8.*id=2") as refused:
            written(sink, pa.record_batch({"id": [1, 2], "name": names, **also}))
        others = {name: values[1].as_py() for name, values in also.items()}
        assert refused.value.facts["row"] == {"id": 2, "name": b"\n\xff\xfe\n", **others}
        sink.abort(sink._writing.transaction.as_transaction())


def test_names_that_need_quoting(prepared) -> None:
    """Reserved words, and names with spaces, quotes, percent signs, capitals and other alphabets, are taken letter by letter, in every mode."""
    batch = pa.record_batch(
        {
            'a"b`c': [1, 1],
            "100%s %d ?": ["x", "y"],
            "select": [1.5, 2.5],
            "Ä.b": [True, False],
            "before": [1, 2],
            "Ключ 日本": [3, 4],
        }
    )
    schema = {}
    if isinstance(prepared, PostgresTarget):
        prepared.execute('CREATE SCHEMA "My %s Schema"')
        schema = {"schema": "My %s Schema"}
    where = "".join(f"{prepared.quoted(name)}." for name in schema.values())
    for number, options in enumerate(({}, STAGED, {"mode": "upsert", "key": ['a"b`c']})):
        table = f'The "Table" `{number}`.x %s ? 日'
        sink = prepared.make_sink(table, create=True, **schema, **options)
        waiting = written(sink, batch)
        sink.commit(waiting)
        sink.commit(waiting)
        rows = prepared.query(f"SELECT * FROM {where}{prepared.quoted(table)} ORDER BY 2")
        assert rows == (batch.to_pylist()[1:] if "key" in options else batch.to_pylist())


# ── upserts ────────────────────────────────────────────────────────────────────────────────────


def test_upsert_takes_the_last_of_a_key(upsert) -> None:
    """Within a batch, over batches and over checkpoints the last row of a key counts, also in one commit_all."""
    first = written(upsert.make_sink(), named((1, "a"), (2, "a"), (1, "b")), checkpoint=1)
    second = written(upsert.make_sink(), named((2, "b"), (3, "a"), (3, "b"), (3, "c")), checkpoint=2)
    upsert.sink().commit_all([first, second])
    assert {row["id"]: row["name"] for row in upsert.visible_rows()} == {1: "b", 2: "b", 3: "c"}
    upsert.sink().commit(written(upsert.make_sink(), named((3, "d")), checkpoint=3))
    upsert.sink().commit(first)
    assert {row["id"]: row["name"] for row in upsert.visible_rows()} == {1: "b", 2: "b", 3: "d"}


def test_upserts_of_one_key_do_not_wait_for_each_other(upsert) -> None:
    """The next batch writes the same key while the one before is not committed; it would wait for ever if rows were locked."""
    sink = upsert.make_sink(lock_timeout="1ms")
    waiting = [written(sink, named((1, str(checkpoint))), checkpoint=checkpoint) for checkpoint in range(5)]
    sink.commit_all(waiting)
    assert upsert.visible_rows() == [{"id": 1, "name": "4"}]


def test_upsert_keeps_columns_that_it_does_not_write(upsert) -> None:
    """A column of the table that the job does not have keeps its value."""
    upsert.execute("ALTER TABLE results ADD note text DEFAULT 'new'")
    upsert.execute("INSERT INTO results VALUES (1, 'old', 'mine')")
    upsert.sink().commit(upsert.staged([1, 2]))
    rows = sorted((row["id"], row["name"], row["note"]) for row in upsert.visible_rows())
    assert rows == [(1, "name 1", "mine"), (2, "name 2", "new")]


def test_an_upsert_of_nothing_but_the_key(upsert) -> None:
    """Keys that are there stay, new ones come."""
    upsert.execute("INSERT INTO results VALUES (1, 'old')")
    sink = upsert.make_sink()
    sink.commit(written(sink, pa.record_batch({"id": [1, 2, 2]})))
    assert {row["id"]: row["name"] for row in upsert.visible_rows()} == {1: "old", 2: None}


def test_keys_of_a_table_that_the_sink_makes(prepared) -> None:
    """Keys that differ in case or in a space at the end are two keys."""
    sink = prepared.make_sink("words", mode="upsert", key=["word"], create=True)
    sink.commit(written(sink, pa.record_batch({"word": ["a", "A", "a ", "ä", "a"], "n": [1, 2, 3, 4, 5]})))
    found = {row["word"]: row["n"] for row in prepared.query("SELECT * FROM words")}
    assert found == {"a": 5, "A": 2, "a ": 3, "ä": 4}


# ── rows that the table refuses ────────────────────────────────────────────────────────────────

POSITIVE = "ALTER TABLE results ADD CONSTRAINT positive CHECK (id > 0)"
REFUSED_BY_POSTGRES = {
    "null": ("ALTER TABLE results ALTER name SET NOT NULL", (7, None), "not-null"),
    "check": (POSITIVE, (-7, "x"), "positive"),
    "range": ("ALTER TABLE results ALTER id TYPE smallint", (70_000, "x"), "out of range"),
    "length": ("ALTER TABLE results ALTER name TYPE varchar(5)", (7, "x" * 6), "too long"),
    "zero": ("SELECT 1", (7, "a\0b"), "0x00"),
}
REFUSED_BY_MYSQL = {
    "null": ("ALTER TABLE results MODIFY name varchar(100) NOT NULL", (7, None), "cannot be null"),
    "check": (POSITIVE, (-7, "x"), "positive"),
    "range": ("ALTER TABLE results MODIFY id smallint", (70_000, "x"), "Out of range"),
    "length": ("ALTER TABLE results MODIFY name varchar(5)", (7, "x" * 6), "too long"),
}
REFUSED = [
    pytest.param(kind, *case, id=f"{kind.__name__}-{name}")
    for kind in ALL
    for name, case in (REFUSED_BY_POSTGRES if issubclass(kind, PostgresTarget) else REFUSED_BY_MYSQL).items()
]


@pytest.mark.parametrize(("kind", "change", "row", "said"), REFUSED)
def test_a_row_that_the_table_refuses(kind, change: str, row: Any, said: str, request) -> None:
    """The row and the reason are named while the job can go back, and nothing of the batch is kept."""
    suite = fresh(kind, request.getfixturevalue(kind.fixture))
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


ONLY_ONE = "ALTER TABLE results ADD CONSTRAINT only_one UNIQUE (id)"


def said_of_the_key(target: SqlTarget) -> str:
    return r"only_one.*\(id\)=\(5\)" if isinstance(target, PostgresTarget) else "'5' for key 'only_one'"


def test_a_key_that_is_taken(prepared) -> None:
    """Prepared, a row that breaks a unique constraint or a foreign key is refused in the task, with the row."""
    name = "text" if isinstance(prepared, PostgresTarget) else "varchar(100)"
    prepared.execute(f"CREATE TABLE known (name {name} PRIMARY KEY){prepared.table_options}")
    prepared.execute("INSERT INTO known VALUES ('name 4'), ('name 5'), ('name 6')")
    prepared.execute("ALTER TABLE results ADD FOREIGN KEY (name) REFERENCES known (name)")
    prepared.execute(ONLY_ONE)
    prepared.execute("INSERT INTO results VALUES (5, 'name 4')")
    with pytest.raises(BadRecordError, match=f"{said_of_the_key(prepared)}.*name='name 5'"):
        prepared.begun([4, 5, 6])
    with pytest.raises(BadRecordError, match="foreign key"):
        prepared.begun([8])


def test_staged_rows_that_the_table_refuses_at_commit(staged) -> None:
    """Nothing of the commit is kept, the rows stay staged, and when the table is repaired they are committed."""
    staged.execute(ONLY_ONE)
    staged.execute("INSERT INTO results VALUES (5, 'name 5')")
    waiting = [staged.staged([1, 2], checkpoint=1), staged.staged([5, 6], checkpoint=2)]
    with pytest.raises(CommitLostError, match=f"{said_of_the_key(staged)}.*stay staged"):
        staged.sink().commit_all(waiting)
    staged.assert_visible(5)
    assert len(staged.unfinished()) == 2
    staged.execute("DELETE FROM results")
    staged.sink().commit_all(waiting)
    staged.assert_visible(1, 2, 5, 6)


def test_a_check_that_needs_a_column_that_is_not_written(staged) -> None:
    """It cannot be made where rows are staged, so the commit makes it; those that can are made in the task."""
    staged.execute("ALTER TABLE results ADD least bigint DEFAULT 5")
    staged.execute("ALTER TABLE results ADD CONSTRAINT enough CHECK (id >= least)")
    staged.execute("ALTER TABLE results ADD CONSTRAINT few CHECK (id < 100 AND name <> 'a''b')")
    with pytest.raises(BadRecordError, match="few"):
        staged.begun([100])
    waiting = staged.staged([1])
    with pytest.raises(CommitLostError, match=r"enough.*stay staged"):
        staged.sink().commit(waiting)
    staged.assert_visible()


@pytest.mark.parametrize("change", ["DROP name", "RENAME TO other", "ADD missing int NOT NULL"])
def test_a_table_that_was_changed_before_the_commit(change: str, staged) -> None:
    """Repeating the commit would not help: somebody has to repair the table, and the rows stay staged."""
    waiting = staged.staged([1])
    staged.execute(f"ALTER TABLE results {change}")
    with pytest.raises(CommitLostError, match="stay staged"):
        staged.make_sink().commit(waiting)


# ── whose transactions ─────────────────────────────────────────────────────────────────────────


def test_two_jobs_side_by_side(suite) -> None:
    """A job that recovers aborts its own transactions; those of another job on the table are committed as if nothing was."""
    mine = suite.staged([1], job="mine")
    other = suite.staged([2], job="Mine")
    for found in suite.sink().find_transactions("mine", SINK):
        suite.sink().abort(through_json(found))
    suite.sink().commit(other)
    suite.assert_visible(2)
    with pytest.raises(CommitLostError):
        suite.sink().commit(mine)


def test_one_job_in_two_databases(prepared) -> None:
    """The same job in another database of the server is not touched."""
    there = fresh(type(prepared), prepared.server)
    waiting = there.staged([1])
    assert prepared.unfinished() == []
    there.sink().commit(waiting)
    there.assert_visible(1)


def test_names_as_long_as_they_may_be(suite) -> None:
    """Two jobs whose names differ in the hundredth letter do not meet, and their names fit the server's limits."""
    names = ["j" * 99 + end for end in "ab"]
    place = {"run": 2**31, "checkpoint": 2**40, "subtask": 99_999, "attempt": 2**40}
    waiting = [suite.staged([n], job=job, sink="s" * 100, **place) for n, job in enumerate(names)]
    for job in names:
        assert suite.unfinished(job, "s" * 100) == [tuple(place.values())]
    suite.sink().commit_all(waiting)
    suite.assert_visible(0, 1)


def test_a_transaction_outlives_a_change_of_settings(prepared) -> None:
    """What was prepared is committed by a sink that stages now, and the other way round, in the order given."""
    waiting = prepared.staged([1], checkpoint=1)
    staging = prepared.make_sink(transactions="staged")
    staged = written(staging, prepared.batch([2]), checkpoint=2)
    assert len(prepared.unfinished()) == 2
    staging.commit_all([waiting, staged])
    prepared.sink().commit_all([staged, waiting])
    prepared.assert_visible(1, 2)
    assert prepared.left_behind() == 0


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


NONSENSE: list[dict[str, Any]] = [{"token": "x'; DROP"}, {"job": "a.b"}, {"run": "one"}, {"checkpoint": -5}, {"how": 1}, {"how": "other"}]  # fmt: skip


def test_nonsense_from_a_checkpoint(suite) -> None:
    """A transaction that was changed in storage becomes no SQL: it is refused as corrupt."""
    waiting = suite.staged([1])
    for change in NONSENSE:
        for call in (suite.sink().commit, suite.sink().abort):
            with pytest.raises(CorruptStateError):
                call({**waiting, **change})


def test_staged_rows_that_somebody_deleted(staged) -> None:
    """Fewer rows than promised are not committed as if they were all."""
    waiting = staged.staged([1, 2, 3])
    staged.execute(f"DELETE FROM {staged.staged_in()} WHERE id = 2")
    with pytest.raises(CommitLostError, match=r"contract\.out\.1\.1\.0\.0.* holds 2 rows of it.* 3 rows"):
        staged.sink().commit(waiting)
    staged.assert_visible()


def test_a_table_that_was_changed_between_runs(suite) -> None:
    """Rows staged for the table as it was are committed; later ones use the new column."""
    add = "ALTER TABLE results ADD COLUMN IF NOT EXISTS extra varchar(9) DEFAULT 'none'"
    first = suite.staged([1])
    if type(suite) not in PREPARED_ONES:  # a prepared transaction holds a lock that ALTER TABLE waits for
        suite.execute(add)
    suite.sink().commit(first)
    suite.execute(add)
    sink = suite.make_sink()
    sink.commit(written(sink, pa.record_batch({"id": [2], "extra": ["e"]}), checkpoint=2))
    rows = sorted((row["id"], row["extra"]) for row in suite.visible_rows())
    assert rows == [(1, "none"), (2, "e")]


def test_nothing_is_left_after_commits(suite) -> None:
    """After a commit there is no prepared transaction and no staged row, only the proof."""
    suite.sink().commit_all([suite.staged([n], checkpoint=n) for n in range(3)])
    assert suite.left_behind() == 0
    proofs = f"SELECT count(*) AS n, sum({suite.row_total}) AS total FROM _penstock_commits"
    assert suite.query(proofs) == [{"n": 3, "total": 3}]


def test_two_databases_of_one_job(staged) -> None:
    """A new database is a new target: the proof in the old one does not count."""
    waiting = staged.staged([1])
    staged.sink().commit(waiting)
    staged.use(staged.server)
    with pytest.raises(CommitLostError, match="neither staged nor recorded"):
        staged.sink().commit(waiting)


# ── sessions ───────────────────────────────────────────────────────────────────────────────────


def test_a_begin_that_fails_leaves_no_session(prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that cannot begin on a session that was opened for it closes that session."""
    sink = prepared.make_sink()
    sink.validate(prepared.schema)
    known = set(prepared.names(prepared.sessions))
    opened: list[set[str]] = []

    def fail(*_: object) -> None:
        opened.append(set(prepared.names(prepared.sessions)) - known)
        raise UnavailableError("the server is going down")

    monkeypatch.setattr(sql_sink, "Records", fail)
    with pytest.raises(
        UnavailableError, match="going down"
    ) as kept:  # or Python would close what nobody holds
        sink.begin_transaction(TransactionContext(JOB, SINK, run=1, checkpoint=1, subtask=0, attempt=0))
    assert [len(one) for one in opened] == [1], kept
    for _ in tries(0.02):  # servers take their time
        if not opened[0] & set(prepared.names(prepared.sessions)):
            return
    pytest.fail("the session stays")
