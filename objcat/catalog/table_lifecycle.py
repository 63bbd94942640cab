"""What happens once or rarely to a table, in its own log: it is created, dropped, brought back, and its schema and
properties change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from fileio.errors import FileIOError
from objcat.common.validation import name_list, text_mapping
from objcat.errors import CommitConflict, Contention, InvalidInput, ObjcatError, SnapshotExpired
from objcat.metadata.files import TableDelta, encode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.partitioning import parse_partitioning, shape_of
from objcat.metadata.properties import check_names, check_properties, check_statistics, check_together
from objcat.metadata.schema_differences import changed_ids
from objcat.metadata.schema_evolution import ColumnChange, evolve
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import TableSpec, check_key_scope
from objcat.metadata.table_state import Tables
from objcat.timeline.commit import CommitAttempt, CommitRetryPolicy, Committed, Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, Footprint, SchemaChange, Txn, new_txn
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")

ATTEMPTS_MAX = 100
AT_HEAD = CommitRetryPolicy(slots_max=1)
"""For a commit that must stand on the very slot that it was planned from: a lost slot means that it is planned again."""


def create(timeline: Timeline[Tables], base: LogView[Tables], spec: TableSpec, txn: Txn) -> LogView[Tables]:
    """Create a table in a log: as its slot 0 where `base` is empty, else beside the tables that are there. Returns the view with it.

    Raises CommitConflict where the log is not empty any more, CommitUnknown, and storage errors that certainly had no effect.
    """
    changes = {spec.table: encode_delta(TableDelta(spec=spec))}
    candidate = CommitAttempt(txn=txn, action=Action.CREATE, base=base.log, changes=changes, footprint={spec.table: Footprint()})
    return _commit(timeline, base, candidate, Committer(timeline.fileio))


def close(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> LogView[Tables]:
    """Close a table: from that slot on nothing changes it. A table that is closed already stays so. Returns a view in which it is closed.

    Safe beside writers: what committed before the slot is there when the table comes back; what comes later is refused.
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
    raise _contended(timeline, view, f"table {table} could not be closed")


def close_unchanged(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> int | None:
    """Close a table where nothing was committed to it above `view`. Returns the slot; None where something was, and it stays.

    Safe beside writers: the CLOSE stands right above entries that are known to be of others, so that no commit is between.
    """
    for _ in range(ATTEMPTS_MAX):
        txn = new_txn(timeline.fileio.env)
        candidate = CommitAttempt(txn=txn, action=Action.CLOSE, base=view.log, changes={}, footprint={table: Footprint()})
        try:
            return _claim(candidate, Committer(timeline.fileio, AT_HEAD)).entry.slot
        except CommitConflict:
            newer = timeline.log.read_after(view.slot)
        if any(table in entry.footprint for entry in newer):
            return None
        view = timeline.advance(view, newer)
    raise _contended(timeline, view, f"table {table} could not be closed")


def reopen(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> LogView[Tables]:
    """Bring a closed table back as it was before its CLOSE. One that is open stays as it is. Returns a view in which it is open.

    Raises SnapshotExpired when its files were cleaned away.
    """
    for _ in range(ATTEMPTS_MAX):
        marks = view.log.marks(table)
        if marks.closed_at is None:
            return view
        restored = marks.closed_at - 1
        if not marks.is_readable(restored):
            raise SnapshotExpired(
                f"table {table} at {timeline.fileio.url} was dropped at slot {marks.closed_at} and then cleaned: it cannot come back"
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
            # A RESTORE takes back what was written since: it may only stand right above the slot that still said that the table is closed.
            return _commit(timeline, view, candidate, Committer(timeline.fileio, AT_HEAD))
        except CommitConflict:
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"table {table} could not be brought back")


def change_properties(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    table: str,
    *,
    set_: Mapping[str, str],
    unset: Iterable[str],
) -> LogView[Tables]:
    """Set and take away properties of a table, as one commit; others that changed meanwhile stay. Returns the view with them, see
    `_change`.

    Raises InvalidInput, TableClosed, and what a commit raises.
    """
    removed = check_changes(set_, unset)
    check_names(set_)
    check_properties(set_)

    def plan(spec: TableSpec) -> TableSpec:
        check_statistics(set_, spec.table_schema.names)
        kept = {key: value for key, value in {**spec.properties, **set_}.items() if key not in removed}
        check_together(kept)
        return msgspec.structs.replace(spec, properties=kept)

    return _change_spec(timeline, view, table, plan, what="properties")


def change_schema(timeline: Timeline[Tables], view: LogView[Tables], table: str, changes: Sequence[ColumnChange]) -> LogView[Tables]:
    """Change columns of a table, as one commit that touches no file; what others changed meanwhile stays. Returns the view with it, see
    `_change`.

    Writers that planned before it go on: what they write is read under the new schema as all older files are. Raises InvalidSchema and
    InvalidInput as `objcat.metadata.schema_evolution.evolve`, TableClosed, and what a commit raises.
    """
    return _change_spec(timeline, view, table, lambda spec: evolve(spec, changes), what="schema")


def _change_spec(
    timeline: Timeline[Tables], view: LogView[Tables], table: str, plan: Callable[[TableSpec], TableSpec], *, what: str
) -> LogView[Tables]:
    """Commit the spec that `plan` makes of the present one, and of a newer one when another commit changed it first."""
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
            footprint={table: Footprint(schema=SchemaChange(columns=changed_ids(spec.table_schema, changed.table_schema)))},
        )
        try:
            return _change(timeline, view, candidate)
        except CommitConflict as error:
            if isinstance(error, Contention):
                raise
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"the {what} of table {table} could not be changed")


def change_partitioning(
    timeline: Timeline[Tables], view: LogView[Tables], table: str, manifests: Manifests, partition_by: Sequence[str]
) -> LogView[Tables]:
    """Have new rows dealt to partitions in another way, as one commit; rows that are there stay where they are. Returns the view with it,
    see `_change`.

    Writers that planned before it write again. Raises InvalidInput and InvalidSchema, TableClosed, and what a commit raises.
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
            # Which former partitionings still have rows depends on the rows, and where a row lives on the partitioning.
            footprint={table: Footprint(schema=SchemaChange(columns=columns, needs_data=True))},
        )
        try:
            return _change(timeline, view, candidate)
        except CommitConflict as error:
            if isinstance(error, Contention):
                raise
            view = timeline.refresh(view)
    raise _contended(timeline, view, f"the partitioning of table {table} could not be changed")


def _repartitioned(snapshot: Snapshot, manifests: Manifests, partition_by: Sequence[str]) -> TableSpec | None:
    """The spec with another partitioning; None when it has that one."""
    spec = snapshot.spec
    present = spec.partitioning
    asked = parse_partitioning(partition_by, spec.table_schema, others=(present, *spec.former))
    if asked.fields == present.fields:
        return None
    live = {shape_of(partition) for partition in snapshot.live_partitions(manifests)}
    former = tuple(earlier for earlier in (*spec.former, present) if earlier.shape in live)
    changed = msgspec.structs.replace(spec, partitioning=asked, former=former)
    check_key_scope(changed)
    return changed


def check_changes(set_: Mapping[str, str], unset: Iterable[str]) -> frozenset[str]:
    """Names of properties to take away. Raises InvalidInput for what is not text, and for a name that is both set and unset."""
    text_mapping(set_, what="properties")
    removed = frozenset(name_list(unset, what="unset"))
    both = removed & set(set_)
    if both:
        raise InvalidInput(f"the property {min(both)!r} is both set and unset: do one of them")
    return removed


def _commit(timeline: Timeline[Tables], view: LogView[Tables], candidate: CommitAttempt, committer: Committer) -> LogView[Tables]:
    committed = _claim(candidate, committer)
    return timeline.advance(view, [*committed.read, committed.entry])


def _change(timeline: Timeline[Tables], view: LogView[Tables], candidate: CommitAttempt) -> LogView[Tables]:
    """Commit a change that is whole with its slot. Returns the view with it; `view`, should the store not show what others changed."""
    committed = _claim(candidate, Committer(timeline.fileio))
    try:
        return timeline.advance(view, [*committed.read, committed.entry])
    except (ObjcatError, FileIOError) as error:
        # The change is durable, whatever comes after it. The handle is behind, as if another process had made it.
        logger.warning("%s could not be read up to slot %d, which is durable: %s", timeline.fileio.url, committed.entry.slot, error)
        return view


def _claim(candidate: CommitAttempt, committer: Committer) -> Committed:
    session = CommitSession(committer, candidate.txn, waits=True)
    skew_ms = session.announce(candidate.action, candidate.base, engine="local")
    with session:
        return session.commit(candidate, skew_ms=skew_ms())


def _contended(timeline: Timeline[Tables], view: LogView[Tables], what: str) -> Contention:
    return Contention(
        f"{what} in {ATTEMPTS_MAX} attempts, the last one at slot {view.slot} of {timeline.fileio.url}: others keep changing it, "
        "try again later",
        winner_slot=view.slot,
    )
