"""What the server answers: twins, streams, actions, refusals. In one process, over jobs in storage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.dashboard_site import HOSTILE, TOKEN, StoredJob, TestClient, ui_options
from penstock.dashboard import gate
from penstock.dashboard.access import Access
from penstock.dashboard.app import make_app
from penstock.dashboard.status_poller import StatusPoller
from penstock.requests.request_files import Done, Kind, answer, read_request
from penstock.status.jobs import job_id
from services.patience import tries

TRICKS = [
    "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..%5cetc", "%2fetc%2fpasswd", "%00", "views%00", "views%0d%0aX:1", "%c3%28", "~root",
    "x" * 1900, "%252e%252e", "views%2f..%2fother", "-", "'; DROP TABLE", "{job}", "\u202eviews",
]  # fmt: skip

Client = Callable[..., TestClient]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a server over the jobs in a folder."""
    opened: list[TestClient] = []

    def make(token: str | None = None, **options: Any) -> TestClient:
        rules = Access(ui_options("127.0.0.1:8090", token, **options), 8090)
        app = make_app(StatusPoller([str(tmp_path)]), rules)
        made = TestClient(app, base_url="http://127.0.0.1:8090", follow_redirects=False)
        opened.append(made.__enter__())
        return made

    yield make
    for one in opened:
        one.__exit__(None, None, None)


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    """One for those who only read, over a job that ran, and its storage."""
    place = tmp_path_factory.mktemp("storage")
    StoredJob(place).complete(3)
    app = make_app(StatusPoller([str(place)]), Access(ui_options("127.0.0.1:8090"), 8090))
    with TestClient(app, base_url="http://127.0.0.1:8090", follow_redirects=False) as made:
        yield made, place


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    """One that ran, completed a checkpoint and failed."""
    made = StoredJob(tmp_path)
    made.complete(3)
    made.fail()
    return made


# ── twins ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_overview_has_every_job(client: Client, job: StoredJob, tmp_path: Path) -> None:
    """With what a person needs in five seconds; one that is damaged is there too."""
    other = StoredJob(tmp_path, "orders")
    other.storage.put("runs/1.json", b"\x00 no record")
    with job.running():
        found = {one["name"]: one for one in client().get("/index.json").json()["jobs"]}
    assert set(found) == {"views", "orders"}
    views = found["views"]
    assert views["state"] == "running"
    assert views["id"] == job_id("views")
    assert (views["checkpoint"], views["rows_per_s"], views["behind"]) == (3, 120.5, 30)
    assert views["interval_s"] == 10.0
    assert views["last_failure"] == HOSTILE
    assert found["orders"]["unreadable"]


def test_every_page_has_a_twin(client: Client, job: StoredJob) -> None:
    """By the name of the job and by its id."""
    answers = client()
    for called in ("views", job_id("views")):
        view = answers.get(f"/jobs/{called}.json").json()
        assert (view["name"], view["plan"]["nodes"][0]["what"]) == ("views", HOSTILE)
        listed = answers.get(f"/jobs/{called}/checkpoints.json").json()
        assert [one["checkpoint"] for one in listed["checkpoints"]] == [3]
        assert listed["settings"]["interval_s"] == 10.0
        one = answers.get(f"/jobs/{called}/checkpoints/3-r1.json").json()
        assert one["async_ms"] == 300.0
        assert answers.get(f"/jobs/{called}/failures.json").json()["failures"][0]["why"] == HOSTILE
        told = [event["event"] for event in answers.get(f"/jobs/{called}/journal.json").json()["events"]]
        assert told == ["run_failed", "checkpoint_completed", "run_started"]
        assert answers.get(f"/jobs/{called}/actions.json").json()["allowed"] == []
        assert answers.get(f"/jobs/{called}/state.json").json() is None


def test_what_a_running_job_can_be_asked_is_told(client: Client, job: StoredJob) -> None:
    """And nothing where nothing may be asked."""
    with job.running():
        assert client().get("/jobs/views/actions.json").json()["allowed"] == [str(kind) for kind in Kind]
        assert client(read_only=True).get("/jobs/views/actions.json").json()["allowed"] == []


def test_what_is_new_is_shown(client: Client, job: StoredJob) -> None:
    """A checkpoint that completes appears by itself."""
    answers = client()
    assert answers.get("/jobs/views.json").json()["live"]["batch"] == 7
    with job.running():
        job.live(batch=8)
        for _ in tries(0.05):
            if answers.get("/jobs/views.json").json()["live"]["batch"] == 8:
                return
    pytest.fail("it is not shown")


@pytest.mark.parametrize(
    "path",
    ["/jobs/view.json", "/jobs/view/checkpoints.json", "/jobs/view/events", "/jobs/view/state/a/b.json"],
)
def test_an_unknown_job_is_told_with_those_that_there_are(client: Client, job: StoredJob, path: str) -> None:
    """404, and the name that was perhaps meant."""
    refused = client().get(path)
    assert refused.status_code == 404
    assert "there is no job 'view'; there are: views; did you mean 'views'?" in refused.json()["error"]


@pytest.mark.parametrize("asked", ["4-r1", "3-r2", "3", "x-ry", "3-r1-r1", "9" * 30 + "-r1"])
def test_an_unknown_checkpoint_is_told(client: Client, job: StoredJob, asked: str) -> None:
    """404, with how it is written."""
    refused = client().get(f"/jobs/views/checkpoints/{asked}.json")
    assert refused.status_code == 404
    assert "NUMBER-rRUN" in refused.json()["error"]


# ── path tricks ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize(
    "path",
    [
        "/jobs/{}.json", "/jobs/{}/checkpoints.json", "/jobs/views/checkpoints/{}.json", "/jobs/views/requests/{}.json",
        "/jobs/views/state/{}/n.json", "/jobs/views/state/cards/{}.json", "/static/{}", "/jobs/{}/events", "/{}", "/login?next={}",
        "/jobs/views/actions.json?request={}", "/jobs/views/state/cards/n.json?key={}", "/v1/jobs/{}", "/jobs/{}/checkpoints/details/3",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_storage(reading: tuple[TestClient, Path], path: str, trick: str) -> None:
    """Whatever stands in a parameter: a refusal or an empty answer, nothing of another file, no new file, no error of ours."""
    client, place = reading
    before = sorted(place.rglob("*"))
    told = client.get(path.format(trick), headers={"Accept": "application/json"})
    assert told.status_code in (200, 303, 400, 404)
    assert "root:" not in told.text
    if told.status_code == 200:
        assert told.text.startswith(("<!doctype", '{"job"'))
    if told.status_code == 303:
        assert told.headers["location"].startswith("/")
        assert not told.headers["location"].startswith("//")
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("path", ["/jobs/{}/actions/stop", "/jobs/views/actions/{}"])
def test_no_action_is_asked_of_an_odd_name(client: Client, job: StoredJob, path: str, trick: str) -> None:
    """Refused, and no request is left anywhere."""
    with job.running():
        assert client().post(path.format(trick)).status_code in (400, 404)
        assert job.storage.names("requests") == []


def test_a_session_ends_with_the_log_out(client: Client, job: StoredJob) -> None:
    """Whoever has kept a copy of the cookie has nothing, and other sessions go on."""
    answers = client(TOKEN)
    cookies = []
    for _ in range(2):
        answers.cookies.clear()
        answers.get(f"/login?token={TOKEN}")
        cookies.append(answers.cookies["penstock-8090"])
    answers.cookies.clear()
    kept, other = ({"cookie": f"penstock-8090={one}"} for one in cookies)
    assert answers.get("/index.json", headers=kept).status_code == 200
    assert answers.post("/logout", headers=kept).status_code == 303
    assert answers.get("/index.json", headers=kept).status_code == 401
    assert answers.get("/index.json", headers=other).status_code == 200


@pytest.mark.parametrize(
    ("headers", "secure"),
    [
        ({}, False),
        ({"x-forwarded-proto": "https"}, True),
        ({"origin": "https://127.0.0.1:8090"}, True),
        ({"x-forwarded-proto": "http"}, False),
    ],
)
def test_behind_a_proxy_with_tls_the_cookie_is_secure(
    client: Client, headers: dict[str, str], secure: bool
) -> None:
    """A browser then never sends it without encryption."""
    answer = client(TOKEN).post("/login", data={"token": TOKEN}, headers=headers)
    assert answer.status_code == 303
    assert ("secure" in answer.headers["set-cookie"].lower()) == secure


@pytest.mark.parametrize("how", ["header", "form", "address"])
def test_guesses_are_slowed_and_logged(
    client: Client,
    job: StoredJob,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One at a time, with a pause, and one line a minute that says from where; the right token does not wait."""
    answers, wrong = client(TOKEN), "another-token-of-this-length"
    pauses: list[float] = []

    async def paused(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(gate.asyncio, "sleep", paused)
    for _ in range(3):
        if how == "header":
            assert answers.get("/index.json", headers={"authorization": f"Bearer {wrong}"}).status_code == 401
        elif how == "form":
            assert answers.post("/login", data={"token": wrong}).status_code == 401
        else:
            assert answers.get(f"/login?token={wrong}").status_code == 200
    assert pauses.count(gate.PAUSE_S) == 3
    assert [one.getMessage() for one in caplog.records if "token" in one.getMessage()] == [
        "the dashboard received 1 wrong token, the last from testclient"
    ]
    assert wrong not in caplog.text
    assert answers.get("/index.json", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert pauses.count(gate.PAUSE_S) == 3


# ── actions ────────────────────────────────────────────────────────────────────────────────────────


def test_savepoints_go_below_folders_that_were_configured(
    client: Client, job: StoredJob, tmp_path: Path
) -> None:
    """Or beside the job, as without a folder; a link below an allowed folder leads nowhere else."""
    allowed, elsewhere = tmp_path / "saved", tmp_path / "home-of-root"
    allowed.mkdir()
    elsewhere.mkdir()
    (allowed / "shortcut").symlink_to(elsewhere)
    answers = client(savepoints=(str(allowed),))
    with job.running():
        for folder in (
            elsewhere / "x",
            allowed / "shortcut" / "x",
            allowed / ".." / "x",
            allowed,
            tmp_path / "savedx",
        ):
            refused = answers.post("/jobs/views/actions/savepoint", json={"to": str(folder)})
            assert refused.status_code == 400, folder
            assert "--savepoints" in refused.json()["error"]
        assert job.storage.names("requests") == []
        for folder in (allowed / "a", allowed / "b" / "c", tmp_path / "views-savepoints" / "mine"):
            assert answers.post("/jobs/views/actions/savepoint", json={"to": str(folder)}).status_code == 202


def test_the_address_that_is_printed_logs_in(client: Client, job: StoredJob) -> None:
    """Its token becomes a cookie, and the address in the browser has it no more; another token is asked for."""
    answers = client(TOKEN)
    wrong = answers.get("/login?token=another-token-of-this-length", headers={"accept": "text/html"})
    assert (wrong.status_code, wrong.cookies) == (200, {})
    opened = answers.get(f"/login?token={TOKEN}")
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert answers.get("/index.json").status_code == 200


def test_a_savepoint_is_asked_for_and_its_outcome_told(
    client: Client, job: StoredJob, tmp_path: Path
) -> None:
    """202 with the id of the request, which lies in the job's storage; the outcome comes when the job has said it."""
    answers = client(savepoints=(str(tmp_path),))
    with job.running():
        asked = answers.post("/jobs/views/actions/savepoint", json={"to": str(tmp_path / "saved")})
    assert asked.status_code == 202
    told = asked.json()
    assert asked.headers["location"] == told["outcome"]
    wish = read_request(job.storage, told["request"])
    assert (wish.kind, wish.to) == (Kind.SAVEPOINT, str(tmp_path / "saved"))
    assert wish.by.startswith("dashboard on ")
    assert answers.get(told["outcome"]).json()["state"] == "waiting"
    answer(job.storage, told["request"], Done(ok=True, facts={"savepoint": "/there"}))
    done = answers.get(told["outcome"]).json()
    assert (done["state"], done["facts"]) == ("done", {"savepoint": "/there"})
    shown = answers.get(f"/jobs/views/actions.json?request={told['request']}").json()
    assert shown["outcome"]["state"] == "done"


def test_a_browser_is_sent_on_to_the_page(client: Client, job: StoredJob) -> None:
    """A form is answered with 303, so that a reload asks for nothing again."""
    with job.running():
        asked = client().post(
            "/jobs/views/actions/stop",
            data={"savepoint": "on", "drain": "true", "to": ""},
            headers={"Accept": "text/html", "Origin": "http://127.0.0.1:8090"},
        )
    assert asked.status_code == 303
    path, _, request = asked.headers["location"].partition("?request=")
    assert path == "/jobs/views/actions"
    wish = read_request(job.storage, request)
    assert (wish.kind, wish.savepoint, wish.drain, wish.to) == (Kind.STOP, True, True, None)


def test_a_refused_form_comes_back_as_the_page_of_actions(client: Client, job: StoredJob) -> None:
    """With what is wrong on top, the buttons below it, and nothing that asks again by itself; nothing was asked of the job."""
    with job.running():
        refused = client().post(
            "/jobs/views/actions/savepoint",
            data={"to": "backups/<today>"},
            headers={"Accept": "text/html", "Origin": "http://127.0.0.1:8090"},
        )
        assert job.storage.names("requests") == []
    assert (refused.status_code, refused.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert "the folder &#39;backups/&lt;today&gt;&#39; is not an absolute path" in refused.text
    assert 'data-opens="confirm-savepoint"' in refused.text
    assert 'href="/jobs/views/actions"' in refused.text
    assert "An absolute path that starts with /" in refused.text
    assert 'id="live" hx-get' not in refused.text


@pytest.mark.parametrize("kind", ["checkpoint", "cancel", "stop"])
def test_nothing_needs_to_be_said_with_an_action(client: Client, job: StoredJob, kind: str) -> None:
    """An empty body is an empty wish."""
    with job.running():
        told = client().post(f"/jobs/views/actions/{kind}").json()
    assert read_request(job.storage, told["request"]).kind == kind


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("savepoint", b'{"to": "relative"}', "not an absolute path"),
        ("savepoint", b'{"to": "../up"}', "not an absolute path"),
        ("savepoint", b'{"to": "s3://bucket/x"}', "s3"),
        ("savepoint", b'{"to": "/a\\u0000b"}', "null"),
        ("savepoint", b'{"to": 7}', "Expected `str"),
        ("savepoint", b'{"two": "/x"}', "two"),
        ("savepoint", b'{"to": "/x"', "cannot be decoded"),
        ("savepoint", b"\xff\xfe", "cannot be decoded"),
        ("savepoint", b"[" * 5000, "cannot be decoded"),
        ("savepoint", b'{"drain": true}', "drain applies to a stop"),
        ("cancel", b'{"savepoint": true}', "savepoint=true applies to a stop"),
        ("stop", b'{"to": "/x"}', "the request makes none"),
        ("checkpoint", b'"text"', "cannot be decoded"),
    ],
)
def test_a_bad_wish_is_refused(client: Client, job: StoredJob, kind: str, body: bytes, says: str) -> None:
    """400 with what is wrong, and nothing is asked of the job."""
    with job.running():
        refused = client().post(
            f"/jobs/views/actions/{kind}", content=body, headers={"Content-Type": "application/json"}
        )
        assert refused.status_code == 400
        assert says in refused.json()["error"]
        assert job.storage.names("requests") == []


@pytest.mark.parametrize(
    "form", [b"drain=perhaps", b"x=1", b"&".join([b"a=1"] * 50), b"to=%ff", b"drain=true&drain=perhaps"]
)
def test_a_bad_form_is_refused(client: Client, job: StoredJob, form: bytes) -> None:
    """As bad JSON is."""
    with job.running():
        refused = client().post(
            "/jobs/views/actions/stop",
            content=form,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert refused.status_code == 400
        assert job.storage.names("requests") == []


def test_a_folder_of_the_job_itself_is_refused(client: Client, job: StoredJob, tmp_path: Path) -> None:
    """The job would delete the savepoint."""
    with job.running():
        refused = client().post(
            "/jobs/views/actions/savepoint", json={"to": str(tmp_path / "views" / "saved")}
        )
    assert refused.status_code == 400
    assert "the job's own storage" in refused.json()["error"]


def test_a_job_that_does_not_run_is_asked_for_nothing(client: Client, job: StoredJob) -> None:
    """409, with how its last run ended."""
    job.end()
    refused = client().post("/jobs/views/actions/stop")
    assert refused.status_code == 409
    assert "is not running: its last run, 1, is over: stopped" in refused.json()["error"]


def test_who_may_only_look_asks_for_nothing(client: Client, job: StoredJob) -> None:
    """403 for our actions and for Flink's."""
    with job.running():
        answers = client(read_only=True)
        for method, path in (
            ("POST", "/jobs/views/actions/stop"),
            ("PATCH", f"/v1/jobs/{job_id('views')}"),
            ("POST", f"/jobs/{job_id('views')}/stop"),
        ):
            assert answers.request(method, path, json={}).status_code == 403
        assert job.storage.names("requests") == []
        assert answers.get("/index.json").status_code == 200


def test_another_site_asks_for_nothing(client: Client, job: StoredJob) -> None:
    """403 for ours and for Flink's paths."""
    with job.running():
        answers = client()
        for path in ("/jobs/views/actions/cancel", f"/v1/jobs/{job_id('views')}/savepoints"):
            for headers in ({"Origin": "http://evil.com"}, {"Sec-Fetch-Site": "cross-site"}):
                assert answers.post(path, json={}, headers=headers).status_code == 403
        assert job.storage.names("requests") == []


# ── the token ──────────────────────────────────────────────────────────────────────────────────────


def test_a_program_sends_the_token(client: Client, job: StoredJob) -> None:
    """Without it nothing is shown, not even which jobs there are; a wrong one is called wrong, and is not repeated."""
    answers = client(TOKEN)
    for path in (
        "/index.json",
        "/jobs/views.json",
        "/jobs/nobody.json",
        "/events",
        "/metrics",
        "/v1/jobs/overview",
        "/nothing",
    ):
        refused = answers.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "views" not in refused.text
    wrong = answers.get("/index.json", headers={"Authorization": "Bearer wrong-token-of-32-characters-xx"})
    assert wrong.status_code == 401
    assert "wrong-token" not in wrong.text
    assert answers.get("/index.json", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_person_logs_in_once(client: Client, job: StoredJob) -> None:
    """The page leads to the login and back; the cookie is no token, and scripts and other sites do not have it."""
    answers = client(TOKEN)
    sent = answers.get("/jobs/views?x=1", headers={"Accept": "text/html"})
    assert sent.status_code == 303
    assert sent.headers["location"] == "/login?next=%2Fjobs%2Fviews%3Fx%3D1"
    form = answers.get(sent.headers["location"], headers={"Accept": "text/html"})
    assert 'value="/jobs/views?x=1"' in form.text
    wrong = answers.post("/login", data={"token": "nonsense", "next": "/"}, headers={"Accept": "text/html"})
    assert wrong.status_code == 401
    assert "not the token" in wrong.text
    assert "set-cookie" not in wrong.headers
    right = answers.post("/login", data={"token": TOKEN, "next": "/jobs/views?x=1"})
    assert (right.status_code, right.headers["location"]) == (303, "/jobs/views?x=1")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert answers.get("/index.json").status_code == 200
    out = answers.post("/logout")
    assert out.status_code == 303
    assert answers.get("/index.json").status_code == 401


def test_the_login_is_escaped(client: Client) -> None:
    """Where to go on is text of others."""
    page = client(TOKEN).get('/login?next=/"><script>alert(1)</script>')
    assert "<script>" not in page.text


def test_a_token_in_an_address_opens_nothing(client: Client) -> None:
    """Addresses are logged by everybody on the way."""
    assert client(TOKEN).get(f"/index.json?token={TOKEN}").status_code == 401


# ── headers ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path", ["/index.json", "/nothing", "/healthz", "/jobs/x.json", "/metrics", "/v1/config"]
)
def test_every_answer_is_guarded(client: Client, path: str) -> None:
    """No other site frames it, no cache keeps it, no browser guesses its type."""
    headers = client().get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_foreign_host_sees_nothing(client: Client, job: StoredJob) -> None:
    """421 for every path."""
    answers = client()
    for path in ("/", "/index.json", "/healthz", "/static/x", "/login"):
        assert answers.get(path, headers={"Host": "evil.com"}).status_code == 421


@pytest.mark.parametrize("path", ["/healthz", "/login"])
def test_strangers_do_not_make_it_look(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows nothing of jobs waits for no storage: forty who ask for it would take all threads from those with a token."""
    poller = StatusPoller([str(tmp_path)])
    monkeypatch.setattr(poller, "wait", lambda: pytest.fail("somebody without a token waits for storage"))
    app = make_app(poller, Access(ui_options("127.0.0.1:8090", TOKEN), 8090))
    with TestClient(app, base_url="http://127.0.0.1:8090") as stranger:
        assert stranger.get(path).status_code == 200


def test_health_says_that_it_is_penstock_and_nothing_of_jobs(client: Client, job: StoredJob) -> None:
    """Shown to everybody."""
    said = client(TOKEN).get("/healthz").json()
    assert (said["status"], said["pid"]) == ("ok", os.getpid())
    assert set(said) == {"penstock", "pid", "status"}


def test_too_much_is_refused(client: Client, job: StoredJob) -> None:
    """With its length in the header, or without."""
    answers = client()

    def parts() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * 1024

    with job.running():
        for content in (b"x" * 10_000_000, parts()):
            refused = answers.post("/jobs/views/actions/stop", content=content)
            assert refused.status_code == 413
            assert "64 KB" in refused.json()["error"]
        refused = answers.post("/v1/jobs/views/stop", content=parts())
        assert refused.status_code == 413
        assert "64 KB" in refused.json()["errors"][0]
        assert job.storage.names("requests") == []
    assert answers.post("/login", content=b"token=" + b"x" * 100_000).status_code == 413


def test_refusals_are_escaped_for_people(client: Client) -> None:
    """A page for a browser, JSON for a program."""
    refused = client().get(
        "/jobs/<script>alert(1)<%2fscript>x/nothing/at/all", headers={"Accept": "text/html"}
    )
    assert refused.status_code == 404
    assert refused.headers["content-type"].startswith("text/html")
    unknown = client().get(
        f"/jobs/{HOSTILE.replace('/', '%2f')}.json", headers={"Accept": "application/json"}
    )
    assert unknown.headers["content-type"] == "application/json"
    json.loads(unknown.text)
