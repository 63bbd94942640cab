"""CALL: every service that a table and a lake have in Python, with its arguments."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, InvalidSql, TableExists, TableNotFound
from objcat.lake.namespaces import LakeNamespaces
from objcat.sql.call import OF_LAKES, OF_TABLES
from objcat.table.alter import TableAlterer
from objcat.table.inspect import TableInspector
from objcat.table.maintenance import TableMaintenance

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])
OTHERWISE = {
    # Of a table.
    **dict.fromkeys(("upsert", "insert", "bulk_insert", "upsert_partial", "apply_changes"), "INSERT and MERGE"),
    "delete": "DELETE",
    "update": "UPDATE",
    "merge": "MERGE",
    "insert_overwrite": "INSERT OVERWRITE",
    "overwrite": "INSERT OVERWRITE",
    "delete_partition": "ALTER TABLE ... DROP PARTITION",
    "scan": "SELECT",
    "advise_precomputed": "Python: the queries are texts in a statement already",
    "inspect.history": "DESCRIBE HISTORY",
    "inspect.partitions": "SHOW PARTITIONS",
    "inspect.commit_metadata": "DESCRIBE HISTORY",
    "set_properties": "ALTER TABLE ... SET TBLPROPERTIES",
    **dict.fromkeys((f"alter.{kind}_column" for kind in ("add", "drop", "rename", "move", "widen")), "ALTER TABLE"),
    **dict.fromkeys(("alter.drop_not_null", "alter.set_default", "alter.drop_default", "alter.apply"), "ALTER TABLE"),
    **dict.fromkeys(("incremental", "changes"), "rows of a feed are read in Python"),
    **dict.fromkeys(("refresh", "on_commit"), "of a handle, not of a table"),
    # Of a lake.
    "create_table": "CREATE TABLE",
    "write": "CREATE TABLE ... AS SELECT and INSERT",
    "table": "a name in a statement",
    "tables": "SHOW TABLES",
    "namespaces.list": "SHOW NAMESPACES",
    "transaction": "a statement is a transaction of its own",
    "sql": "itself",
    **dict.fromkeys(
        ("import_parquet", "adopt_iceberg", "adopt_delta"), "they read files outside of the lake's tables, which no statement does"
    ),
}
"""What is no service of CALL, and what is said instead."""


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    found = objcat.connect(tmp_path)
    found.create_table("shop.orders", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    for city in ("Rome", "Oslo"):
        found.table("shop.orders").upsert([{"id": i, "city": city} for i in range(4)])
    return found


PARTS = {"maintenance": TableMaintenance, "alter": TableAlterer, "inspect": TableInspector}


def public(owner: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")}


def methods_of_a_table() -> set[str]:
    return public(objcat.Table) | {f"{part}.{name}" for part, owner in PARTS.items() for name in public(owner)}


def methods_of_a_lake() -> set[str]:
    return public(objcat.Lake) | {f"namespaces.{name}" for name in public(LakeNamespaces)}


class Recorder:
    """Stands for a table, and says which of its methods was asked for."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(f"{self.path}.{name}".strip("."))


def test_every_method_of_a_table_is_called_or_said_otherwise() -> None:
    """A new method of `Table` gets a CALL, or a line above that says how SQL does it."""
    table: Any = Recorder()
    called = {work(table).path for name, work in OF_TABLES.items() if name != "doctor"}  # type: ignore[attr-defined]
    assert called | set(OTHERWISE) >= methods_of_a_table()
    assert called <= methods_of_a_table() and not called & set(OTHERWISE)


def test_every_method_of_a_lake_is_called_or_said_otherwise() -> None:
    lake: Any = Recorder()
    own = {"dropped_tables", "create_derived", "refresh_derived"}  # With other arguments.
    called = {work(lake).path for name, work in OF_LAKES.items() if name not in ("doctor", *own)} | own  # type: ignore[attr-defined]
    assert called | set(OTHERWISE) >= methods_of_a_lake()
    assert called <= methods_of_a_lake() and not called & set(OTHERWISE)


def test_what_is_said_otherwise_is_there() -> None:
    assert set(OTHERWISE) <= methods_of_a_table() | methods_of_a_lake()


def rows(lake: objcat.Lake, text: str) -> list[dict[str, Any]]:
    return lake.sql(text).to_pylist()


def test_a_doctor_is_called_for_a_table_and_for_a_lake(lake: objcat.Lake) -> None:
    (told,) = rows(lake, "CALL doctor('shop.orders', deep => true)")
    assert told["healthy"] is True and json.loads(told["findings"]) == []
    assert json.loads(told["looked_at"])["rows"] > 0
    assert [row["tables"] for row in rows(lake, "CALL doctor()")] == ["", "shop.orders"]
    table = lake.table("shop.orders")
    table._context.fileio.delete(table.inspect.files()["path"].to_pylist())
    (told,) = rows(lake, "CALL doctor(table => 'shop.orders')")
    assert (told["healthy"] is False and "is gone" in told["findings"]) or "missing" in told["findings"]


def test_what_a_table_tells_is_called(lake: objcat.Lake) -> None:
    table = lake.table("shop.orders")
    assert rows(lake, "CALL stats('shop.orders')")[0]["base_rows"] == table.inspect.stats().base_rows
    assert lake.sql("CALL files('shop.orders')").equals(table.inspect.files())
    assert rows(lake, "CALL metrics('shop.orders')")[0]["result"].startswith("#")
    assert rows(lake, "CALL applied('shop.orders', app_id => 'job')") == []
    table.upsert([{"id": 9, "city": "Lima"}], app=objcat.AppVersion(app="job", version=7))
    assert rows(lake, "CALL applied('shop.orders', app_id => 'job')") == [{"result": 7}]
    table.maintenance.compact()
    assert rows(lake, "CALL plan_clean('shop.orders', keep_slots => 1)")[0]["bound"] == table.refresh().slot
    assert rows(lake, "CALL soft_delete('shop.orders', where => 'id = 9')")[0]["updated"] == 1


def test_what_a_lake_tells_is_called(lake: objcat.Lake) -> None:
    txn = lake.table("shop.orders").inspect.history()[1].txn
    assert rows(lake, f"CALL resolve('shop.orders', txn => '{txn}')") == [{"slot": 1}]
    created = lake._context.catalog.names.table("shop.orders")
    assert created is not None and rows(lake, f"CALL resolve(txn => '{created.txn}')") == [{"slot": created.slot}]
    rows(lake, "CALL create_namespace('bank', properties => map('owner', 'ana'))")
    rows(lake, "CALL set_namespace_properties('bank', properties => map('team', 'x'), unset => array('owner'))")
    assert rows(lake, "CALL namespace_properties('bank')") == [{"property": "team", "value": "x"}]
    rows(lake, "CALL drop_table('shop.orders')")
    assert [row["name"] for row in rows(lake, "CALL dropped_tables()")] == ["shop.orders"]
    assert len(rows(lake, "CALL metrics()")) == 1


def test_a_derived_table_is_created_and_refreshed(lake: objcat.Lake) -> None:
    """It is the table that the call in Python makes."""
    query = "SELECT city, count(*) AS n FROM shop.orders WHERE city <> 'O''Hare' GROUP BY city"
    settings = "partition_by => array('city'), index => 'bucket(3)', table_type => 'copy_on_write', properties => map('by', 'ana')"
    quoted = query.replace("'", "\\'")
    made = rows(lake, f"CALL create_derived('gold.cities', query => '{quoted}', key => array('city'), {settings})")
    assert made == [{"name": "gold.cities", "slot": 1}]
    found = lake.table("gold.cities")
    same = lake.create_derived(
        "gold.same",
        query,
        key=["city"],
        partition_by=["city"],
        index=objcat.BucketIndex(3),
        table_type="copy_on_write",
        properties={"by": "ana"},
    )
    for name in ("schema", "key", "partitioning", "index", "table_type", "properties"):
        assert getattr(found, name) == getattr(same, name), name
    assert found.spec.derived == same.spec.derived
    assert found.scan().to_arrow().to_pylist() == same.scan().to_arrow().to_pylist() == [{"city": "Oslo", "n": 4}]
    lake.table("shop.orders").upsert([{"id": 9, "city": "Rome"}])
    assert rows(lake, "CALL refresh_derived('gold.cities')")[0]["upserted"] == 1


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ("'g', 'SELECT city, count(*) AS n FROM shop.orders GROUP BY city'", InvalidSql, "CALL create_derived lacks key"),
        ("'g', 'SELECT id FROM shop.orders', key => 'id'", InvalidInput, "key is the text 'id'"),
        ("'g', 'SELECT id FROM shop.orders', key => array('no')", InvalidInput, "has to name columns of the query"),
        ("'g', 'SELECT id FROM shop.orders', key => array('id'), index => 'blom'", InvalidInput, "did you mean 'bloom'"),
        ("'g', 'SELECT id FROM shop.orders', key => array('id'), index => 3", InvalidInput, "index=3 is not text"),
        ("'g', 'SELECT id FROM shop.orders', key => array('id'), ordering => 'id'", InvalidSql, "has no argument 'ordering'"),
        ("'g', 'SELECT id FROM shop.orders', key => array('id'), on_executors => true", InvalidSql, "needs a session of Spark"),
        ("'g', 'SELECT id FROM shop.nothing', key => array('id')", TableNotFound, "shop.nothing"),
        ("'g', 'SELECT * FROM read_csv(\\'/etc/hosts\\')', key => array('a')", InvalidSql, "Read only tables of the lake"),
        ("'g', 'SELECT a FROM json.`/etc/hosts`', key => array('a')", InvalidInput, "is not a table name"),
        ("'shop.orders', 'SELECT id FROM shop.orders', key => array('id')", TableExists, "shop.orders"),
    ],
)
def test_a_derived_table_that_cannot_be_is_refused(lake: objcat.Lake, arguments: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        lake.sql(f"CALL create_derived({arguments})")
    assert said in str(raised.value) and lake.tables() == ["shop.orders"]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("CALL restore('shop.orders')", InvalidSql, "CALL restore lacks to. Write restore(..., to => value)"),
        ("CALL create_namespace('a', properties => map('x'))", InvalidSql, "does not parse"),
        ("CALL create_namespace('a', properties => map('x', 'y', 'z'))", InvalidSql, ""),
        ("CALL rename_table('shop.orders')", InvalidSql, "lacks new_name"),
        ("CALL erase('shop.orders', where => 'id = 1')", InvalidSql, "has no argument 'where'"),
        ("CALL restore('shop.orders', to => 'yesterday')", InvalidInput, "to='yesterday'"),
        ("CALL clean('shop.orders', keep_slots => 'all')", InvalidInput, "keep_slots='all'"),
        ("CALL split_buckets('shop.orders', count => 1.5)", InvalidInput, "count=1.5"),
        ("CALL savepoint('shop.orders', slot => 'x')", InvalidInput, "slot='x'"),
        ("CALL savepoint('shop.orders', name => 7)", InvalidInput, "name=7"),
        ("CALL release('shop.orders', slot => 'x')", InvalidInput, "slot='x'"),
        ("CALL archive('shop.orders', keep_slots => -1)", InvalidInput, "keep_slots=-1"),
        ("CALL collect_checkpoints('shop.orders', keep => 0)", InvalidInput, "keep=0"),
        ("CALL rollback_dead('shop.orders', older_than_s => 'an hour')", InvalidInput, "older_than_s='an hour'"),
        ("CALL maintain('shop.orders', seconds_max => 'x')", InvalidInput, "seconds_max='x'"),
        ("CALL maintain('shop.orders', io_bytes_max => 0)", InvalidInput, "io_bytes_max=0"),
        ("CALL compact('shop.orders', order => 'x')", InvalidInput, "order='x'"),
        ("CALL cluster('shop.orders', by => 'city', zorder => true)", InvalidInput, "by is the text 'city'"),
        ("CALL set_partitioning('shop.orders', partition_by => 1)", InvalidInput, "partition_by"),
        ("CALL purge_table('shop.orders', older_than_s => 'x')", InvalidInput, "older_than_s='x'"),
        ("CALL resolve('shop.orders', txn => 'x')", InvalidInput, "'x'"),
        ("CALL doctor('shop.orders', deep => 'x')", InvalidSql, "deep='x'"),
        ("CALL metrics('shop.orders', recent => 'x')", InvalidInput, "recent='x'"),
        ("CALL soft_delete('shop.orders', where => 1)", InvalidSql, "where=1"),
        ("CALL plan_erasure('shop.orders', keys => 1)", InvalidSql, "keys=1"),
    ],
)
def test_a_wrong_argument_is_named(lake: objcat.Lake, text: str, error: type[Exception], said: str) -> None:
    before = lake.table("shop.orders").refresh().slot
    with pytest.raises(error) as raised:
        lake.sql(text)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert lake.table("shop.orders").refresh().slot == before
