"""Create a table of a lake, and create-and-write in one call.

A table that must be new gets its name after its rows: it is there with them, or nobody sees it. `create_with_rows` does that. A table that
others may create too has its name first, so that all of them write to one; if the first write is refused, it is dropped again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, get_args

import pyarrow as pa

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, NameBinding, check_name, log_prefix
from objcat.catalog.plans import PlanOutdated, plan_create, plan_drop, plan_shared_log
from objcat.catalog.table_lifecycle import close, close_unchanged, create
from objcat.common.validation import IfExists, case_folded, name_list, one_of
from objcat.datafile.batch_checks import conform
from objcat.engine.local import is_untyped, to_arrow_batch
from objcat.errors import (
    CommitConflict,
    CommitUnknown,
    InvalidInput,
    ObjcatError,
    SharedTransaction,
    TableClosed,
    TableExists,
    TableNotFound,
)
from objcat.lake.context import ATTEMPTS_MAX, EMPTY_LOG_VIEW, LakeContext
from objcat.lake.settings import NamedTableSettings, check_settings, new_spec
from objcat.maintenance.auto import NoMaintenance
from objcat.maintenance.purge import purge
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.table.batch_input import prepare_batch, schema_of_batch, session_of
from objcat.table.context import TableContext
from objcat.table.table import Table
from objcat.tasks.model import Operation
from objcat.timeline.entry import Txn, new_txn
from objcat.timeline.intents import remove_files
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.transaction import CommitResult

R = TypeVar("R")

logger = logging.getLogger("objcat")

ROWS_AT_ONCE = 128 * 1024


@dataclass(frozen=True, slots=True)
class _TablePlace:
    """Where a table's log is. `shared`: other tables were created in it before."""

    prefix: str
    shared: bool


def create_named_table(lake: LakeContext, name: str, spec: TableSpec, shared_log: str | None) -> Table:
    """Create a table and give it its name. `name`, `shared_log`: checked. Raises as `Lake.create_table`."""
    first = _check_creatable(lake, name)
    txn = new_txn(lake.fileio.env)
    for _ in range(ATTEMPTS_MAX):
        place = _place(lake, name, shared_log)
        timeline = lake.timeline(place.prefix)
        view = _create_in(timeline, spec, txn, shared=place.shared)
        try:
            _bind(lake, name, spec.table, place.prefix, shared_log, opened=view.slot, first=first, txn=txn)
        except CommitUnknown:
            raise
        except PlanOutdated:
            abandon(timeline, view, spec.table, shared=place.shared)
            continue
        except (ObjcatError, FileIOError):
            abandon(timeline, view, spec.table, shared=place.shared)
            raise
        return _named(lake, name, spec.table, place.prefix, view)
    raise lake.contended(f"The shared log {shared_log!r} moved {ATTEMPTS_MAX} times")


def create_with_rows(lake: LakeContext, name: str, spec: TableSpec, shared_log: str | None, write: Callable[[Table], R]) -> tuple[Table, R]:
    """Create a table, write to it, and give it its name last. A process that dies before that leaves a log that no name means.

    `name`, `shared_log`: checked. `write`: commits the rows of a table that nobody else knows. It is called once.

    Returns the table, and what `write` returned. Raises as `Lake.create_table`, and what `write` raises; then there is no such table. After
    CommitUnknown of the name there may be one, with its rows.
    """
    first = _check_creatable(lake, name)
    txn = new_txn(lake.fileio.env)
    place = _place(lake, name, shared_log)
    if shared_log is not None and not place.shared:
        # The log gets its name before its first table, so that nobody makes another one of that name meanwhile.
        names = lake.catalog.change(partial(plan_shared_log, shared_log=shared_log, prefix=place.prefix))
        place = _TablePlace(names.shared_logs[case_folded(shared_log)], shared=True)
    timeline = lake.timeline(place.prefix)
    view = _create_in(timeline, spec, txn, shared=place.shared)
    # Without services and mirrors: they follow tables that have a name.
    table = Table(TableContext(name, timeline, spec.table, view, auto_maintenance=NoMaintenance()))
    try:
        result = _unless_unknown(lambda: write(table))
    except SharedTransaction:
        raise
    except Exception:
        abandon(timeline, table._context.view, spec.table, shared=place.shared)
        raise
    try:
        _bind(lake, name, spec.table, place.prefix, shared_log, opened=view.slot, first=first, txn=txn)
    except CommitUnknown:
        raise
    except (ObjcatError, FileIOError):
        abandon(timeline, table._context.view, spec.table, shared=place.shared)
        raise
    return _named(lake, name, spec.table, place.prefix, table._context.view), result


def write_first(
    lake: LakeContext,
    name: str,
    schema: Callable[[], pa.Schema],
    key: Sequence[str] | None,
    settings: Mapping[str, Any],
    write: Callable[[Table, bool], R],
    *,
    check: Callable[[TableSpec], None] = lambda _: None,
    must_be_new: bool = False,
) -> R:
    """Write to the table of this name and key. It is created if it does not exist, and dropped again if `write` is refused.

    `write` is told whether the table was created here. `check` refuses a spec before a table of it is created. `must_be_new`: see
    `create_with_rows`. Raises TableExists, InvalidInput, and what `write` raises.
    """
    check_settings(settings, NamedTableSettings)
    wanted = None if key is None else name_list(key, what="key")
    found = None if must_be_new else _found(lake, name, wanted)
    if found is not None:
        return write(found, False)
    name, shared_log = checked_names(name, settings.get("shared_log"))
    spec = new_spec(lake.fileio, schema(), key=wanted, **{given: value for given, value in settings.items() if given != "shared_log"})
    check(spec)
    if must_be_new:
        return create_with_rows(lake, name, spec, shared_log, lambda table: write(table, True))[1]
    try:
        table = create_named_table(lake, name, spec, shared_log)
    except TableExists:
        found = _found(lake, name, wanted)
        if found is None:
            raise TableClosed(
                f"The table {name!r} of {lake.fileio.url} was created and dropped by others meanwhile. Nothing was written. Write again."
            ) from None
        return write(found, False)
    opened = table.snapshot.slot
    try:
        return write(table, True)
    except (CommitUnknown, SharedTransaction, FileIOError):
        raise
    except Exception:
        drop_created_table(lake.catalog, table._context.timeline, table.id, opened=opened)
        raise


def write_named_table(
    lake: LakeContext, data: Any, name: str, key: Sequence[str] | None, if_exists: IfExists, settings: Mapping[str, Any]
) -> CommitResult:
    """See `Lake.write`."""
    one_of(if_exists, get_args(IfExists), what="if_exists")
    operation = Operation.INSERT if key is None or if_exists == "insert" else Operation.UPSERT

    @cache
    def rows() -> Any:
        # A stream can be read once. Rows without types are read again, because the table says what is a map in them.
        return data if is_untyped(data) or session_of(data) is not None else to_arrow_batch(data)

    def check(spec: TableSpec) -> None:
        check_rows(lake.fileio, rows(), spec, operation, table=name)

    def write(table: Table, is_new: bool) -> CommitResult:
        if operation is Operation.INSERT:
            return table.insert(rows())
        # Base files are read several times as fast as log rows. Lateness is only measured of an upsert.
        return table.bulk_insert(rows()) if is_new and table.spec.lateness_ms is None else table.upsert(rows())

    for _ in range(ATTEMPTS_MAX):
        try:
            is_new = if_exists == "error"
            return write_first(lake, name, lambda: schema_of_batch(rows())[1], key, settings, write, check=check, must_be_new=is_new)
        except TableClosed:
            # Another process dropped it, whose own first write was refused.
            continue
    raise lake.contended(f"The table {name!r} was dropped {ATTEMPTS_MAX} times meanwhile")


def check_rows(fileio: FileIO, data: Any, spec: TableSpec, operation: Operation, *, table: str) -> None:
    """Refuse a batch that a table about to be created cannot take: the columns of any batch, and the rows of one in memory.

    `table`: its name in messages. Raises as `prepare_batch`, InvalidBatch and NullKey.
    """
    rows = prepare_batch(fileio, data, spec, operation, table=table).data
    if isinstance(rows, pa.Table):
        for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
            conform(pa.Table.from_batches([batch]), spec)


def drop_created_table(catalog: Catalog, timeline: Timeline[Tables], table: str, *, opened: int) -> bool:
    """Drop a table whose first write was refused, unless others have committed to it. Returns whether it was dropped. Never raises.

    The slot of the CLOSE decides: the table stays if another commit has that slot, and a later commit is refused. `table`: its id.
    `opened`: the slot that created it.
    """
    try:
        closed = close_unchanged(timeline, timeline.at(opened), table)
        if closed is None:
            return False
        catalog.change(lambda names: plan_drop(names, table, closed))
    except (ObjcatError, FileIOError) as error:
        logger.warning("The table %s of %s was created for a write that was refused, and may still exist: %s", table, catalog.where, error)
        return False
    return True


def checked_names(name: str, shared_log: str | None) -> tuple[str, str | None]:
    """The names of a table and of a shared log, checked. Raises InvalidInput."""
    return check_name(name), None if shared_log is None else check_name(shared_log, what="shared_log")


def _found(lake: LakeContext, name: str, key: list[str] | None) -> Table | None:
    """The table of this name and key; None when there is none, or it is being dropped. Raises InvalidInput for another key."""
    try:
        return _of_key(lake.open_table(name), key)
    except (TableNotFound, TableClosed):
        return None


def _of_key(table: Table, key: list[str] | None) -> Table:
    """The table. Raises InvalidInput when it has another key."""
    own = [column.name for column in table.spec.key_columns]
    if own != (key or []):
        raise InvalidInput(
            f"The table {table.name!r} has the key {own or None}, not {key}. Nothing was written. Name its key, or write to another table."
        )
    return table


def _place(lake: LakeContext, name: str, shared_log: str | None) -> _TablePlace:
    known = None if shared_log is None else lake.catalog.names.shared_logs.get(case_folded(shared_log))
    if known is not None:
        return _TablePlace(known, shared=True)
    return _TablePlace(log_prefix(shared_log or name, lake.fileio.env.new_id()), shared=False)


def _check_creatable(lake: LakeContext, name: str) -> CatalogNames:
    """Check that a table of this name may be created now. Returns the names as they are."""
    first = lake.catalog.refresh()
    lake.catalog.check_writable()
    lake.check_free(first, name)
    lake.check_store()
    return first


def _create_in(timeline: Timeline[Tables], spec: TableSpec, txn: Txn, *, shared: bool) -> LogView[Tables]:
    """Create a table in a log, as its first one or beside others. Returns the view with it."""
    view = timeline.open() if shared else EMPTY_LOG_VIEW
    try:
        return _unless_unknown(lambda: create(timeline, view, spec, txn))
    except CommitConflict:
        if not shared or view.slot >= 0:
            raise
        # The shared log had a name and no table yet. Somebody else's is the first one.
        return _unless_unknown(lambda: create(timeline, timeline.refresh(view), spec, txn))


def _unless_unknown(commit: Callable[[], R]) -> R:
    """Run a commit of a table without a name. One with an unknown outcome is a failure of the store.

    Committed or not, no name points to it, and none will. That is certain, and all that a user can see.
    """
    try:
        return commit()
    except CommitUnknown as error:
        if isinstance(error.__cause__, FileIOError):
            raise error.__cause__ from None
        raise


def _bind(
    lake: LakeContext, name: str, table: str, prefix: str, shared_log: str | None, *, opened: int, first: CatalogNames, txn: Txn
) -> None:
    """Give a table its name. opened: the slot that created it. first: the names when the operation began. Raises as `plan_create`."""
    binding = NameBinding(name=name, table=table, prefix=prefix, shared_log=shared_log or "", opened=opened)
    lake.catalog.change(partial(plan_create, binding=binding, first=first, where=lake.fileio.url), txn=txn)


def _named(lake: LakeContext, name: str, table: str, prefix: str, view: LogView[Tables]) -> Table:
    """The handle of a table that has just got its name. Its mirrors begin."""
    lake.remember(prefix, view)
    found = lake.table(name, table, lake.timeline(prefix), view)
    found._context.mirror_later()
    return found


def abandon(timeline: Timeline[Tables], view: LogView[Tables], table: str, *, shared: bool) -> None:
    """Remove a table that has no name and never will have one. Best effort: nobody sees what is left."""
    try:
        if shared:
            close(timeline, view, table)
            purge(timeline, table, older_than_s=0)
        else:
            remove_files(timeline.fileio, list(timeline.fileio.list_keys()), why=table)
    except (ObjcatError, FileIOError) as error:
        logger.warning("A table without a name in %s was not removed: %s", timeline.fileio.url, error)
