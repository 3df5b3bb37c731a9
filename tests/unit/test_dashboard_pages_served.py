"""Pages as the server gives them: each path, to browsers and to others, with text of others escaped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from builders.dashboard_site import HOSTILE, TOKEN, StoredJob, TestClient, ui_options
from penstock.dashboard.access import Access
from penstock.dashboard.app import make_app
from penstock.dashboard.pages import job_pages
from penstock.dashboard.responses import StaticFiles
from penstock.dashboard.status_poller import StatusPoller
from penstock.savepoint.manifest import MANIFEST, encode, read_manifest
from penstock.status.events import SavepointMade
from penstock.status.jobs import job_id
from penstock.storage import LocalStorage
from services.patience import tries

GOLDEN = Path(__file__).parents[1] / "golden" / "savepoint-1" / "saved"

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGES = ["/", "/jobs/views", "/jobs/views/batches", "/jobs/views/checkpoints", "/jobs/views/checkpoints/3-r1", "/jobs/views/failures",
         "/jobs/views/journal", "/jobs/views/state", "/jobs/views/savepoints", "/jobs/views/actions"]  # fmt: skip


def client_of(place: Path, token: str | None = None) -> TestClient:
    rules = Access(ui_options("127.0.0.1:8090", token), 8090)
    app = make_app(StatusPoller([str(place)]), rules)
    return TestClient(app, base_url="http://127.0.0.1:8090", follow_redirects=False)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Over a job that runs."""
    job = StoredJob(tmp_path_factory.mktemp("storage"))
    job.complete(3)
    job.fail()
    with job.running(), client_of(job.place) as made:
        yield made


@pytest.mark.parametrize("path", PAGES)
def test_a_browser_gets_the_page(client: TestClient, path: str) -> None:
    """With the name of the job, a link to its twin, and nothing of others that a browser would run."""
    page = client.get(path, headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "views" in page.text
    assert HOSTILE not in page.text
    twin = "/index.json" if path == "/" else f"{path}.json"
    assert f'href="{twin}"' in page.text
    assert client.get(twin).status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_every_file_that_a_page_names_is_there(client: TestClient, path: str) -> None:
    """Of this server: no other host is named."""
    text = client.get(path, headers=BROWSER).text
    named = [part.split('"')[0] for part in text.split('="/static/')[1:]]
    assert named
    assert set(named) <= StaticFiles().names
    assert 'src="http' not in text
    for name in set(named):
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200
        again = client.get(f"/static/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304


def test_who_does_not_ask_for_a_page_gets_what_flinks_client_wants(client: TestClient) -> None:
    """Where both have the path; where only we have it, the page."""
    told = client.get(f"/jobs/{job_id('views')}").json()
    assert told["jid"] == job_id("views")
    assert "counts" in client.get(f"/jobs/{job_id('views')}/checkpoints").json()
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert client.get("/jobs/views/failures").headers["content-type"].startswith("text/html")
    assert client.get("/v1/jobs/overview", headers=BROWSER).json()["jobs"][0]["name"] == "views"


def test_what_there_is_not_is_a_page_too(client: TestClient) -> None:
    """With the name that was perhaps meant, escaped."""
    missing = client.get("/jobs/view", headers=BROWSER)
    assert missing.status_code == 404
    assert "did you mean &#39;views&#39;" in missing.text
    odd = client.get("/jobs/%3Cscript%3Ealert", headers=BROWSER)
    assert odd.status_code == 404
    assert "<script>alert" not in odd.text
    assert client.get("/jobs/views/checkpoints/9-r9", headers=BROWSER).status_code == 404


def test_the_login_is_a_page(tmp_path: Path) -> None:
    """Shown instead of any other; it needs files that are open."""
    with client_of(tmp_path, TOKEN) as client:
        sent = client.get("/", headers=BROWSER)
        assert sent.headers["location"] == "/login?next=%2F"
        page = client.get("/login?next=%2F%22%3E%3Cb%3E", headers=BROWSER)
        assert 'name="token"' in page.text
        assert "<b>" not in page.text
        for part in page.text.split('="/static/')[1:]:
            assert client.get("/static/" + part.split('"')[0]).status_code == 200


def test_a_job_that_cannot_be_read_has_its_pages(tmp_path: Path) -> None:
    """All of them, with what is wrong; and the overview shows the other jobs."""
    broken = StoredJob(tmp_path, "broken")
    broken.storage.put("runs/1.json", b"no record")
    StoredJob(tmp_path)
    with client_of(tmp_path) as client:
        assert client.get("/jobs/broken.json").json()["unreadable"]
        for page in ("", "/checkpoints", "/failures", "/journal", "/state", "/actions"):
            assert client.get(f"/jobs/broken{page}", headers=BROWSER).status_code == 200
        assert "views" in client.get("/", headers=BROWSER).text


def test_a_page_is_made_once_for_many(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the job is looked at again."""
    made = []
    render = job_pages.render

    def counted(*given: object, **values: object) -> str:
        made.append(given)
        return render(*given, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(job_pages, "render", counted)
    for _ in range(200):
        assert client.get("/jobs/views", headers=BROWSER).status_code == 200
    assert 0 < len(made) < 50


def test_a_savepoint_is_looked_into_and_deleted(tmp_path: Path) -> None:
    """Only one that the journal names and that lies where this server may delete; what was deleted is listed no more."""
    job = StoredJob(tmp_path)
    saved, outside = tmp_path / "views-savepoints" / "sp 1", tmp_path / "elsewhere"
    for folder in (saved, outside):
        shutil.copytree(GOLDEN, folder)
        job.tell(SavepointMade(at=job.now, run=1, checkpoint=7, folder=str(folder), took_s=1.5))
    manifest = read_manifest(LocalStorage(saved))
    origin = msgspec.structs.replace(manifest.origin, job="views")
    (saved / MANIFEST).write_bytes(encode(msgspec.structs.replace(manifest, origin=origin)))
    page = "/jobs/views/savepoints"
    with client_of(tmp_path) as client:
        assert str(saved) in client.get(page, headers=BROWSER).text
        assert client.get(f"{page}.json").json()["savepoints"] == [str(outside), str(saved)]
        inside = client.get(page, params={"folder": str(saved)}, headers=BROWSER).text
        assert all(f">{uid}</th>" in inside for uid in manifest.operators)
        assert "Delete it" in inside
        assert "--savepoints" in client.get(page, params={"folder": str(outside)}, headers=BROWSER).text
        for folder, status in ((tmp_path / "unknown", 404), (outside, 409)):
            assert client.post(f"{page}/delete", data={"folder": str(folder)}).status_code == status
        assert (outside / MANIFEST).exists()
        deleted = client.post(f"{page}/delete", data={"folder": str(saved)}, headers=BROWSER)
        assert (deleted.status_code, deleted.headers["location"]) == (303, page)
        assert not saved.exists()
        assert any(client.get(f"{page}.json").json()["savepoints"] == [str(outside)] for _ in tries(0.05))
    rules = Access(ui_options("127.0.0.1:8090", None, read_only=True), 8090)
    app = make_app(StatusPoller([str(tmp_path)]), rules)
    with TestClient(app, base_url="http://127.0.0.1:8090") as client:
        assert client.post(f"{page}/delete", data={"folder": str(outside)}).status_code == 403
