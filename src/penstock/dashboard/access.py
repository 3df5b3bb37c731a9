"""Who may do what: the decisions about a request, from its headers alone. Pure; the dashboard's process.

A program sends the token as `Authorization: Bearer`, and a browser gets a cookie for it once. What a page of another site makes a browser
send is refused:

1. The name in `Host` must be ours. A foreign name that leads to our address (rebinding) is refused, before anything else.
2. What changes something must come from a page of ours, by `Sec-Fetch-Site` and `Origin`, or from a program, which sends neither.
3. The cookie is `SameSite=Strict`, so it does not come along from elsewhere. It is made of the token with a slow hash: who has the
   cookie has the session until it ends, and not the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.dashboard.ui_options import UiOptions, is_loopback
from penstock.ids import SYSTEM_RANDOMNESS

SESSION_S = 12 * 3600
MOST_STREAMS = 100
"""Event streams that may be open at a time."""
LARGEST_BODY_BYTES = 64 * 1024
READS = frozenset({"GET", "HEAD"})
OPEN_PATHS = ("/login", "/logout", "/healthz")
"""Whoever has no token sees these, and what is in `/static/`."""

_MOST_HOSTS = 64
_SESSION_DIGITS = 16
_SALT = b"penstock dashboard session"
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?")
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain"})


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered, with the status of HTTP for it."""

    status: int
    why: str
    is_guess: bool = False
    """A token was shown, and it is not the right one."""


class Access:
    """The rules of one server."""

    def __init__(self, options: UiOptions, port: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._port = port
        self._clock = clock
        self._logged_out: set[str] = set()
        """Sessions that were ended before their time."""
        self._our_hosts: set[str] = set()
        """Values of `Host` that were found to be ours: what is ours does not change while the server runs."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be asked of a job."""
        return self._options.read_only

    @property
    def savepoints(self) -> tuple[str, ...]:
        """See `UiOptions.savepoints`."""
        return self._options.savepoints

    @property
    def needs_token(self) -> bool:
        """Whether there is one."""
        return self._options.token is not None

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused; None when it is not. Names of headers are in lower case."""
        return (
            self._of_host(headers.get("host", ""))
            or self._of_other_sites(method, headers)
            or self._of_strangers(path, headers)
            or self._of_actions(method, path)
        )

    def is_token(self, given: str) -> bool:
        """Whether this is the token; takes as long, however much of it is right."""
        token = self._options.token
        return token is not None and hmac.compare_digest(_digest(given), _digest(token))

    # ── the cookie ─────────────────────────────────────────────────────────────────────────────

    @property
    def cookie_name(self) -> str:
        """With the port: cookies do not tell ports apart, and several servers may be on one machine."""
        return f"penstock-{self._port}"

    def new_cookie(self) -> str:
        """What a browser shows instead of the token: until when, a name of its own, and that it is ours."""
        session = f"{int(self._clock.wall()) + SESSION_S}-{SYSTEM_RANDOMNESS.token(_SESSION_DIGITS)}"
        return f"{session}.{self._signature(session)}"

    def is_cookie(self, given: str) -> bool:
        """Whether it was made here, or by a server with the same token, is still good, and nobody has logged out with it."""
        session, _, signature = given.partition(".")
        until = session.partition("-")[0]
        if not (until.isascii() and until.isdecimal()) or len(until) > len("9999999999"):
            return False
        is_ours = hmac.compare_digest(_digest(signature), _digest(self._signature(session)))
        return is_ours and self._clock.wall() < int(until) and session not in self._logged_out

    def log_out(self, headers: Mapping[str, str]) -> None:
        """End the session whose cookie came along. It is remembered as long as the cookie would be good."""
        cookie = _cookies(headers.get("cookie", "")).get(self.cookie_name, "")
        if self.is_cookie(cookie):
            now = self._clock.wall()
            self._logged_out = {one for one in self._logged_out if int(one.partition("-")[0]) > now}
            self._logged_out.add(cookie.partition(".")[0])

    def is_logged_in(self, headers: Mapping[str, str]) -> bool:
        """Whether the token, or a cookie for it, came along."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        cookie = _cookies(headers.get("cookie", "")).get(self.cookie_name, "")
        return self.needs_token and self.is_cookie(cookie)

    def _signature(self, until: str) -> str:
        return hmac.new(self._key, until.encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _key(self) -> bytes:
        """Slow on purpose, once: from a cookie no token can be guessed."""
        token = (self._options.token or "").encode()
        return hashlib.scrypt(token, salt=_SALT, n=2**14, r=8, p=1)

    # ── reasons ────────────────────────────────────────────────────────────────────────────────

    def _of_host(self, host: str) -> Refusal | None:
        if host in self._our_hosts:
            return None
        name = _host_name(host)
        if name and self._is_ours(name):
            if len(self._our_hosts) < _MOST_HOSTS:
                self._our_hosts.add(host)
            return None
        return Refusal(
            421,
            f"this server is not {host[:200]!r}: open it by its address, or start it with --name for each name that leads to it",
        )

    def _is_ours(self, name: str) -> bool:
        address = _address(name)
        if is_loopback(self._options.host):
            is_known = name in _LOCAL_NAMES or (address is not None and address.is_loopback)
        else:  # an address is no name that somebody else can make lead here
            is_known = address is not None or name in self._names
        return is_known or name in {one.lower() for one in self._options.names}

    @cached_property
    def _names(self) -> frozenset[str]:
        """No name is asked of a server of names: it may be slow, and is not to be trusted."""
        return frozenset({self._options.host.lower(), platform.node().lower(), *_LOCAL_NAMES})

    def _of_other_sites(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        site = headers.get("sec-fetch-site", "same-origin").lower()
        is_navigation = headers.get("sec-fetch-mode", "").lower() == "navigate"
        if method in READS and (is_navigation or site in ("same-origin", "none")):
            return None
        origin = headers.get("origin")
        is_own_origin = origin is None or _is_origin(origin, headers.get("host", ""))
        if site in ("same-origin", "none") and is_own_origin:
            return None
        return Refusal(
            403, "a page of another site has sent this; nothing was done. Use the pages of this server"
        )

    def _of_strangers(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        if not self.needs_token or is_open(path) or self.is_logged_in(headers):
            return None
        is_guess = "authorization" in headers
        sent = "the token that was sent is not the right one" if is_guess else "no token was sent"
        return Refusal(
            401,
            f"{sent}; send the one that the server was started with, as Authorization: Bearer TOKEN",
            is_guess,
        )

    def _of_actions(self, method: str, path: str) -> Refusal | None:
        if not self.read_only or method in READS or path in OPEN_PATHS:
            return None
        return Refusal(
            403,
            "this server only shows jobs (--read-only); nothing was done. `penstock stop` and its like act",
        )


def is_open(path: str) -> bool:
    """Whether everybody sees it, token or not: it shows nothing of jobs."""
    return path in OPEN_PATHS or path.startswith("/static/")


def _digest(text: str) -> bytes:
    """Of one length, and any characters: what is compared in constant time."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _cookies(header: str) -> dict[str, str]:
    pairs = (one.strip().partition("=") for one in header.split(";"))
    return {name: value for name, _, value in pairs}


def _host_name(host: str) -> str:
    """Without the port: whoever comes through a tunnel has another one. '' for what is no name and no address."""
    match = _HOST.fullmatch(host)
    return "" if match is None else (match[1] or match[2]).rstrip(".").lower()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_origin(origin: str, host: str) -> bool:
    """Whether a page of this server has sent it: name and port are the same as those that were asked."""
    parts = urlsplit(origin) if "://" in origin else None
    return parts is not None and parts.netloc.lower() == host.lower()
