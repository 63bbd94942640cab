"""`bootstrap_table`: the rows of a large table by executors of Spark, in place of the chunks that one process reads.

The source exports a snapshot, and every executor reads its part of the table in that one. The rows, and what the snapshot has seen, are one
commit with the position, as a chunk is that has the whole table. So the stream goes on from there by the rules of `Handover`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from fileio.env import Env, default_env
from objcat.errors import InvalidInput
from objcat.ingest.change_batch import TableWrite, WriteAction
from objcat.ingest.config import IngestConfig
from objcat.ingest.decoding import decode_column, masked, own_columns
from objcat.ingest.followed_tables import FollowedTables
from objcat.ingest.ingest_metrics import IngestMetrics
from objcat.ingest.model import ChangeSource, ChangeStamp, SnapshotChunk, SourceTable
from objcat.ingest.postgres.exported_snapshot import ExportedSnapshot
from objcat.ingest.requests import requests_after, take_skip
from objcat.ingest.routes import HISTORY, RoutedTable, Router
from objcat.ingest.sink import LakeSink
from objcat.ingest.snapshots import READ
from objcat.ingest.sources import open_source
from objcat.lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS_MAX = 600
PAUSE_S = 0.1
"""A snapshot that has not seen what is in the lake is taken again after so long."""


class ExportingSource(ChangeSource, Protocol):
    """A source whose snapshots others can join."""

    def export_snapshot(self, table: SourceTable, *, parts_max: int) -> AbstractContextManager[ExportedSnapshot | None]:
        """A block as long as which a snapshot can be joined; None where it cannot be taken yet."""


EXPORTING = ("postgres",)
"""The kinds of sources that are `ExportingSource`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapResult:
    """A table that was read.

    Attributes:
        slot: of the commit that has its rows.
        rows: of the table in the lake at that slot.
        parts: that executors read.
    """

    slot: int
    rows: int
    parts: int


def bootstrap_table(
    config: IngestConfig, lake: Lake, spark: SparkSession, table: str, *, parts_max: int = 200, env: Env | None = None
) -> BootstrapResult:
    """Read a table of PostgreSQL by JDBC into the lake, in one commit with the position.

    Call it while no ingest of this source runs, before the table was read by chunks. `objcat ingest run` then reads the other tables and
    follows all. The driver of PostgreSQL for JDBC must be in `spark.jars` or `spark.jars.packages`.

    Args:
        config: of the ingest.
        lake: the lake.
        spark: the session.
        table: its name at the source.
        parts_max: how many parts executors read at most.
        env: clock and threads.

    Returns:
        What was read.

    Raises:
        InvalidInput: the table is not followed, or was read before.
        IngestStopped: another process read this source meanwhile. Nothing is visible.
        SparkJobFailed: a value cannot be decoded, or a job failed. Nothing is visible.
    """
    if config.kind not in EXPORTING:
        raise InvalidInput(
            f"Tables of the kind {config.kind!r} cannot be read by Spark. Nothing was done. Let `objcat ingest run` read them."
        )
    env = env or default_env()
    router = Router(config)
    source = cast("ExportingSource", open_source(config, router, env))
    try:
        sink = LakeSink(lake, config, router.dead_table(), env)
        tables = FollowedTables(source, sink, router, IngestMetrics(config.name))
        source.check_settings()
        sink.ensure_dead_letters()
        tables.load(sink.load())
        _take_requests(lake, config, tables)
        if tables.has_changed:
            sink.commit([], tables.state, [], _metadata(config, source, tables))
            tables.committed()
        return _Bootstrap(config, lake, spark, source, sink, tables, env).read(table, parts_max=parts_max)
    finally:
        source.close()


@dataclass(frozen=True, slots=True)
class _Bootstrap:
    config: IngestConfig
    lake: Lake
    spark: SparkSession
    source: ExportingSource
    sink: LakeSink
    tables: FollowedTables
    env: Env

    def read(self, name: str, *, parts_max: int) -> BootstrapResult:
        """Read a table."""
        progress = self.tables.state.tables.get(name)
        if progress is None or progress.aside is not None:
            why = "it is not followed" if progress is None else progress.aside
            raise InvalidInput(f"{name} cannot be read: {why}. Nothing was done. Correct the name or the table.")
        if progress.unread is None or progress.unread.after is not None or progress.chunks:
            raise InvalidInput(
                f"{name} was read before, or is being read by chunks. Nothing was done. Run `objcat ingest resnapshot {self.config.path} "
                f"{name}` first, to read it again."
            )
        for _ in range(ATTEMPTS_MAX):
            with self.source.export_snapshot(self.tables.described(name), parts_max=parts_max) as exported:
                if exported is not None and (done := self._read(exported)) is not None:
                    return done
            self.env.sleep(PAUSE_S)
        raise InvalidInput(f"No snapshot of {name} saw what is in the lake. Nothing was done. End long transactions, and call it again.")

    def _read(self, exported: ExportedSnapshot) -> BootstrapResult | None:
        table, handover = exported.table, self.tables.handover
        progress = self.tables.state.tables[table.name]
        unread = progress.unread
        assert unread is not None
        nothing = pa.table({})
        chunk = SnapshotChunk(
            table=table, rows=nothing, after=None, last=None, order=unread.order, covers=exported.covers, until=exported.until
        )
        if not handover.is_usable(chunk):
            return None
        if not self.tables.ensure(table):
            raise InvalidInput(f"{progress.aside} Nothing was written.")
        routed = self.tables.routed(table.name)
        assert routed is not None
        handover.note_chunk(chunk)
        progress.rows = max(1, exported.rows)
        stamp = ChangeStamp(self.env.now_ms(), self.source.position_text(self.tables.state.position))
        frame = _frame(self.spark, exported, routed, stamp)
        steps = []
        if unread.replaces and routed.route.deletes != HISTORY:
            steps.append(TableWrite(routed=routed, action=WriteAction.TRUNCATE))
        if not frame.isEmpty():
            rows: Any = frame
            steps.append(TableWrite(routed=routed, action=WriteAction.APPEND if routed.appends else WriteAction.UPSERT, rows=rows))
        done = self.sink.commit(steps, self.tables.state, [], _metadata(self.config, self.source, self.tables))
        count = self.lake.table(routed.name).scan(as_of=done.slot).count()
        return BootstrapResult(slot=done.slot, rows=count, parts=len(exported.parts))


def _take_requests(lake: Lake, config: IngestConfig, tables: FollowedTables) -> None:
    """Do what was asked of this ingest, such as to read the table again: no run takes it meanwhile."""
    for request in requests_after(lake, config, tables.state.requests):
        if request.kind == "resnapshot_all":
            tables.begin_again()
        elif request.kind == "skip":
            take_skip(lake, config, tables.state, request)
        else:
            tables.resnapshot(request.what)
        tables.state.requests = request.number
        tables.has_changed = True


def _metadata(config: IngestConfig, source: ChangeSource, tables: FollowedTables) -> dict[str, str]:
    state = tables.state
    position = source.position_text(state.position)
    return {"source": config.name, "position": position, "consistent": "true" if state.is_consistent else "false"}


def _frame(spark: SparkSession, exported: ExportedSnapshot, routed: RoutedTable, stamp: ChangeStamp) -> DataFrame:
    """The rows as the lake has them. They are read when it is written."""
    from objcat.spark.mapped_frame import mapped_frame

    texts = spark.read.jdbc(exported.url, exported.query, predicates=list(exported.parts), properties=dict(exported.properties))
    names = [column.name for column in exported.table.columns]
    nothing = pa.RecordBatch.from_pydict({name: pa.array([], pa.string()) for name in names})
    made = next(decode_texts(routed, exported.table, stamp, [nothing]))
    chosen = texts.select([texts["`" + name.replace("`", "``") + "`"] for name in names])
    return mapped_frame(chosen, decode_texts, (routed, exported.table, stamp), made.schema)


def decode_texts(
    routed: RoutedTable, table: SourceTable, stamp: ChangeStamp, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: rows of text as rows of the lake. Raises ValueError for one that cannot be decoded."""
    for batch in batches:
        arrays, fields = [], []
        for column in routed.written(table):
            text = batch.column(batch.schema.get_field_index(column.name)).cast(pa.string())
            array, bad = decode_column(column, text)
            if bad:
                place, why = next(iter(bad.items()))
                raise ValueError(
                    f"{column.name} of {table.name} has {text[place].as_py()!r}, which cannot be decoded: {why}. Chunks set such rows "
                    "apart: let `objcat ingest run` read this table"
                )
            arrays.append(masked(array, routed.route.mask.get(column.name), routed.route.mask_secret))
            fields.append(routed.field(column).with_nullable(True))
        for field, values in own_columns(routed, READ, stamp, batch.num_rows):
            arrays.append(values)
            fields.append(field)
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
