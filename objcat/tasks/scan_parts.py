"""Which fields of structs a scan needs, of its output and of its filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from objcat.datafile.casting import cast_column, exactly
from objcat.metadata.column_parts import field_at, fields_within, part_of, with_parts
from objcat.metadata.schema import Column, StructType, TableSchema
from objcat.predicate.parse import Predicate
from objcat.tasks.model import Filter


def schema_read(schema: TableSchema, columns: Iterable[str], parts: Sequence[Column], where: Filter | None) -> TableSchema:
    """The schema with fewer fields in its structs: those that the output or the filter of a scan needs.

    Args:
        columns: of the output, by name.
        parts: those of the output that have fewer fields than in the schema.
    """
    ids = {field_id for part in parts for field_id in _ends(part)}
    ids |= {schema.column(name).id for name in set(columns) & set(schema.names) - {part.name for part in parts}}
    ids |= _of_filter(schema, where)
    return with_parts(schema, (part for column in schema.columns if (part := part_of(column, ids)) is not None))


def filter_parts(schema: TableSchema, where: Filter | None) -> tuple[Column, ...]:
    """The columns of which a filter needs some fields alone, with these."""
    ids = _of_filter(schema, where)
    found = [part_of(column, ids) for column in schema.columns if column.id not in ids]
    return tuple(part for part in found if part is not None)


def _of_filter(schema: TableSchema, where: Filter | None) -> set[int]:
    if where is None:
        return set()
    paths = where.paths() if isinstance(where, Predicate) else [(name,) for name in where.columns]
    return {field_at(schema, path).id for path in paths}


def _ends(part: Column) -> list[int]:
    """The ids of the fields of a struct that are no structs."""
    return [path[-1].id for path in fields_within([part]) if not isinstance(path[-1].type, StructType)]


def cast_to(rows: pa.Table, schema: pa.Schema, parts: Iterable[Column]) -> pa.Table:
    """Rows under logical names, of which some columns get the fields that they have in a schema: others go, and missing ones are null."""
    for part in parts:
        at = rows.column_names.index(part.name)
        rows = rows.set_column(at, part.name, cast_column(rows.column(at), schema.field(part.name).type, exactly))
    return rows
