"""`ChangeApplier`: applies transactions of a source to a batch, and answers what the source did not send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from objcat.engine.spooled_batch import RowSpool
from objcat.ingest.change_batch import ChangeBatch, TableWrite, WriteAction
from objcat.ingest.decoding import DecodedValue
from objcat.ingest.followed_tables import FollowedTables
from objcat.ingest.model import (
    BadRecord,
    ChangeKind,
    ChangeSource,
    ChangeStamp,
    KeyValues,
    ReplayedSource,
    Row,
    RowBatch,
    RowChange,
    SchemaChanged,
    SourceTable,
    SourceTransaction,
    TableRead,
    TableTruncated,
)
from objcat.ingest.packed_row import row_bytes
from objcat.ingest.routes import HISTORY, RoutedTable
from objcat.ingest.row_batches import write_batch
from objcat.ingest.sink import LakeSink, equal_filter

PIECE_ROWS = 100_000
"""A larger transaction is combined in pieces of so many changes, which stay in order. Rows that are wide make a piece earlier."""

PIECE_BYTES_MIN = 1024 * 1024
"""A piece has so many bytes, however little memory a transaction may take."""


class ChangeApplier:
    """Collects the steps of the next commit. For one thread.

    Attributes:
        count: changes since the last drain.
        has_left_out: whether a transaction was left out that the source believes to be written: what it hands over next may be wrong.
    """

    def __init__(self, tables: FollowedTables, source: ChangeSource, sink: LakeSink, *, memory_bytes: int) -> None:
        self.count = 0
        self.has_left_out = False
        self._tables = tables
        self._source = source
        self._sink = sink
        self._memory_bytes = memory_bytes
        self._batch = ChangeBatch(self._find_row)
        self._pieces: list[TableWrite] = []
        self._first_piece = 0
        self._lacks_rows = False
        self._bad: list[BadRecord] = []
        self._sequence = 0
        self._waiting_bytes = 0
        self._spool = RowSpool(bytes_max=memory_bytes)

    def apply(self, transaction: SourceTransaction) -> None:
        """Apply a whole transaction."""
        position = self._source.position_text(transaction.position)
        state = self._tables.state
        if position in state.skips and (transaction.count or transaction.mark is not None):
            self._skip(transaction, ChangeStamp(transaction.committed_at_ms, position))
        else:
            stamp = ChangeStamp(transaction.committed_at_ms, position)
            self._sequence, self._first_piece, self._lacks_rows = 0, len(self._pieces), False
            for change, moves_from, puts in self._tables.handover.wanted(iter(transaction.changes), transaction.mark):
                match change:
                    case RowChange():
                        self._change_row(change, change.stamp or stamp, moves_from=moves_from, puts=puts)
                    case RowBatch():
                        self._put_batch(change, stamp)
                    case TableRead():
                        self._note_read(change)
                    case TableTruncated():
                        self._truncate(change.table, stamp)
                    case SchemaChanged():
                        self._change_schema(change)
                    case BadRecord():
                        self._bad.append(change)
                if self._batch.count >= PIECE_ROWS or self._waiting_bytes >= max(self._memory_bytes, PIECE_BYTES_MIN):
                    self._spill()
        self.count += transaction.count
        handover = self._tables.handover
        if handover.note_transaction(transaction.position, transaction.mark, is_consistent=transaction.is_consistent):
            # Readers wait for slots that are consistent.
            self._tables.has_changed = True

    def drain(self) -> tuple[list[TableWrite], list[BadRecord]]:
        """The steps of everything so far, and the records that are bad. Nothing is left after it."""
        writes, bad = self._batch.drain()
        writes = [*self._pieces, *writes]
        self._tables.state.nulled += self._batch.nulled
        self._batch.nulled = 0
        bad = [*self._bad, *bad]
        self._pieces, self._bad, self.count, self._waiting_bytes = [], [], 0, 0
        self._spool = RowSpool(bytes_max=self._memory_bytes)
        return writes, bad

    def _change_row(self, change: RowChange, stamp: ChangeStamp, *, moves_from: bool, puts: bool) -> None:
        routed, progress = self._tables.routed(change.table.name), self._tables.state.tables.get(change.table.name)
        if routed is None or progress is None or progress.aside is not None or not self._has_rows(change.table, routed):
            return
        if not self.may_change(routed, change.table.name, change.kind):
            return
        if change.table.is_record and self._lacks_rows:
            change = msgspec.structs.replace(change, row={**(change.row or {}), **change.table.left_out})
            self.has_left_out = True
        self._batch.add(routed, change, stamp, moves_from=moves_from, puts=puts)
        self._waiting_bytes += row_bytes(change.row)
        if progress.incomplete:
            _complete(progress.incomplete, change)

    def _put_batch(self, change: RowBatch, stamp: ChangeStamp) -> None:
        name = change.table.name
        routed, progress = self._tables.routed(name), self._tables.state.tables.get(name)
        if routed is None or progress is None or progress.aside is not None:
            self._lacks_rows = True
            return
        if not change.rows.num_rows or not self.may_change(routed, name, change.kind):
            return
        if self._batch.holds(routed):
            self._spill()
        missing = self._sink.missing_columns(routed, change.table, progress.columns)
        self._pieces.append(write_batch(routed, change, stamp, missing, self._spool, sequence=self._sequence))
        self._sequence += change.rows.num_rows
        if progress.is_reading:
            progress.rows += change.rows.num_rows

    def _note_read(self, change: TableRead) -> None:
        progress = self._tables.state.tables.get(change.table.name)
        if progress is None:
            return
        if not change.is_done and not progress.is_reading:
            progress.rows = 0
        progress.is_reading = not change.is_done

    def may_change(self, routed: RoutedTable, name: str, kind: ChangeKind) -> bool:
        """Whether a table can take a change. A table without a key that cannot is set aside."""
        if not routed.appends or routed.route.deletes == HISTORY or kind is ChangeKind.INSERT:
            return True
        self._tables.set_aside(
            name,
            f"{name} has no key, and a row was changed ({kind}). Give it a primary key, name its key in the route, "
            'or let the route keep every change by deletes = "history". Then run `objcat ingest resnapshot`.',
        )
        # The transaction comes again as a whole, or not at all. A truncation is of one before it, whose changes were combined till now.
        pieces = self._pieces[self._first_piece :]
        kept = [write for write in pieces if write.routed.name != routed.name or write.action is WriteAction.TRUNCATE]
        self._pieces[self._first_piece :] = kept
        self._lacks_rows = True
        return False

    def _truncate(self, table: SourceTable, stamp: ChangeStamp) -> None:
        routed = self._tables.routed(table.name)
        progress = self._tables.state.tables.get(table.name)
        if routed is None or progress is None or progress.aside is not None or not self._has_rows(table, routed):
            return
        was_read = bool(progress.rows) or progress.is_handed_over
        self._tables.begin_if_truncated(table.name)
        progress.incomplete = []
        if was_read and routed.route.deletes == HISTORY:
            self._batch.append_mark(routed, table, "truncate", stamp)
        elif was_read:
            self._batch.truncate(routed)

    def _change_schema(self, change: SchemaChanged) -> None:
        name = change.table.name
        is_known = self._tables.routed(name) is not None and self._tables.described(name).has_schema
        if not is_known or name not in self._tables.state.tables or self._tables.has_new_columns(change.table):
            # What the rows of the past read in a new column is in the catalog of the source alone.
            self._tables.discover()
        self._tables.take_schema(change)
        routed, progress = self._tables.routed(name), self._tables.state.tables.get(name)
        if routed is not None and progress is not None and progress.aside is None:
            self._batch.set_null_columns(change.table, self._sink.missing_columns(routed, change.table, progress.columns))

    def _has_rows(self, table: SourceTable, routed: RoutedTable) -> bool:
        """Whether there can be rows of a table of which nothing but the key is known: it has a table in the lake."""
        return table.has_schema or self._sink.has_table(routed.name)

    def _skip(self, transaction: SourceTransaction, stamp: ChangeStamp) -> None:
        """Leave a transaction out, on request. Its tables are read again where they can be, so that nothing of it is missing in the end."""
        names = set()
        self._lacks_rows = False
        reads_first = not self._source.has_snapshots and cast("ReplayedSource", self._source).reads_first
        for change in transaction.changes:
            # A record of what had no rows, such as a refusal, stays as it is.
            self._lacks_rows |= isinstance(change, RowBatch)
            if isinstance(change, RowChange) and change.table.is_record:
                self._change_row(change, stamp, moves_from=True, puts=True)
            elif isinstance(change, SchemaChanged):
                # It is not said again before the rows that come next.
                self._change_schema(change)
            elif isinstance(change, TableRead):
                self._note_read(change)
            elif isinstance(change, TableTruncated) and reads_first:
                # The rows that come after it are all that the table has.
                self._truncate(change.table, stamp)
            elif isinstance(change, (RowChange, RowBatch, TableTruncated)):
                names.add(change.table.name)
        said = f"The transaction at {stamp.position} was left out on request."
        if self._source.has_snapshots:
            for name in sorted(names):
                if self._tables.routed(name) is not None:
                    self._tables.resnapshot(name)
            said = f"{said} Read again: {', '.join(sorted(names))}."
        else:
            self.has_left_out = True
            said = f"{said} The lake lacks what it has of {', '.join(sorted(names)) or 'no table'}."
        self._bad.append(BadRecord(table=None, payload=b"", error=said, is_asked=True))
        self._tables.state.skips.remove(stamp.position)

    def _spill(self) -> None:
        """Put what was combined so far aside, as the first steps of the commit."""
        self._waiting_bytes = 0
        writes, bad = self._batch.drain()
        self._bad += bad
        for write in writes:
            rows = None if write.rows is None else self._spool.keep(write.rows)
            self._pieces.append(TableWrite(routed=write.routed, action=write.action, rows=rows, where=write.where))

    # ---- what the source did not send

    def _find_row(self, routed: RoutedTable, table: SourceTable, old_key: KeyValues, key: KeyValues, columns: Sequence[str]) -> Row:
        found: dict[str, object] = {}
        progress = self._tables.state.tables[table.name]
        is_incomplete = list(old_key) in progress.incomplete
        is_before, found = self._in_pieces(routed, table, old_key, columns)
        missing = [name for name in columns if name not in found]
        if missing and is_before and not is_incomplete and not self._batch.is_truncated(routed):
            found |= self._sink.find_row(routed, table, old_key, missing)
            missing = [name for name in columns if name not in found]
        if not missing:
            return found
        rows = self._source.fetch_rows(table, [key], missing)
        if key in rows:
            found |= rows[key]
        else:
            # The row is gone there, or has another key again: a later change says so.
            progress.incomplete.append(list(key))
            written = [name for name in missing if name not in routed.route.drop]
            if written and not self._source.has_snapshots:
                # Nobody can be asked: the old row was deleted by an earlier commit.
                said = f"{', '.join(written)} of the row {list(key)} was not sent with its new key, and is null in the lake."
                self._bad.append(BadRecord(table=table.name, payload=b"", error=f"{said} Its old key was {list(old_key)}."))
        return found

    def _in_pieces(self, routed: RoutedTable, table: SourceTable, key: KeyValues, columns: Sequence[str]) -> tuple[bool, dict[str, object]]:
        """Values of a row in earlier pieces of a large transaction, and whether what they lack is in the lake."""
        found: dict[str, object] = {}
        hidden = routed.route.mask
        if hidden.keys() & set(routed.key):
            return True, found
        # Hidden values cannot be taken for those of the source: they would be hidden twice.
        columns = [name for name in columns if name not in hidden]
        for write in reversed(self._pieces):
            if write.routed.name != routed.name:
                continue
            if write.rows is None:
                return False, found
            where = equal_filter(table, key)
            mine = [row for batch in write.rows.to_batches() for row in batch.filter(where).to_pylist()]
            if not mine:
                continue
            found = {**{name: DecodedValue(mine[0][name]) for name in columns if name in mine[0]}, **found}
            if write.action is not WriteAction.UPSERT_PARTIAL:
                return False, found
        return True, found


def _complete(incomplete: list[list[object]], change: RowChange) -> None:
    """Forget keys whose rows are whole now, or gone."""
    gone = [] if change.old_key is None else [change.old_key]
    if change.kind is ChangeKind.DELETE or not change.unsent:
        gone.append(change.key)
    for key in gone:
        if list(key) in incomplete:
            incomplete.remove(list(key))
