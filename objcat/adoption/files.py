"""Looks at the data files of a foreign table: which can be named as they are, and which have to be written again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from fileio.contract import ObjectMeta, Version
from fileio.env import map_io
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.adoption.foreign import ForeignFile, ForeignTable, TableWithFieldIds
from objcat.datafile.adopted_files import BYTES, TEXTS, json_value, old_times, with_ids
from objcat.datafile.open_files import WHOLE_BYTES_MAX
from objcat.datafile.statistics import BOUND_BYTES_MAX, bounds_of
from objcat.datafile.verification import TAIL_BYTES
from objcat.errors import InvalidInput
from objcat.metadata.file_digest import digest_of, footer_digest_of
from objcat.metadata.files import Adoption, Bound, Value
from objcat.metadata.schema import (
    FIELD_ID_KEY,
    HIDDEN_PREFIX,
    Column,
    ColumnType,
    ListType,
    MapType,
    StructType,
    TableSchema,
    arrow_type,
    is_list,
)
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.type_widening import child_fields
from objcat.timeline.entry import Txn

_TRAILER_BYTES, _MAGIC = 8, b"PAR1"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_GREGORIAN_DAYS, _GREGORIAN_US = -141_427, -2_208_988_800_000_000
"""The first day of the Gregorian calendar, and the year 1900, from which on old writers of Spark agree with all others."""
_SUFFIX = re.compile(r"_(\d{1,10})\Z")
LAST_ID_MAX = 2**31 - 2**20


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A data file whose footer was read.

    Args:
        rows: its row count.
        schema: its columns.
        footer: its footer.
        digest: of a small file; None for another.
        footer_digest: of its footer.
    """

    file: ForeignFile
    rows: int
    schema: pa.Schema
    footer: pq.FileMetaData = field(repr=False)
    digest: str | None
    footer_digest: str


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """What becomes of a data file.

    Args:
        rows: its row count.
        digest: of a small file; None for another.
        footer_digest: of its footer.
        number: the greatest number after the last `_` of a name in it, 0 for none.
        adopted: what the file lacks. Its transaction is not known yet.
        bounds: by column id.
        reason: why it has to be written again. Empty: it is named as it is.
        by_library: whether its rows have to be read by the format's own library.
    """

    file: ForeignFile
    rows: int
    digest: str | None
    footer_digest: str
    number: int
    adopted: Adoption
    bounds: Mapping[int, Bound]
    reason: str = ""
    by_library: bool = False


def look_at_files(fileio: FileIO, table: ForeignTable, spec: TableSpec) -> list[PlannedFile]:
    """Read the footers of all files, in parallel, and say what becomes of each.

    Args:
        fileio: of the lake.
        spec: of the new table.

    Raises:
        InvalidInput: a file is not what the table says, or its columns cannot be read as those of the table.
    """

    def plan(file: ForeignFile) -> PlannedFile:
        # A footer is large, and there may be very many.
        return _plan(table, spec, _look_at(fileio, table, file))

    return map_io(fileio.env, plan, table.files)


def _look_at(fileio: FileIO, table: ForeignTable, file: ForeignFile) -> LookedAt:
    def wrong(found: str) -> InvalidInput:
        return InvalidInput(
            f"The data file {file.key} in {fileio.url} {found}. Nothing was adopted. The {table.format} table at {table.location} may have "
            "changed meanwhile, or is damaged."
        )

    digest = None
    try:
        if file.bytes <= WHOLE_BYTES_MAX:
            tail = fileio.read(file.key)
            digest = digest_of(tail)
            if len(tail) != file.bytes:
                raise wrong(f"has {len(tail)} bytes, and {file.bytes} by the table")
        else:
            with fileio.open_read(file.key, meta=ObjectMeta(file.key, file.bytes, Version(""), 0)) as stream:
                stream.seek(file.bytes - TAIL_BYTES)
                tail = stream.read()
                length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
                if len(tail) < length <= file.bytes:
                    stream.seek(file.bytes - length)
                    tail = stream.read()
    except NotFound as error:
        raise wrong("is missing") from error
    length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
    if tail[-4:] != _MAGIC or length > len(tail):
        raise wrong("is not a Parquet file")
    try:
        footer = pq.read_metadata(pa.BufferReader(_MAGIC + tail[-length:]))
        schema = footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise wrong(f"cannot be read ({error})") from error
    if file.rows is not None and footer.num_rows != file.rows:
        raise wrong(f"has {footer.num_rows} rows, and {file.rows} by the table")
    if len(set(schema.names)) < len(schema.names) or any(name.startswith(HIDDEN_PREFIX) for name in schema.names):
        raise wrong("has a column twice, or one that begins with _objcat_")
    return LookedAt(file, footer.num_rows, schema, footer, digest, footer_digest_of(tail[-length:]))


def schema_with_room(schema: TableSchema, files: Sequence[PlannedFile]) -> TableSchema:
    """The schema with a last id that keeps names in files free of later ones.

    A column that joins the table is called `<name>_<id>` in files. No file must have a column of that name.
    """
    physical = _greatest(name for column in schema.columns for name in _physical(column))
    return TableSchema(columns=schema.columns, last_id=max([schema.last_id, physical, *(file.number for file in files)]))


def _greatest(names: Iterable[str]) -> int:
    """The greatest number after the last `_` of some names that may be an id, 0 for none."""
    numbers = [int(found[1]) for name in names if (found := _SUFFIX.search(name)) is not None]
    return max([0, *(number for number in numbers if number <= LAST_ID_MAX)])


def _names(fields: Any) -> Iterator[str]:
    for one in fields:
        yield one.name
        if pt.is_nested(one.type):
            yield from _names([one.type.field(at) for at in range(one.type.num_fields)])


def _physical(column: Column) -> Iterator[str]:
    yield column.physical
    for inner in child_fields(column):
        yield from _physical(inner)


def _plan(table: ForeignTable, spec: TableSpec, looked_at: LookedAt) -> PlannedFile:
    file, schema = looked_at.file, looked_at.schema
    ids = table.ids_in(file, schema)
    in_file = {column_id: name for name, column_id in ids.items()}
    names: dict[int, str] = {}
    values: dict[int, Value] = {}
    stored: dict[str, Column] = {}
    other_names = False
    for column in spec.table_schema.columns:
        name = in_file.get(column.id)
        if name is None:
            default = file.values.get(column.id, table.defaults.get(column.id))
            if default is not None:
                values[column.id] = json_value(default)
            elif column.physical in schema.names:
                # The name of a column that was dropped.
                values[column.id] = None
            continue
        stored[name] = column
        if name != column.physical:
            names[column.id] = name
        _check_readable(table, looked_at, schema.field(name), column)
        other_names |= not _same_fields(column, schema.field(name).type, by_id=isinstance(table, TableWithFieldIds))
    check_calendar(looked_at.footer, looked_at.schema, spec, stored, key=looked_at.file.key)
    marked = with_ids(looked_at.footer.schema, schema, stored)
    bounds = {
        column_id: bound
        for column_id, bound in bounds_of(looked_at.footer, marked, always=spec.bounded).items()
        if column_id not in spec.statistics.never
    }
    bounds |= same_bounds(values, looked_at.rows)
    reason = "rows of it are deleted" if file.masked else "fields of its structs have other names" if other_names else ""
    return PlannedFile(
        file=file,
        rows=looked_at.rows,
        digest=looked_at.digest,
        footer_digest=looked_at.footer_digest,
        number=_greatest(_names(schema)),
        adopted=Adoption(txn=Txn(""), names=names, values=values),
        bounds=bounds,
        reason=reason,
        by_library=other_names,
    )


def with_txn(planned: PlannedFile, txn: Txn) -> Adoption:
    """What a file lacks, with the transaction that adopts it."""
    return Adoption(txn=txn, names=planned.adopted.names, values=planned.adopted.values)


def same_bounds(values: Mapping[int, Value], rows: int) -> dict[int, Bound]:
    """By id, the bounds of columns that have one value in all rows."""
    return {column_id: _same_bound(value, rows) for column_id, value in values.items() if _is_short(value)}


def _same_bound(value: Value, rows: int) -> Bound:
    return (None, None, rows) if value is None else (value, value, 0)


def _is_short(value: Value) -> bool:
    """Whether a value is a bound as it stands. NaN is none, and neither is an infinity, which is text here."""
    return not isinstance(value, str) or (len(value.encode()) <= BOUND_BYTES_MAX and value not in ("nan", "inf", "-inf"))


def _check_readable(table: ForeignTable, looked_at: LookedAt, stored: pa.Field, column: Column) -> None:
    """Raises InvalidInput for a column of a file whose values are not those of the table's type."""
    old = any(path.split(".", 1)[0] == stored.name for path in old_times(looked_at.footer.schema))
    wrong = misread(stored.type, column.type, path=column.name, old=old)
    if wrong is not None:
        path, found, wanted = wrong
        raise InvalidInput(
            f"The data file {looked_at.file.key} of the {table.format} table at {table.location} has {path!r} as {found}, which does not "
            f"read as {wanted}. Nothing was adopted. Rewrite that file in the table's own engine first."
        )


def misread(stored: pa.DataType, kind: ColumnType, *, path: str, old: bool) -> tuple[str, str, str] | None:
    """What of a column of a file has other values under a type of the table: its path, the type there, and that of the table.

    path: of the column. old: it has timestamps of 12 bytes. None: it reads as the table says.
    """
    if isinstance(kind, str):
        # A timestamp of 12 bytes is an instant, and has no unit; others of nanoseconds would be cut.
        fits = old and kind == "timestamp" if pt.is_timestamp(stored) and stored.unit == "ns" else reads_as(stored, kind)
        return None if fits else (path, str(stored), kind)
    wrong = (path, str(stored), str(arrow_type(kind)))
    pairs: list[tuple[pa.Field, Column]]
    match kind:
        case StructType(fields):
            if not pt.is_struct(stored):
                return wrong
            pairs = [(stored.field(one.physical), one) for one in fields if stored.get_field_index(one.physical) >= 0]
        case ListType(element):
            if not is_list(stored):
                return wrong
            pairs = [(stored.value_field, element)]
        case MapType(key, value):
            if not pt.is_map(stored):
                return wrong
            pairs = [(stored.key_field, key), (stored.item_field, value)]
        case _:
            assert_never(kind)
    found = [misread(field.type, one.type, path=f"{path}.{one.name}", old=old) for field, one in pairs]
    return next((one for one in found if one is not None), None)


def reads_as(stored: pa.DataType, kind: str) -> bool:
    """Whether every value of a column of a file is one of a type of the table, or a read says that it is not."""
    wanted = kind.partition("(")[0]
    if pt.is_dictionary(stored):
        return reads_as(stored.value_type, kind)
    integers = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
    if wanted in integers:
        return bool(pt.is_signed_integer(stored) and stored.bit_width <= integers[wanted])
    if wanted == "double":
        return bool(pt.is_float32(stored) or pt.is_float64(stored) or (pt.is_signed_integer(stored) and stored.bit_width <= 32))
    if wanted == "decimal":
        return bool(pt.is_decimal(stored) or pt.is_signed_integer(stored))
    if wanted in ("timestamp", "timestamp_ntz"):
        # What is of the other kind has other values. Dates became timestamps without a zone.
        zoned = pt.is_timestamp(stored) and (stored.tz is not None) == (wanted == "timestamp")
        return bool(zoned or (wanted == "timestamp_ntz" and pt.is_date(stored)))
    alike = {"boolean": (pt.is_boolean,), "float": (pt.is_float32,), "date": (pt.is_date,), "string": TEXTS, "binary": BYTES}
    return any(matches(stored) for matches in alike[wanted])


def _same_fields(column: Column, stored: pa.DataType, *, by_id: bool) -> bool:
    """Whether fields inside a column have the same names in a file, and no other field has one of them."""
    match column.type:
        case StructType(fields):
            ids = {int((one.metadata or {}).get(FIELD_ID_KEY, -1)): one.name for one in stored}
            for one in fields:
                at = stored.get_field_index(one.physical)
                if by_id and max(ids) >= 0 and ids.get(one.id) != (one.physical if at >= 0 else None):
                    return False
                if at >= 0 and not _same_fields(one, stored.field(at).type, by_id=by_id):
                    return False
            return True
        case ListType(element):
            return _same_fields(element, stored.value_type, by_id=by_id)
        case MapType(key, value):
            return _same_fields(key, stored.key_type, by_id=by_id) and _same_fields(value, stored.item_type, by_id=by_id)
    return True


def check_calendar(footer: pq.FileMetaData, schema: pa.Schema, spec: TableSpec, stored: Mapping[str, Column], *, key: str) -> None:
    """Raises InvalidInput where old Spark wrote dates or times that may be before the Gregorian calendar, which it counted otherwise."""
    said = footer.metadata or {}
    version = said.get(_SPARK_VERSION, b"").decode(errors="replace").split(".")[0]
    if not any(key in said for key in _LEGACY) and not (version.isdigit() and int(version) < 3):
        return
    marked = with_ids(footer.schema, schema, stored)
    bounds = bounds_of(footer, marked, always=[column.id for column in spec.table_schema.columns])
    for column in stored.values():
        kind = str(column.type)
        if kind not in ("date", "timestamp", "timestamp_ntz"):
            continue
        low, _, nulls = bounds.get(column.id, (None, None, 0))
        if nulls < footer.num_rows and (low is None or int(low) < (_GREGORIAN_DAYS if kind == "date" else _GREGORIAN_US)):
            raise InvalidInput(
                f"The data file {key} was written in the calendar of old versions of Spark, and {column.name!r} may hold "
                "old dates. Nothing of it was taken. Rewrite that file in a newer engine first."
            )


def partition_texts(spec: TableSpec, files: Sequence[PlannedFile]) -> list[str]:
    """The partition of each file."""
    if not spec.partitioning.fields:
        return ["" for _ in files]
    columns = {}
    for at, one in enumerate(spec.partitioning.fields):
        column = spec.table_schema.by_id(one.column)
        units = [file.file.units[at] for file in files]
        plain = [unit.as_py() if isinstance(unit, pa.Scalar) else unit for unit in units]
        columns[column.physical] = pa.array(plain, arrow_type(column.type))
    if not files:
        return []
    found = spec.partition_of(pa.table(columns))
    return [found.texts[code] for code in found.codes.tolist()]
