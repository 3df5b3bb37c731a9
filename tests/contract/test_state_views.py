"""What is seen of a job's state without Spark: tables, the rows of a key, the largest keys, on each backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from test_savepoints import BACKENDS, Site, _hash, rows_of

from builders.dashboard_site import InThread, TestClient, connect, port_of, rest_of, ui_options
from penstock.checkpoint.metadata import write_metadata
from penstock.checkpoint.model import Completed, OperatorState
from penstock.dashboard import state_reader
from penstock.dashboard.access import Access
from penstock.dashboard.app import make_app
from penstock.dashboard.status_poller import StatusPoller
from penstock.errors import ConfigError
from penstock.ids import NO_CHECKPOINT
from penstock.ownership.claim import claim, record_descent
from penstock.recovery.history import read_held
from penstock.state.backends.base import VALUES
from penstock.status.stored_state import (
    USUAL_LIMITS,
    FoundRows,
    LargestKeys,
    Limits,
    Question,
    answer,
    state_contents,
)
from penstock.storage import Storage

NUMBERS = list(range(40))


def site_with(root: Path, backend: str = "filesystem", parallelism: int = 3) -> Site:
    """A job whose only checkpoint has the rows of some numbers."""
    site = Site(root)
    owner = claim(site.storage, 1.0)
    record_descent(owner, NO_CHECKPOINT)
    completed = site.checkpoint(backend, parallelism, NUMBERS)
    write_metadata(site.storage, msgspec.structs.replace(completed, run=owner.run, completed_at=1000.0))
    return site


def ask(storage: Storage, question: Question, limits: Limits) -> FoundRows | LargestKeys:
    """The answer from the newest checkpoint, which is held meanwhile."""
    return read_held(
        storage, lambda completed: answer(storage, completed, question, limits), why=question.why
    )


def find_rows(
    storage: Storage,
    operator: str,
    state: str,
    key: Mapping[str, str] | Sequence[str] = (),
    limits: Limits = USUAL_LIMITS,
) -> FoundRows:
    """The rows of a key: its values as texts, by column or in their order. Without one, the first rows of the state."""
    given = dict(key) if isinstance(key, Mapping) else list(key)
    found = ask(storage, Question(operator=operator, state=state, key=given), limits)
    assert isinstance(found, FoundRows)
    return found


def largest_keys(
    storage: Storage, state: str, *, most: int = 20, limits: Limits = USUAL_LIMITS
) -> LargestKeys:
    """The keys with the most rows in a state of `cards`."""
    found = ask(storage, Question(operator="cards", state=state, largest=most), limits)
    assert isinstance(found, LargestKeys)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_stored_is_told_without_reading_a_row(tmp_path: Path, backend: str) -> None:
    """Operators, states with their columns, and what each subtask has, whichever backend wrote it."""
    site = site_with(tmp_path, backend)
    contents = state_contents(site.storage)
    (cards,) = contents.operators
    assert (contents.job, contents.checkpoint, contents.completed_at) == ("fraud", 5, 1000.0)
    assert contents.positions == {"clicks": 3}
    assert cards.key == {"card": "string", "shop": "long"}
    assert {one.name: one.kind for one in cards.states} == {
        "": "row",
        "n": "value",
        "seen": "value",
        "shops": "map",
        "timers": "rows",
        "rules / all": "operator list",
    }
    assert [one.index for one in cards.subtasks] == [0, 1, 2]
    assert all(one.files > 0 for one in cards.subtasks)
    assert sum(one.state_bytes for one in cards.subtasks) == cards.state_bytes == contents.state_bytes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [0, 7, 39])
def test_the_rows_of_a_key_are_found(tmp_path: Path, backend: str, number: int) -> None:
    """All rows of the key and no other, as a user sees them, in every kind of state."""
    site = site_with(tmp_path, backend)
    key = [f"card {number}", str(number)]
    row = find_rows(site.storage, "cards", "_row", key)
    assert row.complete
    assert [one["n"] for one in row.rows] == [number]
    assert row.key == {"card": f"card {number}", "shop": str(number)}
    shops = find_rows(site.storage, "cards", "shops", {"shop": str(number), "card": f"card {number}"})
    assert sorted(one["shops_key"] for one in shops.rows) == [str(m) for m in range(number % 4)]
    seen = find_rows(site.storage, "cards", "seen", key)
    assert len(seen.rows) == (0 if number % 3 else 1)
    assert site.storage.names("holds") == []


def test_a_key_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    """Everything was read, and that is said."""
    found = find_rows(site_with(tmp_path).storage, "cards", "_row", ["card 1", "2"])
    assert found.rows == ()
    assert found.complete
    assert found.looked_at == len(NUMBERS)


def test_without_a_key_the_first_rows_are_shown(tmp_path: Path) -> None:
    """As many as are shown at most, and whether there are more."""
    storage = site_with(tmp_path).storage
    found = find_rows(storage, "cards", "n", limits=Limits(shown=4))
    assert len(found.rows) == 4
    assert found.more
    assert {tuple(row) for row in found.rows} == {("card", "shop", "n")}
    rules = find_rows(storage, "cards", "rules / all")
    assert len(rules.rows) == 1 + 2 + 3
    assert not rules.more


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_largest_keys_are_those_with_the_most_rows(tmp_path: Path, backend: str) -> None:
    """Rows are counted by key over all subtasks."""
    found = largest_keys(site_with(tmp_path, backend).storage, "shops", most=5)
    truth: dict[str, int] = {}
    for row in rows_of(NUMBERS)["shops"]:
        truth[row["card"]] = truth.get(row["card"], 0) + 1
    assert [one.rows for one in found.keys] == sorted(truth.values(), reverse=True)[:5]
    assert all(truth[one.key["card"]] == one.rows for one in found.keys)
    assert found.complete
    assert found.looked_at == sum(truth.values())


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(rows=1), "reading ends after 1 row"),
        (Limits(seconds=-1), "reading ends after"),
        (Limits(fetched_bytes=0), "reading ends before more than 0 B are fetched"),
    ],
)
def test_a_reading_that_meets_a_limit_says_so(tmp_path: Path, limits: Limits, why: str) -> None:
    """It has what was found so far, and is not called complete."""
    storage = site_with(tmp_path).storage
    found = find_rows(storage, "cards", "_row", ["nobody", "1"], limits=limits)
    assert not found.complete
    assert why in found.why
    assert why in largest_keys(storage, "shops", limits=limits).why


@pytest.mark.parametrize(
    ("operator", "state", "key", "says"),
    [
        ("card", "_row", [], "did you mean 'cards'"),
        ("cards", "shop", [], "did you mean 'shops'"),
        ("cards", "_row", ["card 1"], "has 2 columns \\(card string, shop long\\), and 1 were given"),
        ("cards", "_row", ["card 1", "1", "2"], "and 3 were given"),
        ("cards", "_row", ["card 1", "one"], "'one' is no value of the key's column shop, which is long"),
        ("cards", "../../etc", [], "no state of 'cards' is called"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(
    tmp_path: Path, operator: str, state: str, key: list[str], says: str
) -> None:
    """The message has what can be."""
    with pytest.raises(ConfigError, match=says):
        find_rows(site_with(tmp_path).storage, operator, state, key)


def test_one_row_a_key_has_no_largest(tmp_path: Path) -> None:
    """Where every key has one row the question is refused."""
    with pytest.raises(ConfigError, match="a key has one row in n of cards"):
        largest_keys(site_with(tmp_path).storage, "n")


def test_a_job_without_a_checkpoint_has_no_state_to_show(tmp_path: Path) -> None:
    """That is said, and nothing else is wrong."""
    with pytest.raises(ConfigError, match="no checkpoint of the job"):
        state_contents(Site(tmp_path).storage)


def test_what_was_found_can_be_sent(tmp_path: Path) -> None:
    """Moments, decimals and nested values are JSON."""
    found = find_rows(site_with(tmp_path).storage, "cards", "_row", ["card 3", "3"])
    sent: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    assert sent["rows"][0]["seen"]["at"].startswith("1970-01-01T00:00:00.000003")


# ── through the server ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """Of a server over the job."""
    site_with(tmp_path)
    with served(tmp_path) as made:
        yield made


@contextmanager
def served(tmp_path: Path) -> Iterator[TestClient]:
    """The pages of the job there."""
    rules = Access(ui_options("127.0.0.1:8090"), 8090)
    app = make_app(StatusPoller([str(tmp_path / "job")]), rules)
    with TestClient(app, base_url="http://127.0.0.1:8090") as made:
        yield made


@pytest.mark.parametrize(
    ("backend", "path", "found"),
    [
        ("filesystem", "_row.json?key=card+7&key=7", {"rows": ["7"]}),
        ("rocksdb", "_row.json?key.shop=7&key.card=card%207", {"rows": ["7"]}),
        ("memory", "rules%20%2F%20all.json", {"rows": list("aababc")}),
        ("rocksdb", "shops.json?largest=3", {"keys": ["3", "3", "3"]}),
    ],
)
def test_a_key_is_looked_up_by_address(
    tmp_path: Path, backend: str, path: str, found: dict[str, list[str]]
) -> None:
    """Its columns in their order, or by name, on each backend; names of states may have any character."""
    site = site_with(tmp_path, backend)
    with served(tmp_path) as client:
        answer = client.get(f"/jobs/job/state/cards/{path}").json()
    ((shown, rows),) = found.items()
    of_row = {"rows": ("n", "rule"), "keys": ("rows",)}[shown]
    assert answer["complete"]
    assert [str(next(row[name] for name in of_row if name in row)) for row in answer[shown]] == rows
    assert site.storage.names("holds") == []


def test_the_state_of_a_job_has_a_page(client: TestClient) -> None:
    """And its twin."""
    assert client.get("/jobs/job/state.json").json()["operators"][0]["uid"] == "cards"
    assert "cards" in client.get("/jobs/job/state", headers={"Accept": "text/html"}).text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("card/_row.json", "did you mean 'cards'"),
        ("cards/nn.json", "did you mean 'n'"),
        ("cards/_row.json?key=1", "and 1 were given"),
        ("cards/_row.json?key.cart=a&key.shop=1", "and 2 were given; give one value for each"),
        ("cards/n.json?largest=5", "a key has one row"),
        ("cards/..%2f..%2f_job.json", "no state of 'cards' is called"),
        ("%2e%2e/_row.json", "no operator '..' has state"),
    ],
)
def test_what_cannot_be_looked_up_is_told(client: TestClient, path: str, says: str) -> None:
    """400, with what there is."""
    refused = client.get(f"/jobs/job/state/{path}")
    assert refused.status_code == 400
    assert says in refused.json()["error"]


def test_few_read_at_a_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes when too many read is told to come again; then there is room."""
    going_on, began = threading.Event(), threading.Semaphore(0)

    def slow(*_: object) -> bytes:
        began.release()
        going_on.wait()
        return b"{}"

    monkeypatch.setattr(state_reader, "read_in_process", slow)
    statuses: list[int] = []
    path = "/jobs/job/state/cards/_row.json"
    threads = [
        threading.Thread(target=lambda: statuses.append(client.get(path).status_code))
        for _ in range(state_reader.AT_A_TIME)
    ]
    for one in threads:
        one.start()
        began.acquire()
    refused = client.get(path)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    going_on.set()
    for one in threads:
        one.join()
    assert statuses == [200] * state_reader.AT_A_TIME
    assert client.get(path).status_code == 200


def test_a_request_that_outlasts_the_server_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When the dashboard ends, a running look-up is answered with 503, an open event stream ends, and neither is logged as an exception."""
    began, going_on = threading.Event(), threading.Event()

    def slow(*_: object) -> bytes:
        began.set()
        going_on.wait()
        return b"{}"

    monkeypatch.setattr(state_reader, "read_in_process", slow)
    site_with(tmp_path)
    server = InThread(tmp_path, ui_options("127.0.0.1:0"))
    with connect(server) as lookup, connect(server) as stream:
        for client, path in ((stream, "events"), (lookup, "state/cards/_row.json")):
            client.sendall(
                f"GET /jobs/job/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n\r\n".encode()
            )
        told = stream.recv(12)
        began.wait()
        server.close()
        going_on.set()
        answer = rest_of(lookup)
    assert "Exception" not in caplog.text
    assert told == b"HTTP/1.1 200"
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"the dashboard is shutting down" in answer


def test_state_that_unpacks_to_more_than_there_is_room_for_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file that declares few rows cannot take the memory of the server: the reading ends, and why is said."""
    monkeypatch.setattr(state_reader, "MEMORY_BYTES", 32 << 20)
    site = Site(tmp_path)
    owner = claim(site.storage, 1.0)
    record_descent(owner, NO_CHECKPOINT)
    completed = site.checkpoint("filesystem", 1, NUMBERS)
    write_metadata(
        site.storage,
        msgspec.structs.replace(
            completed, run=owner.run, completed_at=1000.0, operators=_swollen(site, completed, 64 << 20)
        ),
    )
    with served(tmp_path) as client:
        answer = client.get("/jobs/job/state/cards/_row.json")
    assert answer.status_code == 503
    assert "more than 32.0 MB of memory" in answer.json()["error"]
    assert site.storage.names("holds") == []


def test_state_behind_a_link_is_not_shown(tmp_path: Path) -> None:
    """A file of state that is a link may be that of another job."""
    site = site_with(tmp_path)
    name = next(one for one in site.storage.names("state") if one.endswith(".arrow"))
    file = site.storage.root / name
    with served(tmp_path) as client:
        path = f"/jobs/job/state/{name.split('/')[1]}/_row.json"
        assert client.get(path).status_code == 200
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        answer = client.get(path)
    assert answer.status_code == 500, answer.text
    assert f"{name} in" in answer.json()["error"]
    assert "is a link" in answer.json()["error"]


def test_metadata_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Nobody's memory goes into it, neither for the page nor for a look-up; what is wrong is said."""
    site = site_with(tmp_path)
    (metadata,) = (name for name in site.storage.names() if name.endswith("/_metadata"))
    with served(tmp_path) as client:
        assert client.get("/jobs/job/state.json").json()["operators"]
        os.truncate(site.storage.root / metadata, 1 << 40)
        answer = client.get("/jobs/job/state/cards/_row.json")
    assert answer.status_code == 400
    assert f"{metadata} has 1" in answer.json()["error"]


def _swollen(site: Site, completed: Completed, swollen_bytes: int) -> dict[str, OperatorState]:
    """The same state, in whose only file a text has become large, and small again by compression."""
    ((uid, state),) = completed.operators.items()
    (handle,) = state.handles
    (ref,) = handle.refs
    with pa.ipc.open_file(site.storage.get(ref.name)) as reader:
        batch, schema = reader.get_batch(0), reader.schema
    rows = batch.column(VALUES).values
    texts = pa.array(["0" * swollen_bytes, *rows.field("card").to_pylist()[1:]])
    columns = [texts if field.name == "card" else rows.field(field.name) for field in rows.type]
    swollen = pa.StructArray.from_arrays(columns, fields=list(rows.type))
    lists = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), swollen)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch.set_column(schema.names.index(VALUES), schema.field(VALUES), lists))
    data = sink.getvalue().to_pybytes()
    assert len(data) < swollen_bytes / 100
    site.storage.put(ref.name, data)
    refs = (msgspec.structs.replace(ref, size=len(data), checksum=_hash(data)),)
    return {uid: msgspec.structs.replace(state, handles=(msgspec.structs.replace(handle, refs=refs),))}
