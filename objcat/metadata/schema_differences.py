"""Differences between two schemas of one table, in words and by column ids."""

from __future__ import annotations

from collections.abc import Iterator

from objcat.metadata.column_defaults import is_said, shown_default
from objcat.metadata.schema import (
    Column,
    TableSchema,
    type_text,
)
from objcat.metadata.type_widening import Siblings, child_fields


def changed_ids(old: TableSchema, new: TableSchema) -> tuple[int, ...]:
    """Ids of columns and fields that were added, dropped, renamed or widened, that allow nulls now, or have another default."""
    before, after = ({column.id: _facts(column) for _, column in _paths(schema.columns)} for schema in (old, new))
    return tuple(sorted(column_id for column_id in before.keys() | after.keys() if before.get(column_id) != after.get(column_id)))


def describe_changes(old: TableSchema, new: TableSchema) -> list[str]:
    """The differences between two schemas of a table in words: one phrase for each column or field."""
    before = {column.id: (path, column) for path, column in _paths(old.columns)}
    after = {column.id: (path, column) for path, column in _paths(new.columns)}
    said = []
    for column_id, (path, column) in after.items():
        if column_id not in before:
            if _parent(path) not in {other for other_id, (other, _) in after.items() if other_id not in before}:
                default = f", default {shown_default(column.initial_default)}" if is_said(column.initial_default) else ""
                said.append(f"added {_dotted(path)} ({type_text(column.type)}{default})")
            continue
        was = before[column_id][1]
        if was.name != column.name:
            said.append(f"renamed {_dotted(before[column_id][0])} to {column.name}")
        if isinstance(was.type, str) and was.type != column.type:
            said.append(f"widened {_dotted(path)} from {was.type} to {type_text(column.type)}")
        if column.nullable and not was.nullable:
            said.append(f"allowed nulls in {_dotted(path)}")
        if is_said(was.write_default) and not is_said(column.write_default):
            said.append(f"dropped the default of {_dotted(path)}")
        elif is_said(column.write_default) and was.type == column.type and was.write_default != column.write_default:
            said.append(f"set the default of {_dotted(path)} to {shown_default(column.write_default)}")
    gone = {path for column_id, (path, _) in before.items() if column_id not in after}
    said += [f"dropped {_dotted(path)}" for path in (path for path, _ in before.values()) if path in gone and _parent(path) not in gone]
    return said + _describe_order(old, new)


def _describe_order(old: TableSchema, new: TableSchema) -> list[str]:
    """The new order, where columns of both schemas follow each other differently."""
    before, after = (dict(_orders(schema.columns, ())) for schema in (old, new))
    names = {column.id: column.name for _, column in _paths(new.columns)}
    said = []
    for parent, ids in after.items():
        common = [column_id for column_id in ids if column_id in before.get(parent, ())]
        if common != [column_id for column_id in before.get(parent, ()) if column_id in ids]:
            within = f" in {names[parent[-1]]}" if parent else ""
            said.append(f"ordered columns{within} as {', '.join(names[column_id] for column_id in ids)}")
    return said


def _orders(columns: Siblings, parent: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    yield parent, tuple(column.id for column in columns)
    for column in columns:
        yield from _orders(child_fields(column), (*parent, column.id))


def _paths(columns: Siblings, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Column]]:
    for column in columns:
        path = (*above, column.name)
        yield path, column
        yield from _paths(child_fields(column), path)


def _facts(column: Column) -> tuple[object, ...]:
    defaults = (shown_default(column.initial_default), shown_default(column.write_default))
    return column.name, column.type if isinstance(column.type, str) else type(column.type), column.nullable, *defaults


def _parent(path: tuple[str, ...]) -> tuple[str, ...]:
    return path[:-1]


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(f"`{name}`" if "." in name else name for name in path)
