"""Batches of decoded rows as steps of a commit: the columns that a route drops, hides and adds, for all rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from objcat.engine.spooled_batch import Rows, RowSpool
from objcat.ingest.change_batch import TableWrite, WriteAction
from objcat.ingest.decoding import masked, own_columns
from objcat.ingest.model import ChangeKind, ChangeStamp, RowBatch, SourceColumn
from objcat.ingest.routes import HISTORY, SEQUENCE, RoutedTable


def write_batch(
    routed: RoutedTable, batch: RowBatch, stamp: ChangeStamp, missing: Sequence[pa.Field], spool: RowSpool, *, sequence: int
) -> TableWrite:
    """A batch as one step.

    Args:
        routed: where it goes.
        batch: the rows.
        stamp: of their transaction.
        missing: columns of the lake that the schema of the batch no longer has.
        spool: holds what is made.
        sequence: of the first row within the transaction.
    """
    is_delete = batch.kind is ChangeKind.DELETE and routed.route.deletes != HISTORY
    if routed.appends:
        action = WriteAction.APPEND
    elif not is_delete:
        action = WriteAction.UPSERT
    else:
        action = WriteAction.UPSERT_PARTIAL if routed.is_soft else WriteAction.DELETE
    names = list(batch.table.key) if is_delete else [column.name for column in batch.table.columns]
    shape = _RowShape(
        routed=routed,
        batch=batch,
        stamp=stamp,
        columns=[column for column in routed.written(batch.table) if column.name in names],
        added=[] if is_delete else [field for field in missing if field.name not in names],
        has_own=not is_delete or routed.is_soft,
    )
    if isinstance(batch.rows, pa.Table):
        return TableWrite(routed=routed, action=action, rows=spool.keep(shape.apply(batch.rows, sequence)))
    schema = shape.apply(batch.rows.schema.empty_table(), sequence).schema

    def pieces() -> Iterator[pa.RecordBatch]:
        at = sequence
        for piece in batch.rows.to_batches():
            yield from shape.apply(pa.Table.from_batches([piece]), at).to_batches()
            at += piece.num_rows

    # A mask may leave every type as it is.
    is_same = not routed.route.mask and schema.equals(batch.rows.schema)
    rows: Rows = batch.rows if is_same else spool.take(schema, pieces())
    return TableWrite(routed=routed, action=action, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowShape:
    """What rows of a batch become. columns: that are written. added: that are null. has_own: whether objcat adds its own columns."""

    routed: RoutedTable
    batch: RowBatch
    stamp: ChangeStamp
    columns: Sequence[SourceColumn]
    added: Sequence[pa.Field]
    has_own: bool

    def apply(self, rows: pa.Table, sequence: int) -> pa.Table:
        """Rows as the lake has them. sequence: of the first one."""
        route = self.routed.route
        arrays, fields = [], []
        for column in self.columns:
            found = rows.column(column.name) if column.name in rows.column_names else pa.nulls(rows.num_rows, column.type)
            arrays.append(masked(found, route.mask.get(column.name), route.mask_secret))
            fields.append(self.routed.field(column).with_nullable(True))
        for field in self.added:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            fields.append(field.with_nullable(True))
        for field, values in own_columns(self.routed, self.batch.kind, self.stamp, rows.num_rows) if self.has_own else ():
            is_number = field.name == SEQUENCE
            arrays.append(pa.array(range(sequence, sequence + rows.num_rows), field.type) if is_number else values)
            fields.append(field)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
