"""Decides from its headers whether a request is allowed. Pure; the dashboard's process.

A program sends the token as `Authorization: Bearer`; a browser exchanges it once for a cookie. Requests that another site makes a browser
send are refused:

1. The name in `Host` must belong to this server. Another name that resolves to our address (DNS rebinding) is refused first.
2. A request that changes something must come from one of our pages, according to `Sec-Fetch-Site` and `Origin`, or from a program, which
   sends neither.
3. The cookie is `SameSite=Strict`, so browsers do not send it from other sites. It is derived from the token with a slow hash: a stolen
   cookie gives access to one session, but does not reveal the token.
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
"""The limit of open event streams."""
LARGEST_BODY_BYTES = 64 * 1024
READS = frozenset({"GET", "HEAD"})
OPEN_PATHS = ("/login", "/logout", "/healthz")
"""Paths that need no token, besides `/static/`."""

_SESSION_DIGITS = 16
_SALT = b"penstock dashboard session"
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?")
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain"})


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused, with the HTTP status."""

    status: int
    why: str
    is_guess: bool = False
    """The request had a wrong token."""


class Access:
    """The access rules of one server."""

    def __init__(self, options: UiOptions, port: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._port = port
        self._clock = clock
        self._logged_out: set[str] = set()
        """Sessions that ended by logout."""

    @property
    def read_only(self) -> bool:
        """Whether the server refuses all actions."""
        return self._options.read_only

    @property
    def savepoints(self) -> tuple[str, ...]:
        """Folders below which savepoints may be made and deleted."""
        return self._options.savepoints

    @property
    def needs_token(self) -> bool:
        """Whether a token is required."""
        return self._options.token is not None

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused; None if it is allowed. Header names are in lower case."""
        return (
            self._of_host(headers.get("host", ""))
            or self._of_other_sites(method, headers)
            or self._of_strangers(path, headers)
            or self._of_actions(method, path)
        )

    def is_token(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        token = self._options.token
        return token is not None and hmac.compare_digest(_digest(given), _digest(token))

    # ── the cookie ─────────────────────────────────────────────────────────────────────────────

    @property
    def cookie_name(self) -> str:
        """The name contains the port: cookies ignore ports, and several servers may run on one machine."""
        return f"penstock-{self._port}"

    def new_cookie(self) -> str:
        """A new session cookie: its end, a random id, and a signature."""
        session = f"{int(self._clock.wall()) + SESSION_S}-{SYSTEM_RANDOMNESS.token(_SESSION_DIGITS)}"
        return f"{session}.{self._signature(session)}"

    def is_cookie(self, given: str) -> bool:
        """Whether the cookie has our signature, has not expired, and was not logged out."""
        session, _, signature = given.partition(".")
        until = session.partition("-")[0]
        if not (until.isascii() and until.isdecimal()) or len(until) > len("9999999999"):
            return False
        is_ours = hmac.compare_digest(_digest(signature), _digest(self._signature(session)))
        return is_ours and self._clock.wall() < int(until) and session not in self._logged_out

    def log_out(self, headers: Mapping[str, str]) -> None:
        """End the session of the request's cookie. It is remembered until the cookie would have expired."""
        cookie = _cookies(headers.get("cookie", "")).get(self.cookie_name, "")
        if self.is_cookie(cookie):
            now = self._clock.wall()
            self._logged_out = {one for one in self._logged_out if int(one.partition("-")[0]) > now}
            self._logged_out.add(cookie.partition(".")[0])

    def is_logged_in(self, headers: Mapping[str, str]) -> bool:
        """Whether the request has the token or a valid cookie."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        cookie = _cookies(headers.get("cookie", "")).get(self.cookie_name, "")
        return self.needs_token and self.is_cookie(cookie)

    def _signature(self, until: str) -> str:
        return hmac.new(self._key, until.encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _key(self) -> bytes:
        """A slow hash, computed once, so that the token cannot be guessed from a cookie."""
        token = (self._options.token or "").encode()
        return hashlib.scrypt(token, salt=_SALT, n=2**14, r=8, p=1)

    # ── reasons ────────────────────────────────────────────────────────────────────────────────

    def _of_host(self, host: str) -> Refusal | None:
        name = _host_name(host)
        if name and self._is_ours(name):
            return None
        return Refusal(
            421,
            f"this server is not {host[:200]!r}: open it by its address, or start it with --name for each of its names",
        )

    def _is_ours(self, name: str) -> bool:
        address = _address(name)
        if is_loopback(self._options.host):
            is_known = name in _LOCAL_NAMES or (address is not None and address.is_loopback)
        else:  # unlike a name, an address cannot be rebound
            is_known = address is not None or name in self._names
        return is_known or name in {one.lower() for one in self._options.names}

    @cached_property
    def _names(self) -> frozenset[str]:
        """Our names without a DNS lookup, which may be slow and cannot be trusted."""
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
            403, "a page of another site sent this request; nothing was done. Use the pages of this server"
        )

    def _of_strangers(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        if not self.needs_token or is_open(path) or self.is_logged_in(headers):
            return None
        is_guess = "authorization" in headers
        sent = "the token is wrong" if is_guess else "the request has no token"
        return Refusal(
            401,
            f"{sent}; send the token that the server was started with, as Authorization: Bearer TOKEN",
            is_guess,
        )

    def _of_actions(self, method: str, path: str) -> Refusal | None:
        if not self.read_only or method in READS or path in OPEN_PATHS:
            return None
        return Refusal(
            403,
            "this server is read-only; nothing was done. Use commands such as `penstock stop`",
        )


def is_open(path: str) -> bool:
    """Whether a path needs no token: it shows nothing about jobs."""
    return path in OPEN_PATHS or path.startswith("/static/")


def _digest(text: str) -> bytes:
    """A digest of fixed length, for comparison in constant time."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _cookies(header: str) -> dict[str, str]:
    pairs = (one.strip().partition("=") for one in header.split(";"))
    return {name: value for name, _, value in pairs}


def _host_name(host: str) -> str:
    """The host without the port, which a tunnel changes; '' if it is neither a name nor an address."""
    match = _HOST.fullmatch(host)
    return "" if match is None else (match[1] or match[2]).rstrip(".").lower()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_origin(origin: str, host: str) -> bool:
    """Whether one of our pages sent the request: name and port equal those of `Host`."""
    parts = urlsplit(origin) if "://" in origin else None
    return parts is not None and parts.netloc.lower() == host.lower()
