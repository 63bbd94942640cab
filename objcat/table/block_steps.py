"""The calls of a block that are computed from rows: deletes by a filter, replaced ranges, partial upserts.

Each is a step of `objcat.write.block_writer.BlockWriter`. It reads the table as the earlier calls of the block left it, and says on which
rows of others it depends (`reach_of`). If another commit changes these, it runs again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.common.validation import shown
from objcat.datafile.batch_checks import keyed, located_by
from objcat.datafile.casting import cast_rows, repeated
from objcat.dml.computed_write import former_of
from objcat.dml.duckdb import MergeSource, check_program, evaluate
from objcat.dml.program import Clause, ClauseAction, When, delete_program, merge_program
from objcat.dml.source_parts import SourcePart, cut_source, gathered
from objcat.engine.local import NAME as LOCAL
from objcat.engine.local import to_arrow_batch
from objcat.engine.spooled_batch import SPOOL_SHARE, Rows, RowSpool, SpooledBatch, spooled
from objcat.errors import InvalidBatch, InvalidInput
from objcat.metadata.column_defaults import write_value
from objcat.metadata.schema import arrow_type
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.planning.scan import ScanPlan, fixed_partitions, key_hashes, parse_filter, plan_scan
from objcat.predicate.arrow import BeyondScans
from objcat.predicate.dialect import spark_sql
from objcat.predicate.parse import Predicate
from objcat.table.batch_input import prepare_batch
from objcat.table.keyless_rewrite import rewrite_by_program
from objcat.table.merge import ALIASES, check_computable, check_partial, divided, near_plan, refuse_unknown
from objcat.table.partial_rows import merge_by_key
from objcat.table.scan import Scan
from objcat.tasks.model import Filter, Operation
from objcat.tasks.regroup_rows import DeleteTask, rewrite_without
from objcat.timeline.entry import FileGroupId
from objcat.write.block_writer import WHOLE, BlockStep, BlockWriter, RowsStep
from objcat.write.table_writer import WriteBatch


def reach_of(where: Filter | None, snapshot: Snapshot) -> tuple[frozenset[FileGroupId], tuple[str, ...]]:
    """What a filter can reach: file groups, which need not exist, or else whole partitions.

    Values that the filter fixes for key columns name file groups by their hash. Values that it fixes for partition columns name partitions.
    Under any other filter, rows of every partition may pass, also of those that others are about to create.
    """
    spec = snapshot.spec
    if where is None or spec.former:
        return frozenset(), WHOLE
    partitions = _partitions_of(where, spec)
    hashes = key_hashes(where, spec)
    if hashes is None or partitions is None or not partitions.is_exact:
        return frozenset(), WHOLE if partitions is None or not spec.partition_columns else partitions.names
    counts = {name: snapshot.table.bucket_count(name) for name in partitions.names}
    return frozenset(FileGroupId(name, one % count, count) for name, count in counts.items() for one in hashes), ()


class _ReachedPartitions(NamedTuple):
    """names: of partitions. is_exact: whether rows can pass in these alone, and not in partitions below them."""

    names: tuple[str, ...]
    is_exact: bool


def _partitions_of(where: Filter, spec: TableSpec) -> _ReachedPartitions | None:
    """The partitions that a filter can reach. None: any."""
    if not spec.partition_columns:
        return _ReachedPartitions((spec.partitioning.text(()),), is_exact=True)
    spans = fixed_partitions(where, spec)
    if spans is None:
        return None
    if spans.lows == spans.highs:
        return _ReachedPartitions(spans.lows, is_exact=True)
    # A filter over the first partition columns leaves whole branches, `day=1/` and all that begins so.
    if all(low.endswith("/") and high.startswith(low) for low, high in zip(spans.lows, spans.highs, strict=True)):
        return _ReachedPartitions(tuple(low.removesuffix("/") for low in spans.lows), is_exact=False)
    return None


@dataclass(frozen=True, slots=True)
class DeleteStep:
    """Delete the rows for which a filter is true.

    Args:
        where: SQL text or an Arrow expression.
        name: of the table, in messages.
        outright: whether no delete stays to reject older rows, and the ordering of rows does not matter.
        instead: a batch that is written next. Without an ordering column, its keys need no delete.
    """

    where: str | pc.Expression
    name: str
    outright: bool = False
    instead: pa.Table | None = None
    engine: str | None = LOCAL

    def spec_after(self, spec: TableSpec) -> TableSpec:
        """The same."""
        return spec

    def check(self, spec: TableSpec) -> None:
        """Refuse a filter that does not fit. Raises InvalidPredicate, and InvalidInput in a table with allowed_lateness."""
        _, rest = self._parts(spec)
        if rest is not None:
            check_computable(spec, f"delete_where() by {shown(spark_sql(rest))}, which is computed for each row,")
            check_program(delete_program(spec, rest), spec, None)

    def run(self, table: BlockWriter) -> None:
        """Read the rows and delete them."""
        snapshot = table.snapshot
        spec = snapshot.spec
        pushed, rest = self._parts(spec)
        where = parse_filter(pushed, spec.table_schema)
        group_ids, partitions = reach_of(where, snapshot)
        table.depend(group_ids=group_ids, partitions=partitions, where=where)
        if not spec.has_key:
            self._rewrite(table, pushed, rest)
            return
        keys = self._keys(table, pushed, rest)
        for batch in self._batches(keys, spec):
            change = prepare_batch(table.fileio, batch, spec, Operation.DELETE, table=self.name)
            table.write_batch(change, computed=True)

    def _parts(self, spec: TableSpec) -> tuple[Any, Any]:
        """The part of the filter that a scan applies, and the rest."""
        try:
            parse_filter(self.where, spec.table_schema)
        except BeyondScans:
            return divided(self.where, spec, BeyondScans)
        return self.where, None

    def _keys(self, table: BlockWriter, pushed: Any, rest: Any) -> Rows:
        """The rows to delete, with the columns that identify and order them."""
        snapshot = table.snapshot
        names = _identifying(snapshot.spec)
        if rest is None:
            plan = plan_scan(snapshot, table.manifests, where=pushed, columns=names)
            return self._without(_spooled(table, plan), snapshot.spec)
        program = delete_program(snapshot.spec, rest)
        plan = plan_scan(snapshot, table.manifests, where=pushed, columns=program.target_columns(snapshot.spec))
        former = former_of(snapshot, table.manifests)
        read = (pa.Table.from_batches([batch]) for batch in _batches(table, plan))
        parts = (evaluate(program, snapshot, rows.to_batches(), former, None) for rows in gathered(read, _part_bytes(table)))
        found = _held(table, (part.rows.select(names) for part in parts if part is not None))
        return snapshot.spec.table_schema.to_arrow().empty_table().select(names) if found is None else found

    def _without(self, found: Rows, spec: TableSpec) -> Rows:
        """The rows without those whose key is in the batch that is written next."""
        if self.instead is None or spec.ordering is not None or not isinstance(found, pa.Table) or not found.num_rows:
            return found
        own, theirs = keyed(found, spec), keyed(self.instead, spec)
        # Arrow takes a name that begins with a dot for a path.
        names = [str(n) for n in range(own.num_columns)]
        numbered = own.rename_columns(names).append_column(_NUMBER, pa.array(np.arange(own.num_rows)))
        left = numbered.join(theirs.rename_columns(names), keys=names, join_type="left anti")
        return found.take(left.column(_NUMBER).combine_chunks().sort())

    def _batches(self, keys: Rows, spec: TableSpec) -> Iterator[Rows]:
        """The batches of deletes to write.

        With a lateness horizon a row may be older than it by now, and a delete with its ordering value would be too late to count. So each
        key gets two: one without a value, which always counts, and one with the value.
        """
        if not keys.num_rows:
            return
        ordering = spec.ordering
        if ordering is None:
            yield keys
            return
        if self.outright or (spec.lateness_ms is not None and not spec.rewrites and not _is_placed_by_ordering(spec)):
            yield without_ordering(keys, spec)
        if not self.outright:
            yield keys

    def _rewrite(self, table: BlockWriter, pushed: Any, rest: Any) -> None:
        """Of a table without a key: rewrite the file groups that hold such rows."""
        snapshot = table.snapshot
        plan = plan_scan(snapshot, table.manifests, where=pushed, columns=None)
        if rest is not None:
            written = rewrite_by_program(table.fileio, delete_program(snapshot.spec, rest), plan, table.txn, "UTC")
        else:
            assert plan.where is not None, "a delete has a filter"
            written = rewrite_without(table.fileio, DeleteTask(snapshot.spec, table.txn, plan.groups, plan.where))
        if written.bases:
            table.add(written, computed=True)


_NUMBER = "_objcat_number"
PART_SHARE = 16
"""The part of the memory for rows that are computed at once. A join holds them a few times."""


def without_ordering(data: Any, spec: TableSpec) -> Any:
    """The columns of a batch that identify rows. Deletes of them count whatever the ordering values are."""
    ordering = {column.name for column in spec.ordering_columns} - {column.name for column in located_by(spec)}
    names = [name for name in _identifying(spec) if name not in ordering]
    if isinstance(data, pa.Table):
        return data.select([name for name in names if name in data.column_names])
    if isinstance(data, SpooledBatch):
        chosen = [name for name in names if name in data.column_names]
        schema = pa.schema([data.schema.field(name) for name in chosen])
        return spooled(pa.RecordBatchReader.from_batches(schema, (batch.select(chosen) for batch in data.to_batches())))
    from objcat.spark.native.column_names import quoted

    return data.select(*map(quoted, names))


def _is_placed_by_ordering(spec: TableSpec) -> bool:
    """Whether deletes need the ordering value to find the partition of a row, so that none is without one."""
    located = {column.id for column in located_by(spec)}
    return spec.ordering is not None and located.issuperset(spec.ordering_ids)


def _batches(table: BlockWriter, plan: ScanPlan) -> pa.RecordBatchReader:
    return Scan(table.fileio, plan, table.manifests).to_batches()


def _identifying(spec: TableSpec) -> list[str]:
    """The columns that identify rows, and their order."""
    return list(dict.fromkeys(column.name for column in (*spec.key_columns, *spec.partition_columns, *spec.ordering_columns)))


def check_range(spec: TableSpec, where: str | pc.Expression, *, name: str) -> Filter:
    """The filter of a replaced range. Raises InvalidPredicate, and InvalidInput for a table in which rows may count for nothing."""
    if spec.lateness_ms is not None:
        raise InvalidInput(
            f"replace_range() does not work on the table {name!r}, because rows older than its allowed_lateness count for nothing. Nothing "
            "was written. Delete the range with delete_where(), and upsert rows with newer ordering values."
        )
    if spec.ordering is not None and _is_placed_by_ordering(spec):
        raise InvalidInput(
            f"replace_range() does not work on the table {name!r}, because its ordering column decides the partition of a row, so rows "
            "cannot be deleted whatever their ordering values. Nothing was written. Use delete_where() and upsert(), or insert_overwrite()."
        )
    try:
        found = parse_filter(where, spec.table_schema)
    except BeyondScans as error:
        raise InvalidInput(
            f"The range {shown(str(where))} has terms that are computed for each row ({error}). Nothing was written. Name the range by "
            "comparisons of columns, or delete rows with delete_where() and upsert others."
        ) from error
    if found is None:
        raise InvalidInput("replace_range() needs a filter, for example where='id BETWEEN 1 AND 9'. To replace all rows, truncate() first.")
    return found


def check_inside(change: WriteBatch, where: Filter, spec: TableSpec) -> None:
    """Refuse a batch with rows for which a filter is not true: the same call would not replace them. Raises InvalidBatch."""
    if not hasattr(change.data, "to_batches"):
        if not isinstance(where, Predicate):
            raise InvalidInput("A Spark DataFrame replaces a range given as SQL text. Give where= as text.")
        engine: Any = change.engine
        if not engine.all_pass(change.data, where):
            raise _outside(where)
        return
    for batch in change.data.to_batches():
        rows = pa.Table.from_batches([batch])
        for name in where.columns:
            if name not in rows.column_names:
                # A column that the batch lacks has its default in its rows.
                column = spec.table_schema.column(name)
                rows = rows.append_column(name, repeated(write_value(column), rows.num_rows, arrow_type(column.type)))
        seen = cast_rows(rows, pa.schema([spec.table_schema.to_arrow().field(name) for name in where.columns]))
        if seen.append_column(_NUMBER, pa.array(np.arange(rows.num_rows))).filter(where.to_arrow()).num_rows < rows.num_rows:
            raise _outside(where)


def _outside(where: Filter) -> InvalidBatch:
    return InvalidBatch(
        f"A row of the batch is not in the range {shown(where.text)}, so the same call would not replace it. Nothing was written. Leave it "
        "out, or upsert it."
    )


@dataclass(frozen=True, slots=True)
class PartialStep:
    """Insert or update rows by key of which a batch has only some columns.

    Args:
        rows: the batch.
        said: its rows as the user wrote them, if they name different columns.
        name: of the table, in messages.
    """

    rows: Rows
    said: Sequence[dict[str, Any]] | None
    name: str
    engine: str | None = LOCAL

    def spec_after(self, spec: TableSpec) -> TableSpec:
        """The same."""
        return spec

    def check(self, spec: TableSpec) -> None:
        """Refuse a batch that does not fit. Raises InvalidBatch, InvalidInput and InvalidPredicate."""
        check_computable(spec, "upsert_partial()")
        if not spec.has_key:
            raise InvalidInput(f"The table {self.name!r} has no key, so rows cannot be matched. Nothing was written. Insert rows.")
        self._check_columns(spec)
        if self.said is None:
            check_program(merge_program(spec, self.rows.schema.names, _PARTIAL, None, ALIASES), spec, self.rows.schema)

    def _check_columns(self, spec: TableSpec) -> None:
        # Rows that name different columns are checked one by one, when they are merged.
        (check_partial if self.said is None else refuse_unknown)(self.rows.schema, spec)

    def run(self, table: BlockWriter) -> None:
        """Read the rows of the keys, and write them with the values of the batch."""
        snapshot = table.snapshot
        spec = snapshot.spec
        self._check_columns(spec)
        former = former_of(snapshot, table.manifests)
        rows, clauses = self.rows, _PARTIAL
        if self.said is not None:
            assert isinstance(rows, pa.Table), "a list of dicts is held"
            merged = merge_by_key(self.said, rows, spec, former)
            rows, clauses = merged.rows, merged.clauses
        program = merge_program(spec, rows.schema.names, clauses, None, ALIASES)
        check_program(program, spec, rows.schema)
        source = MergeSource(rows, program, spec, former)
        plan = plan_scan(snapshot, table.manifests, where=None, columns=program.target_columns(spec))
        near: Collection[FileGroupId] = () if spec.is_located else source.group_ids(snapshot)
        table.depend(group_ids=near)
        if not spec.is_located:
            plan = near_plan(plan, near)
        parts = cut_source(source, bytes_max=_part_bytes(table))
        become = _held(table, (outcome for part in parts if (outcome := _evaluated(table, part, plan)) is not None))
        if spec.is_located and (become is None or become.num_rows < source.rows.num_rows):
            # A row that changes nothing would be inserted if the stored one were gone, which may be in any file group.
            table.depend(partitions=WHOLE)
        if become is None:
            return
        change = prepare_batch(table.fileio, become, spec, Operation.UPSERT, table=self.name)
        table.write_batch(change, computed=True)


def _evaluated(table: BlockWriter, part: SourcePart, plan: ScanPlan) -> pa.Table | None:
    """The rows that a part of a source results in. None if nothing changes."""
    source, snapshot = part.source, table.snapshot
    if part.count > 1 and not source.spec.is_located:
        plan = near_plan(plan, source.group_ids(snapshot))
    outcome = evaluate(source.program, snapshot, part.matching(_batches(table, plan)), source.former, source)
    return None if outcome is None else outcome.rows


def _held(table: BlockWriter, results: Iterator[pa.Table]) -> Rows | None:
    """Rows in several tables of one schema: in memory if they are few, else on local disk. None without any."""
    first = next(results, None)
    if first is None:
        return None
    batches = (batch for rows in chain([first], results) for batch in rows.to_batches())
    return _spool(table).take(first.schema, batches)


def _spooled(table: BlockWriter, plan: ScanPlan) -> Rows:
    reader = _batches(table, plan)
    return _spool(table).take(reader.schema, reader)


def _spool(table: BlockWriter) -> RowSpool:
    """What holds the rows that a step has computed: as many in memory as of those that the block was given."""
    return RowSpool(bytes_max=table.fileio.env.memory_bytes // SPOOL_SHARE)


def _part_bytes(table: BlockWriter) -> int:
    """Arrow bytes that are computed at once."""
    return table.fileio.env.memory_bytes // PART_SHARE


_PARTIAL: tuple[Clause, ...] = (
    Clause(When.MATCHED, ClauseAction.UPDATE),
    Clause(When.NOT_MATCHED, ClauseAction.INSERT),
)


def parse_partial(data: Any, spec: TableSpec, spool: RowSpool, *, ragged: bool, name: str) -> PartialStep:
    """The step of a partial upsert. ragged: whether the rows are dicts with different columns. Raises as `PartialStep.check`."""
    rows = to_arrow_batch(data, spec.table_schema, None if ragged else spool)
    if rows is None:
        raise InvalidInput(
            "upsert_partial() of a transaction takes rows of this process, and not a Spark DataFrame. Nothing was written. Pass "
            "frame.toArrow(), or call Table.upsert_partial(), which is a commit of its own."
        )
    step = PartialStep(rows, data if ragged else None, name)
    step.check(spec)
    return step


def replacing_steps(
    where: str | pc.Expression, change: WriteBatch | None, spec: TableSpec, fileio: FileIO, *, name: str
) -> list[BlockStep]:
    """The steps of a replaced range.

    With an ordering column, hidden deletes of the batch's keys could win against its rows. So these keys are deleted too.

    Args:
        change: the batch. None: an empty one.
        spec: of the table with the columns of the batch.
        name: of the table, in messages.
    """
    if change is None:
        return [DeleteStep(where, name, outright=True)]
    rows = RowsStep(change, follows=True)
    if spec.ordering is None:
        return [DeleteStep(where, name, outright=True, instead=change.data if isinstance(change.data, pa.Table) else None), rows]
    keys = prepare_batch(fileio, without_ordering(change.data, spec), spec, Operation.DELETE, table=name)
    return [DeleteStep(where, name, outright=True), RowsStep(keys, follows=True), rows]
