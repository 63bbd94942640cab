"""`Scan`: a planned read of one snapshot, and the forms in which its rows come."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fileio.optional import library
from fileio.store import FileIO
from objcat.common.memory_errors import check_room, reporting, reports_full_memory
from objcat.common.validation import nearest_name, session, shown, text
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.nested_slices import compact_nested_slices
from objcat.errors import CorruptTable, InvalidInput
from objcat.inspection.explain import Explanation, explain_plan
from objcat.inspection.snapshot_stats import UNKNOWN, ColumnBound, as_numbers, extremes_of
from objcat.metadata.column_parts import with_parts
from objcat.metadata.files import FileGroup
from objcat.metadata.manifest import Manifests
from objcat.metadata.schema import Column
from objcat.planning.commits import CommitInfo, commits_table, txns_of, with_commits
from objcat.planning.scan import COMMIT_COLUMNS, HIDDEN, ScanPlan, hidden_field, narrow_among, narrow_plan, only_read
from objcat.predicate.implied import implied_by
from objcat.table.notebook import PREVIEW_ROWS, rows_html
from objcat.table.verified_files import verified
from objcat.tasks.scan import ahead_of, scan_groups
from objcat.tasks.scan_parts import filter_parts
from objcat.timeline.entry import Txn

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from objcat.table.dataset import ScanDataset

BATCH_ROWS_MAX = 64 * 1024
POLARS_BYTES = 128 * 1024**2
"""What polars needs under a limit of addresses beside a copy of the rows: its threads, each with memory of its own."""

CommitsOf = Callable[[Collection[Txn]], Mapping[Txn, CommitInfo]]


@reports_full_memory
class Scan:
    """A planned scan, pinned to one snapshot: it reads the same rows each time, until the snapshot is cleaned.

    Nothing is read before one of its methods is called. Rows come in no reliable order. Safe for many threads. All methods that read raise
    SnapshotExpired when the snapshot was cleaned meanwhile, CorruptTable, and storage errors.
    """

    def __init__(
        self,
        fileio: FileIO,
        plan: ScanPlan,
        manifests: Manifests,
        *,
        limit: int | None = None,
        check: Callable[[], None] = lambda: None,
        commits: CommitsOf | None = None,
    ) -> None:
        """`limit`: rows at most. `check`: raises SnapshotExpired when the snapshot was cleaned. `commits`: finds the commits of
        transactions that rows name."""
        self._fileio = fileio
        self._manifests = manifests
        self._check = check
        self._commits = commits
        self.plan = only_read(plan)
        self.limit = limit

    def __repr__(self) -> str:
        where = "" if self.plan.where is None else f", where {shown(self.plan.where.text)}"
        return f"Scan({', '.join(self.plan.columns)} at slot {self.plan.snapshot.slot}{where})"

    def _repr_html_(self) -> str:
        """What a notebook shows: columns, types and the first rows. Reads no more than these rows need."""
        asked = PREVIEW_ROWS + 1 if self.limit is None else min(PREVIEW_ROWS + 1, self.limit)
        rows = Scan(self._fileio, self.plan, self._manifests, limit=asked, check=self._check, commits=self._commits).to_arrow()
        return rows_html(repr(self), rows.slice(0, PREVIEW_ROWS), is_whole=rows.num_rows <= PREVIEW_ROWS)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        schema = with_parts(self.plan.snapshot.spec.table_schema, self.plan.parts).to_arrow()
        return pa.schema([hidden_field(name) if name in HIDDEN else schema.field(name) for name in self.plan.columns])

    def explain(self) -> Explanation:
        """Explain which files the scan reads, and why it skips the others. Reads no data.

        Returns:
            An explanation; `print` it.
        """
        return explain_plan(self.plan, self._manifests, limit=self.limit)

    # ---- rows

    def to_batches(self) -> pa.RecordBatchReader:
        """Read the rows as a stream of record batches.

        Memory is limited by row groups, not by the table: at most about 256 MB of Arrow are read ahead, and with log rows about 200 MB
        more. A stream that is dropped reads no further.

        Returns:
            A reader, to iterate or pass on; it can be consumed once.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self._streamed())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A new stream for readers of Arrow: `polars.DataFrame(scan)`, `duckdb.sql("from scan")`, `pyarrow.table(scan)`."""
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """Read all rows into an Arrow table."""
        return pa.Table.from_batches(self._batches(rows_max=None), schema=self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows into a pandas frame. Raises MissingDependency."""
        frame: pd.DataFrame = library("pandas", needed_by="to_pandas() needs", extra="local").DataFrame(self.to_arrow().to_pandas())
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Read all rows into a polars frame. Raises MissingDependency, and OutOfMemory before polars would end the process."""
        check_room(POLARS_BYTES, library="polars")
        polars = library("polars", needed_by="to_polars() needs", extra="local")
        rows = self.to_arrow()
        check_room(POLARS_BYTES + rows.nbytes, library="polars")
        frame: pl.DataFrame = polars.DataFrame(rows)
        return frame

    def to_polars_lazy(self) -> pl.LazyFrame:
        """A polars LazyFrame over the snapshot. Each `collect` reads the columns and files that its query needs.

        polars applies the filters, so they mean what they mean to polars. Raises MissingDependency; `collect` raises the errors of a scan
        inside polars' own.
        """
        check_room(POLARS_BYTES, library="polars")
        polars = library("polars", needed_by="to_polars_lazy() needs", extra="local")
        from objcat.table.dataset import lazy_frame

        return lazy_frame(polars, self.to_dataset(), is_pure=self.limit is None)

    def to_dataset(self) -> ScanDataset:
        """A `pyarrow.dataset.Dataset` over the rows, pinned to the snapshot.

        Each read takes the columns that it names and skips files by its filter. Read it as often as you like. A filter over a scan with a
        limit applies to the limited rows.
        """
        from objcat.table.dataset import DatasetReader, ScanDataset

        filterable = self.plan.snapshot.spec.table_schema.names if self.limit is None else ()
        return ScanDataset(DatasetReader(self.schema, filterable, self._exactly, self._possibly))

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over `to_dataset`. Each query reads the columns that it names and skips files by its conditions.

        All queries see the same snapshot.

        Args:
            connection: DuckDB's default connection when None. No name is registered there.

        Returns:
            The relation.

        Raises:
            MissingDependency: DuckDB is missing.
            InvalidInput: `connection` is no DuckDB connection.
        """
        found = library("duckdb", needed_by="to_duckdb() needs", extra="local")
        if connection is not None and not isinstance(connection, found.DuckDBPyConnection):
            raise InvalidInput(f"connection is {shown(connection)}. Give duckdb.connect(...), or leave it out.")
        relation: duckdb.DuckDBPyRelation = (connection or found.default_connection()).from_arrow(self.to_dataset())
        return relation

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """A lazy Spark DataFrame of the rows.

        Spark scans the Parquet files natively where the cluster reads the store's scheme; elsewhere Python workers read Arrow through
        `fileio`.

        Args:
            spark: the session.

        Returns:
            The frame.

        Raises:
            Unsupported: the executors cannot open the store.
            MissingOnWorkers, SparkJobLost: see `objcat.errors`.
        """
        from objcat.spark.native.scan import scan_dataframe

        frame = scan_dataframe(
            session(spark),
            self._fileio.describe(),
            self.plan,
            bounds=lambda: self.plan.bounds(self._manifests),
            commits=self._commit_points,
            verify=lambda plan: verified(self._fileio, self._manifests, plan),
            narrow=lambda plan, where, columns: narrow_among(plan, self._manifests, where=where, columns=columns),
        )
        return frame if self.limit is None else frame.limit(self.limit)

    # ---- answers

    def count(self) -> int:
        """The number of rows.

        From metadata alone where that is exact: for base files without log rows, when there is no filter or their bounds show that all rows
        pass. Of other file groups only the columns of key, ordering and filter are read.
        """
        certain, others = self._counted_by_metadata()
        known = sum(map(_base_rows, certain))
        if self.limit is not None and known >= self.limit:
            return self.limit
        spec, where = self.plan.snapshot.spec, self.plan.where
        # The columns of the filter are read anyway.
        first = (
            (spec.key_columns or spec.table_schema.columns)[0].name
            if spec.has_key or where is None or not where.columns
            else where.columns[0]
        )
        parts = [part for part in filter_parts(spec.table_schema, where) if part.name == first]
        for rows in self._tables(others, columns=[first], parts=parts, lazy=self.limit is not None):
            known += rows.num_rows
            if self.limit is not None and known >= self.limit:
                return self.limit
        return known

    def min(self, column: str) -> Any:
        """The least value of a column; None when there is none but null. NaN does not count.

        From metadata alone where that is exact: for base files without log rows and without a filter. Of the others, those that may hold a
        lesser value by their bounds are read.

        Args:
            column: the name of a plain column.

        Returns:
            The value as a Python object.

        Raises:
            InvalidInput: there is no such column, it is nested, or the scan has a limit.
        """
        return self._extreme(column, least=True)

    def max(self, column: str) -> Any:
        """The greatest value of a column, like `min`. Bounds of text may be cut, so at least one file is read for text."""
        return self._extreme(column, least=False)

    # ---- how

    def _exactly(self, columns: Sequence[str] | None, where: pc.Expression | None, rows_max: int | None) -> Scan:
        return self._narrowed(columns, where, rows_max)

    def _possibly(self, columns: Sequence[str] | None, where: pc.Expression | None, rows_max: int | None) -> Scan:
        unlimited = self.limit is None and rows_max is None
        known = implied_by(where, self.plan.snapshot.spec.table_schema, floating=False) if unlimited and where is not None else None
        return self._narrowed(columns, None if known is None else known.text, rows_max)

    def _narrowed(self, columns: Sequence[str] | None, where: str | pc.Expression | None, rows_max: int | None) -> Scan:
        """Some of its columns, and the rows that pass. `where`: None for a scan with a limit, which comes first."""
        limit = min((most for most in (self.limit, rows_max) if most is not None), default=None)
        plan = narrow_plan(self.plan, self._manifests, where=where, columns=columns)
        return Scan(self._fileio, plan, self._manifests, limit=limit, check=self._check, commits=self._commits)

    def _commit_points(self) -> pa.Table:
        """When the rows were committed, to join with."""
        assert self._commits is not None
        return commits_table(self._commits(txns_of(self._fileio, self.plan.groups)))

    def _streamed(self) -> Iterator[pa.RecordBatch]:
        """The rows, one batch after the other."""
        with reporting("a stream of batches", self):
            yield from self._batches()

    def _batches(self, *, rows_max: int | None = BATCH_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        left = self.limit
        if left == 0:
            return
        groups = self.plan.groups
        if left is not None and self.plan.where is None:
            # Groups with the most known rows first, so that few files are enough.
            groups = (*sorted(self.plan.plain, key=_base_rows, reverse=True), *self.plan.merged)
        for rows in self._tables(groups, lazy=left is not None):
            taken = rows if left is None or left >= rows.num_rows else rows.slice(0, left)
            yield from compact_nested_slices(self._finished(taken).to_batches(max_chunksize=rows_max))
            if left is not None:
                left -= taken.num_rows
                if left <= 0:
                    return

    def _tables(
        self, groups: Sequence[FileGroup], *, columns: Iterable[str] | None = None, parts: Sequence[Column] = (), lazy: bool = False
    ) -> Iterator[pa.Table]:
        task = self.plan.task(groups, columns=None if columns is None else list(columns), parts=parts)
        try:
            yield from scan_groups(self._fileio, task, at_once=ahead_of(groups, most=self._fileio.env.parallelism), lazy=lazy)
        except CorruptTable:
            self._check()
            raise

    def _finished(self, rows: pa.Table) -> pa.Table:
        """The rows with the columns that come from the log."""
        if not any(name in COMMIT_COLUMNS for name in self.plan.columns):
            return rows
        assert self._commits is not None
        txns = rows.column(TXN_COLUMN).unique().to_pylist()
        return with_commits(rows, self._commits([Txn(txn) for txn in txns])).select(list(self.plan.columns)).cast(self.schema)

    def _counted_by_metadata(self) -> tuple[list[FileGroup], list[FileGroup]]:
        """The groups of which all rows count, and the others."""
        where = self.plan.where
        if where is None:
            return list(self.plan.plain), list(self.plan.merged)
        failing = where.to_failing()
        if failing is None:
            return [], list(self.plan.groups)
        group_ids = [group.group_id for group in self.plan.plain]
        if not group_ids:
            return [], list(self.plan.merged)
        may_fail = {group.group_id for group in self.plan.snapshot.file_groups(self._manifests, where=failing, group_ids=group_ids)}
        certain = [group for group in self.plan.plain if group.group_id not in may_fail]
        return certain, [*(group for group in self.plan.plain if group.group_id in may_fail), *self.plan.merged]

    def _extreme(self, name: str, *, least: bool) -> Any:
        schema = self.plan.snapshot.spec.table_schema
        if text(name, what="column") not in schema.names:
            raise InvalidInput(f"The table has no column {name!r}: {nearest_name(name, schema.names)}")
        column = schema.column(name)
        if not isinstance(column.type, str):
            raise InvalidInput(f"The column {name!r} is nested, so it has no least or greatest value. Name a plain column.")
        if self.limit is not None:
            raise InvalidInput("min() and max() of some rows say nothing about the others. Leave limit= out.")
        data_type = schema.to_arrow().field(name).type
        where = self.plan.where
        known = extremes_of(
            self.plan.snapshot,
            self._manifests,
            column,
            least=least,
            where=None if where is None else where.to_pruning(),
            hashes=self.plan.hashes,
        )
        best = _Best(least=least)
        waiting: list[tuple[FileGroup, ColumnBound]] = []
        for group in self.plan.groups:
            extreme = known.get(group.group_id, UNKNOWN)
            if extreme.exact and where is None:
                best.meet(extreme.bound)
            elif not extreme.none:
                waiting.append((group, extreme))
        unknown = [pair for pair in waiting if pair[1].bound is None]
        bounded = sorted((pair for pair in waiting if pair[1].bound is not None), key=lambda pair: pair[1].bound, reverse=not least)
        # The most promising one first: it may make the others unnecessary.
        for part in (unknown + bounded[:1], bounded[1:]):
            groups = [group for group, extreme in part if extreme.bound is None or best.would_improve(extreme.bound)]
            for rows in self._tables(groups, columns=[name]):
                best.meet((pc.min if least else pc.max)(as_numbers(rows.column(name))).as_py())
        return best.value_of(data_type)


def _base_rows(group: FileGroup) -> int:
    return 0 if group.base is None else group.base.rows


class _Best:
    """The least, or greatest, value met so far."""

    def __init__(self, *, least: bool) -> None:
        self._least = least
        self._value: Any = None

    def meet(self, value: Any) -> None:
        """Take in a value of `as_numbers`; None and NaN are nothing."""
        is_nan = isinstance(value, float) and math.isnan(value)
        if value is not None and not is_nan and self.would_improve(value):
            self._value = value

    def would_improve(self, value: Any) -> bool:
        """Whether a value is better than the best so far."""
        return self._value is None or bool(value < self._value if self._least else value > self._value)

    def value_of(self, data_type: pa.DataType) -> Any:
        """The best value in the column's type."""
        if self._value is None:
            return None
        if pa.types.is_temporal(data_type):
            return pa.scalar(self._value, pa.int32() if pa.types.is_date(data_type) else pa.int64()).cast(data_type).as_py()
        # Bounds of files do not distinguish 0.0 from -0.0.
        return self._value + 0.0 if isinstance(self._value, float) else self._value
