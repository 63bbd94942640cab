"""Rows that stay in the bytes of their source: read together they have the values that they have one by one."""

from __future__ import annotations

import datetime as dt
import pickle
import struct
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysqlreplication.constants import FIELD_TYPE  # type: ignore[import-untyped]

from objcat.errors import IngestStopped
from objcat.ingest.decoding import RowWrite, decode_column, decode_rows, nulled_values
from objcat.ingest.model import ChangeKind, ChangeStamp, RowChange, SourceColumn, SourceTable
from objcat.ingest.mysql.packed import PLANS_MAX, BinlogRow, BinlogSchema, WireColumn, WireKind, wire_of
from objcat.ingest.mysql.types import type_of_binlog
from objcat.ingest.postgres.packed import PgRow, key_of
from objcat.ingest.postgres.pgoutput import MalformedMessage, parse_tuple
from objcat.ingest.postgres.types import column_of
from objcat.ingest.spooled_changes import SpooledChanges
from tests.ingest.test_pgoutput import row

TEXTS = SourceTable(name="public.t", columns=tuple(SourceColumn(name=name, type=pa.string()) for name in "abc"), key=("a",))
VALUES = st.one_of(st.none(), st.text(max_size=300))


@given(st.lists(st.tuples(st.text(max_size=20), VALUES, VALUES), max_size=30))
def test_rows_of_pgoutput_are_read_together_as_one_by_one(values: list[tuple[str | None, ...]]) -> None:
    rows = [PgRow(TEXTS, b"before" + row(*one), 6) for one in values]
    together = PgRow.read_columns(TEXTS, rows)
    assert [tuple(together[name][place].as_py() for name in "abc") for place in range(len(rows))] == values
    assert [tuple(one.values()) for one in rows] == values
    assert all(dict(pickle.loads(pickle.dumps(one))) == dict(one) for one in rows)


@given(VALUES, VALUES, st.sampled_from([(0,), (1,), (0, 1), (1, 2)]), st.booleans(), st.booleans())
def test_a_key_is_read_alone_or_the_row_is_parsed(
    first: str | None, second: str | None, places: tuple[int, ...], is_whole: bool, is_unsent: bool
) -> None:
    data = row(first, second, False if is_unsent else "c")
    found = key_of(data, 0, places, 3, is_whole=is_whole)
    parsed, _ = parse_tuple(data, 0)
    expected = tuple(parsed.values[place] for place in places)
    seen = range(3 if is_whole else places[-1] + 1)
    if None in expected or any(place in seen for place in parsed.unsent):
        assert found is None
    else:
        assert found == expected
    assert key_of(data, 0, places, 4, is_whole=is_whole) is None


@pytest.mark.parametrize("end", range(1, 22))
def test_a_cut_row_of_pgoutput_is_refused(end: int) -> None:
    whole = row("first", None, "last")
    assert len(whole) == 22
    rows = [PgRow(TEXTS, whole, 0), PgRow(TEXTS, whole[:end], 0), PgRow(TEXTS, whole, 0)]
    if end >= 2:
        with pytest.raises(MalformedMessage):
            PgRow.read_columns(TEXTS, rows)
    with pytest.raises(MalformedMessage):
        key_of(whole[:end], 0, (0, 2), 3, is_whole=True)
    with pytest.raises(MalformedMessage, match="beyond its row"):
        PgRow.read_columns(TEXTS, [PgRow(TEXTS, whole + b"n", 0)])


def packed(*values: str | None) -> Any:
    return PgRow(TEXTS, row(*values), 0)


def test_rows_of_both_ways_are_written_together() -> None:
    """Of a row whose key changed, or that has values of the lake, the values are there one by one."""
    table = SourceTable(
        name="public.t",
        columns=(
            column_of("id", 20, -1, nullable=False, known={}, numeric_scale=None),
            column_of("n", 1700, ((12 << 16) | 2) + 4, nullable=True, known={}, numeric_scale=None),
            column_of("note", 25, -1, nullable=True, known={}, numeric_scale=None),
        ),
        key=("id",),
    )
    routed: Any = SimpleNamespace(
        written=lambda one: list(one.columns),
        route=SimpleNamespace(mask={}, mask_secret=""),
        field=lambda column: pa.field(column.name, column.type),
        is_soft=False,
        has_lineage=False,
    )
    stamp = ChangeStamp(None, "0/1")

    def of(*values: str | None) -> Any:
        return PgRow(table, row(*values), 0)

    writes = [
        RowWrite(("1",), of("1", "1.50", "a"), ChangeKind.INSERT, stamp),
        RowWrite(("2",), {"id": "2", "n": "2.50", "note": None}, ChangeKind.UPDATE, stamp),
        RowWrite(("3",), of("3", None, "c"), ChangeKind.UPDATE, stamp),
        RowWrite(("4",), of("4", "much", "d"), ChangeKind.UPDATE, stamp),
    ]
    made, bad, nulled = decode_rows(routed, table, ["id", "n", "note"], writes)
    assert sorted(made.to_pylist(), key=lambda one: one["id"]) == [
        {"id": 1, "n": Decimal("1.50"), "note": "a"},
        {"id": 2, "n": Decimal("2.50"), "note": None},
        {"id": 3, "n": None, "note": "c"},
    ]
    assert len(bad) == 1 and b'"4"' in bad[0].payload and nulled == 0


def test_packed_rows_wait_on_disk() -> None:
    spooled = SpooledChanges(bytes_max=10)
    for number in range(5000):
        spooled.add(RowChange(TEXTS, ChangeKind.INSERT, (str(number),), packed(str(number), None, "x")), 100)
    assert spooled.memory_bytes < 1000 * 5000
    changes: list[Any] = list(spooled)
    assert [change.row["a"] for change in changes] == [str(number) for number in range(5000)]
    assert all(change.row.table is TEXTS for change in changes)


# ---- rows of the binlog


def binlog_column(name: str, code: int, **more: Any) -> SimpleNamespace:
    given = {"unsigned": False, "character_set_name": "utf8", "is_primary": False, "enum_values": None, "set_values": None}
    return SimpleNamespace(name=name, type=code, **{**given, **more})


COLUMNS = (
    binlog_column("id", FIELD_TYPE.LONGLONG),
    binlog_column("ti", FIELD_TYPE.TINY),
    binlog_column("mu", FIELD_TYPE.INT24, unsigned=True),
    binlog_column("mi", FIELD_TYPE.INT24),
    binlog_column("bu", FIELD_TYPE.LONGLONG, unsigned=True),
    binlog_column("de", FIELD_TYPE.NEWDECIMAL, precision=14, decimals=4),
    binlog_column("vc", FIELD_TYPE.VARCHAR, max_length=40),
    binlog_column("tx", FIELD_TYPE.BLOB, length_size=2),
    binlog_column("vb", FIELD_TYPE.VARCHAR, max_length=400, character_set_name="binary"),
    binlog_column("d", FIELD_TYPE.DOUBLE),
    binlog_column("da", FIELD_TYPE.DATE),
    binlog_column("dt", FIELD_TYPE.DATETIME2, fsp=3),
    binlog_column("ts", FIELD_TYPE.TIMESTAMP2, fsp=6),
)
KINDS = {one.name: type_of_binlog(one, FIELD_TYPE, None) for one in COLUMNS}
WIRES = tuple(wire_of(one, FIELD_TYPE) for one in COLUMNS)
SCHEMA = BinlogSchema(
    name="shop.t",
    columns=tuple(kind.column(name, nullable=name != "id") for name, kind in KINDS.items()),
    key=("vc", "id"),
    wires=tuple(wire for wire in WIRES if wire is not None),
)


def decimal_bytes(value: Decimal) -> bytes:
    """A decimal(14, 4): digits in groups of 1, 9 and 4, by MySQL's description of its format."""
    number = int(abs(value).scaleb(4))
    first, middle, last = number // 10**13, number // 10**4 % 10**9, number % 10**4
    made = bytearray(first.to_bytes(1, "big") + middle.to_bytes(4, "big") + last.to_bytes(2, "big"))
    made[0] |= 0x80
    return bytes(made) if value >= 0 else bytes(0xFF ^ byte for byte in made)


def datetime_bytes(value: dt.datetime) -> bytes:
    months = value.year * 13 + value.month
    packed = 1 << 39 | months << 22 | value.day << 17 | value.hour << 12 | value.minute << 6 | value.second
    return packed.to_bytes(5, "big") + (value.microsecond // 1000 * 10).to_bytes(2, "big")


def binlog_row(values: dict[str, Any]) -> bytes:
    """A row image by the documented format."""
    parts, nulls = [], 0
    encoders = {
        "id": lambda v: struct.pack("<q", v),
        "ti": lambda v: struct.pack("<b", v),
        "mu": lambda v: v.to_bytes(3, "little"),
        "mi": lambda v: v.to_bytes(3, "little", signed=True),
        "bu": lambda v: struct.pack("<Q", int(v)),
        "de": decimal_bytes,
        "vc": lambda v: bytes([len(v.encode())]) + v.encode(),
        "tx": lambda v: struct.pack("<H", len(v.encode())) + v.encode(),
        "vb": lambda v: struct.pack("<H", len(v)) + v,
        "d": lambda v: struct.pack("<d", v),
        "da": lambda v: (v.year << 9 | v.month << 5 | v.day).to_bytes(3, "little"),
        "dt": datetime_bytes,
        "ts": lambda v: struct.pack(">I", int(v.timestamp())) + v.microsecond.to_bytes(3, "big"),
    }
    for place, (name, encode) in enumerate(encoders.items()):
        if values[name] is None:
            nulls |= 1 << place
        else:
            parts.append(encode(values[name]))
    return nulls.to_bytes(2, "little") + b"".join(parts)


MOMENTS = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2105, 1, 1))
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(1 << 63), (1 << 63) - 1),
        "ti": st.none() | st.integers(-128, 127),
        "mu": st.none() | st.integers(0, (1 << 24) - 1),
        "mi": st.none() | st.integers(-(1 << 23), (1 << 23) - 1),
        "bu": st.none() | st.integers(0, (1 << 64) - 1).map(Decimal),
        "de": st.none() | st.integers(-(10**14) + 1, 10**14 - 1).map(lambda n: Decimal(n).scaleb(-4)),
        "vc": st.text(max_size=10),
        "tx": st.none() | st.text(max_size=300),
        "vb": st.none() | st.binary(max_size=300),
        "d": st.none() | st.floats(allow_nan=False),
        "da": st.none() | st.dates(dt.date(1000, 1, 1), dt.date(9999, 12, 31)),
        "dt": st.none() | st.datetimes(dt.datetime(1000, 1, 1)).map(lambda v: v.replace(microsecond=v.microsecond // 1000 * 1000)),
        "ts": st.none() | MOMENTS.map(lambda v: v.replace(tzinfo=dt.UTC)),
    }
)


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_rows_of_the_binlog_have_their_values(values: list[dict[str, Any]]) -> None:
    assert None not in WIRES
    data = b"".join(binlog_row(one) for one in values)
    rows, at = [], 0
    for one in values:
        start = at
        key, at = SCHEMA.take(data, at)
        assert key == (one["vc"], one["id"])
        rows.append(BinlogRow(SCHEMA, data[start:at], 0))
    assert at == len(data)
    together = BinlogRow.read_columns(SCHEMA, rows)
    for column in SCHEMA.columns:
        array, bad = decode_column(column, together[column.name])
        assert (array.to_pylist(), bad, array.type) == ([one[column.name] for one in values], {}, column.type), column.name
        alone, bad = decode_column(column, [one[column.name] for one in rows])
        assert (alone.to_pylist(), bad) == ([one[column.name] for one in values], {}), column.name


def test_dates_that_are_none() -> None:
    """Zero dates become null, as they do in a chunk. A date that does not exist is a bad record, and a time is null, as before."""
    plain = dict.fromkeys(KINDS) | {
        "id": 1,
        "vc": "",
        "da": dt.date(2024, 2, 29),
        "dt": dt.datetime(2024, 2, 29),
        "ts": dt.datetime.now(dt.UTC),
    }
    made = binlog_row(plain)
    at = made.index((2024 << 9 | 2 << 5 | 29).to_bytes(3, "little"))
    zero = made[:at] + bytes(3) + bytes([0x80, 0, 0, 0, 0]) + made[at + 8 : at + 10] + bytes(7)
    wrong = made[:at] + (2023 << 9 | 2 << 5 | 29).to_bytes(3, "little") + made[at + 3 :]
    for name in ("da", "dt", "ts"):
        read = BinlogRow.read_columns(SCHEMA, [BinlogRow(SCHEMA, one, 0) for one in (zero, made)])[name]
        column = SCHEMA.column(name)
        array, bad = decode_column(column, read)
        assert (array.to_pylist(), bad, nulled_values(column, read, array, bad)) == ([None, plain[name]], {}, 1), name
    read = BinlogRow.read_columns(SCHEMA, [BinlogRow(SCHEMA, one, 0) for one in (wrong, zero, made)])["da"]
    column = SCHEMA.column("da")
    array, bad = decode_column(column, read)
    assert array.to_pylist() == [None, None, plain["da"]] and list(bad) == [0] and nulled_values(column, read, array, bad) == 1


def test_text_that_is_none_names_its_row() -> None:
    """A server keeps such text in a column that once had another character set."""
    plain = dict.fromkeys(KINDS) | {"vc": "k", "tx": "text"}
    images = [binlog_row(plain | {"id": number}) for number in range(3)]
    images[1] = images[1].replace(b"text", b"t\xe9xt")
    rows: list[Any] = [BinlogRow(SCHEMA, data, 0) for data in images]
    routed: Any = SimpleNamespace(written=lambda one: list(one.columns), route=SimpleNamespace(mask={}), is_soft=False, has_lineage=False)
    writes = [RowWrite(("k", number), row, ChangeKind.INSERT, ChangeStamp(None, f"0-1-{number}")) for number, row in enumerate(rows)]
    with pytest.raises(IngestStopped, match=r"A row of shop.t with the key \('k', 1\) at the position 0-1-1 .* Nothing of this batch"):
        decode_rows(routed, SCHEMA, list(KINDS), writes)


def test_rows_with_many_patterns_of_nulls_take_little_memory() -> None:
    columns = [binlog_column(f"c{place}", FIELD_TYPE.TINY) for place in range(16)]
    kinds = {one.name: type_of_binlog(one, FIELD_TYPE, None) for one in columns}
    table = BinlogSchema(
        name="shop.sparse",
        columns=tuple(kind.column(name, nullable=name != "c0") for name, kind in kinds.items()),
        key=("c0",),
        wires=(WireColumn(WireKind.INTEGER, 1),) * 16,
    )
    for pattern in range(0, 1 << 16, 2):
        data = pattern.to_bytes(2, "little") + bytes([7]) * (16 - pattern.bit_count())
        assert table.take(data, 0) == ((7,), len(data))
    assert len(table._plans) <= PLANS_MAX


@given(ROWS, st.integers(1, 400))
def test_a_cut_row_of_the_binlog_is_refused(values: dict[str, Any], less: int) -> None:
    data = binlog_row(values)
    cut = data[: max(0, len(data) - less)]
    try:
        _, end = SCHEMA.take(cut, 0)
    except (IndexError, ValueError):
        return
    assert end > len(cut)
    if len(cut) > SCHEMA.bitmap_bytes:
        with pytest.raises(ValueError, match="does not end"):
            BinlogRow.read_columns(SCHEMA, [BinlogRow(SCHEMA, data, 0), BinlogRow(SCHEMA, cut, 0)])


@pytest.mark.parametrize(
    "column",
    [
        binlog_column("a", FIELD_TYPE.VARCHAR, max_length=9, character_set_name="cp1252"),
        binlog_column("a", FIELD_TYPE.STRING, max_length=16, character_set_name="binary"),
        binlog_column("a", FIELD_TYPE.NEWDECIMAL, precision=19, decimals=0),
        binlog_column("a", FIELD_TYPE.SET, size=1),
        binlog_column("a", FIELD_TYPE.JSON, length_size=4),
        binlog_column("a", FIELD_TYPE.TIME2, fsp=0),
        binlog_column("a", FIELD_TYPE.DATETIME),
    ],
)
def test_other_types_are_read_row_by_row(column: Any) -> None:
    assert wire_of(column, FIELD_TYPE) is None
