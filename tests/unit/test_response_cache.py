"""Cached answers: each is made once for all readers, and only given to readers that the gate lets in."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.asgi_client import AsgiClient
from builders.dashboard_site import TOKEN, StoredJob, ui_options
from penstock.dashboard import responses
from penstock.dashboard.access import Access
from penstock.dashboard.app import make_app
from penstock.dashboard.responses import ResponseCache
from penstock.dashboard.status_poller import StatusPoller

HOST = {"Host": "127.0.0.1:8090"}
LET_IN = {**HOST, "Authorization": f"Bearer {TOKEN}"}
PATHS = ("/metrics", "/", "/index.json", "/jobs/views", "/jobs/views.json", "/v1/jobs/overview")


@pytest.fixture
def poller(tmp_path: Path) -> StatusPoller:
    """One that looks when it is told to."""
    StoredJob(tmp_path).complete(3)
    made = StatusPoller([str(tmp_path)])
    made.look()
    return made


def client_of(poller: StatusPoller, token: str | None = None) -> AsgiClient:
    return AsgiClient(make_app(poller, Access(ui_options("127.0.0.1:8090", token), 8090)))


@pytest.mark.parametrize("path", PATHS)
def test_what_is_kept_is_given_to_nobody_who_is_not_let_in(poller: StatusPoller, path: str) -> None:
    """The gate comes first, however often it was answered before."""
    client = client_of(poller, TOKEN)
    assert [client.get(path, headers=LET_IN).status_code for _ in range(2)] == [200, 200]
    assert client.get(path, headers=HOST).status_code == 401
    assert client.get(path, headers={**LET_IN, "Authorization": "Bearer wrong"}).status_code == 401
    assert client.get(path, headers={**LET_IN, "Host": "evil.example"}).status_code == 421
    assert client.get(path, headers={**LET_IN, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post(path, headers=LET_IN).status_code in (404, 405)


def test_a_page_and_what_programs_get_are_kept_apart(poller: StatusPoller) -> None:
    """One path has both, and a refusal is never kept."""
    client = client_of(poller)
    page, program = {**HOST, "Accept": "text/html"}, {**HOST, "Accept": "application/json"}
    for _ in range(2):
        assert client.get("/jobs/views", headers=page).text.startswith("<!doctype html>")
        assert client.get("/jobs/views", headers=program).json()["name"] == "views"
        assert client.get("/jobs/orders", headers=program).status_code == 404
    assert client.request("HEAD", "/jobs/views.json", headers=HOST).content == b""


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old answers make room for a new one beyond the limit, and each is made once for each version of what it shows."""
    monkeypatch.setattr(responses, "MOST", 2)
    cache, made = ResponseCache(), []

    def make(path: str, version: int) -> bytes:
        return cache.get(path, version, lambda: made.append((path, version)) or path.encode())  # type: ignore[func-returns-value]

    assert [make(path, 1) for path in ("/a", "/b", "/a", "/c", "/b")] == [b"/a", b"/b", b"/a", b"/c", b"/b"]
    make("/b", 2)
    assert made == [("/a", 1), ("/b", 1), ("/c", 1), ("/b", 1), ("/b", 2)]
