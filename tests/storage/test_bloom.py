"""Bloom filters: what pyarrow writes is read as others read it."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from objcat.datafile.bloom import has_filter, may_hold, options_of, parse_filter, physical_type, ranges_of, value_hashes
from objcat.datafile.bloom_lookup import FileFilters, Probe, read_filters
from objcat.metadata.schema import schema_from_arrow
from objcat.metadata.table_spec import BloomIndex, TableSpec, make_spec

ROWS = 1000
DAY = dt.date(1969, 1, 1)
VALUES = {
    "int8": pa.array(range(-100, 100, 2), pa.int8()),
    "int32": pa.array(range(-ROWS, ROWS, 2), pa.int32()),
    "int64": pa.array([7 ** (at % 18) * at - 2**40 for at in range(ROWS)], pa.int64()),
    "date": pa.array([DAY + dt.timedelta(days=at) for at in range(ROWS)], pa.date32()),
    "timestamp": pa.array(
        [dt.datetime(1960, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=at) for at in range(ROWS)], pa.timestamp("us", "UTC")
    ),
    "string": pa.array([f"{'ä' * (at % 60)}{at}" for at in range(ROWS)]),
    "uuid": pa.array([str(uuid.UUID(int=at * 2**90 + at)) for at in range(ROWS)]),
    "binary": pa.array([bytes([at % 256]) * (at % 70) + str(at).encode() for at in range(ROWS)], pa.binary()),
    "decimal5": pa.array([decimal.Decimal(at - 500) for at in range(ROWS)], pa.decimal128(5, 0)),
    "decimal12": pa.array([decimal.Decimal(at * at - 500) / 8 for at in range(ROWS)], pa.decimal128(12, 3)),
    "decimal38": pa.array([decimal.Decimal(at * at - 500) * 10**20 for at in range(ROWS)], pa.decimal128(38, 0)),
}


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"xxhash", 0x32DD38952C4BC720),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_hashes_are_those_that_are_published(text: bytes, hashed: int) -> None:
    values = pa.chunked_array([pa.array([b"before", text, b"after"]).slice(1, 1)])
    assert value_hashes(values).tolist() == [hashed]


def written(path: Path, values: pa.Array, row_group_rows: int = ROWS) -> Path:
    options = options_of(["k"], row_group_rows)
    rows = pa.table({"k": values})
    pq.write_table(rows, path, bloom_filter_options=options, row_group_size=row_group_rows, store_decimal_as_integer=True)
    return path


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_found_and_few_others(tmp_path: Path, name: str) -> None:
    values = VALUES[name]
    assert has_filter(values.type)
    path = written(tmp_path / "f.parquet", values.take(pa.array(range(0, len(values), 2))))
    ((offset, length),) = (ranges_of(pq.read_metadata(path), {"k": physical_type(values.type)}) or [])[0]
    blocks = parse_filter(path.read_bytes()[offset : offset + length])
    assert blocks is not None
    # Chunks that begin in the middle of their buffers.
    found = may_hold(blocks, value_hashes(pa.chunked_array([values.slice(0, 7), values.slice(7)])))
    assert found[::2].all()
    assert found[1::2].mean() < 0.05


@pytest.mark.parametrize("name", ["int32", "int64", "date", "uuid", "binary"])
def test_the_answers_are_those_of_duckdb(tmp_path: Path, name: str) -> None:
    values = VALUES[name]
    # A filter that is far too small, so that it says yes to many that it was not made of.
    path = tmp_path / "f.parquet"
    half = pa.table({"k": values.take(pa.array(range(0, len(values), 2)))})
    pq.write_table(half, path, bloom_filter_options={"k": {"ndv": 400, "fpp": 0.3}}, store_schema=False)
    ((offset, length),) = (ranges_of(pq.read_metadata(path), {"k": physical_type(values.type)}) or [])[0]
    blocks = parse_filter(path.read_bytes()[offset : offset + length])
    assert blocks is not None
    sample = values.slice(0, 80)
    own = may_hold(blocks, value_hashes(pa.chunked_array([sample])))
    theirs = []
    with duckdb.connect() as connection:
        for value in sample.to_pylist():
            told = connection.execute("select bloom_filter_excludes from parquet_bloom_probe(?, 'k', ?)", [str(path), value]).fetchall()
            theirs.append(not told[0][0])
    assert own.tolist() == theirs
    assert 0 < own[1::2].sum() < len(own[1::2])


def test_a_header_of_another_kind_is_no_filter(tmp_path: Path) -> None:
    values = VALUES["int64"]
    path = written(tmp_path / "f.parquet", values)
    ((offset, length),) = (ranges_of(pq.read_metadata(path), {"k": physical_type(values.type)}) or [])[0]
    data = path.read_bytes()[offset : offset + length]
    assert parse_filter(data) is not None
    assert parse_filter(data[:1]) is None
    kind = data.index(b"\x1c\x1c")
    assert parse_filter(data[:kind] + b"\x1c\x2c" + data[kind + 2 :]) is None
    with pytest.raises(ValueError, match="bloom filter of"):
        parse_filter(data[:-1])


def spec_of(*names: str) -> TableSpec:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("s", pa.string(), nullable=False), pa.field("f", pa.float64())])
    kept = schema_from_arrow(schema)
    return make_spec("t", kept, key=list(names), ordering=None, index=BloomIndex(), table_type="merge_on_read", properties={})


def filters_of(path: Path, probe: Probe) -> FileFilters:
    with path.open("rb") as file:
        return read_filters(pq.read_metadata(path), file, probe)


def test_a_row_group_is_passed_over_by_any_column_of_the_key(tmp_path: Path) -> None:
    spec = spec_of("k", "s")
    names = [column.physical for column in spec.key_columns]
    path = tmp_path / "f.parquet"
    rows = pa.table({names[0]: pa.array(range(0, 400, 2)), names[1]: [str(at) for at in range(200)]})
    pq.write_table(rows, path, row_group_size=50, bloom_filter_options=options_of(names, 50))

    def held(key: int, text: str) -> list[int]:
        probe = Probe.of(spec, pa.table({names[0]: [key], names[1]: [text]}))
        return filters_of(path, probe).may_hold(probe)

    assert held(0, "0") == [0] and held(398, "199") == [3]
    # Each value is known, in different row groups; or none is.
    assert held(0, "199") == [] and held(1, "0") == [] and held(10**6, "x") == []
    absent = np.mean([bool(held(2 * at, f"no {at}")) for at in range(200)])
    assert absent < 0.05


def test_a_file_without_filters_may_hold_anything(tmp_path: Path) -> None:
    spec = spec_of("k")
    name = spec.key_columns[0].physical
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({name: pa.array(range(100))}), path, row_group_size=50)
    probe = Probe.of(spec, pa.table({name: pa.array([10**9])}))
    assert filters_of(path, probe).may_hold(probe) == [0, 1]


def test_a_filter_of_values_that_are_stored_otherwise_is_none(tmp_path: Path) -> None:
    values = VALUES["decimal12"]
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"k": values}), path, bloom_filter_options=options_of(["k"], ROWS), store_decimal_as_integer=False)
    assert ranges_of(pq.read_metadata(path), {"k": physical_type(values.type)}) is None
    assert ranges_of(pq.read_metadata(path), {"k": "FIXED_LEN_BYTE_ARRAY"}) is not None
