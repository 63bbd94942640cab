"""Parts of columns: fields of structs by their paths and ids, and columns with some of their fields only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from objcat.common.validation import nearest_name
from objcat.errors import InvalidInput
from objcat.metadata.in_place import FilesInPlace
from objcat.metadata.schema import Column, StructType, TableSchema
from objcat.metadata.schema_evolution import path_steps
from objcat.metadata.table_spec import TableSpec

FieldPath = tuple[str, ...]
"""The name of a column, and the names of struct fields from there to the meant one."""


def path_of(said: str, schema: TableSchema) -> FieldPath:
    """The path that a user writes as `payload.status`. A name with a dot in it stands in backticks, or is the whole column of that name.

    Raises InvalidInput for a path that is not there, or that leads through a list or a map. It says what is there.
    """
    steps = path_steps(said, schema)
    if steps[0] not in schema.names:
        raise InvalidInput(f"The table has no column {said!r}: {nearest_name(steps[0], schema.names)}")
    column = schema.column(steps[0])
    for step in steps[1:]:
        if not isinstance(column.type, StructType):
            kind = column.type if isinstance(column.type, str) else type(column.type).__name__.removesuffix("Type").lower()
            raise InvalidInput(f"{said!r} leads into {column.name!r}, which is of type {kind} and no struct. Name {column.name!r} whole.")
        fields = {field.name: field for field in column.type.fields}
        if step not in fields:
            raise InvalidInput(f"{said!r} is not there, since {column.name!r} has no field {step!r}: {nearest_name(step, list(fields))}")
        column = fields[step]
    return tuple(steps)


def path_text(path: Sequence[str]) -> str:
    """A path as `path_of` reads it, whatever its names are."""
    return ".".join("`" + step.replace("`", "``") + "`" for step in path)


def field_at(schema: TableSchema, path: Sequence[str]) -> Column:
    """The column or field of a path that is there."""
    column = schema.column(path[0])
    for step in path[1:]:
        assert isinstance(column.type, StructType), "only structs have fields"
        column = next(field for field in column.type.fields if field.name == step)
    return column


def fields_within(columns: Iterable[Column], *, above: tuple[Column, ...] = ()) -> Iterator[tuple[Column, ...]]:
    """Every field inside of structs, depth first, as the columns that lead to it, itself last. None is inside of a list or a map."""
    for column in columns:
        if above:
            yield (*above, column)
        if isinstance(column.type, StructType):
            yield from fields_within(column.type.fields, above=(*above, column))


def bounded_fields(spec: TableSpec) -> list[tuple[Column, ...]]:
    """The fields of structs that have bounds, as the columns that lead to each: plain ones that are precomputed without their column."""
    settings = spec.in_place
    if not isinstance(settings, FilesInPlace) or not settings.precompute_fields:
        return []
    never = spec.statistics.never
    found = fields_within(column for column in spec.table_schema.columns if column.id not in never)
    return [path for path in found if path[-1].id in settings.precompute_fields and isinstance(path[-1].type, str)]


def with_bounded_fields(columns: Sequence[Column], spec: TableSpec) -> list[Column]:
    """Columns, and after them the fields of structs that have bounds."""
    return [*columns, *(path[-1] for path in bounded_fields(spec))]


def precomputed_names(spec: TableSpec) -> list[str]:
    """The columns and fields that a table in place wants precomputed, as a user names them."""
    settings = spec.in_place
    if not isinstance(settings, FilesInPlace):
        return []
    columns = [column.name for column in spec.table_schema.columns if column.id in settings.precompute]
    paths = [path for path in fields_within(spec.table_schema.columns) if path[-1].id in settings.precompute_fields]
    return [*columns, *(said_path([step.name for step in path], spec.table_schema) for path in paths)]


def said_path(path: Sequence[str], schema: TableSchema) -> str:
    """A path as people write it: without backticks where it is clear."""
    plain = ".".join(path)
    is_clear = plain not in schema.names and not any(set(step) & set(".`") for step in path)
    return plain if len(path) == 1 or is_clear else path_text(path)


def cheapest_column(spec: TableSpec) -> str:
    """A column, or a field, for a query that only counts. It is precomputed if any is."""
    if isinstance(spec.in_place, FilesInPlace) and spec.is_in_place:
        for column in spec.table_schema.columns:
            if column.id in spec.in_place.precompute:
                return column.name
        for path in fields_within(spec.table_schema.columns):
            if path[-1].id in spec.in_place.precompute_fields:
                return path_text([step.name for step in path])
    return (spec.key_columns or spec.table_schema.columns)[0].name


def part_of(column: Column, ids: Collection[int]) -> Column | None:
    """A column with those of its fields that have one of some ids, or that lead there. None if there is none."""
    if column.id in ids:
        return column
    if not isinstance(column.type, StructType):
        return None
    fields = tuple(part for field in column.type.fields if (part := part_of(field, ids)) is not None)
    return msgspec.structs.replace(column, type=StructType(fields=fields)) if fields else None


def is_within(column: Column, ids: Collection[int]) -> bool:
    """Whether columns and fields of these ids are all of a column."""
    if column.id in ids:
        return True
    return isinstance(column.type, StructType) and all(is_within(field, ids) for field in column.type.fields)


def with_parts(schema: TableSchema, parts: Iterable[Column]) -> TableSchema:
    """A schema with some columns replaced by parts of them."""
    known = {part.id: part for part in parts}
    return msgspec.structs.replace(schema, columns=tuple(known.get(column.id, column) for column in schema.columns))
