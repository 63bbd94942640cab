"""The life of a table in its own log: it is created, closed, reopened and changed.

Changes are of schema, properties and partition spec.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fileio.errors import FileIOError
from objcat.common.validation import name_list, text_mapping
from objcat.errors import CommitConflict, Contention, InvalidInput, ObjcatError, SnapshotExpired
from objcat.metadata.derived import DERIVED_FEATURE, check_not_derived, definition_of
from objcat.metadata.files import TableDelta, encode_delta, features_of
from objcat.metadata.in_place import FilesInPlace
from objcat.metadata.in_place_changes import (
    check_changes_in_place,
    check_in_place,
    check_partitions_in_place,
    choose_precomputed,
    without_dropped,
)
from objcat.metadata.manifest import Manifests
from objcat.metadata.partitioning import parse_partitioning, shape_of
from objcat.metadata.properties import check_index_plugin, check_names, check_properties, check_statistics, check_together
from objcat.metadata.schema_differences import changed_ids
from objcat.metadata.schema_evolution import ColumnChange, evolve
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import BloomIndexSpec, SimpleIndexSpec, TableSpec, check_key_scope
from objcat.metadata.table_state import Tables
from objcat.metadata.watermark import WATERMARK_FEATURE, Watermark, raised
from objcat.timeline.attempt import CommitAttempt, CommitRetryPolicy, Committed
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, Footprint, SchemaChange, Txn, new_txn
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")

ATTEMPTS_MAX = 100
AT_HEAD = CommitRetryPolicy(slots_max=1)
"""For a commit that must follow the very slot that it was planned from: after a lost slot it is planned again."""


def create(timeline: Timeline[Tables], base: LogView[Tables], spec: TableSpec, txn: Txn) -> LogView[Tables]:
    """Create a table in a log: as slot 0 if `base` is empty, else next to the existing tables. Returns the view with it.

    Raises CommitConflict when the log is no longer empty, CommitUnknown, and storage errors that certainly had no effect.
    """
    candidate = CommitAttempt(
        txn=txn,
        action=Action.CREATE,
        base=base.log,
        changes={spec.table: encode_delta(TableDelta(spec=spec))},
        footprint={spec.table: Footprint()},
        features=features_of(TableDelta(spec=spec)),
        writer_features=DERIVED_FEATURE if definition_of(spec) is not None else {},
    )
    return _commit(timeline, base, candidate, Committer(timeline.fileio))


def close(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> LogView[Tables]:
    """Close a table: nothing changes it from that slot on. A closed table stays closed. Returns a view in which it is closed.

    Safe while writers run. What was committed before the slot is there when the table is restored; later commits are refused.
    """
    for _ in range(ATTEMPTS_MAX):
        if view.log.marks(table).closed_at is not None:
            return view
        txn = new_txn(timeline.fileio.env)
        candidate = CommitAttempt(txn=txn, action=Action.CLOSE, base=view.log, changes={}, footprint={table: Footprint()})
        try:
            return _commit(timeline, view, candidate, Committer(timeline.fileio))
        except CommitConflict as error:
            if isinstance(error, Contention):
                raise
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"Table {table} could not be closed")


def close_unchanged(
    timeline: Timeline[Tables], view: LogView[Tables], table: str, *, metadata: Mapping[str, str] | None = None
) -> int | None:
    """Close a table if nothing was committed to it above `view`. Returns the slot; None if something was, and the table stays open.

    Safe while writers run. The CLOSE follows directly on entries that are known to be of other tables, so no commit is in between.

    Args:
        metadata: of the CLOSE.
    """
    for _ in range(ATTEMPTS_MAX):
        txn = new_txn(timeline.fileio.env)
        candidate = CommitAttempt(
            txn=txn, action=Action.CLOSE, base=view.log, changes={}, footprint={table: Footprint()}, metadata=metadata or {}
        )
        try:
            return _claim(candidate, Committer(timeline.fileio, AT_HEAD)).entry.slot
        except CommitConflict:
            newer = timeline.log.read_after(view.slot)
        if any(table in entry.footprint for entry in newer):
            return None
        view = timeline.advance(view, newer)
    raise _contended(timeline, view, f"Table {table} could not be closed")


def reopen(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> LogView[Tables]:
    """Restore a closed table to its state before the CLOSE. An open table stays as it is. Returns a view in which it is open.

    Raises SnapshotExpired when its files were cleaned.
    """
    for _ in range(ATTEMPTS_MAX):
        marks = view.log.marks(table)
        if marks.closed_at is None:
            return view
        restored = marks.closed_at - 1
        if not marks.is_readable(restored):
            raise SnapshotExpired(
                f"Table {table} at {timeline.fileio.url} was dropped at slot {marks.closed_at} and then cleaned. It cannot be restored."
            )
        candidate = CommitAttempt(
            txn=new_txn(timeline.fileio.env),
            action=Action.RESTORE,
            base=view.log,
            changes={},
            footprint={table: Footprint(restores=restored)},
            apps={table: {app: reached.version for app, reached in marks.apps.items()}},
        )
        try:
            # A RESTORE takes back later writes, so it must directly follow a slot at which the table is closed.
            return _commit(timeline, view, candidate, Committer(timeline.fileio, AT_HEAD))
        except CommitConflict:
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"Table {table} could not be restored")


def change_properties(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    table: str,
    *,
    set_: Mapping[str, str],
    unset: Iterable[str],
) -> LogView[Tables]:
    """Set and remove properties of a table, in one commit. Other properties that changed meanwhile stay.

    Returns the view with them, see `_change`. Raises InvalidInput, TableClosed, and what a commit raises.
    """
    removed = check_changes(set_, unset)
    check_names(set_)
    check_properties(set_)

    def plan(spec: TableSpec) -> TableSpec:
        check_statistics(set_, spec.table_schema.names)
        kept = {key: value for key, value in {**spec.properties, **set_}.items() if key not in removed}
        check_together(kept)
        check_index_plugin(kept, reads_files=isinstance(spec.index, (SimpleIndexSpec, BloomIndexSpec)))
        if spec.is_in_place:
            check_in_place(kept)
        return msgspec.structs.replace(spec, properties=kept)

    return _change_spec(timeline, view, table, plan, what="properties")


def change_schema(timeline: Timeline[Tables], view: LogView[Tables], table: str, changes: Sequence[ColumnChange]) -> LogView[Tables]:
    """Change columns of a table, in one commit that touches no file. Other changes made meanwhile stay.

    Writers that planned before it continue: their files are read under the new schema like all older files. Returns the view with it, see
    `_change`. Raises InvalidSchema and InvalidInput as `objcat.metadata.schema_evolution.evolve`, TableClosed, and what a commit raises.
    """

    def plan(spec: TableSpec) -> TableSpec:
        check_not_derived(spec, "change its columns")
        if isinstance(spec.in_place, FilesInPlace) and spec.is_in_place:
            check_changes_in_place(spec, spec.in_place, changes)
        changed = evolve(spec, changes)
        if isinstance(changed.in_place, FilesInPlace):
            changed = msgspec.structs.replace(changed, in_place=without_dropped(changed, changed.in_place))
        return changed

    return _change_spec(timeline, view, table, plan, what="schema")


def change_precomputed(timeline: Timeline[Tables], view: LogView[Tables], table: str, names: Sequence[str]) -> LogView[Tables]:
    """Change which columns of a table in place are precomputed, in one commit that makes none.

    Returns the view with it. Raises InvalidInput, TableClosed, and what a commit raises.
    """

    def plan(spec: TableSpec) -> TableSpec:
        if not isinstance(spec.in_place, FilesInPlace) or not spec.is_in_place:
            raise InvalidInput("The files of this table are its own, so columns are read from them. Leave out the call.")
        return msgspec.structs.replace(spec, in_place=choose_precomputed(spec, spec.in_place, names))

    return _change_spec(timeline, view, table, plan, what="precomputed columns")


def _change_spec(
    timeline: Timeline[Tables], view: LogView[Tables], table: str, plan: Callable[[TableSpec], TableSpec], *, what: str
) -> LogView[Tables]:
    """Commit the spec that `plan` makes from the current one, and plan again when another commit changed it first."""
    for _ in range(ATTEMPTS_MAX):
        spec = snapshot_of(view, table, where=timeline.fileio.url).spec
        changed = plan(spec)
        if changed == spec:
            return view
        candidate = CommitAttempt(
            txn=new_txn(timeline.fileio.env),
            action=Action.SCHEMA,
            base=view.log,
            changes={table: encode_delta(TableDelta(spec=changed))},
            features=features_of(TableDelta(spec=changed)),
            footprint={table: Footprint(schema=SchemaChange(columns=changed_ids(spec.table_schema, changed.table_schema)))},
        )
        try:
            return _change(timeline, view, candidate)
        except CommitConflict as error:
            if isinstance(error, Contention):
                raise
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"The {what} of table {table} could not be changed")


def raise_watermark(timeline: Timeline[Tables], view: LogView[Tables], table: str, below: Any) -> LogView[Tables]:
    """Record that no change with an ordering value below one comes any more, in one commit. A watermark is never lowered.

    Writers that planned before it write again, so no row below it lands after its slot. Returns the view with it. Raises InvalidInput,
    TableClosed, and what a commit raises.
    """
    for _ in range(ATTEMPTS_MAX):
        spec = snapshot_of(view, table, where=timeline.fileio.url).spec
        if spec.ordering_column is None:
            raise InvalidInput(
                "The table has no ordering column, so a compaction forgets its deletes by itself. Nothing was changed. Leave out the call."
            )
        known = spec.watermark if isinstance(spec.watermark, Watermark) else None
        watermark = raised(known, below, spec.ordering_column, slot=view.slot + 1)
        if watermark is None:
            return view
        changed = msgspec.structs.replace(spec, watermark=watermark)
        candidate = CommitAttempt(
            txn=new_txn(timeline.fileio.env),
            action=Action.SCHEMA,
            base=view.log,
            changes={table: encode_delta(TableDelta(spec=changed))},
            footprint={table: Footprint(schema=SchemaChange(columns=(), needs_data=True))},
            features=features_of(TableDelta(spec=changed)),
            writer_features=WATERMARK_FEATURE,
        )
        try:
            # Its slot is a part of it, so it must directly follow the slot that it was planned from.
            return _change(timeline, view, candidate, AT_HEAD)
        except CommitConflict:
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"The watermark of table {table} could not be raised")


def change_partitioning(
    timeline: Timeline[Tables], view: LogView[Tables], table: str, manifests: Manifests, partition_by: Sequence[str]
) -> LogView[Tables]:
    """Change the partition spec, in one commit. Existing rows stay where they are.

    Writers that planned before it write again. Returns the view with it, see `_change`. Raises InvalidInput, InvalidSchema, TableClosed,
    and what a commit raises.
    """
    for _ in range(ATTEMPTS_MAX):
        snapshot = snapshot_of(view, table, where=timeline.fileio.url)
        changed = _repartitioned(snapshot, manifests, partition_by)
        if changed is None:
            return view
        columns = tuple(column.id for column in changed.partition_columns)
        candidate = CommitAttempt(
            txn=new_txn(timeline.fileio.env),
            action=Action.SCHEMA,
            base=view.log,
            changes={table: encode_delta(TableDelta(spec=changed))},
            features=features_of(TableDelta(spec=changed)),
            # Which previous partition specs still have rows depends on the rows. Where a row is stored depends on the partition spec.
            footprint={table: Footprint(schema=SchemaChange(columns=columns, needs_data=True))},
        )
        try:
            return _change(timeline, view, candidate)
        except CommitConflict as error:
            if isinstance(error, Contention):
                raise
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"The partition spec of table {table} could not be changed")


def _repartitioned(snapshot: Snapshot, manifests: Manifests, partition_by: Sequence[str]) -> TableSpec | None:
    """The table's settings with another partition spec. None when it has that one."""
    spec = snapshot.spec
    present = spec.partitioning
    asked = parse_partitioning(partition_by, spec.table_schema, others=(present, *spec.former))
    if isinstance(spec.in_place, FilesInPlace) and spec.is_in_place:
        check_partitions_in_place(spec, spec.in_place, asked)
    if asked.fields == present.fields:
        return None
    live = {shape_of(partition) for partition in snapshot.live_partitions(manifests)}
    former = tuple(earlier for earlier in (*spec.former, present) if earlier.shape in live)
    changed = msgspec.structs.replace(spec, partitioning=asked, former=former)
    check_key_scope(changed)
    return changed


def check_changes(set_: Mapping[str, str], unset: Iterable[str]) -> frozenset[str]:
    """Names of properties to remove. Raises InvalidInput for names that are not text, and for a name that is both set and unset."""
    text_mapping(set_, what="properties")
    removed = frozenset(name_list(unset, what="unset"))
    both = removed & set(set_)
    if both:
        raise InvalidInput(f"The property {min(both)!r} is both set and unset. Do one of them.")
    return removed


def _commit(timeline: Timeline[Tables], view: LogView[Tables], candidate: CommitAttempt, committer: Committer) -> LogView[Tables]:
    committed = _claim(candidate, committer)
    return timeline.advance(view, [*committed.read, committed.entry])


def _change(
    timeline: Timeline[Tables], view: LogView[Tables], candidate: CommitAttempt, policy: CommitRetryPolicy | None = None
) -> LogView[Tables]:
    """Commit a change that is complete with its slot. Returns the view with it; `view`, if the store does not show the other changes."""
    committed = _claim(candidate, Committer(timeline.fileio) if policy is None else Committer(timeline.fileio, policy))
    try:
        return timeline.advance(view, [*committed.read, committed.entry])
    except (ObjcatError, FileIOError) as error:
        # The change is durable. The handle is behind, as if another process had made the change.
        logger.warning("%s could not be read up to slot %d, which is durable: %s", timeline.fileio.url, committed.entry.slot, error)
        return view


def _claim(candidate: CommitAttempt, committer: Committer) -> Committed:
    session = CommitSession(committer, candidate.txn, waits=True)
    skew_ms = session.announce(candidate.action, candidate.base, engine="local")
    with session:
        return session.commit(candidate, skew_ms=skew_ms())


def _contended(timeline: Timeline[Tables], view: LogView[Tables], what: str) -> Contention:
    return Contention(
        f"{what} in {ATTEMPTS_MAX} attempts, the last one at slot {view.slot} of {timeline.fileio.url}, because others keep changing it. "
        "Nothing was written. Try again later.",
        winner_slot=view.slot,
    )
