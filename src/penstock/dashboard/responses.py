"""Responses: JSON for programs, pages for people, refusals as either, static files, and the login. The dashboard's process."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.dashboard import pages
from penstock.dashboard.access import SESSION_S, Access
from penstock.dashboard.pages.render import PageFrame

JSON = "application/json"
HTML = "text/html; charset=utf-8"

ALWAYS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


_FLINK = "/v1/"
"""The prefix of every path that Flink's client requests."""


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response from a struct, or from lists and dictionaries."""
    encoded = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(encoded, status, headers, JSON)


def page_answer(html: str | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with an HTML page."""
    return Response(html, status, headers, HTML)


def with_usual_headers(headers: MutableHeaders) -> None:
    """Add the headers of every response; by default, no cache keeps it."""
    for name, value in ALWAYS.items():
        headers.setdefault(name, value)


def wants_page(method: str, path: str, accept: str) -> bool:
    """Whether the request comes from a person with a browser."""
    return method in ("GET", "HEAD", "POST") and "text/html" in accept and not path.endswith(".json")


def refused(request: Request, status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal: a page for a browser, JSON for a program."""
    path = request.scope["path"]
    if wants_page(request.method, path, request.headers.get("accept", "")):
        return page_answer(pages.problem(status, why, PageFrame()), status, headers)
    # with any other field, its client retries for a minute and then shows only a trace
    if path.startswith(_FLINK):
        return json_answer({"errors": [why]}, status, headers)
    return json_answer({"error": why, "status": status}, status, headers)


# ── logging in ─────────────────────────────────────────────────────────────────────────────────────


def local_path(text: str) -> str:
    """The path to open after the login: a path of this server, or the first page."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local else "/"


def _is_encrypted(request: Request) -> bool:
    """Whether the browser uses TLS, with this server or with a proxy. A client that lies about it only loses its cookie."""
    schemes = (
        request.url.scheme,
        request.headers.get("x-forwarded-proto", "").partition(",")[0].strip(),
        request.headers.get("origin", "").partition(":")[0],
    )
    return "https" in schemes


def with_cookie(answer: Response, access: Access, request: Request) -> Response:
    """Add a new session cookie to a response."""
    answer.set_cookie(
        access.cookie_name,
        access.new_cookie(),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=_is_encrypted(request),
    )
    return answer


MOST = 64
MOST_BYTES = 32 * 1024 * 1024


class ResponseCache:
    """The newest responses, shared by all open pages; bounded in number and in bytes."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[Hashable, bytes]] = {}

    def get(self, asked: Hashable, mark: Hashable, make: Callable[[], bytes]) -> bytes:
        """The response to `asked`. It is made again when `mark`, the version of its data, has changed."""
        before = self._answers.get(asked)
        if before is not None and before[0] == mark:
            return before[1]
        made = make()
        self._answers[asked] = (mark, made)
        if len(self._answers) > MOST or sum(len(one) for _, one in self._answers.values()) > MOST_BYTES:
            self._answers = {asked: (mark, made)}
        return made


_FOLDER = Path(__file__).with_name("static")
_TYPES = {
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
    "md": "text/plain",
}


class StaticFiles:
    """The files that pages need, in memory. A path is looked up among their names, so it cannot lead elsewhere."""

    def __init__(self) -> None:
        self._answers = {
            file.relative_to(_FOLDER).as_posix(): _Answer(file.name, file.read_bytes())
            for file in _FOLDER.rglob("*")
            if file.is_file()
        }

    @property
    def names(self) -> frozenset[str]:
        """The names of all files."""
        return frozenset(self._answers)

    def route(self) -> Route:
        """The route of all files: `/static/...`."""
        return Route("/static/{name:path}", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        found = self._answers.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such file")
        return found.to(request)


class _Answer:
    """One file, which a browser may cache and revalidate."""

    def __init__(self, name: str, data: bytes) -> None:
        kind = (
            _TYPES.get(name.rpartition(".")[2]) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        )
        self._data = data
        self._headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"',
            "Cache-Control": "no-cache",
            "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
        }

    def to(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._data, headers=self._headers)
