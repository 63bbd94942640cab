"""Tables without a lake: created and opened by their URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from fileio.check.probe import check_commit_store
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.catalog.table_lifecycle import create
from objcat.errors import CommitConflict, InvalidInput, TableExists, TableNotFound
from objcat.lake.context import EMPTY_LOG_VIEW
from objcat.lake.settings import TableSettings, new_spec
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_log import log_at, table_store
from objcat.table.context import TableContext
from objcat.table.table import Table
from objcat.timeline.entry import new_txn
from objcat.timeline.log import Log

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_IN_A_LAKE = re.compile(r"(?P<lake>.*[^/:])/(?P<prefix>tables/[A-Za-z0-9._-]+-[0-9a-f]{16,})/*", re.DOTALL)
"""The URL of a table of a lake, as `objcat.catalog.names.log_prefix` makes it."""


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
    fileio = open_table_store(place, options)
    spec = new_spec(fileio, schema, key=key, **settings)
    check_commit_store(fileio)
    timeline = log_at(fileio)
    try:
        view = create(timeline, EMPTY_LOG_VIEW, spec, new_txn(fileio.env))
    except CommitConflict as error:
        first = Log(fileio).read_slot(0)
        who = f" (created by {first.txn})" if first else ""
        raise TableExists(f"There is a table at {fileio.url} already{who}. Open it with objcat.table_at(url).") from error
    return Table(TableContext(_last_part(fileio.url), timeline, spec.table, view))


def table_at(place: str | os.PathLike[str] | FileIO, *, options: Mapping[str, Any] | None = None) -> Table:
    """Open the table at a URL, at its newest slot. Needs no lake.

    A table of a lake may be opened so too, by the URL that `Table.url` gives. Files that it adopted are then found in that lake.

    Args:
        place: the URL that holds the table's `log/`, or an opened store. Of an adopted table it is a URL.
        options: of the store.

    Returns:
        A handle.

    Raises:
        TableNotFound, TableClosed: see `objcat.errors`.
        InvalidInput: several tables share the log; open them by name.
    """
    fileio = open_table_store(place, options)
    timeline = log_at(fileio)
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


def open_table_store(place: str | os.PathLike[str] | FileIO, options: Mapping[str, Any] | None = None) -> FileIO:
    """The store of the table at a URL. Sends no request.

    A URL below the folder `tables` of a lake is opened from the lake on, since an adopted table names files there.
    """
    if isinstance(place, FileIO):
        return place
    given: object = place
    text: object = os.fspath(place) if isinstance(given, (str, os.PathLike)) else None
    found = _IN_A_LAKE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return open_store(place, options)
    lake = found["lake"]
    return table_store(open_store(lake if isinstance(place, str) else Path(lake), options), found["prefix"])


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]
