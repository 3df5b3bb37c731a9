"""What is found out about an exception of the user's code: its line, the key, the row, the names there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from builders.operator_harness import OperatorHarness
from penstock.errors import BadRecordError
from penstock.operators.calls import blamed_on
from penstock.operators.process import run_keyed
from penstock.operators.process.failed_call import MOST_CHARACTERS, FailedCall, failed_call
from penstock.operators.process.keyed import bind
from penstock.operators.process.user_code import Context
from penstock.operators.values.rows import Rows, RowTable
from penstock.places import Place, without_secrets

TABLE = pa.table({"app": ["a", "a"], "user": [1, 2]})


class Visits(ps.KeyedProcess):
    visits = ps.ValueState("long", default=0)

    def __init__(self, code: str) -> None:
        self.code = code

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            exec(self.code)
            yield key, row


def failure_of(code: str, table: pa.Table = TABLE) -> FailedCall:
    operator = Visits(code)
    bind(operator)
    try:
        list(operator.process("a", Rows(RowTable(table), 0, 2), Context("visits", 0, 0, 1)))
    except Exception as error:  # noqa: BLE001 - whatever it is
        return failed_call(error)
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("row.usr", "columns: app, user; did you mean 'user'?"),
        ("row['usr']", "columns: app, user; did you mean 'user'?"),
        ("rows.column('usr')", "columns: app, user; did you mean 'user'?"),
        ("row.nothing_like_it", "columns: app, user"),
        ("self.visit.value += 1", "states: visits; did you mean 'visits'?"),
        ("self.cod", "states: visits; did you mean 'code'?"),
        ("self.visits.vlaue", "a state has .value and .clear()"),
        ("ctx.subtsk", "fields of the context: operator, checkpoint, subtask, parallelism; did you mean 'subtask'?"),
        ("rws", "did you mean 'rows'?"),
    ],
)  # fmt: skip
def test_a_name_that_there_is_not(code: str, names: str) -> None:
    """The names there are, and which one is meant; no second try is of use."""
    found = failure_of(code)
    assert found.names == names
    assert found.is_wrong_name
    assert (found.key, found.row) == ("'a'", "app='a', user=1")


def test_state_that_is_assigned_to() -> None:
    """No second try is of use, and the text says what to write."""
    found = failure_of("self.visits = 5")
    assert found.is_wrong_name
    assert (found.key, found.row, found.names) == ("'a'", "app='a', user=1", "")


@pytest.mark.parametrize("code", ["1 / 0", "{}['x']", "[].pop()", "'text'.nothing", "raise OSError('no')"])
def test_what_may_have_to_do_with_the_data(code: str) -> None:
    """Nothing is said of names, and another try is not ruled out."""
    found = failure_of(code)
    assert found.names == ""
    assert not found.is_wrong_name
    assert found.row == "app='a', user=1"


def test_the_line_is_that_of_the_users_file() -> None:
    """Not of a package that it called, nor of Penstock."""
    found = failure_of("int('x')")
    place = found.place
    assert place is not None
    assert place.file == "<string>"  # what `exec` calls the user's code here
    assert failure_of("np.reshape([1], 7)").place is not None
    with pytest.raises(ValueError, match="reshape") as raised:
        np.reshape([1], (7,))
    place = failed_call(raised.value).place
    assert place is not None
    assert Path(place.file) == Path(__file__)
    assert place.source == "np.reshape([1], (7,))"


def test_long_and_unreadable_rows() -> None:
    """A long row is cut; one whose text is no UTF-8 does not hide what failed."""
    long = pa.table({"app": ["a" * 1000] * 2, "user": [1, 2]})
    assert len(failure_of("1 / 0", long).row) == MOST_CHARACTERS + len("...")
    broken = pa.array([b"\xc3(", b"x"]).view(pa.string())
    assert failure_of("1 / 0", pa.table({"app": broken})).row.startswith("(it cannot be shown: ")


def test_what_an_error_says_itself_is_taken() -> None:
    """A `BadRecordError` knows its row and key better than the code around it."""
    error = BadRecordError("no", row={"id": 5}, key=("a", 1))
    assert failed_call(error) == FailedCall(row="id=5", key="('a', 1)")


class Wrong(ps.KeyedProcess):
    """What it yields and stores is right for most keys."""

    state = ps.ValueState("long")

    def __init__(self, yielded: object = None, stored: object = None) -> None:
        self.yielded = yielded
        self.stored = stored

    def process(self, key: str, rows: Any, ctx: Any) -> Any:
        is_wrong = key == "k7"
        self.state.value = self.stored if is_wrong else 1
        if is_wrong and not isinstance(self.yielded, tuple | dict):
            return self.yielded
        return [(key, 1)] * 3 + ([self.yielded] if is_wrong else [])


@pytest.mark.parametrize("rows_at_once", [2, 4, 8192])
@pytest.mark.parametrize(
    "wrong",
    [
        Wrong(("k7", "text")),
        Wrong(("k7", 1, 2)),
        Wrong({"key": 1}),
        Wrong("text"),
        Wrong(5),
        Wrong([3]),
        Wrong(stored="text"),
    ],
    ids=lambda wrong: f"{wrong.yielded or wrong.stored!r}",
)
def test_what_a_key_yields_or_stores_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int, wrong: Wrong
) -> None:
    """Results are looked at for many keys at once: the key is found, its first row, and the function that made them."""
    monkeypatch.setattr(run_keyed, "OUTPUT_ROWS", rows_at_once)
    harness = OperatorHarness(tmp_path, ["k"], pa.schema([("k", pa.string()), ("n", pa.int64())]))
    keys = [f"k{number % 10}" for number in range(20)]
    with pytest.raises(BadRecordError) as raised, blamed_on(wrong.process):
        harness.run(wrong, pa.table({"k": keys, "v": range(20)}))
    found = failed_call(raised.value.with_traceback(None))  # the test's own lines are nobody's operator
    assert (found.key, found.row) == ("'k7'", "k='k7', v=7 (the first of 2)")
    assert found.place is not None
    assert (Path(found.place.file), found.place.function) == (Path(__file__), "process")
    assert found.place.source.startswith("def process(self, key: str,")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('sink = Postgres("postgresql://me:hunter2@db/shop", table="t")', 'Postgres("postgresql://me:...@db/shop", table="t")'),
        ('connect(user="me", password="hunter2", port=1)', 'connect(user="me", password="...", port=1)'),
        ('{"sasl.password": "hunter2", "x": 1}', '{"sasl.password": "...", "x": 1}'),
        ('connect(password="a,b) hunter2", port=1)', 'connect(password="...", port=1)'),
        ("connect(password=f'a hunter2', port=1)", "connect(password=f'...', port=1)"),
        ('url = "redis://me:a@hunter2@db/0"', '"redis://me:...@db/0"'),
        ('dsn = "host=h password=hunter2 user=u"', '"host=h password=... user=u"'),
        ('dsn = "host=h password=fhunter2 user=u"', '"host=h password=... user=u"'),
        ('connect(user="me", pwd="hunter2", port=1)', 'pwd="...", port=1)'),
        ('dsn = "Server=h;Pwd=hunter2;Database=d"', 'Pwd=...;Database=d"'),
        ('client(api_key="hunter2", retries=3)', 'api_key="...", retries=3)'),
        ('client(apiKey="hunter2")', 'apiKey="...")'),
        ('options["fs.azure.account.key"] = "hunter2"', 'account.key"] = "..."'),
        ('{"aws_secret_access_key": "hunter2", "x": 1}', '"aws_secret_access_key": "...", "x": 1}'),
        ('credentials = "hunter2"', 'credentials = "..."'),
        ('headers = {"Authorization": "Bearer hunter2"}', '"Authorization": "..."}'),
        ('curl("-H", "X: Bearer hunter2hunter2")', 'X: Bearer ..."'),
        ('url = "https://h/blob?sig=1&signature=hunter2&x=1"', 'signature=...&x=1"'),
        ('login("me", passphrase=b"hunter2")', 'passphrase=b"...")'),
        ('reader.option("password", "hunter2").load()', 'option("password", "...").load()'),
        ('conf.set("fs.s3a.secret.key", "hunter2")', 'set("fs.s3a.secret.key", "...")'),
        ("password: str = 'hunter2'", "password: str = '...'"),
        ("sql(\"ALTER USER u password='it''s hunter2' x\")", "password='...' x"),
        ('run("tool --password hunter2 --port 1")', "--password ... --port 1"),
        ("Authorization: Digest hunter2", "Authorization: ..."),
        ('url = "https://hunter2hunter2@host/x"', '"https://...@host/x"'),
        ('{"password" => "hunter2"}', '"password" => "..."'),
        (r'say("{\"password\": \"hunter2\", \"x\": 1}")', r'{\"password\": \"...\", \"x\": 1}'),
        (r"say('{\\\'pwd\\\': \\\'hunter2\\\'}')", r"{\\\'pwd\\\': \\\'...\\\'}"),
        ("url=postgresql%3A%2F%2Fapp%3Ahunter2%40db%2Fshop", "%2F%2Fapp%3A...%40db%2Fshop"),
        ("GET /login?next=password%3Dhunter2", "password%3D..."),
        ("body=%22password%22%3A%22hunter2%22%7D", "%22password%22%3A%22...%22%7D"),
        ("postgresql://app:it's-hunter2@db/shop", "//app:...@db/shop"),
        ("//app:hunter2@db/shop", "//app:...@db/shop"),
        ("ALTER ROLE app WITH PASSWORD 'hunter2'", "WITH PASSWORD '...'"),
        ("CREATE USER app IDENTIFIED BY 'hunter2'", "IDENTIFIED BY '...'"),
        ("password=a,b;c)hunter2 user=u", "password=... user=u"),
        ("Server=h;Pwd={a;b hunter2};Database=d", "Pwd=...;Database=d"),
        ('{"passwords": ["hunter2", "b"], "x": 1}', '"passwords": ..., "x": 1}'),
        ("Config(password=SecretStr('hunter2'), x=1)", "Config(password=..., x=1)"),
        ("DB_PASS=hunter2 PGPASSWORD=hunter2 pw=hunter2", "DB_PASS=... PGPASSWORD=... pw=..."),
        ("?sv=1&sig=hunter2&se=2", "sig=...&se=2"),
        ("Cookie: session=hunter2", "Cookie: session=..."),
        ("authorization=Token hunter2", "authorization=..."),
    ],
)  # fmt: skip
def test_a_password_in_the_line_is_not_shown(tmp_path: Path, line: str, shown: str) -> None:
    """Errors are kept in logs and sent to others."""
    program = tmp_path / "job.py"
    program.write_text(line)
    source = Place(str(program), 1).source
    assert "hunter2" not in source
    assert shown in source


@pytest.mark.parametrize(
    "line",
    [
        "row.token_count = 5  # nothing follows the name of a token",
        "compass = 3",
        "keys = ['a', 'b']",
        "basic = plan.price",
        'frame.select("primary_key", "monkey")',
        'unexpected token "}" at 1:7',
        "bypass = 3  # pass_count = 4",
        'password authentication failed for user "app"',
        "http://host:8080/a, see https://host/b",
    ],
)
def test_what_is_no_password_is_shown(line: str) -> None:
    """Names that only look like one stay readable, but for what stands behind the name of a token."""
    assert without_secrets(line) in (line, line.replace("= 5", "= ..."))


def test_long_texts_are_masked_in_a_moment() -> None:
    """The time that masking takes grows with the text, not with its square: a row's value may be any text."""
    for word in ("password", "token=", "--token ", "://a:", '"secret", ', "password: str ", "https://"):
        assert len(without_secrets(word * (100_000 // len(word)))) > 0


def test_a_private_key_is_not_shown() -> None:
    """Its lines are masked, also where its end was cut off."""
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    assert without_secrets(f"key {begin}\nhunter2\nhunter2\n{end} of app") == f"key {begin}...{end} of app"
    assert without_secrets(f"private_key={begin}\nhunter2") == f"private_key={begin}..."


def test_states_are_called_what_they_were_declared_as(tmp_path: Path) -> None:
    """Python's own errors name what user code has written, and not what stands in its place."""

    class Wrong(ps.KeyedProcess):
        counts = ps.MapState("string", "long")
        seen = ps.ListState("long")
        total = ps.ValueState("array<long>", default=[])

        def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
            for state in (self.counts, self.seen, self.total):
                try:
                    state.nothing  # type: ignore[union-attr]  # noqa: B018
                except AttributeError as error:
                    said.append(str(error))

    said: list[str] = []
    harness = OperatorHarness(tmp_path, ["k"], pa.schema([("k", pa.string())]))
    harness.run(Wrong(), pa.table({"k": ["a"], "v": [1]}))
    assert said == [
        f"'{kind}' object has no attribute 'nothing'" for kind in ("MapState", "ListState", "ValueState")
    ]
