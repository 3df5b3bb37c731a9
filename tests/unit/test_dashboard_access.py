"""Who may do what, decided from the headers of a request alone."""

from __future__ import annotations

import pytest

from builders.dashboard_site import TOKEN, ui_options
from penstock.dashboard.access import SESSION_S, Access
from penstock.dashboard.responses import local_path
from penstock.testing.virtual import VirtualClock

HOST = {"host": "127.0.0.1:8090"}


def access(ui: str = "127.0.0.1:8090", token: str | None = None, **options: object) -> Access:
    return Access(ui_options(ui, token, **options), 8090, clock=VirtualClock())


def status(rules: Access, method: str = "GET", path: str = "/index.json", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = rules.refusal(method, path, {**HOST, **named})
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8090", "localhost:8090", "LOCALHOST", "[::1]:8090", "localhost:9000", "127.0.0.1"]
)
def test_this_machine_is_known_by_its_own_names(host: str) -> None:
    """Whatever the port: a tunnel has another."""
    assert status(access(), host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.com",
        "evil.com:8090",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "10.0.0.7:8090",
        "x@evil.com",
        "[::1",
        "127.0.0.1/x?",
        "127.0.0.1#",
        "127.0.0.1:x",
        "127.0.0.1:8090/jobs/a.json?",
        "a:b@127.0.0.1",
        "[evil",
        "127.0.0.1 evil.com",
    ],
)
def test_a_foreign_name_is_refused(host: str) -> None:
    """A name of somebody else's may lead to our address: 421, with a token or without."""
    assert status(access(), host=host) == 421
    assert status(access(token=TOKEN), host=host, authorization=f"Bearer {TOKEN}") == 421


def test_names_can_be_added() -> None:
    """For a proxy, or the name of a machine."""
    assert status(access(names=("flows.example",)), host="Flows.example") == 200
    assert status(access(), host="flows.example") == 421


@pytest.mark.parametrize(
    ("host", "expected"), [("10.0.0.7:8090", 200), ("evil.com", 421), ("localhost", 200)]
)
def test_a_server_for_all_is_reached_by_address(host: str, expected: int) -> None:
    """An address cannot be made to lead elsewhere; a name can."""
    assert status(access("0.0.0.0:8090", TOKEN), host=host, authorization=f"Bearer {TOKEN}") == expected


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer ",
        "Bearer",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer é",
        "Bearer " + "x" * 10_000,
    ],
)
def test_a_wrong_token_is_refused(authorization: str) -> None:
    """Also one that is nearly right."""
    assert status(access(token=TOKEN), authorization=authorization) == 401


def test_the_right_token_is_let_in() -> None:
    """In the header of programs, whatever the case of the scheme."""
    rules = access(token=TOKEN)
    assert status(rules, authorization=f"Bearer {TOKEN}") == 200
    assert status(rules, authorization=f"bearer {TOKEN}") == 200
    assert status(rules) == 401


@pytest.mark.parametrize("path", ["/login", "/healthz", "/static/penstock.css"])
def test_the_way_in_needs_no_token(path: str) -> None:
    """And nothing else is open."""
    rules = access(token=TOKEN)
    assert status(rules, path=path) == 200
    for other in ("/", "/events", "/metrics", "/v1/jobs", "/loginx", "/static"):
        assert status(rules, path=other) == 401


def test_a_cookie_stands_for_the_token_until_it_ends() -> None:
    """It is not the token, does not have it inside, and cannot be prolonged."""
    clock = VirtualClock()
    rules = Access(ui_options(8090, TOKEN), 8090, clock=clock)
    cookie = rules.new_cookie()
    assert TOKEN not in cookie
    sent = f"other=1; {rules.cookie_name}={cookie}; more=2"
    assert status(rules, cookie=sent) == 200
    session, _, signature = cookie.partition(".")
    until, _, name = session.partition("-")
    for forged in (
        f"{int(until) + 1}-{name}.{signature}",
        f"{until}.{signature}",
        f"{session}.",
        "",
        ".",
        f"{'9' * 30}.{signature}",
        f"-1.{signature}",
        f"{session}.{'0' * 64}",
    ):
        assert status(rules, cookie=f"{rules.cookie_name}={forged}") == 401
    other = Access(ui_options(8090, TOKEN + "x"), 8090, clock=clock)
    assert status(other, cookie=sent) == 401
    clock.sleep(SESSION_S + 1)
    assert status(rules, cookie=sent) == 401


def test_without_a_token_no_cookie_is_good() -> None:
    """The signature of an empty token opens nothing elsewhere."""
    rules = access()
    assert not rules.is_logged_in({"cookie": f"{rules.cookie_name}={rules.new_cookie()}"})
    assert not rules.is_token("")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8090"}, 200),
        ({"origin": "http://127.0.0.1:8090", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "http://evil.com"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403),
        ({"sec_fetch_site": "cross-site", "origin": "http://127.0.0.1:8090"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], expected: int) -> None:
    """With a token, a cookie, or neither; programs, which send no such header, may."""
    for method in ("POST", "PATCH", "DELETE", "PUT"):
        assert status(access(), method, "/jobs/views/actions/stop", **headers) == expected
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert (
            status(access(token=TOKEN), method, "/jobs/views/actions/stop", **headers, **bearer) == expected
        )


def test_links_from_elsewhere_work_and_what_scripts_there_fetch_does_not() -> None:
    """Somebody may follow a link to a page; a foreign page reads nothing."""
    assert status(access(), sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200
    assert status(access(), sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert status(access(), sec_fetch_site="cross-site", sec_fetch_mode="cors") == 403


def test_who_may_only_look_changes_nothing() -> None:
    """Read-only is for every path that changes something, whoever has written it."""
    rules = access(token=TOKEN, read_only=True)
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for method, path in (
        ("POST", "/jobs/views/actions/stop"),
        ("PATCH", "/v1/jobs/0"),
        ("POST", "/jobs/0/savepoints"),
    ):
        assert status(rules, method, path, **bearer) == 403
    assert status(rules, "GET", "/", **bearer) == 200
    assert status(rules, "POST", "/login") == 200


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/jobs/views?x=1", "/jobs/views?x=1"),
        ("//evil.com", "/"),
        ("/\\evil.com", "/"),
        ("http://evil.com", "/"),
        ("", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
    ],
)
def test_the_login_leads_nowhere_else(given: str, expected: str) -> None:
    """Only to a path of this server."""
    assert local_path(given) == expected
