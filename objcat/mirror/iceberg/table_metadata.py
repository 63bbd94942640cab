"""The metadata file of a slot: what `v<n>.metadata.json` holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from objcat.datafile.hidden_columns import HIDDEN_IDS
from objcat.mirror.iceberg.manifests import Tally
from objcat.mirror.iceberg.objects import pointer_name
from objcat.mirror.iceberg.types import Record, names_of
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorChange, MirroredSlot
from objcat.timeline.entry import Action

SNAPSHOTS_MAX = 100
"""Snapshots of a metadata file, besides those of savepoints, which are as many at most."""
SLOT, TABLE, TXN, NAME = "objcat.slot", "objcat.table", "objcat.txn", "objcat.name"
OLDEST = "objcat.oldest-slot"
"""The property with the floor of retention: slots below it may be unreadable, except saved ones."""
NAME_MAPPING = "schema.name-mapping.default"
_NEEDED = ("format-version", "location", "schemas", "current-schema-id", "snapshots", "current-snapshot-id", "properties")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """What is new at a slot.

    Attributes:
        manifest_list: its URI.
        schema: of the table, with its `schema-id`.
        data_added, data_removed: data files.
        deletes_added, deletes_removed: position files, or deletion vectors.
        first_row_id, new_row_ids: of the rows of new manifests, from version 3 on.
    """

    manifest_list: str
    schema: Record
    data_added: Tally
    data_removed: Tally
    deletes_added: Tally
    deletes_removed: Tally
    first_row_id: int = 0
    new_row_ids: int = 0


def read_document(data: bytes, *, where: str, table: str, slot: int) -> Record:
    """A metadata file of a mirror.

    Args:
        data: its bytes.
        where: for errors.
        table: the id of the table that it must be of.
        slot: that its name says.

    Raises:
        ForeignMetadata: It is of something else.
        CorruptMirror: It cannot be read.
    """
    try:
        found: Any = json.loads(data)
    except ValueError as error:
        raise CorruptMirror(f"{where} is no JSON ({error}). The table is not affected. Let the mirror begin again.") from error
    properties = found.get("properties") if isinstance(found, dict) else None
    of = properties.get(TABLE) if isinstance(properties, dict) else None
    if not isinstance(properties, dict) or of is None or SLOT not in properties:
        raise ForeignMetadata(
            f"{where} was not written by objcat. Nothing was changed. Move the other table away from this prefix, or turn its catalog off, "
            "then let the mirror begin again."
        )
    if of != table:
        raise ForeignMetadata(f"{where} is the mirror of another table, {of!r}, and not of {table!r}. Nothing was changed.")
    missing = [name for name in _NEEDED if name not in found]
    snapshot = None if missing else current_snapshot(found)
    if snapshot is None:
        raise CorruptMirror(f"{where} contradicts itself (it lacks {missing}). The table is not affected. Let the mirror begin again.")
    said = (properties[SLOT], snapshot.get("summary", {}).get(SLOT), str(snapshot["snapshot-id"] - 1))
    if set(said) != {str(slot)}:
        # A table that another writer changes keeps its properties, but the number of the file or the snapshot does not fit them.
        raise ForeignMetadata(
            f"{where} was written by something else, over the mirror of slot {properties[SLOT]}. Nothing was changed. Only objcat may "
            "write here: take the right to write from the other catalog, delete this file, then let the mirror go on."
        )
    document: Record = found
    return document


def mirrored_slot(document: Record) -> MirroredSlot:
    """The slot that a metadata file is of."""
    return MirroredSlot(int(document["properties"][SLOT]), str(document["properties"].get(TXN, "")))


def oldest_slot(document: Record) -> int:
    """The floor of retention when a metadata file was written, 0 if it does not say."""
    return int(document["properties"].get(OLDEST, 0))


def current_snapshot(document: Record) -> Record | None:
    """The newest snapshot."""
    snapshots: list[Record] = document["snapshots"]
    newest: list[Record] = [one for one in snapshots if one["snapshot-id"] == document["current-snapshot-id"]]
    return newest[-1] if newest else None


def current_schema(document: Record) -> Record:
    """The schema of the newest snapshot, with its `schema-id`."""
    found: Record = next(schema for schema in document["schemas"] if schema["schema-id"] == document["current-schema-id"])
    return found


def with_schema_id(schema: Record, schemas: Sequence[Record]) -> Record:
    """A schema with the id of an equal one, or with a new id."""
    for known in schemas:
        if {**known, "schema-id": 0} == {**schema, "schema-id": 0}:
            return known
    return {**schema, "schema-id": max((known["schema-id"] for known in schemas), default=-1) + 1}


def encode_document(document: Record) -> bytes:
    """The bytes of a metadata file."""
    return json.dumps(document, separators=(",", ":")).encode()


def next_document(previous: Record | None, change: MirrorChange, facts: SnapshotFacts, *, version: int, location: str, name: str) -> Record:
    """The metadata file of a slot.

    Args:
        previous: the one before. None: the mirror begins. With `change.restarts`, only its schemas and its number of row ids stay.
        change: what the slot changes.
        facts: what was written for it.
        version: of the format.
        location: the URI of the table.
        name: of the table.
    """
    goes_on = previous is not None and not change.restarts
    before = previous or {}
    snapshots = _retained(before["snapshots"], change) if goes_on else []
    snapshot = _snapshot(before if goes_on else None, change, facts, version)
    snapshots.append(snapshot)
    updated_ms = snapshot["timestamp-ms"]
    used = {one["schema-id"] for one in snapshots}
    schemas = [one for one in before.get("schemas", ()) if one["schema-id"] in used and one["schema-id"] != facts.schema["schema-id"]]
    slots = {one["snapshot-id"] - 1 for one in snapshots}
    log = [entry for entry in before.get("metadata-log", ()) if _slot_of(entry["metadata-file"]) in slots] if goes_on else []
    if goes_on:
        earlier = f"{location}/metadata/{pointer_name(mirrored_slot(before).slot)}"
        log.append({"metadata-file": earlier, "timestamp-ms": before["last-updated-ms"]})
    document: Record = {
        "format-version": version,
        "table-uuid": table_uuid(change.spec.table),
        "location": location,
        "last-sequence-number": change.slot + 1,
        "last-updated-ms": updated_ms,
        "last-column-id": max(HIDDEN_IDS.values()),
        "current-schema-id": facts.schema["schema-id"],
        "schemas": [*schemas, facts.schema],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": _properties(before, change, name),
        "current-snapshot-id": change.slot + 1,
        "refs": {"main": {"snapshot-id": change.slot + 1, "type": "branch"}},
        "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]} for one in snapshots],
        "metadata-log": log[-SNAPSHOTS_MAX:],
        "statistics": [],
        "partition-statistics": [],
    }
    if version >= 3:
        document["next-row-id"] = facts.first_row_id + facts.new_row_ids
    return document


def table_uuid(table: str) -> str:
    """A UUID that follows from the id of a table."""
    digits = hashlib.sha256(f"objcat mirror of table {table}".encode()).hexdigest()[:32]
    # Version 8 is for UUIDs of an application's own making.
    digits = f"{digits[:12]}8{digits[13:16]}{'89ab'[int(digits[16], 16) % 4]}{digits[17:]}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _retained(snapshots: Sequence[Record], change: MirrorChange) -> list[Record]:
    slots = {one["snapshot-id"] - 1: one for one in snapshots}
    recent = [slot for slot in slots if slot >= change.oldest_slot][-(SNAPSHOTS_MAX - 1) :]
    saved = [slot for slot in slots if slot in change.saved and slot not in recent][-SNAPSHOTS_MAX:]
    return [slots[slot] for slot in sorted({*saved, *recent})]


def _slot_of(uri: str) -> int:
    return int(uri.rpartition("/v")[2].partition(".")[0]) - 1


def _properties(before: Record, change: MirrorChange, name: str) -> dict[str, str]:
    known = before.get("properties", {})
    mapping = known.get(NAME_MAPPING)
    return {
        SLOT: str(change.slot),
        TXN: change.txn,
        OLDEST: str(change.oldest_slot),
        TABLE: change.spec.table,
        # A table service knows the id alone.
        NAME: known.get(NAME, name) if name == change.spec.table else name,
        "gc.enabled": "false",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        NAME_MAPPING: names_of(change.spec, mapping),
    }


def _snapshot(before: Record | None, change: MirrorChange, facts: SnapshotFacts, version: int) -> Record:
    parent = None if before is None else current_snapshot(before)
    found: Record = {
        "snapshot-id": change.slot + 1,
        "sequence-number": change.slot + 1,
        "timestamp-ms": max(change.committed_at_ms, 0 if before is None else before["last-updated-ms"]),
        "manifest-list": facts.manifest_list,
        "schema-id": facts.schema["schema-id"],
        "summary": _summary({} if parent is None else parent["summary"], change, facts),
    }
    if parent is not None:
        found["parent-snapshot-id"] = parent["snapshot-id"]
    if version >= 3:
        found |= {"first-row-id": facts.first_row_id, "added-rows": facts.new_row_ids}
    return found


def _summary(before: Mapping[str, str], change: MirrorChange, facts: SnapshotFacts) -> dict[str, str]:
    found = {"operation": _operation(change, facts), SLOT: str(change.slot), TXN: change.txn}
    added, removed = facts.data_added, facts.data_removed
    came, went = facts.deletes_added, facts.deletes_removed
    changes = {
        "added-data-files": added.files,
        "deleted-data-files": removed.files,
        "added-records": added.rows,
        "deleted-records": removed.rows,
        "added-files-size": added.bytes + came.bytes,
        "removed-files-size": removed.bytes + went.bytes,
        "added-delete-files": came.files,
        "removed-delete-files": went.files,
        "added-position-deletes": came.rows,
        "removed-position-deletes": went.rows,
    }
    totals = {
        "total-data-files": added.files - removed.files,
        "total-records": added.rows - removed.rows,
        "total-files-size": added.bytes + came.bytes - removed.bytes - went.bytes,
        "total-delete-files": came.files - went.files,
        "total-position-deletes": came.rows - went.rows,
        "total-equality-deletes": 0,
    }
    found |= {name: str(count) for name, count in changes.items() if count}
    return found | {name: str(int(before.get(name, 0)) + count) for name, count in totals.items()}


def _operation(change: MirrorChange, facts: SnapshotFacts) -> str:
    """What Iceberg calls the change. A slot without changes of files is one that keeps rows."""
    if change.keeps_rows or change.is_empty:
        return "replace"
    if not facts.data_removed.files and not facts.deletes_added.files:
        return "append"
    return "overwrite" if facts.data_added.files or change.action is Action.RESTORE else "delete"
