"""`Merge`: the clauses of a merge, and its execution. Updates: writes computed from the existing rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from fileio.options import nearest
from fileio.store import FileIO
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import session, shown
from objcat.datafile.batch_checks import given_ordering
from objcat.dml.computed_write import DELETED, ComputedRows, Work, WriteTarget, former_of, run, written
from objcat.dml.duckdb import Evaluated, MergeScope, MergeSource, check_program, evaluate
from objcat.dml.program import Clause, ClauseAction, MergeProgram, Value, When, delete_program, merge_program, parsed, update_program
from objcat.engine.local import LocalEngine, to_arrow_batch
from objcat.engine.spooled_batch import SpooledBatch
from objcat.errors import EmptyBatch, InvalidBatch, InvalidInput, InvalidPredicate, InvalidSql
from objcat.metadata.files import FileGroup
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import SchemaMode
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.planning.scan import ScanPlan, plan_scan
from objcat.predicate.arrow import BeyondScans, terms_of, utc_moment, with_moments
from objcat.predicate.dialect import spark_sql
from objcat.predicate.parse import parse_predicate
from objcat.table.batch_input import schema_of_batch, session_of
from objcat.table.keyless_rewrite import rewrite_by_program
from objcat.table.merge_growth import grown_snapshot
from objcat.table.partial_rows import is_ragged, merge_by_key
from objcat.table.scan import Scan
from objcat.timeline.entry import FileGroupId, Txn
from objcat.timeline.log_state import AppVersion
from objcat.write.service_commit import ServiceResult
from objcat.write.service_result import proposal_of
from objcat.write.transaction import CommitResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALIASES = ("source", "target")


@reports_full_memory
@dataclass(frozen=True, slots=True)
class Merge:
    """A merge under construction: each method returns one with another clause, and `execute` runs it. Immutable.

    A source row and a table row match when their keys are equal. Of the clauses that apply to a row, the first whose condition is true
    counts. Conditions and values are SQL text over `source.` and `target.` columns (or other aliases, see `Table.merge`); a column that
    only one side has needs no alias.

    `check`: refuses a table. `reads_newer`: whether newer rows of the table, which stay, must still be there when it commits.
    `schema_mode`: what the source may change in the schema.
    """

    table: WriteTarget
    source: Any
    on: Any = None
    aliases: tuple[str, str] = ALIASES
    clauses: tuple[Clause, ...] = ()
    check: Callable[[TableSpec], None] = lambda _spec: None
    reads_newer: bool = False
    schema_mode: SchemaMode = SchemaMode.STRICT

    def __repr__(self) -> str:
        return f"Merge into {self.table.name!r}: {', '.join(f'when {clause.when} {clause.act}' for clause in self.clauses) or 'no clause'}"

    def when_matched_update(self, values: Mapping[str, Value] | None = None, *, where: Value = None) -> Merge:
        """Update rows that the source has too.

        Args:
            values: an expression for each column; None: every column of the source that the table has.
            where: a condition over both sides; None: always.
        """
        return self._with(When.MATCHED, ClauseAction.UPDATE, where, values)

    def when_matched_delete(self, *, where: Value = None) -> Merge:
        """Delete rows that the source has too. `where`: a condition over both sides."""
        return self._with(When.MATCHED, ClauseAction.DELETE, where)

    def when_not_matched_insert(self, values: Mapping[str, Value] | None = None, *, where: Value = None) -> Merge:
        """Insert rows that the table lacks.

        Args:
            values: an expression over the source for each column, those of the key unchanged; other columns are null. None: every column of
                the source that the table has.
            where: a condition over the source; None: always.
        """
        return self._with(When.NOT_MATCHED, ClauseAction.INSERT, where, values)

    def when_not_matched_by_source_update(self, values: Mapping[str, Value], *, where: Value = None) -> Merge:
        """Update rows that the source lacks.

        Args:
            values: an expression over the table for each column.
            where: a condition over the table; None: always.
        """
        return self._with(When.NOT_MATCHED_BY_SOURCE, ClauseAction.UPDATE, where, values)

    def when_not_matched_by_source_delete(self, *, where: Value = None) -> Merge:
        """Delete rows that the source lacks. `where`: a condition over the table."""
        return self._with(When.NOT_MATCHED_BY_SOURCE, ClauseAction.DELETE, where)

    def execute(
        self, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None, counts: bool = True
    ) -> CommitResult | None:
        """Run the merge, as one commit.

        With an ordering column, an update that would make a row older does nothing, and of several source rows with one key the newest
        counts; otherwise such rows are refused. When others change the same buckets first, everything is computed again, so no update is
        lost.

        Args:
            metadata, app: see `Table.upsert`.
            counts: False: Spark need not read the table only to count. It does not where the merge updates all columns of rows that match
                and inserts the others, both from the source alone, without a condition, in a table with a bucket index.

        Returns:
            The commit, with the counts of inserted, updated and deleted rows, if they are known; None when no row changes.

        Raises:
            InvalidInput, InvalidPredicate, InvalidBatch, NullKey: nothing was written.
            CommitConflict: others change these buckets faster than they can be read.
            StreamRewound, WriterFenced, CommitUnknown: see `Table.upsert`.
        """
        given, schema = schema_of_batch(self.source)

        def prepare(snapshot: Snapshot) -> Work | None:
            self.check_table(snapshot.spec)
            grown = grown_snapshot(snapshot, schema, self.clauses, self.on, self.aliases, self.schema_mode)
            program = merge_program(grown.spec, schema.names, self.clauses, self.on, self.aliases)
            return self.prepared(given, schema, program, grown, grew=snapshot, counts=counts)

        return run(self.table, prepare, metadata=metadata, app=app, spark=session_of(given))

    def check_table(self, spec: TableSpec) -> None:
        """Raises InvalidInput for a table that takes no merge."""
        check_computable(spec, "merge()")
        if not spec.has_key:
            raise InvalidInput(
                f"The table {self.table.name!r} has no key, so rows cannot be matched. Update or delete by a filter, or insert."
            )
        self.check(spec)

    def prepared(
        self,
        given: Any,
        schema: pa.Schema,
        program: MergeProgram,
        snapshot: Snapshot,
        *,
        refuse: Callable[[ComputedRows], None] | None = None,
        reads_source: bool = False,
        grew: Snapshot | None = None,
        counts: bool = True,
    ) -> Work:
        """The work that runs a program over a source, which can be read again, and the rows of a snapshot. Raises as `execute`.

        Args:
            refuse: checks an outcome before it is written.
            reads_source: where the file groups of the source's keys are known, none of them may change before the commit, not even those to
                which nothing is written.
            grew: the snapshot without the columns that the merge brings.
            counts: see `execute`.
        """
        fileio, manifests = self.table.fileio, self.table.manifests
        plan = _plan(snapshot, manifests, None)
        if not isinstance(given, (pa.Table, SpooledBatch)):
            from objcat.spark.dml import check_on_spark, evaluate_on_spark, replace_on_spark

            spark = given.sparkSession
            store, name = fileio.describe(), self.table.name
            check_on_spark(program, snapshot.spec, given, spark, table=name)
            if not counts and program.replacing is not None and not snapshot.spec.is_located:
                replaced = partial(replace_on_spark, program, snapshot.spec, given, store=store, table=name)
                return _writes(fileio, grew or snapshot, replaced, refuse, schema_mode=self.schema_mode)
            # Rows that no source row matches are read where a clause is about them.
            reaches = program.join in ("inner", "left") and len(plan.groups) > 1

            def target(reach: MergeScope | None) -> Any:
                return Scan(fileio, plan if reach is None else _within(plan, manifests, reach), manifests).to_spark(spark)

            def compute_on_spark() -> ComputedRows | None:
                return evaluate_on_spark(
                    program, snapshot.spec, target, given, spark, store=store, table=name, reaches=reaches, counts=counts
                )

            return _writes(fileio, grew or snapshot, compute_on_spark, refuse, schema_mode=self.schema_mode)
        check_program(program, snapshot.spec, schema)
        source = MergeSource(given, program, snapshot.spec, former_of(snapshot, manifests))

        hashed = program.join in ("inner", "left") and not snapshot.spec.is_located
        needed = program.target_columns(snapshot.spec)

        def compute() -> ComputedRows | None:
            near = replace(near_plan(plan, source.group_ids(snapshot)) if hashed else plan, columns=needed)
            found = evaluate(program, snapshot, Scan(fileio, near, manifests).to_batches(), source.former, source)
            kept = b""
            if self.reads_newer and snapshot.spec.is_located and found is not None and found.rows.num_rows < source.rows.num_rows:
                kept = source.keys_without(found.rows)
            return _outcome(fileio, found, kept=kept)

        def reads(outcome: ComputedRows) -> Collection[FileGroupId]:
            keeps = self.reads_newer and outcome.data.num_rows < source.rows.num_rows
            return source.group_ids(snapshot) if hashed and (reads_source or keeps) else ()

        return _writes(fileio, grew or snapshot, compute, refuse, reads, schema_mode=self.schema_mode)

    def _with(self, when: When, act: ClauseAction, where: Value, values: Mapping[str, Value] | None = None) -> Merge:
        if values is not None and not isinstance(values, Mapping):
            raise InvalidInput(f"{shown(values)} does not say what to set. Give a dict of SQL text by column.")
        return replace(self, clauses=(*self.clauses, Clause(when, act, where, None if values is None else dict(values))))


def update(
    table: WriteTarget,
    values: Mapping[str, Value],
    where: Any,
    *,
    metadata: Mapping[str, str] | None,
    spark: SparkSession | None,
    app: AppVersion | None = None,
    aliases: tuple[str, str] = ALIASES,
    counts: bool = True,
) -> CommitResult | None:
    """See `Table.update`."""
    given: object = values
    if not isinstance(given, Mapping) or not given:
        raise InvalidInput(f"{shown(values)} does not say what to set. Give a dict of SQL text by column, {{'fare': 'fare * 2'}}.")
    spark = None if spark is None else session(spark)

    def prepare(snapshot: Snapshot) -> Work | None:
        check_computable(snapshot.spec, "update()")
        pushed, rest = divided(where, snapshot.spec, InvalidPredicate)
        return _of_rows(table, snapshot, update_program(snapshot.spec, values, rest, aliases), pushed, spark, counts=counts)

    return run(table, prepare, metadata=metadata, app=app, spark=spark)


def delete_computed(
    table: WriteTarget, where: Any, *, metadata: Mapping[str, str] | None, spark: SparkSession | None
) -> CommitResult | None:
    """Delete by a filter with terms that a scan cannot apply. See `Table.delete`."""
    spark = None if spark is None else session(spark)

    def prepare(snapshot: Snapshot) -> Work | None:
        pushed, rest = divided(where, snapshot.spec, BeyondScans)
        if rest is not None:
            check_computable(snapshot.spec, f"delete() by {shown(spark_sql(rest))}, which is computed for each row,")
        return _of_rows(table, snapshot, delete_program(snapshot.spec, rest), pushed, spark)

    return run(table, prepare, metadata=metadata, spark=spark)


def _of_rows(
    table: WriteTarget, snapshot: Snapshot, program: MergeProgram, where: Any, spark: SparkSession | None, *, counts: bool = True
) -> Work | None:
    """What a program makes of rows of the table alone. `where`: the part that the scan applies. counts: see `Table.update`."""
    spec, fileio, manifests = snapshot.spec, table.fileio, table.manifests
    plan = _plan(snapshot, manifests, where)
    target = Scan(fileio, plan, manifests)
    if spark is not None and spec.has_key:
        from objcat.spark.dml import check_on_spark, evaluate_on_spark

        check_on_spark(program, spec, None, spark, table=table.name)
        if not plan.groups:
            return None
        store = fileio.describe()

        def compute_on_spark() -> ComputedRows | None:
            return evaluate_on_spark(
                program, spec, lambda _: target.to_spark(spark), None, spark, store=store, table=table.name, counts=counts
            )

        return _writes(fileio, snapshot, compute_on_spark)
    check_program(program, spec, None)
    if not plan.groups:
        return None
    if not spec.has_key:
        check_groups(spec, program)
        zone = "UTC" if spark is None else str(spark.conf.get("spark.sql.session.timeZone"))
        return lambda txn: _rewritten_groups(fileio, program, plan, txn, zone)
    former = former_of(snapshot, manifests)
    return _writes(fileio, snapshot, lambda: _outcome(fileio, evaluate(program, snapshot, target.to_batches(), former, None)))


def upsert_partial(table: WriteTarget, data: Any, *, metadata: Mapping[str, str] | None, app: AppVersion | None) -> CommitResult | None:
    """See `Table.upsert_partial`."""
    if is_ragged(data):
        return _upsert_ragged(table, data, metadata=metadata, app=app)
    given, schema = schema_of_batch(data, table.spec.table_schema)

    merge = Merge(table, given, check=lambda spec: check_partial(schema, spec), reads_newer=True)
    merge = merge.when_matched_update().when_not_matched_insert()
    return merge.execute(metadata=metadata, app=app)


def refuse_unknown(batch: pa.Schema, spec: TableSpec) -> None:
    """Raises InvalidBatch for a column of a batch that the table does not have."""
    for name in batch.names:
        if name not in spec.table_schema.names:
            raise InvalidBatch(
                f"The batch has the column {name!r}, which the table does not: {nearest(name, spec.table_schema.names)} Nothing "
                "was written."
            )


def check_partial(batch: pa.Schema, spec: TableSpec) -> None:
    """Raises InvalidBatch for columns that make no partial rows: an unknown one, or some ordering columns without the others."""
    refuse_unknown(batch, spec)
    given_ordering(batch.names, spec)


def _upsert_ragged(
    table: WriteTarget, data: list[dict[str, Any]], *, metadata: Mapping[str, str] | None, app: AppVersion | None
) -> CommitResult | None:
    """A partial upsert of rows that name different columns."""

    def prepare(snapshot: Snapshot) -> Work | None:
        merge = Merge(table, data, reads_newer=True)
        merge.check_table(snapshot.spec)
        rows = to_arrow_batch(data, snapshot.spec.table_schema)
        assert isinstance(rows, pa.Table), "a list of dicts is a table"
        refuse_unknown(rows.schema, snapshot.spec)
        given = merge_by_key(data, rows, snapshot.spec, former_of(snapshot, table.manifests))
        program = merge_program(snapshot.spec, given.rows.column_names, given.clauses, None, ALIASES)
        return merge.prepared(given.rows, given.rows.schema, program, snapshot)

    return run(table, prepare, metadata=metadata, app=app)


def soft_delete(
    table: WriteTarget, spec: TableSpec, where: Any, *, flag: str | None, metadata: Mapping[str, str] | None, spark: SparkSession | None
) -> CommitResult | None:
    """See `Table.soft_delete`."""
    if flag is not None:
        return update(table, {flag: True}, where, metadata=metadata, spark=spark)
    kept = {column.id for column in (*spec.key_columns, *spec.partition_columns, *spec.ordering_columns)}
    emptied: dict[str, Value] = {column.name: None for column in spec.table_schema.columns if column.id not in kept}
    if not emptied:
        raise InvalidInput("The table has only columns by which rows are found. Nothing was written. Delete the rows with delete(where).")
    return update(table, emptied, where, metadata=metadata, spark=spark)


def _writes(
    fileio: FileIO,
    snapshot: Snapshot,
    compute: Callable[[], ComputedRows | None],
    refuse: Callable[[ComputedRows], None] | None = None,
    reads: Callable[[ComputedRows], Collection[FileGroupId]] = lambda _: (),
    *,
    schema_mode: SchemaMode = SchemaMode.STRICT,
) -> Work:
    """The work that writes an outcome. `refuse`: see `Merge.prepared`. `reads`: file groups that the outcome depends on.
    `schema_mode`: what the outcome may change in the schema of the snapshot."""

    def work(txn: Txn) -> ServiceResult | None:
        outcome = compute()
        if outcome is None:
            return None
        try:
            if refuse is not None:
                refuse(outcome)
        except BaseException:
            outcome.close()
            raise
        try:
            proposal = written(fileio, outcome, snapshot, txn, schema_mode=schema_mode)
        except EmptyBatch:
            if outcome.inserted is not None:
                raise
            return None
        own = proposal.footprint
        more = set(reads(outcome)).difference(own.creates, own.appends, own.replaces)
        return replace(proposal, footprint=msgspec.structs.replace(own, reads=tuple(sorted({*own.reads, *more})))) if more else proposal

    return work


def _plan(snapshot: Snapshot, manifests: Manifests, where: Any) -> ScanPlan:
    return plan_scan(snapshot, manifests, where=where, columns=None)


def near_plan(plan: ScanPlan, group_ids: Collection[FileGroupId]) -> ScanPlan:
    """The plan without groups that cannot hold a row of these file groups."""
    by_partition: dict[str, list[FileGroupId]] = {}
    for group_id in group_ids:
        by_partition.setdefault(group_id.partition, []).append(group_id)

    def kept(groups: Iterable[FileGroup]) -> tuple[FileGroup, ...]:
        return tuple(
            group
            for group in groups
            if any(group.group_id.is_common(group_id) for group_id in by_partition.get(group.group_id.partition, ()))
        )

    return replace(plan, plain=kept(plan.plain), merged=kept(plan.merged))


def _within(plan: ScanPlan, manifests: Manifests, reach: MergeScope) -> ScanPlan:
    """The plan of all columns, without groups and rows that a source cannot match."""
    if reach.nothing:
        return replace(plan, plain=(), merged=())
    near = plan_scan(plan.snapshot, manifests, where=reach.where(), columns=None)

    def kept(groups: Iterable[FileGroup]) -> tuple[FileGroup, ...]:
        return tuple(group for group in groups if reach.holds(group.group_id, plan.snapshot.spec))

    return replace(near, plain=kept(near.plain), merged=kept(near.merged))


def divided(where: Any, spec: TableSpec, computed: type[InvalidPredicate]) -> tuple[Any, Any]:
    """The part of a condition that a scan can apply, which skips files, and the rest: terms for which a scan raises `computed`."""
    if where is None or isinstance(where, pc.Expression):
        return where, None
    pushed, rest = [], []
    for term in terms_of(parsed(where)[0]):
        try:
            said = spark_sql(term)
            parse_predicate(said, spec.table_schema)
        except (computed, InvalidSql):
            # Engines read times without a zone in the zone of their session.
            rest.append(with_moments(term.copy(), spec.table_schema.to_arrow(), utc_moment))
        else:
            pushed.append(f"({said})")
    return " AND ".join(pushed) or None, sql.and_(*rest) if rest else None


def check_computable(spec: TableSpec, what: str) -> None:
    """Refuse what is computed from rows in a table with allowed_lateness. `what`: the call, for the error. Raises InvalidInput."""
    if spec.lateness_ms is not None:
        raise InvalidInput(
            f"{what} does not work on a table with allowed_lateness, where rows older than it count for nothing, changed ones "
            "too. Nothing was written. Upsert rows with a newer ordering value."
        )


def check_groups(spec: TableSpec, program: MergeProgram) -> None:
    """Refuse to move rows of a table without a key."""
    group_ids = {column.name for column in spec.partition_columns}
    for one in program.assigned:
        if one.column in group_ids:
            raise InvalidInput(
                f"{one.column!r} determines the partition of a row in a table without a key. Nothing was written. Delete the rows "
                "and insert others."
            )


def _outcome(fileio: FileIO, found: Evaluated | None, *, kept: bytes = b"") -> ComputedRows | None:
    if found is None:
        return None
    rows = found.rows.append_column(DELETED, found.deletes) if found.deleted else found.rows
    engine = LocalEngine(fileio)
    return ComputedRows(engine=engine, data=rows, inserted=found.inserted, updated=found.updated, deleted=found.deleted, kept=kept)


def _rewritten_groups(fileio: FileIO, program: MergeProgram, plan: ScanPlan, txn: Txn, zone: str) -> ServiceResult | None:
    rewritten = rewrite_by_program(fileio, program, plan, txn, zone)
    return proposal_of(rewritten, plan.snapshot) if rewritten.bases else None
