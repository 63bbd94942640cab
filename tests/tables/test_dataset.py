"""A scan as an Arrow dataset, in DuckDB and in polars: each query reads the columns and files that it needs, and its rows are exact."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.datafile import open_files
from objcat.errors import InvalidInput, SnapshotExpired
from tests.tables.published import until_published

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("fare", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("paid", pa.bool_()),
    ]
)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
ID, CITY, FARE = pc.field("id"), pc.field("city"), pc.field("fare")


def row(i: int, fare: float | None = None, city: str | None = "Rome") -> dict[str, Any]:
    return {
        "id": i,
        "city": city if i % 2 else "Oslo's",
        "fare": float(i) if fare is None else fare,
        "price": decimal.Decimal(i) / 4,
        "at": NOON + dt.timedelta(hours=i),
        "day": dt.date(2026, 1, 1) + dt.timedelta(i),
        "paid": None if i % 5 == 0 else i % 3 == 0,
    }


@pytest.fixture
def table() -> objcat.Table:
    """Four file groups; one of them has log rows, which replace, add and delete."""
    table = objcat.Lake(FileIO(MemoryBackend("lake"))).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert(pa.Table.from_pylist([row(i) for i in range(1, 401)], schema=SCHEMA))
    rows = table.scan(columns=["id", "_file"]).to_arrow().sort_by("id").to_pylist()
    mine = [r["id"] for r in rows if r["_file"] == rows[0]["_file"]]
    table.upsert([row(mine[0], 1e6, None), row(mine[1], math.nan)])
    table.delete([{"id": mine[2]}])
    return table


def rows_of(table: objcat.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def requests(table: objcat.Table, work: Callable[[], Any]) -> int:
    """GETs that a call makes, all of them of data."""
    until_published(table)
    before = table._context.fileio.metrics.snapshot()
    work()
    return (table._context.fileio.metrics.snapshot() - before).requests.get("get", 0)


def asked(dataset: pads.Dataset, query: str) -> list[Any]:
    """What DuckDB finds in `t`."""
    with duckdb.connect() as connection:
        connection.register("t", dataset)
        return connection.execute(query).fetchall()


def bytes_read(table: objcat.Table, work: Callable[[], Any]) -> int:
    until_published(table)
    before = table._context.fileio.metrics.snapshot()
    work()
    return (table._context.fileio.metrics.snapshot() - before).bytes_read


def plain_key(table: objcat.Table) -> int:
    """An odd key of a file group without log rows."""
    plain = {group.base.path for group in table.scan().plan.plain if group.base is not None}
    rows = table.scan(columns=["id", "_file"]).to_arrow().to_pylist()
    return next(r["id"] for r in rows if r["_file"] in plain and r["id"] % 2)


# ---- the dataset -------------------------------------------------------------------------------------------------


def test_a_dataset_has_the_rows_of_the_scan(table: objcat.Table) -> None:
    dataset = table.scan().to_dataset()
    assert isinstance(dataset, pads.Dataset)
    assert dataset.schema == table.scan().schema
    assert repr(sorted(dataset.to_table().to_pylist(), key=lambda row: row["id"])) == repr(rows_of(table))
    assert sum(batch.num_rows for batch in dataset.to_batches()) == dataset.count_rows() == 399
    assert dataset.scanner().to_reader().schema == dataset.schema
    assert dataset.to_table(columns=["fare", "id"]).column_names == ["fare", "id"]
    doubled = dataset.to_table(columns={"twice": ID * 2}, filter=ID < 3)
    assert sorted(doubled["twice"].to_pylist()) == [2, 4]
    assert dataset.to_table(columns=[]).num_rows == 399
    assert dataset.head(7).num_rows == 7 and dataset.head(7, columns=["id"], filter=ID > 398).num_rows == 2
    assert dataset.head(0).num_rows == 0 and dataset.head(3, filter=ID < 0).schema == dataset.schema


@pytest.mark.parametrize(
    "where",
    [
        ID == 77,
        (ID > 100) & (ID <= 110) & (CITY == "Oslo's"),
        CITY.is_null() | (ID == 3),
        CITY.isin(["Oslo's", None]) & (ID < 9),
        ~CITY.isin(["Rome"]),
        ~(FARE < 395),
        FARE > 395,
        pc.field("price") <= decimal.Decimal("1.25"),
        pc.field("at") >= pa.scalar(NOON + dt.timedelta(hours=398)),
        pc.field("day") < dt.date(2026, 1, 5),
        ~pc.field("paid") & (ID < 20),
        pc.utf8_lower(CITY) == "rome",
        (pc.utf8_lower(CITY) == "rome") & (ID == 5),
        pc.if_else(ID.is_valid(), ID.isin([1, 2]), pa.scalar(None, pa.bool_())),
        pc.scalar(3) > ID,
        ID * 2 == 8,
    ],
    ids=lambda where: " ".join(str(where).split()),
)
def test_a_filter_is_applied_exactly(table: objcat.Table, where: pc.Expression) -> None:
    dataset = table.scan().to_dataset()
    expected = table.scan().to_arrow().filter(where).sort_by("id")
    assert repr(dataset.to_table(filter=where).sort_by("id").to_pylist()) == repr(expected.to_pylist())
    assert sorted(dataset.to_table(columns=["id"], filter=where)["id"].to_pylist()) == expected["id"].to_pylist()
    assert dataset.count_rows(filter=where) == dataset.filter(where).count_rows() == expected.num_rows
    assert dataset.filter(ID > 2).to_table(filter=where).num_rows == expected.filter(ID > 2).num_rows
    assert repr(table.scan(where=where).to_arrow().sort_by("id").to_pylist()) == repr(expected.to_pylist())


def test_a_filter_leaves_out_files_and_a_projection_columns(table: objcat.Table) -> None:
    dataset = table.scan().to_dataset()
    key = plain_key(table)
    assert requests(table, dataset.to_table) > 4
    assert requests(table, lambda: dataset.to_table(filter=key == ID)) == 1, "the bucket of the key"
    assert requests(table, table.scan(where=(key == ID) & (pc.utf8_lower(CITY) != "x")).to_arrow) == 1
    assert requests(table, lambda: dataset.to_table(filter=ID > 1000)) == 0
    assert requests(table, lambda: dataset.count_rows(filter=ID < 0)) == 0
    assert requests(table, lambda: dataset.head(1)) <= 2


def test_a_replaced_row_is_filtered_by_what_replaced_it(table: objcat.Table) -> None:
    (replaced,) = table.scan(where="fare = 1e6").to_arrow()["id"].to_pylist()
    dataset = table.scan().to_dataset()
    for where, ids in ((float(replaced) == FARE, []), (FARE == 1e6, [replaced]), (CITY.is_null(), [replaced])):
        assert dataset.to_table(columns=["id"], filter=where)["id"].to_pylist() == ids
    assert asked(dataset, "select id from t where city is null") == [(replaced,)]


def test_columns_are_asked_for_by_the_names_that_they_have_now(table: objcat.Table) -> None:
    table.alter.rename_column("fare", "price_eur")
    table.alter.rename_column("city", "town")
    table.alter.drop_column("price")
    table.alter.add_column("price", "int")
    fare = float(plain_key(table))
    dataset = table.scan().to_dataset()
    assert dataset.to_table(columns=["town", "price"], filter=pc.field("price_eur") == fare).to_pylist() == [
        {"town": "Rome", "price": None}
    ]
    assert asked(dataset, f"select town, price from t where price_eur = {fare} and price is null") == [("Rome", None)]
    found = table.scan().to_polars_lazy().filter(pl.col("price_eur") == fare, pl.col("price").is_null()).select("town").collect()
    assert found.to_dicts() == [{"town": "Rome"}]


def test_a_dataset_of_a_narrower_scan(table: objcat.Table) -> None:
    dataset = table.scan(where="id < 10 -- single digits", columns=["id", "_file", "_commit_slot"]).to_dataset()
    assert dataset.schema.names == ["id", "_file", "_commit_slot"]
    assert sorted(dataset.to_table(filter=ID > 7)["id"].to_pylist()) in ([8, 9], [8], [9])
    hidden = dataset.to_table(columns=["id"], filter=(pc.field("_commit_slot") == 1) & (ID == 9))
    assert hidden["id"].to_pylist() == dataset.to_table(filter=ID == 9).filter(pc.field("_commit_slot") == 1)["id"].to_pylist()
    both = table.scan(where=pc.utf8_lower(CITY) == "rome", columns=["id"]).to_dataset()
    assert both.to_table(filter=ID == 11)["id"].to_pylist() == [11] and both.to_table(filter=ID == 12).num_rows == 0
    few = table.scan(limit=5).to_dataset()
    assert few.to_table().num_rows == few.count_rows() == 5
    assert few.to_table(filter=ID < 0).num_rows == 0 and few.to_table(filter=ID > 0).num_rows == 5


def test_a_dataset_is_pinned_and_says_when_its_snapshot_is_gone(table: objcat.Table) -> None:
    dataset = table.scan().to_dataset()
    table.upsert([row(1000)])
    assert dataset.count_rows() == 399
    for _ in range(3):
        table.upsert([row(i) for i in range(1, 401)])
        table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    with pytest.raises(SnapshotExpired):
        dataset.to_table()


def test_what_a_dataset_is_not_says_what_to_do(table: objcat.Table, tmp_path: Path) -> None:
    dataset = table.scan().to_dataset()
    for work, sentence in (
        (dataset.get_fragments, "has no fragments, because files hold rows that no longer count"),
        (lambda: dataset.take([1]), r"or use to_table\(\).take"),
        (lambda: dataset.sort_by("id"), r"Use to_table\(\).sort_by"),
        (lambda: dataset.join(dataset, "id"), r"Use to_table\(\).join"),
        (lambda: dataset.join_asof(dataset, "id", "id", 1, "id"), r"Use to_table\(\).join_asof"),
        (lambda: dataset.replace_schema(SCHEMA), "has the schema of its table"),
    ):
        with pytest.raises(NotImplementedError, match=sentence):
            work()
    with pytest.raises(TypeError, match="cannot be pickled\\. Open the table"):
        pickle.dumps(dataset)
    with pytest.raises(TypeError, match="has no argument 'where'"):
        dataset.to_table(where="id = 1")
    with pytest.raises(InvalidInput, match="no column 'idd': did you mean 'id'"):
        dataset.to_table(columns=["idd"])
    with pytest.raises(pa.ArrowInvalid, match="No match for FieldRef"):
        dataset.to_table(filter=pc.field("idd") == 1)
    pads.write_dataset(dataset, tmp_path, format="parquet")
    assert pads.dataset(tmp_path).count_rows() == 399
    assert repr(dataset).startswith("ScanDataset(id, city,")


# ---- DuckDB ------------------------------------------------------------------------------------------------------


def test_duckdb_reads_what_a_query_needs(table: objcat.Table) -> None:
    dataset = table.scan().to_dataset()
    key = plain_key(table)
    assert requests(table, lambda: asked(dataset, f"select city from t where id = {key}")) == 1
    assert requests(table, lambda: asked(dataset, "select city from t where id in (-1, -2) and fare > 3")) == 0
    late = [r["price"] for r in rows_of(table) if r["day"] >= dt.date(2026, 12, 1) and r["city"] == "Oslo's"]
    query = "select count(*), max(price) from t where day >= '2026-12-01' and city not in ('Rome')"
    assert asked(dataset, query) == [(len(late), max(late))]
    assert asked(dataset, f"select a.id from t a join t b using (id) where a.id = {key}") == [(key,)]
    assert duckdb.sql("select count(*) from dataset").fetchall() == [(399,)]  # type: ignore[union-attr]


def test_a_duckdb_relation_is_read_as_often_as_asked_and_as_duckdb_sees_nan(table: objcat.Table) -> None:
    (nan,) = [r["id"] for r in rows_of(table) if math.isnan(r["fare"])]
    found = table.scan().to_duckdb()
    for _ in range(2):
        assert found.aggregate("count(*)").fetchall() == [(399,)]
        assert nan in {i for (i,) in found.filter("fare > 399").project("id").fetchall()}, "to DuckDB it is above all"
    key = plain_key(table)
    assert requests(table, lambda: found.filter(f"id = {key}").fetchall()) == 1


# ---- polars ------------------------------------------------------------------------------------------------------

POLARS = [
    pl.col("id") == 77,
    (pl.col("id") > 100) & (pl.col("id") <= 110) & (pl.col("city") == "Oslo's"),
    pl.col("city").is_null() | (pl.col("id") == 3),
    pl.col("city").is_in(["Oslo's", None], nulls_equal=True),
    pl.col("city").is_in(["Oslo's", None]),
    ~pl.col("city").is_in(["Rome"]),
    pl.col("city").eq_missing(None),
    pl.col("city").ne_missing("Rome"),
    pl.col("fare") > 395,
    ~(pl.col("fare") < 395),
    pl.col("fare").is_in([math.nan, 9.0]),
    pl.col("fare") != 9.0,
    pl.col("fare").is_between(3, 9),
    pl.col("fare").is_nan() | (pl.col("id") == 1),
    pl.col("price") <= decimal.Decimal("1.25"),
    pl.col("at") >= NOON + dt.timedelta(hours=398),
    pl.col("day") < dt.date(2026, 1, 5),
    ~pl.col("paid") & (pl.col("id") < 20),
    pl.col("city").str.starts_with("R") & (pl.col("id") < 4),
    pl.col("id") % 100 == 0,
]


@pytest.mark.parametrize("where", POLARS, ids=str)
def test_a_polars_filter_means_what_it_means_to_polars(table: objcat.Table, where: pl.Expr) -> None:
    expected = table.scan().to_polars().filter(where).sort("id")
    frame = table.scan().to_polars_lazy()
    assert isinstance(frame, pl.LazyFrame)
    assert frame.filter(where).sort("id").collect().equals(expected, null_equal=True)
    assert frame.filter(where).select("id").collect()["id"].sort().to_list() == expected["id"].to_list()
    assert frame.filter(where).select(pl.len()).collect(engine="streaming").item() == expected.height


def test_polars_reads_what_a_query_needs(table: objcat.Table) -> None:
    frame = table.scan().to_polars_lazy()
    key = plain_key(table)
    assert frame.collect_schema() == table.scan().to_polars().schema
    assert requests(table, lambda: frame.filter(pl.col("id") == key).collect()) == 1
    assert requests(table, lambda: frame.filter(pl.col("id").is_in([-1, -5]) & (pl.col("fare") > 3)).collect()) == 0
    assert requests(table, lambda: frame.head(2).collect()) == 1
    assert frame.head(3).collect().height == frame.head(3).filter(pl.col("id") > 0).collect().height == 3
    assert frame.filter(pl.col("id") > 0).head(3).collect().height == 3
    assert frame.join(frame.filter(pl.col("id") < 3), on="id").collect().height == 2
    assert table.scan(limit=4).to_polars_lazy().filter(pl.col("id") > 0).collect().height == 4
    assert table.scan(where="id < 3", columns=["fare", "id"]).to_polars_lazy().collect().columns == ["fare", "id"]
    assert pl.scan_pyarrow_dataset(table.scan().to_dataset()).filter(pl.col("id") == key).collect()["id"].to_list() == [key]


def test_columns_that_are_not_asked_for_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "WHOLE_BYTES_MAX", 0)
    wide = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    table = objcat.Lake(FileIO(MemoryBackend("wide"))).create_table("t", wide, key=["id"], index=objcat.BucketIndex(1))
    table.insert(pa.table({"id": range(60_000), "text": [f"{i * 7919:064x}" for i in range(60_000)]}, schema=wide))
    whole = bytes_read(table, lambda: table.scan().to_arrow())
    dataset = table.scan().to_dataset()
    for work in (
        lambda: dataset.to_table(columns=["id"]),
        lambda: asked(dataset, "select sum(id) from t"),
        lambda: table.scan().to_polars_lazy().select(pl.col("id").sum()).collect(),
    ):
        assert bytes_read(table, work) < whole / 2


def test_duckdb_reads_a_struct_in_a_struct_in_each_batch_of_many_rows() -> None:
    numbers = pa.array(range(70_000), pa.int64())
    inner = pa.StructArray.from_arrays([numbers], names=["n"])
    nested = pa.StructArray.from_arrays([inner, numbers], names=["inner", "n"])
    rows = pa.table({"id": numbers, "s": nested, "text": numbers.cast(pa.string())})
    table = objcat.Lake(FileIO(MemoryBackend("nested"))).create_table("t", rows.schema, key=["id"], index=objcat.BucketIndex(1))
    table.insert(rows)
    count = "select count(*) from {} where struct_extract(struct_extract(s, 'inner'), 'n') = id and struct_extract(s, 'n') = id"
    scan = table.scan()
    assert asked(scan.to_dataset(), count.format("t")) == [(70_000,)]
    streamed = duckdb.sql(count.format("scan"))
    assert streamed is not None and streamed.fetchall() == [(70_000,)]
    table.upsert_partial(rows.select(["id", "s"]).slice(100))
    assert table.scan().to_arrow().sort_by("id").column("s").combine_chunks().equals(nested)


INNER = pa.struct([("x", pa.int64()), ("y", pa.string()), ("b", pa.bool_())])
IN_STRUCT = pa.struct([("s", INNER), ("n", pa.int64())])
NESTED = {
    "struct": INNER,
    "in_struct": IN_STRUCT,
    "in_two": pa.struct([("q", IN_STRUCT)]),
    "in_list": pa.list_(IN_STRUCT),
    "in_fixed_list": pa.list_(IN_STRUCT, 2),
    "in_map": pa.map_(pa.string(), IN_STRUCT),
    "list_in_struct": pa.struct([("l", pa.list_(INNER))]),
    "map_in_struct": pa.struct([("m", pa.map_(pa.int64(), INNER))]),
    "all": pa.struct([("s", pa.struct([("l", pa.list_(IN_STRUCT)), ("m", pa.map_(pa.int64(), pa.list_(IN_STRUCT)))]))]),
    "lists": pa.list_(pa.list_(pa.list_(INNER))),
}


def nested_value(data_type: pa.DataType, seed: int) -> Any:
    """Another one for each seed; null and empty ones at every level."""
    if pa.types.is_struct(data_type):
        return None if seed % 13 == 0 else {field.name: nested_value(field.type, seed + place) for place, field in enumerate(data_type)}
    if pa.types.is_fixed_size_list(data_type):
        return None if seed % 11 == 0 else [nested_value(data_type.value_type, seed + place) for place in range(data_type.list_size)]
    if pa.types.is_list(data_type):
        return None if seed % 11 == 0 else [nested_value(data_type.value_type, seed + place) for place in range(seed % 4)]
    if pa.types.is_map(data_type):
        keys = [nested_value(data_type.key_type, 7 * seed + place + 1) for place in range(seed % 3)]
        return [(key, nested_value(data_type.item_type, seed + place)) for place, key in enumerate(keys) if key is not None]
    if pa.types.is_boolean(data_type):
        return seed % 3 == 0
    return f"text {seed}" if pa.types.is_string(data_type) else None if seed % 7 == 0 else seed


def nested_rows(first: int, end: int, seed: int = 0) -> pa.Table:
    columns = {name: pa.array([nested_value(kind, n + seed) for n in range(first, end)], kind) for name, kind in NESTED.items()}
    return pa.table({"id": pa.array(range(first, end), pa.int64()), **columns})


def test_duckdb_and_polars_read_every_nesting_as_arrow_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.table.scan.BATCH_ROWS_MAX", 300)
    rows = nested_rows(0, 2500)
    table = objcat.Lake(FileIO(MemoryBackend("nestings"))).create_table("t", rows.schema, key=["id"], index=objcat.BucketIndex(2))
    table.insert(rows)
    table.upsert(nested_rows(100, 900, seed=5))
    table.delete([{"id": n} for n in range(0, 2500, 50)])
    parts = [nested_rows(0, 100), nested_rows(100, 900, seed=5), nested_rows(900, 2500)]
    expected = [row for part in parts for row in part.to_pylist() if row["id"] % 50]
    for where in (None, "id > 1234", "id in (5, 901, 2001)"):
        scan = table.scan(where=where)
        right = [row for row in expected if where is None or (row["id"] > 1234 if ">" in where else row["id"] in (5, 901, 2001))]
        whole = scan.to_arrow()
        assert sorted(whole.to_pylist(), key=by_id) == right
        for found in (
            duckdb.from_arrow(scan.to_dataset()).to_arrow_table(),
            duckdb.from_arrow(scan.to_batches()).to_arrow_table(),
            duckdb.from_arrow(whole).to_arrow_table(),
            scan.to_polars().to_arrow(),
        ):
            assert sorted(found.to_pylist(), key=by_id) == right
    found = table.scan().to_duckdb().filter("in_two.q.s.x > 1500 and id > 10").to_arrow_table().to_pylist()
    assert len(found) > 500
    inner = [((row["in_two"] or {}).get("q") or {}).get("s") or {} for row in expected]
    assert sorted(found, key=by_id) == [row for row, s in zip(expected, inner, strict=True) if (s.get("x") or 0) > 1500]


def test_a_merge_takes_lists_whose_values_begin_elsewhere() -> None:
    rows = nested_rows(0, 3000)
    table = objcat.Lake(FileIO(MemoryBackend("values"))).create_table("t", rows.schema, key=["id"], index=objcat.BucketIndex(1))
    table.insert(rows)
    values = pa.array([nested_value(IN_STRUCT, n) for n in range(6007)], IN_STRUCT)
    lists = pa.ListArray.from_arrays(pa.array(range(0, 6001, 2), pa.int32()), values.slice(7))
    source = pa.table({"id": rows["id"], "in_list": lists})
    done = table.merge(source.slice(3)).when_matched_update().execute()
    assert done is not None and done.updated == 2997
    found = table.scan(where="id >= 3", columns=["id", "in_list"]).to_arrow().sort_by("id")
    assert found.to_pylist() == source.slice(3).to_pylist()


def by_id(row: dict[str, Any]) -> int:
    return int(row["id"])
