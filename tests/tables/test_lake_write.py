"""Tables that their first write creates, and tables that begin as Parquet files of others."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.registry import open_store
from objcat.common.validation import IfExists
from objcat.errors import CorruptTable, InvalidBatch, InvalidInput, NullKey, TableExists

ROWS = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})


def values(table: objcat.Table) -> dict[int, str]:
    found = table.scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def test_the_first_write_creates_and_later_ones_upsert(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    assert lake.write(ROWS, "shop.orders", key=["id"], index=objcat.BucketIndex(2)).slot == 1
    lake.write(pd.DataFrame({"id": [3, 4], "v": ["C", "D"]}), "shop.orders", key=["id"])
    table = lake.table("shop.orders")
    assert values(table) == {1: "a", 2: "b", 3: "C", 4: "D"} and table.spec.index.count == 2
    lake.write(pa.RecordBatchReader.from_batches(ROWS.schema, iter(ROWS.to_batches())), "stream", key=None)
    lake.write(ROWS, "stream", key=None)
    assert lake.table("stream").scan().count() == 6


def test_the_first_rows_of_a_new_table_are_base_files(tmp_path: Path) -> None:
    """Log rows are read several times as slowly, until a compaction."""
    lake = objcat.connect(tmp_path)
    twice = pa.concat_tables([ROWS, pa.table({"id": [3], "v": ["last"]})])
    for index in (objcat.BucketIndex(2), objcat.SimpleIndex()):
        name = index.__class__.__name__.lower()
        lake.write(twice, name, key=["id"], index=index)
        table = lake.table(name)
        assert values(table) == {1: "a", 2: "b", 3: "last"}
        assert all(not group.logs for group in table.snapshot.file_groups(table._context.manifests))
    lake.sql("CREATE TABLE chosen TBLPROPERTIES ('key' = 'id') AS SELECT * FROM bucketindex")
    chosen = lake.table("chosen")
    assert all(not group.logs for group in chosen.snapshot.file_groups(chosen._context.manifests))


@pytest.mark.parametrize("if_exists", ["upsert", "error"])
def test_lateness_is_measured_of_the_first_rows_too(tmp_path: Path, if_exists: IfExists) -> None:
    lake = objcat.connect(tmp_path)
    old, new = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime.now(dt.UTC)
    lake.write(
        pa.table({"id": [1, 2], "at": pa.array([old, new], pa.timestamp("us", "UTC"))}),
        "t",
        key=["id"],
        ordering="at",
        allowed_lateness="7 days",
        if_exists=if_exists,
    )
    assert lake.table("t").scan().to_arrow()["id"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"key": ["v"]}, InvalidInput, r"has the key \['id'\], not \['v'\]"),
        ({"key": None}, InvalidInput, r"has the key \['id'\], not None"),
        ({"key": ["id"], "if_exists": "error"}, TableExists, "shop"),
        ({"key": ["id"], "if_exists": "upsret"}, InvalidInput, "did you mean 'upsert'"),
        ({"key": ["id"], "orderin": "v"}, InvalidInput, "did you mean 'ordering'"),
    ],
)
def test_a_write_that_means_another_table_is_refused(tmp_path: Path, settings: dict[str, Any], error: type[Exception], said: str) -> None:
    lake = objcat.connect(tmp_path)
    lake.write(ROWS, "shop", key=["id"])
    with pytest.raises(error, match=said):
        lake.write(ROWS, "shop", **settings)
    assert lake.table("shop").refresh().slot == 1


def is_void(lake: objcat.Lake) -> bool:
    """Whether nobody ever gave a name in it."""
    return next(iter(lake.fileio.list_keys()), None) is None


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a null key": (pa.table({"id": pa.array([1, None], pa.int64())}), {}, "key column 'id' is null"),
    "a null key of a frame": (pd.DataFrame({"id": [1, None]}), {}, "key column 'id' is null"),
    "a null key of dicts": ([{"id": 1, "v": 1}, {"v": 2}], {}, "key column 'id' is null"),
    "no order": (pa.table({"id": [1], "at": [float("nan")]}), {"ordering": "at"}, "'at' is NaN"),
    "no key": (pa.table({"v": [1]}), {}, "id"),
    "no partition": (ROWS, {"partition_by": ["city"]}, "city"),
    "no rows": (ROWS.slice(0, 0), {}, "empty"),
    "bytes for text": (pa.table({"id": pa.array([b"\xff"]).view(pa.string())}), {}, "not valid UTF-8"),
    "no type": ([{"id": 1, "v": "a"}, {"id": 2, "v": 3}], {}, "values of several types"),
    "a stream": (pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), []), {}, "empty"),
}


@pytest.mark.parametrize("if_exists", ["upsert", "insert", "error"])
@pytest.mark.parametrize("what", BAD)
def test_rows_that_are_refused_create_no_table(tmp_path: Path, what: str, if_exists: IfExists) -> None:
    batch, settings, said = BAD[what]
    lake = objcat.connect(tmp_path)
    with pytest.raises(InvalidInput, match=said) as raised:
        lake.write(batch, "shop.orders", key=["id"], if_exists=if_exists, **settings)
    assert "\n" not in str(raised.value)
    assert is_void(lake)


def test_a_stream_on_disk_that_is_refused_leaves_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.engine.spooled_batch.SPOOL_BYTES_MAX", 0)
    lake = objcat.connect(tmp_path)
    bad = pa.table({"id": pa.array([1, None], pa.int64())})
    with pytest.raises(NullKey, match=r"in row 1 of the batch\. Nothing was written\. Fill it or filter it out\.$"):
        lake.write(pa.RecordBatchReader.from_batches(bad.schema, bad.to_batches()), "shop.orders", key=["id"])
    assert lake.tables() == [] and [dropped.name for dropped in lake.dropped_tables()] == ["shop.orders"]
    good = pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches())
    lake.write(good, "shop.orders", key=["id"])
    assert values(lake.table("shop.orders")) == {1: "a", 2: "b", 3: "c"}


def parts(place: Path, count: int = 5) -> None:
    for number in range(count):
        (place / f"year={2020 + number}").mkdir(parents=True)
        keys = list(range(number * 100, number * 100 + 100))
        pq.write_table(pa.table({"id": keys, "v": [f"v{key}" for key in keys]}), place / f"year={2020 + number}" / "part.parquet")
    (place / "_SUCCESS").touch()


@pytest.mark.parametrize("key", [["id"], None])
def test_an_import_goes_on_where_it_ended(tmp_path: Path, key: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(tmp_path / "source")
    lake = objcat.connect(tmp_path / "lake")
    real = objcat.Table.bulk_insert
    calls = []

    def fail_at_the_third(self: objcat.Table, *args: Any, **settings: Any) -> Any:
        calls.append(settings["app"])
        if len(calls) == 3:
            raise ConnectionError("the machine went away")
        return real(self, *args, **settings)

    monkeypatch.setattr(objcat.Table, "bulk_insert", fail_at_the_third)
    with pytest.raises(ConnectionError):
        lake.import_parquet(tmp_path / "source", "t", key=key, commit_bytes=1)
    monkeypatch.undo()
    result = lake.import_parquet(tmp_path / "source", "t", key=key, commit_bytes=1)
    assert (result.files, result.rows, result.commits, result.commits_before, result.rows_in_table) == (5, 500, 5, 2, 500)
    assert values(lake.table("t")) == {i: f"v{i}" for i in range(500)}
    again = lake.import_parquet(tmp_path / "source", "t", key=key, commit_bytes=1)
    assert again.commits_before == 5 and lake.table("t").refresh().slot == 5


def test_other_files_of_the_same_names_and_sizes_are_imported(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path / "lake")
    sizes = set()
    for place, first in ("monday", 0), ("tuesday", 100), ("tuesday", 200):
        (tmp_path / place).mkdir(exist_ok=True)
        file = tmp_path / place / "part-0.parquet"
        pq.write_table(pa.table({"id": range(first, first + 100)}), file, compression="none", use_dictionary=False)
        sizes.add(file.stat().st_size)
        assert lake.import_parquet(tmp_path / place, "t", key=None).commits_before == 0
    assert len(sizes) == 1
    assert sorted(lake.table("t").scan().to_arrow()["id"].to_pylist()) == list(range(300))


def test_files_that_hold_no_null_do_not_forbid_them(tmp_path: Path) -> None:
    """Whoever wrote a file with `required` columns said it of that file."""
    lake = objcat.connect(tmp_path / "lake")
    (tmp_path / "source").mkdir()
    place = pa.struct([pa.field("x", pa.float64(), nullable=False)])
    columns = {"id": pa.int64(), "city": pa.string(), "place": place, "sizes": pa.list_(pa.field("element", pa.int32(), nullable=False), 2)}
    required = pa.schema([pa.field(name, data_type, nullable=False) for name, data_type in columns.items()])
    full = pa.table({"id": [1], "city": ["Oslo"], "place": [{"x": 1.0}], "sizes": [[1, 2]]}, schema=required)
    pq.write_table(full, tmp_path / "source" / "1.parquet")
    free = pa.schema(
        [("id", pa.int64()), ("city", pa.string()), ("place", pa.struct([("x", pa.float64())])), ("sizes", pa.list_(pa.int32()))]
    )
    rows = {"id": [2, 3], "city": [None, "Rome"], "place": [None, {"x": None}], "sizes": [None, [None]]}
    pq.write_table(pa.table(rows, schema=free), tmp_path / "source" / "2.parquet")
    lake.import_parquet(tmp_path / "source", "t", key=["id"])
    assert lake.table("t").scan().to_arrow().sort_by("id").to_pylist() == full.to_pylist() + pa.table(rows, schema=free).to_pylist()


def test_what_cannot_be_imported_is_one_sentence(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path / "lake")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="There is no Parquet file below"):
        lake.import_parquet(tmp_path / "empty", "t", key=["id"])
    (tmp_path / "empty" / "x.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(InvalidInput, match=r"x\.parquet .* is not a Parquet file"):
        lake.import_parquet(tmp_path / "empty", "t", key=["id"])
    assert lake.tables() == []
    parts(tmp_path / "mixed", 2)
    pq.write_table(pa.table({"id": [1], "other": ["x"]}), tmp_path / "mixed" / "z.parquet")
    with pytest.raises(InvalidInput, match="has the columns"):
        lake.import_parquet(tmp_path / "mixed", "t", key=["id"])
    pq.write_table(pa.table({"id": ["0"], "v": ["x"]}), tmp_path / "mixed" / "z.parquet")
    with pytest.raises(InvalidInput, match=r"z\.parquet in .* has 'id' as string, and the first file as int64"):
        lake.import_parquet(tmp_path / "mixed", "t", key=["id"])
    pq.write_table(pa.table({"id": [0], "v": ["x"]}), tmp_path / "mixed" / "z.parquet")
    with pytest.raises(
        InvalidInput, match=r"directories of z\.parquet in .* give the columns \[\], and those of the first file \['year'\]"
    ):
        lake.import_parquet(tmp_path / "mixed", "t", key=["id"])
    for source, said in (
        (str(tmp_path / "mixed" / "*.parquet"), "Give the path or URL that holds"),
        ([tmp_path], "path or URL with files below it"),
    ):
        with pytest.raises(InvalidInput, match=said):
            lake.import_parquet(source, "t", key=["id"])  # type: ignore[arg-type]
    assert lake.tables() == []


def test_directories_say_columns(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path / "lake")
    places = [
        "day=2026-01-31/city=S%C3%A3o Paulo/hour=07",
        "day=2026-02-01/city=__HIVE_DEFAULT_PARTITION__/hour=11",
        "day=__HIVE_DEFAULT_PARTITION__/city=Rome/hour=23",
    ]
    for number, place in enumerate(places):
        (tmp_path / "source" / place).mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), tmp_path / "source" / place / "part-0.parquet")
    lake.import_parquet(tmp_path / "source", "t", key=["id"])
    assert lake.table("t").schema.types == [pa.int64(), pa.date32(), pa.string(), pa.int64()]
    expected = [(0, dt.date(2026, 1, 31), "São Paulo", 7), (1, dt.date(2026, 2, 1), None, 11), (2, None, "Rome", 23)]
    assert rows_of(lake.table("t")) == expected
    schema = pa.schema([("id", pa.int32()), ("hour", pa.string()), ("day", pa.string()), ("city", pa.string())])
    lake.create_table("texts", schema, key=["id"])
    lake.import_parquet(tmp_path / "source", "texts", key=["id"])
    texts = lake.table("texts").scan(columns=["id", "day", "city", "hour"]).to_arrow().sort_by("id").to_pylist()
    assert texts[0] == {"id": 0, "day": "2026-01-31", "city": "São Paulo", "hour": "07"} and texts[2]["day"] is None
    (tmp_path / "source" / places[0].replace("=07", "=noon")).mkdir()
    pq.write_table(pa.table({"id": [9]}), tmp_path / "source" / places[0].replace("=07", "=noon") / "part-0.parquet")
    with pytest.raises(InvalidInput, match=r"says hour='noon', which is no int64"):
        lake.import_parquet(tmp_path / "source", "t", key=["id"])
    assert lake.table("t").refresh().slot == 1
    # What the files have counts.
    pq.write_table(pa.table({"id": [1], "year": [7]}), place_of(tmp_path, "own", "year=2026"))
    lake.import_parquet(tmp_path / "own", "own", key=["id"])
    assert rows_of(lake.table("own")) == [(1, 7)]


def test_files_of_narrower_and_wider_types_are_one_import(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path / "lake")
    narrow = {"id": pa.array([1], pa.int32()), "v": pa.array(["x"]), "f": pa.array([0.5], pa.float32())}
    wide = {"id": pa.array([2**40]), "v": pa.array(["y"], pa.large_string()), "f": pa.array([0.1])}
    pq.write_table(pa.table(narrow), place_of(tmp_path, "source", "a"))
    pq.write_table(pa.table(wide), place_of(tmp_path, "source", "b"))
    assert lake.import_parquet(tmp_path / "source", "t", key=["id"]).rows_in_table == 2
    assert rows_of(lake.table("t")) == [(1, "x", 0.5), (2**40, "y", 0.1)]
    lake.create_table("narrow", pa.schema([("id", pa.int64()), ("v", pa.string()), ("f", pa.float32())]), key=["id"])
    with pytest.raises(InvalidBatch, match=r"'f' is double in the batch and float in the table, .*a number would be rounded"):
        lake.import_parquet(tmp_path / "source", "narrow", key=["id"])
    assert lake.table("narrow").scan().count() == 0
    pq.write_table(pa.table(wide | {"id": [1.5]}), place_of(tmp_path, "mixed", "a"))
    pq.write_table(pa.table(wide | {"id": [2**60 + 1]}), place_of(tmp_path, "mixed", "b"))
    with pytest.raises(InvalidInput, match=r"b/part\.parquet in .* has 'id' as int64, which does not convert to double without loss"):
        lake.import_parquet(tmp_path / "mixed", "mixed", key=["id"])
    assert "mixed" not in lake.tables()


def test_an_import_brings_structs_with_fewer_fields_than_the_table(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path / "lake")
    pq.write_table(pa.table({"id": [1], "place": [{"lat": 1.0}]}), place_of(tmp_path, "source"))
    place = pa.struct([("lat", pa.float64()), ("long", pa.float64())])
    lake.create_table("t", pa.schema([("id", pa.int64()), ("place", place)]), key=["id"])
    lake.import_parquet(tmp_path / "source", "t", key=["id"])
    assert rows_of(lake.table("t")) == [(1, {"lat": 1.0, "long": None})]


def test_an_import_holds_a_row_group_and_not_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, rows = 20, 50
    file = place_of(tmp_path, "source")
    noise = [random.Random(number).randbytes(4096) for number in range(groups * rows)]
    pq.write_table(pa.table({"id": range(groups * rows), "v": noise}), file, row_group_size=rows, compression="none", use_dictionary=False)
    store = open_store(tmp_path / "source")
    monkeypatch.setattr("objcat.lake.import_parquet.open_store", lambda *_: store)
    read_before: list[int] = []
    real = objcat.Table.bulk_insert

    def watched(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read_before.append(store.metrics.snapshot().bytes_read)
            yield batch

    def bulk_insert(self: objcat.Table, reader: pa.RecordBatchReader, **settings: Any) -> Any:
        return real(self, pa.RecordBatchReader.from_batches(reader.schema, watched(reader)), **settings)

    monkeypatch.setattr(objcat.Table, "bulk_insert", bulk_insert)
    lake = objcat.connect(tmp_path / "lake")
    assert lake.import_parquet(tmp_path / "source", "t", key=["id"]).rows_in_table == groups * rows
    assert len(read_before) == groups
    assert read_before[0] < file.stat().st_size / 4, "only what comes first is read first"
    assert read_before[-1] < file.stat().st_size * 1.5, "nothing is read twice but the footer"


def place_of(above: Path, *parts: str) -> Path:
    place = above.joinpath(*parts)
    place.mkdir(parents=True)
    return place / "part.parquet"


def rows_of(table: objcat.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.scan().to_arrow().sort_by("id").to_pylist()]


def test_a_source_that_changes_under_the_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(tmp_path / "source", 1)
    lake = objcat.connect(tmp_path / "lake")
    monkeypatch.setattr("objcat.lake.import_parquet._footer", lambda source, file, schema: (101, schema))
    with pytest.raises(CorruptTable, match="gave 100 rows, but their footers say 101"):
        lake.import_parquet(tmp_path / "source", "t", key=["id"])


def test_an_import_that_is_refused_says_where_and_what_stays(tmp_path: Path) -> None:
    place = tmp_path / "files"
    place.mkdir()
    for part, last in enumerate((1, 3, None)):
        pq.write_table(pa.table({"id": pa.array([part * 2, last], pa.int64())}), place / f"{part}.parquet")
    lake = objcat.connect(tmp_path / "lake")
    with pytest.raises(
        NullKey, match=r"^2\.parquet: The key column 'id' is null .* None of these rows was written, and 2 of 3 commits stay\. Fill"
    ):
        lake.import_parquet(place, "t", key=["id"], commit_bytes=1)
    assert lake.table("t").scan().count() == 4
    with pytest.raises(NullKey, match=r"^0\.parquet to 2\.parquet: .* Nothing was written\. Fill it or filter it out\.$"):
        lake.import_parquet(place, "other", key=["id"])
    assert lake.tables() == ["t"]
