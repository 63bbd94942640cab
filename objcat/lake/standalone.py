"""Tables by themselves: at a URL, without a lake or a name; and what every new table is checked for."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from fileio.check.probe import check_commit_store
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.catalog.table_lifecycle import create
from objcat.common.validation import KeyScope, TableType, instance, name_list, one_of, span_ms, text, text_mapping
from objcat.errors import CommitConflict, InvalidInput, TableExists, TableNotFound
from objcat.metadata.replay import TablesReducer
from objcat.metadata.schema import schema_from_arrow
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import (
    KEY_SCOPES,
    TABLE_TYPES,
    BloomIndex,
    BucketIndex,
    Index,
    MemoryIndex,
    RecordIndex,
    SimpleIndex,
    TableSpec,
    make_spec,
)
from objcat.metadata.table_state import Tables
from objcat.table.batch_input import schema_given
from objcat.table.context import TableContext
from objcat.table.table import Table
from objcat.timeline.entry import new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableSettings(TypedDict, total=False):
    """Settings of a new table beside its columns and its key, as of `Lake.create_table`."""

    ordering: str | None
    allowed_lateness: str | dt.timedelta | None
    partition_by: Sequence[str]
    key_scope: KeyScope
    index: Index | None
    table_type: TableType
    properties: Mapping[str, str] | None
    shared_log: str | None


EMPTY_LOG_VIEW: LogView[Tables] = LogView(LogState(), {})
"""Of a log without a slot."""


def create_table_at(  # noqa: PLR0913 - one for each setting that a table has
    place: str | os.PathLike[str] | FileIO,
    schema: pa.Schema | StructType,
    *,
    key: Sequence[str] | None,
    ordering: str | None = None,
    allowed_lateness: str | dt.timedelta | None = None,
    partition_by: Sequence[str] = (),
    key_scope: KeyScope = "table",
    index: Index | None = None,
    table_type: TableType = "merge_on_read",
    properties: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Table:
    """Create a table at a URL (or in an opened store) by itself: no lake, no name, nothing above it is read or written.

    Of several processes that create one at the same place exactly one wins. Arguments and errors as `Lake.create_table`.
    """
    fileio = _opened(place, options)
    spec = new_spec(
        fileio,
        schema,
        key=key,
        ordering=ordering,
        allowed_lateness=allowed_lateness,
        partition_by=partition_by,
        key_scope=key_scope,
        index=index,
        table_type=table_type,
        properties=properties,
    )
    check_commit_store(fileio)
    timeline = Timeline(fileio, TablesReducer())
    try:
        view = create(timeline, EMPTY_LOG_VIEW, spec, new_txn(fileio.env))
    except CommitConflict as error:
        first = Log(fileio).read_slot(0)
        who = f" (created by {first.txn})" if first else ""
        raise TableExists(f"there is a table at {fileio.url} already{who}: open it with objcat.table_at(url)") from error
    return Table(TableContext(_last_part(fileio.url), timeline, spec.table, view))


def table_at(place: str | os.PathLike[str] | FileIO, *, options: Mapping[str, Any] | None = None) -> Table:
    """Open the table at a URL (or in an opened store), at its newest slot. Needs no lake.

    The place is the prefix that holds the table's `log/`. Raises TableNotFound, TableClosed, and InvalidInput where several tables share
    the log: those are opened by name.
    """
    fileio = _opened(place, options)
    timeline = Timeline(fileio, TablesReducer())
    view = timeline.open()
    if view.slot < 0:
        raise TableNotFound(
            f"there is no table at {fileio.url}: one of a lake is opened by its name, objcat.connect(url).table(name), and a new one is "
            "made by objcat.create_table_at(url, schema, key=[...])"
        )
    if len(view.state) > 1:
        raise InvalidInput(
            f"the log at {fileio.url} holds {len(view.state)} tables, so that its place means none of them: open one by its name in "
            "the lake, objcat.connect(url).table(name)"
        )
    return Table(TableContext(_last_part(fileio.url), timeline, snapshot_of(view, where=fileio.url).spec.table, view))


def new_spec(  # noqa: PLR0913 - one for each setting that a table has
    fileio: FileIO,
    schema: pa.Schema | StructType,
    *,
    key: Sequence[str] | None,
    ordering: str | None = None,
    allowed_lateness: str | dt.timedelta | None = None,
    partition_by: Sequence[str] = (),
    key_scope: KeyScope = "table",
    index: Index | None = None,
    table_type: TableType = "merge_on_read",
    properties: Mapping[str, str] | None = None,
) -> TableSpec:
    """The spec of a new table. Raises InvalidInput."""
    columns = schema_from_arrow(schema_given(schema))
    if index is not None and not isinstance(index, (SimpleIndex, BloomIndex, MemoryIndex, RecordIndex)):
        instance(
            index,
            BucketIndex,
            what="index",
            such_as="objcat.BucketIndex(16), objcat.SimpleIndex(), objcat.BloomIndex(), objcat.MemoryIndex() or objcat.RecordIndex()",
        )
        if index.columns is not None:
            name_list(index.columns, what="BucketIndex(columns)")
    return make_spec(
        fileio.env.new_id(),
        columns,
        key=None if key is None else name_list(key, what="key"),
        ordering=None if ordering is None else text(ordering, what="ordering"),
        lateness_ms=None if allowed_lateness is None else span_ms(allowed_lateness, what="allowed_lateness"),
        partition_by=name_list(partition_by, what="partition_by"),
        key_scope=one_of(key_scope, KEY_SCOPES, what="key_scope"),
        index=index,
        table_type=one_of(table_type, TABLE_TYPES, what="table_type"),
        properties={} if properties is None else text_mapping(properties, what="properties"),
    )


def _opened(place: str | os.PathLike[str] | FileIO, options: Mapping[str, Any] | None) -> FileIO:
    return place if isinstance(place, FileIO) else open_store(place, options)


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]
