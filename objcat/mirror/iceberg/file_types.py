"""Files that Iceberg cannot read: those with integers in a column that is double or decimal now.

While a mirror goes on, the schema before tells it. A mirror that begins does not know what types a column had, so it looks into files whose
bounds do not show the type. Bounds of a file group show it of none of its files: log rows may be younger than the base file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import ObjectMeta, Version
from fileio.env import map_io
from objcat.metadata.files import Bound
from objcat.metadata.schema import FIELD_ID_KEY
from objcat.mirror.iceberg.manifests import batches
from objcat.mirror.iceberg.objects import MirrorObjects
from objcat.mirror.iceberg.types import Record, differing, scale_of, widened
from objcat.mirror.model import MirrorChange, MirroredFile, MirrorHeld

_AT_ONCE = 64
_INTEGERS = range(-(1 << 31), 1 << 31)
"""Integers that may have become doubles."""


def check_file_types(change: MirrorChange, schema: Record, earlier: Record | None, objects: MirrorObjects, *, name: str) -> None:
    """Check that Iceberg reads all files of a mirror that begins.

    Args:
        change: with all files.
        schema: of the table now.
        earlier: the schema of an earlier mirror. Then only columns that have changed since are looked at. Raises nothing for others.
        objects: of the mirror.
        name: of the table.

    Raises:
        MirrorHeld: A file has a column in a type that Iceberg does not read as the one of the schema.
    """
    suspects = widened(schema)
    if earlier is not None:
        suspects = {column_id: kind for column_id, kind in suspects.items() if column_id in differing(schema, earlier)}
    if not suspects:
        return
    unsure = (
        file
        for file in change.added
        if file.bounds_of_group or not all(_shows(file.bounds.get(one), kind) for one, kind in suspects.items())
    )
    for files in batches(unsure, _AT_ONCE):
        schemas = map_io(objects.log_store.env, lambda file: _schema_of(objects, file), files)
        for file, found in zip(files, schemas, strict=True):
            integers = [column_id for column_id, kind in _types(found) if column_id in suspects and pa.types.is_integer(kind)]
            if integers:
                raise MirrorHeld(
                    f"The file {file.path!r} of table {name!r} holds integers in the column with id {integers[0]}, which is "
                    f"{suspects[integers[0]]} at slot {change.slot}. Iceberg reads no such file, so the Iceberg mirror waits. The table is "
                    "not affected. Rewrite all files of that type by table.maintenance.cluster([...]), with a column that is not the "
                    "key, then let the mirror begin again."
                )


def _shows(bound: Bound | None, kind: str) -> bool:
    """Whether a bound cannot be that of integers."""
    values = () if bound is None else tuple(value for value in bound[:2] if value is not None)
    if scale_of(kind) is not None:
        return any(isinstance(value, str) and bool(value.partition(".")[2].strip("0")) for value in values)
    return any(isinstance(value, float) and (not value.is_integer() or int(value) not in _INTEGERS) for value in values)


def _schema_of(objects: MirrorObjects, file: MirroredFile) -> pa.Schema:
    meta = ObjectMeta(file.path, file.bytes, Version(""), 0)
    with objects.log_store.open_read(file.path, meta=meta) as stream:
        return pq.read_schema(stream)


def _types(schema: pa.Schema) -> Iterator[tuple[int, pa.DataType]]:
    """The types of all fields with an id, nested ones too."""
    inside = list(schema)
    while inside:
        field = inside.pop()
        metadata: Mapping[bytes, bytes] = field.metadata or {}
        if FIELD_ID_KEY in metadata:
            yield int(metadata[FIELD_ID_KEY]), field.type
        if pa.types.is_nested(field.type):
            inside += [field.type.field(number) for number in range(field.type.num_fields)]
