"""`SlowProxy`: a loopback proxy in front of an S3 server. It counts requests and delays each of them, as a network does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

_HEAD_BYTES_MAX = 1 << 16
_PIECE_BYTES = 1 << 18


@dataclass(slots=True)
class Exchange:
    """A request and its answer. began_s, ended_s: of the proxy's clock, from the last byte of the head to the last one of the answer."""

    method: str
    target: str
    began_s: float
    ended_s: float


def round_trips(exchanges: Sequence[Exchange]) -> int:
    """How many exchanges came one after the other: the longest chain in which each begins after the one before has ended."""
    chain, free_s = 0, float("-inf")
    for exchange in sorted(exchanges, key=lambda one: one.ended_s):
        if exchange.began_s >= free_s:
            chain, free_s = chain + 1, exchange.ended_s
    return chain


class SlowProxy:
    """Listens at `url` from construction to `close`; every request waits `latency_ms` before the server sees it.

    upstream: base URL of the server. Answers are passed on as they come. For use from any thread.
    """

    def __init__(self, upstream: str, *, latency_ms: float = 0) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None and parts.port is not None, upstream
        self._upstream = (parts.hostname, parts.port)
        self._latency_s = latency_ms / 1000
        self._counts: Counter[str] = Counter()
        self._exchanges: list[Exchange] = []
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
        """The number of requests so far, by method. A GET that lists is a LIST."""
        return dict(self._counts)

    def take_exchanges(self) -> list[Exchange]:
        """The requests since the last call, each with its time."""
        taken, self._exchanges = self._exchanges, []
        return taken

    def close(self) -> None:
        """Stop listening and cut open connections."""
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
            upstream, answers = await self._loop.create_connection(lambda: _Answers(writer), *self._upstream)
            try:
                await self._requests(reader, upstream, answers)
            finally:
                upstream.close()
        writer.close()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.Transport, answers: _Answers) -> None:
        while not upstream.is_closing():
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            self._counts[_kind(first)] += 1
            now_s = self._loop.time()
            answers.exchange = Exchange(_kind(first), first.split(" ")[1], now_s, now_s)
            self._exchanges.append(answers.exchange)
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            upstream.write(head)
            if headers.get("transfer-encoding", "").lower() == "chunked":
                await _pass_chunks(reader, upstream)
            else:
                await _pass(reader, upstream, int(headers.get("content-length", 0)))


class _Answers(asyncio.Protocol):
    """Passes on the server's answer to the last byte. A stream of a reset connection drops what was not read yet."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.exchange: Exchange | None = None

    def data_received(self, data: bytes) -> None:
        if self.exchange is not None:
            self.exchange.ended_s = asyncio.get_running_loop().time()
        self._writer.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._writer.close()


async def _pass(reader: asyncio.StreamReader, upstream: asyncio.Transport, length: int) -> None:
    """So many bytes. Raises IncompleteReadError when there are fewer."""
    while length:
        piece = await reader.read(min(length, _PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(piece, length)
        length -= len(piece)
        upstream.write(piece)


async def _pass_chunks(reader: asyncio.StreamReader, upstream: asyncio.Transport) -> None:
    """A body whose length nobody knew before: chunks, each with its size before it, an empty one, and lines up to an empty one.

    It is passed on in one piece: a server may answer when it has the last bytes that it needs, and hang up. To write what is left to it
    then would fail, and the connection would be closed with the answer in it.
    """
    body, size = bytearray(), -1
    while size:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        body += line + (await reader.readexactly(size + 2) if size else b"")
    line = b""
    while line != b"\r\n":
        line = await reader.readuntil(b"\r\n")
        body += line
    upstream.write(body)


def _kind(first: str) -> str:
    """first: line of a request."""
    method, _, target = first.partition(" ")
    return "LIST" if method == "GET" and "list-type=" in target else method
