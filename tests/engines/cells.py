"""The kinds of histories that the matrix crosses with engines and formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

import objcat
from tests.engines import beginnings, steps
from tests.engines.histories import CITIES, Cell, Step

ID = pa.field("id", pa.int64(), nullable=False)
CITY = pa.field("city", pa.string())
PLAIN = pa.schema(
    [ID, CITY, ("v", pa.string()), ("n", pa.int32()), ("amount", pa.decimal128(9, 2)), pa.field("fare", pa.float64(), nullable=False)]
)
TIMED = pa.schema([ID, CITY, ("v", pa.string()), pa.field("ts", pa.timestamp("us", "UTC"), nullable=False), ("n", pa.int32())])
PARTED = pa.schema(
    [ID, CITY, ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32()), ("flag", pa.bool_()), ("v", pa.string())]
)
INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
TYPES = pa.schema(
    [
        ID,
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("int", pa.int32()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("amount", pa.decimal128(9, 2)),
        ("large", pa.decimal128(38, 10)),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("ok", pa.bool_()),
        ("date", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("struct", INNER),
        ("deep", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.decimal128(9, 2)))), ("t", pa.timestamp("us"))]))),
    ]
)
EVOLVING = pa.schema(
    [
        ID,
        CITY,
        ("v", pa.string()),
        ("n", pa.int32()),
        ("single", pa.float32()),
        ("amount", pa.decimal128(9, 2)),
        ("small", pa.int8()),
        ("st", INNER),
    ]
)

WRITES: Mapping[Step, float] = {
    steps.upsert: 6,
    steps.upsert_many: 1,
    steps.upsert_known: 3,
    steps.insert: 1,
    steps.delete: 3,
    steps.delete_where: 1,
    steps.update: 1,
    steps.merge: 1,
    steps.nothing: 0.5,
}
TIMED_WRITES: Mapping[Step, float] = {
    steps.upsert: 6,
    steps.upsert_many: 1,
    steps.upsert_known: 4,
    steps.delete: 2,
    steps.delete_at_a_time: 3,
    steps.compact: 1.5,
    steps.compact_some: 1.5,
    steps.nothing: 0.5,
}
COMPACTIONS: Mapping[Step, float] = {steps.compact: 1.5, steps.compact_some: 1, steps.compact_late: 0.5}
SCHEMA_CHANGES: Mapping[Step, float] = {
    steps.add_column: 2,
    steps.drop_column: 2,
    steps.rename_column: 2,
    steps.move_column: 1,
    steps.widen_column: 2,
    steps.change_struct: 2,
}
SMALL = {"target_file_bytes": "2048"}


def _bucketed(count: int = 3, **settings: Any) -> Any:
    return lambda _rng: {"key": ["id"], "index": objcat.BucketIndex(count), **settings}


def _indexed(index: Any) -> Any:
    """Rows move when their city changes."""
    return lambda _rng: {"key": ["id"], "index": index, "partition_by": ["city"], "properties": SMALL}


def _index_cell(name: str, title: str, index: Any) -> Cell:
    return Cell(name, f"{title} index, keys that move between partitions", PLAIN, _indexed(index), {**WRITES, **COMPACTIONS})


ALL = (
    Cell("commit-order", "merge-on-read, the later commit wins", PLAIN, _bucketed(), {**WRITES, **COMPACTIONS, steps.transaction: 1}),
    Cell("event-time", "merge-on-read by event time: late rows, deletes with a time", TIMED, _bucketed(ordering="ts"), TIMED_WRITES),
    Cell(
        "lateness",
        "the same with an allowed lateness of 7 days, while time passes",
        TIMED,
        _bucketed(ordering="ts", allowed_lateness="7 days"),
        {**TIMED_WRITES, steps.pass_time: 4},
        passes_time=True,
    ),
    Cell("copy-on-write", "copy-on-write", PLAIN, _bucketed(table_type="copy_on_write"), WRITES),
    _index_cell("simple-index", "simple", objcat.SimpleIndex()),
    _index_cell("bloom-index", "Bloom", objcat.BloomIndex()),
    _index_cell("memory-index", "memory", objcat.MemoryIndex()),
    _index_cell("record-index", "record", objcat.RecordIndex(2)),
    Cell(
        "partitioned",
        "partitions of texts such as `北京` and `a/b c`, and without a value",
        PLAIN,
        _bucketed(2, partition_by=["city"], key_scope="partition"),
        {**WRITES, **COMPACTIONS, steps.insert_overwrite: 1, steps.delete_partition: 1},
        cities=(*CITIES, None),
    ),
    Cell(
        "repartitioned",
        "every transform, and partition specs that change",
        PARTED,
        _bucketed(2, partition_by=["day(at)"], key_scope="partition"),
        {**WRITES, **COMPACTIONS, steps.set_partitioning: 4},
        cities=(*CITIES, None),
    ),
    Cell("split", "buckets that are split", PLAIN, _bucketed(1), {**WRITES, **COMPACTIONS, steps.split: 2}),
    Cell("clustered", "file groups that are clustered", PLAIN, _indexed(objcat.SimpleIndex()), {**WRITES, **COMPACTIONS, steps.cluster: 3}),
    Cell(
        "restored",
        "restored, also over splits and changes of the schema",
        EVOLVING,
        _bucketed(2),
        {**WRITES, **COMPACTIONS, steps.split: 1, steps.add_column: 1.5, steps.rename_column: 1, steps.drop_column: 1, steps.restore: 3},
    ),
    Cell(
        "cleaned",
        "savepoints, and slots that were cleaned",
        PLAIN,
        _bucketed(2),
        {**WRITES, **COMPACTIONS, steps.savepoint: 1, steps.clean: 1.5, steps.archive: 0.5},
    ),
    Cell(
        "no-key",
        "without a key",
        PLAIN,
        lambda _rng: {"key": None, "partition_by": ["city"], "properties": SMALL},
        {
            steps.insert: 6,
            steps.delete_where: 2,
            steps.update: 2,
            steps.compact: 1,
            steps.cluster: 1,
            steps.nothing: 0.5,
            steps.overwrite: 0.3,
        },
    ),
    Cell("types", "every type, also nested, with values at the edges", TYPES, _bucketed(2), {**WRITES, **COMPACTIONS}, edges=True),
    Cell(
        "evolution",
        "columns added, dropped, renamed, moved, widened, names used again",
        EVOLVING,
        _bucketed(2),
        {**WRITES, **COMPACTIONS, **SCHEMA_CHANGES},
    ),
    Cell("partial", "partial upserts", PLAIN, _bucketed(2), {**WRITES, **COMPACTIONS, steps.upsert_partial: 8}),
    Cell("overwritten", "overwritten as a whole", PLAIN, _bucketed(2), {**WRITES, **COMPACTIONS, steps.overwrite: 2}),
    Cell(
        "shared-log",
        "the first of several tables in one log",
        PLAIN,
        _bucketed(2, shared_log="both"),
        {**WRITES, **COMPACTIONS, steps.transaction: 2, steps.beside: 4},
        begin=beginnings.create_before_another,
    ),
    Cell(
        "shared-log-later",
        "a later one of several tables in one log",
        PLAIN,
        _bucketed(2, shared_log="both"),
        {**WRITES, **COMPACTIONS, steps.transaction: 2, steps.beside: 4},
        begin=beginnings.create_after_another,
    ),
    Cell(
        "imported",
        "imported from Parquet files",
        PLAIN,
        _bucketed(2),
        {**WRITES, **COMPACTIONS, steps.import_files: 4},
        begin=beginnings.import_parquet,
    ),
    *(
        Cell(
            f"adopted-{form.lower()}",
            f"adopted from {form}, and clustered",
            PLAIN,
            lambda _rng: {"key": ["id"], "properties": SMALL},
            {**WRITES, **COMPACTIONS, steps.cluster: 1},
            begin=begin,
            at={12: steps.rewrite_adopted},
            waits=waits,
        )
        # Files of a partitioned Delta table lack the partition column, which mirrors cannot say.
        for form, begin, waits in (("Iceberg", beginnings.adopt_iceberg, ()), ("Delta", beginnings.adopt_delta, ("iceberg", "delta")))
    ),
    Cell(
        "held",
        "a change that Iceberg cannot express, and nothing after it in the Iceberg mirror",
        PLAIN,
        _bucketed(2),
        WRITES,
        at={10: steps.widen_beyond_iceberg},
        waits=("iceberg",),
        waits_to_the_end=True,
    ),
    Cell(
        "held-for-a-time",
        "the same, after the old files were rewritten",
        PLAIN,
        _bucketed(2),
        WRITES,
        at={8: steps.widen_beyond_iceberg, 14: steps.rewrite_all},
        waits=("iceberg",),
    ),
    Cell(
        "begun-late",
        "columns as in the line on their changes, and mirrors that were turned on later",
        EVOLVING,
        _bucketed(2),
        {**WRITES, **COMPACTIONS, **SCHEMA_CHANGES},
        begin=beginnings.create_without_mirrors,
        at={20: steps.turn_on_mirrors},
        waits=("iceberg", "delta"),
    ),
    Cell(
        "catalog",
        "found by the REST catalog of `objcat serve`",
        EVOLVING,
        _bucketed(2),
        {**WRITES, **COMPACTIONS, **SCHEMA_CHANGES, steps.split: 1},
        by_catalog=True,
    ),
)
CELLS: Mapping[str, Cell] = {cell.name: cell for cell in ALL}
CHIEF = (
    "event-time",
    "restored",
    "cleaned",
    "types",
    "evolution",
    "shared-log-later",
    "held",
    "catalog",
)
"""What engines read without `--all`: the kinds in which they have limits, and each way to change a schema."""
