"""Flink's REST interface over a storage: what is asked for is done once, what is not possible is said in words, nothing is remembered."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from builders.asgi_client import AsgiClient
from builders.plain_looker import PlainLooker
from penstock.dashboard import savepoint_disposal
from penstock.dashboard.flink import flink_routes
from penstock.dashboard.flink.operations import GRACE_S
from penstock.errors import UnavailableError
from penstock.ids import RunId
from penstock.ownership.claim import JOB_FILE, Claimant, claim
from penstock.ownership.heartbeat import beat
from penstock.ownership.job_record import JobRecord
from penstock.ownership.runs import RunOutcome, end_of, record_end
from penstock.requests.request_files import Facts, Kind, Listing, Request, read_request
from penstock.requests.request_server import RequestServer
from penstock.savepoint.manifest import MANIFEST, encode, read_manifest
from penstock.status.events import SavepointDeleted
from penstock.status.jobs import job_id
from penstock.status.journal import read_segment
from penstock.storage import LocalStorage

GOLDEN = Path(__file__).parents[1] / "golden" / "savepoint-1" / "saved"
JOB = job_id("views")


@dataclass
class Start:
    """A start of the job `views` whose requests are taken on when the test says so."""

    store: Path
    wishes: list[Request] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.storage = LocalStorage(self.store / "views")
        self.storage.put(JOB_FILE, msgspec.json.encode(JobRecord("", 1)))
        self.claimant = Claimant()
        self.claim = claim(self.storage, time.time(), self.claimant)
        beat(self.storage, self.claim.run, time.time())
        self.answering = RequestServer(self.storage, self.claimant, self, in_background=lambda work: work())

    def checkpoint(self, token: str, request: Request) -> Facts:
        return self._did(request, {"checkpoint": 7})

    def savepoint(self, token: str, request: Request) -> Facts:
        return self._did(
            request, {"savepoint": request.to or f"{self.store}/views-savepoints/7-ab", "checkpoint": 7}
        )

    def stop(self, token: str, request: Request) -> None:
        self.wishes.append(request)

    def cancel(self) -> None:
        self.wishes.append(Request(kind=Kind.CANCEL, asked_at=0, until=0))

    def _did(self, request: Request, facts: Facts) -> Facts:
        self.wishes.append(request)
        if self.error is not None:
            raise self.error
        return facts

    def end(self, how: RunOutcome = RunOutcome.STOPPED, ago_s: float = 0.0) -> None:
        now = time.time() - ago_s
        record_end(self.storage, end_of(self.claim.run, how, now))
        beat(self.storage, self.claim.run, now, ended=True)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path / "store")


@pytest.fixture
def rest(start: Start) -> AsgiClient:
    return client(start.store)


def client(store: Path, *, read_only: bool = False) -> AsgiClient:
    routes = flink_routes(PlainLooker(str(store)), read_only=read_only, savepoints=(str(store.parent),))
    return AsgiClient(Starlette(routes=list(routes)))


def asked(rest: AsgiClient, path: str, body: Any) -> str:
    answer = rest.post(path, json=body)
    assert answer.status_code == 202, answer.text
    request: str = answer.json()["request-id"]
    assert len(request) == 32
    return request


def errors(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    (text,) = answer.json()["errors"]
    assert "failure-cause" not in answer.text  # on which Flink's client would wait for ever
    return str(text)


def test_a_savepoint_goes_into_a_new_folder(start: Start, rest: AsgiClient, tmp_path: Path) -> None:
    """As with Flink, the directory is where savepoints lie, not the savepoint: it can be given twice, as a path or a URI."""
    chosen = tmp_path / "sp"
    body = {
        "target-directory": str(chosen),
        "cancel-job": False,
        "formatType": "CANONICAL",
        "triggerId": None,
    }
    requests = [
        asked(rest, f"/v1/jobs/{JOB}/savepoints", body),
        asked(
            rest,
            f"/v1/jobs/{JOB}/savepoints",
            {**body, "target-directory": chosen.as_uri(), "formatType": "NATIVE"},
        ),
    ]
    polled = rest.get(f"/v1/jobs/{JOB}/savepoints/{requests[0]}")
    assert (polled.status_code, polled.json()["status"]) == (200, {"id": "IN_PROGRESS"})
    start.answering.look()
    folders = {str(wish.to) for wish in start.wishes}
    assert len(folders) == 2
    assert {Path(folder).parent for folder in folders} == {chosen}
    found = [
        client(start.store).get(f"/v1/jobs/{JOB}/savepoints/{one}").json() for one in requests
    ]  # another server
    assert {one["status"]["id"] for one in found} == {"COMPLETED"}
    assert {one["operation"]["location"] for one in found} == {Path(folder).as_uri() for folder in folders}


def test_cancel_with_a_savepoint_is_one_stop(start: Start, rest: AsgiClient) -> None:
    """`cancel -s` asks once, for a stop with a savepoint; nothing is processed between the two."""
    asked(rest, f"/jobs/{JOB}/savepoints", {"target-directory": None, "cancel-job": True})
    start.answering.look()
    (wish,) = start.wishes
    assert (wish.kind, wish.savepoint, wish.to, wish.drain) == (Kind.STOP, True, None, False)


def test_stop(start: Start, rest: AsgiClient) -> None:
    """A stop has a savepoint and may drain; its answer is there when the job is gone, and the job's end is no failure of the poll."""
    request = asked(
        rest, f"/v1/jobs/{JOB}/stop", {"targetDirectory": None, "drain": True, "formatType": "CANONICAL"}
    )
    start.answering.look()
    (wish,) = start.wishes
    assert (wish.kind, wish.savepoint, wish.drain) == (Kind.STOP, True, True)
    start.end()
    polled = rest.get(f"/v1/jobs/{JOB}/savepoints/{request}")
    assert polled.json()["status"]["id"] == "IN_PROGRESS"  # the answer is written a moment after the end
    start.answering.ended({"savepoint": "/data/sp/1", "checkpoint": 7})
    polled = rest.get(f"/v1/jobs/{JOB}/savepoints/{request}")
    assert polled.json() == {"status": {"id": "COMPLETED"}, "operation": {"location": "file:///data/sp/1"}}


def test_checkpoint_and_cancel(start: Start, rest: AsgiClient) -> None:
    """A checkpoint answers with its number; a cancel is asked for and not waited for."""
    request = asked(rest, f"/v1/jobs/{JOB}/checkpoints", {"checkpointType": "FULL", "triggerId": None})
    start.answering.look()
    polled = rest.get(f"/v1/jobs/{JOB}/checkpoints/{request}").json()
    assert polled == {"status": {"id": "COMPLETED"}, "operation": {"checkpointId": 7}}
    answer = rest.request("PATCH", f"/v1/jobs/{JOB}?mode=cancel", json={})
    assert (answer.status_code, answer.json()) == (202, {})
    start.answering.look()
    assert [wish.kind for wish in start.wishes] == [Kind.CHECKPOINT, Kind.CANCEL]


def test_the_same_trigger_id_is_asked_once(start: Start, rest: AsgiClient) -> None:
    """A client that makes the id itself and repeats its request gets one savepoint."""
    mine = "AB" * 16
    for _ in range(2):
        assert asked(rest, f"/v1/jobs/{JOB}/savepoints", {"triggerId": mine}) == mine.lower()
        start.answering.look()
    assert len(start.wishes) == 1
    again = rest.post(f"/v1/jobs/{JOB}/stop", json={"triggerId": mine})
    assert "was used before, for a savepoint" in errors(again, 409)  # and nobody believes that the job stops


def test_what_fails_is_told(start: Start, rest: AsgiClient) -> None:
    """A deed that fails is an error with its words for whoever polls."""
    start.error = UnavailableError("the disk is full")
    request = asked(rest, f"/v1/jobs/{JOB}/savepoints", {})
    start.answering.look()
    assert "the disk is full" in errors(rest.get(f"/v1/jobs/{JOB}/savepoints/{request}"), 500)


def test_nobody_is_left_to_do_it(start: Start, rest: AsgiClient) -> None:
    """A request that a dead job has not taken on is taken back, so that it does not stop the next start; the client does not wait for ever."""
    request = asked(rest, f"/v1/jobs/{JOB}/stop", {})
    start.end(RunOutcome.FAILED, ago_s=GRACE_S + 5)
    assert "the request is withdrawn" in errors(rest.get(f"/v1/jobs/{JOB}/savepoints/{request}"), 500)
    assert Listing(start.storage).open == []
    again = Start(start.store)
    again.answering.look()
    assert again.wishes == []


def test_a_poll_of_a_server_that_only_shows_changes_nothing(start: Start, rest: AsgiClient) -> None:
    """It does not take a request back that another server has made."""
    request = asked(rest, f"/v1/jobs/{JOB}/stop", {})
    start.end(RunOutcome.FAILED, ago_s=GRACE_S + 5)
    only_shows = client(start.store, read_only=True)
    assert "did not answer" in errors(only_shows.get(f"/v1/jobs/{JOB}/savepoints/{request}"), 500)
    assert Listing(start.storage).open == [request]


def test_a_job_that_is_not_running(start: Start, rest: AsgiClient) -> None:
    """Everything that needs a running job is refused, with how its last run ended; nothing is left in storage."""
    start.end()
    for path in ("savepoints", "stop", "checkpoints"):
        assert "is over: stopped" in errors(rest.post(f"/v1/jobs/{JOB}/{path}", json={}), 409)
    assert "is over: stopped" in errors(rest.request("PATCH", f"/v1/jobs/{JOB}"), 409)
    assert start.storage.names("requests") == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", f"/v1/jobs/{job_id('nobody')}", b"", 404, "there is no job"),
        ("POST", f"/v1/jobs/{job_id('nobody')}/stop", b"{}", 404, "there is no job"),
        ("POST", f"/v1/jobs/{JOB}/stop", b"{", 400, "the body cannot be decoded"),
        ("POST", f"/v1/jobs/{JOB}/stop", b"[" * 50_000, 400, "the body cannot be decoded"),
        ("POST", f"/v1/jobs/{JOB}/stop", b'{"drain": "perhaps"}', 400, "drain"),
        ("POST", f"/v1/jobs/{JOB}/stop", b'{"formatType": "AVRO"}', 400, "formatType"),
        ("POST", f"/v1/jobs/{JOB}/stop", b'{"triggerId": "../../x"}', 400, "triggerId"),
        ("POST", f"/v1/jobs/{JOB}/savepoints", b'{"target-directory": "here"}', 400, "not an absolute path"),
        (
            "POST",
            f"/v1/jobs/{JOB}/savepoints",
            b'{"target-directory": "s3://bucket/x"}',
            400,
            "not an absolute path",
        ),
        (
            "POST",
            f"/v1/jobs/{JOB}/savepoints",
            b'{"target-directory": "/data/\\u0000"}',
            400,
            "cannot be a folder",
        ),
        (
            "POST",
            f"/v1/jobs/{JOB}/savepoints",
            b'{"target-directory": "file:///a%00b"}',
            400,
            "cannot be a folder",
        ),
        (
            "POST",
            "/v1/savepoint-disposal",
            b'{"savepoint-path": "/%b"}' % (b"x" * 300),
            400,
            "cannot be a folder",
        ),
        ("PATCH", f"/v1/jobs/{JOB}?mode=stop", b"{}", 400, "only cancel"),
        ("GET", f"/v1/jobs/{JOB}/savepoints/{'0' * 32}", b"", 404, "has no request"),
        ("GET", f"/v1/jobs/{JOB}/savepoints/..%5C..%00{'z' * 24}", b"", 404, "is not a request id"),
        ("GET", f"/v1/jobs/{JOB}/checkpoints/details/x", b"", 400, "is not a number"),
        ("GET", f"/v1/jobs/{JOB}/checkpoints/details/99999999999999999999", b"", 400, "is not a number"),
        ("GET", f"/v1/jobs/{JOB}/checkpoints/details/3", b"", 404, "is unknown"),
        ("GET", f"/v1/jobs/{JOB}/exceptions?maxExceptions=-1", b"", 400, "is not a number"),
        ("GET", f"/v1/jobs/{JOB}/vertices/{'0' * 32}", b"", 404, "has no vertex"),
        ("GET", f"/v1/jobs/{JOB}/checkpoints/config", b"", 404, "has written its settings"),
        ("POST", "/v1/savepoint-disposal", b"{}", 400, "savepoint-path"),
        ("POST", "/v1/savepoint-disposal", b'{"savepoint-path": "/data/none"}', 400, "is no savepoint"),
        ("GET", f"/v1/savepoint-disposal/{'0' * 32}", b"", 404, "has not deleted a savepoint"),
    ],
)
def test_bad_requests(  # noqa: PLR0917 - the columns of the table
    start: Start, rest: AsgiClient, method: str, path: str, body: bytes, status: int, words: str
) -> None:
    """Each is refused with an error that says why, and nothing is asked of the job."""
    assert words in errors(rest.request(method, path, content=body), status)
    assert start.storage.names("requests") == []


def test_a_savepoint_in_the_jobs_own_storage_is_refused(start: Start, rest: AsgiClient) -> None:
    """There the job deletes what is not its own."""
    body = {"target-directory": str(start.store / "views" / "sp")}
    assert "job's own storage" in errors(rest.post(f"/v1/jobs/{JOB}/savepoints", json=body), 400)


def test_read_only(start: Start, tmp_path: Path) -> None:
    """A server that only shows jobs shows them, and refuses everything else."""
    rest = client(start.store, read_only=True)
    savepoint = tmp_path / "sp"
    shutil.copytree(GOLDEN, savepoint)
    assert rest.get("/v1/jobs/overview").json()["jobs"][0]["jid"] == JOB
    assert rest.get("/v1/config").json()["features"]["web-cancel"] is False
    for path in (f"/v1/jobs/{JOB}/savepoints", f"/v1/jobs/{JOB}/stop", f"/v1/jobs/{JOB}/checkpoints"):
        assert "read-only" in errors(rest.post(path, json={}), 403)
    assert "read-only" in errors(rest.request("PATCH", f"/v1/jobs/{JOB}"), 403)
    answer = rest.post("/v1/savepoint-disposal", json={"savepoint-path": str(savepoint)})
    assert "read-only" in errors(answer, 403)
    assert (savepoint / MANIFEST).exists()
    assert start.storage.names("requests") == []


def test_every_path_with_and_without_a_version(start: Start, rest: AsgiClient) -> None:
    """What is asked with `/v1` is answered without it, too."""
    for path in (
        "/jobs",
        "/jobs/overview",
        "/overview",
        "/config",
        f"/jobs/{JOB}",
        f"/jobs/{JOB}/status",
        f"/jobs/{JOB}/plan",
    ):
        plain, versioned = rest.get(path), rest.get(f"/v1{path}")
        assert plain.status_code == versioned.status_code == 200
        assert set(plain.json()) == set(versioned.json())
    assert rest.get(f"/jobs/{JOB}/status").json() == {"status": "INITIALIZING"}
    ids = {one["id"] for one in rest.get(f"/jobs/{JOB}/metrics").json()}
    assert {"numRestarts", "lastCheckpointDuration"} <= ids


def test_disposal(rest: AsgiClient, tmp_path: Path) -> None:
    """A savepoint is deleted with all that it names, and nothing else; whoever polls is told so, by this server only."""
    savepoint = tmp_path / "sp 1"
    shutil.copytree(GOLDEN, savepoint)
    (savepoint / "notes.txt").write_text("mine")
    request = asked(rest, "/v1/savepoint-disposal", {"savepoint-path": savepoint.as_uri()})
    assert [path.name for path in savepoint.iterdir()] == ["notes.txt"]
    polled = rest.get(f"/v1/savepoint-disposal/{request}")
    assert polled.json() == {"status": {"id": "COMPLETED"}, "operation": {}}
    errors(client(tmp_path).get(f"/v1/savepoint-disposal/{request}"), 404)
    again = rest.post("/v1/savepoint-disposal", json={"savepoint-path": str(savepoint)})
    assert "is no savepoint" in errors(again, 400)
    shutil.rmtree(savepoint)
    shutil.copytree(GOLDEN, savepoint)
    asked(rest, "/v1/savepoint-disposal", {"savepoint-path": str(savepoint)})
    assert not savepoint.exists()


def dispose_of(rest: AsgiClient, savepoint: Path) -> Any:
    return rest.post("/v1/savepoint-disposal", json={"savepoint-path": str(savepoint)})


def forged(savepoint: Path, victim: str) -> None:
    """A manifest whose checksum is right, and that names another file instead of one of its own."""
    manifest = read_manifest(LocalStorage(savepoint))
    uid, operator = next((uid, one) for uid, one in manifest.operators.items() if any(one.files.values()))
    table, files = next((table, files) for table, files in operator.files.items() if files)
    first, *others = files
    named = msgspec.structs.replace(first, path=victim)
    changed = msgspec.structs.replace(operator, files={**operator.files, table: (named, *others)})
    operators = {**manifest.operators, uid: changed}
    (savepoint / MANIFEST).write_bytes(encode(msgspec.structs.replace(manifest, operators=operators)))


def test_disposal_deletes_nothing_that_a_forged_manifest_names(rest: AsgiClient, tmp_path: Path) -> None:
    """Whoever writes a manifest can name any file beside it: one with another size or checksum is not of the savepoint."""
    for content in (b"another size", None):
        savepoint = tmp_path / "sp"
        shutil.copytree(GOLDEN, savepoint)
        before = next(read_manifest(LocalStorage(savepoint)).files)
        victim = savepoint / "state" / "cards" / "values" / "9-0a0b0c0d.parquet"
        victim.write_bytes(content or b"x" * before.size)
        forged(savepoint, str(victim.relative_to(savepoint)))
        there = sorted(savepoint.rglob("*"))
        assert "nothing was deleted" in errors(dispose_of(rest, savepoint), 400)
        assert sorted(savepoint.rglob("*")) == there
        shutil.rmtree(savepoint)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("given_away", ["manifest", "file", "folder"])
def test_disposal_deletes_nothing_that_belongs_to_several(
    rest: AsgiClient, tmp_path: Path, given_away: str
) -> None:
    """In a folder that many can write to, somebody who cannot delete a file could have it deleted by the server."""
    savepoint = tmp_path / "sp"
    shutil.copytree(GOLDEN, savepoint)
    file = next(read_manifest(LocalStorage(savepoint)).files).path
    os.chown(
        {"manifest": savepoint / MANIFEST, "file": savepoint / file, "folder": savepoint}[given_away],
        12345,
        12345,
    )
    there = sorted(savepoint.rglob("*"))
    assert "its owner is not the owner of the folder" in errors(dispose_of(rest, savepoint), 400)
    assert sorted(savepoint.rglob("*")) == there


def test_disposal_is_recorded(
    rest: AsgiClient, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the journal of the job whose savepoint it was, and in the log: who had it deleted."""
    savepoint = tmp_path / "sp"
    shutil.copytree(GOLDEN, savepoint)
    manifest = read_manifest(LocalStorage(savepoint))
    origin = msgspec.structs.replace(manifest.origin, job="views")
    (savepoint / MANIFEST).write_bytes(encode(msgspec.structs.replace(manifest, origin=origin)))
    assert dispose_of(rest, savepoint).status_code == 202
    (name,) = start.storage.names("events")
    (told,) = read_segment(start.storage, name).events
    assert isinstance(told, SavepointDeleted)
    assert (told.folder, told.by) == (str(savepoint), "Flink's REST interface, from 127.0.0.1")
    assert str(savepoint) in caplog.text


def test_disposal_keeps_to_folders_that_were_configured(start: Start, tmp_path: Path) -> None:
    """What lies elsewhere is not deleted from here; what lies beside a job is."""
    rest = AsgiClient(Starlette(routes=list(flink_routes(PlainLooker(str(start.store))))))
    elsewhere, beside = tmp_path / "sp", start.store / "views-savepoints" / "1"
    for one in (elsewhere, beside):
        shutil.copytree(GOLDEN, one)
    assert "--savepoints" in errors(dispose_of(rest, elsewhere), 400)
    assert (elsewhere / MANIFEST).exists()
    assert dispose_of(rest, beside).status_code == 202
    assert not beside.exists()


def test_disposal_refuses_what_is_not_a_savepoint(start: Start, rest: AsgiClient, tmp_path: Path) -> None:
    """A manifest that is damaged, a folder of a job, a link inside or on the way into a job: nothing is deleted."""
    damaged, linked = tmp_path / "damaged", tmp_path / "linked"
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(GOLDEN, damaged)
    manifest = (damaged / MANIFEST).read_text()
    (damaged / MANIFEST).write_text(manifest.replace('"checkpoint": ', '"checkpoint": 1'))
    shutil.copytree(GOLDEN, linked)
    shutil.move(linked / "state", elsewhere)
    (linked / "state").symlink_to(elsewhere)
    pointing = tmp_path / "pointing"
    pointing.mkdir()
    (pointing / MANIFEST).symlink_to(GOLDEN / MANIFEST)
    inside = start.store / "views" / "sp"
    shutil.copytree(GOLDEN, inside)
    (tmp_path / "shortcut").symlink_to(start.store / "views")
    unknown = tmp_path / "other-store" / "job"  # of a job that the server does not know
    shutil.copytree(GOLDEN, unknown / "sp")
    (unknown / JOB_FILE).write_bytes(b"{}")
    before = sorted(path for path in tmp_path.rglob("*"))
    for path, status, words in [
        (damaged, 500, "is corrupt"),
        (linked, 400, "is a link, or is reached through one"),
        (pointing, 400, "is a link, or is reached through one"),
        (inside, 400, "is in the storage of a job"),
        (tmp_path / "shortcut" / "sp", 400, "is in the storage of a job"),
        (unknown / "sp", 400, "is in the storage of a job"),
        (start.store / "views", 400, "is in the storage of a job"),
        (start.store, 400, "job's own storage"),
        (Path(f"{start.store}/x/../views/sp"), 400, "is in the storage of a job"),
    ]:
        answer = rest.post("/v1/savepoint-disposal", json={"savepoint-path": str(path)})
        assert words in errors(answer, status), path
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("swapped", ["", "state"])
def test_disposal_deletes_nothing_behind_a_link_that_comes_meanwhile(
    rest: AsgiClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """A folder that becomes a link to another savepoint, after all was looked at, does not lead the deed there."""
    savepoint, other, aside = tmp_path / "sp", tmp_path / "other", tmp_path / "aside"
    shutil.copytree(GOLDEN, savepoint)
    shutil.copytree(GOLDEN, other)
    before = sorted(path for path in other.rglob("*"))
    look = savepoint_disposal._refuse_of_others

    def look_and_swap(*given: Any) -> None:
        look(*given)
        (savepoint / swapped).rename(aside)
        (savepoint / swapped).symlink_to(other / swapped)

    monkeypatch.setattr(savepoint_disposal, "_refuse_of_others", look_and_swap)
    answer = rest.post("/v1/savepoint-disposal", json={"savepoint-path": str(savepoint)})
    assert sorted(path for path in other.rglob("*")) == before
    if swapped:
        assert "is reached through a link that appeared just now" in errors(answer, 400)
        assert (savepoint / MANIFEST).exists()
    else:  # what was looked at is what went
        assert answer.status_code == 202
        assert not (aside / MANIFEST).exists()


def test_who_asked_is_noted(start: Start, rest: AsgiClient) -> None:
    """The job can say where a request came from."""
    request = asked(rest, f"/v1/jobs/{JOB}/checkpoints", {})
    assert read_request(start.storage, request).by == "Flink's REST interface, from 127.0.0.1"
    assert start.claim.run == RunId(1)
