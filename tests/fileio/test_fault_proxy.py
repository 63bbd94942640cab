"""The fault proxy against a small server whose effects can be counted."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from devkit.fault_proxy import Fault, FaultProxy, conditional_write, error_body, method_is


class Upstream(ThreadingHTTPServer):
    """Remembers every request and echoes bodies."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.put_arrived = threading.Event()
        super().__init__(("127.0.0.1", 0), Echo)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def answer(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, body))
        self.server.headers_seen.append({k.lower(): v for k, v in self.headers.items()})
        if self.command == "PUT":
            self.server.put_arrived.set()
        if self.path == "/nothing":
            self.send_response(204)
            self.end_headers()
        elif self.path == "/unchanged":
            self.send_response(304)
            self.send_header("ETag", '"1"')
            self.end_headers()
        elif self.path == "/session":
            self.send_response(200)
            self.send_header("Location", self.server.url + "/upload?id=1")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        else:
            shown = b"x" * 10 if self.command == "HEAD" else body or b"hello"
            self.send_response(201 if self.command == "PUT" else 200)
            self.send_header("Content-Length", str(len(shown)))
            self.send_header("X-Count", str(len(self.server.seen)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(shown)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(upstream.url) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]), timeout=30)
    yield connection
    connection.close()


def ask(client: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    client.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = client.getresponse()
    return response.status, response.read()


def test_relays_bodies_queries_and_headers_over_one_connection(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    assert ask(client, "PUT", "/b/k%20ey?x=1", b"body", Host="bucket.example:99", If_None_Match="*") == (201, b"body")
    socket_before = client.sock
    assert ask(client, "GET", "/b/key") == (200, b"hello")
    assert client.sock is socket_before is not None
    assert upstream.seen == [("PUT", "/b/k%20ey?x=1", b"body"), ("GET", "/b/key", b"")]
    assert upstream.headers_seen[0]["host"] == "bucket.example:99"
    assert upstream.headers_seen[0]["if-none-match"] == "*"
    assert "content-length" not in upstream.headers_seen[1]
    assert [(e.method, e.path, e.query, e.status, e.fault) for e in proxy.exchanges] == [
        ("PUT", "/b/k%20ey", "x=1", 201, None),
        ("GET", "/b/key", "", 200, None),
    ]


def test_framing_head_204_304_and_chunks_both_ways(upstream: Upstream, client: http.client.HTTPConnection) -> None:
    client.request("HEAD", "/key")
    head = client.getresponse()
    assert (head.status, head.getheader("Content-Length"), head.read()) == (200, "10", b"")
    assert ask(client, "DELETE", "/nothing") == (204, b"")
    assert ask(client, "GET", "/unchanged") == (304, b"")
    assert ask(client, "GET", "/chunked") == (200, b"abcde")
    client.request("PUT", "/key", iter([b"one", b"two"]), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    response = client.getresponse()
    assert (response.status, response.read()) == (201, b"onetwo")
    assert upstream.seen[-1] == ("PUT", "/key", b"onetwo")
    assert ask(client, "PUT", "/large", b"z" * 3_000_000) == (201, b"z" * 3_000_000)


def test_expect_100_continue_is_answered_before_the_body_comes(upstream: Upstream, client: http.client.HTTPConnection) -> None:
    client.putrequest("PUT", "/key")
    client.putheader("Expect", "100-continue")
    client.putheader("Content-Length", "4")
    client.endheaders()
    assert client.sock is not None
    assert client.sock.recv(1000).startswith(b"HTTP/1.1 100 ")
    client.send(b"body")
    assert client.getresponse().read() == b"body"
    assert "expect" not in upstream.headers_seen[0]


def test_upload_sessions_stay_on_the_proxy(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    client.request("POST", "/session")
    response = client.getresponse()
    response.read()
    assert response.getheader("Location") == proxy.url + "/upload?id=1"


@pytest.mark.parametrize(("kind", "effects"), [("drop_after", 1), ("drop_before", 0), ("delayed_landing", 0)])
def test_no_answer(upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection, kind: str, effects: int) -> None:
    proxy.plan(Fault(kind, method_is("PUT")))  # type: ignore[arg-type]
    with pytest.raises(ConnectionError):
        ask(client, "PUT", "/key", b"body")
    assert len(upstream.seen) == effects
    assert not proxy.pending
    client.close()
    assert ask(client, "PUT", "/key", b"body") == (201, b"body")


def test_a_delayed_request_lands_when_released(upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.plan(Fault("delayed_landing", method_is("PUT"), times=2))
    for body in (b"1", b"2"):
        with pytest.raises(ConnectionResetError):
            ask(client, "PUT", "/key", body)
        client.close()
    assert (proxy.landing, upstream.seen, proxy.exchanges) == (2, [], [])
    assert proxy.release() == [201, 201]
    assert [body for _, _, body in upstream.seen] == [b"1", b"2"]
    assert proxy.landing == 0
    assert [(e.status, e.upstream_status, e.fault) for e in proxy.exchanges] == [(None, 201, "delayed_landing")] * 2


@pytest.mark.parametrize(("kind", "effects"), [("status_after", 1), ("status_before", 0)])
def test_replaced_status(upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection, kind: str, effects: int) -> None:
    proxy.plan(Fault(kind, code=500, body=b"gone", headers=[("X-Why", "test")]))  # type: ignore[arg-type]
    client.request("PUT", "/key", b"body")
    response = client.getresponse()
    assert (response.status, response.getheader("X-Why"), response.read()) == (500, "test", b"gone")
    assert len(upstream.seen) == effects
    assert [(e.status, e.upstream_status) for e in proxy.exchanges] == [(500, 201 if effects else None)]


def test_errors_speak_the_store_s_language(upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.plan(Fault("status_before", code=409), Fault("status_before", code=503))
    assert b"<Code>ConditionalRequestConflict</Code>" in ask(client, "PUT", "/key", b"body")[1]
    assert b"<Code>SlowDown</Code>" in ask(client, "PUT", "/key", b"body")[1]
    assert upstream.seen == []
    assert b"rateLimitExceeded" in error_body("gs", 429)[0]
    assert ("x-ms-error-code", "ServerBusy") in error_body("az", 503)[1]


def test_nth_and_times_choose_among_the_matching_requests(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.plan(Fault("status_before", conditional_write, nth=2, times=2, code=503))
    statuses = []
    for path in ("/1", "/2", "/3", "/4"):
        ask(client, "PUT", path, b"unconditional")
        statuses.append(ask(client, "PUT", path, b"conditional", If_None_Match="*")[0])
    assert statuses == [201, 503, 503, 201]
    assert [e.fault for e in proxy.exchanges if e.fault] == ["status_before"] * 2


def test_a_duplicate_takes_effect_twice_and_shows_the_second_answer(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.plan(Fault("duplicate"))
    client.request("PUT", "/key", b"body")
    response = client.getresponse()
    assert (response.read(), response.getheader("X-Count")) == (b"body", "2")
    assert len(upstream.seen) == 2


def test_a_request_that_is_cut_arrives_in_half_and_is_not_answered(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.plan(Fault("cut"))
    client.request("PUT", "/key", b"0123456789")
    with pytest.raises(http.client.RemoteDisconnected):
        client.getresponse()
    assert upstream.seen == [("PUT", "/key", b"01234")]
    assert [(exchange.status, exchange.fault) for exchange in proxy.exchanges] == [(None, "cut")]


def test_a_delayed_answer_comes_when_released(upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.plan(Fault("delay", method_is("PUT")))
    client.request("PUT", "/key", b"body")
    other = http.client.HTTPConnection("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]), timeout=30)
    assert ask(other, "GET", "/key") == (200, b"hello")
    other.close()
    assert upstream.put_arrived.wait(30)
    assert not any(e.method == "PUT" for e in proxy.exchanges)
    proxy.release()
    assert client.getresponse().read() == b"body"


def test_what_is_not_a_fault_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no kind of fault\. The kinds are drop_after"):
        Fault("drop_sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count from 1"):
        Fault("drop_after", nth=0)


def test_a_request_whose_client_died_halfway_never_reaches_the_server(upstream: Upstream) -> None:
    with FaultProxy(upstream.url) as proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"PUT /half HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
        assert proxy.exchanges == []
    assert upstream.seen == []
