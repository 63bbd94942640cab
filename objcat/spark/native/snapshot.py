"""A snapshot as native relations: which files Spark reads in which relation, and how their rows become those of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from math import prod

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.lateness import horizon
from objcat.datafile.merge import OP_COLUMN
from objcat.metadata.schema import Column as TableColumn
from objcat.metadata.schema import arrow_type
from objcat.metadata.table_spec import PARTITION_SCOPE, TableSpec
from objcat.planning.event_time import UNKNOWN, LogOrder
from objcat.planning.scan import COMMIT_COLUMNS, ScanPlan
from objcat.spark.native.adopted import AdoptedLayout, layout_of, text_of
from objcat.spark.native.column_names import quoted
from objcat.spark.native.files import (
    BLOCK_BITS,
    RANK_BITS_BELOW,
    BaseRows,
    LogRowsOf,
    Sources,
    paths_inside,
    segment_rows,
    sources_of,
    txn_of,
)
from objcat.spark.native.merge import ORDER, PART, RANK, SURE, MergeRows, merged
from objcat.spark.native.ordering import order_of, sure_to_win
from objcat.spark.native.query import Expressions, Query, cast, of_frame, union
from objcat.spark.native.relation import Constant, NativeRoot, Relation, internal, is_outer, related, spark_schema, with_bounds
from objcat.spark.versions import from_arrow
from objcat.tasks.model import OP_FIELD, TXN_FIELD
from objcat.tasks.scan import FILE_COLUMN

_FILE = "_objcat_file"
_BUCKET = "_objcat_bucket"
_COUNT = "_objcat_count"
_ROW = "_objcat_row"
_START = "_objcat_start"
_OF_BASES = (Constant(RANK, "long"), *(Constant(name, "integer") for name in (PART, _BUCKET, _COUNT)), Constant(_FILE, "string"))
"""Constants of base files."""
_HORIZON = "_objcat_horizon"
_PACKED_MAX = 2**62
SEGMENTS_FILTERED_MAX = 32
"""Segments of log objects that are found by comparing each row with all of them."""
BITS_OF_ROW = 32
"""Bits for each base row that a set of keys may take."""
BITS_MIN, BITS_MAX = 2**23, 2**29
"""Bits that a set of keys may take however few rows there are, and at most: 1 and 64 MiB, which go to every task."""
GATED_ROWS_MIN = 2**18
"""Base rows that are worth a set of hashes before their join with log rows; reading log rows to hash them takes about 10 ms."""
BEFORE_ALL = -(10**17)
"""Microseconds or days before any value."""


def native_rows(
    spark: SparkSession,
    root: NativeRoot,
    plan: ScanPlan,
    bounds: pa.Table | None,
    *,
    order: LogOrder = UNKNOWN,
    then: Sequence[str | Expressions] = (),
) -> DataFrame:
    """The merged rows of a plan's file groups: its `columns_read` under logical names, and hidden columns. Lazy, without Python workers.

    Args:
        root: of `native_root`.
        bounds: of the files; None when they are unknown.
        order: of the log rows of the merged file groups.
        then: filters and projections of these rows, see `Query.shaped`.
    """
    return _SnapshotFrame(spark, root, plan, bounds, order).rows().shaped(*then).to_frame(spark)


@dataclass(frozen=True, slots=True)
class _SnapshotFrame:
    spark: SparkSession
    root: NativeRoot
    plan: ScanPlan
    bounds: pa.Table | None
    order: LogOrder

    @property
    def spec(self) -> TableSpec:
        return self.plan.snapshot.spec

    def rows(self) -> Query:
        scoped = self.spec.key_scope == PARTITION_SCOPE
        # Deletes that a compaction retained change nothing in the rows that it wrote.
        alone = sources_of([replace(group, logs=()) for group in self.plan.plain], scoped=scoped)
        layered = sources_of(self.plan.merged, scoped=scoped, by_group=self.spec.is_located)
        buckets = self._buckets([*alone.bases, *layered.bases])
        plain, merging = [], []
        if alone.bases:
            plain.append(self._bases(alone.bases, buckets))
        if layered.logs and self.spec.has_key:
            merging = merged(self._merge(layered, buckets))
        else:
            if layered.bases:
                plain.append(self._bases(layered.bases, buckets))
            if layered.logs:
                plain.append(self._logs(layered.logs))
        if not plain and not merging:
            plain.append(of_frame(self.spark.createDataFrame([], spark_schema(self._empty()))))
        if len(plain) == 1 and not merging:
            return self._logical(plain[0])
        return self._logical(union([*(rows.selected(self._kept()) for rows in plain), *merging]))

    def _kept(self) -> tuple[str, ...]:
        """Columns of the result, under internal names."""
        return (*(internal(column) for column in self.plan.columns_read), TXN_COLUMN, _FILE)

    def _empty(self) -> pa.Schema:
        columns = [(internal(column), arrow_type(column.type, physical=True)) for column in self.plan.columns_read]
        return pa.schema([*columns, (TXN_COLUMN, pa.string()), (_FILE, pa.string())])

    def _logical(self, rows: Query) -> Query:
        """The rows under logical names. A nested column whose fields were renamed is cast, field by field."""
        chosen: list[str | Mapping[str, str]] = []
        for column in self.plan.columns_read:
            said, kept = (spark_schema(pa.schema([("v", arrow_type(column.type, physical=physical))]))["v"] for physical in (False, True))
            same = said == kept
            chosen.append(f"{internal(column)} AS {quoted(column.name)}" if same else cast(internal(column), said.dataType, column.name))
        if FILE_COLUMN in self.plan.columns:
            chosen.append(f"{_FILE} AS {FILE_COLUMN}")
        if any(name in COMMIT_COLUMNS for name in self.plan.columns):
            chosen.append(TXN_COLUMN)
        return rows.selected(chosen)

    # ---- relations

    def _buckets(self, bases: Sequence[BaseRows]) -> int:
        """The bucket count that Spark may rely on, 0 for none: that of every file, none of which is shared since a split."""
        counts = {base.file.group_id.bucket_count for base in bases}
        is_one = len(counts) == 1 and not any(base.count for base in bases)
        return counts.pop() if is_one and self.spec.bucket_columns else 0

    def _sorted(self, bases: Sequence[BaseRows]) -> tuple[TableColumn, ...]:
        """Key columns by which each bucket ascends for Spark, where each is one file; empty where a file has another order."""
        if len({base.file.group_id.bucket for base in bases}) < len(bases) or any(base.file.is_unsorted for base in bases):
            return ()
        return tuple(takewhile(lambda column: str(column.type).partition("(")[0] in _ASCENDING, self.spec.key_columns))

    def _bases(self, bases: Sequence[BaseRows], buckets: int, *, is_merged: bool = False, key_span: tuple[int, int] | None = None) -> Query:
        """The base rows that count, with RANK and PART. `is_merged`: with log rows. `key_span`: see `Relation`."""
        own = [base for base in bases if base.file.adopted is None]
        if len(own) == len(bases):
            return self._base(own, buckets, is_merged=is_merged, key_span=key_span)
        layouts: dict[tuple[AdoptedLayout, bool], list[BaseRows]] = {}
        for base in bases:
            if base.file.adopted is not None:
                layouts.setdefault((layout_of(base.file.adopted), is_outer(base.file.path)), []).append(base)
        # The rules for bits and hashes know one relation alone.
        parts = [self._base(own, buckets)] if own else []
        parts += [self._adopted(layout, files) for (layout, _), files in sorted(layouts.items(), key=lambda item: item[0][0].names)]
        return union([rows.selected((*self._kept(), RANK, PART)) for rows in parts])

    def _adopted(self, layout: AdoptedLayout, bases: Sequence[BaseRows]) -> Query:
        """The rows of files of one layout, which all are of the table or all are not."""
        columns = self.plan.columns_read
        constants = layout.constants(columns)
        files = self._base_files(bases)
        files = files.append_column(TXN_COLUMN, pa.array([base.file.adopted.txn for base in bases if base.file.adopted], pa.string()))
        for column_id, constant in constants.items():
            files = files.append_column(constant.name, pa.array([text_of(base.file, column_id) for base in bases], pa.string()))
        relation = Relation(
            name=f"objcat {self.spec.table} slot {self.plan.snapshot.slot} adopted",
            files=with_bounds(files, self.bounds),
            columns=layout.columns_in_files(columns),
            constants=(*_OF_BASES, Constant(TXN_COLUMN, "string"), *constants.values()),
            is_outer=is_outer(bases[0].file.path),
        )
        hidden = (TXN_COLUMN, _FILE, RANK, PART, _BUCKET, _COUNT)
        return self._own_rows(related(self.root, relation).selected([*layout.expressions(columns), *hidden]), bases)

    def _base_files(self, bases: Sequence[BaseRows]) -> pa.Table:
        """Base files as a relation has them, without bounds."""
        return pa.table(
            {
                "path": paths_inside([base.file.path for base in bases]),
                "bytes": [base.file.bytes for base in bases],
                "rows": [base.file.rows for base in bases],
                "bucket": [base.file.group_id.bucket for base in bases],
                "bucket_count": [base.file.group_id.bucket_count for base in bases],
                RANK: [-1] * len(bases),
                PART: [base.part for base in bases],
                _FILE: [base.file.path for base in bases],
                _BUCKET: [base.bucket for base in bases],
                _COUNT: [base.count for base in bases],
            }
        )

    def _own_rows(self, rows: Query, bases: Sequence[BaseRows]) -> Query:
        """The rows of base files that are of the file groups which are read, since a split."""
        if any(base.count for base in bases):
            return rows.where(f"{_COUNT} = 0 OR {self._hash_modulo(_COUNT)} = {_BUCKET}")
        return rows

    def _base(self, bases: Sequence[BaseRows], buckets: int, *, is_merged: bool = False, key_span: tuple[int, int] | None = None) -> Query:
        """The rows of base files that objcat wrote."""
        rows_merged = sum(base.file.rows for base in bases) if is_merged else 0
        relation = Relation(
            name=f"objcat {self.spec.table} slot {self.plan.snapshot.slot} base",
            files=with_bounds(self._base_files(bases), self.bounds),
            columns=self.plan.columns_read,
            hidden=(TXN_FIELD,),
            constants=_OF_BASES,
            hashed=tuple(self.spec.bucket_columns),
            buckets=buckets,
            key_span=key_span,
            base_rows=rows_merged if rows_merged >= GATED_ROWS_MIN else 0,
            sorted=() if is_merged or not buckets else self._sorted(bases),
        )
        return self._own_rows(related(self.root, relation), bases)

    def _logs(self, logs: Sequence[LogRowsOf], *, row_by_row: bool = False) -> Query:
        """The log rows that count, with RANK, PART and operation. `row_by_row`: each row has its own rank, not that of its object."""
        whole = [log for log in logs if log.segments is None]
        cut = [log for log in logs if log.segments is not None]
        starts = dict(zip((log.rank for log in logs), accumulate((log.object.rows for log in logs), initial=0), strict=False))
        found = []
        if whole:
            found.append(self._log_relation(whole, starts, positions=row_by_row))
        if cut:
            found.append(self._inside(self._log_relation(cut, starts, positions=True), cut))
        names = (*self._kept(), f"{_START} + {_ROW} AS {RANK}" if row_by_row else RANK, PART, OP_COLUMN)
        return union([self._timely(rows).selected(names) for rows in found])

    def _inside(self, rows: Query, logs: Sequence[LogRowsOf]) -> Query:
        """The rows of log objects within their segments, with the PART of the segment. Few segments are a filter, not a join."""
        segments = [(log, one) for log in logs for one in log.segments or ()]
        if len(segments) <= SEGMENTS_FILTERED_MAX and all(one.part == log.part for log, one in segments):
            own = [f"{RANK} = {log.rank} AND {_ROW} >= {one.start} AND {_ROW} < {one.end}" for log, one in segments]
            buckets = [f" AND {self._hash_modulo(str(one.count))} = {one.bucket}" if one.count else "" for _, one in segments]
            return rows.where(" OR ".join(f"({inside}{bucket})" for inside, bucket in zip(own, buckets, strict=True)))
        at = f"shiftleft({RANK}, {RANK_BITS_BELOW}) | shiftright({_ROW}, {BLOCK_BITS})"
        inside = f"of_block = ({at}) AND {_ROW} >= of_first AND {_ROW} < of_last"
        if any(one.count for _, one in segments):
            inside += f" AND (of_count = 0 OR {self._hash_modulo('cast(of_count AS int)')} = of_bucket)"
        hidden = (*self._kept(), RANK, OP_COLUMN, _HORIZON, _START, _ROW)
        of = of_frame(from_arrow(self.spark, segment_rows(logs)))
        return rows.joined(of, inside, "inner", "broadcast").selected([*hidden, f"cast(of_part AS int) AS {PART}"])

    def _timely(self, rows: Query) -> Query:
        """The rows without log rows that are late for their slot, see `objcat.datafile.merge`. No session setting matters here."""
        ordering = self.spec.ordering_column
        if self.spec.lateness_ms is None or ordering is None:
            return rows
        value = internal(ordering)
        if ordering.type == "date":
            late = f"unix_date({value}) < {_HORIZON}"
        elif ordering.type == "timestamp":
            late = f"unix_micros({value}) < {_HORIZON}"
        else:
            late = f"{value} - TIMESTAMP_NTZ '1970-01-01 00:00:00' < make_dt_interval(0, 0, 0, {_HORIZON} / 1000000)"
        barrier = " OR ".join(f"{internal(column)} IS NULL" for column in self.spec.ordering_columns)
        return rows.where(f"{barrier} OR NOT ({late})")

    def _horizon(self, log: LogRowsOf) -> int:
        """The least ordering value that is not late, in days or microseconds since 1970; before all where nothing is late."""
        bound = horizon(self.spec, log.committed_at_ms)
        return BEFORE_ALL if bound is None else int(bound.cast(pa.int32() if pa.types.is_date(bound.type) else pa.int64()).as_py())

    def _log_relation(self, logs: Sequence[LogRowsOf], starts: Mapping[int, int], *, positions: bool) -> Query:
        """Log objects as a relation. `starts`: for a rank, how many rows come before it. `positions`: with row numbers."""
        files = pa.table(
            {
                "path": paths_inside([log.object.path for log in logs]),
                "bytes": [log.object.bytes for log in logs],
                "rows": [log.object.rows for log in logs],
                "bucket": [0] * len(logs),
                "bucket_count": [0] * len(logs),
                RANK: [log.rank for log in logs],
                PART: [log.part for log in logs],
                _FILE: [log.object.path for log in logs],
                TXN_COLUMN: [txn_of(log) for log in logs],
                _HORIZON: pa.array([self._horizon(log) for log in logs], pa.int64()),
                _START: [starts[log.rank] for log in logs],
            }
        )
        stale = {log.rank: self.order.stale[log.object.path] for log in logs if self.order.stale.get(log.object.path)}
        relation = Relation(
            name=f"objcat {self.spec.table} slot {self.plan.snapshot.slot} log",
            files=files,
            columns=self.plan.columns_read,
            nullable=True,
            hidden=(OP_FIELD,),
            constants=(
                Constant(RANK, "long"),
                Constant(PART, "integer"),
                Constant(_FILE, "string"),
                Constant(TXN_COLUMN, "string"),
                Constant(_HORIZON, "long"),
                Constant(_START, "long"),
            ),
            log_rows=sum(log.object.rows for log in logs),
        )
        rows = related(self.root, relation, row_index=_ROW if positions or stale else None)
        return rows.outside(RANK, _ROW, stale) if stale else rows

    def _hash_modulo(self, count: str) -> str:
        """The bucket of a row, as Spark and objcat compute it."""
        return f"pmod(hash({', '.join(internal(column) for column in self.spec.bucket_columns)}), {count})"

    # ---- the merge

    def _merge(self, sources: Sources, buckets: int) -> MergeRows:
        spec = self.spec
        ordering = [] if self.order.is_commit_order else spec.ordering_columns
        sure = None if not ordering else SURE if self.order.wins_over_base else sure_to_win(ordering, self.order.limit)

        def ordered(rows: Query) -> Query:
            return rows.selected(["*", f"{order_of(ordering)} AS {ORDER}"]) if ordering else rows

        scoped = (spec.key_scope == PARTITION_SCOPE or spec.is_located) and sources.parts > 1
        key = ([PART] if scoped else []) + [internal(column) for column in spec.key_columns]
        by_key = buckets > 0 and not scoped and set(spec.index.columns) == set(spec.key)
        fields = self._whole_fields(sources.parts if scoped else 1)
        is_adopted = any(base.file.adopted is not None for base in sources.bases)
        by_key_alone = not ordering or sure is not None
        span = _span(fields, sum(base.file.rows for base in sources.bases)) if by_key_alone and not is_adopted else None
        is_dense = span is not None and not ordering
        return MergeRows(
            base=ordered(self._bases(sources.bases, buckets, is_merged=True, key_span=span)) if sources.bases else None,
            logs=ordered(self._logs(sources.logs, row_by_row=is_dense and sources.log_objects > 1)),
            columns=self._kept(),
            key=tuple(key),
            packed=_packed(fields),
            has_ordering=bool(ordering),
            barriers=any(self._may_be_null(column) for column in ordering),
            objects=sources.log_objects,
            log_rows=sources.log_rows,
            layout=buckets if by_key else None,
            width=lambda: buckets or int(str(self.spark.conf.get("spark.sql.shuffle.partitions"))),
            spread=self._spread(buckets),
            dense=is_dense,
            sure=sure,
        )

    def _spread(self, buckets: int) -> tuple[int, tuple[str, ...]] | None:
        """The buckets of the base files, to which log rows are distributed, so that joins and aggregates on the key move no base row.

        `Layout` removes that again where nothing uses it. None where a filter gives the keys, because few buckets are left then.
        """
        if not buckets or self.plan.hashes is not None:
            return None
        return buckets, tuple(internal(column) for column in self.spec.bucket_columns)

    def _may_be_null(self, column: TableColumn) -> bool:
        name = f"nulls_{column.id}"
        if self.bounds is None or name not in self.bounds.column_names:
            return True
        nulls = self.bounds.column(name)
        return bool(nulls.null_count) or bool(pc.any(pc.greater(nulls, 0)).as_py())

    def _whole_fields(self, parts: int) -> list[_Whole] | None:
        """What identifies a row, as whole numbers, where file bounds limit them; else None."""
        if self.bounds is None:
            return None
        fields = [] if parts == 1 else [_Whole(PART, 0, parts - 1)]
        for column in self.spec.key_columns:
            limits = _limits(self.bounds, column)
            if limits is None:
                return None
            value = f"unix_date({internal(column)})" if column.type == "date" else internal(column)
            fields.append(_Whole(value, *limits))
        return fields


@dataclass(frozen=True, slots=True)
class _Whole:
    """A whole number of each row: its SQL, the least and the greatest value."""

    value: str
    low: int
    high: int

    @property
    def count(self) -> int:
        """How many values it may have."""
        return self.high - self.low + 1


def _packed(fields: Sequence[_Whole] | None) -> str | None:
    """Several fields as the digits of one non-negative number, where they fit, so that a join compares one long."""
    if fields is None or prod(field.count for field in fields) > _PACKED_MAX:
        return None
    if len(fields) == 1:
        return fields[0].value
    packed = ""
    for field in fields:
        digit = f"(cast({field.value} AS bigint) - ({field.low}L))" if field.low else f"cast({field.value} AS bigint)"
        packed = f"({packed} * {field.count}L + {digit})" if packed else digit
    return packed


def _span(fields: Sequence[_Whole] | None, rows: int) -> tuple[int, int] | None:
    """The range of the number that identifies a row, packed or not; None where a bit for each value is too much for the rows."""
    if fields is None:
        return None
    low, high = (fields[0].low, fields[0].high) if len(fields) == 1 else (0, prod(field.count for field in fields) - 1)
    return (low, high) if high - low < min(BITS_MAX, max(BITS_MIN, rows * BITS_OF_ROW)) else None


_ASCENDING = ("tinyint", "smallint", "int", "bigint", "decimal", "date", "timestamp", "timestamp_ntz", "string", "binary")
"""Types whose values writers and Spark sort alike. Spark compares floating-point columns by other rules than values."""
_WHOLE = ("tinyint", "smallint", "int", "bigint", "date")


def _limits(bounds: pa.Table, column: TableColumn) -> tuple[int, int] | None:
    """The least and the greatest value of a whole-number column, over all files; None where they are unknown."""
    names = (f"lower_{column.id}", f"upper_{column.id}")
    if column.type not in _WHOLE or any(name not in bounds.column_names for name in names) or not bounds.num_rows:
        return None
    lower, upper = (bounds.column(name) for name in names)
    if lower.null_count or upper.null_count:
        return None
    if pa.types.is_date(lower.type):
        lower, upper = lower.cast(pa.int32()), upper.cast(pa.int32())
    low, high = int(pc.min(lower).as_py()), int(pc.max(upper).as_py())
    return low, high
