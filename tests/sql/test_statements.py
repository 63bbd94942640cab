"""Statements that are no queries: each does what its operation in Python does, on both engines where an engine matters."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, InvalidSchema, InvalidSql, NamespaceExists, TableExists, TableNotFound


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    return objcat.connect(tmp_path)


def made(lake: objcat.Lake) -> objcat.Table:
    lake.sql("CREATE NAMESPACE shop")
    lake.sql("CREATE TABLE shop.orders (id BIGINT, city STRING, amount DECIMAL(10,2), PRIMARY KEY (id)) CLUSTERED BY (id) INTO 4 BUCKETS")
    return lake.table("shop.orders")


def test_a_table_is_declared_as_in_python(lake: objcat.Lake) -> None:
    told = lake.sql("""
        CREATE TABLE IF NOT EXISTS events (
            id BIGINT NOT NULL COMMENT 'of the event', at TIMESTAMP, n TIMESTAMP_NTZ, day DATE, city STRING, ok BOOLEAN, small TINYINT,
            price DECIMAL(12,3), raw BINARY, where_ STRUCT<x: DOUBLE, y: ARRAY<STRING>>, tags MAP<STRING, INT>, PRIMARY KEY (id, city)
        ) USING objcat PARTITIONED BY (days(at), city, truncate(city, 2)) CLUSTERED BY (id) INTO 8 BUCKETS
        COMMENT 'what happened' TBLPROPERTIES ('table_type' = 'copy_on_write', ordering = 'at', 'key_scope' = 'partition', owner = 'us')
    """)
    assert told.num_rows == 0
    spec = lake.table("events").spec
    expected = lake.create_table(
        "twin",
        lake.table("events").schema,
        key=["id", "city"],
        ordering="at",
        partition_by=["day(at)", "city", "truncate(city, 2)"],
        key_scope="partition",
        index=objcat.BucketIndex(8, ("id",)),
        table_type="copy_on_write",
        properties={"owner": "us", "comment": "what happened"},
    ).spec
    for name in ("table_schema", "key", "ordering", "table_type", "key_scope", "partitioning", "index", "properties"):
        assert getattr(spec, name) == getattr(expected, name), name
    assert lake.table("events").schema.field("where_").type == pa.struct(
        [("x", pa.float64()), ("y", pa.list_(pa.field("element", pa.string())))]
    )
    assert not lake.table("events").schema.field("city").nullable
    lake.sql("CREATE TABLE IF NOT EXISTS events (other INT)")
    with pytest.raises(TableExists):
        lake.sql("CREATE TABLE events (other INT)")


def test_an_insert_of_a_query_without_rows_makes_no_commit(lake: objcat.Lake) -> None:
    table = made(lake)
    told = lake.sql("INSERT INTO shop.orders SELECT * FROM shop.orders WHERE id = 7")
    assert told.to_pylist() == [{"slot": None, "rows": 0, "inserted": 0, "updated": 0, "deleted": 0}]
    assert len(table.inspect.history()) == 1


def test_a_table_is_made_of_a_query(lake: objcat.Lake) -> None:
    made(lake).insert([{"id": i, "city": "Rome", "amount": Decimal(i)} for i in range(10)])
    told = lake.sql("CREATE TABLE best TBLPROPERTIES ('key' = 'id') AS SELECT id, amount * 2 AS twice FROM shop.orders WHERE id > 6")
    assert told.to_pylist() == [{"slot": 1, "rows": 3, "inserted": None, "updated": None, "deleted": None}] or told["rows"].to_pylist() == [
        3
    ]
    assert sorted(lake.sql("SELECT id FROM best")["id"].to_pylist()) == [7, 8, 9]
    assert [column.name for column in lake.table("best").spec.key_columns] == ["id"]
    with pytest.raises(TableExists):
        lake.sql("CREATE TABLE best AS SELECT 1 AS x")
    assert lake.sql("CREATE TABLE IF NOT EXISTS best AS SELECT 1 AS x").num_rows == 0
    lake.sql("CREATE TABLE log AS SELECT 1 AS x")
    assert not lake.table("log").spec.has_key


def test_rows_are_inserted_by_position_and_by_name(lake: objcat.Lake) -> None:
    table = made(lake)
    told = lake.sql("INSERT INTO shop.orders VALUES (1, 'Rome', 1.5), (2, NULL, 2)")
    assert told.to_pylist() == [{"slot": 1, "rows": 2, "inserted": 2, "updated": None, "deleted": None}]
    lake.sql("INSERT INTO shop.orders (amount, id) SELECT amount + 1, id + 10 FROM shop.orders")
    lake.sql("INSERT INTO shop.orders BY NAME SELECT 'Oslo' AS city, 5 AS id")
    rows = sorted(
        (row["id"], row["city"], None if row["amount"] is None else float(row["amount"])) for row in table.scan().to_arrow().to_pylist()
    )
    assert rows == [(1, "Rome", 1.5), (2, None, 2.0), (5, "Oslo", None), (11, None, 2.5), (12, None, 3.0)]
    slot = table.refresh().slot
    for text, kind, said in (
        ("INSERT INTO shop.orders VALUES (1, 'x')", InvalidSql, "gives 2 columns, and 3 are expected"),
        ("INSERT INTO shop.orders (id, town) VALUES (1, 'x')", InvalidSql, "no column 'town'"),
        ("INSERT INTO shop.orders (id) VALUES ('x')", InvalidSql, "Could not convert"),
        ("INSERT INTO shop.orders (city) VALUES ('x')", InvalidInput, "id"),
        ("INSERT INTO shop.order VALUES (1)", TableNotFound, "shop.orders"),
    ):
        with pytest.raises(kind, match=said):
            lake.sql(text)
    assert table.refresh().slot == slot


def test_partitions_and_tables_are_overwritten(lake: objcat.Lake) -> None:
    lake.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, city STRING, v INT) PARTITIONED BY (city) TBLPROPERTIES ('key_scope' = 'partition')")

    def rows() -> list[tuple[int, str, int]]:
        return sorted((row["id"], row["city"], row["v"]) for row in lake.sql("SELECT * FROM p").to_pylist())

    with pytest.raises(InvalidInput):
        lake.sql("CREATE TABLE q (id BIGINT PRIMARY KEY, city STRING) PARTITIONED BY (town)")
    lake.sql("INSERT INTO p VALUES (1, 'Rome', 1), (2, 'Rome', 2), (3, 'Oslo', 3), (4, 'Kyiv', 4)")
    lake.sql("INSERT OVERWRITE p VALUES (9, 'Rome', 9)")
    assert rows() == [(3, "Oslo", 3), (4, "Kyiv", 4), (9, "Rome", 9)]
    lake.sql("INSERT OVERWRITE p PARTITION (city = 'Oslo') SELECT id + 10, v FROM p")
    assert rows() == [(4, "Kyiv", 4), (9, "Rome", 9), (13, "Oslo", 3), (14, "Oslo", 4), (19, "Oslo", 9)]
    lake.sql("INSERT INTO p REPLACE WHERE city = 'Oslo' VALUES (5, 'Oslo', 5)")
    lake.sql("ALTER TABLE p DROP PARTITION (city = 'Kyiv')")
    assert rows() == [(5, "Oslo", 5), (9, "Rome", 9)]
    for text, said in (
        ("INSERT OVERWRITE p PARTITION (city) SELECT 1, 1", "has no value"),
        ("INSERT INTO p PARTITION (city = 'x') SELECT 1, 1", "is not supported"),
        ("INSERT OVERWRITE p PARTITION (v = 1) SELECT 1, 'x'", "v"),
    ):
        with pytest.raises(InvalidInput, match=said):
            lake.sql(text)
    assert lake.sql("TRUNCATE TABLE p")["deleted"].to_pylist() == [2] and rows() == []
    table = made(lake)
    lake.sql("INSERT INTO shop.orders VALUES (1, 'a', 1), (2, 'b', 2)")
    lake.sql("INSERT OVERWRITE shop.orders SELECT id + 5, city, amount FROM shop.orders WHERE id = 1")
    assert table.scan(columns=["id"]).to_arrow()["id"].to_pylist() == [6]


def test_rows_are_deleted_by_a_filter(lake: objcat.Lake) -> None:
    table = made(lake)
    table.insert([{"id": i, "city": "ab"[i % 2], "amount": Decimal(i)} for i in range(10)])
    assert lake.sql("DELETE FROM shop.orders WHERE id > 6 AND orders.city = 'a'")["deleted"].to_pylist() == [1]
    assert lake.sql("DELETE FROM shop.orders WHERE id = 100").to_pylist() == [
        {"slot": None, "rows": 0, "inserted": 0, "updated": 0, "deleted": 0}
    ]
    with pytest.raises(InvalidSql, match="MERGE INTO"):
        lake.sql("DELETE FROM shop.orders WHERE id IN (SELECT id FROM shop.orders)")
    assert lake.sql("DELETE FROM shop.orders")["deleted"].to_pylist() == [9] and table.scan().count() == 0


def test_rows_are_updated(lake: objcat.Lake) -> None:
    table = made(lake)
    table.insert([{"id": i, "city": "ab"[i % 2], "amount": Decimal(i)} for i in range(6)])
    told = lake.sql("UPDATE shop.orders o SET o.amount = o.amount + 10, city = upper(city) WHERE o.id >= 4 AND city IS NOT NULL")
    assert told["updated"].to_pylist() == [2]
    rows = {row["id"]: (row["city"], int(row["amount"])) for row in table.scan(where="id >= 3").to_arrow().to_pylist()}
    assert rows == {3: ("b", 3), 4: ("A", 14), 5: ("B", 15)}
    assert lake.sql("UPDATE shop.orders SET city = 'x' WHERE id = 77")["slot"].to_pylist() == [None]
    with pytest.raises(InvalidSql, match="MERGE INTO"):
        lake.sql("UPDATE shop.orders SET city = (SELECT max(city) FROM shop.orders)")
    with pytest.raises(InvalidInput, match="id"):
        lake.sql("UPDATE shop.orders SET id = 7")


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_are_merged(lake: objcat.Lake, kind: str) -> None:
    lake.sql(f"CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, note STRING) TBLPROPERTIES ('table_type' = '{kind}')")
    lake.sql("CREATE TABLE s (key BIGINT, v BIGINT, op STRING)")
    lake.sql("INSERT INTO t SELECT id, id * 10, 'old' FROM (VALUES (1), (2), (3), (4)) x(id)")
    lake.sql("INSERT INTO s VALUES (1, 100, 'u'), (2, 200, 'd'), (9, 900, 'u'), (8, 1, 'u')")
    told = lake.sql("""
        MERGE INTO t AS target USING (SELECT key, v, op FROM s WHERE key < 100) AS change ON target.id = change.key
        WHEN MATCHED AND change.op = 'd' THEN DELETE
        WHEN MATCHED THEN UPDATE SET v = target.v + change.v, target.note = 'new'
        WHEN NOT MATCHED AND change.v > 1 THEN INSERT (id, v) VALUES (change.key, change.v)
        WHEN NOT MATCHED BY SOURCE AND target.id = 3 THEN UPDATE SET note = 'alone'
        WHEN NOT MATCHED BY SOURCE THEN DELETE
    """)
    assert told.to_pylist() == [{"slot": 2, "rows": 5, "inserted": 1, "updated": 2, "deleted": 2}]
    rows = {row["id"]: (row["v"], row["note"]) for row in lake.sql("SELECT * FROM t").to_pylist()}
    assert rows == {1: (110, "new"), 3: (30, "alone"), 9: (900, None)}
    lake.sql("MERGE INTO t USING t VERSION AS OF 1 AS old ON t.id = old.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
    rows = {row["id"]: (row["v"], row["note"]) for row in lake.sql("SELECT * FROM t").to_pylist()}
    assert rows == {1: (10, "old"), 2: (20, "old"), 3: (30, "old"), 4: (40, "old"), 9: (900, None)}
    for text, said in (
        ("MERGE INTO t USING s ON t.id = s.key WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *", "is not supported"),
        ("MERGE INTO t USING s ON t.id = s.key WHEN NOT MATCHED THEN INSERT (id) VALUES (1, 2)", "a value for each column"),
        ("MERGE INTO t USING s ON t.v = s.v WHEN MATCHED THEN DELETE", "key"),
    ):
        with pytest.raises(InvalidInput, match=said):
            lake.sql(text)


def test_columns_names_and_properties_change(lake: objcat.Lake) -> None:
    table = made(lake)
    for text in (
        "ADD COLUMNS (a INT, b STRUCT<x: INT, y: STRING> AFTER id)",
        "ADD COLUMN b.z DECIMAL(10,2)",
        "ADD COLUMN first_ INT FIRST",
        "ALTER COLUMN a TYPE BIGINT",
        "ALTER COLUMN b.x TYPE BIGINT",
        "RENAME COLUMN city TO town",
        "RENAME COLUMN b.y TO why",
        "ALTER COLUMN town AFTER a",
        "ALTER COLUMN amount FIRST",
        "DROP COLUMN first_",
        "SET TBLPROPERTIES ('owner' = 'us', team = 'b')",
        "UNSET TBLPROPERTIES ('team')",
    ):
        assert lake.sql(f"ALTER TABLE shop.orders {text}").num_rows == 0
    table.refresh()
    assert table.schema.names == ["amount", "id", "b", "a", "town"]
    assert table.schema.field("b").type == pa.struct([("x", pa.int64()), ("why", pa.string()), ("z", pa.decimal128(10, 2))])
    assert table.properties == {"owner": "us"}
    lake.sql("ALTER TABLE shop.orders RENAME TO sales")
    assert lake.tables() == ["shop.sales"]
    with pytest.raises(InvalidSchema):
        lake.sql("ALTER TABLE shop.sales ALTER COLUMN id TYPE STRING")
    with pytest.raises(InvalidSql, match="NOT NULL"):
        lake.sql("ALTER TABLE shop.sales ADD COLUMN x INT NOT NULL")
    with pytest.raises(InvalidSql, match="is not supported"):
        lake.sql("ALTER TABLE shop.sales RECOVER PARTITIONS")
    for name in ("key", "objcat.Table_Type", "index"):
        with pytest.raises(InvalidSql, match="when it is created, and ALTER TABLE does not change it"):
            lake.sql(f"ALTER TABLE shop.sales SET TBLPROPERTIES ('owner' = 'you', '{name}' = 'amount')")
    assert lake.table("shop.sales").properties == {"owner": "us"}


def test_nulls_are_allowed(lake: objcat.Lake) -> None:
    lake.sql("CREATE TABLE t (id BIGINT, a INT NOT NULL, b STRUCT<x: INT NOT NULL> NOT NULL, PRIMARY KEY (id))")
    for path in ("a", "b", "b.x"):
        lake.sql(f"ALTER TABLE t ALTER COLUMN {path} DROP NOT NULL")
    lake.sql("INSERT INTO t VALUES (1, NULL, NULL)")
    lake.sql("INSERT INTO t VALUES (2, 5, named_struct('x', NULL))")
    assert lake.sql("SELECT id, a, b.x AS x FROM t ORDER BY id").to_pylist() == [
        {"id": 1, "a": None, "x": None},
        {"id": 2, "a": 5, "x": None},
    ]
    with pytest.raises(InvalidSchema, match="'id' is a key column"):
        lake.sql("ALTER TABLE t ALTER COLUMN id DROP NOT NULL")


def test_names_come_and_go(lake: objcat.Lake) -> None:
    made(lake)
    lake.sql("CREATE NAMESPACE IF NOT EXISTS shop")
    with pytest.raises(NamespaceExists):
        lake.sql("CREATE SCHEMA shop")
    assert lake.sql("SHOW TABLES IN shop").to_pylist() == [{"table": "shop.orders"}]
    lake.sql("DROP TABLE shop.orders")
    with pytest.raises(TableNotFound):
        lake.sql("DROP TABLE shop.orders")
    lake.sql("DROP TABLE IF EXISTS shop.orders")
    assert lake.sql("SHOW TABLES").num_rows == 0
    lake.sql("UNDROP TABLE shop.orders")
    lake.sql("DROP TABLE shop.orders")
    assert lake.sql("SHOW NAMESPACES").to_pylist() == [{"namespace": "shop"}]
    lake.sql("DROP NAMESPACE shop")
    assert lake.sql("SHOW NAMESPACES").num_rows == 0


def test_what_a_table_is_told_of(lake: objcat.Lake) -> None:
    table = made(lake)
    table.insert([{"id": 1, "city": "Rome", "amount": Decimal(1)}], metadata={"why": "asked"})
    columns = lake.sql("DESCRIBE TABLE shop.orders").to_pylist()
    assert columns[0] == {"column": "id", "type": "bigint", "nullable": False, "key": True} and len(columns) == 3
    assert lake.sql("SHOW COLUMNS IN shop.orders").to_pylist() == columns
    history = lake.sql("DESCRIBE HISTORY shop.orders")
    assert history.equals(table.inspect.history().to_arrow()) and history["slot"].to_pylist() == [0, 1]
    table.set_properties({"owner": "us"})
    assert lake.sql("SHOW TBLPROPERTIES shop.orders").to_pylist() == [{"property": "owner", "value": "us"}]
    assert lake.sql("SHOW PARTITIONS shop.orders").equals(table.inspect.partitions())


def test_services_are_called(lake: objcat.Lake) -> None:
    table = made(lake)
    table.insert([{"id": i, "city": "Rome", "amount": Decimal(i)} for i in range(8)])
    table.upsert([{"id": 1, "city": "Oslo", "amount": Decimal(1)}])
    told: dict[str, Any] = lake.sql("CALL compact(table => 'shop.orders')").to_pylist()[0]
    assert told["slot"] == 3 == table.refresh().slot
    assert lake.sql("CALL compact('shop.orders')").num_rows == 0
    assert lake.sql("CALL system.savepoint(table => 'shop.orders', slot => 2, name => 'before')")["slot"].to_pylist() == [4]
    lake.sql("CALL split_buckets('shop.orders', count => 8)")
    lake.sql("CALL restore(table => 'shop.orders', to => 1)")
    assert lake.sql("SELECT city FROM shop.orders WHERE id = 1").to_pylist() == [{"city": "Rome"}]
    lake.sql("CALL clean(table => 'shop.orders', keep_slots => 1)")
    lake.sql("CALL rollback_dead('shop.orders', older_than_s => 3600)")
    for text, said in (
        ("CALL compct('shop.orders')", "compact"),
        ("CALL clean('shop.orders', keep => 1)", "keep_slots"),
        ("CALL clean()", "of which table"),
        ("CALL release('shop.orders', 1, 2)", "takes 1 arguments"),
        ("CALL compact('shop.orders', file_groups => array(1))", "no argument 'file_groups'"),
        ("CALL compact('shop.orders', log_byte_min => 1)", "log_bytes_min"),
        ("CALL clean('shop.orders', keep_slots => 1 + 1)", "not a plain value"),
        ("CALL 7", "names no service"),
        ("CALL", "does not parse"),
    ):
        with pytest.raises(InvalidSql, match=said):
            lake.sql(text)


def test_services_that_look_after_tables_are_called(lake: objcat.Lake) -> None:
    table = made(lake)
    for day in range(3):
        table.upsert([{"id": i, "city": f"day {day}", "amount": Decimal(i)} for i in range(8)])
    assert lake.sql("CALL compact('shop.orders', log_bytes_min => 1000000000)").num_rows == 0
    plan = lake.sql("CALL schedule_compaction('shop.orders', order => 'log_count')").to_pylist()[0]
    assert lake.sql("CALL scheduled_compactions('shop.orders')").to_pylist() == [plan]
    (done,) = lake.sql("CALL execute_scheduled('shop.orders')").to_pylist()
    assert json.loads(done["result"])["rows"] == 8 and json.loads(done["plan"])["txn"] == plan["txn"]
    assert lake.sql("CALL scheduled_compactions('shop.orders')").num_rows == 0
    assert lake.sql("CALL maintain('shop.orders', seconds_max => 60)")["table"].to_pylist() == ["shop.orders"]
    assert lake.sql("CALL maintain()")["table"].to_pylist() == ["shop.orders"]
    lake.sql("CALL archive('shop.orders', keep_slots => 100)")
    lake.sql("CALL collect_checkpoints('shop.orders')")
    assert json.loads(lake.sql("CALL plan_erasure('shop.orders', 'id = 3')").to_pylist()[0]["saved"]) == []
    (certificate,) = lake.sql("CALL erase('shop.orders', keys => 'id = 3')").to_pylist()
    assert (certificate["deleted"], certificate["found"]) == (1, 0) and json.loads(certificate["files"])
    lake.sql("CREATE TABLE shop.clicks (page STRING)")
    clicks = lake.table("shop.clicks")
    for page in ("b", "a"):
        clicks.bulk_insert([{"page": page}])
    lake.sql("CALL cluster('shop.clicks', by => array('page'))")
    assert [row["page"] for row in clicks.scan().to_arrow().to_pylist()] == ["a", "b"]
    held = lake.sql("SELECT * FROM shop.orders ORDER BY id").to_pylist()
    assert lake.sql("CALL cluster('shop.orders', by => array('amount', 'id'), zorder => true)")["groups"].to_pylist()[0] > 0
    assert lake.sql("SELECT * FROM shop.orders ORDER BY id").to_pylist() == held


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE OR REPLACE TABLE t (id INT)", "CREATE OR REPLACE is not supported"),
        ("CREATE VIEW v AS SELECT 1", "CREATE VIEW is not supported"),
        ("CREATE TABLE t (id INT CHECK (id > 0))", "Leave it out"),
        ("CREATE TABLE t (id INTERVAL)", "is not supported"),
        ("CREATE TABLE t (id TIME)", "The type TIME is not supported"),
        ("CREATE TABLE t (id UUID)", "The type UUID is not supported"),
        ("CREATE TABLE t (id DECIMAL(39, 0))", "has 39 digits. Give a decimal 1 to 38 digits"),
        ("CREATE TABLE t (id BIGINT, name VARCHAR(5))", r"VARCHAR\(5\) limits the length of values, .*\. Leave out the number"),
        ("CREATE TABLE t", "names no columns"),
        ("CREATE TABLE t (id INT) USING delta", "USING delta is not supported"),
        ("CREATE TABLE t (id INT) LOCATION 's3://x'", "Leave it out"),
        ("CREATE TABLE t (id INT) PARTITIONED BY (day DATE)", "declares a column"),
        ("DROP VIEW v", "DROP VIEW is not supported"),
        ("SHOW FUNCTIONS", "is not supported"),
        ("UNDROP t", "UNDROP TABLE name"),
        ("OPTIMIZE t", "is not a supported statement"),
    ],
)
def test_what_is_not_there_says_so(lake: objcat.Lake, text: str, said: str) -> None:
    with pytest.raises(InvalidSql, match=said):
        lake.sql(text)
    assert lake.tables() == [] and lake.namespaces.list() == []


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t LIMIT 1",
        "DELETE FROM t USING u",
        "DELETE FROM t VERSION AS OF 1",
        "DELETE FROM t, u",
        "DELETE u FROM t",
        "WITH q AS (SELECT 1 AS id) DELETE FROM t",
        "TRUNCATE TABLE t PARTITION (v = 1)",
        "TRUNCATE TABLE t, u",
        "UPDATE t SET v = 5 LIMIT 1",
        "UPDATE t SET v = 5 FROM u",
        "UPDATE t, u SET v = 5",
        "UPDATE t SET s.v = 5",
        "UPDATE t SET u.v = 5",
        "UPDATE t SET v = 5, v = 6",
        "UPDATE t SET (v, w) = (5, 6)",
        "WITH u AS (SELECT 9 AS id, 9 AS v) INSERT INTO t (id, v) SELECT * FROM u",
        "INSERT INTO t (id, v) VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET v = 5",
        "INSERT OR ABORT INTO t (id, v) VALUES (1, 5)",
        "INSERT INTO t (id, s.v) VALUES (9, 5)",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET s.v = u.v",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET v = u.v WHERE u.v > 100",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET * EXCEPT (v)",
        "MERGE INTO t USING u ON t.id = u.id WHEN NOT MATCHED THEN INSERT (id, v) VALUES (u.id, u.v) WHERE u.v > 100",
        "MERGE INTO t VERSION AS OF 1 USING u ON t.id = u.id WHEN MATCHED THEN DELETE",
        "MERGE INTO t USING u USING (id) WHEN MATCHED THEN DELETE",
        "SELECT * INTO v FROM t",
        "DROP TABLE t PURGE",
        "ALTER TABLE t DROP CONSTRAINT v",
        "ALTER VIEW t RENAME TO x",
    ],
)
def test_what_a_statement_says_beyond_what_is_done_is_refused(lake: objcat.Lake, text: str) -> None:
    lake.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT, s STRUCT<v: INT>)")
    lake.sql("CREATE TABLE u (id BIGINT PRIMARY KEY, v INT)")
    lake.sql("INSERT INTO t VALUES (1, 1, named_struct('v', 1)), (2, 2, NULL)")
    lake.sql("INSERT INTO u VALUES (1, 10), (3, 30)")
    slots = {name: lake.table(name).snapshot.slot for name in ("t", "u")}
    with pytest.raises(InvalidSql):
        lake.sql(text)
    assert {name: lake.table(name).snapshot.slot for name in lake.tables()} == slots


def test_the_source_of_a_merge_has_the_names_that_it_is_given(lake: objcat.Lake) -> None:
    lake.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT)")
    lake.sql("INSERT INTO t VALUES (1, 2)")
    lake.sql("MERGE INTO t USING (SELECT id, v FROM t) AS s (v, id) ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    assert lake.sql("SELECT id, v FROM t ORDER BY id").to_pylist() == [{"id": 1, "v": 2}, {"id": 2, "v": 1}]
