"""Pruning: a file group is left out only when no row of it can pass the filter, whatever the types, bounds and writers were."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.datafile.parquet import write_base, write_log
from objcat.datafile.statistics import BOUND_BYTES_MAX, COLUMNS_MAX
from objcat.metadata.files import BaseFile, LogRows, TableDelta, decode_delta, encode_delta
from objcat.metadata.manifest_rows import ManifestChange, rows_of
from objcat.metadata.schema import schema_from_arrow
from objcat.metadata.table_spec import BucketIndex, TableSpec, make_spec
from objcat.predicate.parse import parse_predicate
from objcat.timeline.entry import FileGroupId, Txn
from tests.effort import effort
from tests.tables.metadata import ID, History, base, log

TXN = Txn("20261121T000000000Z-0000000000000001")
D = decimal.Decimal

text = st.text(max_size=3) | st.text(alphabet="aé\U0010ffff\ud7ff\ue000", min_size=60, max_size=70) | st.just("\U0010ffff" * 20)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan, 1.5])),
    "decimal(5,2)": (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    "decimal(38,10)": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    "string": (pa.string(), text),
    "binary": (pa.binary(), st.binary(max_size=3) | st.binary(min_size=62, max_size=66) | st.just(b"\xff" * 70)),
    "date": (pa.date32(), st.integers(-800_000, 800_000).map(lambda days: dt.date(1970, 1, 1) + dt.timedelta(days % 300_000))),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes()),
}


def spec_of(data_type: pa.DataType) -> TableSpec:
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), ("v", data_type)]))
    return make_spec("t", schema, key=["id"], ordering=None, index=BucketIndex(4), table_type="merge_on_read", properties={})


def written(spec: TableSpec, values: list[Any]) -> BaseFile:
    schema = spec.table_schema.to_arrow_physical()
    rows = pa.table([pa.array(range(len(values)), pa.int64()), pa.array(values, schema.field("v").type)], schema=schema)
    file = write_base(FileIO(MemoryBackend("bounds")), "data/x/f.parquet", rows, FileGroupId("", 0, 4), TXN)
    return decode_delta(encode_delta(TableDelta(bases=(file,)))).bases[0]


def is_kept(spec: TableSpec, where: str, *files: BaseFile) -> bool:
    """Whether a group of one base file, or one row of a manifest that has replayed several, survives."""
    change = ManifestChange(FileGroupId("", 0, 4), 1, files[0], TXN)
    return bool(parse_predicate(where, spec.table_schema).to_pruning().may_match(rows_of([change], spec), spec)[0])


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_bounds_hold_every_value(kind: str, data: st.DataObject) -> None:
    data_type, values_of = TYPES[kind]
    values = data.draw(st.lists(st.none() | values_of, max_size=6))
    spec = spec_of(data_type)
    file = written(spec, values)
    row = rows_of([ManifestChange(FileGroupId("", 0, 4), 1, file, TXN)], spec).to_pylist()[0]
    column = spec.table_schema.column("v").id
    lower, upper, nulls = (row[f"{name}_{column}"] for name in ("lower", "upper", "nulls"))
    assert nulls == sum(value is None for value in values)
    for value in pa.array(values, data_type).to_pylist():
        if value is None or is_nan(value):
            continue
        assert lower is None or lower <= value
        assert upper is None or upper >= value
    for bound in (lower, upper):
        if isinstance(bound, (str, bytes)):
            assert len(bound.encode() if isinstance(bound, str) else bound) <= BOUND_BYTES_MAX
    plain = [value for value in values if value is not None and not (isinstance(value, float) and not math.isfinite(value))]
    if plain and len(plain) == len(values) and not isinstance(plain[0], (str, bytes)):
        assert (lower, upper) == (min(pa.array(plain, data_type).to_pylist()), max(pa.array(plain, data_type).to_pylist()))


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def literal_of(value: Any) -> str | None:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return repr(D(value))[9:-2] if math.isfinite(value) else None
        case int() | D():
            return f"{value:f}" if isinstance(value, D) else str(value)
        case str():
            return None if set(value) & set("'\\") else f"'{value}'"
        case dt.datetime():
            return f"'{value.replace(tzinfo=None).isoformat()}'"
        case dt.date():
            return f"'{value.isoformat()}'"
    return None


def filters(values_of: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    literal = values_of.map(literal_of).filter(lambda said: said is not None)
    comparison = st.builds(lambda op, said: f"v {op} {said}", st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), literal)
    mirrored = st.builds(lambda op, said: f"{said} {op} v", st.sampled_from(["=", "<", ">="]), literal)
    member = st.builds(lambda said: f"v in ({', '.join(said)})", st.lists(literal, min_size=1, max_size=3))
    spanned = st.builds(lambda low, high: f"v between {low} and {high}", literal, literal)
    simple = comparison | mirrored | member | spanned | st.sampled_from(["v is null", "v is not null", "id >= 0", "true", "id = id"])
    return st.recursive(
        simple,
        lambda inner: (
            st.builds(lambda one: f"not ({one})", inner)
            | st.builds(lambda one, op, two: f"({one}) {op} ({two})", inner, st.sampled_from(["and", "or"]), inner)
        ),
        max_leaves=4,
    )


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "binary"])
@settings(max_examples=effort(20, with_all=50))
@given(data=st.data())
def test_no_filter_leaves_out_a_file_with_a_row_that_passes(kind: str, data: st.DataObject) -> None:
    data_type, values_of = TYPES[kind]
    values = data.draw(st.lists(st.none() | values_of, max_size=4))
    near = values_of | st.sampled_from([value for value in values if value is not None] or [data.draw(values_of)])
    where = data.draw(filters(near))
    spec = spec_of(data_type)
    predicate = parse_predicate(where, spec.table_schema)
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, data_type)})
    if rows.filter(predicate.to_arrow()).num_rows:
        assert is_kept(spec, where, written(spec, values))


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "binary"])
@settings(max_examples=effort(10, with_all=50))
@given(data=st.data())
def test_a_field_of_a_struct_is_filtered_as_a_column_is_and_leaves_out_nothing(kind: str, data: st.DataObject) -> None:
    data_type, values_of = TYPES[kind]
    drawn = data.draw(st.lists(st.none() | values_of, min_size=1, max_size=6))
    where = data.draw(filters(values_of))
    values, numbers = pa.array(drawn, data_type), pa.array(range(len(drawn)), pa.int64())
    structs = pa.StructArray.from_arrays([values], ["v"], mask=values.is_null() if data.draw(st.booleans()) else None)
    plain = pa.table({"id": numbers, "v": values})
    within = pa.table({"id": numbers, "s": structs})
    predicate = parse_predicate(where, schema_from_arrow(plain.schema))
    nested = parse_predicate(re.sub(r"\bv\b(?=([^']*'[^']*')*[^']*$)", "s.v", where), schema_from_arrow(within.schema))
    passing = plain.filter(predicate.to_arrow())["id"]
    assert within.filter(nested.to_arrow())["id"].equals(passing), where
    spec = make_spec("t", nested.schema, key=["id"], ordering=None, index=BucketIndex(4), table_type="merge_on_read", properties={})
    rows = within.rename_columns(spec.table_schema.to_arrow_physical().names).cast(spec.table_schema.to_arrow_physical())
    file = write_base(FileIO(MemoryBackend("bounds")), "data/x/f.parquet", rows, FileGroupId("", 0, 4), TXN)
    known = rows_of([ManifestChange(FileGroupId("", 0, 4), 1, file, TXN)], spec)
    assert len(passing) == 0 or nested.to_pruning().may_match(known, spec)[0], where
    assert len(passing) == len(drawn) or nested.to_failing().may_match(known, spec)[0], where


@pytest.mark.parametrize(
    ("values", "where", "kept"),
    [
        ([1, 5], "v = 7", False),
        ([1, 5], "v = 3", True),
        ([1, 5], "v > 5", False),
        ([1, 5], "v >= 5", True),
        ([1, 5], "5 < v", False),
        ([1, 5], "not v <= 5", False),
        ([1, 5], "v in (0, 6, 9)", False),
        ([1, 5], "v in (0, 5)", True),
        ([1, 5], f"v in ({', '.join(map(str, range(100, 200)))})", False),
        ([1, 5], "v between 6 and 9", False),
        ([1, 5], "not v between 0 and 9", False),
        ([1, 5], "v < 3.5 and v > 4.5", True),
        ([1, 5], "v < 0 or v > 9", False),
        ([1, 5], "v < 0 and id = 0", False),
        ([1, 5], "v <> 1", True),
        ([5, 5], "v <> 5", False),
        ([5, None], "v <> 5", False),
        ([5, None], "v is null", True),
        ([5, 6], "v is null", False),
        ([None, None], "v is not null", False),
        ([None, None], "v = 1", False),
        ([None, None], "not v = 1", False),
        ([None, None], "v is null", True),
        ([1, 5], "false", False),
        ([1, 5], "v = 1e30", False),
        ([1, 5], "v < 1e30", True),
        ([1, 5], "v = 7.5", False),
        ([], "v = 1", False),
        ([], "v is null", False),
        ([1, 5], "v > id", True),
    ],
)
def test_what_cannot_match_is_left_out(values: list[Any], where: str, *, kept: bool) -> None:
    spec = spec_of(pa.int64())
    assert is_kept(spec, where, written(spec, values)) is kept


@pytest.mark.parametrize(("where", "kept"), [("v > 2", False), ("v <> 1", True), ("not v < 2", True), ("v = 1", True), ("v <= 0.5", False)])
def test_nan_is_never_within_bounds(where: str, *, kept: bool) -> None:
    spec = spec_of(pa.float64())
    assert is_kept(spec, where, written(spec, [1.0, math.nan])) is kept


def test_a_column_that_a_file_does_not_know_hides_nothing() -> None:
    spec = spec_of(pa.int64())
    file = base(1, FileGroupId("", 0, 4))
    assert is_kept(spec, "v = 1", file)
    assert is_kept(spec, "v is null", file)


def test_only_the_first_columns_of_a_wide_table_have_bounds() -> None:
    schema = schema_from_arrow(pa.schema([(f"c{i}", pa.int64()) for i in range(COLUMNS_MAX + 5)]))
    physical = schema.to_arrow_physical()
    rows = pa.table([pa.array([i], pa.int64()) for i in range(len(physical))], schema=physical)
    file = write_base(FileIO(MemoryBackend("bounds")), "data/x/f.parquet", rows, FileGroupId("", 0, 4), TXN)
    assert file.bounds == {i + 1: (i, i, 0) for i in range(COLUMNS_MAX)}


def test_columns_beside_nested_ones_keep_their_own_bounds() -> None:
    arrow = pa.schema(
        [
            ("s", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int64()))])),
            ("id", pa.int64()),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("z", pa.string()),
        ]
    )
    schema = schema_from_arrow(arrow)
    physical = schema.to_arrow_physical(nullable=True).append(pa.field("_objcat_op", pa.int8()))
    rows = pa.table([[{"x": 1, "y": [2, 3]}, None], [7, 9], [[("k", 4)], None], ["p", None], [0, 1]], schema=physical)
    file = write_log(
        FileIO(MemoryBackend("bounds")),
        "data/x/l.parquet",
        rows,
        (LogRows(FileGroupId("", 0, 4), 0, 1), LogRows(FileGroupId("", 1, 4), 1, 2)),
    )
    assert file.bounds == {schema.column("id").id: (7, 9, 0), schema.column("z").id: ("p", "p", 1)}


# ---- through tables ----------------------------------------------------------------------------------------------


def test_a_group_is_kept_for_its_log_rows_and_for_what_other_levels_know() -> None:
    history = History()
    group_ids = [FileGroupId("", bucket, 4) for bucket in range(4)]
    history.add(
        TableDelta(
            bases=tuple(base(1, group_id, bounds={ID: (group_id.bucket * 10, group_id.bucket * 10 + 9, 0)}) for group_id in group_ids)
        )
    )
    pruning = parse_predicate("id = 15", history.spec.table_schema).to_pruning()
    for _ in range(2):
        assert [group.group_id for group in history.groups(where=pruning)] == group_ids[1:2]
        history.save()
    history.add(TableDelta(logs=(log(2, group_ids[3:], bounds={ID: (15, 15, 0)}),)))
    for _ in range(2):
        found = history.groups(where=pruning)
        assert [group.group_id for group in found] == [group_ids[1], group_ids[3]]
        assert found[1].base is not None, "a group comes with all of its files, or not at all"
        history.save()
    history.add(TableDelta(bases=(base(3, group_ids[3], bounds={ID: (30, 39, 0)}),), as_of=2))
    for _ in range(2):
        assert [group.group_id for group in history.groups(where=pruning)] == group_ids[1:2], "what was superseded keeps nothing alive"
        history.save()
    history.add(TableDelta(logs=(log(4, group_ids[:1]),)))
    assert [group.group_id for group in history.groups(where=pruning)] == group_ids[:2], "of rows without bounds nothing is known"


def test_a_scan_reads_only_the_groups_that_may_match() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
    table = lake.create_table("t", schema, key=["id"], index=BucketIndex(8))
    table.insert([{"id": i, "at": i, "name": f"n{i:03}"} for i in range(200)])
    table.upsert([{"id": 5, "at": 1000, "name": "later"}])
    assert len(table.scan().plan.plain) == 7 and len(table.scan().plan.merged) == 1
    scan = table.scan(where="at >= 1000")
    assert (len(scan.plan.plain), len(scan.plan.merged)) == (0, 1)
    assert scan.to_arrow().column("id").to_pylist() == [5]
    assert not table.scan(where="name > 'z'").plan.plain
    assert table.scan(where="name > 'z'").to_arrow().num_rows == 0
    assert table.scan(where="id = 5 and at = 5").to_arrow().num_rows == 0, "the row that was replaced is gone"
