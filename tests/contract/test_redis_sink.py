"""`sinks.Redis` on a real server: the contract where it applies, values, repetition, the step back, a server that dies."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from test_sink_crashes import CRASHES

from penstock.config import Mode
from penstock.errors import (
    BadRecordError,
    CommitLostError,
    ConfigError,
    CorruptStateError,
    FencedError,
    InternalError,
    UnavailableError,
)
from penstock.guarantee import SinkFacts, derive
from penstock.sinks import Delivery, Redis, TransactionContext
from penstock.sinks.redis import RedisWriter
from penstock.testing.sink_contract import SinkContract
from services.redis_process import PASSWORD, Server

CONTEXT = TransactionContext(job="contract", sink="cache", run=1, checkpoint=1, subtask=0, attempt=0)
SCHEMA = pa.schema([("app", pa.string()), ("n", pa.int64())])


@pytest.fixture
def server(redis_server: Server) -> Server:
    with redis_server.client() as client:
        client.flushall()
    return redis_server


class Staged(SinkContract):
    """Redis behind a staging folder is held to the contract of all sinks."""

    def make_sink(self) -> Redis:
        return Redis(self.server.url, key="row:{id}", visible="with the checkpoint", staging=self.staging)

    def visible_rows(self) -> list[dict[str, Any]]:
        return [
            {"id": int(key.removeprefix("row:")), **fields} for key, fields in self.server.hashes().items()
        ]


class TestRedisWithTheCheckpoint(Staged):
    @pytest.fixture(autouse=True)
    def target(self, server: Server, tmp_path: Path) -> None:
        self.server, self.staging = server, tmp_path / "staging"


def batch(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def task(sink: Redis, *batches: pa.RecordBatch) -> Any:
    """One task, on an instance as a task gets it."""
    copy = pickle.loads(pickle.dumps(sink))
    transaction = copy.begin_transaction(CONTEXT)
    for one in batches:
        copy.write(transaction, one)
    return copy.pre_commit(transaction)


def write(sink: Redis, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> None:
    sink.validate(schema)
    task(sink, batch(rows, schema))


def test_the_same_rows_twice_are_no_harm(server: Server) -> None:
    """Values are there when the task ends; written again, aborted or committed, they stay as they are."""
    sink = Redis(server.url, key="views:{app}")
    for end in (sink.commit, sink.abort):
        rows = [{"app": "a", "n": 1}, {"app": "b", "n": 2}, {"app": "a", "n": 3}]
        prepared = task(sink, batch(rows[:1]), batch([]), batch(rows[1:]))
        assert server.hashes() == {"views:a": {"n": "3"}, "views:b": {"n": "2"}}
        end(prepared)
    assert server.hashes() == {"views:a": {"n": "3"}, "views:b": {"n": "2"}}
    assert list(sink.find_transactions("contract", "cache")) == []


def counts(server: Server, sink: Redis, *batches: dict[str, int]) -> list[str]:
    """What a reader sees of the key after each batch of a job that counts."""
    seen = []
    for rows in batches:
        sink.commit(task(sink, batch([{"app": app, "n": n} for app, n in rows.items()])))
        seen.append(server.texts()["views:a"])
    return seen


def test_the_step_back_that_a_reader_may_see(server: Server) -> None:
    """At once: after a recovery with smaller batches a reader sees 30, then 20 again, then 30, and the end is right."""
    sink = Redis(server.url, key="views:{app}", value="n")
    before = counts(server, sink, {"a": 10}, {"a": 30})  # the checkpoint holds 10; the job fails here
    after = counts(server, sink, {"a": 20}, {"a": 30})  # it goes back to 10, and reads fewer rows a batch
    assert [*before, *after] == ["10", "30", "20", "30"]


def test_with_the_checkpoint_there_is_no_step_back(server: Server, tmp_path: Path) -> None:
    """The same story with a staging folder: 30 is not seen until a checkpoint that holds it is complete."""
    sink = Redis(server.url, key="views:{app}", value="n", visible="with the checkpoint", staging=tmp_path)
    seen = counts(server, sink, {"a": 10})
    lost = task(sink, batch([{"app": "a", "n": 30}]))
    seen.append(server.texts()["views:a"])
    sink.abort(lost)
    seen += counts(server, sink, {"a": 20}, {"a": 30})
    assert seen == ["10", "10", "20", "30"]


def test_a_key_that_only_the_failed_attempt_wrote_stays(server: Server) -> None:
    """At once cannot take back a key that the second attempt does not write: so says the page, and so does guarantee()."""
    sink = Redis(server.url, key="views:{app}", value="n")
    sink.abort(task(sink, batch([{"app": "ghost", "n": 1}])))
    assert server.texts() == {"views:ghost": "1"}
    assert "a key that only the failed attempt wrote stays" in sink.explanation


def test_a_crash_anywhere_in_a_commit_shows_no_older_value(server: Server, tmp_path: Path) -> None:
    """Wherever the driver stops in three commits, a reader sees values grow, and the next commit_all ends with the last."""
    for changes in range(100):
        suite = Staged()
        suite.server, suite.staging = server, tmp_path / str(changes)
        suite.schema = SCHEMA
        with server.client() as client:
            client.flushall()
        sink = Redis(server.url, key="{app}", value="n", visible="with the checkpoint", staging=suite.staging)
        suite.make_sink = lambda sink=sink: sink
        suite.row = lambda number: {"app": "a", "n": number}
        staged = [suite.staged([c], checkpoint=c) for c in (1, 2, 3)]
        stopped = CRASHES.run(lambda: suite.sink().commit_all(staged), changes=changes)  # noqa: B023 - called at once
        seen = int(server.texts().get("a", 0))
        for prepared in staged:
            suite.sink().commit(prepared)
            now = int(server.texts()["a"])
            assert now >= seen, f"a reader saw {seen} and then {now}"
            seen = now
        assert seen == 3
        assert suite.unfinished() == []
        if not stopped:
            return
    raise AssertionError("the commit never got through")


def sleeping(sink: Redis, n: int, /, **origin: Any) -> tuple[Redis, Any]:
    """A task that has its rows and has not written them yet, and its transaction."""
    copy = pickle.loads(pickle.dumps(sink))
    transaction = copy.begin_transaction(msgspec.structs.replace(CONTEXT, **origin))
    copy.write(transaction, batch([{"app": "a", "n": n}]))
    return copy, transaction


@pytest.mark.parametrize(
    "older", [{"run": 1, "checkpoint": 9}, {"run": 2, "checkpoint": 4}], ids=["run", "batch"]
)
@pytest.mark.parametrize("form", ["hash", "text"])
def test_a_task_that_wakes_up_late_puts_no_old_value_back(
    form: str, older: dict[str, int], server: Server
) -> None:
    """What is older than what was written, by its run or by its batch, is refused; another task of the newest batch is not."""
    sink = Redis(server.url, key="views:{app}", value="n" if form == "text" else None)
    found = {"text": lambda: server.texts()["views:a"], "hash": lambda: server.hashes()["views:a"]["n"]}[form]
    zombie, old = sleeping(sink, 1, **older)
    for n in (2, 3):
        newest, transaction = sleeping(sink, n, run=2, checkpoint=5, subtask=n)
        newest.pre_commit(transaction)
    with pytest.raises(FencedError, match=r"run 2, batch 5.*delete the keys '_penstock:contract:cache'"):
        zombie.pre_commit(old)
    assert found() == "3"
    assert "until it is next written" not in sink.explanation


def test_a_sink_with_a_new_uid_is_fenced_against_the_old_one(server: Server) -> None:
    """A task of an older run is refused also where the sink has another uid now; two sinks of one run write whatever they like."""
    sink = Redis(server.url, key="views:{app}", value="n")
    zombie, old = sleeping(sink, 1, checkpoint=9)
    newest, transaction = sleeping(sink, 2, run=2, checkpoint=5, sink="views")
    newest.pre_commit(transaction)
    with pytest.raises(
        FencedError, match=r"run 2 of the job has already written, and this is run 1, batch 9"
    ):
        zombie.pre_commit(old)
    assert server.texts() == {"views:a": "2"}
    other, slower = sleeping(sink, 3, run=2, checkpoint=4, sink="other")
    other.pre_commit(slower)
    assert server.texts() == {"views:a": "3"}


def test_a_promise_of_an_older_run_is_kept_beside_a_sink_that_writes_at_once(
    server: Server, tmp_path: Path
) -> None:
    """A run that died after its tasks wrote at once has left the promise of the run before: the next one commits it once more."""
    at_once = Redis(server.url, key="seen:{app}", value="n")
    staged = Redis(server.url, key="views:{app}", value="n", visible="with the checkpoint", staging=tmp_path)
    copy, transaction = sleeping(staged, 1, run=1, checkpoint=9, sink="staged")
    promised = copy.pre_commit(transaction)
    staged.commit(promised)
    newer, transaction = sleeping(at_once, 2, run=2, checkpoint=10)
    newer.pre_commit(transaction)
    staged.commit(promised)
    assert server.texts() == {"seen:a": "2", "views:a": "1"}


def test_a_staged_sink_with_a_new_uid_is_fenced_too(server: Server, tmp_path: Path) -> None:
    """A driver that wakes up in its commit does not write over what a newer run has committed under another uid."""
    sink = Redis(server.url, key="views:{app}", value="n", visible="with the checkpoint", staging=tmp_path)
    origins: list[dict[str, Any]] = [
        {"run": 1, "checkpoint": 9},
        {"run": 2, "checkpoint": 10, "sink": "views"},
    ]
    waiting = [copy.pre_commit(of) for copy, of in (sleeping(sink, o["run"], **o) for o in origins)]
    sink.commit(waiting[1])
    with pytest.raises(FencedError, match=r"run 2 of the job .*'_penstock:contract/staged'"):
        sink.commit(waiting[0])
    assert server.texts() == {"views:a": "2"}


def test_a_task_that_sleeps_between_its_look_and_its_write(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look and the write are one: a newer run that writes between them wins."""
    sink = Redis(server.url, key="views:{app}", value="n")
    zombie, old = sleeping(sink, 1)
    newest, transaction = sleeping(sink, 2, run=2)
    write, waiting = RedisWriter._write, [newest]

    def overtaken(self: RedisWriter, *arguments: Any) -> None:
        if waiting:
            waiting.pop().pre_commit(transaction)
        write(self, *arguments)

    monkeypatch.setattr(RedisWriter, "_write", overtaken)
    with pytest.raises(FencedError):
        zombie.pre_commit(old)
    assert server.texts() == {"views:a": "2"}


def test_a_driver_that_wakes_up_late_puts_no_old_value_back(server: Server, tmp_path: Path) -> None:
    """The same with the checkpoint: a commit of an older run is refused, and repeating the newest is no harm."""
    sink = Redis(server.url, key="views:{app}", value="n", visible="with the checkpoint", staging=tmp_path)
    waiting = [copy.pre_commit(of) for copy, of in (sleeping(sink, run, run=run) for run in (1, 2))]
    sink.commit(waiting[1])
    with pytest.raises(FencedError):
        sink.commit(waiting[0])
    assert server.texts() == {"views:a": "2"}


def test_what_was_staged_is_not_forgotten_by_a_change_of_settings(server: Server, tmp_path: Path) -> None:
    """A sink that writes at once now cannot commit what waits in a folder, and says so."""
    staged = Redis(server.url, key="{app}", visible="with the checkpoint", staging=tmp_path)
    waiting = task(staged, batch([{"app": "a", "n": 1}]))
    with pytest.raises(CommitLostError, match="start the job once more with that setting"):
        Redis(server.url, key="{app}").commit(waiting)


def test_what_was_written_at_once_is_done_after_a_change_of_settings(server: Server, tmp_path: Path) -> None:
    """A sink that stages now has nothing to do for a transaction whose task wrote; one that nobody made is still refused."""
    written = task(Redis(server.url, key="{app}", value="n"), batch([{"app": "a", "n": 1}]))
    staged = Redis(server.url, key="{app}", value="n", visible="with the checkpoint", staging=tmp_path)
    staged.commit_all([written, written])
    staged.abort(written)
    assert server.texts() == {"a": "1"}
    with pytest.raises(CorruptStateError):
        staged.commit({name: value for name, value in written.items() if name != "run"})


def test_answers_that_the_url_asks_for_as_texts(server: Server) -> None:
    """The fence reads bytes, whatever the url says."""
    sink = Redis(f"{server.url}?decode_responses=True", key="views:{app}", value="n")
    assert counts(server, sink, {"a": 1}, {"a": 2}) == ["1", "2"]


def test_a_fence_that_cannot_be_read(server: Server) -> None:
    """It is refused by its name, and nothing is written."""
    name = f"_penstock:{CONTEXT.job}:{CONTEXT.sink}"
    with server.client() as client:
        client.set(name, "garbage")
    with pytest.raises(CorruptStateError, match=f"'{name}' holds b'garbage'.*delete the key"):
        task(Redis(server.url, key="views:{app}", value="n"), batch([{"app": "a", "n": 1}]))
    assert "views:a" not in server.texts()


def test_a_user_who_may_not_write_the_fence(server: Server) -> None:
    """It is found before the query, with the commands and keys that are needed."""
    with server.client() as client:
        client.acl_setuser("narrow", enabled=True, passwords=["+trout"], keys=["views:*"], commands=["+@all"])
        try:
            url = server.url.replace(f":{PASSWORD}@", "narrow:trout@")
            with pytest.raises(
                ConfigError, match=r"WATCH, GET, MULTI, SET and EXEC on the keys _penstock:\*"
            ):
                Redis(url, key="views:{app}").validate(SCHEMA)
        finally:
            client.acl_deluser("narrow")


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """While it is away writing is UnavailableError, which is retried; back again with its file, everything ends up right."""
    server = Server(tmp_path / "server")
    try:
        at_once = Redis(server.url, key="views:{app}", value="n")
        later = Redis(
            server.url, key="late:{app}", value="n", visible="with the checkpoint", staging=tmp_path / "st"
        )
        task(at_once, batch([{"app": "a", "n": 1}, {"app": "b", "n": 1}]))
        prepared = task(later, batch([{"app": "a", "n": 5}]))
        server.kill()
        for call in (lambda: task(at_once, batch([{"app": "a", "n": 2}])), lambda: later.commit(prepared)):
            with pytest.raises(UnavailableError, match=r"127\.0\.0\.1") as failed:
                call()
            assert PASSWORD not in str(failed.value)
        server.start()
        task(at_once, batch([{"app": "a", "n": 2}]))
        later.commit(prepared)
        later.commit(prepared)
        assert server.texts() == {"late:a": "5", "views:a": "2", "views:b": "1"}
    finally:
        server.kill()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_a_value_like_others(number: float, server: Server) -> None:
    """NaN and infinity are written in words, as a text and in a hash: only null removes a key or a field."""
    schema = pa.schema([("app", pa.string()), ("x", pa.float64())])
    write(Redis(server.url, key="text:{app}", value="x"), [{"app": "a", "x": number}], schema)
    write(Redis(server.url, key="hash:{app}"), [{"app": "a", "x": number}], schema)
    assert server.texts("text:*") == {"text:a": repr(number)}
    assert server.hashes("hash:*") == {"hash:a": {"x": repr(number)}}


def test_forms_of_values(server: Server) -> None:
    """Every type has one text; JSON objects keep their types; bytes stay bytes."""
    row = {
        "k": 7,
        "flag": True,
        "ratio": 0.1,
        "text": "ünï",
        "day": dt.date(2026, 11, 15),
        "at": dt.datetime(2026, 11, 15, 1, 2, 3, tzinfo=dt.UTC),
        "price": decimal.Decimal("1.50"),
        "list": [1, 2],
    }
    schema = pa.schema(
        [
            ("k", pa.int32()),
            ("flag", pa.bool_()),
            ("ratio", pa.float64()),
            ("text", pa.string()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(10, 2)),
            ("list", pa.list_(pa.int64())),
        ]
    )
    write(Redis(server.url, key="hash:{k}:{day}"), [row], schema)
    write(Redis(server.url, key="json:{k}", json=["k", "flag", "list"]), [row], schema)
    write(Redis(server.url, key="some:{{{text}}}", fields=["ratio"]), [row], schema)
    assert server.hashes("hash:*") == {
        "hash:7:2026-11-15": {
            "flag": "1",
            "ratio": "0.1",
            "text": "ünï",
            "at": "2026-11-15T01:02:03.000000Z",
            "price": "1.50",
            "list": "[1,2]",
        }
    }
    assert server.texts("json:*") == {"json:7": '{"k":7,"flag":true,"list":[1,2]}'}
    assert server.hashes("some:*") == {"some:{ünï}": {"ratio": "0.1"}}


def test_nulls_and_deletions(server: Server) -> None:
    """A null removes its field, or its text; a row that says so deletes its key, and a later row brings it back."""
    schema = pa.schema([("app", pa.string()), ("n", pa.int64()), ("note", pa.string()), ("gone", pa.bool_())])
    sink = Redis(server.url, key="h:{app}", delete_when="gone")
    text = Redis(server.url, key="t:{app}", value="n", delete_when="gone")
    for one in (sink, text):
        write(one, [{"app": app, "n": 1, "note": "x", "gone": None} for app in "abcd"], schema)
        write(
            one,
            [
                {"app": "a", "n": None, "note": "y", "gone": False},
                {"app": "b", "n": 2, "note": None, "gone": True},
                {"app": "c", "n": 2, "note": None, "gone": True},
                {"app": "c", "n": 3, "note": None, "gone": False},
            ],
            schema,
        )
    expected = {"h:a": {"note": "y"}, "h:c": {"n": "3"}, "h:d": {"n": "1", "note": "x"}}
    assert server.hashes("h:*") == expected
    assert server.texts("t:*") == {"t:c": "3", "t:d": "1"}


def test_time_to_live(server: Server) -> None:
    """Each written key gets the time to live, whatever its form; without it keys stay."""
    write(Redis(server.url, key="h:{app}", expire="100s"), [{"app": "a", "n": 1}])
    write(Redis(server.url, key="t:{app}", value="n", expire="100s"), [{"app": "a", "n": 1}])
    write(Redis(server.url, key="stays:{app}"), [{"app": "a", "n": 1}])
    with server.client() as client:
        assert 0 < client.pttl("h:a") <= 100_000
        assert 0 < client.pttl("t:a") <= 100_000
        assert client.pttl("stays:a") == -1


def test_many_rows(server: Server) -> None:
    """More rows than fit into one call are all written."""
    write(Redis(server.url, key="{app}", value="n"), [{"app": f"k{n}", "n": n} for n in range(2345)])
    assert server.texts() == {f"k{n}": str(n) for n in range(2345)}


def test_a_null_in_the_key_is_refused(server: Server) -> None:
    """A row without a key is a bad record, found in the task."""
    with pytest.raises(BadRecordError, match="'app' is part of the key"):
        write(Redis(server.url, key="{app}"), [{"app": None, "n": 1}])


def test_a_key_of_another_kind(server: Server) -> None:
    """A hash where a text is, is said with the key."""
    write(Redis(server.url, key="{app}", value="n"), [{"app": "taken", "n": 1}])
    with pytest.raises(BadRecordError, match=r"another kind.*taken"):
        write(Redis(server.url, key="{app}"), [{"app": "taken", "n": 1}])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": "views"}, "at least one column"),
        ({"key": "views:{}"}, "at least one column"),
        ({"key": "views:{app!r}"}, "at least one column"),
        ({"key": "views:{app:>9}"}, "at least one column"),
        ({"key": "views:{app"}, "cannot be parsed"),
        ({"key": 7}, "must be a text"),
        ({"fields": ["n"], "value": "n"}, "exclude each other"),
        ({"fields": "n"}, "list of column names"),
        ({"json": []}, "list of column names"),
        ({"expire": "0s"}, "expire"),
        ({"expire": 3600}, "expire"),
        ({"timeout": "0s"}, "timeout"),
        ({"visible": "later"}, "visible='later' is not known"),
        ({"visible": "with the checkpoint"}, "needs staging"),
        ({"staging": "x"}, "has no meaning"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    """What can never work is refused when the sink is made."""
    with pytest.raises(ConfigError, match=said):
        Redis("redis://127.0.0.1:1", **{"key": "{app}", **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": "{apq}"}, "'apq'"),
        ({"key": "{app}{ratio}"}, "'ratio' of type double cannot be part of the key"),
        ({"key": "{app}{list}"}, "'list' of type .* cannot be part of the key"),
        ({"value": "m"}, "'m'"),
        ({"fields": ["n", "m"]}, "'m'"),
        ({"delete_when": "m"}, "'m'"),
        ({"delete_when": "n"}, "not boolean"),
        ({"key": "{app}{n}{day}", "delete_when": "n"}, "not boolean"),
    ],
)
def test_columns_that_do_not_fit(settings: dict[str, Any], said: str, server: Server) -> None:
    """Columns are compared with the settings before the query starts."""
    schema = pa.schema(
        [*SCHEMA, ("ratio", pa.float64()), ("list", pa.list_(pa.int64())), ("day", pa.date32())]
    )
    with pytest.raises(ConfigError, match=said):
        Redis(server.url, **{"key": "{app}", **settings}).validate(schema)


def test_no_column_left(server: Server) -> None:
    """A row that is all key has nothing to write."""
    with pytest.raises(ConfigError, match="no column left"):
        Redis(server.url, key="{app}{n}").validate(SCHEMA)


@pytest.mark.parametrize("url", ["http://x", "trout", "redis://:tro/ut@host", "redis://h:trout", None, 7])
def test_urls_that_are_none(url: Any) -> None:
    """A url that makes no sense is refused without a part of it in the text: it may be a password."""
    with pytest.raises(ConfigError, match="not the address of a Redis server") as refused:
        Redis(url, key="{app}")
    assert "tro" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_password_is_never_shown(server: Server) -> None:
    """Neither the sink nor an error says it; a wrong one is found before the query starts."""
    assert PASSWORD not in repr(Redis(server.url, key="{app}"))
    wrong = server.url.replace(PASSWORD, "tro%2Fut")
    with pytest.raises(ConfigError, match="refuses this user or password") as refused:
        Redis(wrong, key="{app}").validate(SCHEMA)
    assert "tro" not in str(refused.value)


def test_a_user_or_a_database_that_the_server_refuses(server: Server) -> None:
    """Who may not write, and a database that is not there, are found before the query starts or in the first task, as settings to repair."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">trout", "~*", "+@read", "+@connection")
    reader = server.url.replace(f":{PASSWORD}", "reader:trout")
    with pytest.raises(ConfigError, match=r"refuses this user.*no permissions") as refused:
        write(Redis(reader, key="{app}"), [{"app": "a", "n": 1}])
    assert "trout" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"database 99 has no such database"):
        Redis(server.url.replace("/0", "/99"), key="{app}").validate(SCHEMA)


def test_a_server_without_memory(server: Server) -> None:
    """A full server is UnavailableError, which is retried: it may have room again."""
    sink = Redis(server.url, key="{app}", value="n")
    with server.client() as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(UnavailableError, match="maxmemory"):
                write(sink, [{"app": "a", "n": 1}])
        finally:
            client.config_set("maxmemory", "0")
    write(sink, [{"app": "a", "n": 1}])
    assert server.texts() == {"a": "1"}


def test_nobody_there() -> None:
    """A server that does not answer is said before the query starts."""
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1, database 0"):
        Redis("redis://127.0.0.1:1", key="{app}").validate(SCHEMA)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said when the sink is made."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[redis\]'"):
        Redis("redis://127.0.0.1:1", key="{app}")


@pytest.mark.parametrize("visible", ["at once", "with the checkpoint"])
def test_the_guarantee(visible: str, tmp_path: Path) -> None:
    """Exactly once in the end, with the words that fit the way it writes."""
    staging = {"staging": tmp_path} if visible == "with the checkpoint" else {}
    sink = Redis("redis://127.0.0.1:1", key="{app}", visible=visible, **staging)
    assert sink.delivery is Delivery.IDEMPOTENT
    guarantee = derive(Mode.EXACTLY_ONCE, [], [SinkFacts("cache", "Redis", sink.delivery, sink.explanation)])
    assert (guarantee.level, guarantee.limited_by) == (Mode.EXACTLY_ONCE, None)
    assert ("older value until the job has caught up" in guarantee.reason) == (visible == "at once")
    assert ("no reader sees a value that a failure takes back" in guarantee.reason) == (visible != "at once")


def test_an_instance_writes_only_to_what_it_has_begun(server: Server) -> None:
    """A transaction of another attempt is refused, at once as well as staged."""
    with pytest.raises(InternalError, match="did not begin"):
        Redis(server.url, key="{app}").write({"run": 1}, batch([{"app": "a", "n": 1}]))


def test_the_key_of_an_earlier_check_may_go_meanwhile(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs that start at once, or one after the other, are both let in."""
    import redis

    watch = redis.client.Pipeline.watch

    def watch_and_change(pipeline: Any, *names: str) -> Any:
        found = watch(pipeline, *names)
        with redis.Redis.from_url(server.url) as another:
            another.set(names[0], "of another job")
        return found

    monkeypatch.setattr(redis.client.Pipeline, "watch", watch_and_change)
    Redis(server.url, key="views:{app}", value="n").validate(
        pa.schema([("app", pa.string()), ("n", pa.int64())])
    )
