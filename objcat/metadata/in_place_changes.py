"""Which settings and changes of columns do not fit a table in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from objcat.common.validation import name_list, nearest_name
from objcat.errors import InvalidInput
from objcat.metadata.column_parts import FieldPath, field_at, fields_within, path_of
from objcat.metadata.in_place import TEXT_FORMATS, FilesInPlace, name_in_file
from objcat.metadata.partitioning import Partitioning
from objcat.metadata.properties import MIRRORS
from objcat.metadata.schema_evolution import AddColumn, ColumnChange, DropColumn, WidenColumn, path_steps
from objcat.metadata.table_spec import TableSpec


def check_in_place(properties: Mapping[str, str]) -> None:
    """Raises InvalidInput where a table in place would be mirrored."""
    if properties.get(MIRRORS, "none") != "none":
        raise InvalidInput(
            f"A table in place has no mirrors: other engines read its files themselves. Leave out the property {MIRRORS!r}, or copy its "
            "rows to a table of its own."
        )


def check_changes_in_place(spec: TableSpec, settings: FilesInPlace, changes: Sequence[ColumnChange]) -> None:
    """Raises InvalidInput for a change after which files that were taken would be read otherwise than they were."""
    renamed = {column.name: name for column in spec.table_schema.columns if (name := name_in_file(column)) != column.name}
    for change in changes:
        if isinstance(change, DropColumn):
            if settings.format == "csv" and not settings.header:
                raise InvalidInput(
                    f"The files of this table are CSV without a header, whose fields are told apart by their places, and {change.path!r} "
                    "has one of these. Nothing was changed. Keep the column, and leave it out of what you read."
                )
            renamed.pop(change.path, None)
        if isinstance(change, AddColumn) and change.path in renamed.values():
            raise InvalidInput(
                f"Files in place already have {change.path!r}: as a column that was renamed, which keeps that name in files. Nothing was "
                "changed. Add a column of another name, or drop the renamed one first."
            )
        if isinstance(change, WidenColumn) and settings.format in TEXT_FORMATS:
            raise InvalidInput(
                f"The files of this table are {settings.format}, which has no types, so the values of {change.path!r} in files that were "
                "taken might become others under another type. Nothing was changed. Create the table again with the type that is wanted."
            )
        if isinstance(change, AddColumn) and len(path_steps(change.path, spec.table_schema)) > 1:
            raise InvalidInput(
                f"{change.path!r} is inside a column, and files in place have the fields that the table was created with. Nothing was "
                "changed. Add a column of its own, or create the table again."
            )


def choose_precomputed(spec: TableSpec, settings: FilesInPlace, names: Sequence[str]) -> FilesInPlace:
    """Settings with other columns and fields to precompute, named as `payload.status`.

    Raises InvalidInput for a name that is no column of the files and no field of a struct, or that is inside of another one.
    """
    schema = spec.table_schema
    paths: dict[FieldPath, str] = {}
    for name in name_list(names, what="precompute"):
        if name not in schema.names and "." not in name:
            raise InvalidInput(f"precompute= names {name!r}, which is not a column: {nearest_name(name, schema.names)}")
        path = path_of(name, schema)
        if schema.column(path[0]).id in settings.path_columns:
            raise InvalidInput(f"{name!r} is a column of the path, which no query opens a file for. Leave it out of precompute=.")
        paths[path] = name
    for path, name in paths.items():
        if outer := next((paths[path[:depth]] for depth in range(1, len(path)) if path[:depth] in paths), None):
            raise InvalidInput(f"precompute= names {outer!r}, which is precomputed whole, and {name!r}, which is inside. Leave one out.")
    return msgspec.structs.replace(
        settings,
        precompute=tuple(sorted(schema.column(path[0]).id for path in paths if len(path) == 1)),
        precompute_fields=tuple(sorted(field_at(schema, path).id for path in paths if len(path) > 1)),
    )


def without_dropped(spec: TableSpec, settings: FilesInPlace) -> FilesInPlace:
    """Settings whose precomputed columns and fields are those that the table still has."""
    columns = {column.id for column in spec.table_schema.columns}
    fields = {path[-1].id for path in fields_within(spec.table_schema.columns)}
    return msgspec.structs.replace(
        settings,
        precompute=tuple(one for one in settings.precompute if one in columns),
        precompute_fields=tuple(one for one in settings.precompute_fields if one in fields),
    )


def check_partitions_in_place(spec: TableSpec, settings: FilesInPlace, asked: Partitioning) -> None:
    """Raises InvalidInput for partitions of a column that is not in the path of a file: a file could have rows of several of them."""
    for one in asked.fields:
        if one.column not in settings.path_columns:
            raise InvalidInput(
                f"A file in place is in one partition whole, and {spec.table_schema.by_id(one.column).name!r} is no column of the path. "
                "Nothing was changed. Partition by columns of the path."
            )
