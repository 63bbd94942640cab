"""`BlockWriter`: the calls of a transaction's block on one table, as one part of its commit.

A block has the effect of its calls as commits of their own, one after another, that nobody disturbs. So each call runs upon the table as
the calls before it left it. That table is a `Snapshot` like any other: `BlockWriter` replays what each call wrote as if it were an entry of
its own. At the end the files of all calls become one change of the table. Of a file group that several calls wrote, it names the last
base file, and the log rows on top of it, in the order of the calls.

A *step* is one call: rows (`RowsStep`), a change of columns (`AlterStep`), an end of all rows (`TruncateStep`), or what is computed from
rows (`objcat.table.block_steps`). A step says on which rows it depends (`depend`). If another commit may have changed these, the steps
run again. Begin with `BlockWriter.write`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fileio.store import FileIO
from objcat.errors import EmptyBatch
from objcat.metadata.files import TableDelta, decode_delta
from objcat.metadata.group_filter import GroupFilter
from objcat.metadata.key_index_table import index_spec
from objcat.metadata.manifest import Manifests
from objcat.metadata.replay import state_after
from objcat.metadata.schema_differences import changed_ids
from objcat.metadata.schema_evolution import ColumnChange, evolve
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import TableState
from objcat.tasks.model import Filter, Operation, WriteLayout, WriteResult
from objcat.timeline.conflicts import Conflict
from objcat.timeline.entry import FORMAT_VERSION, Action, Entry, FileGroupId, Footprint, Keys, SchemaChange, Summary, Txn
from objcat.write.index_lookup import keys_of
from objcat.write.rows_read import RowsRead
from objcat.write.table_writer import TableWriter, WriteBatch, group_ids_of, named_files, paths_of

WHOLE = ("",)
"""A whole table, as a footprint writes it."""


class BlockStep(Protocol):
    """One call of a block on one table."""

    @property
    def engine(self) -> str | None:
        """The name of the engine that writes it. None if it writes nothing."""

    def spec_after(self, spec: TableSpec) -> TableSpec:
        """The spec of the table after the call. Raises InvalidSchema and InvalidBatch."""

    def run(self, table: BlockWriter) -> None:
        """Do the call upon the table as it is after the earlier ones. Raises InvalidBatch, NullKey, CorruptTable and storage errors."""


@dataclass(frozen=True, slots=True)
class RowsStep:
    """Rows to write: an upsert, an insert, or a delete by key.

    follows: whether the rows depend on those that the step before it has read.
    """

    change: WriteBatch
    follows: bool = False

    @property
    def engine(self) -> str | None:
        """The engine of the batch."""
        return self.change.engine.name

    def spec_after(self, spec: TableSpec) -> TableSpec:
        """With the columns that the batch adds."""
        return self.change.widened_spec(spec)

    def run(self, table: BlockWriter) -> None:
        """Write the batch."""
        written = table.write_batch(self.change, computed=self.follows)
        if written.rows == 0 and not written.late:
            raise EmptyBatch(f"The batch to {self.change.operation} is empty. Nothing was written. Give it rows, or skip the call.")


@dataclass(frozen=True, slots=True)
class AlterStep:
    """Changes of columns."""

    changes: tuple[ColumnChange, ...]
    engine: str | None = None

    def spec_after(self, spec: TableSpec) -> TableSpec:
        """With the changed columns. Raises InvalidSchema and InvalidInput as `evolve`."""
        return evolve(spec, self.changes)

    def run(self, table: BlockWriter) -> None:
        """Change the spec."""
        table.change_spec(self.spec_after(table.snapshot.spec))


@dataclass(frozen=True, slots=True)
class TruncateStep:
    """An end of all rows."""

    engine: str | None = None

    def spec_after(self, spec: TableSpec) -> TableSpec:
        """The same."""
        return spec

    def run(self, table: BlockWriter) -> None:
        """End all rows."""
        table.truncate()


class BlockWriter:
    """Writes the steps of a block to one table. See `TablePart`. For one thread.

    What comes before the last truncation is not written: only its changes of columns remain. After a truncation nothing depends on rows of
    others. So when others write to the table meanwhile, the files stay right, and only the set of file groups that end is found again.
    """

    def __init__(self, fileio: FileIO, manifests: Manifests, table: str, steps: Sequence[BlockStep]) -> None:
        self.table = table
        self.steps = tuple(steps)
        self.superseded: list[str] = []
        self.fileio = fileio
        self.manifests = manifests
        self._paths: list[str] = []
        self._keys: Keys | None = None
        self._base: Snapshot | None = None
        # Of one run of the steps, see `_start`.
        self._read: Snapshot
        self._txn: Txn
        self._state: TableState
        self._turn = -1
        self._written: list[WriteResult] = []
        self._computed: set[FileGroupId] = set()
        self._reads: set[FileGroupId] = set()
        self._partitions: set[str] = set()
        self._where: Filter | None = None
        self._filters: list[Filter | None] = []
        self._unfiltered: set[FileGroupId] = set()
        self._ends_all = False
        self._ended: tuple[FileGroupId, ...] = ()
        self._schema: SchemaChange | None = None

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of the engines that write."""
        return tuple(dict.fromkeys(step.engine for step in self.steps if step.engine is not None))

    @property
    def is_whole(self) -> bool:
        """Steps depend on each other, and on rows of several file groups."""
        return True

    def begin(self) -> None:
        """Forget what was written under an earlier transaction id."""
        self._paths, self.superseded, self._keys, self._base = [], [], None, None

    # ---- for steps

    @property
    def snapshot(self) -> Snapshot:
        """The table as the steps before left it."""
        return Snapshot(self._read.log, self._state)

    @property
    def txn(self) -> Txn:
        """The id of the transaction."""
        return self._txn

    def write_batch(self, change: WriteBatch, *, computed: bool) -> WriteResult:
        """Write a batch upon the table. computed: whether its rows depend on rows of the table. Raises as `TableWriter.write`."""
        if not self._state.spec.has_key and change.operation is Operation.INSERT and change.layout is None:
            # A log row of a file group that this entry rewrites would be taken for a retained delete.
            change = replace(change, layout=WriteLayout())
        # What a forgotten delete would have rejected is known to be there, or ended.
        change = replace(change, computed=change.computed or computed or self._ends_all)
        writer = TableWriter(self.fileio, self.manifests, self.table, [change])
        try:
            written, spec = writer.write_step(self.snapshot, self._txn)
        finally:
            self._paths += writer.paths
        self.add(written, computed=computed, spec=spec)
        return written

    def add(self, written: WriteResult, *, computed: bool, spec: TableSpec | None = None) -> None:
        """Take files that were written under the transaction. computed: see `write_batch`. spec: the table's from now on."""
        self._paths += paths_of(written)
        self._written.append(written)
        if computed:
            self._computed |= group_ids_of([written])
            if self._where is None:
                self._unfiltered |= group_ids_of([written])
        index = TableDelta(logs=written.index) if written.index else None
        changed = None if spec is None or spec == self._state.spec else spec
        self._replay(TableDelta(spec=changed, bases=written.bases, as_of=self._turn, logs=written.logs, index=index))

    def change_spec(self, spec: TableSpec) -> None:
        """Change the spec of the table."""
        self._replay(TableDelta(spec=spec))

    def truncate(self) -> None:
        """End all rows."""
        self._ends_all = True
        self._written, self._computed = [], set()
        self._forget_reads()
        spec = self._state.spec
        of_index = index_spec(spec)
        # Nothing is live, and partitions keep their bucket counts.
        self._state = TableState(spec, self._state.bucket_counts, index=None if of_index is None else TableState(of_index))

    def depend(self, *, group_ids: Iterable[FileGroupId] = (), partitions: Collection[str] = (), where: Filter | None = None) -> None:
        """Declare the rows that a step reads, before it writes: those of file groups, which need not exist, and of partitions
        with all below them.

        where: it reads only rows that pass, and writes only keys that can pass. None: any.
        """
        if self._ends_all:
            return
        self._where = where
        self._reads |= set(group_ids)
        self._partitions |= set(partitions)
        if where is None:
            self._unfiltered |= set(group_ids)
        if where is not None or partitions:
            self._filters.append(where)

    # ---- for the commit

    def write(self, snapshot: Snapshot, txn: Txn) -> None:
        """Run all steps above the snapshot, in place of what was written before. Raises what steps raise."""
        snapshot.spec.check_own_files("run transactions")
        self._start(snapshot, txn)
        truncations = [number for number, step in enumerate(self.steps) if isinstance(step, TruncateStep)]
        first = truncations[-1] if truncations else 0
        for step in self.steps[:first]:
            self.change_spec(step.spec_after(self._state.spec))
        for step in self.steps[first:]:
            step.run(self)
        self._ended = self._live_group_ids(snapshot) if self._ends_all else ()
        if self._state.spec != snapshot.spec:
            self._schema = SchemaChange(columns=changed_ids(snapshot.spec.table_schema, self._state.spec.table_schema))
        self._name_keys(snapshot, txn)
        named = set(paths_of(named_files(self._written)))
        self.superseded = [path for path in dict.fromkeys([*self.superseded, *self._paths]) if path not in named]

    def rewrite(
        self,
        snapshot: Snapshot,
        txn: Txn,
        group_ids: Collection[FileGroupId],  # noqa: ARG002 - see `is_whole`
        met: Sequence[tuple[Entry, Conflict]],
    ) -> bool:
        """Run all steps again above a later snapshot, unless the files are right there too. See `TablePart`. Raises as `write`."""
        if self._is_alike(snapshot):
            if self._ends_all:
                # The files replace all rows, whatever these are.
                self._ended = self._live_group_ids(snapshot)
                self._read = snapshot
                return False
            if not self._may_disturb(met):
                return False
        self.write(snapshot, txn)
        return True

    def footprint(self, snapshot: Snapshot, *, computed: bool = False) -> Footprint:
        """What the steps change, and on which rows they depend. computed: whether all rows may depend on rows that the block read."""
        written = named_files(self._written)
        bases = [base.group_id for base in written.bases]
        appends = {rows.group_id for log in written.logs for rows in log.slices}
        live = frozenset[FileGroupId]()
        if bases and not self._ends_all:
            live = snapshot.live_group_ids(self.manifests, group_ids=bases)
        rmw = appends if computed else appends & self._computed
        return Footprint(
            creates=tuple(group_id for group_id in bases if group_id not in live),
            replaces=tuple(group_id for group_id in bases if group_id in live),
            appends=tuple(sorted(appends.difference(bases))),
            retires=self._ended,
            rmw=tuple(sorted(rmw)),
            reads=() if self._ends_all else tuple(sorted((self._reads | self._unchanged()).difference(bases))),
            overwrites=WHOLE if self._ends_all else (),
            read_partitions=tuple(sorted(self._partitions)),
            keys=self._keys,
            schema=self._schema,
        )

    def delta(self, snapshot: Snapshot) -> TableDelta:
        """The changes of the table. See `TablePart`."""
        written = named_files(self._written)
        spec = self._state.spec
        rewrites = spec.rewrites or not spec.has_key
        return TableDelta(
            # Compared with the spec that the steps began from: others may have changed properties since.
            spec=None if self._schema is None else spec,
            bases=written.bases,
            logs=written.logs,
            retires=self._ended,
            as_of=snapshot.slot if written.bases and rewrites else None,
            index=TableDelta(logs=written.index) if written.index else None,
        )

    def summary(self) -> Summary:
        """Counts of rows written and of files. What the steps did to the rows of the table is not counted."""
        written = named_files(self._written)
        sizes = [base.bytes for base in written.bases] + [log.bytes for log in written.logs]
        return Summary(rows=sum(result.rows for result in self._written), files=len(sizes), bytes=sum(sizes))

    # ---- parts of these

    def _start(self, snapshot: Snapshot, txn: Txn) -> None:
        self._read, self._txn = snapshot, txn
        self._base, self._state = snapshot, snapshot.table
        self._turn = snapshot.slot
        self._written, self._computed = [], set()
        self._forget_reads()
        self._ends_all, self._ended, self._schema = False, (), None

    def _forget_reads(self) -> None:
        self._reads, self._partitions = set(), set()
        self._where, self._filters, self._unfiltered = None, [], set()

    def _replay(self, delta: TableDelta) -> None:
        """Take the changes of a step as those of the next slot. Nobody else has a slot in between."""
        env = self.fileio.env
        entry = Entry(
            format=FORMAT_VERSION,
            slot=self._turn + 1,
            action=Action.DELTA_COMMIT,
            txn=self._txn,
            base=self._turn,
            committed_at_ms=max(self._read.committed_at_ms + 1, env.now_ms()),
        )
        self._state = state_after(self._state, delta, entry)
        self._turn += 1

    def _live_group_ids(self, snapshot: Snapshot) -> tuple[FileGroupId, ...]:
        return tuple(sorted(snapshot.live_group_ids(self.manifests)))

    def _is_alike(self, snapshot: Snapshot) -> bool:
        """Whether the steps would find the same columns and settings in a later snapshot, and the same bucket counts where they wrote."""
        before = self._base
        if before is None or before.spec != snapshot.spec:
            return False
        partitions = {group_id.partition for group_id in group_ids_of(self._written)}
        return all(before.table.bucket_count(name) == snapshot.table.bucket_count(name) for name in partitions)

    def _may_disturb(self, met: Sequence[tuple[Entry, Conflict]]) -> bool:
        """Whether other commits may have changed rows on which the steps depend. met: their conflicts with what the footprint says."""
        spec = self._state.spec
        if self._schema is not None or spec.former or spec.lateness_ms is not None:
            return True
        if not all(conflict.is_of_rows_read for _, conflict in met):
            return True
        count_of = self._state.bucket_count
        written = GroupFilter.of(group_ids_of(self._written), count_of)
        unfiltered = GroupFilter.of({*self._unfiltered, *self._unchanged()}, count_of)
        for entry in {entry.slot: entry for entry, _ in met}.values():
            theirs = entry.footprint[self.table]
            if theirs.overwrites or theirs.splits or theirs.schema is not None or self.table not in entry.changes:
                return True
            touched = (*theirs.creates, *theirs.appends, *theirs.replaces, *theirs.retires)
            if any(map(unfiltered.has, touched)):
                return True
            delta = decode_delta(entry.changes[self.table])
            if any(where is None or RowsRead(where, spec).may_change(delta, theirs, written) for where in self._filters):
                return True
        return False

    def _unchanged(self) -> set[FileGroupId]:
        """File groups of which a step found that nothing in them changes."""
        return {one.group_id for result in self._written for one in result.rewritten if not one.changed}

    def _name_keys(self, snapshot: Snapshot, txn: Txn) -> None:
        """Record the digests of inserted, moved and deleted keys, and of the others."""
        former = () if self._keys is None else (self._keys.placed, self._keys.updated)
        self.superseded += [digests.side.path for digests in former if digests.side is not None]
        self._keys = keys_of(self.fileio, txn, self._written) if snapshot.spec.is_located and self._written else None
