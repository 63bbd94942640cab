"""`RegistryClient`: schemas by number, from a registry with the interface of Confluent's."""

from __future__ import annotations

import base64
import http.client
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from fileio.env import Env
from fileio.errors import InvalidConfig
from objcat.errors import SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig
from objcat.ingest.kafka.message import Unreadable
from objcat.ingest.kafka.settings import RegistrySettings

PAUSE_S_MIN, PAUSE_S_MAX = 0.2, 5.0
ANSWER_BYTES_MAX = 16 * 1024 * 1024
REFERENCES_MAX = 500
AVRO, PROTOBUF = "AVRO", "PROTOBUF"
"""Kinds of schemas, as registries call them."""
_QUERIES = {AVRO: "", PROTOBUF: "?format=serialized"}
_TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema of a registry. name: by which others refer to it; empty: it is the one that was asked for."""

    name: str
    text: str


class RegistryClient:
    """Reads schemas. What it read it keeps: a number means one schema for ever. For one thread.

    Args:
        config: of the ingest.
        settings: of the registry.
        env: the clock.

    Raises:
        InvalidConfig: the address, or a file with certificates, does not fit.
    """

    def __init__(self, config: IngestConfig, settings: RegistrySettings, env: Env) -> None:
        self._config = config
        self._settings = settings
        self._env = env
        self._known: dict[int, list[Any]] = {}
        try:
            parts = urlsplit(settings.url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host, parts = "", urlsplit("")
        if parts.scheme not in ("http", "https") or not self._host or parts.query or parts.username:
            raise InvalidConfig(
                f"The url of [source.registry] in {config.path} is not like https://host:8081. Correct it, with user and password apart."
            )
        self._path = parts.path.rstrip("/")
        self._tls = self._context() if parts.scheme == "https" else None
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if settings.user:
            token = base64.b64encode(f"{settings.user}:{settings.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    def schemas(self, number: int) -> list[Any]:
        """An Avro schema as JSON, after those that it refers to.

        Raises:
            Unreadable: the registry has no such schema, or it is not Avro.
            SourceAway: the registry does not answer.
            SourceUnfit: it refuses this client.
        """
        if number not in self._known:
            self._known[number] = [_json_of(one) for one in self._stored(number, AVRO)]
        return self._known[number]

    def protobuf_files(self, number: int) -> list[StoredSchema]:
        """A schema of Protobuf after those that it imports. Nothing of it is kept here. Raises as `schemas`.

        They are descriptors in base64, which Confluent's own clients ask for too. A registry that has none gives the text.
        """
        return self._stored(number, PROTOBUF)

    def _stored(self, number: int, kind: str) -> list[StoredSchema]:
        found = self._ask(f"/schemas/ids/{number}{_QUERIES[kind]}")
        if found is None:
            raise Unreadable(f"its schema {number} is not in the registry")
        made: list[StoredSchema] = []
        self._collect(found, "", kind, made, set())
        return made

    def _collect(self, found: Any, name: str, kind: str, made: list[StoredSchema], seen: set[tuple[str, int]]) -> None:
        """Add a schema after those that it refers to."""
        is_of = found.get("schemaType", AVRO)
        if is_of != kind:
            raise Unreadable(f"its schema is one of {is_of}, not of {kind}")
        for reference in found.get("references") or ():
            key = (str(reference["subject"]), int(reference["version"]))
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > REFERENCES_MAX:
                raise Unreadable(f"its schema refers to more than {REFERENCES_MAX} others")
            other = self._ask(f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}{_QUERIES[kind]}")
            if other is None:
                raise Unreadable(f"its schema refers to version {key[1]} of {key[0]}, which is not in the registry")
            self._collect(other, str(reference.get("name", "")), kind, made, seen)
        made.append(StoredSchema(name, str(found["schema"])))

    def _ask(self, path: str) -> Any:
        """An answer of the registry, None where it says that there is none. It is asked again while it is away."""
        since_s, pause_s = self._env.monotonic_s(), PAUSE_S_MIN
        while True:
            try:
                status, body = self._get(path)
                said = f"it answered {status}"
            except ssl.SSLCertVerificationError as error:
                raise SourceUnfit(
                    f"The certificate of the schema registry of {self._config.name!r} was refused: {error.verify_message}. Nothing was "
                    "left out. Set tls_ca in [source.registry] to the file with the certificates that it is checked by, and start the "
                    "ingest again."
                ) from None
            except (OSError, http.client.HTTPException) as error:
                status, body, said = 0, b"", f"{type(error).__name__}: {error}"
            if status == 200:
                try:
                    found = msgspec.json.decode(body)
                except msgspec.DecodeError:
                    found = None
                if isinstance(found, dict):
                    return found
                said = "it answered with something else than a schema"
            elif status == 404:
                return None
            elif status and status not in _TRY_AGAIN:
                why = self._config.hide(body.decode(errors="replace")[:200])
                raise SourceUnfit(
                    f"The schema registry of {self._config.name!r} refused {path}: {status} {why}. Nothing was left out. Correct "
                    "[source.registry], and start the ingest again."
                )
            if self._env.monotonic_s() - since_s >= self._settings.away_s:
                raise SourceAway(
                    f"The schema registry of {self._config.name!r} is away: {self._config.hide(said)}. Messages whose schema is not known "
                    "wait in their topic, and nothing was left out. Start the registry, or correct [source.registry]."
                )
            self._env.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _get(self, path: str) -> tuple[int, bytes]:
        timeout = self._settings.timeout_s
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        try:
            connection.request("GET", self._path + path, headers=self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        settings = self._settings
        try:
            made = ssl.create_default_context(cafile=settings.tls_ca)
            if settings.tls_certificate is not None:
                made.load_cert_chain(settings.tls_certificate, settings.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(
                f"A certificate of [source.registry] in {self._config.path} cannot be used: {error}. Correct its path."
            ) from None
        return made


def _json_of(schema: StoredSchema) -> Any:
    try:
        return msgspec.json.decode(schema.text)
    except msgspec.DecodeError as error:
        raise Unreadable(f"its schema in the registry is not JSON: {error}") from None
