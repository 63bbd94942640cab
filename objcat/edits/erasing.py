"""Erasure: rows are deleted, and so is every file that ever held them, and a certificate says which ones these were.

Nothing here is a step of its own: rows are deleted by a commit, log rows are merged away, dead writers' files go, and a clean expires every
older slot. Each of them may be cut short, and each is finished by the next call.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import expressions as sql

from fileio.errors import Unavailable
from objcat.edits.deleting import delete_scanned
from objcat.errors import Contention, CorruptTable, InvalidInput, SnapshotExpired
from objcat.local import to_rows
from objcat.predicate.dialect import spark_sql
from objcat.services import compact, plan_clean
from objcat.storage.batch import key_values
from objcat.storage.files import base_pieces, log_pieces, txn_of_path
from objcat.storage.fitting import logical
from objcat.table import Snapshot
from objcat.table.schema import Column
from objcat.tasks import Filter
from objcat.tasks.current import parted
from objcat.timeline import RolledBackAt

if TYPE_CHECKING:
    from objcat.handle import Table

KEYS_MAX = 1000
"""That one erasure takes by value."""
ATTEMPTS_MAX = 10
"""Of a compaction that others forestall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePlan:
    """What `Table.erase` would do. rows: that pass now. slots: that can be read now, and would expire. files: that would be deleted at
    once; more come, those that the merge replaces. saved: slots that savepoints keep and that hold such rows: they must be released
    first."""

    rows: int
    slots: int
    files: tuple[str, ...]
    saved: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What `Table.erase` did.

    deleted: rows; None where nobody counted them. delete_slot: of their delete, None when none passed any more. clean_slot: after which
    files went, None when there was nothing to delete. files: deleted, and gone from the store when this was made. checked_slot: the table
    at that slot was read again, and `found` rows passed: 0, unless somebody wrote such rows meanwhile.
    """

    table: str
    url: str
    where: str
    deleted: int | None
    delete_slot: int | None
    clean_slot: int | None
    readable_from: int
    files: tuple[str, ...]
    checked_slot: int
    found: int
    made_at_ms: int


def plan_erasure(table: Table, keys: str | Any) -> ErasurePlan:
    """As of `Table.plan_erasure`."""
    where = _filter_of(table, keys)
    rows = table.scan(where=where).count()
    view = table.timeline.open()
    plan = plan_clean(table.timeline, view, table.id, before=view.slot)
    return ErasurePlan(
        rows=rows,
        slots=view.slot - view.log.marks(table.id).bound,
        files=() if plan is None else tuple(sorted({*plan.removes, *plan.leftovers})),
        saved=_saved_with(table, where),
    )


def erase(table: Table, keys: str | Any, *, older_than_s: float) -> Certificate:
    """As of `Table.erase`."""
    where = _filter_of(table, keys)
    _check_saved(table, where, left="nothing was erased")
    # What no scan filters by could be deleted, but nobody could certify it.
    deleted = delete_scanned(table, where)
    _merge_all(table)
    dead = [one for one in table.rollback_dead(older_than_s=older_than_s) if one.files]
    timeline = table.timeline
    view = timeline.open()
    plan = plan_clean(timeline, view, table.id, before=view.slot)
    cleaned = table.clean(before=view.slot)
    files = () if plan is None else tuple(sorted({*plan.removes, *plan.leftovers}))
    files = (*files, *sorted({path for one in dead for path in one.paths}.difference(files)))
    rolled_back = {one.txn for one in dead if isinstance(one.outcome, RolledBackAt)}
    there = table.fileio.list_keys("data/") if files else ()
    gone = frozenset(files)
    left = {path for path in there if path in gone or txn_of_path(path) in rolled_back}
    if left:
        said = f"{len(left)} files of {table.name} that were to be deleted are still there, {min(left)} among them: the store kept them"
        raise Unavailable(f"{said}, or a savepoint, a RESTORE or another clean came in between; erase again")
    # Once slots have expired, nobody can save them any more.
    _check_saved(table, where, left="what no savepoint holds is erased; erase again then")
    again = table.scan(where=where)
    return Certificate(
        table=table.name,
        url=table.fileio.url,
        where=where,
        deleted=None if deleted is None else deleted.deleted,
        delete_slot=None if deleted is None else deleted.slot,
        clean_slot=cleaned.slot,
        readable_from=cleaned.bound,
        files=files,
        checked_slot=again.plan.snapshot.slot,
        found=again.count(),
        made_at_ms=table.fileio.env.now_ms(),
    )


def _merge_all(table: Table) -> None:
    """Merge all log rows that there are now: a delete is only above the rows that it ends until then. A compaction yields to another one,
    which may have been planned before the delete, so it is looked whether any are left. Raises Contention."""
    until = table.refresh().slot
    for _ in range(ATTEMPTS_MAX):
        # A record index holds keys, too: of it everything is merged, so that a clean takes what it was before.
        compact(table.timeline, table.id, whole_index=True)
        snapshot = table.refresh()
        parts = (snapshot,) if snapshot.index is None else (snapshot, snapshot.index)
        groups = [group for part in parts for group in part.file_groups(table.manifests, unmerged=True)]
        shared = any(group.base is not None and group.is_shared(group.base.home) for group in groups)
        if not shared and not any(group.as_of < part.slot <= until for group in groups for part in group.logs):
            return
    said = f"others compact {table.name} as fast as it is erased: erase again, which goes on where this has stopped"
    raise Contention(said, winner_slot=table.snapshot.slot)


def _filter_of(table: Table, keys: str | Any) -> str:
    """SQL text that is true for the rows meant: those of a filter, or those with these keys. Raises InvalidInput, InvalidBatch, NullKey."""
    if isinstance(keys, str):
        return keys
    spec = table.spec
    if spec.is_keyless:
        raise InvalidInput(f"{table.name} has no key: say which rows to erase by a filter, such as \"visitor = 'ana'\"")
    given = to_rows(keys, spec.table_schema)
    batch = None if given is None else given if isinstance(given, pa.Table) else pa.Table.from_batches(given.to_batches(), given.schema)
    if batch is None or not 0 < batch.num_rows <= KEYS_MAX:
        found = "a Spark DataFrame" if batch is None else f"{batch.num_rows:,} keys"
        raise InvalidInput(f"erase() was given {found}: give it from 1 to {KEYS_MAX:,} keys of this process, or a filter")
    columns = spec.key_columns
    known = key_values(batch, spec)
    if len(columns) == 1:
        listed = ", ".join(_literal(value) for value in known.column(0).to_pylist())
        return f"{_quoted(columns[0])} IN ({listed})"
    rows = zip(*(known.column(column.physical).to_pylist() for column in columns), strict=True)
    alike = (" AND ".join(f"{_quoted(column)} = {_literal(value)}" for column, value in zip(columns, row, strict=True)) for row in rows)
    return " OR ".join(f"({one})" for one in alike)


def _quoted(column: Column) -> str:
    return sql.to_identifier(column.name, quoted=True).sql(dialect="spark")


def _literal(value: Any) -> str:
    """A value of a key as a filter writes it. Raises InvalidInput."""
    match value:
        case dt.datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP_LTZ"
            return f"CAST('{value.isoformat()}' AS {kind})"
        case dt.date():
            return f"CAST('{value.isoformat()}' AS DATE)"
        case float() if not math.isfinite(value):
            # No comparison finds NaN: a filter would find no row, and certify that.
            raise InvalidInput(f"the key {value} has no text in a filter: erase by one, as `id <> id` is true for NaN; nothing was erased")
        case decimal.Decimal():
            # sqlglot would round a negative one to the digits of Python's context.
            return format(value, "f")
        case bool() | int() | float() | str():
            return spark_sql(sql.convert(value))
    said = f"a key of type {type(value).__name__} has no text in a filter"
    raise InvalidInput(f"{said}: erase by a filter on another column; nothing was erased")


def _check_saved(table: Table, where: str, *, left: str) -> None:
    """Raises InvalidInput when savepoints keep such rows. left: what was done, in words."""
    kept = _saved_with(table, where)
    if kept:
        slots = ", ".join(map(str, kept))
        raise InvalidInput(
            f"savepoints of {table.name} hold such rows, at slots {slots}: release them first (table.release, or `objcat release`); {left}"
        )


def _saved_with(table: Table, where: str) -> tuple[int, ...]:
    """Slots of savepoints whose files hold such rows, whether a reader sees them or newer ones, or columns that the filter cannot be asked
    of."""
    return tuple(slot for slot in sorted(table.timeline.open().log.marks(table.id).saved) if _is_held_at(table, where, slot))


def _is_held_at(table: Table, where: str, slot: int) -> bool:
    try:
        plan = table.scan(where=where, as_of=slot).plan
        return any(_holds(table, snapshot, plan.where) for snapshot in (plan.snapshot, plan.snapshot.index) if snapshot is not None)
    except InvalidInput:
        return True
    except SnapshotExpired:
        return False
    except CorruptTable:
        if table.timeline.open().log.marks(table.id).is_readable(slot):
            raise
        return False  # It was released and cleaned while its files were read.


def _holds(table: Table, snapshot: Snapshot, where: Filter | None) -> bool:
    """Whether a file that a snapshot needs holds a row that passes: not only those of its own file groups, since the rows of a log object,
    and of a base file that was split, may be of others that have rewritten them."""
    assert where is not None, "an erasure has a filter"
    spec = snapshot.spec
    names = spec.table_schema.names
    if not set(where.columns) <= set(names):
        return False  # An index knows of keys only.
    groups = snapshot.file_groups(table.manifests)
    near = snapshot.file_groups(table.manifests, where=where.to_pruning())
    shared = (group for group in groups if group.base is not None and group.is_shared(group.base.home))
    bases = {group.base.path: group.base for group in (*near, *shared) if group.base is not None}
    logs = {part.object.path: part.object for group in groups for part in group.logs}
    columns = [spec.table_schema.column(name).physical for name in where.columns]

    def passes(rows: pa.Table) -> bool:
        return bool(logical(rows.select(columns), spec.table_schema).filter(where.to_arrow()).num_rows)

    for base in bases.values():
        if any(passes(rows) for rows in base_pieces(table.fileio, base, columns, where=where.to_pruning(), spec=spec)):
            return True
    for log in logs.values():
        for rows in log_pieces(table.fileio, log, 0, log.rows, columns, spec.table_schema):
            if passes(parted(rows)[0]):
                return True
    return False
