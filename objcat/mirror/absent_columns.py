"""Files that lack a column which has a default for older rows. A reader without that default would read nulls from them.

Version 3 of Iceberg says the default in its schema. Version 2 and Delta cannot, so their mirrors wait until every file has the column.
"""

from __future__ import annotations

from itertools import islice

import pyarrow.parquet as pq

from fileio.contract import ObjectMeta, Version
from fileio.env import map_io
from fileio.store import FileIO
from objcat.metadata.column_defaults import is_said
from objcat.metadata.schema import Column
from objcat.mirror.model import MirrorChange, MirroredFile, MirrorHeld

_AT_ONCE = 64


def check_no_absent(change: MirrorChange, fileio: FileIO, *, format_name: str, name: str) -> None:
    """Check that every file of a change has all columns with a default for older rows.

    Without such a column it sends no request. Else it reads the footer of a file whose bounds do not show that it has the column.

    Args:
        change: of the mirror.
        fileio: the prefix of the log.
        format_name: for the error.
        name: of the table, for the error.

    Raises:
        MirrorHeld: A file lacks one.
    """
    columns = [column for column in change.spec.table_schema.columns if is_said(column.initial_default)]
    joined = next((column for column in columns if column.id in change.joined), None)
    if joined is not None:
        raise _held(joined, f"files from before slot {change.slot}", change, format_name=format_name, name=name)
    unsure = ((file, column) for file in change.added for column in columns if not _shows(file, column))
    while found := list(islice(unsure, _AT_ONCE)):
        adopted = next(((file, column) for file, column in found if file.adopted is not None), None)
        if adopted is not None:
            # A column of an adopted table has no such default, so this one joined after the adoption.
            raise _held(adopted[1], f"the adopted file {adopted[0].path!r}", change, format_name=format_name, name=name)
        files = list({file.path: file for file, _ in found}.values())
        names = dict(zip([file.path for file in files], map_io(fileio.env, lambda file: _names_in(fileio, file), files), strict=True))
        for file, column in found:
            if column.physical not in names[file.path]:
                raise _held(column, f"the file {file.path!r}", change, format_name=format_name, name=name)


def _shows(file: MirroredFile, column: Column) -> bool:
    """Whether bounds show that a file has a column: its own bounds, not those of a file group."""
    return column.id in file.bounds and not file.nulls_at_most


def _names_in(fileio: FileIO, file: MirroredFile) -> frozenset[str]:
    meta = ObjectMeta(file.path, file.bytes, Version(""), 0)
    with fileio.open_read(file.path, meta=meta) as stream:
        return frozenset(pq.read_schema(stream).names)


def _held(column: Column, what: str, change: MirrorChange, *, format_name: str, name: str) -> MirrorHeld:
    return MirrorHeld(
        f"The column {column.name!r} of table {name!r} has a default for rows that are older than it, and {what} lack it at slot "
        f"{change.slot}. {format_name} has no such default, so this mirror waits. The table is not affected. Rewrite all files that lack "
        "the column by table.maintenance.cluster(...), then let the mirror begin again."
    )
