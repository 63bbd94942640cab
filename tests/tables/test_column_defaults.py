"""Columns that join with a default: what older rows show, what writes store, and that no path reads null for either."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import objcat
from devkit.spec_defaults import DEFAULTS
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidSchema, InvalidSql, NullKey, UnsupportedFormat
from objcat.metadata.schema_differences import describe_changes
from objcat.metadata.table_spec import Index
from objcat.timeline import entry as entries

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])
KINDS: list[TableType] = ["merge_on_read", "copy_on_write"]


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("defaults")))


def create(lake: objcat.Lake, kind: TableType = "merge_on_read", **options: Any) -> objcat.Table:
    return lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2), **options)


def rows(*keys: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": key, "city": f"c{key}", **more} for key in keys]


def column(table: objcat.Table, name: str, **scan: Any) -> dict[int, Any]:
    found = table.scan(columns=["id", name], **scan).to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row[name] for row in found}


@pytest.mark.parametrize("kind", KINDS)
def test_older_rows_have_the_default_and_newer_ones_what_was_written(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(rows(1, 2, 3))
    table.upsert(rows(3, 4))
    files = table.inspect.files().num_rows
    table.alter.add_column("n", "int", default=5)
    assert table.inspect.files().num_rows == files
    assert column(table, "n") == {1: 5, 2: 5, 3: 5, 4: 5}
    table.upsert([*rows(1), *rows(9)])
    table.upsert(rows(2, n=None))
    table.upsert(rows(3, n=7))
    expected = {1: 5, 2: None, 3: 7, 4: 5, 9: 5}
    assert column(table, "n") == expected
    table.alter.set_default("n", 6)
    table.upsert(rows(10))
    expected |= {10: 6}
    assert column(table, "n") == expected, "a default for writes changes no row"
    table.alter.drop_default("n")
    table.upsert(rows(11))
    expected |= {11: None}
    assert column(table, "n") == expected
    table.maintenance.compact()
    assert column(table, "n") == expected
    table.maintenance.cluster(by=["city"])
    assert column(table, "n") == expected
    assert "n" not in table.scan(as_of=1).schema.names


def test_every_type_keeps_its_default_through_files_and_compaction(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(1))
    table.alter.apply([objcat.AddColumn(f"d{n}", kind, default=value) for n, (kind, value) in enumerate(DEFAULTS)])
    table.upsert(rows(2))
    before = {row.pop("id"): row for row in table.scan().to_arrow().drop_columns(["city"]).to_pylist()}
    assert before[1] == before[2]
    for n, (kind, value) in enumerate(DEFAULTS):
        found = before[1][f"d{n}"]
        assert found == (pytest.approx(value, rel=1e-7) if kind == "float" else value), kind
    table.maintenance.compact()
    assert {row.pop("id"): row for row in table.scan().to_arrow().drop_columns(["city"]).to_pylist()} == before
    again = lake.table("t")
    assert [again.spec.table_schema.column(f"d{n}").initial_default for n in range(len(DEFAULTS))] == [
        table.spec.table_schema.column(f"d{n}").initial_default for n in range(len(DEFAULTS))
    ]


@pytest.mark.parametrize(("kind", "value"), DEFAULTS)
def test_filters_see_the_default(lake: objcat.Lake, kind: str, value: Any) -> None:
    table = create(lake)
    table.insert(rows(1, 2))
    table.alter.add_column("c", kind, default=value)
    table.upsert(rows(3, c=None))
    assert set(column(table, "c", where="c is null")) == {3}
    assert set(column(table, "c", where="c is not null")) == {1, 2}
    known = pa.table({"c": table.scan(where="id = 1").to_arrow().column("c")})
    if kind not in ("binary", "boolean"):
        assert set(table.scan(columns=["id"], where=ds.field("c") == known.column("c")[0]).to_arrow().column("id").to_pylist()) == {1, 2}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_files_without_the_column_are_pruned_by_its_default(lake: objcat.Lake, checkpoint: bool) -> None:
    table = create(lake)
    table.insert(rows(*range(20)))
    if checkpoint:
        for n in range(40):
            table.upsert(rows(n))
    table.alter.add_column("n", "int", default=5)
    for where, expected in (("n = 6", 0), ("n is null", 0), ("n > 5", 0), ("n <> 5", 0)):
        plan = table.scan(where=where).plan
        assert len([*plan.plain, *plan.merged]) == expected, where
    for where in ("n = 5", "n is not null", "n < 9", "n in (5, 6)"):
        assert len(column(table, "n", where=where)) == (40 if checkpoint else 20), where
    table.upsert(rows(0, n=6))
    assert column(table, "n", where="n = 6") == {0: 6}
    if checkpoint:
        for n in range(40):
            table.upsert(rows(100 + n, n=7))
        assert not column(lake.table("t"), "n", where="n is null")
        assert column(lake.table("t"), "n", where="n = 6") == {0: 6}
        assert len(column(lake.table("t"), "n", where="n = 5")) == 39


def test_row_groups_without_the_column_are_pruned_too(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.insert(pa.table({"id": range(300_000), "city": ["x"] * 300_000}, schema=SCHEMA))
    table.alter.add_column("n", "int", default=5)
    table.upsert(rows(1, n=6))
    assert column(table, "n", where="n = 6") == {1: 6}
    assert table.scan(where="n = 5").to_arrow().num_rows == 299_999


def test_a_column_without_nulls_joins_with_a_default(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(1))
    with pytest.raises(InvalidSchema, match=r"'n' allows no nulls.*Give a default"):
        table.alter.add_column("n", "int", nullable=False)
    table.alter.add_column("n", "int", default=5, nullable=False)
    table.upsert(rows(2))
    assert column(table, "n") == {1: 5, 2: 5}
    assert not table.schema.field("n").nullable
    with pytest.raises(InvalidBatch, match=r"'n' holds a null"):
        table.upsert(rows(3, n=None))
    table.delete([{"id": 1}])
    table.maintenance.compact()
    assert column(table, "n") == {2: 5}
    table.alter.drop_default("n")
    with pytest.raises(InvalidBatch, match=r"lacks the column 'n'"):
        table.upsert(rows(3))


def test_computed_writes_and_partial_rows(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(1, 2, 3))
    table.alter.add_column("n", "int", default=5)
    table.update({"n": "n + 1"}, where="id = 1")
    table.delete("n = 5 and id = 2")
    assert column(table, "n") == {1: 6, 3: 5}
    table.upsert_partial([{"id": 3, "city": "new"}, {"id": 4, "city": "four"}, {"id": 5, "n": 9}])
    assert column(table, "n") == {1: 6, 3: 5, 4: 5, 5: 9}
    assert column(table, "city") == {1: "c1", 3: "new", 4: "four", 5: None}
    source = pa.table({"id": pa.array([3, 7], pa.int64()), "city": ["m", "m"]})
    table.merge(source).when_matched_update({"city": "source.city"}).when_not_matched_insert({"id": "source.id"}).execute()
    assert column(table, "n") == {1: 6, 3: 5, 4: 5, 5: 9, 7: 5}
    table.merge(pa.table({"id": pa.array([8], pa.int64()), "city": ["m"]})).when_not_matched_insert().execute()
    assert column(table, "n")[8] == 5


@pytest.mark.parametrize(("kind", "value"), DEFAULTS)
def test_a_merge_inserts_the_default_of_every_type(lake: objcat.Lake, kind: str, value: Any) -> None:
    table = create(lake)
    table.alter.add_column("c", kind, default=value)
    table.upsert(rows(1))
    table.merge(pa.table({"id": pa.array([1, 2], pa.int64())})).when_not_matched_insert({"id": "source.id"}).execute()
    found = column(table, "c")
    assert found[1] == found[2]


def test_changes_and_increments_have_the_default(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(1, 2))
    first = table.refresh().slot
    table.upsert(rows(2, 3))
    table.delete([{"id": 1}])
    table.alter.add_column("n", "int", default=5)
    table.upsert(rows(3, n=1))
    changes = table.changes(since=first).to_arrow().to_pylist()
    told = {(row["_change_type"], row["id"], row["n"]) for row in changes}
    assert told == {
        ("update_before", 2, 5),
        ("update_after", 2, 5),
        ("insert", 3, 5),
        ("delete", 1, 5),
        ("update_before", 3, 5),
        ("update_after", 3, 1),
    }
    found = {row["id"]: row["n"] for row in table.incremental(since=first).to_arrow().to_pylist()}
    assert found == {2: 5, 3: 1}


def test_dropped_and_added_again_renamed_widened_restored(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(1))
    table.alter.add_column("n", "int", default=5)
    with_n = table.refresh().slot
    table.upsert(rows(2))
    table.alter.drop_column("n")
    table.alter.add_column("n", "int", default=8)
    assert column(table, "n") == {1: 8, 2: 8}
    assert column(table, "n", as_of=with_n) == {1: 5}
    table.alter.apply([objcat.RenameColumn("n", "m"), objcat.WidenColumn("m", "decimal(12,2)")])
    table.upsert(rows(3))
    assert column(table, "m") == {1: Decimal("8.00"), 2: Decimal("8.00"), 3: Decimal("8.00")}
    assert table.spec.table_schema.column("m").initial_default == "8.00"
    table.restore(to=with_n)
    assert column(table, "n") == {1: 5}
    table.alter.add_column("m", "float", default=0.1)
    table.alter.widen_column("m", "double")
    assert column(table, "m")[1] == pytest.approx(0.10000000149011612, abs=0)


def test_ordered_deletes_keep_nulls_in_such_columns(lake: objcat.Lake) -> None:
    schema = SCHEMA.append(pa.field("at", pa.int64(), nullable=False))
    table = lake.create_table("t", schema, key=["id"], ordering="at", index=objcat.BucketIndex(1))
    table.upsert(rows(1, 2, at=1))
    table.delete([{"id": 1, "at": 5}])
    table.alter.add_column("n", "int", default=5, nullable=False)
    table.maintenance.compact()
    (log,) = {part.object.path for group in table.snapshot.file_groups(table._context.manifests) for part in group.logs}
    kept = pq.read_table(io.BytesIO(table._context.fileio.read(log))).to_pylist()
    assert [(row["id"], row["n_4"]) for row in kept] == [(1, None)]
    table.upsert(rows(1, at=3))
    assert column(table, "n") == {2: 5}


def test_tables_without_a_key_and_lookup_indexes(lake: objcat.Lake) -> None:
    lines = lake.create_table("lines", SCHEMA, key=None)
    lines.insert(rows(1, 2))
    lines.alter.add_column("n", "int", default=5)
    lines.insert(rows(3))
    lines.insert(rows(4, n=None))
    lines.update({"city": "'x'"}, where="n = 5 and id < 3")
    assert column(lines, "n") == {1: 5, 2: 5, 3: 5, 4: None}
    indexes: list[Index] = [objcat.SimpleIndex(), objcat.BloomIndex(), objcat.RecordIndex(2), objcat.MemoryIndex()]
    for number, index in enumerate(indexes):
        table = lake.create_table(f"t{number}", SCHEMA, key=["id"], index=index)
        table.insert(rows(1, 2))
        table.alter.add_column("n", "int", default=5)
        table.upsert(rows(2, 3))
        assert column(table, "n") == {1: 5, 2: 5, 3: 5}


def test_a_partition_of_a_column_with_a_default(lake: objcat.Lake) -> None:
    table = lake.create_table("lines", SCHEMA, key=None)
    table.insert(rows(1, 2))
    table.alter.add_column("n", "int", default=5)
    table.alter.set_partitioning(["n"])
    with pytest.raises(InvalidBatch, match=r"lacks the column 'n'"):
        table.insert(rows(3))
    table.insert(rows(3, n=5))
    assert column(table, "n", where="n = 5") == {1: 5, 2: 5, 3: 5}
    with pytest.raises(InvalidSchema, match=r"'n' is a column that partitions are made of.*no default"):
        table.alter.set_default("n", 6)


def test_what_has_no_default(lake: objcat.Lake) -> None:
    schema = SCHEMA.append(pa.field("s", pa.struct([("x", pa.int32())])))
    table = lake.create_table("t", schema, key=["id"])
    with pytest.raises(InvalidSchema, match=r"'s.y' is a field inside a column"):
        table.alter.add_column("s.y", "int", default=1)
    with pytest.raises(InvalidSchema, match=r"'l' is nested"):
        table.alter.add_column("l", pa.list_(pa.int32()), default=[1])
    with pytest.raises(InvalidSchema, match=r"'id' is a key column"):
        table.alter.set_default("id", 1)
    for kind, value in (
        ("int", 2**31),
        ("int", True),
        ("int", "5"),
        ("boolean", 1),
        ("double", float("nan")),
        ("decimal(4,2)", Decimal("123.00")),
        ("decimal(4,2)", Decimal("1.005")),
        ("string", 5),
        ("date", dt.datetime(2020, 1, 1)),
        ("timestamp", dt.datetime(2020, 1, 1)),
        ("timestamp_ntz", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        ("binary", "00"),
    ):
        with pytest.raises(InvalidSchema, match=r"The default of 'c' is .*Nothing was changed"):
            table.alter.add_column("c", kind, default=value)
    assert table.refresh().slot == 0


def test_a_reader_without_the_feature_refuses(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(lake)
    table.insert(rows(1))
    table.alter.set_default("city", "Rome")
    table.upsert([{"id": 2}])
    assert column(table, "city") == {1: "c1", 2: "Rome"}
    entry = json.loads(table._context.fileio.read("log/00000000000000000002.json"))
    assert entry["features"] == {"column_defaults": "0.1.0"}
    monkeypatch.setattr(entries, "READER_FEATURES", frozenset())
    with pytest.raises(UnsupportedFormat, match=r"needs the table feature 'column_defaults'"):
        objcat.Lake(FileIO(lake.fileio._bare, env=FakeEnv(1))).table("t").scan()  # As in a process that has not read the table.


def test_history_says_what_happened_to_defaults(lake: objcat.Lake) -> None:
    table = create(lake)
    table.alter.add_column("n", "int", default=5)
    table.alter.set_default("n", 6)
    table.alter.drop_default("n")
    schemas = [table.scan(as_of=slot).plan.snapshot.spec.table_schema for slot in range(4)]
    said = [describe_changes(old, new) for old, new in itertools.pairwise(schemas)]
    assert said == [["added n (int, default 5)"], ["set the default of n to 6"], ["dropped the default of n"]]


def test_sql(lake: objcat.Lake) -> None:
    lake.sql("CREATE TABLE t (id BIGINT, city STRING, PRIMARY KEY (id))")
    lake.sql("INSERT INTO t VALUES (1, 'a')")
    lake.sql("ALTER TABLE t ADD COLUMN n INT DEFAULT 5")
    lake.sql(
        "ALTER TABLE t ADD COLUMNS (d DECIMAL(10,2) NOT NULL DEFAULT 1.50, at TIMESTAMP DEFAULT TIMESTAMP '2020-01-01 00:00:00', "
        "day DATE DEFAULT DATE '2020-01-02', b BINARY DEFAULT X'00ff', neg BIGINT DEFAULT -7, yes BOOLEAN DEFAULT true, "
        "w STRING DEFAULT 'it''s', z TIMESTAMP_NTZ DEFAULT '2020-01-01 00:00:01')"
    )
    (row,) = lake.sql("SELECT * FROM t WHERE n = 5 AND d > 1").to_pylist()
    assert row == {
        "id": 1,
        "city": "a",
        "n": 5,
        "d": Decimal("1.50"),
        "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "day": dt.date(2020, 1, 2),
        "b": b"\x00\xff",
        "neg": -7,
        "yes": True,
        "w": "it's",
        "z": dt.datetime(2020, 1, 1, 0, 0, 1),
    }
    lake.sql("ALTER TABLE t ALTER COLUMN n SET DEFAULT 6")
    lake.sql("INSERT INTO t (id, city) VALUES (2, 'b')")
    lake.sql("ALTER TABLE t ALTER COLUMN n DROP DEFAULT")
    lake.sql("INSERT INTO t (id, city) VALUES (3, 'c')")
    assert lake.sql("SELECT id, n FROM t ORDER BY id").to_pylist() == [{"id": 1, "n": 5}, {"id": 2, "n": 6}, {"id": 3, "n": None}]
    told = {row["column"]: (row["default"], row["default_of_older_rows"]) for row in lake.sql("DESCRIBE t").to_pylist()}
    assert told["n"] == (None, "5")
    assert told["w"] == ('"it\'s"', '"it\'s"')
    with pytest.raises(InvalidSql, match=r"NOT NULL has no value"):
        lake.sql("ALTER TABLE t ADD COLUMN q INT NOT NULL")
    with pytest.raises(InvalidSql, match=r"not a plain value"):
        lake.sql("ALTER TABLE t ADD COLUMN q INT DEFAULT rand()")


def test_a_table_is_created_with_defaults(lake: objcat.Lake) -> None:
    lake.sql(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n INT DEFAULT 5, d DECIMAL(10,2) NOT NULL DEFAULT 1.50, at TIMESTAMP DEFAULT "
        "TIMESTAMP '2020-01-01 00:00:00', b BINARY DEFAULT X'00ff', w STRING DEFAULT 'it''s', none INT DEFAULT NULL)"
    )
    twin = lake.create_table(
        "twin",
        lake.table("t").schema,
        key=["id"],
        defaults={"n": 5, "d": Decimal("1.50"), "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "b": b"\x00\xff", "w": "it's"},
    )
    assert twin.spec.table_schema == lake.table("t").spec.table_schema
    assert len(lake.table("t").inspect.history()) == 1
    lake.sql("INSERT INTO t (id) VALUES (1)")
    lake.sql("INSERT INTO t VALUES (2, DEFAULT, default, DEFAULT, DEFAULT, DEFAULT, DEFAULT), (3, 7, 2, NULL, NULL, 'w', 1)")
    lake.sql("INSERT INTO t (w, id, d) VALUES (DEFAULT, 4, DEFAULT)")
    default: dict[str, Any] = {
        "n": 5,
        "d": Decimal("1.50"),
        "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "b": b"\x00\xff",
        "w": "it's",
        "none": None,
    }
    given = {"n": 7, "d": Decimal("2.00"), "at": None, "b": None, "w": "w", "none": 1}
    expected: list[dict[str, Any]] = [{"id": 1, **default}, {"id": 2, **default}, {"id": 3, **given}, {"id": 4, **default}]
    assert lake.sql("SELECT * FROM t ORDER BY id").to_pylist() == expected
    lake.sql("UPDATE t SET n = DEFAULT, w = DEFAULT, none = DEFAULT WHERE id = 3")
    lake.sql(
        "MERGE INTO t USING (SELECT 4 id UNION ALL SELECT 5) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = DEFAULT, w = 'm' "
        "WHEN NOT MATCHED THEN INSERT (id, b) VALUES (s.id, DEFAULT)"
    )
    expected[2] |= {"n": 5, "w": "it's", "none": None}
    expected[3] |= {"w": "m"}
    assert lake.sql("SELECT * FROM t ORDER BY id").to_pylist() == [*expected, {"id": 5, **default}]
    lake.sql("ALTER TABLE t ALTER COLUMN n DROP DEFAULT")
    lake.sql("INSERT INTO t (id, n) VALUES (6, DEFAULT)")
    assert lake.sql("SELECT n FROM t WHERE id = 6").to_pylist() == [{"n": None}]
    slot = lake.table("t").refresh().slot
    for statement, kind, said in (
        ("INSERT INTO t (id, n) VALUES (7, DEFAULT + 1)", InvalidSql, "does not parse"),
        ("INSERT INTO t (id) VALUES (DEFAULT)", NullKey, "id"),
        ("UPDATE t SET n = DEFAULT * 2", InvalidSql, "DEFAULT within an expression"),
        ("CREATE TABLE u (id INT DEFAULT 1, PRIMARY KEY (id))", InvalidSchema, "has no default"),
        ("CREATE TABLE u (id INT PRIMARY KEY, n INT DEFAULT 'x')", InvalidSchema, "n"),
        ("CREATE TABLE u (id INT PRIMARY KEY, n INT DEFAULT rand())", InvalidSql, "not a plain value"),
        ("CREATE TABLE u (id INT PRIMARY KEY, s STRUCT<x: INT> DEFAULT 1)", InvalidSchema, "s"),
    ):
        with pytest.raises(kind, match=said):
            lake.sql(statement)
    assert lake.table("t").refresh().slot == slot and lake.tables() == ["t", "twin"]


def test_a_column_may_be_named_default(lake: objcat.Lake) -> None:
    lake.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, `default` INT DEFAULT 3, n INT)")
    lake.sql("INSERT INTO t VALUES (1, DEFAULT, 9)")
    lake.sql("UPDATE t SET n = `default`")
    assert lake.sql("SELECT * FROM t").to_pylist() == [{"id": 1, "default": 3, "n": 3}]


def test_a_write_planned_before_the_column_lands_after_it(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(1))
    stale = lake.table("t")
    stale.refresh()
    table.alter.add_column("n", "int", default=5)
    stale.upsert(rows(2))
    assert column(table, "n") == {1: 5, 2: 5}
    assert set(column(table, "n", where="n = 5")) == {1, 2}


def test_a_batch_that_adds_columns_to_a_table_with_defaults(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(1))
    table.alter.add_column("n", "int", default=5)
    table.upsert(rows(2, more="m"), schema_mode="add")
    table.upsert([{"id": 3, "n": 2**40}], schema_mode="widen")
    assert column(table, "n") == {1: 5, 2: 5, 3: 2**40}
    assert column(table, "more") == {1: None, 2: "m", 3: None}
    with lake.transaction() as tx:
        tx["t"].upsert(rows(4))
    assert column(table, "n")[4] == 5
    with lake.transaction() as tx:
        tx["t"].alter.add_column("r", "int", default=1, nullable=False)
        tx["t"].upsert(rows(6))
        tx["t"].replace_range(rows(3, 7), where="r = 1 and id >= 3")
    assert column(table, "r") == {1: 1, 2: 1, 3: 1, 7: 1}
    table.set_properties({"comment": "still there"})
    assert column(lake.table("t"), "n")[1] == 5
