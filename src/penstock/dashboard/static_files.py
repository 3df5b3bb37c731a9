"""The files that pages need: read once, out of the package. A path is looked up among their names, and leads nowhere else."""

from __future__ import annotations

import hashlib
import mimetypes
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = "static"
_TYPES = {
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
    "md": "text/plain",
}


class StaticFiles:
    """All of them, in memory."""

    def __init__(self) -> None:
        self._answers = {
            name: _Answer(name, data) for name, data in _all(files("penstock.dashboard") / _FOLDER, "")
        }

    @property
    def names(self) -> frozenset[str]:
        """What there is."""
        return frozenset(self._answers)

    def route(self) -> Route:
        """`/static/...`."""
        return Route("/static/{name:path}", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        found = self._answers.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such file")
        return found.to(request)


class _Answer:
    """One file, which a browser may keep as long as it asks whether it is still the same."""

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


def _all(folder: Traversable, before: str) -> list[tuple[str, bytes]]:
    if not folder.is_dir():
        return []
    found: list[tuple[str, bytes]] = []
    for one in folder.iterdir():
        name = f"{before}{one.name}"
        found += _all(one, f"{name}/") if one.is_dir() else [(name, one.read_bytes())]
    return found
