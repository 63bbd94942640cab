"""Partitions: which text names one, where rows live, and that a table with them holds what a dict says, whatever is done to it."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import objcat
from devkit.handle import ServerHandle
from fileio.contract import check_key
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput, InvalidSchema
from objcat.inspection.doctor import examine
from objcat.metadata import manifest_levels
from objcat.metadata.files import decode_delta
from objcat.metadata.partition_values import partitions_of
from objcat.metadata.partitioning import NULL, Partitioning, parse_partitioning
from objcat.metadata.schema import schema_from_arrow
from objcat.timeline.entry import FileGroupId
from tests.effort import effort
from tests.tables.racing import RacingBackend

UTC = dt.UTC
HOUR = dt.datetime(2026, 11, 20, 9, 59, 59, 999_999)
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("t", pa.timestamp("us", tz="UTC")), ("v", pa.int64())]
)
_names = itertools.count()


def partition_texts(by: str, values: pa.Array, *, others: tuple[str, ...] = ()) -> list[str]:
    """The partition of a row with each value of the column `c`."""
    schema = schema_from_arrow(pa.schema([("c", values.type)]))
    partitioning = parse_partitioning([by, *others], schema)
    found = partitions_of(partitioning, (), (), schema, pa.table({"c": values}).cast(schema.to_arrow_physical()))
    return [found.texts[code] for code in found.codes]


def a_lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend(f"partitions-{next(_names)}"), env=FakeEnv(next(_names))))


def rows_of(table: objcat.Table, **scan: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.scan(**scan).to_arrow().to_pylist()), key=repr)


def partitions(table: objcat.Table) -> list[str]:
    return sorted(table.refresh().live_partitions(table._context.manifests))


def healthy(table: objcat.Table) -> None:
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings


# ---- text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "data_type", "value", "text"),
    [
        ("c", pa.string(), "Rome", "c=Rome"),
        ("c", pa.string(), "", "c="),
        ("c", pa.string(), None, f"c={NULL}"),
        ("c", pa.string(), NULL, "c=%5F_HIVE_DEFAULT_PARTITION__"),
        ("c", pa.string(), "a/b=c%", "c=a%2Fb%3Dc%25"),
        ("c", pa.string(), "東京", "c=%E6%9D%B1%E4%BA%AC"),
        ("c", pa.string(), "..", "c=.%2E"),
        ("c", pa.string(), "\0\n~", "c=%00%0A%7E"),
        ("c", pa.int32(), -7, "c=-7"),
        ("c", pa.bool_(), True, "c=true"),
        ("c", pa.decimal128(10, 2), Decimal("-0.50"), "c=-0.50"),
        ("c", pa.float64(), -0.0, "c=0.0"),
        ("c", pa.float64(), math.nan, "c=NaN"),
        ("c", pa.float64(), -math.inf, "c=-Infinity"),
        ("c", pa.float64(), 1e300, "c=1e%2B300"),
        ("c", pa.float32(), 0.1, "c=0.10000000149011612"),
        ("c", pa.binary(), b"\x00\xff", "c=00ff"),
        ("c", pa.binary(), b"", "c="),
        ("c", pa.date32(), dt.date(1, 1, 1), "c=0001-01-01"),
        ("c", pa.timestamp("us", tz="UTC"), HOUR.replace(tzinfo=UTC), "c=2026-11-20T09%3A59%3A59.999999Z"),
        ("c", pa.timestamp("us"), HOUR, "c=2026-11-20T09%3A59%3A59.999999"),
        ("hour(c)", pa.timestamp("us"), HOUR, "c_hour=2026-11-20-09"),
        ("hour(c)", pa.timestamp("us", tz="UTC"), dt.datetime(1969, 12, 31, 23, 59, tzinfo=UTC), "c_hour=1969-12-31-23"),
        ("day(c)", pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59), "c_day=1969-12-31"),
        ("day(c)", pa.date32(), dt.date(2024, 2, 29), "c_day=2024-02-29"),
        ("month(c)", pa.date32(), dt.date(1969, 12, 31), "c_month=1969-12"),
        ("MONTH( c )", pa.timestamp("us"), dt.datetime(9999, 12, 31), "c_month=9999-12"),
        ("year(c)", pa.timestamp("us"), dt.datetime(1600, 2, 29), "c_year=1600"),
        ("year(c)", pa.date32(), None, f"c_year={NULL}"),
        ("truncate(c, 10)", pa.int8(), -128, "c_truncate_10=-130"),
        ("truncate(c, 10)", pa.int64(), -(2**63), "c_truncate_10=-9223372036854775810"),
        ("truncate(c, 10)", pa.int64(), 19, "c_truncate_10=10"),
        ("truncate(c,2)", pa.string(), "😀né", "c_truncate_2=%F0%9F%98%80n"),
        ("truncate(`c`, 2)", pa.string(), "x", "c_truncate_2=x"),
        ("identity(c)", pa.string(), "x", "c=x"),
    ],
)
def test_the_text_of_a_partition(by: str, data_type: pa.DataType, value: Any, text: str) -> None:
    assert partition_texts(by, pa.array([value], data_type)) == [text]
    assert partition_texts(by, pa.array([value, value, None], data_type))[:2] == [text, text]


def test_times_beyond_python_have_a_text() -> None:
    days = pa.array([-(2**31), 2_932_897, -719_529], pa.int32()).cast(pa.date32())
    assert partition_texts("c", days) == ["c=-5877641-06-23", "c=10000-01-01", "c=-0001-12-31"]
    micros = pa.array([-(2**63) + 1, 2**63 - 1]).cast(pa.timestamp("us"))
    assert partition_texts("hour(c)", micros) == ["c_hour=-290308-12-21-19", "c_hour=294247-01-10-04"]


TEXTS = st.text(max_size=8) | st.text(alphabet=st.sampled_from(list("ab/%_.=~ \0é😀")), max_size=400)


@given(st.lists(TEXTS, min_size=1, max_size=6))
@example(["a" * 180, "a" * 181, "a" * 182, "a" * 178 + "/", "a" * 179 + "/"])
@settings(max_examples=effort(80, with_all=200), deadline=None)
def test_every_text_is_a_partition_of_its_own_and_part_of_a_key(values: list[str]) -> None:
    texts = partition_texts("c", pa.array(values, pa.string()))
    assert len(set(texts)) == len(set(values))
    for text in texts:
        assert text.isascii() and text.isprintable()
        assert "/" not in text and not text.endswith(".") and len(text) <= 255
        check_key(f"data/txn/{text}/file.parquet")


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_bytes_are_told_apart(values: list[bytes]) -> None:
    assert len(set(partition_texts("c", pa.array(values, pa.binary())))) == len(set(values))


def test_many_long_fields_stay_within_a_key() -> None:
    schema = schema_from_arrow(pa.schema([(f"ü{i}" * 40, pa.string()) for i in range(8)]))
    partitioning = parse_partitioning(schema.names, schema)
    rows = pa.table({name: ["x" * 1000 + name, "x" * 1000] for name in schema.names}).cast(schema.to_arrow_physical())
    found = partitions_of(partitioning, (), (), schema, rows)
    assert len(found.texts) == 2
    assert all(len(text) <= 800 and all(len(part) <= 255 for part in text.split("/")) for text in found.texts)
    assert len({field.name for field in partitioning.fields}) == 8


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-30, 30), st.integers(0, 5)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_rows_meet_by_all_fields_together(values: list[tuple[str | None, int, int]]) -> None:
    schema = schema_from_arrow(pa.schema([("s", pa.string()), ("n", pa.int64()), ("m", pa.int64())]))
    partitioning = parse_partitioning(["s", "truncate(n, 7)", "m"], schema)
    rows = pa.Table.from_pylist([dict(zip("snm", row, strict=True)) for row in values], schema.to_arrow_physical())
    found = partitions_of(partitioning, (), (), schema, rows)
    assert list(found.texts) == sorted(set(found.texts))
    assert {int(code) for code in found.codes} == set(range(len(found.texts)))
    expected = [f"s={NULL if s is None else s}/n_truncate_7={n // 7 * 7}/m={m}" for s, n, m in values]
    assert [found.texts[code] for code in found.codes] == expected


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "error", "says"),
    [
        (["hours(t)"], InvalidInput, r"'hours' is no transform \(did you mean 'hour'"),
        (["hour(time)"], InvalidInput, "no column 'time'"),
        (["citty"], InvalidInput, r"no column 'citty' \(did you mean 'city'"),
        (["hour(city)"], InvalidSchema, r"has the type string\. hour takes timestamp, timestamp_ntz"),
        (["truncate(t, 3)"], InvalidSchema, "truncate takes tinyint"),
        (["truncate(id)"], InvalidInput, "lacks a width"),
        (["truncate(id, 0)"], InvalidInput, "lacks a width"),
        (["truncate(id, -1)"], InvalidInput, "lacks a width"),
        (["city", "identity(city)"], InvalidInput, "twice"),
        ("city", InvalidInput, "Give a list of names"),
        ([3], InvalidInput, "not text"),
        (["id"] * 9, InvalidInput, "at most 8"),
        (["city"], InvalidInput, "'city' is not in the key"),
    ],
)
def test_a_partitioning_that_does_not_fit_is_refused(by: Any, error: type[Exception], says: str) -> None:
    lake = a_lake()
    with pytest.raises(error, match=says):
        lake.create_table("t", SCHEMA, key=["id"], partition_by=by)
    assert lake.tables() == []


def test_a_nested_column_is_no_partition() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.struct([("x", pa.int64())]))])
    with pytest.raises(InvalidSchema, match="is nested"):
        a_lake().create_table("t", schema, key=["id"], partition_by=["n"], key_scope="partition")


def test_a_column_that_looks_like_a_call_is_a_column() -> None:
    schema = pa.schema([pa.field("hour(t)", pa.int64(), nullable=False), ("t", pa.timestamp("us"))])
    table = a_lake().create_table("t", schema, key=["hour(t)"], partition_by=["hour(t)"])
    assert table.spec.partitioning.fields[0].transform == "identity"


def test_backticks_are_of_the_name_where_no_column_is_called_otherwise() -> None:
    schema = schema_from_arrow(pa.schema([("`a`", pa.string()), ("b", pa.string()), ("`b`", pa.string())]))
    texts = ["`a`", "```a```", "truncate(`a`, 2)", "b", "```b```", "truncate(`b`, 2)"]
    assert [parse_partitioning([text], schema).fields[0].column for text in texts] == [1, 1, 1, 2, 3, 2]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_batches_have_the_columns_of_partitions(kind: TableType) -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id"], partition_by=["city", "hour(t)"], key_scope="partition", table_type=kind)
    table.upsert([{"id": 1, "city": None, "t": None, "v": 1}])
    before = set(table._context.fileio.list_keys())
    with pytest.raises(InvalidBatch, match="lacks the column 'city'"):
        table.upsert([{"id": 1, "t": None, "v": 1}])
    with pytest.raises(InvalidBatch, match="lacks the column 't'"):
        table.delete([{"id": 1, "city": None}])
    assert set(table._context.fileio.list_keys()) == before
    table.delete([{"id": 1, "city": "Oslo", "t": None}])
    assert rows_of(table) == [(1, None, None, 1)]
    table.delete([{"id": 1, "city": None, "t": None}])
    assert rows_of(table) == []


# ---- where rows live ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_key_is_one_row_of_its_partition(kind: TableType) -> None:
    table = a_lake().create_table(
        "t", SCHEMA, key=["id"], partition_by=["city"], key_scope="partition", table_type=kind, index=objcat.BucketIndex(2)
    )
    both = [{"id": 1, "city": "Rome", "t": None, "v": 1}, {"id": 1, "city": "Oslo", "t": None, "v": 2}]
    assert table.upsert(both).rows == 2
    table.upsert([{"id": 1, "city": "Rome", "t": None, "v": 3}])
    assert rows_of(table) == [(1, "Oslo", None, 2), (1, "Rome", None, 3)]
    table.maintenance.compact()
    table.delete([{"id": 1, "city": "Oslo"}])
    assert rows_of(table) == [(1, "Rome", None, 3)]
    healthy(table)


def test_base_files_lie_below_their_partition() -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id", "city"], partition_by=["city"])
    result = table.insert([{"id": 1, "city": "a b", "t": None, "v": 1}])
    (path,) = table._context.fileio.list_keys("data/")
    assert path.startswith(f"data/{result.txn}/city=a%20b/")


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_writers_of_two_partitions_do_not_meet(kind: TableType) -> None:
    backend = RacingBackend(f"race-{next(_names)}")
    lake = objcat.Lake(FileIO(backend, env=FakeEnv(1)))
    table = lake.create_table(
        "t", SCHEMA, key=["id"], partition_by=["city"], key_scope="partition", table_type=kind, index=objcat.BucketIndex(1)
    )
    other = objcat.Lake(FileIO(backend, env=FakeEnv(2))).table("t")
    for write in ("insert", "upsert"):
        backend.races = [lambda: other.upsert([{"id": 1, "city": "Oslo", "t": None, "v": 2}])]
        result = getattr(table, write)([{"id": 1, "city": "Rome", "t": None, "v": 1}])
        assert (result.slots_lost, result.attempts) == (1, 1)
    assert rows_of(table) == [(1, "Oslo", None, 2), (1, "Rome", None, 1)]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_one_transaction_may_write_and_delete_equal_keys_of_two_partitions(kind: TableType) -> None:
    lake = a_lake()
    lake.create_table(
        "t", SCHEMA, key=["id"], ordering="v", partition_by=["city"], key_scope="partition", table_type=kind, index=objcat.BucketIndex(1)
    )
    lake.table("t").upsert([{"id": 1, "city": "Rome", "t": None, "v": 1}, {"id": 1, "city": "Oslo", "t": None, "v": 1}])
    with lake.transaction() as tx:
        tx["t"].upsert([{"id": 1, "city": "Rome", "t": None, "v": 2}, {"id": 2, "city": "Oslo", "t": None, "v": 2}])
        tx["t"].delete([{"id": 1, "city": "Oslo"}, {"id": 5, "city": "Rome"}])
    assert rows_of(lake.table("t")) == [(1, "Rome", None, 2), (2, "Oslo", None, 2)]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_two_processes_write_two_partitions(tmp_path: Path, kind: TableType) -> None:
    cities = ["Zürich/東京", "Rome"]
    lake = objcat.connect(tmp_path)
    lake.create_table("t", SCHEMA, key=["id"], partition_by=["city"], key_scope="partition", table_type=kind, index=objcat.BucketIndex(2))
    jobs = [json.dumps({"url": str(tmp_path), "city": city, "commits": 6}) for city in cities]
    program = str(Path(__file__).with_name("partition_process.py"))
    writers = [subprocess.Popen([sys.executable, program, job], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for job in jobs]
    slots = []
    for writer in writers:
        output, errors = writer.communicate(timeout=240)
        assert writer.returncode == 0, errors
        commits = [json.loads(line) for line in output.splitlines()]
        slots += [commit["slot"] for commit in commits]
        assert {commit["attempts"] for commit in commits} == {1}, "partitions have nothing in common"
    assert sorted(slots) == list(range(1, 13))
    table = lake.table("t")
    expected = {(key, city): min(key, 5) for city in cities for key in range(25)}
    assert {(row[0], row[1]): row[3] for row in rows_of(table)} == expected
    healthy(table)


@pytest.mark.parametrize("server", ["versitygw", "fake-gcs-server", "azurite"])
def test_every_store_takes_the_paths(servers: Callable[[str], ServerHandle], server: str) -> None:
    store = servers(server).fresh_bucket()
    lake = objcat.connect(f"{store.url}/lake", dict(store.options))
    table = lake.create_table("t", SCHEMA, key=["id"], partition_by=["city"], key_scope="partition", index=objcat.BucketIndex(1))
    cities = ["", None, "a/b%2F", "東京 😀", "..", "~", "x" * 300, "\0\n"]
    table.insert([{"id": n, "city": city, "t": None, "v": n} for n, city in enumerate(cities)])
    assert {row[:2] for row in rows_of(table)} == set(enumerate(cities))
    assert len([key for key in table._context.fileio.list_keys("data/") if "/city=" in key]) == len(cities)
    healthy(table)


def test_each_partition_has_buckets_of_its_own() -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id"], partition_by=["city"], key_scope="partition", index=objcat.BucketIndex(2))
    batch = [{"id": key, "city": city, "t": None, "v": key} for key in range(20) for city in ("Rome", "Oslo")]
    table.insert(batch)
    with pytest.raises(InvalidInput, match=r"looks like 'city=\.\.\.'"):
        table.maintenance.split_buckets()
    assert table.maintenance.split_buckets(partition="city=Rome") is not None
    table.upsert([{**row, "v": -1} for row in batch[:20]])
    table.insert([{"id": 100, "city": "Bonn", "t": None, "v": 0}])
    counts = {group_id.partition: group_id.bucket_count for group_id in table.snapshot.live_group_ids(table._context.manifests)}
    assert counts == {"city=Rome": 4, "city=Oslo": 2, "city=Bonn": 2}
    table.maintenance.compact()
    assert len(rows_of(table)) == 41
    healthy(table)


def test_bounds_of_key_ordering_and_partition_columns_are_known_of_wide_tables() -> None:
    wide = [(f"c{i}", pa.int64()) for i in range(40)]
    schema = pa.schema([*wide, pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("o", pa.int64())])
    table = a_lake().create_table("t", schema, key=["id"], ordering="o", partition_by=["city"], key_scope="partition")
    for number, city in enumerate(["Rome", "Oslo"]):
        write = table.insert if number else table.upsert
        write([{"id": number, "city": city, "o": number}])
    assert rows_of(table, where="city = 'Oslo'", columns=["id"]) == [(1,)]
    ids = {name: table.spec.table_schema.column(name).id for name in ("id", "city", "o", "c31", "c32")}
    known = [file.bounds.keys() for file in files_of(table)]
    assert all({ids["id"], ids["city"], ids["o"], ids["c31"]} <= bounds and ids["c32"] not in bounds for bounds in known)
    assert len(known) == 2


def files_of(table: objcat.Table) -> list[Any]:
    deltas = [decode_delta(entry.changes[table.id]) for entry in table.inspect.history() if table.id in entry.changes]
    return [file for delta in deltas for file in (*delta.bases, *delta.logs)]


# ---- reading few of many partitions ------------------------------------------------------------------------------


def many_partitions(backend: MemoryBackend, by: str) -> None:
    """A table of up to 1,000 partitions, and a checkpoint of it."""
    table = objcat.Lake(FileIO(backend, env=FakeEnv(3))).create_table(
        "t", SCHEMA, key=["id"], partition_by=[by], key_scope="partition", index=objcat.BucketIndex(1)
    )
    start = dt.datetime(2026, 1, 1, tzinfo=UTC)
    table.upsert([{"id": i, "city": f"city {i}", "t": start + dt.timedelta(hours=i), "v": i} for i in range(1000)])
    for _ in range(40):
        table.upsert([{"id": 0, "city": "city 0", "t": start, "v": -1}])


@pytest.mark.parametrize(
    ("by", "where", "values"),
    [
        ("city", "city = 'city 500'", [500]),
        ("city", "city in ('city 3', 'city 900') and v > 3", [900]),
        ("hour(t)", "t >= '2026-01-11 04:00:00' and t < '2026-01-11 06:30:00'", [244, 245, 246]),
        ("day(t)", "t = '2026-01-11 04:00:00'", [244]),
        ("truncate(id, 5)", "id = 444", [444]),
    ],
)
def test_a_scan_of_one_partition_reads_the_manifests_of_that_one(
    monkeypatch: pytest.MonkeyPatch, by: str, where: str, values: list[int]
) -> None:
    monkeypatch.setattr(manifest_levels, "SHARD_ITEMS", 8)
    backend = MemoryBackend(f"many-{next(_names)}")
    many_partitions(backend, by)
    read: list[str] = []

    def note(request: Request) -> None:
        if request.kind == "get" and request.key.endswith(".parquet") and "checkpoints/" in request.key:
            read.append(request.key)

    table = objcat.Lake(FileIO(FaultyBackend(backend, before=note), env=FakeEnv(4))).table("t")
    base = [ref.path for ref in table.snapshot.table.manifest if ref.run == 0]
    assert len(base) >= 5
    rows = table.scan(where=where).to_arrow().to_pylist()
    assert sorted(row["v"] for row in rows) == values
    of_base = [key for key in read if any(key.endswith(path) for path in base)]
    # A partition may begin at the end of one manifest and go on in the next.
    assert 1 <= len(of_base) <= 2 * (1 + where.count("city 900"))
    read.clear()
    table.scan().to_arrow()
    assert len(read) >= len(base) - len(of_base)


# ---- another partitioning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_stay_where_they_are_and_new_ones_go_elsewhere(kind: TableType) -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id", "city"], table_type=kind, index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "city": "Rome", "t": None, "v": 1}])
    table.alter.set_partitioning(["city"])
    assert [partitioning.shape for partitioning in table.spec.former] == [()]
    # The one partition of before is there, and so takes whatever is of it: everything.
    table.upsert([{"id": 2, "city": "Oslo", "t": None, "v": 2}, {"id": 1, "city": "Rome", "t": None, "v": 3}])
    assert partitions(table) == [""]
    table.alter.set_partitioning(["truncate(id, 10)"])
    assert [partitioning.shape for partitioning in table.spec.former] == [()]
    assert rows_of(table) == [(1, "Rome", None, 3), (2, "Oslo", None, 2)]
    healthy(table)


def test_a_table_without_rows_forgets_how_it_was_partitioned() -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id", "city"])
    table.alter.set_partitioning(["city"])
    table.alter.set_partitioning(["truncate(id, 10)", "city"])
    assert table.spec.former == ()
    slot = table.snapshot.slot
    table.alter.set_partitioning(["truncate(id, 10)", "city"])
    assert table.snapshot.slot == slot, "nothing to change"


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_to_and_fro(kind: TableType) -> None:
    """A partitioning that comes back has texts of its own: else a row that lives in a later one would be found in the earlier one."""
    table = a_lake().create_table("t", SCHEMA, key=["id", "city"], partition_by=["city"], table_type=kind, index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "city": "Rome", "t": None, "v": 1}])
    table.alter.set_partitioning(["truncate(id, 10)"])
    table.upsert([{"id": 25, "city": "Oslo", "t": None, "v": 2}, {"id": 26, "city": "Rome", "t": None, "v": 2}])
    table.alter.set_partitioning(["city"])
    table.upsert([{"id": 31, "city": "Oslo", "t": None, "v": 3}])
    table.upsert([{"id": 25, "city": "Oslo", "t": None, "v": 4}])
    assert partitions(table) == ["city=Rome", "id_truncate_10=20", "v2/city=Oslo"]
    table.alter.set_partitioning([])
    table.upsert([{"id": 99, "city": "Bonn", "t": None, "v": 5}, {"id": 31, "city": "Oslo", "t": None, "v": 5}])
    assert partitions(table) == ["", "city=Rome", "id_truncate_10=20", "v2/city=Oslo"]
    assert {(row[0], row[3]) for row in rows_of(table)} == {(1, 1), (25, 4), (26, 2), (31, 5), (99, 5)}
    assert rows_of(table, where="city = 'Oslo' and id = 25") == [(25, "Oslo", None, 4)]
    assert len(rows_of(table, where="city = 'Rome'")) == 2
    table.maintenance.compact()
    healthy(table)


def test_names_keep_their_meaning() -> None:
    schema = schema_from_arrow(SCHEMA)
    first = parse_partitioning(["city"], schema)
    renamed = schema_from_arrow(SCHEMA.set(1, pa.field("town", pa.string())).append(pa.field("city", pa.string())))
    second = parse_partitioning(["city", "town"], renamed, others=[first])
    assert [(field.name, field.column) for field in second.fields] == [("city_2", 5), ("city", 2)]
    assert parse_partitioning(["town"], renamed, others=[first]) == Partitioning(fields=first.fields, mark="v2")


def test_a_partitioning_that_would_part_equal_keys_is_refused() -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id"], partition_by=["truncate(id, 10)"])
    with pytest.raises(InvalidInput, match="'city' is not in the key"):
        table.alter.set_partitioning(["city"])
    assert table.snapshot.slot == 0


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("operation", ["upsert", "insert", "delete"])
def test_a_writer_that_planned_before_writes_again(kind: TableType, operation: str) -> None:
    backend = RacingBackend(f"race-{next(_names)}")
    lake = objcat.Lake(FileIO(backend, env=FakeEnv(1)))
    table = lake.create_table("t", SCHEMA, key=["id", "city"], partition_by=["city"], table_type=kind, index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "city": "Rome", "t": None, "v": 1}])
    other = objcat.Lake(FileIO(backend, env=FakeEnv(2))).table("t")
    backend.races = [lambda: other.alter.set_partitioning(["truncate(id, 10)"])]
    result = getattr(table, operation)([{"id": 7, "city": "Oslo", "t": None, "v": 7}, {"id": 1, "city": "Rome", "t": None, "v": 2}])
    assert (result.attempts, result.slots_lost) == (2, 1)
    assert partitions(table) == ["city=Rome", "id_truncate_10=0"] or operation == "delete"
    assert len(rows_of(table)) == (0 if operation == "delete" else 2)
    healthy(table)
    report = table.maintenance.rollback_failed_writes(older_than_s=0)
    assert not report, "the first try left files behind"


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_that_come_before_are_judged_again(kind: TableType) -> None:
    """Whether a former partitioning has rows is decided by what is there at the slot of the change."""
    backend = RacingBackend(f"race-{next(_names)}")
    table = objcat.Lake(FileIO(backend, env=FakeEnv(1))).create_table(
        "t", SCHEMA, key=["id", "city"], partition_by=["city"], table_type=kind
    )
    other = objcat.Lake(FileIO(backend, env=FakeEnv(2))).table("t")
    backend.races = [lambda: other.upsert([{"id": 1, "city": "Rome", "t": None, "v": 1}])]
    table.alter.set_partitioning([])
    assert [partitioning.shape for partitioning in table.spec.former] == [("city",)]
    table.upsert([{"id": 1, "city": "Rome", "t": None, "v": 2}])
    assert rows_of(table) == [(1, "Rome", None, 2)]


# ---- beside a dict -----------------------------------------------------------------------------------------------

CITIES = ("Rome", "東京/a", "", NULL)
PARTITIONINGS: tuple[tuple[str, ...], ...] = (
    (),
    ("city",),
    ("truncate(id, 4)",),
    ("city", "truncate(id, 4)"),
    ("hour(t)",),
    ("day(t)", "city"),
)
MOMENTS = tuple(dt.datetime(2026, 11, day, hour, 30, tzinfo=UTC) for day in (1, 2) for hour in (0, 23))
ROWS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(CITIES), st.sampled_from(MOMENTS), st.integers(0, 99)), min_size=1, max_size=6)


class Partitions(RuleBasedStateMachine):
    """Whatever is done, the table holds what a dict says. Every partitioning is made of key columns."""

    @initialize(kind=st.sampled_from(["merge_on_read", "copy_on_write"]), by=st.sampled_from(PARTITIONINGS))
    def create(self, kind: TableType, by: tuple[str, ...]) -> None:
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("city", pa.string(), nullable=False),
                pa.field("t", pa.timestamp("us", tz="UTC"), nullable=False),
                ("v", pa.int64()),
            ]
        )
        key = ["id", "city", "t"]
        self.table = a_lake().create_table(
            "t", schema, key=key, partition_by=by, table_type=kind, index=objcat.BucketIndex(2, columns=("id",))
        )
        self.model: dict[tuple[Any, ...], int] = {}
        self.states = [self.model]
        self.splits = 0

    def _batch(self, rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        return [dict(zip(("id", "city", "t", "v"), row, strict=True)) for row in rows]

    def _moved(self) -> None:
        """The state of the slots since the last."""
        head = self.table.refresh().slot
        self.states += [self.model] * (head + 1 - len(self.states))

    @rule(rows=ROWS)
    def upsert(self, rows: list[tuple[Any, ...]]) -> None:
        self.table.upsert(self._batch(rows))
        self.model = self.model | {row[:3]: row[3] for row in rows}
        self._moved()

    @rule(rows=ROWS)
    def insert(self, rows: list[tuple[Any, ...]]) -> None:
        fresh = {row[:3]: row for row in rows if row[:3] not in self.model}
        if fresh:
            self.table.insert(self._batch(list(fresh.values())))
            self.model = self.model | {key: row[3] for key, row in fresh.items()}
            self._moved()

    @rule(rows=ROWS)
    def delete(self, rows: list[tuple[Any, ...]]) -> None:
        self.table.delete(self._batch(rows))
        gone = {row[:3] for row in rows}
        self.model = {key: value for key, value in self.model.items() if key not in gone}
        self._moved()

    @rule(by=st.sampled_from(PARTITIONINGS))
    def repartition(self, by: tuple[str, ...]) -> None:
        self.table.alter.set_partitioning(list(by))
        self._moved()

    @rule()
    def compact(self) -> None:
        self.table.maintenance.compact()
        self._moved()

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        live = sorted(self.table.refresh().live_partitions(self.table._context.manifests))
        if live and self.splits < 4:
            self.splits += 1
            self.table.maintenance.split_buckets(partition=data.draw(st.sampled_from(live)))
            self._moved()

    @rule(keep=st.integers(1, 6))
    def clean(self, keep: int) -> None:
        self.table.maintenance.clean(keep_slots=keep)
        self._moved()

    @rule(back=st.integers(1, 4))
    def restore(self, back: int) -> None:
        slot = len(self.states) - 1 - back
        if slot >= self.table.refresh().log.marks(self.table.id).bound:
            self.table.restore(to=max(0, slot)) if slot >= 0 else None
            self.model = self.states[max(0, slot)] if slot >= 0 else self.model
            self._moved()

    @invariant()
    def holds_what_the_dict_says(self) -> None:
        if not hasattr(self, "table"):
            return
        rows = self.table.scan().to_arrow().to_pylist()
        found = {(row["id"], row["city"], row["t"]): row["v"] for row in rows}
        assert len(found) == len(rows)
        assert found == self.model
        some = self.table.scan(where="city = '東京/a' and id in (1, 2, 7)").to_arrow().to_pylist()
        assert len(some) == len([key for key in self.model if key[1] == "東京/a" and key[0] in (1, 2, 7)])
        late = self.table.scan(where="t >= '2026-11-01 23:30:00' and t < '2026-11-02 01:00:00'").to_arrow().num_rows
        assert late == len([key for key in self.model if key[2] in MOMENTS[1:3]])

    def teardown(self) -> None:
        if hasattr(self, "table"):
            healthy(self.table)


TestPartitions = Partitions.TestCase
TestPartitions.settings = settings(max_examples=effort(10, with_all=25), stateful_step_count=12, deadline=None)


def test_time_travel_reads_under_the_partitioning_of_then() -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id", "city"], partition_by=["city"])
    table.upsert([{"id": 1, "city": "Rome", "t": None, "v": 1}])
    table.alter.set_partitioning(["truncate(id, 10)"])
    table.upsert([{"id": 1, "city": "Rome", "t": None, "v": 2}, {"id": 50, "city": "Oslo", "t": None, "v": 2}])
    assert rows_of(table, as_of=1, where="city = 'Rome'") == [(1, "Rome", None, 1)]
    assert rows_of(table, where="id = 50") == [(50, "Oslo", None, 2)]
    table.restore(to=1)
    assert table.spec.partitioning.shape == ("city",)
    table.upsert([{"id": 50, "city": "Oslo", "t": None, "v": 3}])
    assert partitions(table) == ["city=Oslo", "city=Rome"]
    healthy(table)


def test_compacting_some_partitions_leaves_the_others() -> None:
    table = a_lake().create_table("t", SCHEMA, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "city": city, "t": None, "v": 1} for city in ("Rome", "Oslo")])
    result = table.maintenance.compact(file_groups=[FileGroupId("city=Oslo", 0, 1)])
    assert result is not None and [group_id.partition for group_id in result.file_groups] == ["city=Oslo"]
    assert len(rows_of(table)) == 2


def test_log_rows_alone_that_are_older_than_a_split_are_where_they_belong() -> None:
    table = a_lake().create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"], index=objcat.BucketIndex(2))
    table.delete([{"id": 0}])
    table.upsert([{"id": n} for n in range(9)])
    table.maintenance.split_buckets()
    healthy(table)
    assert table.scan().count() == 9
