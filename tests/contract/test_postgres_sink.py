"""What only the sink `Postgres` has: COPY in two forms, domains, deferred constraints, schemas and a limit on prepared transactions."""

from __future__ import annotations

import base64
import decimal
import os
import random
import socket
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sql_targets import PostgresPrepared, SqlTarget, fresh, written
from sql_values import POSTGRES_VALUES

from penstock.errors import BadRecordError, ConfigError, UnavailableError
from penstock.sinks import Postgres
from penstock.sinks.sql.postgres_server import PostgresServer, PostgresSession
from penstock.sinks.sql.postgres_table import locked
from penstock.sinks.sql.postgres_values import binary_rows
from penstock.testing.sink_contract import through_json
from services.postgres_process import running


@pytest.fixture
def target(postgres_server) -> Any:
    return fresh(PostgresPrepared, postgres_server)


BY_TEXT = {"exact"}
"""Of the types of values, those that have no binary form here."""


def test_values_by_themselves(postgres_server) -> None:
    """Each type in a table of its own arrives unchanged, in binary form wherever there is one, also from the middle of a batch."""
    suite = fresh(PostgresPrepared, postgres_server)
    for name, (kind, declared, values) in POSTGRES_VALUES.items():
        suite.execute(f'CREATE TABLE "{name}" (value {declared})')
        sink = suite.make_sink(name)
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


def test_upsert_with_a_collation_of_its_own(postgres_server) -> None:
    """Which of the staged rows have one key is decided by the collation of the table's key, not by that of the database."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute('CREATE COLLATION "My %s Order" FROM "C"')
    suite.execute('CREATE TABLE words (word text COLLATE "My %s Order" PRIMARY KEY, note text)')
    sink = suite.make_sink("words", mode="upsert", key=["word"])
    waiting = written(sink, pa.record_batch({"word": ["a", "B", "a"], "note": ["1", "2", "3"]}))
    staged = suite.staged_in()
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
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute('CREATE TABLE "100% words" (word text, n bigint, PRIMARY KEY (word, n))')
    sink = suite.make_sink("100% words", **options)
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


def test_a_row_that_another_prepared_transaction_holds(postgres_server) -> None:
    """Two uncommitted transactions with one unique key: the second gives up after the lock time-out and says why."""
    suite = fresh(PostgresPrepared, postgres_server)
    suite.execute("ALTER TABLE results ADD UNIQUE (id)")
    first = suite.staged([1])
    sink = suite.make_sink(lock_timeout="50ms")
    sink.validate(suite.schema)
    transaction = sink.begin_transaction(suite.context(checkpoint=2))
    with pytest.raises(UnavailableError, match="lock timeout"):
        sink.write(transaction, suite.batch([1]))
    sink.abort(transaction)
    suite.sink().commit(first)
    suite.assert_visible(1)


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


def test_a_name_with_a_dot(target) -> None:
    """A name is not taken apart; the message says how a schema is given."""
    with pytest.raises(ConfigError, match=r"schema='public', table='results'"):
        target.make_sink("public.results").validate(SqlTarget.schema)
    target.make_sink(schema="public").validate(SqlTarget.schema)


def test_times_with_and_without_a_zone(target) -> None:
    """A column that would drop the zone, or guess one, is refused."""
    target.execute("CREATE TABLE times (local timestamp, instant timestamptz)")
    for name, kind in (("local", pa.timestamp("us", "UTC")), ("instant", pa.timestamp("us"))):
        with pytest.raises(ConfigError, match=f"'{name}'"):
            target.make_sink("times").validate(pa.schema([(name, kind)]))


def test_a_server_without_prepared_transactions() -> None:
    """The message names the setting, the restart and the way around, which works; a limit that is reached may pass."""
    with running(prepared=0) as server:
        target = fresh(PostgresPrepared, server)
        with pytest.raises(
            ConfigError, match=r"max_prepared_transactions = 0.*restart.*transactions='staged'"
        ):
            target.make_sink().validate(SqlTarget.schema)
        target.options = {"transactions": "staged"}
        target.sink().commit(target.staged([1]))
        target.assert_visible(1)
        server.stop()
        with (server.data / "postgresql.conf").open("a") as file:
            file.write("max_prepared_transactions = 1\n")
        server.start()
        target.options = {}
        target.staged([2])
        with pytest.raises(UnavailableError, match="max_prepared_transactions"):
            target.staged([3], checkpoint=2)
        assert target.unfinished() == [(1, 1, 0, 0)]


def test_a_server_that_is_cut_off(target) -> None:
    """A network that drops everything is noticed in about a minute, or after the wait for a lock; an address may say otherwise."""
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    address = target.address()
    for server, expected in (
        (PostgresServer(address), [30, 10, 3, 60_000]),
        (PostgresServer(psycopg.conninfo.make_conninfo(address, keepalives_idle=77)), [77, 10, 3, 60_000]),
        (PostgresServer(address, lock_timeout_s=300), [30, 10, 3, 330_000]),
    ):
        with server.session() as session, socket.socket(fileno=os.dup(session.connection.fileno())) as probe:
            assert [probe.getsockopt(socket.IPPROTO_TCP, each) for each in options] == expected


def test_a_schema_without_a_name() -> None:
    """It is refused when the sink is made, without a server."""
    with pytest.raises(ConfigError, match="schema ''"):
        Postgres("postgresql://nowhere/x", "results", schema="")
