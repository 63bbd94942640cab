"""Which adopted files the readers of a mirror read as objcat does: files of other tools, that objcat reads with the help of its log.

A mirror names such a file where it is. It can do so if the file has all that its readers need: each column under the name or the id, and in
a type, that the format knows for it. Otherwise the mirror waits, and says why. The footers of adopted files are read once, when a mirror
names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from fileio.contract import ObjectMeta, Version
from fileio.env import map_io
from fileio.store import FileIO
from objcat.datafile.adopted_files import TEXTS
from objcat.metadata.files import OUTER
from objcat.metadata.schema import FIELD_ID_KEY, Column, ListType, MapType, StructType, decimal_digits, is_list
from objcat.metadata.table_spec import TableSpec
from objcat.mirror.model import MirrorChange, MirroredFile, MirrorHeld

READ_AT_ONCE = 64
"""Files whose schemas are in memory at the same time."""

_Reads: TypeAlias = Callable[[pa.DataType, str], bool]
"""Whether a format reads a plain type of a file as a type of the table."""
_Fields: TypeAlias = Iterable[pa.Field]


def is_of_lake(path: str) -> bool:
    """Whether a path leads to an adopted file."""
    return path.startswith(f"{OUTER}/")


def key_in_lake(path: str) -> str:
    """The key in the lake of an adopted file."""
    return path.removeprefix(f"{OUTER}/")


def check_for_iceberg(change: MirrorChange, fileio: FileIO, *, name: str) -> None:
    """Check that Iceberg's readers read all adopted files that a slot adds. Raises MirrorHeld.

    They find columns by field ids, or in files without any by the name mapping, which has the physical names.

    Args:
        change: of the slot.
        fileio: with the data files.
        name: of the table.
    """
    _check(change, fileio, _why_not_iceberg, name=name, form="Iceberg")


def check_for_delta(change: MirrorChange, fileio: FileIO, *, name: str) -> None:
    """Check that Delta's readers read all adopted files that a slot adds. They find columns by physical names. As `check_for_iceberg`."""
    _check(change, fileio, _why_not_delta, name=name, form="Delta")


def _check(
    change: MirrorChange, fileio: FileIO, why_not: Callable[[MirroredFile, pa.Schema, TableSpec], str], *, name: str, form: str
) -> None:
    if change.spec.is_in_place:
        raise MirrorHeld(
            f"The files of the table {name!r} are in place, and no reader of {form} reads them as objcat does, so there is no {form} "
            "mirror. The table is not affected. Copy its rows to a table of its own."
        )
    adopted = (file for file in change.added if file.adopted is not None)
    while part := list(islice(adopted, READ_AT_ONCE)):
        for file, schema in zip(part, map_io(fileio.env, lambda file: _schema_of(fileio, file), part), strict=True):
            reason = why_not(file, schema, change.spec)
            if reason:
                raise MirrorHeld(
                    f"The table {name!r} names the adopted file {file.path!r}, {reason}. No reader of {form} would read it as objcat does, "
                    f"so the {form} mirror waits. The table is not affected. Rewrite its adopted files by table.maintenance.cluster(...)."
                )


def _schema_of(fileio: FileIO, file: MirroredFile) -> pa.Schema:
    with fileio.open_read(file.path, meta=ObjectMeta(file.path, file.bytes, Version(""), 0)) as stream:
        return pq.read_schema(stream)


def _why_not_iceberg(file: MirroredFile, schema: pa.Schema, spec: TableSpec) -> str:
    """Why Iceberg's readers would read other rows, empty if they do not."""
    assert file.adopted is not None
    names, values = file.adopted.names, file.adopted.values
    by_id = any(_has_id(field) for field in schema)
    for column in spec.table_schema.columns:
        if values.get(column.id) is not None:
            return f"which lacks the column {column.name!r}, whose value is in the log alone"
        ours = None if column.id in values else _named(schema, names.get(column.id, column.physical))
        theirs = _with_id(schema, column.id) if by_id else _named(schema, column.physical)
        if _name(ours) != _name(theirs):
            return f"whose columns do not say which one is {column.name!r}"
        reason = "" if ours is None else _why_not_type(column, ours.type, _iceberg_reads, by_id=by_id)
        if reason:
            return reason
    if any(character in file.path for character in "?#"):
        return "whose path has a character at which readers cut it off"
    return ""


def _why_not_delta(file: MirroredFile, schema: pa.Schema, spec: TableSpec) -> str:
    """Why Delta's readers would read other rows, empty if they do not."""
    assert file.adopted is not None
    for column in spec.table_schema.columns:
        if file.adopted.values.get(column.id) is not None:
            return f"which lacks the column {column.name!r}, whose value is in the log alone"
        if column.id in file.adopted.values or column.id in file.adopted.names:
            return f"which has the column {column.name!r} under another name"
        ours = _named(schema, column.physical)
        reason = "" if ours is None else _why_not_type(column, ours.type, _delta_reads, by_id=False)
        if reason:
            return reason
    return ""


def _why_not_type(column: Column, found: pa.DataType, reads: _Reads, *, by_id: bool) -> str:
    """Why a column of a file is not read as one of the table, empty if it is. Fields inside it have ids, or their physical names, too."""
    kind = column.type
    pairs: Sequence[tuple[Column, pa.Field | None]]
    match kind:
        case StructType(fields):
            inner = [found.field(at) for at in range(found.num_fields)]
            for one in fields:
                if by_id and _name(_with_id(inner, one.id)) != _name(_named(inner, one.physical)):
                    return f"whose fields in {column.name!r} do not say which one is {one.name!r}"
            pairs = [(one, _named(inner, one.physical)) for one in fields]
        case ListType(element):
            pairs = [(element, found.value_field)] if is_list(found) else []
        case MapType(key, value):
            pairs = [(key, found.key_field), (value, found.item_field)]
        case _:
            stored = found.value_type if pt.is_dictionary(found) else found
            return "" if reads(stored, kind) else f"which has the column {column.name!r} as {stored}, and not as {kind}"
    if by_id and not isinstance(kind, StructType) and any(field is None or not _has_id(field, one.id) for one, field in pairs):
        return f"whose elements of {column.name!r} have no field ids"
    found_reasons = (_why_not_type(one, field.type, reads, by_id=by_id) for one, field in pairs if field is not None)
    return next((reason for reason in found_reasons if reason), "")


def _iceberg_reads(stored: pa.DataType, kind: str) -> bool:
    digits = decimal_digits(kind)
    if digits is not None:
        return bool(pt.is_decimal(stored) and stored.scale == digits[1] and stored.precision <= digits[0])
    if kind in _INTEGER_BITS:
        return bool(pt.is_signed_integer(stored) and stored.bit_width <= max(32, _INTEGER_BITS[kind]))
    if kind == "double":
        return bool(pt.is_float32(stored) or pt.is_float64(stored))
    return _is_plain(stored, kind)


def _delta_reads(stored: pa.DataType, kind: str) -> bool:
    digits = decimal_digits(kind)
    if digits is not None:
        return bool(pt.is_decimal(stored) and (stored.precision, stored.scale) == digits)
    if kind in _INTEGER_BITS:
        return bool(pt.is_signed_integer(stored) and stored.bit_width == _INTEGER_BITS[kind])
    return bool(pt.is_float64(stored)) if kind == "double" else _is_plain(stored, kind)


_INTEGER_BITS: Mapping[str, int] = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def _is_plain(stored: pa.DataType, kind: str) -> bool:
    """Whether a type of a file is the one that all writers store a type of the table as."""
    match kind:
        case "boolean":
            return bool(pt.is_boolean(stored))
        case "float":
            return bool(pt.is_float32(stored))
        case "string":
            return any(matches(stored) for matches in TEXTS)
        case "binary":
            return bool(pt.is_binary(stored) or pt.is_large_binary(stored))
        case "date":
            return bool(pt.is_date32(stored))
        case "timestamp":
            # Timestamps of 12 bytes are shown as nanoseconds without a zone.
            return bool(pt.is_timestamp(stored) and (stored.tz is None) == (stored.unit == "ns"))
        case "timestamp_ntz":
            return bool(pt.is_timestamp(stored) and stored.tz is None and stored.unit != "ns")
    return False


def _name(field: pa.Field | None) -> str | None:
    return None if field is None else str(field.name)


def _named(fields: _Fields, name: str) -> pa.Field | None:
    return next((field for field in fields if field.name == name), None)


def _with_id(fields: _Fields, column_id: int) -> pa.Field | None:
    return next((field for field in fields if _has_id(field, column_id)), None)


def _has_id(field: pa.Field, column_id: int | None = None) -> bool:
    found = (field.metadata or {}).get(FIELD_ID_KEY)
    return found is not None and (column_id is None or int(found) == column_id)
