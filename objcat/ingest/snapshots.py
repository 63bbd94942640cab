"""`SnapshotReader`: reads tables chunk by chunk, as steps of a commit."""

from __future__ import annotations

import pyarrow as pa

from fileio.env import Env
from objcat.ingest.change_batch import TableWrite, WriteAction
from objcat.ingest.decoding import masked, own_columns
from objcat.ingest.followed_tables import FollowedTables
from objcat.ingest.handover import UnreadRange
from objcat.ingest.ingest_metrics import IngestMetrics
from objcat.ingest.model import BadRecord, ChangeSource, ChangeStamp, KeyOrder, SnapshotChunk
from objcat.ingest.routes import HISTORY, RoutedTable
from objcat.ingest.sink import range_filter

READ = "read"
"""The operation of a row that came by a snapshot."""
PAUSE_S = 0.01


class SnapshotReader:
    """Reads the next chunk of a table that is not read yet. For one thread."""

    def __init__(self, tables: FollowedTables, source: ChangeSource, metrics: IngestMetrics, *, chunk_rows: int, env: Env) -> None:
        self._tables = tables
        self._source = source
        self._metrics = metrics
        self._chunk_rows = chunk_rows
        self._env = env

    def read(self) -> tuple[list[TableWrite], tuple[BadRecord, ...]] | None:
        """The next chunk as the steps of a commit, with its bad rows. The state says already that it is read.

        Returns:
            None when there is no chunk now: the stream goes on meanwhile.
        """
        handover = self._tables.handover
        name = handover.unread_table()
        if name is None:
            return None
        unread = self._tables.state.tables[name].unread
        routed = self._tables.routed(name)
        assert unread is not None and routed is not None
        after = None if unread.after is None else tuple(unread.after)
        chunk = self._source.read_chunk(self._tables.described(name), after, rows_max=self._chunk_rows, order=unread.order)
        if chunk is None:
            self._env.sleep(PAUSE_S)
            return None
        if not handover.is_usable(chunk):
            self._metrics.add("chunks_repeated_total")
            self._env.sleep(PAUSE_S)
            return None
        if not self._tables.ensure(chunk.table):
            return [], ()
        handover.note_chunk(chunk)
        self._tables.state.nulled += chunk.nulled
        return _steps(routed, chunk, unread, self._stamp()), chunk.bad

    def _stamp(self) -> ChangeStamp:
        return ChangeStamp(self._env.now_ms(), self._source.position_text(self._tables.state.position))


def _steps(routed: RoutedTable, chunk: SnapshotChunk, unread: UnreadRange, stamp: ChangeStamp) -> list[TableWrite]:
    rows = _rows(routed, chunk, stamp)
    if unread.replaces and unread.order is KeyOrder.BYTES:
        where = range_filter(chunk.table, chunk.after, chunk.last)
        return [TableWrite(routed=routed, action=WriteAction.REPLACE_RANGE, rows=rows, where=where)]
    steps = []
    if unread.replaces and chunk.after is None and routed.route.deletes != HISTORY:
        steps.append(TableWrite(routed=routed, action=WriteAction.TRUNCATE))
    if rows.num_rows:
        steps.append(TableWrite(routed=routed, action=WriteAction.APPEND if routed.appends else WriteAction.UPSERT, rows=rows))
    return steps


def _rows(routed: RoutedTable, chunk: SnapshotChunk, stamp: ChangeStamp) -> pa.Table:
    """The rows of a chunk as the lake has them."""
    made = {
        column.name: masked(chunk.rows.column(column.name).combine_chunks(), routed.route.mask.get(column.name), routed.route.mask_secret)
        for column in routed.written(chunk.table)
    }
    table = pa.table(made)
    for field, values in own_columns(routed, READ, stamp, chunk.rows.num_rows):
        table = table.append_column(field, values)
    return table
