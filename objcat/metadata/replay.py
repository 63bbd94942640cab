"""`TablesReducer`: replays the entries of a log to tables. Only saving a checkpoint reads or writes the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from fileio.store import FileIO
from objcat.errors import CheckpointCollected, CorruptTable
from objcat.metadata.column_defaults import default_bounds
from objcat.metadata.consistency import check_delta, check_spec
from objcat.metadata.files import BaseFile, LogObject, LogSlice, TableDelta, decode_delta
from objcat.metadata.key_index_table import index_spec
from objcat.metadata.manifest import ShardRef
from objcat.metadata.manifest_levels import write_manifests
from objcat.metadata.manifest_rows import ManifestChange
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables, TableState
from objcat.timeline.entry import Action, Buckets, Entry, FileGroupId, is_path, log_key
from objcat.timeline.json_objects import RESTORE, decode_json


class _SavedTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One table in the root of a checkpoint."""

    spec: TableSpec
    bucket_counts: dict[str, Buckets] = {}
    shards: tuple[ShardRef, ...] = ()
    index_shards: tuple[ShardRef, ...] = ()


class _SavedPayload(msgspec.Struct, frozen=True, kw_only=True):
    """What the root of a checkpoint holds. tables: by id."""

    tables: dict[str, _SavedTable]


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_SAVED = msgspec.json.Decoder(_SavedPayload)


class TablesReducer:
    """The `LogReducer` of a log of tables."""

    def begin(self) -> Tables:
        """No tables."""
        return {}

    def advance(self, state: Tables, entry: Entry, at: Callable[[int], Tables]) -> Tables:
        """The tables after one more entry.

        Raises CorruptTable for an entry that breaks the protocol. Raises CheckpointCollected when an erasure removed partitions from it
        that these tables may hold.
        """
        _check_erased(state, entry)
        if not entry.changes and not entry.footprint:
            return state
        changed = dict(state)
        for table, footprint in entry.footprint.items():
            # The empty id means the log itself.
            if table and table not in changed and table not in entry.changes:
                raise CorruptTable(f"{log_key(entry.slot)} names table {table}. No slot before it creates that table. {RESTORE}")
            if footprint.restores is not None:
                changed[table] = _restored(at(footprint.restores)[table], changed.get(table))
        for table, raw in entry.changes.items():
            delta = decode_delta(raw, where=f"changes.{table} of {log_key(entry.slot)}")
            known = changed.get(table)
            if known is None:
                if delta.spec is None or entry.action is not Action.CREATE:
                    raise CorruptTable(f"{log_key(entry.slot)} changes table {table}. No slot before it creates that table. {RESTORE}")
                known = TableState(delta.spec, erasures=frozenset(entry.erased.get(table, ())))
            check_delta(delta, entry, table)
            changed[table] = state_after(known, delta, entry)
        return changed

    def save(self, fileio: FileIO, state: Tables, folder: str) -> tuple[msgspec.Raw, Tables]:
        """Write what changed since the state's manifests. Raises CheckpointCollected, CorruptTable and storage errors."""
        saved = {
            table: replace(
                write_manifests(fileio, known, folder), index=None if known.index is None else write_manifests(fileio, known.index, folder)
            )
            for table, known in state.items()
        }
        tables = {
            table: _SavedTable(
                spec=known.spec,
                bucket_counts=dict(known.bucket_counts),
                shards=known.manifest,
                index_shards=() if known.index is None else known.index.manifest,
            )
            for table, known in saved.items()
        }
        return msgspec.Raw(msgspec.json.encode(_SavedPayload(tables=tables))), saved

    def load(self, payload: msgspec.Raw) -> Tables:
        """The state of a root. Sends no request. Raises CorruptTable."""
        return {table: _loaded(table, known) for table, known in _decode(payload).tables.items()}

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:
        """The paths of all shards that a root names. Raises CorruptTable."""
        return frozenset(ref.path for known in _decode(payload).tables.values() for ref in (*known.shards, *known.index_shards))


def state_after(state: TableState, delta: TableDelta, entry: Entry) -> TableState:
    """A table with the changes of an entry, which were checked. Raises CorruptTable for a base file that does not follow the state."""
    return _with_index(_replay_delta(state, delta, entry), delta.index, entry)


def _decode(payload: msgspec.Raw) -> _SavedPayload:
    return decode_json(payload, _SAVED, where="the payload of a checkpoint", what="a set of tables that this objcat can read")


def _check_erased(state: Tables, entry: Entry) -> None:
    """Check that the tables may replay an entry without the partitions that an erasure emptied.

    Only a reader that never saw these partitions may: one that began at the table's creation, whose slot is redacted last, or at a later
    checkpoint.
    """
    for table, ids in entry.erased.items():
        known = state.get(table)
        if known is not None and not known.erasures.issuperset(ids):
            raise CheckpointCollected(
                f"An erasure removed rows of table {table} from slot {entry.slot}, but the state read before still holds them. "
                "Open the table again. If that fails in the same way, an erasure was interrupted. Then erase again to finish it."
            )


def _loaded(table: str, saved: _SavedTable) -> TableState:
    check_spec(saved.spec, table, where=f"the payload of a checkpoint: tables.{table}.spec")
    for ref in (*saved.shards, *saved.index_shards):
        if not is_path(ref.path) or not ref.path.startswith("checkpoints/") or not ref.rows:
            raise CorruptTable(
                f"The payload of a checkpoint names the shard {ref.path!r}, which has no rows or is not below checkpoints/. {RESTORE}"
            )
    of_index = index_spec(saved.spec)
    index = None if of_index is None else TableState(of_index, manifest=saved.index_shards)
    return TableState(saved.spec, saved.bucket_counts, saved.shards, index=index)


def _with_index(state: TableState, delta: TableDelta | None, entry: Entry) -> TableState:
    """The table with an entry's changes of its record index. delta: None if there are none."""
    spec = index_spec(state.spec)
    if spec is None:
        return state
    index = TableState(spec) if state.index is None else replace(state.index, spec=spec)
    return replace(state, index=index if delta is None else _replay_delta(index, delta, entry))


def _replay_delta(state: TableState, delta: TableDelta, entry: Entry) -> TableState:
    """The table with the changes of an entry."""
    split = state
    if delta.spec is not None or delta.splits:
        split = replace(state, spec=delta.spec or state.spec, bucket_counts={**state.bucket_counts, **delta.splits})
    overlay = dict(state.overlay) if delta.spec is None else _with_younger(state, delta.spec)
    for group_id in delta.retires:
        overlay[group_id] = ManifestChange(group_id, entry.slot, as_of=entry.slot - 1)
    for base in delta.bases:
        overlay[base.group_id] = _replaced(overlay.get(base.group_id, ManifestChange(base.group_id)), base, delta, entry, split)
    rewritten = {base.group_id for base in delta.bases}
    for number, log in enumerate(delta.logs):
        bare = msgspec.structs.replace(log, slices=())
        for rows in log.slices:
            # Deletes that come with a base file of their file group count as of that file, below the log rows above it. Without such a file
            # they are ordinary log rows: a compaction in between has not taken them over.
            kept = delta.as_of is not None and rows.group_id in rewritten
            slot = delta.as_of if kept and delta.as_of is not None else entry.slot
            part = LogSlice(slot, bare, rows.start, rows.end, rows.group_id, entry.slot, number, 0 if kept else entry.committed_at_ms)
            overlay[rows.group_id] = _with_log(overlay.get(rows.group_id), part)
    return replace(split, overlay=overlay)


def _with_younger(state: TableState, spec: TableSpec) -> dict[FileGroupId, ManifestChange]:
    """The changes since the checkpoint, with the bounds of columns that join now, which no earlier file has."""
    last_id = state.spec.table_schema.last_id
    joined = {column.id: default_bounds(column) for column in spec.table_schema.columns if column.id > last_id}
    bounds = {column_id: bound for column_id, bound in joined.items() if bound is not None}
    if not bounds:
        return dict(state.overlay)
    # Slices of one object keep sharing it.
    objects: dict[int, LogObject] = {}

    def wider(change: ManifestChange) -> ManifestChange:
        base = change.base
        if base is not None:
            base = msgspec.structs.replace(base, bounds={**base.bounds, **bounds})
        logs = []
        for part in change.logs:
            of_part = objects.get(id(part.object))
            if of_part is None:
                of_part = msgspec.structs.replace(part.object, bounds={**part.object.bounds, **bounds})
                objects[id(part.object)] = of_part
            logs.append(msgspec.structs.replace(part, object=of_part))
        return msgspec.structs.replace(change, base=base, logs=tuple(logs))

    return {group_id: wider(change) for group_id, change in state.overlay.items()}


def _with_log(change: ManifestChange | None, part: LogSlice) -> ManifestChange:
    """What is known of a file group, with one more log slice.

    Written out: `replace` takes several times as long, and this runs for each file group of each entry.
    """
    if change is None:
        return ManifestChange(part.group_id, logs=(part,))
    return ManifestChange(change.group_id, change.slot, change.base, change.txn, change.as_of, (*change.logs, part))


def _replaced(before: ManifestChange, base: BaseFile, delta: TableDelta, entry: Entry, state: TableState) -> ManifestChange:
    group_id = base.group_id
    count = state.bucket_count(group_id.partition)
    if group_id.bucket_count != count:
        raise CorruptTable(
            f"Slot {entry.slot} writes a base file for {group_id}, but the bucket count there is {count} since an earlier split. {RESTORE}"
        )
    as_of = -1 if delta.as_of is None else delta.as_of
    known = before.slot if before.slot < entry.slot else -1
    if as_of < known and (before.base is not None or delta.as_of is not None):
        raise CorruptTable(f"Slot {entry.slot} writes a base file for {group_id} without the rows of slot {known}. {RESTORE}")
    cut = max(before.as_of, as_of)
    return ManifestChange(group_id, entry.slot, base, entry.txn, cut, tuple(part for part in before.logs if part.slot > cut))


def _restored(state: TableState, now: TableState | None) -> TableState:
    """An earlier state. Column ids assigned since then are not assigned again."""
    if now is None:
        return state
    schema = state.spec.table_schema
    last_id = max(schema.last_id, now.spec.table_schema.last_id)
    if last_id == schema.last_id:
        return state
    spec = msgspec.structs.replace(state.spec, table_schema=msgspec.structs.replace(schema, last_id=last_id))
    return replace(state, spec=spec)
