"""A small schema registry for tests. It speaks Confluent's HTTP API, and is away, slow or without a schema when it is told to be.

A schema of Protobuf is registered as a descriptor in base64, as Confluent's client for Python does it, and given to those who ask for
`format=serialized`. Registered as text it stays text, as in a registry that does not know this format.

It also takes new schemas by the one call of Apicurio's API that its converter for Kafka Connect makes.
"""

from __future__ import annotations

import base64
import enum
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from devkit.servers import HOST

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryFault(enum.StrEnum):
    """What a registry does wrong: it ends connections, answers 503 or 404, or answers after a while."""

    AWAY = "away"
    BUSY = "busy"
    MISSING = "missing"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as it was registered.

    Args:
        schema: its text.
        kind: `AVRO`, `PROTOBUF` or `JSON`.
        references: to other schemas, each with `name`, `subject` and `version`.
    """

    schema: str
    kind: str = "AVRO"
    references: tuple[tuple[str, str, int], ...] = ()


@dataclass(slots=True)
class RegistryContent:
    """What a registry holds: schemas by id, and the ids of each subject in the order of its versions. Thread-safe."""

    ids: dict[int, RegisteredSchema] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """The id of a schema, which is a version of the subject from now on. Equal schemas have one id."""
        with self._lock:
            number = next((number for number, known in self.ids.items() if known == schema), len(self.ids) + 1)
            self.ids[number] = schema
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return number


class SchemaRegistry:
    """A registry on a free port of loopback. A context manager.

    Args:
        user: who may ask, as `name:password`; None: everybody.
        tls: lets it speak TLS.

    Attributes:
        content: its schemas.
        fault: what it does wrong now; None: nothing.
        slow_s: how long it waits when it is slow.
        requests: the methods and paths of all requests, in order.
    """

    def __init__(self, *, user: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.content = RegistryContent()
        self.fault: RegistryFault | None = None
        self.slow_s = 1.0
        self.requests: list[str] = []
        self._user = user
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._server.daemon_threads = True
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="schema registry")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self._scheme}://{HOST}:{self._server.server_address[1]}"

    def register(self, subject: str, schema: str, *, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()) -> int:
        """The id of a schema, registered as the next version of a subject."""
        return self.content.register(subject, RegisteredSchema(schema, kind, tuple(references)))

    def is_allowed(self, authorization: str | None) -> bool:
        """Whether a request with this header may be answered."""
        return self._user is None or authorization == f"Basic {base64.b64encode(self._user.encode()).decode()}"

    def answer(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
        """The status and the JSON value of an answer. headers: with the query, whose names begin with a question mark."""
        for wanted, pattern, answer in _CALLS:
            if wanted == method and (found := re.fullmatch(pattern, path)):
                return answer(self.content, [unquote(part) for part in found.groups()], body, headers)
        return _refused(404, 404, f"There is no {method} {path} here.")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class RegistryHandler(BaseHTTPRequestHandler):
            """Answers one request."""

            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                """Answer."""
                self._answer()

            def do_POST(self) -> None:
                """Answer."""
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = urlsplit(self.path)
                path = asked.path
                registry.requests.append(f"{self.command} {path}")
                match registry.fault:
                    case RegistryFault.AWAY:
                        self.close_connection = True
                        return
                    case RegistryFault.SLOW:
                        time.sleep(registry.slow_s)
                if registry.fault is RegistryFault.BUSY:
                    status, said = _refused(503, 50301, "The registry is busy.")
                elif not registry.is_allowed(self.headers.get("Authorization")):
                    status, said = _refused(401, 401, "Unauthorized")
                elif registry.fault is RegistryFault.MISSING and self.command == "GET":
                    status, said = _refused(404, 40403, "Schema not found")
                else:
                    query = {f"?{name}": value for name, value in parse_qsl(asked.query)}
                    status, said = registry.answer(self.command, path, body, {**dict(self.headers.items()), **query})
                made = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(made)))
                self.end_headers()
                self.wfile.write(made)

        return RegistryHandler


Answer = Callable[[RegistryContent, Sequence[str], bytes, Mapping[str, str]], tuple[int, Any]]


def _refused(status: int, code: int, message: str) -> tuple[int, Any]:
    return status, {"error_code": code, "message": message}


def _posted(body: bytes) -> RegisteredSchema:
    found = json.loads(body)
    references = tuple((one["name"], one["subject"], one["version"]) for one in found.get("references", ()))
    return RegisteredSchema(found["schema"], found.get("schemaType", "AVRO"), references)


def _described(schema: RegisteredSchema) -> dict[str, Any]:
    """A schema as answers have it. That it is Avro is not said."""
    said: dict[str, Any] = {"schema": schema.schema}
    if schema.kind != "AVRO":
        said["schemaType"] = schema.kind
    if schema.references:
        said["references"] = [{"name": name, "subject": subject, "version": version} for name, subject, version in schema.references]
    return said


def _given(schema: RegisteredSchema, said: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, Any]:
    """A schema in the format that was asked for. A descriptor as text is more than this registry can."""
    if schema.kind == "PROTOBUF" and "{" not in schema.schema and headers.get("?format") != "serialized":
        return _refused(501, 501, "This registry does not print descriptors. Ask for format=serialized.")
    return 200, {**said, **_described(schema)}


def _register(content: RegistryContent, parts: Sequence[str], body: bytes, _: Mapping[str, str]) -> tuple[int, Any]:
    return 200, {"id": content.register(parts[0], _posted(body))}


def _look_up(content: RegistryContent, parts: Sequence[str], body: bytes, _: Mapping[str, str]) -> tuple[int, Any]:
    (subject,), wanted = parts, _posted(body)
    if subject not in content.subjects:
        return _refused(404, 40401, f"Subject '{subject}' not found.")
    for version, number in enumerate(content.subjects[subject], 1):
        if content.ids[number] == wanted:
            return 200, {"subject": subject, "version": version, "id": number, **_described(wanted)}
    return _refused(404, 40403, "Schema not found")


def _schema(content: RegistryContent, parts: Sequence[str], _: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
    number = int(parts[0])
    if number not in content.ids:
        return _refused(404, 40403, f"Schema {number} not found")
    return _given(content.ids[number], {}, headers)


def _subjects(content: RegistryContent, *_: object) -> tuple[int, Any]:
    return 200, sorted(content.subjects)


def _versions(content: RegistryContent, parts: Sequence[str], *_: object) -> tuple[int, Any]:
    (subject,) = parts
    if subject not in content.subjects:
        return _refused(404, 40401, f"Subject '{subject}' not found.")
    return 200, list(range(1, len(content.subjects[subject]) + 1))


def _version(content: RegistryContent, parts: Sequence[str], _: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
    subject, wanted = parts
    if subject not in content.subjects:
        return _refused(404, 40401, f"Subject '{subject}' not found.")
    numbers = content.subjects[subject]
    version = len(numbers) if wanted in ("latest", "-1") else int(wanted)
    if not 1 <= version <= len(numbers):
        return _refused(404, 40402, f"Version {wanted} not found.")
    number = numbers[version - 1]
    return _given(content.ids[number], {"subject": subject, "version": version, "id": number}, headers)


def _apicurio_create(content: RegistryContent, parts: Sequence[str], body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
    """A new artifact, or a version of it. Its content may come with references, as JSON of its own."""
    group, subject = parts[0], unquote(headers.get("X-Registry-ArtifactId") or "schema")
    text = body.decode()
    if "create.extended" in (headers.get("Content-Type") or ""):
        text = json.loads(text)["content"]
    number = content.register(subject, RegisteredSchema(text))
    version = str(content.subjects[subject].index(number) + 1)
    kind = headers.get("X-Registry-ArtifactType") or "AVRO"
    said = {"id": subject, "groupId": group, "version": version, "type": kind, "state": "ENABLED", "globalId": number, "contentId": number}
    return 200, {**said, "createdOn": "2024-01-01T00:00:00+0000", "modifiedOn": "2024-01-01T00:00:00+0000", "references": []}


_CALLS: Sequence[tuple[str, str, Answer]] = (
    ("GET", "/schemas/ids/([0-9]+)", _schema),
    ("GET", "/subjects/?", _subjects),
    ("POST", "/subjects/([^/]+)/versions", _register),
    ("GET", "/subjects/([^/]+)/versions", _versions),
    ("GET", "/subjects/([^/]+)/versions/([^/]+)", _version),
    ("POST", "/subjects/([^/]+)", _look_up),
    ("POST", "/apis/registry/v2/groups/([^/]+)/artifacts", _apicurio_create),
)
"""Each call: its method, its path, and what answers it."""
