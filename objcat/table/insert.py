"""`insert`: rows that are declared new, or rows whose existing keys are looked up first and then refused or skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from objcat.common.validation import OnExisting, SchemaModeName, one_of, shown
from objcat.dml.computed_write import DELETED, ComputedRows, Work, WriteTarget, run
from objcat.dml.program import merge_program
from objcat.engine.spooled_batch import SpooledBatch
from objcat.errors import EmptyBatch, InvalidInput, KeyExists
from objcat.metadata.properties import SchemaMode
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.table.batch_input import schema_of_batch, session_of
from objcat.table.context import TableContext
from objcat.table.merge import ALIASES, Merge, refuse_unknown
from objcat.table.write_batch import write_batch
from objcat.tasks.model import Operation
from objcat.timeline.log_state import AppVersion
from objcat.write.transaction import CommitResult

_KEYS_SHOWN = 3


def insert(
    context: TableContext,
    data: Any,
    *,
    on_existing: OnExisting,
    metadata: Mapping[str, str] | None,
    app: AppVersion | None,
    schema_mode: SchemaModeName | None,
) -> CommitResult | None:
    """See `Table.insert`."""
    if one_of(on_existing, get_args(OnExisting), what="on_existing") == "replace":
        return write_batch(context, data, Operation.INSERT, metadata, app, schema_mode)
    if schema_mode not in (None, SchemaMode.STRICT):
        raise InvalidInput(
            f"insert() with on_existing={on_existing!r} changes no schema. Nothing was written. Add the columns with "
            "table.alter, or upsert the batch."
        )
    return insert_new(context, data, fails=on_existing == "fail", metadata=metadata, app=app)


def insert_new(
    table: WriteTarget, data: Any, *, fails: bool, metadata: Mapping[str, str] | None, app: AppVersion | None
) -> CommitResult | None:
    """Insert the rows whose keys the table lacks, as one commit; None when there are none. `fails`: refuse a batch with existing keys.

    It is a merge, so it is computed again when others write to the same file groups first. Raises KeyExists, and as `Merge.execute`.
    """
    given, schema = schema_of_batch(data, table.spec.table_schema)

    def prepare(snapshot: Snapshot) -> Work | None:
        spec = snapshot.spec
        _check_table(table, spec)
        refuse_unknown(schema, spec)
        merge = Merge(table, given).when_not_matched_insert()
        if fails:
            merge = merge.when_matched_delete()
        program = merge_program(spec, schema.names, merge.clauses, None, ALIASES)
        refuse = (lambda outcome: _refuse(outcome, spec, table.name)) if fails else None
        return merge.prepared(given, schema, program, snapshot, refuse=refuse, reads_source=True)

    if isinstance(given, pa.Table) and not given.num_rows:
        raise EmptyBatch("The batch to insert is empty. Nothing was written. Give it rows, or skip the call.")
    return run(table, prepare, metadata=metadata, app=app, spark=session_of(given))


def _check_table(table: WriteTarget, spec: TableSpec) -> None:
    if not spec.has_key:
        raise InvalidInput(f"The table {table.name!r} has no key, so no key can exist. Leave on_existing= out.")
    if spec.lateness_ms is not None:
        raise InvalidInput(
            f"The table {table.name!r} has allowed_lateness, by which older rows count for nothing. Upsert the rows, or leave "
            "on_existing= out."
        )


def _refuse(outcome: ComputedRows, spec: TableSpec, name: str) -> None:
    """Raises KeyExists when keys of the batch exist: rows that the merge would delete."""
    if not outcome.deleted:
        return
    columns = [column.name for column in spec.key_columns]
    keys = [", ".join(f"{column}={shown(value)}" for column, value in row.items()) for row in _some(outcome.data, columns)]
    more = f" and {outcome.deleted - len(keys):,} more" if outcome.deleted > len(keys) else ""
    raise KeyExists(
        f"{outcome.deleted:,} rows of the batch have keys that are in the table {name!r} already, "
        f"({'), ('.join(keys)}){more}. Nothing was written. Leave them out, upsert() them, or insert with "
        "on_existing='skip'."
    )


def _some(data: Any, columns: Sequence[str]) -> list[dict[str, Any]]:
    if isinstance(data, (pa.Table, SpooledBatch)):
        assert isinstance(data, pa.Table), "an outcome of this process is held"
        found: list[dict[str, Any]] = data.filter(pc.field(DELETED)).select(columns).slice(0, _KEYS_SHOWN).to_pylist()
        return found
    from objcat.spark.native.column_names import quoted

    rows = data.where(DELETED).select(*map(quoted, columns)).limit(_KEYS_SHOWN).collect()
    return [dict(zip(columns, row, strict=True)) for row in rows]
