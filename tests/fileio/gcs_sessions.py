"""A server of resumable uploads as GCS documents them, which no server for tests has: bytes that a session has are not taken twice, a
repeated end is answered with the object, and the condition counts at the end."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from devkit.handle import ServerHandle

QUANTUM_BYTES = 256 * 1024
"""A session keeps whole ones of what arrives before its end."""
UPDATED = "2026-01-02T03:04:05.678Z"


@dataclass
class Object:
    """One object. metadata: of the user."""

    data: bytes
    generation: int
    metadata: dict[str, str]

    def resource(self, name: str) -> dict[str, Any]:
        size = str(len(self.data))
        return {"name": name, "generation": str(self.generation), "size": size, "updated": UPDATED, "metadata": self.metadata}


@dataclass
class Session:
    """One upload. condition: the generation that must be there at the end, 0 for none; None: any. done: the object that it became."""

    name: str
    metadata: dict[str, str]
    condition: int | None
    data: bytes = b""
    done: Object | None = None


@dataclass
class Bucket:
    """What the server holds."""

    objects: dict[str, Object] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    generations: int = 0
    """How many numbers were given to objects and sessions."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def open_sessions(self) -> list[str]:
        """Names of objects whose uploads neither ended nor were cancelled."""
        return [session.name for session in self.sessions.values() if session.done is None]

    def holds(self, name: str, condition: int | None) -> bool:
        there = self.objects.get(name)
        return condition is None or condition == (0 if there is None else there.generation)

    def store(self, name: str, data: bytes, metadata: dict[str, str]) -> Object:
        self.generations += 1
        self.objects[name] = Object(data, self.generations, metadata)
        return self.objects[name]


@contextmanager
def gcs_sessions() -> Iterator[tuple[Bucket, ServerHandle]]:
    """A running server with one bucket, and how to open it."""
    bucket = Bucket()

    class Handler(_Handler):
        held = bucket

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield bucket, ServerHandle("gcs sessions", "gs", "gs://bucket", {"endpoint": endpoint, "project": "objcat", "anonymous": "true"})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held: Bucket

    def do_POST(self) -> None:
        body = self._body()
        if len(body) < int(self.headers["Content-Length"]):
            self.close_connection = True
            return
        asked = self._query()
        condition = int(asked["ifGenerationMatch"]) if "ifGenerationMatch" in asked else None
        with self.held.lock:
            if asked["uploadType"] == "multipart":
                resource, data = _parts(body, self.headers["Content-Type"])
                if not self.held.holds(resource["name"], condition):
                    self._say(412, _error(412))
                    return
                stored = self.held.store(resource["name"], data, resource.get("metadata", {}))
                self._say(200, stored.resource(resource["name"]))
                return
            resource = json.loads(body)
            if not self.held.holds(resource["name"], condition):
                self._say(412, _error(412))
                return
            self.held.generations += 1
            number = str(self.held.generations)
            self.held.sessions[number] = Session(resource["name"], resource.get("metadata", {}), condition)
        self._say(200, headers={"Location": f"http://{self.headers['Host']}/upload/session?upload_id={number}"})

    def do_PUT(self) -> None:
        body = self._body()
        with self.held.lock:
            session = self.held.sessions.get(self._query()["upload_id"])
            if session is None:
                self._say(404)
            elif session.done is not None:
                self._say(200, session.done.resource(session.name))
            else:
                self._take(session, body)

    def _take(self, session: Session, body: bytes) -> None:
        found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers["Content-Range"])
        assert found is not None, self.headers["Content-Range"]
        start = int(found[1]) if found[1] else len(session.data)
        if start > len(session.data):
            self._say(503, _error(503))
            return
        grown = session.data + body[len(session.data) - start :]
        if found[3] == "*" or len(grown) < int(found[3]):
            session.data = grown[: max(len(session.data), len(grown) // QUANTUM_BYTES * QUANTUM_BYTES)]
            reached = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
            self._say(308, headers=reached)
        elif not self.held.holds(session.name, session.condition):
            self._say(412, _error(412))
        else:
            session.done = self.held.store(session.name, grown, session.metadata)
            self._say(200, session.done.resource(session.name))

    def do_DELETE(self) -> None:
        with self.held.lock:
            gone = self.held.sessions.pop(self._query()["upload_id"], None)
        self._say(404 if gone is None else 499)

    def do_GET(self) -> None:
        name = unquote(urlsplit(self.path).path.partition("/o/")[2])
        with self.held.lock:
            there = self.held.objects.get(name)
        if there is None:
            self._say(404, _error(404))
        elif self._query().get("alt") == "media":
            told = {f"x-goog-meta-{key}": value for key, value in there.metadata.items()}
            self._say(
                200, there.data, {"X-Goog-Generation": str(there.generation), "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT", **told}
            )
        else:
            self._say(200, there.resource(name))

    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def _body(self) -> bytes:
        """What arrives of the body: less than was announced when the connection ends."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _say(self, status: int, body: object = b"", headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def _error(status: int) -> dict[str, Any]:
    return {"error": {"code": status, "message": "refused", "errors": [{"reason": "refused"}]}}


def _parts(body: bytes, content_type: str) -> tuple[dict[str, Any], bytes]:
    """The resource and the bytes of a multipart upload in one request."""
    boundary = b"--" + re.search(r'boundary="?([^"]+)', content_type)[1].encode()  # type: ignore[index]
    _, resource, data, _ = body.split(boundary)
    return json.loads(resource.partition(b"\r\n\r\n")[2]), data.partition(b"\r\n\r\n")[2][:-2]
