"""A proxy on loopback before an S3 server that counts requests and lets each of them wait, as a network does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self
from urllib.parse import urlsplit

_HEAD_BYTES_MAX = 1 << 16
_PIECE_BYTES = 1 << 18


class SlowProxy:
    """Listens at `url` from construction to `close`; every request waits `latency_ms` before the server sees it.

    upstream: base URL of the server. Requests need a `Content-Length` where they have a body, which S3's SDKs give. Answers are passed on
    as they come. For use from any thread.
    """

    def __init__(self, upstream: str, *, latency_ms: float = 0) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None and parts.port is not None, upstream
        self._upstream = (parts.hostname, parts.port)
        self._latency_s = latency_ms / 1000
        self._counts: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow-proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX, backlog=1024))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def requests(self) -> dict[str, int]:
        """How many came through so far, by method."""
        return dict(self._counts)

    def close(self) -> None:
        """Stop listening and cut what is open."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, with one of its own to the server."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
            answers = asyncio.create_task(_copy(upstream_reader, writer))
            try:
                await self._requests(reader, upstream_writer)
            finally:
                answers.cancel()
                upstream_writer.close()
        writer.close()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            assert "transfer-encoding" not in headers, "a request without a length"
            self._counts[first.partition(" ")[0]] += 1
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            upstream.write(head)
            await upstream.drain()
            left = int(headers.get("content-length", 0))
            while left:
                piece = await reader.read(min(left, _PIECE_BYTES))
                if not piece:
                    return
                left -= len(piece)
                upstream.write(piece)
                await upstream.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the server hangs up; then the client's connection ends too."""
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()
