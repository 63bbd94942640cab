"""A client of an ASGI app, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

BASE = "http://catalog"


class AppClient:
    """Sends requests to an app, one after the other."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def request(self, method: str, url: str | httpx.URL, **given: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=BASE, trust_env=False) as client:
                return await client.request(method, url, **given)

        return asyncio.run(send())

    def get(self, url: str | httpx.URL, **given: Any) -> httpx.Response:
        return self.request("GET", url, **given)

    def head(self, url: str, **given: Any) -> httpx.Response:
        return self.request("HEAD", url, **given)

    def post(self, url: str, **given: Any) -> httpx.Response:
        return self.request("POST", url, **given)

    def delete(self, url: str, **given: Any) -> httpx.Response:
        return self.request("DELETE", url, **given)

    def get_raw(self, path: str) -> httpx.Response:
        """GET of a path as it stands: nothing corrects it."""
        return self.get(httpx.URL(scheme="http", host="catalog", raw_path=path.encode()))
