"""What a lake holds, as JSON that does not depend on ids, times or file names: for comparing lakes that were made at different times."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

import objcat
from objcat.errors import SnapshotExpired, TableClosed

ROWS_SHOWN_MAX = 40
"""A slot with more rows is told by their number and a hash of them."""
SLOTS_SHOWN_MAX = 24
SLOTS_APART = 17
"""Of a table with more slots, every so manieth one is told, and those where something begins or ends."""
ALONE = "path-only/meters"
"""Where the table is that the lake has no name for."""


def content_of(lake: objcat.Lake) -> dict[str, Any]:
    """A lake, its tables and what they hold."""
    names = lake.tables()
    return {
        "namespaces": {name: lake.namespaces.properties(name) for name in lake.namespaces.list()},
        "dropped": sorted(dropped.name for dropped in lake.dropped_tables()),
        "tables": {name: table_content(lake.table(name)) for name in names},
        "path-only": {ALONE: table_content(objcat.table_at(lake.fileio.child(ALONE)))},
    }


def table_content(table: objcat.Table) -> dict[str, Any]:
    """A table: what it is, what happened to it, and its rows at some of its slots."""
    spec = table.spec
    newest = table.snapshot.slot
    entries = table.inspect.history()
    born = next(entry.slot for entry in entries if table.id in entry.changes)
    marks = table._context.timeline.open().log.marks(table.id)
    edges = {born, marks.bound - 1, marks.bound, *marks.saved, newest}
    apart = 1 if newest - born < SLOTS_SHOWN_MAX else SLOTS_APART
    return {
        "columns": [[field.name, str(field.type), field.nullable] for field in table.schema],
        "key": [column.name for column in spec.key_columns],
        "ordering": None if spec.ordering_column is None else spec.ordering_column.name,
        "kind": spec.table_type,
        "buckets": spec.index.count,
        "properties": table.properties,
        "history": [f"{entry.slot} {entry.action}{_applied(entry.apps.get(table.id, {}))}{_said(entry.metadata)}" for entry in entries],
        "applications": {app: [reached.version, reached.rewound_at] for app, reached in sorted(marks.apps.items())},
        "savepoints": sorted(marks.saved),
        "rows": {str(slot): rows_at(table, slot) for slot in range(born, newest + 1) if slot % apart == 0 or slot in edges},
    }


def rows_at(table: objcat.Table, slot: int) -> Any:
    """The rows as of a slot, or why there are none."""
    try:
        return rows_content(table.scan(as_of=slot).to_arrow())
    except (SnapshotExpired, TableClosed) as error:
        return type(error).__name__


def rows_content(rows: pa.Table) -> Any:
    """Rows in an order of their own; of many, their number and a hash."""
    shown = sorted((plain(row) for row in rows.to_pylist()), key=_text)
    if len(shown) <= ROWS_SHOWN_MAX:
        return shown
    return {"count": len(shown), "sha256": hashlib.sha256("\n".join(map(_text, shown)).encode()).hexdigest()}


def plain(value: Any) -> Any:
    """A value as JSON holds it: what JSON has no type for becomes text that tells every difference."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) and not (value == 0 and math.copysign(1, value) < 0) else str(value)
        case bytes():
            return f"hex {value.hex()}"
        case Decimal():
            return f"{value:f}"
        case dt.datetime() | dt.date():
            return value.isoformat()
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON: give it one here")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _applied(apps: dict[str, int]) -> str:
    return "".join(f" {app}={version}" for app, version in sorted(apps.items()))


def _said(metadata: dict[str, str]) -> str:
    return f" {_text(metadata)}" if metadata else ""
