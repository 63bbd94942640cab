"""Erasures of tables that were adopted: which files of the other tool are searched for values, and that those which have to go are gone.

What the other tool wrote beside its data files, and files that no slot ever named, are its own. A certificate says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from fileio.contract import ObjectMeta, Version
from fileio.env import map_io
from fileio.errors import Unavailable
from fileio.store import FileIO
from objcat.datafile.parquet import base_pieces
from objcat.errors import CorruptTable, InvalidInput
from objcat.maintenance.forget_erased import adopted_files
from objcat.metadata.files import ADOPTED_FEATURE, OUTER, BaseFile
from objcat.metadata.manifest import Pruning
from objcat.metadata.table_spec import TableSpec
from objcat.table.context import TableContext
from objcat.table.erasure_search import NOT_PROMISED

NOT_PROMISED_ADOPTED = (
    "metadata of the table that this one was adopted from, and its files that were deleted or written again before the adoption",
)
"""What no certificate of a table that was adopted can show, besides."""


def was_adopted(table: TableContext) -> bool:
    """Whether an entry of the log names files of another tool. Sends no request."""
    return bool(ADOPTED_FEATURE.keys() & table.view.log.features.keys())


def adopted_before(table: TableContext) -> list[BaseFile]:
    """The adopted files of a table that exist before an erasure.

    Raises:
        InvalidInput: The table was opened without its lake, where these files are.
    """
    view = table.timeline.open()
    if was_adopted(table) and table.fileio.outer_url is None:
        raise InvalidInput(
            f"{table.name} was adopted, and was opened without its lake, where the adopted files are. Nothing was erased. Open it by "
            "objcat.connect(...).table(...), then erase."
        )
    return adopted_files(table.timeline, table.id, view)


def pieces_of(fileio: FileIO, base: BaseFile, spec: TableSpec, where: Pruning | None = None) -> Iterator[pa.Table]:
    """The row groups of an adopted file that may hold a matching row, with the columns of the table. Nothing if the file is gone."""
    names = [column.physical for column in spec.table_schema.columns]
    try:
        yield from base_pieces(fileio, base, names, where=where, spec=spec)
    except CorruptTable:
        if fileio.exists(base.path):
            raise


def not_promised(table: TableContext) -> tuple[str, ...]:
    """What a certificate of a table cannot show."""
    return (*NOT_PROMISED, *(NOT_PROMISED_ADOPTED if was_adopted(table) else ()))


def remedy_of(found: Collection[str]) -> str:
    """What to do about objects that still hold values, as sentences."""
    if any(path.startswith(f"{OUTER}/") for path in found):
        return "Rewrite the adopted files by table.maintenance.cluster(...), then erase again."
    return "They were written while the erasure ran. Erase again; it goes on from here."


def named_now(table: TableContext) -> list[ObjectMeta]:
    """The adopted files that readable slots name, to be searched as the others."""
    if not was_adopted(table):
        return []
    marks = table.refresh().log.marks(table.id)
    found: dict[str, ObjectMeta] = {}
    for slot in (None, *sorted(marks.saved)):
        snapshot = table.snapshot if slot is None else table.snapshot_as_of(slot)
        for group in snapshot.file_groups(table.manifests):
            if group.base is not None and group.base.adopted is not None:
                found[group.base.path] = ObjectMeta(group.base.path, group.base.bytes, Version(""), 0)
    return [found[path] for path in sorted(found)]


def still_there(fileio: FileIO, paths: Collection[str]) -> set[str]:
    """Which of some adopted files exist. Other paths are left out."""
    asked = sorted(path for path in paths if path.startswith(f"{OUTER}/"))
    return {path for path, exists in zip(asked, map_io(fileio.env, fileio.exists, asked), strict=True) if exists}


def check_gone(table: TableContext, before: Sequence[BaseFile], named: Collection[ObjectMeta]) -> None:
    """Check that adopted files that no readable slot names are gone. Raises Unavailable."""
    left = still_there(table.fileio, {base.path for base in before} - {meta.key for meta in named})
    if left:
        raise Unavailable(
            f"{len(left)} adopted files of {table.name} that no readable slot names still exist, {min(left)} among them. The store "
            "retained them. Delete them by the store's own tool, then erase again."
        )
