"""Values survive: whatever a type can hold, and nulls in every type, through each kind of table, each engine, upserts and compactions."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidSchema

UTC = dt.UTC
INF, NAN = math.inf, math.nan
NINES = Decimal("9" * 38)
TEXTS = ["", " ", "Zürich", "Zu\u0308rich", "日本", "🙂", "a\x00b", "line\r\n\ttab", "'\"\\`", "NULL", "\u202eleft", "x" * 10_000]
DAYS = [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]
MOMENTS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1582, 10, 10, 1, 2, 3, 4),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2026, 3, 29, 2, 30),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
]
PLACE = pa.struct([("x", pa.float64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
DEEP = pa.list_(pa.struct([("tags", pa.map_(pa.string(), pa.list_(pa.decimal128(38, 10)))), ("raw", pa.binary())]))

VALUES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-(2**7), -1, 0, 2**7 - 1]),
    "smallint": (pa.int16(), [-(2**15), -1, 0, 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]),
    "float": (pa.float32(), [NAN, INF, -INF, -0.0, 0.0, 1.401298464324817e-45, 3.4028234663852886e38]),
    "double": (pa.float64(), [NAN, INF, -INF, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1]),
    "small decimal": (pa.decimal128(3, 2), [Decimal("-9.99"), Decimal("0.00"), Decimal("9.99")]),
    "decimal of 18 digits": (pa.decimal128(18, 0), [Decimal(-(10**18) + 1), Decimal(10**18 - 1)]),
    "decimal of 38 digits": (pa.decimal128(38, 0), [NINES.copy_negate(), Decimal(0), NINES]),
    "fraction of 38 digits": (pa.decimal128(38, 38), [Decimal("1E-38"), Decimal("0." + "9" * 38), Decimal("-0." + "9" * 38)]),
    "string": (pa.string(), TEXTS),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff\xfe", bytes(range(256))]),
    "date": (pa.date32(), DAYS),
    "timestamp": (pa.timestamp("us", tz="UTC"), [moment.replace(tzinfo=UTC) for moment in MOMENTS]),
    "timestamp_ntz": (pa.timestamp("us"), MOMENTS),
    "struct": (PLACE, [{"x": None, "name": None, "at": None}, {"x": -0.0, "name": "", "at": MOMENTS[0].replace(tzinfo=UTC)}]),
    "list": (pa.list_(pa.float64()), [[], [None], [NAN, -0.0, None, INF]]),
    "list of lists": (pa.list_(pa.list_(pa.string())), [[], [[]], [None, [], [None, "", "é"]]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("", None)], [("日本", -1), ("a", 2**63 - 1)]]),
    "deep": (
        DEEP,
        [
            [],
            [None, {"tags": None, "raw": None}, {"tags": [], "raw": b""}],
            [{"tags": [("k", [Decimal("0.0000000001"), None]), ("l", None)], "raw": b"\x00"}],
        ],
    ),
}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), *(pa.field(name, data_type) for name, (data_type, _) in VALUES.items())])
ROWS = 2 * max(len(values) for _, values in VALUES.values()) + 2


def batch(ids: range, *, turn: int) -> pa.Table:
    """Rows in which every column goes through its values and null, from another one of them at each turn."""
    columns = [pa.array(ids, pa.int64())]
    for data_type, values in VALUES.values():
        cycle = [*values, None]
        columns.append(pa.array([cycle[(number + turn) % len(cycle)] for number in ids], data_type))
    return pa.table(columns, schema=SCHEMA)


def frame(spark: SparkSession, rows: pa.Table) -> Any:
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)).repartition(3)


def said(rows: pa.Table) -> dict[int, dict[str, str]]:
    """Rows by id, values as text: so NaN is equal to itself, and -0.0 is not 0.0."""
    assert rows.num_rows == len(set(rows.column("id").to_pylist())), "a key is there twice"
    return {row["id"]: {name: repr(value) for name, value in row.items()} for row in rows.to_pylist()}


def check(table: objcat.Table, spark: SparkSession, expected: pa.Table) -> None:
    """Read alike by this process and by Spark."""
    wanted = said(expected)
    scan = table.scan()
    assert said(scan.to_arrow()) == wanted
    through_spark = scan.to_spark(spark)
    assert "Python" not in through_spark._jdf.queryExecution().executedPlan().toString()
    assert said(through_spark.toArrow().cast(scan.schema)) == wanted


@pytest.mark.parametrize("writer", ["local", "spark"])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_values_of_every_type_survive(spark: SparkSession, tmp_path: Path, kind: TableType, writer: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))

    def given(rows: pa.Table) -> Any:
        return rows if writer == "local" else frame(spark, rows)

    before, after = batch(range(ROWS), turn=0), batch(range(ROWS // 2, ROWS + 4), turn=5)
    table.insert(given(before))
    check(table, spark, before)
    table.upsert(given(after))
    expected = pa.concat_tables([before.slice(0, ROWS // 2), after])
    check(table, spark, expected)
    if kind == "merge_on_read":
        assert table.maintenance.compact() is not None
        check(table, spark, expected)
    table.upsert(given(before))
    expected = pa.concat_tables([before, after.slice(ROWS - ROWS // 2)])
    check(table, spark, expected)
    # What Spark reads can be written as it is.
    table.upsert(table.scan().to_spark(spark) if writer == "spark" else table.scan().to_arrow())
    check(table, spark, expected)


PLACES = [*TEXTS[:-1], "..", ".", "a/b", "%2F", "a=b", "CON", "~", None]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_any_text_is_a_key_and_a_partition(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("place", pa.string()), ("v", pa.int64())])
    table = objcat.connect(tmp_path).create_table(
        "t", schema, key=["id"], partition_by=["place"], key_scope="partition", table_type=kind, index=objcat.BucketIndex(2)
    )
    keys = [text for text in PLACES if text is not None]
    rows = [{"id": key, "place": place, "v": 0} for key in keys[:6] for place in PLACES]
    changed = [row | {"v": 1} for row in rows[::2]]
    table.insert(pa.Table.from_pylist(rows, schema))
    table.upsert(frame(spark, pa.Table.from_pylist(changed, schema)))
    if kind == "merge_on_read":
        table.maintenance.compact()
    changed += [row | {"v": 2} for row in rows[1::4]]
    table.upsert(pa.Table.from_pylist(changed, schema))
    wanted = {(row["id"], row["place"]): row["v"] for row in [*rows, *changed]}
    for found in (table.scan().to_arrow(), table.scan().to_spark(spark).toArrow()):
        assert found.num_rows == len(wanted)
        assert {(row["id"], row["place"]): row["v"] for row in found.to_pylist()} == wanted
    for place in ("", "Zürich", "a/b", ".."):
        scan = table.scan(where=f"place = '{place}'")
        assert len(scan.to_arrow()) == scan.to_spark(spark).count() == 6, place


@pytest.mark.parametrize("data_type", [pa.decimal128(5, -2), pa.decimal256(76, 2), pa.uint64(), pa.duration("us")], ids=str)
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_type_that_some_engine_cannot_hold_is_refused_at_once(tmp_path: Path, kind: TableType, data_type: pa.DataType) -> None:
    lake = objcat.connect(tmp_path)
    with pytest.raises(InvalidSchema, match=r"'v' has the type .*, which Spark cannot hold\. Cast it"):
        lake.create_table("t", pa.schema([pa.field("id", pa.int64()), pa.field("v", data_type)]), key=["id"], table_type=kind)
    assert lake.tables() == []
