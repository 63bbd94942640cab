"""What one transaction writes to one table: the files of its batches, in order, and what an entry says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.errors import InvalidBatch
from objcat.storage.files import read_base, read_log
from objcat.storage.merge import OP_COLUMN, OP_DELETE
from objcat.table import FileGroup, LogObject, Manifests, Snapshot, TableDelta, TableSpec
from objcat.table.files import LogSlice
from objcat.tasks import Operation, WriteResult, WriteTask
from objcat.timeline import Footprint, Home, Summary, Txn

D_contra = TypeVar("D_contra", contravariant=True)


class Engine(Protocol[D_contra]):
    """What runs the tasks of a write over one kind of batch."""

    @property
    def name(self) -> str:
        """Its name, and its version where it has one of its own."""

    def partitions(self, data: D_contra, spec: TableSpec, former: Collection[str]) -> Collection[str] | None:
        """The partitions in which rows of the batch live, None when it would cost too much to know. former: as of `WriteTask`."""

    def write(self, data: D_contra, task: WriteTask) -> WriteResult:
        """Run the task over the whole batch, perhaps in pieces; the files in the order in which their rows count."""


@dataclass(frozen=True, slots=True)
class Change:
    """One batch. engine: one that takes batches of this kind."""

    engine: Engine[Any]
    data: Any
    operation: Operation


class Part:
    """The batches that one transaction writes to one table; later ones count after earlier ones. For one thread.

    written: the files of each batch. superseded: files that were written and that the commit does not name.
    """

    def __init__(self, fileio: FileIO, manifests: Manifests, table: str, changes: Sequence[Change]) -> None:
        self.table = table
        self.changes = tuple(changes)
        self.written: list[WriteResult] = []
        self.superseded: list[str] = []
        self._fileio = fileio
        self._manifests = manifests

    @property
    def all(self) -> WriteResult:
        """The files that the commit names, of all batches.

        Of one home only the last base file is among them, and no log rows of the batches before it: it has taken them over.
        """
        whole = WriteResult()
        for written in self.written:
            kept = _without(whole, {base.home for base in written.bases})
            whole = msgspec.structs.replace(whole, bases=kept.bases, logs=kept.logs) + written
        return whole

    def write(self, snapshot: Snapshot, txn: Txn) -> None:
        """Write the files of every batch, instead of those that were written before. Raises InvalidBatch, NullKey and storage errors."""
        before, self.written = self.written, []
        for number, change in enumerate(self.changes):
            self.written.append(self._write(number, snapshot, txn, only=None))
            if self.written[-1].rows == 0:
                raise InvalidBatch(f"the batch to {change.operation} is empty: give it rows, or skip the call; nothing was written")
        check_barriers(self._fileio, snapshot.spec, self.changes, self.written)
        self._supersede(before)

    def redo(self, snapshot: Snapshot, txn: Txn, homes: Collection[Home]) -> None:
        """Write the rows of these homes again, as of the snapshot; what was written for the others stays."""
        before, self.written = self.written, []
        for number, earlier in enumerate(before):
            again = self._write(number, snapshot, txn, only=homes)
            if _rows_by_home(again) != {home: rows for home, rows in _rows_by_home(earlier).items() if home in homes}:
                raise InvalidBatch(
                    "the batch gave other rows when it was computed again to redo some buckets that another commit had touched: cache or "
                    "checkpoint the frame before you write it; nothing was written"
                )
            self.written.append(msgspec.structs.replace(_without(earlier, homes) + again, rows=earlier.rows))
        self._supersede(before)

    def footprint(self, snapshot: Snapshot, *, computed: bool = False) -> Footprint:
        """What the part touches. computed: its rows may have been computed from rows that the transaction read."""
        written = self.all
        appends = {rows.home for log in written.logs for rows in log.homes}
        bases = [base.home for base in written.bases]
        rmw = tuple(sorted(appends)) if computed else ()
        if not snapshot.spec.rewrites:
            return Footprint(creates=tuple(bases), appends=tuple(sorted(appends)), rmw=rmw)
        live = {group.home for group in snapshot.file_groups(self._manifests, homes=frozenset(bases))}
        unchanged = {home.home for home in written.rewritten if not home.changed}
        return Footprint(
            creates=tuple(home for home in bases if home not in live),
            replaces=tuple(home for home in bases if home in live),
            appends=tuple(sorted(appends.difference(bases))),
            reads=tuple(sorted(unchanged.difference(bases))),
            rmw=rmw,
        )

    def delta(self, snapshot: Snapshot) -> TableDelta:
        """What an entry that follows the snapshot says of the table."""
        written = self.all
        return TableDelta(bases=written.bases, logs=written.logs, as_of=snapshot.slot if snapshot.spec.rewrites else None)

    def summary(self) -> Summary:
        """What was written, and what became of rows of the table: exact where they were read, else not known.

        Rows of an insert are declared to be new.
        """
        written = self.all
        sizes = [base.bytes for base in written.bases] + [log.bytes for log in written.logs]
        homes = written.rewritten
        blind = written.rows if all(change.operation is Operation.INSERT for change in self.changes) else None
        return Summary(
            rows=written.rows,
            inserted=sum(home.inserted for home in homes) if homes else blind,
            updated=sum(home.updated for home in homes) if homes else None,
            deleted=sum(home.deleted for home in homes) if homes else None,
            files=len(sizes),
            bytes=sum(sizes),
        )

    def _task(self, change: Change, snapshot: Snapshot, txn: Txn, *, only: Collection[Home] | None) -> WriteTask:
        spec = snapshot.spec
        former: frozenset[str] = frozenset()
        if spec.former:
            former = frozenset(filter(spec.is_former, snapshot.live_partitions(self._manifests)))
        live: dict[Home, FileGroup] = {}
        if spec.rewrites or change.operation is Operation.INSERT:
            partitions = {home.partition for home in only} if only is not None else change.engine.partitions(change.data, spec, former)
            live = {group.home: group for group in snapshot.file_groups(self._manifests, partitions=partitions)}
            for earlier in self.written:
                _lay_over(live, earlier, slot=snapshot.slot + 1, txn=txn)
        return WriteTask(
            spec,
            txn,
            change.operation,
            bucket_counts=snapshot.table.bucket_counts,
            live_homes=frozenset(live),
            groups={home: group for home, group in live.items() if only is None or home in only} if spec.rewrites else {},
            former_partitions=former,
            only=None if only is None else frozenset(only),
        )

    def _write(self, number: int, snapshot: Snapshot, txn: Txn, *, only: Collection[Home] | None) -> WriteResult:
        """Run the engine over a batch, or over its rows of some homes, above what the batches before it wrote."""
        change = self.changes[number]
        written = change.engine.write(change.data, self._task(change, snapshot, txn, only=only))
        homes = [base.home for base in written.bases]
        rewritten = [home.home for home in written.rewritten]
        if len(set(homes)) < len(homes) or len(set(rewritten)) < len(rewritten):
            raise InvalidBatch(
                "rows of one bucket were written by two tasks, which saw a key or partition column of another type than the table's: "
                "cast the key columns, and those of partitions, to the types of the table; nothing was written"
            )
        return written

    def _supersede(self, before: Sequence[WriteResult]) -> None:
        named = set(_paths(self.all))
        known = set(self.superseded)
        listed = [path for written in (*before, *self.written) for path in _paths(written)]
        self.superseded += [path for path in dict.fromkeys(listed) if path not in named and path not in known]


def check_barriers(fileio: FileIO, spec: TableSpec, changes: Sequence[Change], written: Sequence[WriteResult]) -> None:
    """Refuse a delete without an ordering value and another write of the same key in one commit, where an ordering column decides.

    Such a delete ends all that was written before, whatever its ordering; within one commit there is no before. Reads the keys of buckets
    that both touch, and nothing else. Raises InvalidBatch that names a key.
    """
    if spec.ordering_column is None or spec.rewrites or len(changes) < 2:
        return
    pairs = list(zip(changes, written, strict=True))
    deletes = [result for change, result in pairs if change.operation is Operation.DELETE]
    others = [result for change, result in pairs if change.operation is not Operation.DELETE]
    common = _homes(deletes) & _homes(others)
    if not common:
        return
    key = [column.physical for column in spec.key_columns]
    ordering = spec.ordering_column.physical
    deleted = [rows for result in deletes for log in result.logs for rows in _rows_of(fileio, log, common, [*key, ordering])]
    barriers = [rows.filter(pc.and_(pc.equal(rows.column(OP_COLUMN), OP_DELETE), pc.is_null(rows.column(ordering)))) for rows in deleted]
    kept = [rows for result in others for log in result.logs for rows in _rows_of(fileio, log, common, key)]
    kept += [read_base(fileio, base, key) for result in others for base in result.bases if base.home in common]
    both = _keys(barriers, key).join(_keys(kept, key), keys=key, join_type="inner")
    if both.num_rows:
        shown = ", ".join(f"{column.name}={both.column(column.physical)[0].as_py()!r}" for column in spec.key_columns)
        raise InvalidBatch(
            f"the transaction both writes the row ({shown}) and deletes it without a value of {spec.ordering_column.name!r}, so that "
            "nothing says which is later: delete with a value, or in a transaction of its own; nothing was written"
        )


def _rows_of(fileio: FileIO, log: LogObject, homes: Collection[Home], columns: Sequence[str]) -> list[pa.Table]:
    ranges = [(rows.start, rows.end) for rows in log.homes if rows.home in homes]
    return read_log(fileio, log, ranges, columns) if ranges else []


def _keys(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    bare = [table.select(list(key)).replace_schema_metadata(None) for table in tables]
    return pa.concat_tables([pa.table(dict(zip(key, table.columns, strict=True))) for table in bare]) if bare else pa.table({})


def _homes(results: Sequence[WriteResult]) -> set[Home]:
    return {home for result in results for home in _rows_by_home(result)}


def _lay_over(live: dict[Home, FileGroup], written: WriteResult, *, slot: int, txn: Txn) -> None:
    """The file groups with what a batch before this one wrote, as if it were committed at `slot`."""
    for base in written.bases:
        live[base.home] = FileGroup(base.home, base, slot, txn, slot - 1)
    for log in written.logs:
        for rows in log.homes:
            group = live.get(rows.home, FileGroup(rows.home))
            live[rows.home] = replace(group, logs=(*group.logs, LogSlice(slot, log, rows.start, rows.end, rows.home, slot)))


def _rows_by_home(written: WriteResult) -> Mapping[Home, int]:
    """Rows of the batch by home, after folding repeated keys."""
    if written.rewritten:
        return {home.home: home.rows for home in written.rewritten}
    rows = Counter({base.home: base.rows for base in written.bases})
    for log in written.logs:
        rows.update({part.home: part.end - part.start for part in log.homes})
    return rows


def _without(written: WriteResult, homes: Collection[Home]) -> WriteResult:
    """What was written for other homes. Objects that hold rows of several homes are kept, and named for what is left."""
    logs = [msgspec.structs.replace(log, homes=tuple(rows for rows in log.homes if rows.home not in homes)) for log in written.logs]
    return WriteResult(
        bases=tuple(base for base in written.bases if base.home not in homes),
        logs=tuple(log for log in logs if log.homes),
        rewritten=tuple(home for home in written.rewritten if home.home not in homes),
    )


def _paths(written: WriteResult) -> list[str]:
    return [*(base.path for base in written.bases), *(log.path for log in written.logs)]
