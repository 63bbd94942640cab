"""The schema registry of tests answers as Confluent's does, and has the faults that it is told to have."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any

import pytest

from devkit.schema_registry import RegistryFault, SchemaRegistry

SCHEMA = '{"type":"record","name":"item","fields":[{"name":"id","type":"long"}]}'
WIDER = '{"type":"record","name":"item","fields":[{"name":"id","type":"long"},{"name":"n","type":["null","int"],"default":null}]}'


def ask(registry: SchemaRegistry, path: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{registry.url}{path}", data, headers), timeout=10) as answer:
        assert answer.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
        return json.loads(answer.read())


def refusal(registry: SchemaRegistry, path: str, body: Any = None) -> tuple[int, int]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(registry, path, body)
    with refused.value as answer:
        return answer.code, json.loads(answer.read())["error_code"]


def test_schemas_by_id_and_by_subject() -> None:
    with SchemaRegistry() as registry:
        first = ask(registry, "/subjects/items-value/versions", {"schema": SCHEMA})["id"]
        again = ask(registry, "/subjects/others-value/versions", {"schema": SCHEMA})["id"]
        second = ask(registry, "/subjects/items-value/versions", {"schema": WIDER})["id"]
        assert (first, again, second) == (1, 1, 2)
        assert ask(registry, "/schemas/ids/1") == {"schema": SCHEMA}
        assert ask(registry, "/subjects") == ["items-value", "others-value"]
        assert ask(registry, "/subjects/items-value/versions") == [1, 2]
        latest = ask(registry, "/subjects/items-value/versions/latest")
        assert latest == {"subject": "items-value", "version": 2, "id": 2, "schema": WIDER}
        assert ask(registry, "/subjects/items-value", {"schema": SCHEMA})["version"] == 1
        assert refusal(registry, "/schemas/ids/9") == (404, 40403)
        assert refusal(registry, "/subjects/none/versions") == (404, 40401)
        assert refusal(registry, "/subjects/items-value/versions/9") == (404, 40402)
        assert refusal(registry, "/subjects/items-value", {"schema": '"string"'}) == (404, 40403)


def test_protobuf_with_a_reference() -> None:
    with SchemaRegistry() as registry:
        registry.register("other.proto", 'syntax = "proto3"; message Other {}', kind="PROTOBUF")
        text = 'syntax = "proto3"; import "other.proto"; message Item { Other other = 1; }'
        reference = {"name": "other.proto", "subject": "other.proto", "version": 1}
        made = ask(registry, "/subjects/items-value/versions", {"schema": text, "schemaType": "PROTOBUF", "references": [reference]})
        assert ask(registry, f"/schemas/ids/{made['id']}") == {"schema": text, "schemaType": "PROTOBUF", "references": [reference]}


def test_faults_on_demand() -> None:
    with SchemaRegistry() as registry:
        registry.register("items-value", SCHEMA)
        registry.fault = RegistryFault.MISSING
        assert refusal(registry, "/schemas/ids/1") == (404, 40403)
        registry.fault = RegistryFault.BUSY
        assert refusal(registry, "/schemas/ids/1") == (503, 50301)
        registry.fault = RegistryFault.AWAY
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            ask(registry, "/schemas/ids/1")
        registry.fault, registry.slow_s = RegistryFault.SLOW, 0.2
        began_s = time.monotonic()
        assert ask(registry, "/schemas/ids/1") == {"schema": SCHEMA}
        assert time.monotonic() - began_s >= 0.2
        registry.fault = None
        assert ask(registry, "/schemas/ids/1") == {"schema": SCHEMA}


def test_only_its_user_is_answered() -> None:
    with SchemaRegistry(user="reader:secret") as registry:
        registry.register("items-value", SCHEMA)
        assert refusal(registry, "/schemas/ids/1") == (401, 401)
        allowed = f"Basic {b64encode(b'reader:secret').decode()}"
        assert ask(registry, "/schemas/ids/1", Authorization=allowed) == {"schema": SCHEMA}
