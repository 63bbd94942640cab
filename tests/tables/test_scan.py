"""Scans on this machine: their forms, their filters, and what they answer without a look at rows."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.datafile import open_files, parquet
from objcat.errors import InvalidInput, InvalidPredicate, SnapshotExpired
from tests.tables.published import until_published

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("fare", pa.float64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("lake")))


@pytest.fixture
def table(lake: objcat.Lake) -> objcat.Table:
    """Eight buckets of base files, one of them with log rows on top: rows 0 to 99, of which 7 is updated and 99 deleted."""
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(8))
    table.insert([row(i) for i in range(100)])
    table.upsert([row(7, 1000.0)])
    return table


def row(key: int, fare: float | None = None, **others: Any) -> dict[str, Any]:
    return {
        "id": key,
        "city": "Oslo" if key % 2 else "Rome",
        "fare": float(key) if fare is None else fare,
        "at": NOON + dt.timedelta(hours=key),
    } | others


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows.column("id").to_pylist())


def data_requests(table: objcat.Table, work: Any) -> int:
    """GETs of data files that a call makes: those of manifests and slots are made before."""
    until_published(table)
    before = table._context.fileio.metrics.snapshot()
    work()
    return (table._context.fileio.metrics.snapshot() - before).requests.get("get", 0)


# ---- forms -------------------------------------------------------------------------------------------------------


def test_every_form_has_the_same_rows(table: objcat.Table) -> None:
    scan = table.scan(where="id between 5 and 20", columns=["id", "fare"])
    expected = [{"id": i, "fare": 1000.0 if i == 7 else float(i)} for i in range(5, 21)]
    assert scan.to_arrow().sort_by("id").to_pylist() == expected
    assert scan.to_arrow().schema == scan.schema
    reader = scan.to_batches()
    assert reader.schema == scan.schema
    assert pa.Table.from_batches(reader).sort_by("id").to_pylist() == expected
    assert scan.to_pandas().sort_values("id").to_dict("records") == expected
    assert scan.to_polars().sort("id").to_dicts() == expected
    assert isinstance(scan.to_polars(), pl.DataFrame)
    assert scan.to_duckdb().order("id").fetchall() == [(r["id"], r["fare"]) for r in expected]
    assert scan.count() == len(expected)


def test_a_scan_without_rows_has_its_columns_in_every_form(table: objcat.Table) -> None:
    scan = table.scan(where="id > 1000", columns=["fare", "id"])
    assert scan.to_arrow().equals(scan.schema.empty_table())
    assert list(scan.to_batches()) == []
    assert list(scan.to_pandas().columns) == scan.to_polars().columns == ["fare", "id"]
    assert scan.to_duckdb().fetchall() == []
    assert scan.count() == 0
    assert scan.min("fare") is None
    assert scan.max("city") is None


def test_a_duckdb_relation_is_of_the_users_connection_and_takes_no_name(table: objcat.Table) -> None:
    with duckdb.connect() as connection:
        connection.execute("create table scan as select 42 as answer")
        found = table.scan().to_duckdb(connection)
        assert found.aggregate("count(*), sum(fare)").fetchall() == [(100, sum(range(100)) - 7 + 1000.0)]
        assert connection.sql("select * from scan").fetchall() == [(42,)]
        assert connection.sql("show tables").fetchall() == [("scan",)]


def test_a_stream_that_is_dropped_reads_no_further(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(parquet, "BASE_ROW_GROUP_ROWS", 1_000)
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.insert(pa.Table.from_pylist([row(i) for i in range(100_000)], schema=SCHEMA))
    whole = table._context.fileio.metrics.snapshot()
    table.scan().to_arrow()
    after = table._context.fileio.metrics.snapshot()
    for number, _ in enumerate(table.scan().to_batches()):
        if number == 2:
            break
    stopped = table._context.fileio.metrics.snapshot()
    assert (stopped - after).bytes_read < (after - whole).bytes_read / 2


def test_batches_are_of_a_bounded_size(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.insert(pa.table({"id": pa.array(range(200_000), pa.int64())}))
    sizes = [batch.num_rows for batch in table.scan().to_batches()]
    assert sum(sizes) == 200_000
    assert max(sizes) <= 64 * 1024


def test_a_scan_of_a_cleaned_snapshot_says_so_in_every_form(table: objcat.Table) -> None:
    scan = table.scan()
    for number in range(3):
        table.upsert([row(i, float(number)) for i in range(100)])
        table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    for read in (scan.to_arrow, lambda: list(scan.to_batches()), scan.to_pandas, scan.to_polars, scan.count):
        with pytest.raises(SnapshotExpired):
            read()
    with pytest.raises(SnapshotExpired):
        scan.max("fare")


# ---- filters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (pc.field("id") < 3, [0, 1, 2]),
        ((pc.field("fare") >= 99) & (pc.field("city") == "Oslo"), [7, 99]),
        (pc.field("city").isin(["Lima"]) | (pc.field("id") == 7), [7]),
        (pc.utf8_lower(pc.field("city")) == "lima", []),
        (pc.is_null(pc.field("city")), []),
        (pc.field("at") > pa.scalar(NOON + dt.timedelta(hours=97)), [98, 99]),
    ],
    ids=str,
)
def test_an_arrow_expression_is_applied_to_the_rows_exactly(table: objcat.Table, where: pc.Expression, expected: list[int]) -> None:
    assert ids(table.scan(where=where, columns=["id"]).to_arrow()) == expected
    assert table.scan(where=where).count() == len(expected)


def test_an_arrow_expression_filters_rows_that_were_replaced_by_what_replaced_them(table: objcat.Table) -> None:
    assert ids(table.scan(where=pc.field("fare") == 7.0).to_arrow()) == []
    assert ids(table.scan(where=pc.field("fare") == 1000.0).to_arrow()) == [7]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (pc.field("fair") > 1, r"names 'fair', which is not a column: did you mean 'fare'\?"),
        (pc.field(0) > 1, "names a column by its number. Name it"),
        (pc.field("id"), "does not fit the table .*boolean|bool"),
        (pc.field("city") > 1, "does not fit the table"),
        (pc.field("city", "name") == "x", "does not fit the table|is not a column"),
        (7, "where is 7. Pass SQL text as after WHERE, or a pyarrow.compute.Expression"),
        (["id = 1"], "where is .*. Pass SQL text"),
    ],
    ids=str,
)
def test_a_filter_that_does_not_fit_is_refused_with_a_sentence(table: objcat.Table, where: Any, message: str) -> None:
    with pytest.raises(InvalidPredicate, match=message):
        table.scan(where=where)


def test_a_transaction_scans_by_expressions_with_a_limit_and_hidden_columns(lake: objcat.Lake) -> None:
    lake.create_table("t", SCHEMA, key=["id"], shared_log="d").insert([row(i) for i in range(10)])
    with lake.transaction() as tx:
        assert ids(tx["t"].scan(where=pc.field("id") > 7).to_arrow()) == [8, 9]
        assert tx["t"].scan(limit=3).to_arrow().num_rows == 3
        assert set(tx["t"].scan(columns=["_commit_slot"]).to_arrow().column(0).to_pylist()) == {1}


# ---- limit -------------------------------------------------------------------------------------------------------


def test_a_limit_bounds_every_form(table: objcat.Table) -> None:
    scan = table.scan(limit=30)
    assert scan.to_arrow().num_rows == sum(batch.num_rows for batch in scan.to_batches()) == len(scan.to_pandas()) == scan.count() == 30
    assert set(ids(scan.to_arrow())) <= set(range(100))
    assert table.scan(limit=0).to_arrow().num_rows == table.scan(limit=0).count() == 0
    for limit in (10**9, 10**30):
        assert table.scan(limit=limit).count() == table.scan(limit=limit).to_arrow().num_rows == 100
    assert table.scan(limit=5, where="id < 3").to_arrow().num_rows == 3


def test_a_limit_reads_no_more_files_than_it_needs(table: objcat.Table) -> None:
    few, none, whole = table.scan(limit=10), table.scan(limit=0), table.scan()
    assert data_requests(table, none.to_arrow) == 0
    assert data_requests(table, few.to_arrow) == 1
    assert data_requests(table, whole.to_arrow) == 9
    assert data_requests(table, table.scan(limit=20).to_arrow) <= 3


@pytest.mark.parametrize("limit", [-1, 1.5, True, "10"])
def test_a_limit_is_a_whole_number(table: objcat.Table, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit="):
        table.scan(limit=limit)


# ---- answers from metadata ---------------------------------------------------------------------------------------


def test_rows_of_plain_files_are_counted_without_reading_them(table: objcat.Table) -> None:
    scan = table.scan()
    assert len(scan.plan.plain) == 7
    assert scan.count() == 100
    assert data_requests(table, scan.count) == 2, "of the merged group only"
    table.maintenance.compact()
    compacted = table.scan()
    assert data_requests(table, compacted.count) == 0
    assert compacted.count() == 100


def test_a_count_with_a_filter_reads_only_files_whose_rows_may_differ(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    for start in (0, 100):
        table.insert([row(i) for i in range(start, start + 100)])
        table.maintenance.compact()
    sure, unsure, none = (table.scan(where=where) for where in ("id >= 0 and city is not null", "id >= 50", "id < 0"))
    assert data_requests(table, sure.count) == 0
    assert sure.count() == 200
    assert data_requests(table, unsure.count) == 4
    assert unsure.count() == 150
    assert data_requests(table, none.count) == 0


def test_nulls_and_nan_are_never_counted_by_bounds(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.insert([row(1, 5.0), row(2, math.nan), row(3, fare=5.0, city=None), row(4, 5.0) | {"fare": None}])
    for where, count in {
        "fare > 0": 2,
        "fare <> 1": 3,
        "not fare > 0": 1,
        "fare = 5": 2,
        "city <> 'x'": 3,
        "not city = 'x'": 3,
        "city is null": 1,
        "fare is not null": 3,
        "city = null": 0,
        "id > 0 or city = null": 4,
    }.items():
        scan = table.scan(where=where)
        assert scan.count() == scan.to_arrow().num_rows == count, where


@pytest.mark.parametrize("where", ["d = {}", "d <= {}", "d in ({})", "d between {0} and {0}", "d < {} or id = 0", "not (d > {})"])
def test_a_negative_number_of_many_digits_is_meant_exactly(lake: objcat.Lake, where: str) -> None:
    digits = "-9999999999999999999999999999.9999999999"
    made = lake.create_table("digits", pa.schema([pa.field("id", pa.int64(), nullable=False), ("d", pa.decimal128(38, 10))]), key=["id"])
    made.insert([{"id": 0, "d": decimal.Decimal(digits)}])
    made.upsert([{"id": 1, "d": decimal.Decimal(digits[:-1] + "8")}, {"id": 2, "d": None}])
    scan = made.scan(where=where.format(digits))
    assert (scan.to_arrow().column("id").to_pylist(), scan.count()) == ([0], 1)
    dataset = made.scan().to_dataset()
    assert dataset.count_rows(filter=pc.field("d") == pa.scalar(decimal.Decimal(digits), pa.decimal128(38, 10))) == 1
    deleted = made.delete(where.format(digits))
    assert deleted is not None and deleted.deleted == 1


def test_extremes_of_plain_files_come_from_metadata(lake: objcat.Lake) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("ratio", pa.float32()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us")),
            ("flag", pa.bool_()),
            ("raw", pa.binary()),
            ("none", pa.int64()),
        ]
    )
    table = lake.create_table("t", schema, key=["id"], index=objcat.BucketIndex(4))
    rows = [
        {
            "id": i,
            "name": f"name {i:03}",
            "price": decimal.Decimal(i) / 4,
            "ratio": math.nan if i == 50 else -0.0 if i == 0 else i / 8,
            "day": dt.date(2026, 1, 1) + dt.timedelta(i),
            "at": dt.datetime(2026, 1, 1) + dt.timedelta(hours=i),
            "flag": i > 3,
            "raw": bytes([i]),
        }
        for i in range(100)
    ]
    table.insert(rows)
    scan = table.scan()
    for column in schema.names:
        values: list[Any] = [r.get(column) for r in rows if r.get(column) is not None and r.get(column) == r.get(column)]
        assert scan.min(column) == (min(values) if values else None), column
        assert scan.max(column) == (max(values) if values else None), column
    assert math.copysign(1, scan.min("ratio")) == 1
    for column in ("id", "price", "day", "at", "flag", "none"):
        assert data_requests(table, lambda column=column: (scan.min(column), scan.max(column))) == 0, column
    assert data_requests(table, lambda: scan.min("name")) == 0
    assert data_requests(table, lambda: scan.max("name")) <= 4


def test_extremes_see_log_rows_and_read_no_file_that_cannot_matter(table: objcat.Table) -> None:
    scan = table.scan()
    assert scan.max("fare") == 1000.0
    assert data_requests(table, lambda: scan.max("fare")) == 2, "the merged group: its base file and its log object"
    assert scan.min("fare") == 0.0
    assert scan.max("id") == 99
    table.delete([{"id": 99}, {"id": 7}, {"id": 0}])
    again = table.scan()
    assert (again.min("id"), again.max("id")) == (1, 98)
    assert again.max("fare") == 98.0
    assert table.scan(where="id < 50").max("fare") == 49.0
    assert table.scan(where=pc.field("id") > 50).min("fare") == 51.0


def test_text_that_bounds_cut_is_found_whole(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert([row(1, city="a" * 100), row(2, city="b" * 60), row(3, city="z" * 63 + "\U0010ffff" * 3), row(4, city="m")])
    scan = table.scan()
    assert scan.min("city") == "a" * 100
    assert scan.max("city") == "z" * 63 + "\U0010ffff" * 3


@pytest.mark.parametrize(("column", "message"), [("fair", "did you mean 'fare'"), ("_file", "no column '_file'")])
def test_an_extreme_is_of_a_plain_column(table: objcat.Table, column: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.scan().min(column)
    with pytest.raises(InvalidInput, match="Leave limit= out"):
        table.scan(limit=1).max("id")


# ---- what is left out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "groups"),
    [
        ("id = 7", 1),
        ("7 = id", 1),
        ("id in (7, 8)", 2),
        ("id = 7 and fare > 0", 1),
        ("id = 7 and id = 8", 1),
        ("id = 7 or fare = 3", 8),
        ("id > 7", 8),
        ("id = 7.5", 0),
        ("id = null", 0),
        ("id in (null)", 0),
        ("not id = 7", 8),
    ],
)
def test_a_filter_on_the_whole_key_reads_its_bucket_only(table: objcat.Table, where: str, groups: int) -> None:
    scan = table.scan(where=where)
    # Bounds leave out more, in a table that is as small as this one.
    group_id = scan.plan.hashes
    assert len(scan.plan.groups) <= groups
    assert (group_id is None) == (groups == 8)
    everything = table.scan().to_arrow()
    assert ids(scan.to_arrow()) == ids(everything.filter(_sql(where)))


def _sql(where: str) -> pc.Expression:
    from objcat.metadata.schema import schema_from_arrow
    from objcat.predicate.parse import parse_predicate

    return parse_predicate(where, schema_from_arrow(SCHEMA)).to_arrow()


KEYS: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "string": (pa.string(), ["a", "b'c", "ü"], r"'b\'c'"),
    "decimal": (pa.decimal128(12, 2), [decimal.Decimal("1.00"), decimal.Decimal("2.50")], "2.5"),
    "date": (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 2, 3)], "date '2026-02-03'"),
    "timestamp": (pa.timestamp("us", tz="UTC"), [NOON, NOON + dt.timedelta(1)], "timestamp '2026-01-02 12:00:00'"),
    "tinyint": (pa.int8(), [1, 2, 3], "2"),
    "boolean": (pa.bool_(), [True, False], "false"),
    "double": (pa.float64(), [0.5, 0.25], "0.25"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_any_type_is_found_in_its_bucket(lake: objcat.Lake, kind: str) -> None:
    data_type, values, literal = KEYS[kind]
    schema = pa.schema([pa.field("k", data_type, nullable=False), pa.field("n", pa.int32(), nullable=False)])
    table = lake.create_table("t", schema, key=["k", "n"], index=objcat.BucketIndex(16))
    table.insert([{"k": value, "n": n} for value in values for n in range(20)])
    scan = table.scan(where=f"k = {literal} and n in (3, 4)")
    assert scan.to_arrow().column("n").to_pylist() in ([3, 4], [4, 3])
    assert (scan.plan.hashes is None) == (kind == "double")
    assert len(scan.plan.groups) <= 2 or kind == "double"


def test_part_of_a_key_is_enough_where_only_it_is_hashed(lake: objcat.Lake) -> None:
    schema = pa.schema([pa.field("order", pa.int64(), nullable=False), pa.field("line", pa.int32(), nullable=False)])
    table = lake.create_table("t", schema, key=["order", "line"], index=objcat.BucketIndex(8, columns=("order",)))
    table.insert([{"order": o, "line": n} for o in range(100) for n in range(3)])
    assert len(table.scan(where="`order` = 50").plan.groups) == 1
    assert table.scan(where="`order` = 50").count() == 3
    table.maintenance.split_buckets(count=32)
    table.upsert([{"order": 50, "line": 9}])
    assert len(table.scan(where="`order` = 50").plan.groups) == 1
    assert table.scan(where="`order` = 50").count() == 4


def test_row_groups_are_left_out_by_their_statistics(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(parquet, "BASE_ROW_GROUP_ROWS", 5_000)
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.insert(pa.Table.from_pylist([row(i) for i in range(100_000)], schema=SCHEMA))
    before = table._context.fileio.metrics.snapshot()
    assert table.scan().to_arrow().num_rows == 100_000
    whole = table._context.fileio.metrics.snapshot()
    for where in ("id between 70001 and 70003", "fare between 70001 and 70003", "id = 70002 or at = timestamp '1970-01-01'"):
        start = table._context.fileio.metrics.snapshot()
        assert table.scan(where=where).to_arrow().num_rows == (1 if "or" in where else 3)
        assert (table._context.fileio.metrics.snapshot() - start).bytes_read < (whole - before).bytes_read / 5, where


def test_only_filters_on_the_key_leave_out_rows_before_a_merge(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base row that cannot pass may still win over, or be replaced by, a log row that can."""
    monkeypatch.setattr(parquet, "BASE_ROW_GROUP_ROWS", 10)
    schema = SCHEMA.append(pa.field("version", pa.int64()))
    for kind in ("ordered", "plain"):
        table = lake.create_table(kind, schema, key=["id"], ordering="version" if kind == "ordered" else None, index=objcat.BucketIndex(1))
        table.insert([row(i) | {"version": 5} for i in range(100)])
        table.upsert([row(50, 7000.0) | {"version": 1}, row(51, 8000.0) | {"version": 9}])
        old_wins = kind == "ordered"
        assert ids(table.scan(where="fare > 1000").to_arrow()) == ([51] if old_wins else [50, 51])
        assert ids(table.scan(where="fare = 50").to_arrow()) == ([50] if old_wins else [])
        assert ids(table.scan(where="fare = 51").to_arrow()) == []
        assert ids(table.scan(where="id between 49 and 52").to_arrow()) == [49, 50, 51, 52]
        assert table.scan(where="id = 50").max("fare") == (50.0 if old_wins else 7000.0)
        assert ids(table.scan(where="id > 90 or fare > 1000").to_arrow()) == ([51] if old_wins else [50, 51]) + list(range(91, 100))


@pytest.mark.parametrize("ordering", [None, "version"])
def test_a_lookup_reads_no_log_rows_of_other_keys(lake: objcat.Lake, ordering: str | None) -> None:
    """Log objects are left out by the bounds of their keys, one by one, and only by these: another filter must see which row won."""
    schema = SCHEMA.append(pa.field("version", pa.int64()))
    table = lake.create_table("t", schema, key=["id"], ordering=ordering, index=objcat.BucketIndex(1))
    table.insert([row(i) | {"version": 1} for i in range(100)])
    for start in (10, 20, 30, 30):
        table.upsert([row(i, i + 1000.0) | {"version": 2} for i in range(start, start + 5)])
    table.delete([{"id": 40} | ({"version": 2} if ordering else {})])
    table.insert([row(500) | {"version": 1}])
    for where, expected, data_files in (
        ("id = 50", [50], 1),
        ("id = 21", [21], 2),
        ("id = 21 and fare < 1000", [], 2),
        ("id in (31, 33)", [31, 33], 3),
        ("id = 40", [], 2),
        ("id between 12 and 21", list(range(12, 22)), 3),
        ("id > 400", [500], 2),
        ("id = 50 or fare = 1031", [31, 50], 7),
        ("fare = 1031", [31], 7),
    ):
        scan = table.scan(where=where)
        assert data_requests(table, scan.to_arrow) == data_files, where
        assert ids(scan.to_arrow()) == expected, where
        assert scan.count() == len(expected), where
        assert scan.explain().read.log_objects == data_files - 1, where
    assert table.scan(where="id = 50").explain().merged == 0, "a base file alone"
    assert table.scan(where="id = 21").max("fare") == 1021.0
    assert table.scan(where=pc.field("id") == 50).explain().read.log_objects == 0
    assert table.scan().to_dataset().to_table(filter=pc.field("id") == 21).num_rows == 1
    table.delete("id = 50")
    table.update({"fare": 7.0}, where="id = 31")
    assert table.scan(where="id = 50").count() == 0
    assert table.scan(where="id = 31").max("fare") == 7.0
    assert table.scan().count() == 99


def test_appended_rows_are_left_out_by_any_column(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=None)
    for start in (0, 100, 200):
        table.insert([row(i) for i in range(start, start + 10)])
    scan = table.scan(where="fare = 105")
    assert data_requests(table, scan.to_arrow) == 2, "the base file, and one log object of two"
    assert ids(scan.to_arrow()) == [105]
    assert ids(table.scan(where="fare > 204 and city = 'Oslo'").to_arrow()) == [205, 207, 209]


def test_explain_says_what_is_left_out_by_what(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(4))
    table.insert([row(i) for i in range(40)])
    table.insert([row(i, city="Lima") for i in range(1000, 1040)])
    table.upsert([row(1001, 5.0, city="Lima")])
    found = table.scan(where="city = 'Lima' and id = 1001 and fare > 4", columns=["id"], limit=3).explain()
    assert (found.slot, found.columns, found.limit, found.merged) == (3, ("id",), 3, 1)
    assert (found.total.groups, found.read.groups, found.read.log_rows) == (12, 1, 1)
    assert {reason: pruned.groups for reason, pruned in found.pruned.items()} == {"partition": 8, "bucket": 3, "statistics": 0}
    text = str(found)
    for part in ("slot 3", "1 of 12 base files", "limit     3 rows", "pruned    by partition: 8 groups", "by bucket: 3 groups", "1 merged"):
        assert part in text, text
    by_bounds = table.scan(where="fare > 500 and city is not null").explain()
    assert by_bounds.pruned["statistics"].groups == 8
    assert "by statistics: 8 groups" in str(by_bounds)
    everything = table.scan().explain()
    assert everything.read == everything.total
    assert "(everything)" in str(everything)
    assert "pruned" not in str(everything)
    before = table._context.fileio.metrics.snapshot()
    table.scan(as_of=2).explain()
    assert data_requests(table, table.scan().explain) <= 1, "at most the look for a newer slot"
    assert before is not None


# ---- hidden columns ----------------------------------------------------------------------------------------------


def test_rows_say_from_which_file_and_commit_they_are(table: objcat.Table) -> None:
    table.upsert([row(8, 5.0)])
    rows = table.scan(columns=["id", "_file", "_commit_slot", "_commit_time"]).to_arrow()
    assert rows.schema.names == ["id", "_file", "_commit_slot", "_commit_time"]
    assert "_file" not in table.scan().to_arrow().column_names
    times = {entry.slot: entry.committed_at_ms for entry in table.inspect.history()}
    kinds = dict(zip(*(table.inspect.files().column(name).to_pylist() for name in ("path", "kind")), strict=True))
    for found in rows.to_pylist():
        slot = {7: 2, 8: 3}.get(found["id"], 1)
        assert found["_commit_slot"] == slot
        assert found["_commit_time"] == dt.datetime.fromtimestamp(times[slot] / 1000, dt.UTC)
        assert kinds[found["_file"]] == ("base" if slot == 1 else "log")
    table.maintenance.compact()
    again = table.scan(columns=["_commit_slot", "id", "_file"], where="id in (7, 8, 9)").to_arrow().sort_by("id")
    assert again.column("_commit_slot").to_pylist() == [2, 3, 1], "a compaction moves rows and changes none"
    assert again.column_names == ["_commit_slot", "id", "_file"]
    only = table.scan(columns=["_file"]).to_arrow()
    assert only.num_rows == 100
    assert table.scan(columns=["_commit_slot"], limit=4).to_arrow().num_rows == 4


@pytest.mark.parametrize("name", ["_file", "_commit_slot", "_COMMIT_TIME"])
def test_no_column_takes_the_name_of_a_hidden_one(lake: objcat.Lake, name: str) -> None:
    with pytest.raises(objcat.errors.InvalidSchema, match="Rename it"):
        lake.create_table("t", SCHEMA.append(pa.field(name, pa.string())), key=["id"])


# ---- requests ----------------------------------------------------------------------------------------------------


def test_small_files_cost_one_request_each_and_a_log_object_one_for_all_groups(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(8))
    table.insert([row(i) for i in range(200)])
    assert data_requests(table, table.scan().to_arrow) == 8
    for number in range(3):
        table.upsert([row(i, float(number)) for i in range(200)])
    scan = table.scan()
    assert len(scan.plan.merged) == 8
    assert data_requests(table, scan.to_arrow) == 8 + 3
    assert data_requests(table, scan.count) == 8 + 3
