"""Batches that take the place of partitions, or of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from objcat.batches import change_of, schema_of_batch, session_of
from objcat.errors import InvalidBatch, InvalidInput
from objcat.parts import Change
from objcat.predicate import Predicate
from objcat.read.plan import parse_filter
from objcat.services.compute import Work, Written, run
from objcat.services.overwrite import Touched, ends, held_of, partitions_where, replaces
from objcat.storage.fitting import fitted
from objcat.table import Snapshot, TableSpec
from objcat.tasks import Filter, Operation
from objcat.timeline import Action, AppVersion
from objcat.write import CommitResult


def overwrite(
    table: Written,
    data: Any,
    *,
    where: str | pc.Expression | None,
    whole: bool,
    metadata: Mapping[str, str] | None,
    app: AppVersion | None,
    schema_mode: str | None,
) -> CommitResult:
    """See `Table.overwrite` (whole) and `Table.insert_overwrite`."""
    # A stream is read once, however often this is planned.
    data, _ = schema_of_batch(data, table.spec.table_schema)

    def prepare(snapshot: Snapshot) -> Work:
        change = change_of(table.fileio, data, snapshot.spec, Operation.INSERT, schema_mode, table=table.name)
        return replaces(table.fileio, snapshot, change, _touched(table, snapshot, change, where, whole=whole))

    result = run(table, prepare, metadata=metadata, action=Action.REPLACE, app=app, spark=session_of(data))
    assert result is not None, "a batch has rows"
    return result


def delete_partition(table: Written, where: str | pc.Expression, *, metadata: Mapping[str, str] | None) -> CommitResult | None:
    """See `Table.delete_partition`."""

    def prepare(snapshot: Snapshot) -> Work | None:
        predicate = parse_filter(where, snapshot.spec.table_schema)
        if predicate is None:
            raise InvalidInput("delete_partition() needs a filter over partition columns, e.g. \"city = 'Rome'\"")
        return ends(snapshot, table.manifests, partitions_where(table.fileio, snapshot, predicate))

    return run(table, prepare, metadata=metadata, action=Action.REPLACE)


def _touched(table: Written, snapshot: Snapshot, change: Change, where: Any, *, whole: bool) -> Touched | None:
    spec = snapshot.spec
    if whole or (where is None and not spec.partitioning.fields):
        return None
    predicate = parse_filter(where, spec.table_schema)
    if predicate is None:
        return lambda batch: _of_batch(table, snapshot, frozenset(batch))
    named = partitions_where(table.fileio, snapshot, predicate)
    _check_rows(change, predicate, spec)
    return lambda batch: _named_or_empty(table, snapshot, predicate, named, frozenset(batch))


def _of_batch(table: Written, snapshot: Snapshot, partitions: frozenset[str]) -> frozenset[str]:
    """The partitions of a batch. Raises InvalidInput for one of a former partitioning with rows: the present one may part these."""
    held = held_of(table.fileio, snapshot, filter(snapshot.spec.is_former, partitions))
    if held is not None:
        raise InvalidInput(
            f"rows of the batch live in {_called(held)}, which is of an earlier partitioning and would be replaced whole: say by where "
            "which rows to replace, overwrite() the table, or delete rows by delete(where); nothing was written"
        )
    return partitions


def _named_or_empty(table: Written, snapshot: Snapshot, where: Filter, named: frozenset[str], partitions: frozenset[str]) -> frozenset[str]:
    """The partitions that a filter names, and those of a batch. Raises InvalidInput for one of these with rows, none of which pass."""
    held = held_of(table.fileio, snapshot, partitions - named)
    if held is not None:
        raise InvalidInput(
            f"the filter {where.text!r} is true of rows of the batch in {_called(held)}, and of no row that is there: name partitions "
            "whole, or delete rows by delete(where); nothing was written"
        )
    return named | partitions


def _called(partition: str) -> str:
    return f"the partition {partition!r}" if partition else "the file groups without a partition"


def _check_rows(change: Change, where: Filter, spec: TableSpec) -> None:
    """Refuse rows for which the filter is not true: they would not be replaced by the same call again."""
    if hasattr(change.data, "to_batches"):
        schema = spec.table_schema.to_arrow()
        wanted = pa.schema([schema.field(name) for name in where.columns])
        for batch in change.data.to_batches():
            rows = fitted(pa.Table.from_batches([batch]), wanted)
            if rows.append_column("_objcat_number", pa.array(np.arange(rows.num_rows))).filter(where.to_arrow()).num_rows < rows.num_rows:
                raise _outside(where)
        return
    if not isinstance(where, Predicate):
        raise InvalidInput("a Spark DataFrame overwrites by SQL text: give where as text")
    engine: Any = change.engine
    if not engine.all_pass(change.data, where):
        raise _outside(where)


def _outside(where: Filter) -> InvalidBatch:
    return InvalidBatch(f"a row of the batch is not in the partitions that {where.text!r} names: leave it out; nothing was written")
