"""Tables of deltalake become tables of objcat. What only Spark writes (deletion vectors, column mapping) is in `test_spark_tables.py`."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaError

import objcat
from fileio.registry import open_store
from objcat.adoption import adopt, keys
from objcat.adoption.delta import storage_options_of
from objcat.datafile.statistics import _bound
from objcat.errors import ForeignTableChanged, InvalidInput
from objcat.inspection.doctor import examine
from tests.adoption.foreign import all_types, plain, replace_only_file

CITIES = ["Oslo", "Zürich", "a/b c=%25", None, "東京", "__x"]


def rows(ids: range) -> pa.Table:
    listed = [
        {
            "id": number,
            "city": CITIES[number % len(CITIES)],
            "day": None if number % 5 == 0 else dt.date(1969, 12, 30) + dt.timedelta(days=number % 3),
            "cents": decimal.Decimal(number % 7) / 100,
            "fare": number / 2,
        }
        for number in ids
    ]
    types = [("id", pa.int64()), ("city", pa.string()), ("day", pa.date32()), ("cents", pa.decimal128(9, 2)), ("fare", pa.float64())]
    return pa.Table.from_pylist(listed, schema=pa.schema(types))


def files_below(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_partition_values_that_are_in_no_file_are_read(lake: objcat.Lake, tmp_path: Path) -> None:
    place = tmp_path / "warehouse" / "ünï cödé"
    write_deltalake(place, rows(range(20)), partition_by=["city", "day", "cents"])
    write_deltalake(place, rows(range(20, 30)), mode="append")
    before = files_below(place)
    result = lake.adopt_delta(place, "t", key=["id"])
    assert (result.format, result.version, result.files_rewritten, result.rows) == ("Delta", "1", {}, 30)
    table = lake.table("t")
    assert table.partitioning == ["city", "day", "cents"]
    assert plain(table.scan().to_arrow()) == plain(rows(range(30)))
    assert table.scan(where="city = 'Zürich'").count() == 5
    assert table.scan(where="city is null and day is null").count() == 1
    assert table.scan(where="cents >= 0.06").count() == 4
    assert sorted(table.scan(columns=["cents"]).to_arrow().column(0).to_pylist()) == sorted(rows(range(30)).column("cents").to_pylist())
    adopted = table.snapshot.slot
    table.upsert(rows(range(25, 35)))
    table.delete(pa.table({"id": [0, 1]}))
    assert plain(table.scan().to_arrow()) == plain(rows(range(2, 35)))
    table.maintenance.compact()
    table.maintenance.cluster(["fare"])
    assert plain(table.scan().to_arrow()) == plain(rows(range(2, 35)))
    assert plain(table.scan(as_of=adopted).to_arrow()) == plain(rows(range(30)))
    assert examine(table._context.timeline, deep=True).healthy
    assert files_below(place) == before


def test_every_type(lake: objcat.Lake, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "types", all_types(range(30)))
    lake.adopt_delta("types", "types", key=["id"], index=objcat.RecordIndex(2))
    table = lake.table("types")
    assert plain(table.scan().to_arrow()) == plain(all_types(range(30)))
    table.upsert(all_types(range(20, 40)))
    assert plain(table.scan().to_arrow()) == plain(all_types(range(40)))


def test_columns_that_joined_later_are_null_in_older_files(lake: objcat.Lake, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2]}))
    write_deltalake(tmp_path / "t", pa.table({"id": [3], "more_7": ["x"]}), mode="append", schema_mode="merge")
    lake.adopt_delta(DeltaTable(tmp_path / "t"), "t", key=["id"])
    table = lake.table("t")
    assert plain(table.scan().to_arrow()) == [{"id": 1, "more_7": None}, {"id": 2, "more_7": None}, {"id": 3, "more_7": "x"}]
    for _ in range(8):
        table.alter.add_column("more", pa.int64())
        assert set(table.scan().to_arrow().column("more").to_pylist()) == {None}
        table.alter.drop_column("more")


def test_old_timestamps_of_twelve_bytes_are_read(lake: objcat.Lake, tmp_path: Path) -> None:
    place = tmp_path / "t"
    times = [dt.datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC), dt.datetime(2500, 1, 1, tzinfo=dt.UTC), None]
    data = pa.table({"id": [1, 2, 3], "at": pa.array(times, pa.timestamp("us", tz="UTC"))})
    write_deltalake(place, data)
    replace_only_file(place, data, use_deprecated_int96_timestamps=True)
    lake.adopt_delta(place, "t", key=["id"])
    table = lake.table("t")
    assert table.scan().to_arrow().sort_by("id").column("at").to_pylist() == times
    assert table.scan(where="at > '2400-01-01'").count() == 1


def test_a_bound_that_is_no_number_excludes_no_row() -> None:
    """Statistics of a column with NaN, as old writers have them, are read as unknown."""
    chunks = [(0.5, float("nan")), (float("nan"), 2.0)]

    class Statistics:
        has_null_count, has_min_max, null_count = True, True, 0

        def __init__(self, low: float, high: float) -> None:
            self.min_raw, self.max_raw = low, high

    class Chunk:
        num_values = 2

        def __init__(self, low: float, high: float) -> None:
            self.statistics = Statistics(low, high)

    made: Any = [Chunk(*pair) for pair in chunks]
    assert _bound(made, pa.float64()) == (None, None, 0)
    assert _bound([Chunk(0.5, 1.0), Chunk(-1.0, 2.0)], pa.float64()) == (-1.0, 2.0, 0)


@pytest.mark.parametrize("key", [b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"])
def test_files_in_the_old_calendar_are_refused(lake: objcat.Lake, tmp_path: Path, key: bytes) -> None:
    place = tmp_path / "t"
    for day, said in ((dt.date(1500, 1, 1), "old dates"), (dt.date(2000, 1, 1), "")):
        data = pa.table({"id": [1], "day": [day]})
        write_deltalake(place, data, mode="overwrite")
        (file,) = [tmp_path / path for path in DeltaTable(place).file_uris()]
        with pq.ParquetWriter(file, data.schema) as writer:
            writer.write_table(data)
            writer.add_key_value_metadata({key.decode(): ""})
        log = max((place / "_delta_log").glob("*.json"))
        text = log.read_text()
        begin = text.rindex('"size":') + 7
        log.write_text(text[:begin] + str(file.stat().st_size) + text[text.index(",", begin) :])
        if said:
            with pytest.raises(InvalidInput, match=said):
                lake.adopt_delta(place, "t", key=["id"])
        else:
            assert lake.adopt_delta(place, "t", key=["id"]).rows == 1


def test_what_does_not_fit_is_refused(lake: objcat.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "t"
    write_deltalake(place, rows(range(6)))

    def refused(match: str, source: Any = place, error: type[Exception] = InvalidInput, **settings: Any) -> None:
        with pytest.raises(error, match=match):
            lake.adopt_delta(source, "t", **{"key": ["id"], **settings})
        assert lake.tables() == []

    refused("deltalake cannot open", tmp_path / "nothing")
    refused("Give the URL", 7)
    refused("outside the lake", "/elsewhere/t")
    refused("key column 'city' has nulls", key=["city"])
    check = keys.check_keys

    def beside(*arguments: Any) -> None:
        write_deltalake(place, rows(range(100, 101)), mode="append")
        check(*arguments)

    monkeypatch.setattr(adopt, "check_keys", beside)
    refused("changed from 0 to 1 while", error=ForeignTableChanged)
    monkeypatch.undo()
    write_deltalake(place, rows(range(2)), mode="append")
    refused("2 keys come twice")
    DeltaTable(place).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    assert lake.adopt_delta(place, "t", key=None).rows == 9


def test_vectors_that_deltalake_cannot_read_are_refused(lake: objcat.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of tables with wider types, which deltalake writes none of; Spark's are in the integration tier."""
    write_deltalake(tmp_path / "t", rows(range(6)))
    DeltaTable(tmp_path / "t").alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)

    def refuses(_: DeltaTable) -> None:
        raise DeltaError("Unsupported table features required: [TypeWidening]")

    monkeypatch.setattr(DeltaTable, "deletion_vectors", refuses)
    with pytest.raises(InvalidInput, match=r"TypeWidening.*Nothing was adopted.*DROP FEATURE"):
        lake.adopt_delta("t", "t", key=["id"])
    assert lake.tables() == []


def test_options_of_the_lake_are_those_of_deltalake() -> None:
    options = {"endpoint": "http://127.0.0.1:9", "region": "x", "access_key": "a", "secret_key": "s"}
    assert storage_options_of(open_store("s3://bucket/lake", options)) == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_REGION": "x",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "allow_http": "true",
    }
    assert storage_options_of(open_store("az://box/lake", {"account": "a", "account_key": "aGk="})) == {
        "AZURE_STORAGE_ACCOUNT_NAME": "a",
        "AZURE_STORAGE_ACCOUNT_KEY": "aGk=",
    }


def test_mirrors_wait_until_adopted_files_are_rewritten(lake: objcat.Lake, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "old", rows(range(6)), partition_by=["city"])
    lake.adopt_delta("old", "t", key=["id"], properties={"mirrors": "iceberg,delta"})
    table = lake.table("t")
    assert all("_lake/old" in report.held for report in table.maintenance.mirror())
    table.maintenance.cluster(["fare"])
    assert {report.held for report in table.maintenance.mirror()} == {""}
    read = pa.table(DeltaTable(table.url).to_pyarrow_table())
    assert plain(read) == plain(rows(range(6)))
