"""Answers that are kept until the next look: made once for all who ask, and given to nobody who is not let in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from builders.asgi_client import AsgiClient
from builders.dashboard_site import TOKEN, StoredJob, ui_options
from penstock.dashboard import metrics, recent
from penstock.dashboard.access import Access
from penstock.dashboard.app import make_app
from penstock.dashboard.connections import _JoinedWrites
from penstock.dashboard.looking import StorageLooker

HOST = {"Host": "127.0.0.1:8090"}
LET_IN = {**HOST, "Authorization": f"Bearer {TOKEN}"}
PATHS = ("/metrics", "/", "/index.json", "/jobs/views", "/jobs/views.json", "/v1/jobs/overview")


@pytest.fixture
def looker(tmp_path: Path) -> StorageLooker:
    """One that looks when it is told to."""
    StoredJob(tmp_path).complete(3)
    made = StorageLooker([str(tmp_path)])
    made.look()
    return made


def client_of(looker: StorageLooker, token: str | None = None) -> AsgiClient:
    return AsgiClient(make_app(looker, Access(ui_options("127.0.0.1:8090", token), 8090)))


def test_what_many_ask_for_is_made_once_for_each_look(
    looker: StorageLooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes and headers for all, and new ones as soon as jobs were looked at anew."""
    made: list[Any] = []
    registry = metrics._registry

    def counted(views: Any) -> Any:
        made.append(views)
        return registry(views)

    monkeypatch.setattr(metrics, "_registry", counted)
    client = client_of(looker)
    first, *others = [client.get("/metrics", headers=HOST) for _ in range(3)]
    assert len(made) == 1
    assert {other.content for other in others} == {first.content}
    assert all(other.headers == first.headers for other in others)
    assert first.headers["x-frame-options"] == "DENY"
    looker.look()
    client.get("/metrics", headers=HOST)
    assert len(made) == 2


@pytest.mark.parametrize("path", PATHS)
def test_what_is_kept_is_given_to_nobody_who_is_not_let_in(looker: StorageLooker, path: str) -> None:
    """The gate comes first, however often it was answered before."""
    client = client_of(looker, TOKEN)
    assert [client.get(path, headers=LET_IN).status_code for _ in range(2)] == [200, 200]
    assert client.get(path, headers=HOST).status_code == 401
    assert client.get(path, headers={**LET_IN, "Authorization": "Bearer wrong"}).status_code == 401
    assert client.get(path, headers={**LET_IN, "Host": "evil.example"}).status_code == 421
    assert client.get(path, headers={**LET_IN, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post(path, headers=LET_IN).status_code in (404, 405)


def test_a_page_and_what_programs_get_are_kept_apart(looker: StorageLooker) -> None:
    """One path has both, and a refusal is never kept."""
    client = client_of(looker)
    page, program = {**HOST, "Accept": "text/html"}, {**HOST, "Accept": "application/json"}
    for _ in range(2):
        assert client.get("/jobs/views", headers=page).text.startswith("<!doctype html>")
        assert client.get("/jobs/views", headers=program).json()["name"] == "views"
        assert client.get("/jobs/orders", headers=program).status_code == 404
    assert client.request("HEAD", "/jobs/views.json", headers=HOST).content == b""


def test_few_are_kept(looker: StorageLooker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks in many ways takes no memory; all are answered."""
    monkeypatch.setattr(recent, "MOST", 2)
    client = client_of(looker)
    for accept in range(5):
        answer = client.get("/index.json", headers={**HOST, "Accept": f"text/{accept}"})
        assert answer.json()["jobs"]
    assert len(client._app._recent._answers) == 2  # type: ignore[attr-defined]


def test_head_and_body_are_sent_at_once() -> None:
    """With one call of the system, and before a connection is closed."""

    class Transport:
        def __init__(self) -> None:
            self.did: list[object] = []

        def write(self, data: bytes) -> None:
            self.did.append(data)

        def is_closing(self) -> bool:
            return "closed" in self.did

        def close(self) -> None:
            self.did.append("closed")

    async def sent() -> list[object]:
        under = Transport()
        joined = _JoinedWrites(under, asyncio.get_running_loop())  # type: ignore[arg-type]
        for part in (b"head ", b"body", b""):
            joined.write(part)
        await asyncio.sleep(0)
        joined.write(b"last")
        joined.close()
        await asyncio.sleep(0)
        return under.did

    assert asyncio.run(sent()) == [b"head body", b"last", "closed"]
