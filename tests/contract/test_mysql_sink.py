"""The sinks `MySQL` and `MariaDB` on a real MariaDB: the contract of all sinks, and what they promise beyond it."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from mysql_targets import ALL, MySQLPrepared, MySQLStaged, MySQLUpsert, fresh

from penstock.errors import BadRecordError, CommitLostError, ConfigError, CorruptStateError, UnavailableError
from penstock.sinks import MariaDB, MySQL, TransactionContext
from penstock.sinks.sql.mysql.errors import REFUSED_ROWS
from penstock.sinks.sql.mysql.server import MySQLServer
from penstock.testing.sink_contract import JOB, SINK, through_json


class TestMySQLPrepared(MySQLPrepared):
    pass


class TestMySQLStaged(MySQLStaged):
    pass


class TestMySQLUpsert(MySQLUpsert):
    pass


@pytest.fixture(params=ALL, ids=lambda kind: kind.__name__)
def suite(request, mariadb_server) -> Any:
    return fresh(request.param, mariadb_server)


def written(sink: MySQL, batch: pa.RecordBatch, **context: Any) -> Any:
    """Validate, write one batch, pre-commit."""
    usual = {"job": JOB, "sink": SINK, "run": 1, "checkpoint": 1, "subtask": 0, "attempt": 0}
    sink.validate(batch.schema)
    transaction = sink.begin_transaction(TransactionContext(**{**usual, **context}))
    sink.write(transaction, batch)
    return through_json(sink.pre_commit(transaction))


def named(*rows: tuple[int | None, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": number, "name": name} for number, name in rows], schema=MySQLUpsert.schema
    )


VALUES: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "whole": (pa.int64(), "bigint", [2**63 - 1, -(2**63)]),
    "double": (pa.float64(), "double", [0.1, -1e300]),
    "exact": (pa.decimal128(30, 10), "decimal(30, 10)", [decimal.Decimal("0.0000000001"), None]),
    "yes": (pa.bool_(), "boolean", [True, None]),
    "day": (pa.date32(), "date", [dt.date(1000, 1, 1), dt.date(9999, 12, 31)]),
    "local": (
        pa.timestamp("us"),
        "datetime(6)",
        [dt.datetime.fromisoformat("2026-03-29T02:30:00.000001"), None],
    ),
    "bytes": (pa.binary(), "blob", [b"\x00\xff\n\\'\"%s", b""]),
    "words": (pa.string(), "text", ["a\"b'c\\'\n%s ? \0", ""]),
    "choice": (pa.dictionary(pa.int8(), pa.string()), "varchar(5)", ["ä€😀", None]),
}


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_values_come_back_as_they_were(transactions: str, mariadb_server) -> None:
    """Every type of column, with its extremes, NULL, empty and awkward texts, arrives unchanged; times with a zone in UTC."""
    suite = fresh(MySQLPrepared, mariadb_server)
    columns = ", ".join(f"`{name}` {declared}" for name, (_, declared, _) in VALUES.items())
    suite.execute(
        f"CREATE TABLE everything ({columns}, instant datetime(6), some json) DEFAULT CHARSET = utf8mb4"
    )
    arrays = {name: pa.array(values, kind) for name, (kind, _, values) in VALUES.items()}
    noon = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
    arrays["instant"] = pa.array([noon, None], pa.timestamp("us", "Europe/Berlin"))
    arrays["some"] = pa.array([[1, None], None], pa.list_(pa.int64()))
    sink = MariaDB(suite.server.url(suite.database), "everything", transactions=transactions)
    sink.commit(written(sink, pa.record_batch(arrays)))
    rows = suite.query("SELECT * FROM everything ORDER BY whole DESC")
    assert [row.pop("instant") for row in rows] == [noon.replace(tzinfo=None), None]
    assert [json.loads(row.pop("some") or "0") for row in rows] == [[1, None], 0]
    assert rows == [{name: values[n] for name, (_, _, values) in VALUES.items()} for n in range(2)]


KEPT: dict[str, tuple[list[Any], list[Any]]] = {
    r"enum('x','y','1','it''s','a\\b')": (["x", "1", "it's", r"a\b", None], ["2", "3", "X", "y ", ""]),
    "set('a','b','2')": (["", "a", "a,b", "2"], ["1", "b,a", "a,a", "A", "a,"]),
    "char(3)": (["", "abc", " a"], ["ab ", "abc ", "abcd"]),
    "varchar(3)": (["abc", "ab ", "€😀ä"], ["abc ", "abcd"]),
    "varchar(3) CHARACTER SET latin1": (["ä  "], ["ä   ", "€😀"]),
    "tinytext": (["x" * 254 + " "], ["x" * 255 + " ", "x" * 256]),
    "binary(2)": ([b"ab", b"\0\0"], [b"a", b"", b"abc"]),
    "varbinary(2)": ([b"", b"a", b"a "], [b"ab "]),
    "inet6": (["::1"], ["1"]),
}
"""By the type of a column: values that it keeps, and values that it would cut, bend or refuse."""


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_a_value_is_kept_or_refused(transactions: str, mariadb_server) -> None:
    """What a column would not give back as it was is refused in the task, with column and row; all else comes back."""
    suite = fresh(MySQLPrepared, mariadb_server)
    for number, (declared, (kept, refused)) in enumerate(KEPT.items()):
        suite.execute(f"CREATE TABLE t{number} (n bigint, v {declared}) DEFAULT CHARSET = utf8mb4")
        sink = MariaDB(suite.server.url(suite.database), f"t{number}", transactions=transactions)
        sink.commit(written(sink, pa.record_batch({"n": range(len(kept)), "v": kept})))
        for value in refused:
            with pytest.raises(BadRecordError, match=r"\bv\b") as error:
                written(sink, pa.record_batch({"n": [0, 1], "v": [kept[0], value]}))
            assert error.value.facts["row"] == {"n": 1, "v": value}, declared
            sink.abort(sink._writing.transaction.as_transaction())
        assert [row["v"] for row in suite.query(f"SELECT v FROM t{number} ORDER BY n")] == kept, declared
        assert suite.left_behind() == 0


def test_text_that_is_no_utf8(suite) -> None:
    """Bytes that Spark took for text are refused in the task, with the row."""
    names = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    sink = suite.sink()
    transaction = sink.begin_transaction(suite.context())
    with pytest.raises(BadRecordError, match=r"'name'.*no UTF-8.*id=2") as refused:
        sink.write(transaction, pa.record_batch({"id": [1, 2], "name": names}))
    assert refused.value.facts["row"] == {"id": 2, "name": b"\xff\xfe"}
    sink.abort(transaction)


def test_a_server_that_takes_short_statements(suite) -> None:
    """Statements fit into `max_allowed_packet` to the byte; a row that does not is refused with both sizes."""
    suite.execute("ALTER TABLE results MODIFY name text")
    sink = suite.sink()
    suite.execute("SET GLOBAL max_allowed_packet = 4096")
    try:
        transaction = sink.begin_transaction(suite.context())
    finally:
        suite.execute("SET GLOBAL max_allowed_packet = 16777216")
    sink.write(transaction, named(*((number, "€" * 100) for number in range(100))))
    with pytest.raises(
        BadRecordError, match=r"INSERT takes 4,\d\d\d bytes.*max_allowed_packet.* 4,096.*id=100"
    ):
        sink.write(transaction, named((100, "x" * 4096)))
    for longest in range(4096, 3800, -1):
        with contextlib.suppress(BadRecordError):
            sink.write(transaction, named((100, "x" * longest)))
            break
    assert longest > 3800
    sink.abort(transaction)


def test_keys_of_a_table_that_the_sink_makes(mariadb_server) -> None:
    """Keys that differ in case or in a space at the end are two keys."""
    suite = fresh(MySQLPrepared, mariadb_server)
    sink = MariaDB(suite.server.url(suite.database), "words", mode="upsert", key=["word"], create=True)
    sink.commit(written(sink, pa.record_batch({"word": ["a", "A", "a ", "ä", "a"], "n": [1, 2, 3, 4, 5]})))
    found = {row["word"]: row["n"] for row in suite.query("SELECT * FROM words")}
    assert found == {"a": 5, "A": 2, "a ": 3, "ä": 4}


def test_names_that_need_quoting(mariadb_server) -> None:
    """Reserved words, and names with spaces, quotes, percent signs, capitals and other alphabets, are taken letter by letter, in every mode."""
    suite = fresh(MySQLPrepared, mariadb_server)
    batch = pa.record_batch(
        {"a`b": [1, 1], "100%s %d ?": ["x", "y"], "select": [1.5, 2.5], "before": [1, 2], "Ключ 日本": [3, 4]}
    )
    for number, options in enumerate(({}, {"transactions": "staged"}, {"mode": "upsert", "key": ["a`b"]})):
        table = f"The `Table` %s ? 日 {number}"
        sink = MariaDB(suite.server.url(suite.database), table, create=True, **options)
        prepared = written(sink, batch)
        sink.commit(prepared)
        sink.commit(prepared)
        quoted = table.replace("`", "``")
        rows = suite.query(f"SELECT * FROM `{quoted}` ORDER BY 2")
        assert rows == (batch.to_pylist()[1:] if options.get("key") else batch.to_pylist())


def test_upsert_takes_the_last_of_a_key(mariadb_server) -> None:
    """Within a batch, over batches and over checkpoints the last row of a key counts, and none waits for another."""
    suite = fresh(MySQLUpsert, mariadb_server)
    first = written(suite.make_sink(), named((1, "a"), (2, "a"), (1, "b")), checkpoint=1)
    second = written(suite.make_sink(), named((2, "b"), (3, "a"), (3, "b")), checkpoint=2)
    suite.sink().commit_all([first, second])
    suite.sink().commit(first)
    assert {row["id"]: row["name"] for row in suite.visible_rows()} == {1: "b", 2: "b", 3: "b"}


def test_an_upsert_of_nothing_but_the_key(mariadb_server) -> None:
    """Keys that are there stay, new ones come."""
    suite = fresh(MySQLUpsert, mariadb_server)
    suite.execute("INSERT INTO results VALUES (1, 'old')")
    sink = suite.make_sink()
    sink.commit(written(sink, pa.record_batch({"id": [1, 2, 2]})))
    assert {row["id"]: row["name"] for row in suite.visible_rows()} == {1: "old", 2: None}


REFUSED = [
    ("ALTER TABLE results ADD CONSTRAINT positive CHECK (id > 0)", (-7, "x"), "positive"),
    ("ALTER TABLE results MODIFY name varchar(100) NOT NULL", (7, None), "cannot be null"),
    ("ALTER TABLE results MODIFY id smallint", (70_000, "x"), "Out of range"),
    ("ALTER TABLE results MODIFY name varchar(5)", (7, "x" * 6), "too long"),
]


@pytest.mark.parametrize(("change", "row", "said"), REFUSED, ids=["check", "null", "range", "length"])
def test_a_row_that_the_table_refuses(change: str, row: Any, said: str, suite) -> None:
    """The row and the reason are named while the job can go back, and nothing of the batch is kept."""
    suite.execute(change)
    sink = suite.sink()
    transaction = sink.begin_transaction(suite.context())
    sink.write(transaction, named((1, "ok")))
    with pytest.raises(BadRecordError, match=said) as refused:
        sink.write(transaction, named((2, "a"), (3, "c"), row, (4, "ok")))
    assert refused.value.facts["row"] == {"id": row[0], "name": row[1]}
    sink.abort(transaction)
    suite.assert_visible()
    assert suite.left_behind() == 0


def test_a_server_that_goes_while_the_row_is_looked_for(suite) -> None:
    """The row that was being tried when the connection broke is not blamed: the server is unavailable."""
    suite.execute("ALTER TABLE results ADD CONSTRAINT positive CHECK (id > 0)")
    sink = suite.sink()
    transaction = sink.begin_transaction(suite.context())
    session = sink._writing._session
    (number,) = session.execute("SELECT CONNECTION_ID()")[0]
    insert = session.notes

    def break_after_a_refusal(statement: str) -> Any:
        try:
            return insert(statement)
        except pymysql.Error as error:
            if error.args[0] in REFUSED_ROWS:
                suite.execute(f"KILL {number}")
            raise

    session.notes = break_after_a_refusal
    with pytest.raises(UnavailableError):
        sink.write(transaction, named((1, "innocent"), (-7, "refused")))
    sink.abort(transaction)
    assert suite.left_behind() == 0


def test_a_lock_of_the_whole_table(mariadb_server) -> None:
    """It is waited for no longer than for a lock of a row; the default of the server is a day or more."""
    suite = fresh(MySQLPrepared, mariadb_server)
    sink = suite.make_sink(lock_timeout_s=0.2)
    sink.validate(suite.schema)
    transaction = sink.begin_transaction(suite.context())
    assert sink._writing._session.execute("SELECT @@lock_wait_timeout") == [(1,)]
    with MySQLServer(sink.server.address).session() as other:
        other.execute("LOCK TABLES results WRITE")
        with pytest.raises(UnavailableError, match=r"Lock wait timeout.*tried again"):
            sink.write(transaction, suite.batch([1]))
    sink.abort(transaction)


def test_a_key_that_is_taken(mariadb_server) -> None:
    """Prepared, it is refused in the task with the row; staged, at commit, and committed when the table is repaired."""
    prepared, staged = fresh(MySQLPrepared, mariadb_server), fresh(MySQLStaged, mariadb_server)
    for suite in (prepared, staged):
        suite.execute("ALTER TABLE results ADD UNIQUE only_one (id)")
        suite.execute("INSERT INTO results VALUES (5, 'name 5')")
    with pytest.raises(BadRecordError, match=r"only_one.*name='name 5'"):
        prepared.begun([4, 5, 6])
    waiting = [staged.staged([1, 2], checkpoint=1), staged.staged([5, 6], checkpoint=2)]
    with pytest.raises(CommitLostError, match=r"only_one.*stay staged"):
        staged.sink().commit_all(waiting)
    staged.assert_visible(5)
    staged.execute("DELETE FROM results")
    staged.sink().commit_all(waiting)
    staged.assert_visible(1, 2, 5, 6)


FAULT = (
    "CREATE TRIGGER fault BEFORE INSERT ON results FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {}"
)


@pytest.mark.parametrize("number", [1026, 1030, 1180, 1969, 3100, 3101])
def test_a_server_in_trouble(number: int, mariadb_server) -> None:
    """A full disk, a statement that took too long, a group that refuses: a task and a commit that meet it are tried again."""
    prepared, staged = fresh(MySQLPrepared, mariadb_server), fresh(MySQLStaged, mariadb_server)
    waiting = staged.staged([1])
    for suite in (prepared, staged):
        suite.execute(FAULT.format(number))
    with pytest.raises(UnavailableError, match="tried again"):
        prepared.begun([1])
    with pytest.raises(UnavailableError, match="tried again"):
        staged.sink().commit(waiting)
    staged.execute("DROP TRIGGER fault")
    staged.sink().commit(waiting)
    staged.assert_visible(1)


def test_an_error_without_a_meaning(mariadb_server) -> None:
    """At commit, whatever the table itself does not refuse is tried again; in a task it ends the job."""
    prepared, staged = fresh(MySQLPrepared, mariadb_server), fresh(MySQLStaged, mariadb_server)
    waiting = staged.staged([1])
    for suite in (prepared, staged):
        suite.execute(FAULT.format(9999))
    with pytest.raises(ConfigError):
        prepared.begun([1])
    with pytest.raises(UnavailableError):
        staged.sink().commit(waiting)


@pytest.mark.parametrize("change", ["DROP name", "RENAME TO other", "ADD missing int NOT NULL"])
def test_a_table_that_was_changed_before_the_commit(change: str, mariadb_server) -> None:
    """Repeating the commit would not help: somebody has to repair the table, and the rows stay staged."""
    suite = fresh(MySQLStaged, mariadb_server)
    waiting = suite.staged([1])
    suite.execute(f"ALTER TABLE results {change}")
    with pytest.raises(CommitLostError, match="stay staged"):
        suite.make_sink().commit(waiting)


def test_not_a_number(suite) -> None:
    """NaN and infinity, which the server does not have, are refused with their column."""
    suite.execute("ALTER TABLE results ADD weight double")
    sink = suite.make_sink()
    with pytest.raises(BadRecordError, match=r"'weight'.*NaN or infinity"):
        written(sink, pa.record_batch({"id": [1, 2], "weight": [1.0, float("nan")]}))


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


def test_one_job_in_two_databases(mariadb_server) -> None:
    """The server has one list of prepared transactions for all databases; the same job in another one is not touched."""
    here, there = fresh(MySQLPrepared, mariadb_server), fresh(MySQLPrepared, mariadb_server)
    waiting = there.staged([1])
    assert here.unfinished() == []
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


@pytest.mark.parametrize(
    "change", [{"token": "x'; DROP"}, {"job": "a.b"}, {"run": "one"}, {"checkpoint": -5}]
)
def test_nonsense_from_a_checkpoint(change: dict[str, Any], suite) -> None:
    """A transaction that was changed in storage becomes no SQL: it is refused as corrupt."""
    nonsense = {**suite.staged([1]), **change}
    for call in (suite.sink().commit, suite.sink().abort):
        with pytest.raises(CorruptStateError):
            call(nonsense)


def test_a_check_that_needs_a_column_that_is_not_written(mariadb_server) -> None:
    """It cannot be made where rows are staged, so the commit makes it; those that can are made in the task."""
    suite = fresh(MySQLStaged, mariadb_server)
    suite.execute("ALTER TABLE results ADD least bigint DEFAULT 5, ADD CONSTRAINT enough CHECK (id >= least)")
    suite.execute("ALTER TABLE results ADD CONSTRAINT few CHECK (id < 100 AND name <> 'a''b')")
    with pytest.raises(BadRecordError, match="few"):
        suite.begun([100])
    waiting = suite.staged([1])
    with pytest.raises(CommitLostError, match=r"enough.*stay staged"):
        suite.sink().commit(waiting)
    suite.assert_visible()
