"""Tables in place on Spark: Python workers read their files, with the rows of a scan of this process."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from tests.tables.in_place import FORMATS, SCHEMA, in_order, rows
from tests.tables.test_parts_of_sources import NESTED, as_avro, as_orc, nested_rows


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_spark_reads_and_deletes_rows_of_files_in_place(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    for day in range(3):
        folder = tmp_path / f"in/day={day}"
        folder.mkdir(parents=True)
        (folder / f"a.{kind}").write_bytes(FORMATS[kind](rows(day * 50, day * 50 + 50)))
    lake = objcat.connect(tmp_path / "lake")
    source = objcat.Files(f"{tmp_path}/in/**/*.{kind}", format=kind, path_columns={"day": "int"})  # type: ignore[arg-type]
    table = lake.create_table("logs.app", SCHEMA, source=source)
    first = table.refresh_files().slots[-1]
    expected = [{**row, "day": row["id"] // 50} for row in rows(0, 150)]
    assert in_order(row.asDict() for row in table.scan().to_spark(spark).collect()) == in_order(expected)
    found = table.scan(where="day = 1 and id >= 90", columns=["id"]).to_spark(spark)
    assert sorted(row.id for row in found.collect()) == list(range(90, 100))
    done = table.delete("id % 10 = 3", spark=spark)
    assert done is not None and done.deleted == 15
    table.delete("id < 5", spark=spark)
    left = [row for row in expected if row["id"] % 10 != 3 and row["id"] >= 5]
    assert in_order(row.asDict() for row in table.scan().to_spark(spark).collect()) == in_order(left)
    assert lake.sql("SELECT count(*) AS n FROM logs.app", spark).collect()[0].n == len(left)
    gone = table.changes(since=first).to_spark(spark)
    assert gone.where("_change_type = 'delete'").count() == 150 - len(left)
    assert table.scan(columns=["id", "_commit_slot"]).to_spark(spark).select("_commit_slot").distinct().collect()[0][0] == first


def test_spark_reads_precomputed_columns_and_promoted_files(spark: SparkSession, tmp_path: Path) -> None:
    """Sources that are gone show what is read: a query that opened one would fail."""
    for day in range(3):
        folder = tmp_path / f"in/day={day}"
        folder.mkdir(parents=True)
        (folder / "a.json").write_bytes(FORMATS["json"](rows(day * 50, day * 50 + 50)))
    lake = objcat.connect(tmp_path / "lake")
    source = objcat.Files(f"{tmp_path}/in/**/*.json", format="json", path_columns={"day": "int"}, precompute=["name", "id"])
    table = lake.create_table("logs", SCHEMA, source=source)
    table.refresh_files()
    assert table.maintenance.promote(where="day = 0").files == 1
    expected = [{**row, "day": row["id"] // 50} for row in rows(0, 150)]
    assert in_order(row.asDict() for row in lake.sql("SELECT * FROM logs", spark).collect()) == in_order(expected)
    (tmp_path / "in/day=0/a.json").unlink()
    assert in_order(row.asDict() for row in lake.sql("SELECT * FROM logs", spark).collect()) == in_order(expected)
    (tmp_path / "in/day=1/a.json").unlink()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = lake.sql("SELECT name, count(*) AS n FROM logs WHERE id >= 100 GROUP BY name ORDER BY name", spark).collect()
    assert [row.n for row in found] == [sum(row["name"] == f"n{rest}" for row in rows(100, 150)) for rest in range(7)]
    assert lake.sql("SELECT count(*) AS n FROM logs", spark).collect()[0].n == 150
    assert [row.id for row in lake.sql("SELECT * FROM logs WHERE id = 120", spark).collect()] == [120]
    assert lake.sql("SELECT a.id FROM logs a JOIN logs b ON a.id = b.id AND b.name = 'n3' WHERE a.id > 140", spark).count() == 1
    kept = lake.sql("SELECT l.name FROM logs l LEFT JOIN (SELECT id FROM logs WHERE id = 7) r ON l.id = r.id WHERE r.id IS NULL", spark)
    assert kept.count() == 149


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_spark_reads_rows_by_positions(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    given = nested_rows(random.Random(8), 0, 120)
    (tmp_path / "in").mkdir()
    data = as_orc(given, rows_of_stripe=20) if kind == "orc" else as_avro(given, rows_of_block=20, codec="deflate")
    (tmp_path / f"in/a.{kind}").write_bytes(data)
    lake = objcat.connect(tmp_path / "lake")
    table = lake.create_table("t", NESTED, source=objcat.Files(f"{tmp_path}/in/*.{kind}", format=kind, precompute=["id"]))  # type: ignore[arg-type]
    table.refresh_files()
    table.delete("id in (0, 61)")
    found = table.scan(where="id in (0, 1, 61, 62, 119)").to_spark(spark)
    assert {row.id: row.pad for row in found.collect()} == {number: given[number]["pad"] for number in (1, 62, 119)}


def test_spark_reads_precomputed_fields(spark: SparkSession, tmp_path: Path) -> None:
    """Sources that are gone show what is read, and promoted files of the table are read beside them."""
    given = [{"id": n, "payload": None if n == 7 else {"status": n % 5, "user": {"name": f"u{n}"}, "body": "x"}} for n in range(40)]
    for day in (0, 1):
        (tmp_path / f"in/day={day}").mkdir(parents=True)
        (tmp_path / f"in/day={day}/a.json").write_text("".join(json.dumps(row) + "\n" for row in given[day * 20 : day * 20 + 20]))
    lake = objcat.connect(tmp_path / "lake")
    source = objcat.Files(
        f"{tmp_path}/in/*/*.json", format="json", path_columns={"day": "int"}, precompute=["payload.status", "payload.user.name"]
    )
    table = lake.create_table("logs", source=source)
    table.refresh_files()
    for _ in range(2):
        frame = table.scan(columns=["payload.user.name", "day"], where="payload.status = 2").to_spark(spark)
        assert sorted(row.payload.user.name for row in frame.collect()) == sorted(f"u{n}" for n in range(40) if n % 5 == 2 and n != 7)
        assert frame.schema["payload"].dataType.simpleString() == "struct<user:struct<name:string>>"
        assert sorted(row.payload is None for row in table.scan(columns=["payload.status"]).to_spark(spark).collect()) == [False] * 39 + [
            True
        ]
        found = lake.sql("SELECT payload.status AS s, count(*) AS n FROM logs WHERE payload.user.name <> 'u3' GROUP BY 1 ORDER BY 1", spark)
        assert [(row.s, row.n) for row in found.collect()] == [(0, 8), (1, 8), (2, 7), (3, 7), (4, 8)]
        assert lake.sql("SELECT count(*) AS n FROM logs", spark).collect()[0].n == 40
        if not (tmp_path / "in/day=0/a.json").exists():
            break
        assert table.maintenance.promote(where="day = 0").files == 1
        (tmp_path / "in/day=0/a.json").unlink()
        (tmp_path / "in/day=1/a.json").unlink()


def by_workers(frame: DataFrame) -> bool:
    """Whether Python workers give rows of a frame."""
    return "MapInArrow" in frame._jdf.queryExecution().optimizedPlan().toString()


def test_spark_itself_reads_precomputed_columns(spark: SparkSession, tmp_path: Path) -> None:
    for day in range(4):
        folder = tmp_path / f"in/day={day}"
        folder.mkdir(parents=True)
        (folder / "a.json").write_bytes(FORMATS["json"](rows(day * 50, day * 50 + 50)))
    lake = objcat.connect(tmp_path / "lake")
    source = objcat.Files(f"{tmp_path}/in/**/*.json", format="json", path_columns={"day": "int"}, precompute=["name", "id"])
    table = lake.create_table("logs", SCHEMA, source=source)
    slot = table.refresh_files().slots[-1]
    table.alter.rename_column("name", "called")
    table.alter.add_column("later", "int")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    every = [{"id": row["id"], "called": row["name"], "day": row["id"] // 50, "later": None} for row in rows(0, 200)]

    def check(frame: DataFrame, wanted: list[dict[str, object]], *, workers: bool) -> None:
        assert in_order(row.asDict() for row in frame.collect()) == in_order(wanted)
        assert by_workers(frame) is workers

    columns = ["id", "called", "day", "later"]
    check(table.scan(columns=columns).to_spark(spark), every, workers=False)
    check(table.scan(where="day = 2 and called = 'n3'", columns=columns).to_spark(spark), _of(every, 2, "n3"), workers=False)
    check(table.scan(columns=["day"]).to_spark(spark), [{"day": row["day"]} for row in every], workers=False)
    commits = table.scan(columns=["id", "_commit_slot"]).to_spark(spark)
    check(commits, [{"id": row["id"], "_commit_slot": slot} for row in every], workers=False)
    # Columns that a query of SQL needs are known after the scan.
    counted = lake.sql("SELECT called, count(*) AS n FROM logs WHERE day > 0 AND id % 2 = 0 GROUP BY called", spark)
    even = [row["called"] for row in every if row["id"] >= 50 and row["id"] % 2 == 0]
    check(counted, [{"called": name, "n": even.count(name)} for name in set(even)], workers=False)
    by_arrow = table.scan(where=pc.field("id") >= 195, columns=columns).to_spark(spark)
    check(by_arrow, [row for row in every if row["id"] >= 195], workers=True)
    # Names of files, and rows that are deleted by their positions, are known to workers.
    assert by_workers(table.scan(columns=["id", "_file"]).to_spark(spark))
    table.delete("id between 60 and 64")
    (tmp_path / "in/day=3/a.json").write_bytes(FORMATS["json"](rows(150, 230)))
    table.refresh_files(on_change="replace")
    left = [row for row in every if not 60 <= row["id"] <= 64] + [
        {"id": row["id"], "called": row["name"], "day": 3, "later": None} for row in rows(200, 230)
    ]
    check(table.scan(columns=columns).to_spark(spark), left, workers=True)
    # The new file may have the column that joined, which is not precomputed.
    third = [row for row in left if row["day"] == 3]
    check(table.scan(where="day = 3", columns=columns).to_spark(spark), third, workers=True)
    known = [{name: value for name, value in row.items() if name != "later"} for row in left if row["day"] != 1]
    check(table.scan(where="day <> 1", columns=columns[:3]).to_spark(spark), known, workers=False)
    check(lake.sql("SELECT id, called, day FROM logs WHERE day <> 1", spark), known, workers=False)
    mixed = lake.sql("SELECT id FROM logs WHERE id BETWEEN 45 AND 66", spark)
    check(mixed, [{"id": number} for number in (*range(45, 60), 65, 66)], workers=True)


def _of(given: list[dict[str, object]], day: int, name: str) -> list[dict[str, object]]:
    return [row for row in given if row["day"] == day and row["called"] == name]
