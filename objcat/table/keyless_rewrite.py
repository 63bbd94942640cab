"""Updates and deletes in tables without a key: file groups that hold such rows are rewritten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.datafile.batch_checks import conform
from objcat.datafile.casting import logical, named
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.parquet import constant
from objcat.dml.duckdb import evaluate_rows
from objcat.dml.program import ClauseAction, MergeProgram
from objcat.metadata.table_spec import TableSpec
from objcat.planning.scan import ScanPlan
from objcat.tasks.mask_rows import mask_rows, places_where
from objcat.tasks.model import TXN_FIELD, Filter, WriteResult
from objcat.tasks.regroup_rows import RewriteResult, in_place_and_own, rewrite_groups
from objcat.tasks.scan import bare
from objcat.timeline.entry import Txn


def rewrite_by_program(fileio: FileIO, program: MergeProgram, plan: ScanPlan, txn: Txn, zone: str) -> WriteResult:
    """For a table without a key: groups that hold such rows, rewritten with the new rows or without them. `zone`: see `evaluate_rows`."""
    spec = plan.snapshot.spec
    physical = [column.physical for column in spec.table_schema.columns]
    schema = spec.table_schema.to_arrow_physical(nullable=True)

    if spec.is_in_place:
        if program.acts != (ClauseAction.DELETE,):
            spec.check_own_files("update rows")

        def passing(rows: pa.Table) -> pa.Array:
            passed = _passing(rows, plan.where)
            changed, _ = evaluate_rows(program, spec, rows.take(passed), zone)
            return passed.take(changed)

        masked, promoted = in_place_and_own(plan.groups)
        found = mask_rows(fileio, spec, masked, passing)
        return found + rewrite_groups(fileio, spec, promoted, txn, partial(_without, spec, passing)) if promoted else found

    def change(rows: pa.Table) -> RewriteResult:
        own = rows.select([*physical, TXN_COLUMN])
        said = named(logical(own, spec.table_schema), spec.table_schema.to_arrow())
        passed = _passing(said, plan.where)
        changed, become = evaluate_rows(program, spec, said.take(passed), zone)
        if not become.num_rows:
            return RewriteResult(own)
        kept = np.ones(own.num_rows, np.bool_)
        kept[np.asarray(passed.take(changed))] = False
        left = own.filter(pa.array(kept))
        if program.acts == (ClauseAction.DELETE,):
            return RewriteResult(left, deleted=become.num_rows)
        fitted = conform(become, spec).cast(schema).append_column(TXN_FIELD, constant(txn, become.num_rows))
        return RewriteResult(pa.concat_tables([bare(left), bare(fitted)]), updated=become.num_rows)

    return rewrite_groups(fileio, spec, plan.groups, txn, change)


def _without(spec: TableSpec, passing: Callable[[pa.Table], pa.Array], rows: pa.Table) -> RewriteResult:
    """Rows of a promoted file without those that pass."""
    own = rows.select([column.physical for column in spec.table_schema.columns])
    kept = np.ones(rows.num_rows, np.bool_)
    kept[np.asarray(passing(named(logical(own, spec.table_schema), spec.table_schema.to_arrow())))] = False
    return RewriteResult(rows.filter(pa.array(kept)), deleted=int((~kept).sum()))


def _passing(rows: pa.Table, where: Filter | None) -> pa.Array:
    return places_where(rows, None if where is None else where.to_arrow())
