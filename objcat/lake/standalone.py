"""Tables without a lake: created and opened by their URL."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from fileio.check.probe import check_commit_store
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.catalog.table_lifecycle import create
from objcat.errors import CommitConflict, InvalidInput, TableExists, TableNotFound
from objcat.lake.context import EMPTY_LOG_VIEW
from objcat.lake.settings import TableSettings, new_spec
from objcat.metadata.replay import TablesReducer
from objcat.metadata.snapshot import snapshot_of
from objcat.table.context import TableContext
from objcat.table.table import Table
from objcat.timeline.entry import new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_view import Timeline

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def create_table_at(
    place: str | os.PathLike[str] | FileIO,
    schema: pa.Schema | StructType,
    *,
    key: Sequence[str] | None,
    options: Mapping[str, Any] | None = None,
    **settings: Unpack[TableSettings],
) -> Table:
    """Create a table without a lake or a name at a URL. Nothing above it is read or written.

    Of several processes that create one at the same URL exactly one wins.

    Args:
        place: the URL, or an opened store.
        schema, key: see `Lake.create_table`.
        options: of the store.
        settings: of `Lake.create_table`, without `shared_log`.

    Returns:
        A handle on the new table.

    Raises:
        TableExists: there is a table already.
        ObjcatError: the errors of `Lake.create_table`.
    """
    fileio = _opened(place, options)
    spec = new_spec(fileio, schema, key=key, **settings)
    check_commit_store(fileio)
    timeline = Timeline(fileio, TablesReducer())
    try:
        view = create(timeline, EMPTY_LOG_VIEW, spec, new_txn(fileio.env))
    except CommitConflict as error:
        first = Log(fileio).read_slot(0)
        who = f" (created by {first.txn})" if first else ""
        raise TableExists(f"There is a table at {fileio.url} already{who}. Open it with objcat.table_at(url).") from error
    return Table(TableContext(_last_part(fileio.url), timeline, spec.table, view))


def table_at(place: str | os.PathLike[str] | FileIO, *, options: Mapping[str, Any] | None = None) -> Table:
    """Open the table at a URL, at its newest slot. Needs no lake.

    Args:
        place: the URL that holds the table's `log/`, or an opened store.
        options: of the store.

    Returns:
        A handle.

    Raises:
        TableNotFound, TableClosed: see `objcat.errors`.
        InvalidInput: several tables share the log; open them by name.
    """
    fileio = _opened(place, options)
    timeline = Timeline(fileio, TablesReducer())
    view = timeline.open()
    if view.slot < 0:
        raise TableNotFound(
            f"There is no table at {fileio.url}. Open a table of a lake by its name, objcat.connect(url).table(name), or "
            "create one with objcat.create_table_at(url, schema, key=[...])."
        )
    if len(view.state) > 1:
        raise InvalidInput(
            f"The log at {fileio.url} holds {len(view.state)} tables, so its URL names none of them. Open one by its name in "
            "the lake, objcat.connect(url).table(name)."
        )
    return Table(TableContext(_last_part(fileio.url), timeline, snapshot_of(view, where=fileio.url).spec.table, view))


def _opened(place: str | os.PathLike[str] | FileIO, options: Mapping[str, Any] | None) -> FileIO:
    return place if isinstance(place, FileIO) else open_store(place, options)


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]
