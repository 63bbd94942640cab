"""Envelopes of Debezium, written by hand to its documentation, and messages that have them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from objcat.ingest.kafka.message import KafkaMessage

ITEM_FIELDS: list[dict[str, Any]] = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
]
UNAVAILABLE = "__debezium_unavailable_value"


def connect_json(schema: Mapping[str, Any] | None, payload: Any) -> bytes:
    """A value as Connect's JSON converter writes it; without a schema the payload alone."""
    return json.dumps(payload if schema is None else {"schema": schema, "payload": payload}).encode()


def envelope_schema(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row = {"type": "struct", "fields": list(fields), "optional": True, "name": "pg.public.items.Value"}
    source = [{"type": "int64", "optional": False, "field": "ts_ms"}, {"type": "string", "optional": True, "field": "table"}]
    block = [{"type": "string", "optional": False, "field": "id"}, {"type": "int64", "optional": False, "field": "total_order"}]
    return {
        "type": "struct",
        "name": "pg.public.items.Envelope",
        "optional": False,
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {"type": "struct", "fields": source, "optional": False, "field": "source"},
            {"type": "struct", "fields": block, "optional": True, "field": "transaction"},
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
    }


def envelope(
    operation: str,
    after: Mapping[str, Any] | None,
    *,
    before: Mapping[str, Any] | None = None,
    transaction: tuple[str, int] | None = None,
    table: str = "items",
    snapshot: str = "false",
    ts_ms: int = 1_700_000_000_000,
) -> dict[str, Any]:
    block = None if transaction is None else {"id": transaction[0], "total_order": transaction[1], "data_collection_order": 1}
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": table, "ts_ms": ts_ms, "snapshot": snapshot, "lsn": 1}
    return {"before": before, "after": after, "source": source, "op": operation, "ts_ms": ts_ms + 5, "transaction": block}


def item_message(
    offset: int,
    payload: Mapping[str, Any] | None,
    *,
    key: Any = None,
    fields: Sequence[Mapping[str, Any]] = ITEM_FIELDS,
    topic: str = "pg.public.items",
    partition: int = 0,
    has_schema: bool = True,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> KafkaMessage:
    """A message of the topic of `items`."""
    if key is None and payload is not None and payload.get("op") != "t":
        key = {"id": (payload.get("after") or payload.get("before") or {}).get("id")}
    key_schema = {"type": "struct", "fields": [field for field in fields if field["field"] == "id"], "optional": False}
    return KafkaMessage(
        topic,
        partition,
        offset,
        None if key is None else connect_json(key_schema if has_schema else None, key),
        None if payload is None else connect_json(envelope_schema(fields) if has_schema else None, payload),
        1_700_000_000_500 + offset,
        headers,
    )
