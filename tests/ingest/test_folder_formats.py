"""A landing folder: formats of files, their schemas as they change, and deletes."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.ingest.landing import Landing

# ---- formats


FILES = """
[[source.files]]
columns = { id = "bigint", name = "string", price = "decimal(10, 2)", at = "timestamp", day = "date", ok = "boolean", x = "double" }
"""
ROW = {
    "id": 1,
    "name": 'a "quoted",\nname',
    "price": Decimal("12345678.90"),
    "at": dt.datetime(2024, 5, 6, 7, 8, 9, 123456, dt.UTC),
    "day": dt.date(2024, 2, 29),
    "ok": True,
    "x": 0.1,
}
EMPTY = dict.fromkeys(ROW, None) | {"id": 2}


@pytest.mark.parametrize("zipped", [False, True])
def test_csv(landing: Landing, zipped: bool) -> None:
    landing.configure(files=FILES)
    text = (
        "name,id,unknown,price,at,day,ok,x\r\n"
        '"a ""quoted"",\nname",1,?,12345678.90,2024-05-06T09:08:09.123456+02:00,2024-02-29,true,0.1\r\n'
        ",2,?,,,,,\r\n"
        '"",3,?,,2024-05-06 07:08:09,,,\r\n'
    )
    data = ("\ufeff" + text).encode()
    landing.write("orders/a.csv" + ".gz" * zipped, gzip.compress(data) if zipped else data)
    landing.once()
    first, second, third = landing.rows("orders")
    assert first == ROW and second == EMPTY
    assert third["name"] == "" and third["at"] == dt.datetime(2024, 5, 6, 7, 8, 9, 0, dt.UTC)


def test_csv_without_a_header(landing: Landing) -> None:
    landing.configure(files='[[source.files]]\nheader = false\ndelimiter = ";"\nnulls = ["NULL"]\ncolumns = { id = "int", n = "string" }')
    landing.write("orders/a.csv", "1;x\n2;NULL\n3;\n")
    landing.once()
    assert [row["n"] for row in landing.rows("orders")] == ["x", None, ""]


@pytest.mark.parametrize("zipped", [False, True])
def test_json_lines(landing: Landing, zipped: bool) -> None:
    landing.configure(files=FILES.replace("x = ", 'tags = "array<struct<k:string,v:double>>", doc = "string", x = '))
    lines = (
        '{"id": 1, "name": "a \\"quoted\\",\\nname", "price": 12345678.90, "at": "2024-05-06T07:08:09.123456Z", "day": "2024-02-29", '
        '"ok": true, "x": 0.1, "tags": [{"k": "a", "v": 0.5}], "doc": {"deep": [1.50]}, "unknown": 1}\n\n{"id": 2}\n'
    )
    landing.write("orders/a.jsonl" + ".gz" * zipped, gzip.compress(lines.encode()) if zipped else lines)
    landing.once()
    first, second = landing.rows("orders")
    assert {name: first[name] for name in ROW} == ROW and first["tags"] == [{"k": "a", "v": 0.5}]
    assert json.loads(first["doc"]) == {"deep": [1.5]} and second["name"] is None and second["tags"] is None


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "ok", "type": ["null", "boolean"]},
        {"name": "x", "type": ["null", "double"]},
        {"name": "kind", "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}]},
        {"name": "tags", "type": ["null", {"type": "map", "values": "long"}]},
        {
            "name": "lines",
            "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}},
        },
    ],
}


def avro_bytes(schema: dict[str, Any], rows: list[dict[str, Any]]) -> bytes:
    target = io.BytesIO()
    fastavro.writer(target, fastavro.parse_schema(schema), rows)
    return target.getvalue()


def test_avro(landing: Landing) -> None:
    more = {"kind": "B", "tags": {"a": 1}, "lines": [{"n": 1}, {"n": 2}]}
    landing.write("orders/a.avro", avro_bytes(AVRO, [ROW | more, EMPTY | {"kind": None, "tags": None, "lines": []}]))
    landing.once()
    first, second = landing.rows("orders")
    assert {name: first[name] for name in ROW} == ROW and {name: second[name] for name in ROW} == EMPTY
    assert first["kind"] == "B" and dict(first["tags"]) == {"a": 1} and first["lines"] == [{"n": 1}, {"n": 2}] and second["lines"] == []


def test_types_of_parquet_that_a_lake_does_not_have(landing: Landing) -> None:
    table = pa.table(
        {
            "id": pa.array([1], pa.uint64()),
            "t": pa.array([dt.time(1, 2, 3)], pa.time64("us")),
            "ns": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "words": pa.array(["a"]).dictionary_encode(),
            "nothing": pa.nulls(1),
        }
    )
    landing.parquet("orders/a.parquet", table)
    landing.once()
    (row,) = landing.rows("orders")
    assert row["id"] == Decimal(1) and row["t"].startswith("01:02:03") and row["words"] == "a" and "nothing" not in row
    assert row["ns"] == dt.datetime(2023, 11, 14, 22, 13, 20, 123456)


def test_columns_that_are_declared_are_all_that_is_taken_of_parquet(landing: Landing) -> None:
    landing.configure(files='[[source.files]]\ncolumns = { id = "bigint", n = "decimal(20, 0)" }')
    landing.parquet("orders/a.parquet", [{"id": 1, "n": 5, "secret": "x"}])
    landing.once()
    assert landing.rows("orders") == [{"id": 1, "n": Decimal(5)}]


# ---- schemas


def test_columns_join_and_widen(landing: Landing) -> None:
    landing.parquet("orders/1.parquet", [{"id": 1, "n": 1}], pa.schema([("id", pa.int64()), ("n", pa.int32())]))
    landing.once()
    landing.parquet(
        "orders/2.parquet", [{"id": 2, "n": 2**40, "new": "x"}], pa.schema([("id", pa.int64()), ("n", pa.int64()), ("new", pa.string())])
    )
    landing.parquet("orders/3.parquet", [{"id": 3, "n": 3}], pa.schema([("id", pa.int64()), ("n", pa.int32())]))
    landing.once()
    assert landing.rows("orders") == [
        {"id": 1, "n": 1, "new": None},
        {"id": 2, "n": 2**40, "new": "x"},
        {"id": 3, "n": 3, "new": None},
    ]
    landing.parquet("orders/4.parquet", [{"id": 1, "n": "text"}])
    assert landing.once().dead == 1
    (letter,) = landing.dead()
    assert "'n' is string, and bigint in files before it" in letter["error"] and landing.record()["orders/4.parquet"]["state"] == "broken"


def test_a_file_without_the_key_is_broken(landing: Landing) -> None:
    landing.parquet("orders/a.parquet", [{"n": 1}])
    landing.parquet("orders/b.parquet", [{"id": 1}])
    assert landing.once().dead == 1 and landing.ids() == [1] and "no column 'id'" in landing.dead()[0]["error"]


# ---- deletes


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_deletes_by_a_column(landing: Landing, deletes: str) -> None:
    files = '[[source.files]]\ncolumns = { id = "bigint", n = "bigint" }\ndelete_column = "op"\n'
    landing.configure(files=files, route=f'deletes = "{deletes}"')
    landing.write("orders/1.csv", "id,n,op\n1,1,I\n2,1,I\n3,1,\n4,1,I\n4,2,D\n5,1,D\n5,2,I\n")
    landing.once()
    landing.write("orders/2.csv", "op,id\nD,1\ndelete,3\n")
    landing.once()
    rows = landing.rows("orders")
    if deletes == "hard":
        assert rows == [{"id": 2, "n": 1}, {"id": 5, "n": 2}]
    else:
        alive = [(row["id"], row["n"]) for row in rows if not row["_deleted"]]
        assert alive == [(2, 1), (5, 2)] and {row["id"] for row in rows if row["_deleted"]} >= {1, 3}


def test_deletes_by_a_column_of_true_and_false(landing: Landing) -> None:
    landing.configure(files='[[source.files]]\ndelete_column = "_deleted"\n')
    landing.parquet("orders/1.parquet", [{"id": 1, "_deleted": False}, {"id": 2, "_deleted": None}, {"id": 3, "_deleted": False}])
    landing.parquet("orders/2.parquet", [{"id": 1, "_deleted": True}])
    landing.once()
    assert landing.rows("orders") == [{"id": 2}, {"id": 3}]


def test_a_history_keeps_every_row(landing: Landing) -> None:
    landing.configure(files='[[source.files]]\ncolumns = { id = "bigint" }\ndelete_column = "op"\n', route='deletes = "history"')
    landing.write("orders/1.csv", "id,op\n1,I\n1,I\n1,D\n1,I\n")
    landing.once()
    rows = sorted(landing.rows("orders"), key=lambda row: row["_source_seq"])
    assert [row["_op"] for row in rows] == ["insert", "insert", "delete", "insert"] and rows[0]["_source_pos"] == "orders/1.csv"
