"""Envelopes of Debezium as changes of rows, without a broker."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.debezium import DebeziumDecoder, transaction_id
from objcat.ingest.kafka.declared_types import parse_fields
from objcat.ingest.kafka.message import KafkaMessage, MessageChange, Unreadable
from objcat.ingest.kafka.position import TopicPosition
from objcat.ingest.kafka.readers import JsonReader
from objcat.ingest.kafka.settings import RecordColumn
from objcat.ingest.model import BadRecord, ChangeKind, RowChange, TableTruncated
from tests.ingest.envelopes import ITEM_FIELDS, UNAVAILABLE, connect_json, envelope, item_message


def decoder(
    *,
    key: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    records: Sequence[RecordColumn] = (),
    scale: int | None = None,
    is_whole: bool = False,
    known: TopicPosition | None = None,
) -> DebeziumDecoder:
    declared = None if columns is None else parse_fields(columns, numeric_scale=scale)
    return DebeziumDecoder(
        "pg.public.items",
        JsonReader(declared, numeric_scale=scale),
        JsonReader(declared or [], numeric_scale=scale),
        key=key,
        records=records,
        placeholder=UNAVAILABLE,
        is_whole=is_whole,
        known=known,
    )


def row_change(changes: Sequence[MessageChange]) -> RowChange:
    (one,) = changes
    assert isinstance(one.change, RowChange)
    return one.change


def decoded(change: RowChange) -> dict[str, Any]:
    """The row as the lake has it."""
    assert change.row is not None
    return {
        column.name: column.decode([change.row[column.name]], column.type)[0].as_py()
        for column in change.table.columns
        if column.name in change.row
    }


def value_of(field: Mapping[str, Any], raw: Any, *, scale: int | None = None) -> Any:
    """A value of a column of one type, as the lake has it."""
    fields = [*ITEM_FIELDS[:1], {**field, "field": "v", "optional": True}]
    message = item_message(0, envelope("c", {"id": 1, "v": raw}), fields=fields)
    return decoded(row_change(decoder(scale=scale).decode(message)))["v"]


@pytest.mark.parametrize(("operation", "kind"), [("c", ChangeKind.INSERT), ("r", ChangeKind.INSERT), ("u", ChangeKind.UPDATE)])
def test_rows_are_put_under_their_keys(operation: str, kind: ChangeKind) -> None:
    (one,) = decoder().decode(item_message(7, envelope(operation, {"id": 1, "name": "pen"})))
    change = one.change
    assert isinstance(change, RowChange) and (change.kind, change.key, change.unsent, change.old_key) == (kind, (1,), (), None)
    assert decoded(change) == {"id": 1, "name": "pen"} and change.table.key == ("id",)
    assert [column.type for column in change.table.columns] == [pa.int32(), pa.string()]
    assert one.is_snapshot is (operation == "r") and one.committed_at_ms == 1_700_000_000_000 and one.transaction is None
    assert change.stamp is not None and change.stamp.position == "pg.public.items/0@7"


def test_a_delete_has_its_key_and_its_tombstone_says_nothing() -> None:
    made = decoder()
    change = row_change(made.decode(item_message(3, envelope("d", None, before={"id": 4, "name": ""}))))
    assert (change.kind, change.key, change.row) == (ChangeKind.DELETE, (4,), None)
    assert made.decode(item_message(4, None, key={"id": 4})) == ()


def test_a_tombstone_says_nothing_where_a_run_ended_after_its_delete() -> None:
    def ended() -> TopicPosition:
        known = TopicPosition()
        decoder(known=known).decode(item_message(3, envelope("d", None, before={"id": 4, "name": ""}), partition=1))
        assert set(known.deleted) == {"1"}
        return known

    assert decoder(known=ended()).decode(item_message(4, None, key={"id": 4}, partition=1)) == ()
    for other in (item_message(4, None, key={"id": 5}, partition=1), item_message(5, None, key={"id": 4}, partition=1)):
        assert row_change(decoder(known=ended()).decode(other)).kind is ChangeKind.DELETE


@pytest.mark.parametrize("after", [None, {"id": 9, "name": "pen"}])
def test_a_position_keeps_nothing_of_a_deleted_key_behind_the_next_message(after: dict[str, Any] | None) -> None:
    known = TopicPosition()
    made = decoder(known=known)
    made.decode(item_message(3, envelope("d", None, before={"id": 4, "name": ""}), partition=1))
    made.decode(item_message(4, None if after is None else envelope("c", after), key=after or {"id": 4}, partition=1))
    assert known.deleted == {}


def test_a_tombstone_that_a_compaction_left_alone_is_a_delete() -> None:
    made = decoder()
    made.decode(item_message(0, envelope("c", {"id": 1, "name": "pen"})))
    change = row_change(made.decode(item_message(9, None, key={"id": 1})))
    assert (change.kind, change.key, change.table.has_schema) == (ChangeKind.DELETE, (1,), True)
    # No row was read yet: the key is what is known of the table.
    change = row_change(decoder().decode(item_message(9, None, key={"id": 1})))
    assert (change.kind, change.key, change.table.has_schema, change.table.key) == (ChangeKind.DELETE, (1,), False, ("id",))


def test_values_that_were_not_sent_stay() -> None:
    fields = [
        *ITEM_FIELDS,
        {"type": "bytes", "optional": True, "field": "raw"},
        {"type": "array", "items": {"type": "string", "optional": True}, "optional": True, "field": "tags"},
        {"type": "array", "items": {"type": "int32", "optional": True}, "optional": True, "field": "numbers"},
        {"type": "string", "name": "io.debezium.data.Json", "optional": True, "field": "doc"},
    ]
    encoded = base64.b64encode(UNAVAILABLE.encode()).decode()
    row = {"id": 1, "name": UNAVAILABLE, "raw": encoded, "tags": [UNAVAILABLE], "numbers": list(UNAVAILABLE.encode()), "doc": UNAVAILABLE}
    change = row_change(decoder().decode(item_message(0, envelope("u", row), fields=fields)))
    assert change.unsent == ("name", "raw", "tags", "numbers", "doc") and change.row == {"id": 1}


def test_a_new_key_takes_what_was_not_sent_from_the_old_one() -> None:
    row, old = envelope("c", {"id": 2, "name": UNAVAILABLE}), (("__debezium.oldkey", b'{"id":1}'),)
    made = decoder()
    made.decode(item_message(0, envelope("d", None, before={"id": 1, "name": ""})))
    assert made.decode(item_message(1, None, key={"id": 1})) == ()
    change = row_change(made.decode(item_message(2, row, headers=old)))
    assert (change.key, change.old_key, change.unsent) == ((2,), (1,), ("name",))
    # The delete is in another partition. By now the old key may be that of another row, which is neither read nor deleted.
    put, note = made.decode(item_message(0, row, partition=1, headers=old))
    assert isinstance(put.change, RowChange) and put.change.old_key is None and isinstance(note.change, BadRecord)
    # Whole transactions have an order over all partitions.
    whole = decoder(is_whole=True)
    block = envelope("c", {"id": 2, "name": UNAVAILABLE}, transaction=("7:1", 2))
    assert row_change(whole.decode(item_message(0, block, partition=1, headers=old))).old_key == (1,)
    # Without the header nothing says where the value is: the row is written, and a note says what it lacks.
    put, note = decoder().decode(item_message(0, row))
    assert isinstance(put.change, RowChange) and put.change.row == {"id": 2, "name": None} and put.change.unsent == ()
    assert isinstance(note.change, BadRecord) and "name of this row was not sent" in note.change.error


def test_a_key_of_the_route_comes_from_the_rows() -> None:
    made = decoder(key=["name"])
    change = row_change(made.decode(item_message(0, envelope("u", {"id": 1, "name": "b"}, before={"id": 1, "name": "a"}))))
    assert (change.key, change.old_key, change.table.key) == (("b",), ("a",), ("name",))
    change = row_change(made.decode(item_message(1, envelope("d", None, before={"id": 1, "name": "b"}))))
    assert change.key == ("b",)


def test_a_table_without_a_key_gets_rows() -> None:
    message = item_message(0, envelope("c", {"id": 1, "name": "a"}))
    change = row_change(decoder().decode(KafkaMessage(message.topic, 0, 0, None, message.value)))
    assert change.key == () and change.table.key == ()


def test_a_truncation() -> None:
    made = decoder()
    made.decode(item_message(0, envelope("c", {"id": 1, "name": "pen"})))
    (one,) = made.decode(item_message(1, envelope("t", None)))
    assert isinstance(one.change, TableTruncated) and one.change.table.key == ("id",)


@pytest.mark.parametrize(
    "payload",
    [
        {"source": {}, "ts_ms": 1, "databaseName": "shop", "ddl": "CREATE TABLE x", "tableChanges": []},
        {"status": "END", "id": "1:2", "event_count": 1, "data_collections": []},
        {"ts_ms": 1},
        {"op": "m", "message": {"prefix": "x"}},
    ],
)
def test_messages_that_say_nothing_of_rows(payload: dict[str, Any]) -> None:
    assert decoder().decode(KafkaMessage("pg.public.items", 0, 0, None, connect_json(None, payload))) == ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\xff\x00", "not JSON"),
        (b"17", "no envelope"),
        (b'{"a":1}', "no envelope"),
        (connect_json(None, envelope("x", {"id": 1})), "columns"),
    ],
)
def test_what_is_no_envelope(value: bytes, said: str) -> None:
    with pytest.raises((Unreadable, SchemaUnfit), match=said):
        decoder().decode(KafkaMessage("pg.public.items", 0, 0, b'{"id":1}', value))


def test_an_operation_that_is_not_known_and_a_key_without_a_value() -> None:
    with pytest.raises(Unreadable, match="'x', which is not known"):
        decoder().decode(item_message(0, envelope("x", {"id": 1, "name": "a"})))
    with pytest.raises(Unreadable, match="'id' has no value"):
        decoder().decode(item_message(0, envelope("c", {"id": None, "name": "a"}), key={"id": 1}))
    with pytest.raises(Unreadable, match="no row after"):
        decoder().decode(item_message(0, envelope("c", None), key={"id": 1}))


def test_json_without_a_schema_has_the_declared_columns() -> None:
    made = decoder(columns={"id": "int64", "at": "io.debezium.time.MicroTimestamp", "price": "org.apache.kafka.connect.data.Decimal(9,2)"})
    price = base64.b64encode((-1250).to_bytes(2, "big", signed=True)).decode()
    row = {"id": 1, "at": 1_700_000_000_123_456, "price": price, "more": True}
    change = row_change(made.decode(item_message(0, envelope("c", row), has_schema=False)))
    assert change.key == (1,) and decoded(change) == {
        "id": 1,
        "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123456),
        "price": Decimal("-12.50"),
    }


def test_rows_of_one_schema_name_one_table() -> None:
    made = decoder()
    first = row_change(made.decode(item_message(0, envelope("c", {"id": 1, "name": "a"}))))
    other = row_change(
        made.decode(item_message(1, envelope("c", {"id": 2, "name": "a"}), fields=[{**one, "doc": "x"} for one in ITEM_FIELDS]))
    )
    more = [*ITEM_FIELDS, {"type": "string", "optional": True, "field": "size", "default": "M"}]
    (one,) = made.decode(item_message(2, envelope("c", {"id": 3, "name": "a", "size": "L"}), fields=more))
    assert first.table is other.table and isinstance(one.change, RowChange) and one.change.table is not first.table
    assert one.defaults == {"size": "M"}


def test_an_older_row_that_is_read_later_has_the_default_of_a_column_that_joined() -> None:
    """Two partitions: one of them is ahead. A process that begins in between knows it too."""
    known = TopicPosition()
    made = decoder(known=known)
    more = [*ITEM_FIELDS, {"type": "string", "optional": True, "field": "size", "default": "M"}]
    made.decode(item_message(0, envelope("c", {"id": 1, "name": "a"}, ts_ms=1_000)))
    made.decode(item_message(1, envelope("c", {"id": 2, "name": "a", "size": "L"}, ts_ms=2_000), fields=more))
    assert known.joined == {"size": 2_000}
    for one in (made, decoder(known=TopicPosition(joined=dict(known.joined)))):
        older = row_change(one.decode(item_message(0, envelope("c", {"id": 3, "name": "b"}, ts_ms=1_500), partition=1)))
        assert decoded(older) == {"id": 3, "name": "b"} and older.table.joins_later == ("size",)
        again = row_change(one.decode(item_message(1, envelope("c", {"id": 5, "name": "b"}, ts_ms=1_600), partition=1)))
        assert again.table is older.table
        # A row of after that lacks it: the column is gone.
        later = row_change(one.decode(item_message(2, envelope("c", {"id": 4, "name": "b"}, ts_ms=3_000), partition=1)))
        assert "size" not in [column.name for column in later.table.columns] and later.table.joins_later == ()


def test_deletes_say_when_a_column_joined_and_nothing_of_rows_before_it() -> None:
    """Rows that a batch has already are not null in a column that joined, whatever is deleted after it."""
    made = decoder()
    more = [*ITEM_FIELDS, {"type": "string", "optional": True, "field": "size", "default": "M"}]
    first = row_change(made.decode(item_message(0, envelope("c", {"id": 1, "name": "a"}, ts_ms=1_000))))
    made.decode(item_message(1, envelope("d", None, before={"id": 1, "name": "a", "size": "L"}, ts_ms=2_000), fields=more))
    older = row_change(made.decode(item_message(0, envelope("c", {"id": 3, "name": "b"}, ts_ms=1_500), partition=1)))
    gone = row_change(made.decode(item_message(1, envelope("d", None, before={"id": 3, "name": "b"}, ts_ms=1_600), partition=1)))
    alone = row_change(made.decode(item_message(9, None, key={"id": 7}, partition=1)))
    assert older.table.joins_later == ("size",) and gone.table is alone.table is older.table
    # The column was dropped. What is null in this row is not null in the first one, which has the same schema.
    later = row_change(made.decode(item_message(10, envelope("c", {"id": 5, "name": "b"}, ts_ms=3_000), partition=1)))
    assert later.table.joins_later == () and later.table is not first.table and later.table.columns == first.table.columns


def test_a_default_that_no_column_of_the_lake_has_is_none() -> None:
    array = {"type": "array", "items": {"type": "string"}, "optional": True, "field": "tags", "default": []}
    endless = {"type": "double", "optional": True, "field": "weight", "default": "NaN"}
    long = {"type": "string", "optional": True, "field": "note", "default": "x" * 20_000}
    fields = [*ITEM_FIELDS, array, endless, long, {"type": "string", "optional": True, "field": "size", "default": "M"}]
    row = {"id": 3, "name": "a", "size": "L", "tags": ["a"], "weight": 1.0, "note": ""}
    (one,) = decoder().decode(item_message(0, envelope("c", row), fields=fields))
    assert one.defaults == {"size": "M"}


def test_columns_of_the_message() -> None:
    made = decoder(records=("partition", "offset", "timestamp"))
    row = decoded(row_change(made.decode(item_message(5, envelope("c", {"id": 1, "name": "a"})))))
    assert row == {
        "id": 1, "name": "a", "_partition": 0, "_offset": 5, "_timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 505000, dt.UTC),
    }  # fmt: skip


def test_transactions_of_envelopes() -> None:
    (one,) = decoder().decode(item_message(0, envelope("c", {"id": 1, "name": "a"}, transaction=("744:28354736", 3))))
    assert (one.transaction, one.total_order) == ("744", 3) and "public.items" in one.collections
    assert transaction_id("0-1-270") == "0-1-270" and transaction_id("36e2d4ff-0000-0000-0000-000000000000:5").endswith(":5")


# ---- types


@pytest.mark.parametrize(
    ("name", "plain", "raw", "wanted"),
    [
        ("io.debezium.time.Date", "int32", 19_675, dt.date(2023, 11, 14)),
        ("org.apache.kafka.connect.data.Date", "int32", -1, dt.date(1969, 12, 31)),
        ("io.debezium.time.Time", "int32", 3_723_500, "01:02:03.5"),
        ("io.debezium.time.MicroTime", "int64", 3_723_000_001, "01:02:03.000001"),
        ("io.debezium.time.MicroTime", "int64", -3_600_000_000, "-01:00:00"),
        ("io.debezium.time.NanoTime", "int64", 86_399_999_999_999, "23:59:59.999999999"),
        ("org.apache.kafka.connect.data.Time", "int32", 0, "00:00:00"),
        ("io.debezium.time.Timestamp", "int64", 1_700_000_000_123, dt.datetime(2023, 11, 14, 22, 13, 20, 123000)),
        ("io.debezium.time.MicroTimestamp", "int64", -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("io.debezium.time.NanoTimestamp", "int64", 1_700_000_000_123_456_789, dt.datetime(2023, 11, 14, 22, 13, 20, 123456)),
        ("org.apache.kafka.connect.data.Timestamp", "int64", 0, dt.datetime(1970, 1, 1)),
        ("io.debezium.time.MicroTimestamp", "int64", 9_223_371_331_200_000_000, None),
        (
            "io.debezium.time.ZonedTimestamp",
            "string",
            "2024-02-29T12:00:00.123456+02:00",
            dt.datetime(2024, 2, 29, 10, 0, 0, 123456, dt.UTC),
        ),
        ("io.debezium.time.ZonedTimestamp", "string", "2024-02-29T12:00:00Z", dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)),
        ("io.debezium.time.ZonedTimestamp", "string", "infinity", None),
        ("io.debezium.time.ZonedTime", "string", "12:00:00Z", "12:00:00Z"),
        ("io.debezium.time.IsoDate", "string", "2024-02-29Z", dt.date(2024, 2, 29)),
        ("io.debezium.time.IsoTimestamp", "string", "2024-02-29T12:00:00", dt.datetime(2024, 2, 29, 12)),
        ("io.debezium.time.Interval", "string", "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S"),
        ("io.debezium.time.MicroDuration", "int64", 5, 5),
        ("io.debezium.time.Year", "int32", 1999, 1999),
        ("io.debezium.data.Json", "string", '{"a": 1}', '{"a": 1}'),
        ("io.debezium.data.Enum", "string", "small", "small"),
        ("io.debezium.data.EnumSet", "string", "a,b", "a,b"),
        ("io.debezium.data.Xml", "string", "<a/>", "<a/>"),
        ("io.debezium.data.Uuid", "string", "5f0d6f0e-0000-0000-0000-000000000000", "5f0d6f0e-0000-0000-0000-000000000000"),
        ("io.debezium.data.Ltree", "string", "a.b", "a.b"),
        ("", "boolean", True, True),
        ("", "int8", -8, -8),
        ("", "int64", 2**63 - 1, 2**63 - 1),
        ("", "float", 1.5, 1.5),
        ("", "double", 0.1, 0.1),
        ("", "double", "NaN", pytest.approx(float("nan"), nan_ok=True)),
        ("", "bytes", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
    ],
)
def test_types_of_debezium(name: str, plain: str, raw: Any, wanted: Any) -> None:
    assert value_of({"type": plain, "name": name or None}, raw) == wanted


@pytest.mark.parametrize("unscaled", [0, 1, -1, 12_345, -(10**37), 10**38 - 1])
def test_decimals_are_exact(unscaled: int) -> None:
    width = unscaled.bit_length() // 8 + 1
    raw = base64.b64encode(unscaled.to_bytes(width, "big", signed=True)).decode()
    parameters = {"scale": "10", "connect.decimal.precision": "38"}
    field = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": parameters}
    assert value_of(field, raw) == Decimal(f"{unscaled}E-10")


def test_decimals_with_a_scale_each() -> None:
    field = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []}
    raw = {"scale": 3, "value": base64.b64encode((1234500).to_bytes(3, "big")).decode()}
    assert value_of(field, raw) == "1234.500"
    assert value_of(field, raw, scale=4) == Decimal("1234.5000")


def test_a_decimal_of_more_digits_than_the_lake_has_is_text() -> None:
    field = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "0", "connect.decimal.precision": "60"},
    }
    number = 10**59 + 7
    assert value_of(field, base64.b64encode(number.to_bytes(26, "big")).decode()) == str(number)


def test_bits_become_bytes_with_the_greatest_first() -> None:
    field = {"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "12"}}
    assert value_of(field, base64.b64encode(b"\x34\x02").decode()) == b"\x02\x34"


def test_nested_values() -> None:
    point = [{"type": "double", "field": "x", "optional": False}, {"type": "bytes", "field": "wkb", "optional": True}]
    assert value_of({"type": "struct", "name": "io.debezium.data.geometry.Point", "fields": point}, {"x": 1.5, "wkb": None}) == {
        "x": 1.5,
        "wkb": None,
    }
    dates = {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date", "optional": True}}
    assert value_of(dates, [0, None]) == [dt.date(1970, 1, 1), None] and value_of(dates, []) == [] and value_of(dates, None) is None
    pairs = {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32", "optional": True}}
    assert value_of(pairs, {"a": 1, "b": None}) == [("a", 1), ("b", None)]


@pytest.mark.parametrize(
    ("name", "plain", "raw"), [("io.debezium.time.Date", "int32", 3_000_000), ("", "int32", 2**40), ("", "int32", "x")]
)
def test_values_that_do_not_fit(name: str, plain: str, raw: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError, pa.ArrowException)):
        value_of({"type": plain, "name": name or None}, raw)
