"""Overwrites: a batch replaces partitions, or the whole table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from objcat.datafile.casting import cast_rows
from objcat.dml.computed_write import Work, WriteTarget, run
from objcat.dml.overwrite import Touched, drop_partitions, first_nonempty_partition, partitions_where, renewed, replace_partitions
from objcat.errors import InvalidBatch, InvalidInput
from objcat.metadata.derived import check_not_derived
from objcat.metadata.partitioning import IDENTITY
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.planning.scan import parse_filter
from objcat.predicate.parse import Predicate
from objcat.table.batch_input import prepare_batch, schema_of_batch, session_of
from objcat.tasks.model import Filter, Operation
from objcat.timeline.entry import Action
from objcat.timeline.log_state import AppVersion
from objcat.write.service_commit import ServiceResult
from objcat.write.table_writer import WriteBatch
from objcat.write.transaction import CommitResult


def overwrite(
    table: WriteTarget,
    data: Any,
    *,
    where: str | pc.Expression | None,
    whole: bool,
    metadata: Mapping[str, str] | None,
    app: AppVersion | None,
    schema_mode: str | None,
) -> CommitResult:
    """See `Table.overwrite` (`whole`) and `Table.insert_overwrite`."""
    # A stream is read once, even if this is planned again.
    data, _ = schema_of_batch(data, table.spec.table_schema)

    def prepare(snapshot: Snapshot) -> Work:
        change = prepare_batch(table.fileio, data, snapshot.spec, Operation.INSERT, schema_mode, table=table.name)
        predicate = None if whole else parse_filter(where, snapshot.spec.table_schema)
        touched = _touched(table, snapshot, predicate, whole=whole)
        if predicate is not None:
            _check_rows(change, predicate, snapshot.spec)
        return replace_partitions(table.fileio, snapshot, change, touched)

    def renew(proposal: ServiceResult, before: Snapshot, after: Snapshot) -> ServiceResult | None:
        return renewed(table.manifests, proposal, before, after, lambda: _ends_now(table, proposal, after, where, whole=whole))

    result = run(table, prepare, metadata=metadata, action=Action.REPLACE, app=app, spark=session_of(data), renew=renew)
    assert result is not None, "a batch has rows"
    return result


def delete_partition(table: WriteTarget, where: str | pc.Expression, *, metadata: Mapping[str, str] | None) -> CommitResult | None:
    """See `Table.delete_partition`."""

    def prepare(snapshot: Snapshot) -> Work | None:
        snapshot.spec.check_own_files("drop partitions")
        check_not_derived(snapshot.spec, "drop partitions")
        predicate = parse_filter(where, snapshot.spec.table_schema)
        if predicate is None:
            raise InvalidInput("delete_partition() needs a filter over partition columns, for example \"city = 'Rome'\".")
        return drop_partitions(snapshot, table.manifests, partitions_where(table.fileio, snapshot, predicate))

    def renew(proposal: ServiceResult, before: Snapshot, after: Snapshot) -> ServiceResult | None:
        return renewed(table.manifests, proposal, before, after, lambda: _ends_now(table, proposal, after, where, whole=False))

    return run(table, prepare, metadata=metadata, action=Action.REPLACE, renew=renew)


def _touched(table: WriteTarget, snapshot: Snapshot, predicate: Filter | None, *, whole: bool) -> Touched | None:
    if whole or (predicate is None and not snapshot.spec.partitioning.fields):
        return None
    if predicate is None:
        return lambda batch: _of_batch(table, snapshot, frozenset(batch))
    named = partitions_where(table.fileio, snapshot, predicate)
    return lambda batch: _named_or_empty(table, snapshot, predicate, named, frozenset(batch))


def _ends_now(table: WriteTarget, proposal: ServiceResult, after: Snapshot, where: Any, *, whole: bool) -> Collection[str] | None:
    """The partitions that a proposal ends after later commits; None for all. Raises as `_touched`."""
    spec, own = after.spec, proposal.footprint
    if whole or (where is None and not spec.partitioning.fields):
        return None
    predicate = parse_filter(where, spec.table_schema)
    if predicate is None or _is_said_by_names(predicate, spec):
        # Rows added to these partitions count like the earlier ones.
        return own.overwrites
    named = partitions_where(table.fileio, after, predicate)
    written = frozenset(group_id.partition for group_id in (*own.creates, *own.appends))
    return _named_or_empty(table, after, predicate, named, written)


def _is_said_by_names(where: Filter, spec: TableSpec) -> bool:
    """Whether a filter is true of all rows that a partition can have, or of none: its columns have one value there."""
    plain = {spec.table_schema.by_id(field.column).name for field in spec.partitioning.fields if field.transform == IDENTITY}
    return not spec.former and plain.issuperset(where.columns)


def _of_batch(table: WriteTarget, snapshot: Snapshot, partitions: frozenset[str]) -> frozenset[str]:
    """The partitions of a batch. Raises InvalidInput for one of a previous partition spec with rows, because the current one may divide
    them."""
    held = first_nonempty_partition(table.fileio, snapshot, filter(snapshot.spec.is_former, partitions))
    if held is not None:
        raise InvalidInput(
            f"Rows of the batch are in {_called(held)}, which is of a previous partition spec and would be replaced whole. "
            "Nothing was written. Name the rows to replace with where=, overwrite() the table, or delete rows with "
            "delete(where)."
        )
    return partitions


def _named_or_empty(
    table: WriteTarget, snapshot: Snapshot, where: Filter, named: frozenset[str], partitions: frozenset[str]
) -> frozenset[str]:
    """The partitions that a filter names, and those of a batch. Raises InvalidInput for one of these whose rows do not pass."""
    held = first_nonempty_partition(table.fileio, snapshot, partitions - named)
    if held is not None:
        raise InvalidInput(
            f"The filter {where.text!r} is true for rows of the batch in {_called(held)}, and for no existing row there. "
            "Nothing was written. Name whole partitions, or delete rows with delete(where)."
        )
    return named | partitions


def _called(partition: str) -> str:
    return f"the partition {partition!r}" if partition else "the file groups without a partition"


def _check_rows(change: WriteBatch, where: Filter, spec: TableSpec) -> None:
    """Refuse rows for which the filter is not true: the same call would not replace them."""
    if hasattr(change.data, "to_batches"):
        schema = spec.table_schema.to_arrow()
        wanted = pa.schema([schema.field(name) for name in where.columns])
        for batch in change.data.to_batches():
            rows = cast_rows(pa.Table.from_batches([batch]), wanted)
            if rows.append_column("_objcat_number", pa.array(np.arange(rows.num_rows))).filter(where.to_arrow()).num_rows < rows.num_rows:
                raise _outside(where)
        return
    if not isinstance(where, Predicate):
        raise InvalidInput("A Spark DataFrame overwrites by a filter as SQL text. Give where= as text.")
    engine: Any = change.engine
    if not engine.all_pass(change.data, where):
        raise _outside(where)


def _outside(where: Filter) -> InvalidBatch:
    return InvalidBatch(f"A row of the batch is not in the partitions that {where.text!r} names. Nothing was written. Leave it out.")
