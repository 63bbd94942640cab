"""Blocks of JSON lines that are decoded at once have the rows of lines that are decoded one by one."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileio import open_store
from objcat.sourcefiles import json_rows, line_blocks
from objcat.sourcefiles.file_batch import BrokenFile
from objcat.sourcefiles.formats import open_rows
from objcat.sourcefiles.layout import FileLayout

TYPES: dict[str, pa.DataType] = {
    "t": pa.string(),
    "i": pa.int64(),
    "n": pa.int32(),
    "f": pa.float64(),
    "g": pa.float32(),
    "b": pa.bool_(),
    "d": pa.decimal128(12, 3),
    "at": pa.timestamp("us"),
    "zoned": pa.timestamp("us", tz="UTC"),
    "day": pa.date32(),
    "raw": pa.binary(),
    "in": pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())]),
    "many": pa.list_(pa.field("element", pa.float64())),
}
VALUES = [
    *(
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-0.0",
        "1",
        "1.0",
        "1e3",
        "1e400",
        "-1e-400",
        "5e-324",
        "0.1",
        "16777217",
        "1.00000005960464478",
    ),
    *("2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551616", "123456789012345678901234567890"),
    *("1e99999999999999999999", "9007199254740993", "1.0005", "[]", "[1, 2.5, null]", "{}", '{"x": 1}', '{"x": "1", "y": 2, "z": 3}'),
    *(
        '""',
        '" "',
        '"a"',
        '"ä€😀"',
        r'"\ud83d\ude00"',
        r'"\ud800"',
        r'"\u0000"',
        r'"\q"',
        '"true"',
        '"5"',
        '"5.5"',
        '"NaN"',
        '"QUJD"',
        "NaN",
    ),
    *('"2026-11-27"', '"2026-11-27T01:02:03"', '"2026-11-27T01:02:03.1234567"', '"2026-11-27 01:02:03Z"', '"2026-11-27T01:02:03+02:00"'),
    *("01", "1.", ".5", "tru", "'a'", '"a', '"a\tb"', "[1,]"),
]
LINES = [
    *(b"", b"  ", b"\r", b"\x0b", b"null", b"[1]", b'"t"', b"{}", b"{", b"}", b"{}{}", b'{"t": "a"} ', b'  {"t": "a"}\r', b'{"t": "a"}x'),
    *(b'{"t": "a"}{"t": "b"}', b'{"t":', b'"a"}', b'{"t": "\xff"}', b'{"else": "\xff"}', b'{"\xff": 1}', b'{"t": 1, "t": "a"}'),
    *(b'{"t": "a", "t": null}', rb'{"\u0074": "a"}', b'{"i": 1,}', b"{t: 1}", b'{"else": 1e99999999999999999999}', b'{"T": "a"}'),
    *(b'\xef\xbb\xbf{"t": "a"}', b'{"else": [[[[{"t": "b"}]]]], "t": "a"}', b'{"else": "\\q"}', b'{"else": 01}', b'{"t.u": "a", "": 2}'),
    b'{"else": ' + b"[" * 3000 + b"]" * 3000 + b"}",
]


def outcome(data: bytes, types: dict[str, pa.DataType], *, at_once: bool, misfits_are_null: bool) -> Any:
    """Rows, their numbers and the bad rows, or the error, of all blocks of a file."""
    store = open_store("memory://json-lines")
    store.put("a.json", data)
    with pytest.MonkeyPatch.context() as patch:
        if not at_once:
            patch.setattr(json_rows, "_decoder", lambda *_: None)
        opened = open_rows(store, store.head("a.json"), "json", FileLayout(columns=types, misfits_are_null=misfits_are_null))
        try:
            batches = list(opened)
        except BrokenFile as error:
            return str(error)
    rows = pa.concat_tables([batch.rows for batch in batches]) if batches else opened.schema.empty_table()
    bad = [(row.number, row.payload) for batch in batches for row in batch.bad]
    return [shown(row) for row in rows.to_pylist()], [number for batch in batches for number in batch.kept], bad


def shown(value: Any) -> Any:
    """A value that is equal to another one only if they are the same, bit for bit."""
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shown(one) for one in value]
    return ("nan" if math.isnan(value) else value.hex()) if isinstance(value, float) else value


def check(data: bytes, types: dict[str, pa.DataType] = TYPES) -> None:
    for misfits_are_null in (False, True):
        one, other = (outcome(data, types, at_once=way, misfits_are_null=misfits_are_null) for way in (True, False))
        assert one == other


@pytest.mark.parametrize("name", TYPES)
def test_every_value_in_every_column(name: str) -> None:
    for value in VALUES:
        line = f'{{"{name}": {value}}}'.encode()
        check(line)
        check(b'{"t": "before"}\n' + line + b'\n{"t": "after"}\n', {"t": pa.string(), name: TYPES[name]})


@pytest.mark.parametrize("line", LINES)
def test_lines_that_may_be_no_rows(line: bytes) -> None:
    good = b'{"t": "a", "i": 1}'
    for data in (line, line + b"\n" + good, good + b"\n" + line, good + b"\n" + line + b"\n\n" + good + b"\n", line + b"\r\n" + line):
        check(data, {"t": pa.string(), "i": pa.int64()})


names = st.sampled_from([*TYPES, "else"])
values = st.one_of(st.sampled_from(VALUES), st.integers().map(str), st.floats(allow_nan=False).map(str), st.text().map(json.dumps))
objects = st.lists(st.tuples(names, values), max_size=4).map(lambda pairs: "{" + ", ".join(f'"{n}": {v}' for n, v in pairs) + "}")


@given(st.lists(st.one_of(objects.map(lambda text: text.encode()), st.sampled_from(LINES), st.binary(max_size=20)), max_size=6))
def test_any_lines(lines: list[bytes]) -> None:
    check(b"\n".join(lines))


def test_well_formed_lines_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the equality of both ways would show nothing."""
    monkeypatch.setattr(json_rows.JsonRows, "_line_by_line", lambda *_: pytest.fail("line by line"))
    row = {
        "t": "a",
        "i": 5,
        "n": 6,
        "f": 0.5,
        "g": 0.25,
        "b": True,
        "d": 1.5,
        "at": "2026-11-27T01:02:03",
        "day": "2026-11-27",
        "else": [1],
    }
    found = outcome("\n".join([json.dumps(row), "{}", '{"f": 3}']).encode(), TYPES, at_once=True, misfits_are_null=False)
    assert [one["i"] for one in found[0]] == [5, None, None] and found[0][2]["f"] == (3.0).hex() and found[1] == [1, 2, 3]


def test_blocks_join_to_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "LINES_BYTES", 16)
    data = b"".join(b'{"i": %d, "t": "%s"}\n' % (number, b"x" * (number % 40)) for number in range(200)) + b'{"i": 200}'
    found = outcome(data, {"i": pa.int64()}, at_once=True, misfits_are_null=False)
    assert [row["i"] for row in found[0]] == list(range(201)) and found[1] == list(range(1, 202))
    store = open_store("memory://json-blocks")
    for name, stored in (("a.json", data), ("a.json.zst", bytes(pa.compress(data, codec="zstd", asbytes=True)))):
        store.put(name, stored)
        meta = store.head(name)
        every = list(open_rows(store, meta, "json", FileLayout(columns={"i": pa.int64()})))
        assert [batch.span[0] for batch in every[1:] if batch.span] == [batch.span[1] for batch in every[:-1] if batch.span]
        spans = tuple(batch.span for batch in every[3::7] if batch.span)
        some = list(open_rows(store, meta, "json", FileLayout(columns={"i": pa.int64()}, spans=spans)))
        assert [batch.rows for batch in some] == [batch.rows for batch in every[3::7]]


def test_a_line_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(line_blocks, "LINES_BYTES", 32)
    said = outcome(b'{"t": "a"}\n{"t": "' + b"x" * 200 + b'"}\n', {"t": pa.string()}, at_once=True, misfits_are_null=True)
    assert said == "line 2 has more than 100 bytes"
