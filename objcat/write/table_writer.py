"""`TableWriter`: writes the batches of one transaction to one table, and describes the files for the log entry.

Begin with `write`, and with `rewrite` for what happens after a conflict. The index decides the file group of a key: by hash in
`objcat.tasks.write_log_rows`, or by lookup and size in `objcat.write.index_lookup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from fileio.store import FileIO
from objcat.errors import EmptyBatch, InvalidBatch
from objcat.metadata.file_groups import FileGroupMap
from objcat.metadata.files import FileGroup, LogSlice, TableDelta
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import SchemaMode
from objcat.metadata.schema_differences import changed_ids
from objcat.metadata.schema_evolution import widened_spec
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import MemoryIndexSpec, TableSpec
from objcat.predicate.parse import Predicate
from objcat.tasks.append_rows import fill_group
from objcat.tasks.model import Operation, WriteLayout, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.write_log_rows import written_columns
from objcat.timeline.conflicts import Conflict
from objcat.timeline.entry import Entry, FileGroupId, Footprint, Keys, SchemaChange, Summary, Txn
from objcat.write.bucket_size_warning import BucketSizeWarning
from objcat.write.engine import Engine
from objcat.write.file_sizing import assign_file_groups, row_bytes_of, size_of
from objcat.write.index_lookup import LookupContext, check_partitions, keys_of, write_with_index_lookup

D_contra = TypeVar("D_contra", contravariant=True)

MANIFEST_BYTES_MAX = 4 * 1024**2
"""Up to this size, some 50,000 file groups, all manifests are read. Beyond it, a DataFrame is first read for its partitions."""


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """One batch with its operation.

    Args:
        engine: one that takes batches of this kind.
        schema_mode: what the batch may change in the schema of the table.
        delete_when: of an upsert, a filter over the columns of the batch. Rows for which it is true are deletes.
        layout: of a bulk insert.
        computed: whether its rows were made of rows of the table. Then the watermark leaves out none.
        tells_keys: see `WriteTask`.
    """

    engine: Engine[Any]
    data: Any
    operation: Operation
    schema_mode: SchemaMode = SchemaMode.STRICT
    delete_when: Predicate | None = None
    layout: WriteLayout | None = None
    computed: bool = False
    tells_keys: bool = False

    def widened_spec(self, spec: TableSpec) -> TableSpec:
        """The spec under which the batch is written. Raises InvalidSchema and InvalidBatch."""
        if self.schema_mode is SchemaMode.STRICT or self.operation is Operation.DELETE:
            return spec
        given = self.engine.schema(self.data)
        return widened_spec(
            spec, pa.schema([given.field(name) for name in written_columns(given.names, spec, self.delete_when)]), self.schema_mode
        )


class TableWriter:
    """Writes the batches of one transaction to one table. Later batches count after earlier ones. For one thread.

    Args:
        written: the files of each batch.
        superseded: files that were written and that the commit does not name.
        ends: partitions whose file groups the commit ends, None for all. Batches are written as if nothing were there.
        whole: whether the commit surely ends all of the table, so that rows use only the current partition spec.
        kept: see `objcat.write.index_lookup.keys_of`.
    """

    def __init__(
        self,
        fileio: FileIO,
        manifests: Manifests,
        table: str,
        changes: Sequence[WriteBatch],
        *,
        advice: BucketSizeWarning | None = None,
        ends: Collection[str] | None = (),
        whole: bool = False,
        kept: bytes = b"",
    ) -> None:
        self.table = table
        self.changes = tuple(changes)
        self.written: list[WriteResult] = []
        self.superseded: list[str] = []
        self._pieces: dict[int, WriteResult] = {}
        self._fileio = fileio
        self._manifests = manifests
        self._advice = advice
        self._ends = frozenset(ends or ())
        self._ends_all = ends is None
        self._whole = whole
        self._kept = kept
        self._within: frozenset[str] | None = None
        self._spec: TableSpec | None = None
        self._schema: SchemaChange | None = None
        self._keys: Keys | None = None

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of the engines that write."""
        return tuple(dict.fromkeys(change.engine.name for change in self.changes))

    @property
    def is_whole(self) -> bool:
        """A conflict concerns the file groups that it names."""
        return False

    @property
    def all(self) -> WriteResult:
        """The files that the commit names, of all batches."""
        return named_files(self.written)

    @property
    def paths(self) -> list[str]:
        """The paths of every file that was written."""
        return [path for written in (*self._pieces.values(), *self.written) for path in paths_of(written)]

    def begin(self) -> None:
        """Forget what was written under an earlier transaction id."""
        self.written, self.superseded = [], []

    def tasks(self, snapshot: Snapshot, txn: Txn) -> list[WriteTask]:
        """The tasks for the engines above the snapshot, one per batch, each as if the others did not exist.

        For a caller that has the files written before there is a commit. Raises InvalidSchema and InvalidBatch.
        """
        self._plan(snapshot)
        return [self._task(change, snapshot, txn, only=None) for change in self.changes]

    def write_step(self, snapshot: Snapshot, txn: Txn) -> tuple[WriteResult, TableSpec]:
        """Write the only batch, for a caller that describes the files itself. Returns the files and the spec. Raises as `write`."""
        (_,) = self.changes
        self._plan(snapshot)
        assert self._spec is not None, "a part is planned before it is written"
        self.written = [self._write(0, snapshot, txn, only=None)]
        return self.written[0], self._spec

    def write(self, snapshot: Snapshot, txn: Txn) -> None:
        """Write the files of every batch, in place of those written before. Raises InvalidBatch, NullKey and storage errors."""
        snapshot.spec.check_own_files("take rows")
        self._plan(snapshot)
        before, self.written = self.written, []
        for number, change in enumerate(self.changes):
            self.written.append(self._write(number, snapshot, txn, only=None))
            # A batch of late rows alone is committed without them, so that a stream goes on.
            if self.written[-1].rows == 0 and not self.written[-1].late:
                raise EmptyBatch(f"The batch to {change.operation} is empty. Nothing was written. Give it rows, or skip the call.")
        self._supersede(before)
        if snapshot.spec.is_located:
            self._name_keys(txn)

    def rewrite(
        self,
        snapshot: Snapshot,
        txn: Txn,
        group_ids: Collection[FileGroupId],
        met: Sequence[tuple[Entry, Conflict]] = (),  # noqa: ARG002 - file groups say enough
    ) -> bool:
        """Write the rows of these file groups again, as of the snapshot. Files of the other file groups stay.

        Everything is written again under an index without hash buckets, since keys may have moved, and if the columns of the table
        changed, since names in the batch may have another meaning. Returns that work was repeated.
        """
        earlier_spec = self._spec
        self._plan(snapshot)
        if earlier_spec is None or self._spec is None or self._spec.is_located or not _is_alike(earlier_spec, self._spec):
            self.write(snapshot, txn)
            return True
        before, self.written = self.written, []
        for number, earlier in enumerate(before):
            if not self._spec.has_key:
                # Files without a key are assigned to other file groups, and nothing is written again.
                self.written.append(self._packed(self._pieces[number], snapshot, txn, fills=False))
                continue
            again = self._write(number, snapshot, txn, only=group_ids)
            if _rows_by_group(again) != {group_id: rows for group_id, rows in _rows_by_group(earlier).items() if group_id in group_ids}:
                raise InvalidBatch(
                    "The batch gave other rows when it was computed again for some buckets that another commit had changed. Nothing "
                    "was written. Cache or checkpoint the DataFrame before you write it."
                )
            self.written.append(msgspec.structs.replace(_without(earlier, group_ids) + again, rows=earlier.rows))
        self._supersede(before)
        return True

    def footprint(self, snapshot: Snapshot, *, computed: bool = False) -> Footprint:
        """What the writer changes. computed: whether its rows may depend on rows that the transaction read."""
        return msgspec.structs.replace(self._files_footprint(snapshot, computed=computed), schema=self._schema, keys=self._keys)

    def _files_footprint(self, snapshot: Snapshot, *, computed: bool) -> Footprint:
        written = self.all
        appends = {rows.group_id for log in written.logs for rows in log.slices}
        bases = [base.group_id for base in written.bases]
        rmw = tuple(sorted(appends)) if computed else ()
        if not snapshot.spec.rewrites or self._ends_all:
            return Footprint(creates=tuple(bases), appends=tuple(sorted(appends)), rmw=rmw)
        staying = frozenset(group_id for group_id in bases if group_id.partition not in self._ends)
        live = {group.group_id for group in snapshot.file_groups(self._manifests, group_ids=staying)}
        unchanged = {group_id.group_id for group_id in written.rewritten if not group_id.changed}
        return Footprint(
            creates=tuple(group_id for group_id in bases if group_id not in live),
            replaces=tuple(group_id for group_id in bases if group_id in live),
            appends=tuple(sorted(appends.difference(bases))),
            reads=tuple(sorted(unchanged.difference(bases))),
            rmw=rmw,
        )

    def delta(self, snapshot: Snapshot) -> TableDelta:
        """The changes of the table for an entry that follows the snapshot."""
        written = self.all
        return TableDelta(
            spec=None if self._schema is None else self._spec,
            bases=written.bases,
            logs=written.logs,
            as_of=snapshot.slot if snapshot.spec.rewrites else None,
            index=TableDelta(logs=written.index) if written.index else None,
        )

    def summary(self) -> Summary:
        """Counts of rows. Exact if existing rows were read, else unknown.

        Rows of an insert are declared to be new. A row that moved to another file group was updated.
        """
        written = self.all
        sizes = [base.bytes for base in written.bases] + [log.bytes for log in written.logs]
        group_ids = written.rewritten
        blind = written.rows if all(change.operation is Operation.INSERT for change in self.changes) else None
        return Summary(
            rows=written.rows,
            inserted=sum(group_id.inserted for group_id in group_ids) - written.moved if group_ids else blind,
            updated=sum(group_id.updated for group_id in group_ids) + written.moved if group_ids else None,
            deleted=sum(group_id.deleted for group_id in group_ids) - written.moved if group_ids else None,
            files=len(sizes),
            bytes=sum(sizes),
        )

    def _plan(self, snapshot: Snapshot) -> None:
        """Find the spec for all batches, with the columns that each of them may add."""
        spec = snapshot.spec
        for change in self.changes:
            spec = change.widened_spec(spec)
        self._spec, self._schema = spec, None
        if spec != snapshot.spec:
            self._schema = SchemaChange(columns=changed_ids(snapshot.spec.table_schema, spec.table_schema))

    def _task(self, change: WriteBatch, snapshot: Snapshot, txn: Txn, *, only: Collection[FileGroupId] | None) -> WriteTask:
        spec = self._spec
        assert spec is not None, "a part is planned before it is written"
        if change.computed or self._ends_all or (self._ends and not spec.is_global):
            # Whatever a forgotten delete would have rejected is known to be there, or ends with its partition.
            spec = msgspec.structs.replace(spec, watermark=msgspec.UNSET)
        former: frozenset[str] = frozenset()
        if spec.former and not self._whole:
            former = frozenset(filter(spec.is_former, snapshot.live_partitions(self._manifests)))
        if not spec.has_key:
            return self._append_task(change, snapshot, txn, former)
        if spec.is_located:
            return WriteTask(spec, txn, change.operation, previous_partitions=former, delete_when=change.delete_when)
        live: Mapping[FileGroupId, FileGroup] = {}
        if spec.rewrites or change.operation is Operation.INSERT:
            self._within = (
                frozenset(group_id.partition for group_id in only) if only is not None else self._partitions(change, snapshot, former)
            )
            live = self._live(snapshot, txn, self._within)
        return WriteTask(
            spec,
            txn,
            change.operation,
            bucket_counts=snapshot.table.bucket_counts,
            live_group_ids=frozenset(live),
            groups={group_id: group for group_id, group in live.items() if only is None or group_id in only} if spec.rewrites else {},
            previous_partitions=former,
            only=None if only is None else frozenset(only),
            delete_when=change.delete_when,
            tells_keys=change.tells_keys,
        )

    def _partitions(self, change: WriteBatch, snapshot: Snapshot, former: Collection[str]) -> frozenset[str] | None:
        """The partitions of the batch's rows. None if all must be read."""
        spec, engine = self._spec, change.engine
        assert spec is not None, "a part is planned before it is written"
        found = engine.partitions(change.data, spec, former)
        lookup = engine.capabilities.key_lookup
        if found is None and spec.partition_columns and lookup is not None:
            manifests = snapshot.table.manifest
            if sum(ref.bytes for ref in manifests) > MANIFEST_BYTES_MAX:
                found = lookup.partitions_named(change.data, spec, former)
        return None if found is None else frozenset(found)

    def _append_task(self, change: WriteBatch, snapshot: Snapshot, txn: Txn, former: frozenset[str]) -> WriteTask:
        spec = self._spec
        assert spec is not None, "a part is planned before it is written"
        partitions = change.engine.partitions(change.data, spec, former)
        if partitions is None and spec.partition_columns:
            # The written files will name their partitions.
            return WriteTask(spec, txn, change.operation, previous_partitions=former, layout=change.layout)
        groups = self._live(snapshot, txn, partitions).values()
        return WriteTask(
            spec,
            txn,
            change.operation,
            previous_partitions=former,
            layout=change.layout,
            fillable=frozenset(group.group_id.partition for group in groups if size_of(group) < spec.target_file_bytes),
            row_bytes=row_bytes_of(groups),
        )

    def _packed(self, pieces: WriteResult, snapshot: Snapshot, txn: Txn, *, fills: bool) -> WriteResult:
        """The files of a batch without a key, with file groups, above earlier batches. fills: see `assign_file_groups`."""
        spec, env = self._spec, self._fileio.env
        assert spec is not None, "a part is planned before it is written"
        partitions = {group_id.partition for group_id in group_ids_of([pieces])}
        live = self._live(snapshot, txn, partitions)
        packed = assign_file_groups(spec, pieces, live, lambda: int(env.new_id(), 16), fills=fills)
        filled = run_all(env, lambda fill: fill_group(self._fileio, spec, txn, live[fill[0]], fill[1]), packed.fills.items())
        return msgspec.structs.replace(packed.written, bases=(*packed.written.bases, *filled))

    def _live(self, snapshot: Snapshot, txn: Txn, partitions: Collection[str] | None) -> MutableMapping[FileGroupId, FileGroup]:
        """The live file groups of partitions that do not end, with the files of earlier batches."""
        live: MutableMapping[FileGroupId, FileGroup]
        spec = snapshot.spec
        if self._ends and not self._ends_all:
            there = snapshot.live_partitions(self._manifests) if partitions is None else frozenset(partitions)
            partitions = there - self._ends
        if spec.is_located and not isinstance(spec.index, MemoryIndexSpec) and not self._ends_all:
            # Other lookups read only file groups that an index or bounds name. The memory index reads all of them.
            live = FileGroupMap(snapshot.live(self._manifests, partitions=partitions))
        else:
            found = [] if self._ends_all else snapshot.file_groups(self._manifests, partitions=partitions)
            live = {group.group_id: group for group in found}
        if self._advice is not None and isinstance(live, dict):
            self._advice.look(live.values(), spec)
        for earlier in self.written:
            _lay_over(live, earlier, slot=snapshot.slot + 1, txn=txn)
        return live

    def _write(self, number: int, snapshot: Snapshot, txn: Txn, *, only: Collection[FileGroupId] | None) -> WriteResult:
        """Run the engine over a batch, or over its rows of some file groups, above earlier batches."""
        self._within = None
        change, task = self.changes[number], self._task(self.changes[number], snapshot, txn, only=only)
        if task.spec.is_located:
            within = None if task.spec.is_global else self._partitions(change, snapshot, task.previous_partitions)
            live = self._live(snapshot, txn, within)
            index = [log for earlier in self.written for log in earlier.index]
            if task.spec.is_global and self._ends and not self._ends_all:
                within = self._ends
            place = LookupContext(self._fileio, self._manifests, snapshot, live, group_ids_of(self.written), index, within)
            return write_with_index_lookup(place, change.engine, change.data, task)
        written = change.engine.write(change.data, task)
        if self._within is not None:
            check_partitions({group_id.partition for group_id in group_ids_of([written])}, self._within)
        if not task.spec.has_key:
            self._pieces[number] = written
            return self._packed(written, snapshot, txn, fills=change.layout is None)
        group_ids = [base.group_id for base in written.bases]
        rewritten = [group_id.group_id for group_id in written.rewritten]
        if len(set(group_ids)) < len(group_ids) or len(set(rewritten)) < len(rewritten):
            raise InvalidBatch(
                "Rows of one bucket were written by two tasks, which saw a key or partition column of another type than the table's. "
                "Nothing was written. Cast the key columns and the partition columns to the types of the table."
            )
        return written

    def _name_keys(self, txn: Txn) -> None:
        """Record the digests of inserted or moved keys, and of the other updated ones."""
        former = () if self._keys is None else (self._keys.placed, self._keys.updated)
        self.superseded += [digests.side.path for digests in former if digests.side is not None]
        self._keys = keys_of(self._fileio, txn, self.written, kept=self._kept)

    def _supersede(self, before: Sequence[WriteResult]) -> None:
        named = set(paths_of(self.all))
        listed = [path for written in (*before, *self._pieces.values(), *self.written) for path in paths_of(written)]
        self.superseded = [path for path in dict.fromkeys([*self.superseded, *listed]) if path not in named]


def _is_alike(one: TableSpec, other: TableSpec) -> bool:
    """Whether two specs of a table differ only in properties."""
    return msgspec.structs.replace(one, properties={}) == msgspec.structs.replace(other, properties={})


def named_files(results: Iterable[WriteResult]) -> WriteResult:
    """The files that one commit names of several results, in order.

    Of one file group, only the last base file is among them, and no log rows of earlier results: that base file includes them.
    """
    whole = WriteResult()
    for written in results:
        kept = _without(whole, {base.group_id for base in written.bases})
        whole = msgspec.structs.replace(whole, bases=kept.bases, logs=kept.logs) + written
    return whole


def group_ids_of(results: Iterable[WriteResult]) -> set[FileGroupId]:
    """The file groups that some results write to."""
    return {group_id for result in results for group_id in _rows_by_group(result)}


def _lay_over(live: MutableMapping[FileGroupId, FileGroup], written: WriteResult, *, slot: int, txn: Txn) -> None:
    """Add the files of an earlier batch to the file groups, as if they were committed at `slot`."""
    for base in written.bases:
        live[base.group_id] = FileGroup(base.group_id, base, slot, txn, slot - 1)
    for log in written.logs:
        for rows in log.slices:
            group = live.get(rows.group_id, FileGroup(rows.group_id))
            live[rows.group_id] = replace(group, logs=(*group.logs, LogSlice(slot, log, rows.start, rows.end, rows.group_id, slot)))


def _rows_by_group(written: WriteResult) -> Mapping[FileGroupId, int]:
    """Rows of the batch by file group, after repeated keys are merged."""
    if written.rewritten:
        return {group_id.group_id: group_id.rows for group_id in written.rewritten}
    rows = Counter({base.group_id: base.rows for base in written.bases})
    for log in written.logs:
        rows.update({part.group_id: part.end - part.start for part in log.slices})
    return rows


def _without(written: WriteResult, group_ids: Collection[FileGroupId]) -> WriteResult:
    """The files without those of some file groups. Log objects with other rows stay, with only their slices."""
    logs = [
        msgspec.structs.replace(log, slices=tuple(rows for rows in log.slices if rows.group_id not in group_ids)) for log in written.logs
    ]
    return WriteResult(
        bases=tuple(base for base in written.bases if base.group_id not in group_ids),
        logs=tuple(log for log in logs if log.slices),
        rewritten=tuple(group_id for group_id in written.rewritten if group_id.group_id not in group_ids),
    )


def paths_of(written: WriteResult) -> list[str]:
    """The paths of all files of a result."""
    return [*(base.path for base in written.bases), *(log.path for log in (*written.logs, *written.index))]
