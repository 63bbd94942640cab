"""Messages of pgoutput as bytes: what they become, and that a message that is cut or changed is refused and never misread."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objcat.ingest.decoding import DecodedValue, decode_column, nulled_values
from objcat.ingest.postgres.pgoutput import (
    BeginMessage,
    CommitMessage,
    MalformedMessage,
    RelationMessage,
    RowMessage,
    TruncateMessage,
    parse_message,
)
from objcat.ingest.postgres.types import DATE, NUMERIC, PgType, column_of, parse_array
from objcat.ingest.postgres.visibility import VisibleTransactions, lsn_number, lsn_text


def row(*values: str | bool | None) -> bytes:
    """Values of a row: text, None for null, False for one that was not sent."""
    parts = [struct.pack(">h", len(values))]
    for value in values:
        if isinstance(value, str):
            parts.append(b"t" + struct.pack(">i", len(value.encode())) + value.encode())
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


def test_each_kind() -> None:
    assert parse_message(b"B" + struct.pack(">QqI", 5, 1_000_000, 7)) == BeginMessage(5, 946_684_801_000, 7)
    assert parse_message(b"C" + struct.pack(">BQQq", 0, 5, 9, 0)) == CommitMessage(9, 946_684_800_000)
    relation = b"R" + struct.pack(">I", 3) + b"public\0t\0d" + struct.pack(">h", 1) + b"\1id\0" + struct.pack(">Ii", 20, -1)
    message = parse_message(relation)
    assert isinstance(message, RelationMessage) and message.columns[0].is_key and message.columns[0].type_oid == 20
    assert parse_message(b"T" + struct.pack(">IBII", 2, 0, 4, 5)) == TruncateMessage((4, 5))
    assert parse_message(b"M whatever") is None


def test_rows() -> None:
    made = parse_message(b"I" + struct.pack(">I", 3) + b"N" + row("é", None, ""))
    assert isinstance(made, RowMessage) and made.new is not None and made.new.values == ["é", None, ""] and made.old is None
    made = parse_message(b"U" + struct.pack(">I", 3) + b"K" + row("1", None) + b"N" + row("2", False))
    assert isinstance(made, RowMessage) and made.is_key and made.new is not None and made.new.unsent == (1,)
    made = parse_message(b"D" + struct.pack(">I", 3) + b"O" + row("1", "x"))
    assert isinstance(made, RowMessage) and not made.is_key and made.new is None and made.old is not None


@given(st.integers(0, 200))
def test_a_message_that_is_cut_is_refused(end: int) -> None:
    whole = b"U" + struct.pack(">I", 3) + b"K" + row("11", None) + b"N" + row("12", False, "text")
    if end >= len(whole):
        assert isinstance(parse_message(whole), RowMessage)
        return
    with pytest.raises(MalformedMessage):
        parse_message(whole[:end])


@pytest.mark.parametrize("data", [b"", b"Z", b"D" + struct.pack(">I", 3) + b"N" + row("1"), b"I" + struct.pack(">I", 1) + b"N\0\1x"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_message(data)


@given(xmin=st.integers(3, 1 << 40), running=st.sets(st.integers(0, 50)), ahead=st.integers(1, 60), xid=st.integers(-1000, 1000))
def test_a_snapshot_sees_what_had_ended(xmin: int, running: set[int], ahead: int, xid: int) -> None:
    xmax = xmin + ahead
    under_way = sorted({xmin + one for one in running if xmin + one < xmax})
    seen = VisibleTransactions.parse(f"{xmin}:{xmax}:{','.join(map(str, under_way))}")
    full = max(0, xmin + xid)
    assert seen.has_seen(full % (1 << 32)) == (full < xmin or (full < xmax and full not in under_way))


@given(st.integers(0, (1 << 64) - 1))
def test_positions_as_text(number: int) -> None:
    assert lsn_number(lsn_text(number)) == number


@pytest.mark.parametrize(
    ("text", "found"),
    [("{}", []), ("{1,NULL}", ["1", None]), ('{"a,b","","NULL","\\"\\\\"}', ["a,b", "", "NULL", '"\\']), ("[0:1]={a,b}", ["a", "b"])],
)
def test_arrays(text: str, found: list[str | None]) -> None:
    assert parse_array(text) == found


@pytest.mark.parametrize("text", ["{{1},{2}}", "1", "{1"])
def test_arrays_that_are_no_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="array"):
        parse_array(text)


def test_elements_that_become_null_are_counted() -> None:
    """Those of a value that came from the lake, and of one that cannot be read, were not lost here."""
    dates = column_of("days", 1182, -1, nullable=True, known={1182: PgType(element=DATE)}, numeric_scale=None)
    raw = ["{infinity,NULL,2024-02-29}", None, "{}", DecodedValue([None, None]), "{NULL}", "{x,NULL}", "{-infinity,infinity}"]
    array, bad = decode_column(dates, raw)
    assert list(bad) == [5] and array.null_count == 2
    assert nulled_values(dates, raw, array, bad) == 3
    texts = pa.array(["{infinity,NULL}", None])
    assert nulled_values(dates, texts, decode_column(dates, texts)[0], {}) == 1
    amounts = column_of("n", 1231, (6 << 16 | 2) + 4, nullable=True, known={1231: PgType(element=NUMERIC)}, numeric_scale=None)
    assert nulled_values(amounts, ["{1.5,NaN,NULL}"], decode_column(amounts, ["{1.5,NaN,NULL}"])[0], {}) == 1
