"""What only the sinks `MySQL` and `MariaDB` have: statements of limited length, numbers for errors, XA and its rights, certificates."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from sql_targets import STAGED, MySQLPrepared, MySQLStaged, MySQLUpsert, SqlTarget, each_of, fresh, written

from penstock.errors import BadRecordError, ConfigError, UnavailableError
from penstock.sinks import MariaDB
from penstock.sinks.sql.mysql_server import REFUSED_ROWS, MySQLServer, MySQLSession

suite = each_of([MySQLPrepared, MySQLStaged, MySQLUpsert])
target = each_of([MySQLPrepared])


def named(*rows: tuple[int | None, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": number, "name": name} for number, name in rows], schema=SqlTarget.schema
    )


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
        BadRecordError, match=r"INSERT has 4,\d\d\d bytes.*max_allowed_packet.* 4,096.*id=100"
    ):
        sink.write(transaction, named((100, "x" * 4096)))
    for longest in range(4096, 3800, -1):
        with contextlib.suppress(BadRecordError):
            sink.write(transaction, named((100, "x" * longest)))
            break
    assert longest > 3800
    sink.abort(transaction)


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
    sink = suite.make_sink(lock_timeout="200ms")
    sink.validate(suite.schema)
    transaction = sink.begin_transaction(suite.context())
    assert sink._writing._session.execute("SELECT @@lock_wait_timeout") == [(1,)]
    with MySQLServer(sink.server.address).session() as other:
        other.execute("LOCK TABLES results WRITE")
        with pytest.raises(UnavailableError, match=r"Lock wait timeout.*check the server"):
            sink.write(transaction, suite.batch([1]))
    sink.abort(transaction)


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
    with pytest.raises(UnavailableError, match="check the server, its locks"):
        prepared.begun([1])
    with pytest.raises(UnavailableError, match="check the server, its locks"):
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


def test_not_a_number(suite) -> None:
    """NaN and infinity, which the server does not have, are refused with their column."""
    suite.execute("ALTER TABLE results ADD weight double")
    sink = suite.make_sink()
    with pytest.raises(BadRecordError, match=r"'weight'.*neither NaN nor infinity"):
        written(sink, pa.record_batch({"id": [1, 2], "weight": [1.0, float("nan")]}))


def test_a_column_that_no_table_can_hold(target) -> None:
    """There is no span of time in these servers."""
    with pytest.raises(ConfigError, match=r"'span'.*cast or drop"):
        target.make_sink().validate(pa.schema([("id", pa.int64()), ("span", pa.duration("us"))]))


def test_a_user_who_may_not_list_prepared_transactions(target, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL 8 says 1401 to who has no XA_RECOVER_ADMIN: no failure that passes, and the message has the statement."""
    execute = MySQLSession.execute

    def as_mysql_does(session: MySQLSession, statement: str, values: Any = ()) -> Any:
        if statement == "XA RECOVER":
            raise pymysql.OperationalError(1401, "XAER_RMERR: Fatal error occurred in the transaction branch")
        return execute(session, statement, values)

    monkeypatch.setattr(MySQLSession, "execute", as_mysql_does)
    with pytest.raises(ConfigError, match=r"GRANT XA_RECOVER_ADMIN ON \*\.\* TO .*transactions='staged'"):
        target.make_sink().validate(SqlTarget.schema)
    with pytest.raises(UnavailableError):
        target.make_sink().find_transactions("job", "sink")
    staged = target.make_sink(transactions="staged")
    staged.validate(SqlTarget.schema)
    assert staged.find_transactions("job", "sink") == []


def test_a_certificate_that_is_given_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ssl_ca` is there to know the server: PyMySQL, told no more than the file, would accept any."""
    asked: dict[str, Any] = {}

    def connect(**settings: Any) -> Any:
        asked.update(settings)
        raise ConnectionError

    monkeypatch.setattr("penstock.sinks.sql.mysql_server._connection_class", lambda: connect)
    with pytest.raises(ConnectionError):
        MySQLServer("mysql://u@h/x?ssl_ca=/etc/ca.pem").connect()
    assert (asked["ssl_ca"], asked["ssl_verify_cert"]) == ("/etc/ca.pem", True)


def test_a_server_that_is_cut_off(target) -> None:
    """A network that drops everything is noticed after about a minute, not after hours."""
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    with MySQLServer(target.address()).session() as session:
        used = session._connection._sock
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [used.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [30, 10, 3, 60_000]


def test_a_user_without_any_right(target) -> None:
    """The server hides the database: the message says what to check."""
    with pytest.raises(ConfigError, match=r"Access denied.*check user, password and database"):
        MariaDB(target.add_user(), "results", **STAGED).validate(SqlTarget.schema)
