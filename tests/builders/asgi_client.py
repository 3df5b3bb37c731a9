"""Requests to an ASGI application in the same process, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from starlette.types import ASGIApp


class AsgiClient:
    """Each call is one request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            return await client.request(method, path, **options)
