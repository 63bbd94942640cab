"""The schema of a table as Delta says it, and the features that readers need for it.

A feature is listed only when the table needs it, since many readers refuse features that they do not know, even unused ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from objcat.metadata.schema import Column, ColumnType, ListType, MapType, StructType, walk
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.type_widening import is_wider
from objcat.mirror.delta.actions import DeltaFormat, DeltaMetadata, DeltaProtocol

OWN_FEATURE = "objcatMirror"
"""A writer feature that nobody else has. So a foreign VACUUM, DELETE or OPTIMIZE refuses the table."""
NEEDS_CHECKPOINT = "objcatNeedsCheckpoint"
"""A reader feature that nobody has. The commit of a restart names it if it removes nothing of the version before it. So a reader that would
apply this commit to that version refuses it. The checkpoint of the restart does not name it, and readers begin there."""
VECTORS = "deletionVectors"
MAPPING = "columnMapping"
"""Also for tables in which a file with masked rows has a path that Delta encodes. polars 2.1 forgets the deletion vector of such a file and
gives rows that are gone, without a word; it refuses this feature, which all others know."""
WIDENING = "typeWidening"
WITHOUT_ZONE = "timestampNtz"
NOT_NULL = "invariants"
COMMIT_TIMES = "inCommitTimestamp"
FOR_EVER = "interval 36500 days"
_RETENTIONS = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
"""Spark refuses to read versions that are older than these, by default a week. Which slots are readable is decided by objcat alone."""
READER_FEATURES = frozenset({VECTORS, MAPPING, WIDENING, WITHOUT_ZONE})
_ID = "delta.columnMapping.id"
_PHYSICAL = "delta.columnMapping.physicalName"
_TYPE_CHANGES = "delta.typeChanges"
_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


@dataclass(frozen=True, slots=True)
class DeltaSettings:
    """Metadata and protocol of one version."""

    metadata: DeltaMetadata
    protocol: DeltaProtocol


def settings_of(
    spec: TableSpec, *, table: str, name: str, masked: Collection[str], created_ms: int, before: DeltaSettings | None
) -> DeltaSettings:
    """The metadata and the protocol for a table.

    Of a table with a key, key columns alone are not null: a delete in a log file has no more, and some engines check rows that are masked.

    Args:
        spec: The settings of the table.
        table: Its id in Delta.
        name: Its name.
        masked: The paths of files with masked rows.
        created_ms: The time of the first version.
        before: Of the version before. Its features stay, and its schema tells which types were widened. None: at a restart.
    """
    listed = set() if before is None else set(before.protocol.writer_features or ())
    columns = spec.table_schema.columns
    maps = MAPPING in listed or _is_renamed(columns) or any("%" in path for path in masked)
    not_null = {column.id for column in (spec.key_columns or columns)}
    known = {} if before is None else _struct_fields(msgspec.json.decode(before.metadata.schema_string))
    fields = [_field(column, known, maps=maps, not_null=not_null) for column in columns]
    features = listed | {OWN_FEATURE, COMMIT_TIMES}
    configuration = {"delta.enableInCommitTimestamps": "true", **dict.fromkeys(_RETENTIONS, FOR_EVER)}
    if masked or VECTORS in listed:
        features.add(VECTORS)
        configuration["delta.enableDeletionVectors"] = "true"
    if maps:
        features.add(MAPPING)
        configuration |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(spec.table_schema.last_id)}
    if WIDENING in listed or any(_TYPE_CHANGES in field["metadata"] for field in _every_field(fields)):
        features.add(WIDENING)
        configuration["delta.enableTypeWidening"] = "true"
    if any(column.type == "timestamp_ntz" for column in walk(columns)):
        features.add(WITHOUT_ZONE)
    if any(not field["nullable"] for field in _every_field(fields)):
        features.add(NOT_NULL)
    metadata = DeltaMetadata(
        id=table,
        name=name,
        format=DeltaFormat("parquet", {}),
        schema_string=msgspec.json.encode({"type": "struct", "fields": fields}).decode(),
        partition_columns=(),
        configuration=configuration,
        created_time=created_ms,
    )
    if before is not None:
        # The name may have changed since; that alone is no reason for another version of the metadata.
        same = msgspec.structs.replace(metadata, name=before.metadata.name, created_time=before.metadata.created_time)
        metadata = same if same == before.metadata else msgspec.structs.replace(same, name=name)
    own = DeltaProtocol(min_reader_version=1, min_writer_version=7, writer_features=tuple(features - READER_FEATURES))
    return DeltaSettings(metadata, _with_reader_features(own, features & READER_FEATURES))


def only_with_checkpoint(protocol: DeltaProtocol) -> DeltaProtocol:
    """A protocol with the feature that keeps readers from applying a commit to the version before it."""
    return _with_reader_features(protocol, {*(protocol.reader_features or ()), NEEDS_CHECKPOINT})


def as_in_checkpoint(protocol: DeltaProtocol) -> DeltaProtocol:
    """A protocol of a commit as the checkpoint of that version has it: without `NEEDS_CHECKPOINT`."""
    features = protocol.reader_features or ()
    return _with_reader_features(protocol, set(features) - {NEEDS_CHECKPOINT}) if NEEDS_CHECKPOINT in features else protocol


def _with_reader_features(protocol: DeltaProtocol, read: Collection[str]) -> DeltaProtocol:
    """A protocol with these reader features, each of which is a writer feature too."""
    others = set(protocol.writer_features or ()) - set(protocol.reader_features or ())
    return DeltaProtocol(
        min_reader_version=3 if read else 1,
        min_writer_version=7,
        reader_features=tuple(sorted(read)) or None,
        writer_features=tuple(sorted(others.union(read))),
    )


def has_column_mapping(metadata: DeltaMetadata) -> bool:
    """Whether files have other names of columns than the table."""
    return "delta.columnMapping.mode" in metadata.configuration


def stat_names(spec: TableSpec, metadata: DeltaMetadata) -> dict[int, Column]:
    """The columns by id, as statistics name them: with column mapping by the physical name, which is in `name` then."""
    maps = has_column_mapping(metadata)
    columns = spec.table_schema.columns
    return {column.id: msgspec.structs.replace(column, name=column.physical if maps else column.name) for column in columns}


def _is_renamed(columns: tuple[Column, ...]) -> bool:
    """Whether the name of a column or of a field differs from that in files. Elements, keys and values of maps have fixed names."""
    return any(column.name != column.physical or _is_renamed(_named_below(column.type)) for column in columns)


def _named_below(column_type: ColumnType) -> tuple[Column, ...]:
    match column_type:
        case StructType(fields):
            return fields
        case ListType(element):
            return _named_below(element.type)
        case MapType(key, value):
            return (*_named_below(key.type), *_named_below(value.type))
    return ()


def _field(column: Column, known: dict[str, dict[str, Any]], *, maps: bool, not_null: Collection[int] = ()) -> dict[str, Any]:
    """A column or a field of a struct. known: the fields around it in the version before, by physical name. not_null: ids that may be."""
    before = known.get(column.physical)
    metadata: dict[str, Any] = {_ID: column.id, _PHYSICAL: column.physical} if maps else {}
    said = _said(column.type, None if before is None else before["type"], maps=maps)
    changes = [] if before is None else list(before["metadata"].get(_TYPE_CHANGES, ()))
    if before is not None:
        now = _primitives(said)
        for path, old in _primitives(before["type"]).items():
            new = now.get(path)
            if new is not None and new != old:
                changes = _with_change(changes, path, old, new)
    if changes:
        metadata[_TYPE_CHANGES] = changes
    return {"name": column.name, "type": said, "nullable": column.nullable or column.id not in not_null, "metadata": metadata}


def _with_change(changes: list[dict[str, str]], path: str, old: str, new: str) -> list[dict[str, str]]:
    """The type changes of a field after another one. A type that became narrower again, after a restore, loses the changes after it."""
    where = {"fieldPath": path} if path else {}
    own = [change for change in changes if change.get("fieldPath", "") == path]
    others = [change for change in changes if change.get("fieldPath", "") != path]
    if is_wider(_ours(new), _ours(old)):
        return [*others, *own, {"fromType": old, "toType": new, **where}]
    kept = next((own[: number + 1] for number, change in enumerate(own) if change["toType"] == new), [])
    return [*others, *kept]


def _ours(name: str) -> str:
    return next((ours for ours, delta in _NAMES.items() if delta == name), name)


def _said(column_type: ColumnType, before: Any, *, maps: bool) -> Any:
    """A type as Delta says it. before: of the same column in the version before."""
    match column_type:
        case StructType(fields):
            known = _struct_fields(before)
            return {"type": "struct", "fields": [_field(field, known, maps=maps) for field in fields]}
        case ListType(element):
            inner = _inner(before, "elementType")
            return {"type": "array", "elementType": _said(element.type, inner, maps=maps), "containsNull": element.nullable}
        case MapType(key, value):
            return {
                "type": "map",
                "keyType": _said(key.type, _inner(before, "keyType"), maps=maps),
                "valueType": _said(value.type, _inner(before, "valueType"), maps=maps),
                "valueContainsNull": value.nullable,
            }
    return _NAMES.get(column_type, column_type)


def _inner(said: Any, name: str) -> Any:
    return said.get(name) if isinstance(said, dict) else None


def _struct_fields(said: Any) -> dict[str, dict[str, Any]]:
    """The fields of a struct by physical name. Nothing for another type."""
    fields = said.get("fields", ()) if isinstance(said, dict) else ()
    return {field["metadata"].get(_PHYSICAL, field["name"]): field for field in fields}


def _primitives(said: Any, path: str = "") -> dict[str, str]:
    """The plain types of a field, through lists and maps and not through structs, by their path in it."""
    if isinstance(said, str):
        return {path: said}
    found: dict[str, str] = {}
    for name, step in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
        if name in said:
            found |= _primitives(said[name], f"{path}.{step}" if path else step)
    return found


def _every_field(said: Any) -> Iterator[dict[str, Any]]:
    """All fields of structs in a type, or in a list of fields."""
    if isinstance(said, list):
        for field in said:
            yield field
            yield from _every_field(field["type"])
    elif isinstance(said, dict):
        for name in ("fields", "elementType", "keyType", "valueType"):
            yield from _every_field(said.get(name))
