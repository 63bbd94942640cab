"""`FaultProxy`: an HTTP/1.1 proxy on loopback that loses, replaces, delays or duplicates chosen requests to one server.

Unlike a proxy of connections, it knows where a request ends. So it can let a request take effect upstream and then lose the answer.
Clients of a real store meet this; test servers never do it.

    with FaultProxy(upstream) as proxy:
        proxy.plan(Fault("drop_after", method_is("PUT")))
        ...                                   # a client of proxy.url
        assert not proxy.pending              # the fault has fired
        print(proxy.exchanges)

Every header, `Host` included, reaches the server as the client sent it, so signatures hold. Only headers of the connection are replaced.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self, TypeAlias, get_args
from urllib.parse import urlsplit

FaultKind = Literal[
    "drop_after", "drop_before", "status_after", "status_before", "delay", "delayed_landing", "duplicate", "cut", "cut_answer"
]
Match: TypeAlias = Callable[[str, str, str, Mapping[str, str]], bool]
"""(method, path, query, headers with lower-case names) -> whether the fault is about the request. The path is percent-encoded."""

UPSTREAM_S_MAX = 120
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "expect", "te", "trailer", "upgrade"})


def any_request(_method: str, _path: str, _query: str, _headers: Mapping[str, str]) -> bool:
    """Matches everything."""
    return True


def method_is(*methods: str) -> Match:
    """Matches requests of these methods."""
    return lambda method, _path, _query, _headers: method in methods


def conditional_write(method: str, _path: str, query: str, headers: Mapping[str, str]) -> bool:
    """Matches conditional PUT, POST and DELETE: If-Match, If-None-Match, or a generation in the query of GCS."""
    conditional = "if-match" in headers or "if-none-match" in headers or "ifgenerationmatch=" in query.lower()
    return method in ("PUT", "POST", "DELETE") and conditional


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to some matching requests.

    The kinds:
        drop_after       the server completes the request; the connection closes without an answer
        drop_before      the request does not reach the server; the connection closes without an answer
        status_after     the server completes the request; the client gets `code` and `body` instead of the answer
        status_before    the request does not reach the server; the client gets `code` and `body`
        delay            the answer waits for `seconds`, or until `FaultProxy.release` when that is None
        delayed_landing  the client gets a reset now; the server gets the request at `FaultProxy.release`
        duplicate        the server gets the request twice; the client gets the second answer
        cut              the server gets half of the body, then the connection ends on both sides
        cut_answer       the server completes the request; `at` bytes of its answer arrive (modulo their number), then the connection ends

    Args:
        kind: See above.
        match: Which requests.
        times: How many of them in a row.
        nth: The first one, from 1, counted since the fault was planned.
        code: The status of status_*.
        body: The body of status_*; None makes one in the form of the store, with its headers (see `error_body`).
        headers: Additional headers.
        seconds: See `delay`.
        at: See `cut_answer`.
    """

    kind: FaultKind
    match: Match = any_request
    times: int = 1
    nth: int = 1
    code: int = 503
    body: bytes | None = None
    headers: Sequence[tuple[str, str]] = ()
    seconds: float | None = None
    at: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ValueError(f"{self.kind!r} is no kind of fault. The kinds are {', '.join(get_args(FaultKind))}.")
        if self.times < 1 or self.nth < 1:
            raise ValueError(f"times ({self.times}) and nth ({self.nth}) count from 1.")
        if self.at < 0:
            raise ValueError(f"at ({self.at}) counts bytes from 0.")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that came through.

    Args:
        method: Its method.
        path: Its path, percent-encoded.
        query: Its query.
        status: What the client got; None without an answer.
        upstream_status: What the server answered, of a duplicate the second time; None when it was not asked.
        fault: The fault; None when the request was relayed unchanged.
        head_bytes: The length of the answer's head; 0 without an answer.
    """

    method: str
    path: str
    query: str
    status: int | None
    upstream_status: int | None
    fault: FaultKind | None
    head_bytes: int = 0


@dataclass(slots=True)
class _Planned:
    fault: Fault
    seen: int = 0
    fired: int = 0

    @property
    def pending(self) -> bool:
        return self.fired < self.fault.times


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    chunked: bool

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> str:
        return urlsplit(self.target).query


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    def head(self, method: str) -> bytes:
        """The head with the length of the body, under any framing of the server. HEAD, 204 and 304 keep the server's length."""
        bodiless = self._is_bodiless(method)
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        for name, value in self.headers:
            if name.lower() not in _HOP_BY_HOP and name.lower() != "transfer-encoding" and (bodiless or name.lower() != "content-length"):
                lines.append(f"{name}: {value}")
        if not bodiless:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def bytes_for(self, method: str) -> bytes:
        """Everything that a client gets."""
        return self.head(method) + (b"" if self._is_bodiless(method) else self.body)

    def _is_bodiless(self, method: str) -> bool:
        return method == "HEAD" or self.status in (204, 304)


@dataclass(frozen=True, slots=True)
class _Part:
    """The beginning of an answer. The connection ends behind it."""

    data: bytes


class FaultProxy:
    """Listens on a free port of 127.0.0.1 from construction to `close`. All methods may be called from any thread.

    Args:
        upstream: The base URL of the server. Its path is ignored.
        scheme: `s3`, `gs` or `az`, for the bodies of invented errors.
    """

    def __init__(self, upstream: str, scheme: str = "s3") -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"The fault proxy needs an upstream http://host:port, not {upstream!r}.")
        self.upstream = (parts.hostname, parts.port or 80)
        self.scheme = scheme
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []
        self._exchanges: list[Exchange] = []
        self._landing: list[_Request] = []
        self._released = threading.Event()
        self._connections: set[socket.socket] = set()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="fault-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, *faults: Fault) -> None:
        """Add faults. The first one whose turn it is hits a request, which counts for all that match it. The others wait."""
        with self._lock:
            self._planned.extend(_Planned(fault) for fault in faults)

    @property
    def pending(self) -> list[Fault]:
        """The planned faults that have not fired as often as planned."""
        with self._lock:
            return [planned.fault for planned in self._planned if planned.pending]

    @property
    def exchanges(self) -> list[Exchange]:
        """Everything that came through, in the order of its end."""
        with self._lock:
            return list(self._exchanges)

    @property
    def landing(self) -> int:
        """The number of requests that wait for `release`."""
        with self._lock:
            return len(self._landing)

    def clear(self) -> None:
        """Forget all plans, the exchanges and the waiting requests."""
        with self._lock:
            self._planned.clear()
            self._exchanges.clear()
            self._landing.clear()

    def release(self) -> list[int]:
        """Release the delayed answers, and send the requests of `delayed_landing` to the server, oldest first.

        Returns its statuses. 0 means that it hung up, as a server may that refuses a part of an upload that is over.
        """
        with self._lock:
            landing, self._landing = self._landing, []
            released, self._released = self._released, threading.Event()
        released.set()
        statuses = []
        for request in landing:
            try:
                status = self._ask(request).status
            except ConnectionError:
                status = 0
            self._record(request, status=None, upstream_status=status, fault="delayed_landing")
            statuses.append(status)
        return statuses

    def close(self) -> None:
        """Stop listening and cut open connections. Waiting requests never reach the server."""
        with self._lock:
            self._released.set()
            connections = list(self._connections)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # ---- what a connection's thread calls

    def _handle(self, request: _Request) -> _Answer | _Part | Literal["close", "reset"]:
        """What the client gets. It is recorded first, so that a client with its answer finds it in `exchanges`."""
        fault, released = self._fault_for(request)
        answer: _Answer | None = None
        outcome: _Answer | _Part | Literal["close", "reset"]
        match fault.kind if fault else None:
            case "drop_before":
                outcome = "close"
            case "cut":
                self._begin(request)
                outcome = "close"
            case "status_before":
                outcome = self._invented(fault)
            case "delayed_landing":
                with self._lock:
                    self._landing.append(request)
                return "reset"
            case kind:
                answer = self._ask(request)
                if kind == "duplicate":
                    answer = self._ask(request)
                if kind == "delay" and fault:
                    released.wait(fault.seconds)
                outcome = "close" if kind == "drop_after" else self._invented(fault) if kind == "status_after" else answer
                if kind == "cut_answer" and fault:
                    whole = answer.bytes_for(request.method)
                    outcome = _Part(whole[: fault.at % len(whole)])
        self._record(
            request,
            status=outcome.status if isinstance(outcome, _Answer) else None,
            upstream_status=answer.status if answer else None,
            fault=fault.kind if fault else None,
            head_bytes=len(answer.head(request.method)) if answer else 0,
        )
        return outcome

    def _fault_for(self, request: _Request) -> tuple[Fault | None, threading.Event]:
        headers = {name.lower(): value for name, value in request.headers}
        chosen: Fault | None = None
        with self._lock:
            for planned in self._planned:
                if planned.pending and planned.fault.match(request.method, request.path, request.query, headers):
                    planned.seen += 1
                    if planned.seen >= planned.fault.nth and chosen is None:
                        planned.fired += 1
                        chosen = planned.fault
            return chosen, self._released

    def _invented(self, fault: Fault | None) -> _Answer:
        assert fault is not None
        body, headers = error_body(self.scheme, fault.code) if fault.body is None else (fault.body, [])
        return _Answer(fault.code, http.client.responses.get(fault.code, "Fault"), [*headers, *fault.headers], body)

    def _ask(self, request: _Request) -> _Answer:
        """The server's answer, over a new connection: a reused one may be stale, and asking again would double the request."""
        connection = http.client.HTTPConnection(*self.upstream, timeout=UPSTREAM_S_MAX)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers:
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.putheader("Connection", "close")
            connection.endheaders(_chunks(request.body) if request.chunked else request.body or None)
            response = connection.getresponse()
            body = response.read()
            return _Answer(response.status, response.reason, [self._toward_client(*h) for h in response.getheaders()], body)
        finally:
            connection.close()

    def _begin(self, request: _Request) -> None:
        """Send half of a body to the server, and wait until it has seen the end."""
        with socket.create_connection(self.upstream, timeout=UPSTREAM_S_MAX) as connection:
            lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers)]
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + request.body[: len(request.body) // 2])
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while connection.recv(65536):
                    pass

    def _toward_client(self, name: str, value: str) -> tuple[str, str]:
        """Lead a redirect or an upload session of the server through the proxy."""
        upstream = f"http://{self.upstream[0]}:{self.upstream[1]}"
        if name.lower() == "location" and value.startswith(upstream):
            return name, self.url + value[len(upstream) :]
        return name, value

    def _record(
        self, request: _Request, *, status: int | None, upstream_status: int | None, fault: FaultKind | None, head_bytes: int = 0
    ) -> None:
        with self._lock:
            self._exchanges.append(Exchange(request.method, request.path, request.query, status, upstream_status, fault, head_bytes))


def error_body(scheme: str, code: int) -> tuple[bytes, list[tuple[str, str]]]:
    """The body and headers of an error `code` in the form of a store: S3 XML, GCS JSON, Azure XML with its error header."""
    if scheme == "gs":
        reason = {429: "rateLimitExceeded", 412: "conditionNotMet", 409: "conflict", 403: "forbidden"}.get(code, "backendError")
        text = f'{{"error": {{"code": {code}, "message": "injected", "errors": [{{"reason": "{reason}", "message": "injected"}}]}}}}'
        return text.encode(), [("Content-Type", "application/json; charset=UTF-8")]
    if scheme == "az":
        azure = {500: "InternalError", 503: "ServerBusy", 429: "TooManyRequests", 409: "BlobAlreadyExists", 412: "ConditionNotMet"}
        word = azure.get(code, "InternalError")
        headers = [("Content-Type", "application/xml"), ("x-ms-error-code", word)]
    else:
        s3 = {409: "ConditionalRequestConflict", 412: "PreconditionFailed", 429: "TooManyRequests", 503: "SlowDown", 403: "AccessDenied"}
        word = s3.get(code, "InternalError")
        headers = [("Content-Type", "application/xml")]
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{word}</Code><Message>injected</Message></Error>'.encode(), headers


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client or a server that hangs up is normal here. The client sees a closed connection."""


class _Connection(BaseHTTPRequestHandler):
    """One client connection. It reads requests, stays alive, and answers `Expect: 100-continue`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server
    connection: socket.socket

    def setup(self) -> None:
        super().setup()
        with self.server.proxy._lock:
            self.server.proxy._connections.add(self.connection)

    def finish(self) -> None:
        with self.server.proxy._lock:
            self.server.proxy._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        accepted = super().handle_expect_100()
        self.wfile.flush()
        return accepted

    def relay(self) -> None:
        """Read one whole request and answer as planned. The server never sees a request that a client sent in part."""
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        length = int(self.headers.get("Content-Length") or 0)
        body = self._read_chunks() if chunked else self.rfile.read(length)
        if not chunked and len(body) < length:
            self.close_connection = True
            return
        outcome = self.server.proxy._handle(_Request(self.command, self.path, self.headers.items(), body, chunked))
        if isinstance(outcome, _Answer):
            self.wfile.write(outcome.bytes_for(self.command))
            return
        self.close_connection = True
        if isinstance(outcome, _Part):
            self.wfile.write(outcome.data)
        elif outcome == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = relay  # noqa: N815  (names that the base class looks up)

    def _read_chunks(self) -> bytes:
        body = bytearray()
        while length := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return bytes(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        """Does nothing: `FaultProxy.exchanges` is the log."""


def _chunks(body: bytes) -> bytes:
    return (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
