"""Statistics of files: bounds exclude no row, whatever the values, and a filter reads the same rows as without them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fileio.registry import open_store
from objcat.datafile.statistics import bounds_of
from objcat.mirror.delta.stats import stats_of
from tests.effort import effort
from tests.mirror.delta.synthetic import History, rows_of, spec_of

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "tiny": (pa.int8(), st.integers(-128, 127)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "big": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=80)),
    "bytes": (pa.binary(), st.binary(max_size=80)),
    "day": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "clock": (pa.timestamp("us"), st.datetimes()),
    "money": (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "exact": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
}
SCHEMA = pa.schema([(name, data_type) for name, (data_type, _) in TYPES.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}), max_size=6)


def said(rows: list[dict[str, Any]], *, at_most: bool = False) -> dict[str, Any]:
    spec = spec_of(SCHEMA)
    schema = spec.table_schema.to_arrow_physical(nullable=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), sink)
    bounds = bounds_of(pq.read_metadata(pa.BufferReader(sink.getvalue())), schema)
    columns = {column.id: column for column in spec.table_schema.columns}
    text = stats_of(len(rows), bounds, columns, nulls_at_most=at_most)
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


def as_read(value: Any, name: str) -> Any:
    """A bound as a reader takes it."""
    match name:
        case "day":
            return dt.date.fromisoformat(value)
        case "time" | "clock":
            assert value.endswith("Z") == (name == "time") and len(value.removesuffix("Z")) == len("2026-01-01T00:00:00.000")
            return dt.datetime.fromisoformat(value)
        case "money" | "exact":
            return Decimal(value)
    return value


@settings(max_examples=effort(80, with_all=3000))
@given(ROWS)
def test_bounds_hold_every_value_and_doubtful_ones_are_left_out(rows: list[dict[str, Any]]) -> None:
    stats = said(rows)
    assert stats["numRecords"] == len(rows) and stats["tightBounds"] is False
    for name in TYPES:
        values = [row[name] for row in rows if row[name] is not None]
        low, high = stats["minValues"].get(name), stats["maxValues"].get(name)
        assert stats["nullCount"].get(name, len(rows) - len(values)) == len(rows) - len(values)
        if name in ("float", "double", "flag", "bytes") or not values:
            assert low is None and high is None
        key = (lambda value: value.encode()) if name == "text" else (lambda value: value)
        if low is not None:
            assert all(key(as_read(low, name)) <= key(value) for value in values)
        if high is not None:
            assert all(key(as_read(high, name)) >= key(value) for value in values)


def test_bounds_are_there_where_they_are_certain() -> None:
    row = {
        "tiny": -1,
        "big": 2**62,
        "text": "ü",
        "day": dt.date(1969, 12, 31),
        "time": dt.datetime(1969, 12, 31, 23, 59, 59, 999_001, dt.UTC),
        "clock": dt.datetime(2026, 1, 1, 0, 0, 0, 1),
        "money": Decimal("-0.10"),
    }
    stats = said([{**dict.fromkeys(TYPES), **row}])
    assert stats["minValues"] == {
        "tiny": -1,
        "big": 2**62,
        "text": "ü",
        "day": "1969-12-31",
        "time": "1969-12-31T23:59:59.999Z",
        "clock": "2026-01-01T00:00:00.000",
        "money": Decimal("-0.10"),
    }
    assert stats["maxValues"] == {
        **stats["minValues"],
        "time": "1970-01-01T00:00:00.000Z",
        "clock": "2026-01-01T00:00:00.001",
    }
    assert stats["nullCount"]["small"] == 1 and "exact" in stats["nullCount"]


def test_a_time_of_the_last_millisecond_has_no_bound_above_the_calendar() -> None:
    stats = said([{**dict.fromkeys(TYPES), "time": dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC)}])
    assert "time" in stats["minValues"] and "time" not in stats["maxValues"]


def test_counts_of_nulls_that_are_not_exact_are_left_out() -> None:
    rows = [dict.fromkeys(TYPES), {**dict.fromkeys(TYPES), "big": 1, "tiny": 1}, {**dict.fromkeys(TYPES), "big": 2}]
    rows[0]["big"] = 3
    stats = said(rows, at_most=True)
    assert stats["nullCount"] == {"big": 0}
    assert stats["minValues"] == {"big": 1, "tiny": 1} and stats["maxValues"] == {"big": 3, "tiny": 1}


FILTERS = [
    "big > 3",
    "big = -5",
    "text >= 'v2'",
    "day < DATE '1970-01-03'",
    "time > TIMESTAMP '1970-01-01T00:00:00.0005Z'",
    "clock <= TIMESTAMP '1970-01-01T00:00:00.000001'",
    "money = 0.29",
    "money >= 2.5",
    "double > 1.0",
    "tiny IS NULL",
    "flag IS NOT NULL",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> History:
    found = History(open_store(tmp_path_factory.mktemp("stats").as_uri()), spec=spec_of(SCHEMA))
    mirror = found.mirror()
    mirror.write(found.begin())
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    files = []
    for number in range(-6, 6):
        moment = epoch + dt.timedelta(microseconds=number * 500 + 1)
        row = {
            "tiny": number if number % 2 else None,
            "big": number,
            "double": float("nan") if number % 3 else number / 2,
            "flag": True if number > 0 else None,
            "text": f"v{number}",
            "day": dt.date(1970, 1, 1) + dt.timedelta(days=number),
            "time": moment,
            "clock": moment.replace(tzinfo=None),
            "money": Decimal("0.29") if number == 1 else Decimal(number),
        }
        files.append(found.file([row, {**row, "big": number + 100}], masked={1} if number == 2 else set()))
    mirror.write(found.add(*files))
    return found


@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_reads_the_rows_that_it_would_read_without_statistics(table: History, where: str) -> None:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table.url))
    filtered = pa.table(query.execute(f"SELECT * FROM t WHERE {where}").read_all())
    every = pa.table(query.execute(f"SELECT * FROM (SELECT *, random() AS r FROM t) WHERE ({where}) AND r < 2").read_all()).drop(["r"])
    assert filtered.num_rows > 0
    assert repr(rows_of(filtered)) == repr(rows_of(every))
    assert repr(rows_of(pa.table(query.execute("SELECT * FROM t").read_all()))) == repr(table.rows_at[table.slot])
