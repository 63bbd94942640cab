"""What workers of Spark make of messages, beside what one process makes of them: the same rows, however messages are cut into tasks."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fileio.env import default_env
from objcat.ingest import reduced_changes
from objcat.ingest.change_batch import ChangeBatch, TableWrite, WriteAction
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.kafka.decoders import DecoderFactory
from objcat.ingest.kafka.message import KafkaMessage
from objcat.ingest.kafka.settings import kafka_settings
from objcat.ingest.kafka.topic_rows import ROW_SCHEMA, FoundSchema, Note, decode_messages, schema_of
from objcat.ingest.model import ChangeKind, RowChange
from objcat.ingest.reduced_changes import BAD, COUNT, DATA, GROUP, NULLED, KnownSchema, RowGroup, partial_rows, reduce_changes
from objcat.ingest.routes import RoutedTable, Router
from tests.effort import seeds
from tests.ingest.envelopes import UNAVAILABLE, envelope, item_message

TOPIC = "pg.public.items"
TYPE = {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp"}
FIELDS: list[dict[str, Any]] = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
    {"type": "string", "optional": True, "field": "body"},
    {**TYPE, "field": "at"},
]
MORE = [*FIELDS, {"type": "int32", "optional": True, "field": "more", "default": 5}]


def config(tmp_path: Path, **route: Any) -> IngestConfig:
    found = {
        "lake": {"url": str(tmp_path / "lake")},
        "source": {"name": "shop", "kind": "kafka", "brokers": "none:1", "topics": "pg.*", "format": "debezium-json"},
        "route": [{"tables": r"pg\.public\.(.*)", "to": r"shop.\1", **route}],
    }
    return parse_config(found, path="shop.toml", environment={})


def messages(drawn: random.Random, count: int) -> list[KafkaMessage]:
    """Messages of three partitions, in the order of their offsets: each key in its own partition, with a time that may go back."""
    made: list[KafkaMessage] = []
    offsets = [0, 0, 0]
    for number in range(count):
        key = drawn.randrange(30)
        partition = key % 3
        fields = MORE if number > count // 2 else FIELDS
        row = {"id": key, "name": f"n{number}", "body": drawn.choice([UNAVAILABLE, "b", None]), "at": 10**15 + number}
        if fields is MORE:
            row["more"] = number
        kind = drawn.choice(["c", "u", "u", "d", "gone", "bad", "endless"])
        if kind == "d":
            payload = envelope("d", None, before=row)
        else:
            payload = envelope("c" if kind == "c" else "u", {**row, "body": "b"} if kind == "c" else row)
        if kind == "endless":
            payload["after"]["at"] = 2**63 - 1
        one = item_message(offsets[partition], payload, key={"id": key}, fields=fields, topic=TOPIC, partition=partition)
        changed: dict[str, Any] = {"timestamp_ms": 1_700_000_000_000 + drawn.randrange(1000)}
        if kind == "gone":
            changed["value"] = None
        if kind == "bad":
            changed["value"] = b"{"
        made.append(KafkaMessage(**{**{name: getattr(one, name) for name in KafkaMessage.__struct_fields__}, **changed}))
        offsets[partition] += 1
    return made


def batches(found: Sequence[KafkaMessage], size: int) -> list[pa.RecordBatch]:
    """Messages as Spark hands them over."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "key": pa.binary(), "value": pa.binary()}
    made = []
    for at in range(0, len(found), size):
        some = found[at : at + size]
        columns = {name: pa.array([getattr(one, name) for one in some], kind) for name, kind in types.items()}
        columns["at_ms"] = pa.array([one.timestamp_ms for one in some], pa.int64())
        columns["headers"] = pa.nulls(len(some), header)
        made.append(pa.RecordBatch.from_pydict(columns))
    return made


def effect(writes: Sequence[TableWrite], routed: RoutedTable) -> Any:
    """What steps do, without the order of keys: for each key the action and the values, or all rows that are appended.

    A tombstone before the first row of its partition has no schema, so a row of a history lacks what it says of others as null.
    """
    rows = [
        (
            str(write.action),
            {name: value for name, value in row.items() if name != "_source_seq" and not (routed.appends and value is None)},
        )
        for write in writes
        if write.rows is not None
        for batch in write.rows.to_batches()
        for row in batch.to_pylist()
    ]
    if not routed.appends:
        assert len({row["id"] for _, row in rows}) == len(rows), "a key is written twice"
    return sorted(rows, key=repr)


def by_one_process(found: Sequence[KafkaMessage], made: IngestConfig, routed: RoutedTable) -> tuple[Any, int, int]:
    """What the single process writes, and how many records are bad, and values null."""
    decoder = DecoderFactory(made, kafka_settings(made), default_env()).open(TOPIC, ())
    batch, bad = ChangeBatch(lambda *_: {}), 0
    for message in found:
        try:
            changes = decoder.decode(message)
        except ValueError:
            bad += 1
            continue
        for one in changes:
            assert isinstance(one.change, RowChange) and one.change.stamp is not None
            batch.add(routed, one.change, one.change.stamp)
    writes, unfit = batch.drain()
    return effect(writes, routed), bad + len(unfit), batch.nulled


def by_tasks(found: Sequence[KafkaMessage], made: IngestConfig, routed: RoutedTable, drawn: random.Random) -> tuple[Any, int, int]:
    """What workers write: a task for each partition, and then some for the keys."""
    rows = [
        row
        for partition in range(3)
        for batch in decode_messages(made, {}, batches([one for one in found if one.partition == partition], drawn.randrange(1, 40)))
        for row in batch.to_pylist()
    ]
    schemas = {row["schema"]: pickle.loads(row["data"]) for row in rows if row["kind"] == Note.SCHEMA}
    assert all(isinstance(one, FoundSchema) and schema_of(one.table, one.defaults) == name for name, one in schemas.items())
    lake = routed.schema(max((one.table for one in schemas.values()), key=lambda table: len(table.columns)))
    bad, nulled = sum(row["kind"] == Note.BAD for row in rows), 0
    writes: list[TableWrite] = []
    known = {name: KnownSchema(one.table, ()) for name, one in schemas.items()}
    changes = [row for row in rows if row["kind"] in set(ChangeKind)]
    tasks = drawn.randrange(1, 5)
    for task in range(tasks):
        mine = [row for row in changes if hash(row["key"]) % tasks == task]
        mine.sort(key=lambda row: (row["key"], row["at_ms"], row["partition"], row["offset"], row["part"]))
        groups: dict[int, RowGroup] = {}
        for batch in reduce_changes(routed, known, lake, pa.Table.from_pylist(mine, ROW_SCHEMA).to_batches(max_chunksize=17)):
            for row in batch.to_pylist():
                number, count, data = row[GROUP], row[COUNT], row[DATA]
                if number == BAD:
                    bad += len(pickle.loads(data))
                elif number == NULLED:
                    nulled += count
                elif count == 0:
                    groups[number] = pickle.loads(data)
                    assert groups[number].number == number
                elif groups[number].action is WriteAction.UPSERT_PARTIAL:
                    part = partial_rows(data)
                    assert part.num_rows == count
                    writes.append(TableWrite(routed=routed, action=WriteAction.UPSERT_PARTIAL, rows=part))
                else:
                    values = {name: row[str(lake.get_field_index(name))] for name in groups[number].columns}
                    fields = pa.schema([lake.field(name).with_nullable(True) for name in groups[number].columns])
                    one = pa.Table.from_pylist([values], fields)
                    writes.append(TableWrite(routed=routed, action=groups[number].action, rows=one))
    return effect(writes, routed), bad, nulled


@pytest.mark.parametrize("seed", seeds(6, with_all=60))
@pytest.mark.parametrize(
    "route",
    [{}, {"deletes": "soft", "lineage": True}, {"deletes": "history"}, {"mask": {"name": "hash"}, "mask_secret": "s", "drop": ["at"]}],
)
def test_tasks_write_what_one_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, route: dict[str, Any]) -> None:
    monkeypatch.setattr(reduced_changes, "PIECE_CHANGES", 5)
    drawn = random.Random(seed)
    made = config(tmp_path, **route)
    found = messages(drawn, 120)
    decoder = DecoderFactory(made, kafka_settings(made), default_env()).open(TOPIC, ())
    table = next(one.change.table for message in found if message.value not in (None, b"{") for one in decoder.decode(message))
    routed = Router(made).route(table)  # type: ignore[arg-type]
    assert routed is not None
    one, many = by_one_process(found, made, routed), by_tasks(found, made, routed, drawn)
    assert many[0] == one[0] and len(one[0]) > 10
    assert many[1:] == one[1:] and one[1] > 0


def test_rows_older_than_a_column_have_its_default(tmp_path: Path) -> None:
    """Rows of two schemas, in one task: what is committed before the column has its default, and what is committed after it lacks it."""
    made = config(tmp_path)
    row = {"name": "a", "body": "b", "at": 1}
    old = [item_message(at, envelope("c", {"id": at, **row}, ts_ms=at * 1000), fields=FIELDS, topic=TOPIC) for at in (1, 2, 4)]
    new = item_message(5, envelope("c", {"id": 3, **row, "more": 7}, ts_ms=3000), fields=MORE, topic=TOPIC)
    rows = [one for batch in decode_messages(made, {}, batches([*old, new], 9)) for one in batch.to_pylist()]
    found = {one["schema"]: pickle.loads(one["data"]) for one in rows if one["kind"] == Note.SCHEMA}
    assert [(one.table.joins_later, dict(one.defaults)) for one in found.values()] == [((), {}), ((), {"more": 5})]
    routed = Router(made).route(found[rows[-1]["schema"]].table)
    assert routed is not None
    lake = routed.schema(found[rows[-1]["schema"]].table)
    older, newer = found
    schemas = {older: KnownSchema(found[older].table, (lake.field("more"),), (("more", 3000),)), newer: KnownSchema(found[newer].table, ())}
    changes = pa.Table.from_pylist([one for one in rows if one["kind"] != Note.SCHEMA], ROW_SCHEMA)
    reduced = [one for batch in reduce_changes(routed, schemas, lake, changes.to_batches()) for one in batch.to_pylist()]
    groups = {one[GROUP]: pickle.loads(one[DATA]) for one in reduced if not one[COUNT]}
    written = {one["0"]: ("more" in groups[one[GROUP]].columns, one["4"]) for one in reduced if one[COUNT]}
    assert written == {1: (False, None), 2: (False, None), 3: (True, 7), 4: (True, None)}


def test_a_truncation_that_comes_first_says_no_schema(tmp_path: Path) -> None:
    """Its message has no key. A table whose key seems to have changed would be set aside."""
    found = [
        KafkaMessage(TOPIC, 0, 7, None, item_message(7, envelope("t", None), fields=FIELDS).value, 1_700_000_000_000),
        item_message(8, envelope("c", {"id": 1, "name": "a", "body": "b", "at": 1}), fields=FIELDS, topic=TOPIC),
    ]
    rows = [row for batch in decode_messages(config(tmp_path), {}, batches(found, 2)) for row in batch.to_pylist()]
    assert [row["kind"] for row in rows] == ["truncate", "schema", "insert"]
    assert pickle.loads(rows[0]["data"]).name == TOPIC and pickle.loads(rows[1]["data"]).table.key == ("id",)


def test_a_tombstone_says_nothing_where_its_delete_was_in_an_earlier_batch(tmp_path: Path) -> None:
    """A history would have the delete twice. A tombstone of another key is a delete."""
    row = {"id": 1, "name": "a", "body": "b", "at": 1}
    first = [
        item_message(0, envelope("c", row), fields=FIELDS, topic=TOPIC),
        item_message(1, envelope("d", None, before=row), fields=FIELDS, topic=TOPIC),
    ]
    rows = [one for batch in decode_messages(config(tmp_path), {}, batches(first, 9)) for one in batch.to_pylist()]
    assert [one["kind"] for one in rows] == ["schema", "insert", "delete", "deleted"]
    deleted = {TOPIC: {str(rows[-1]["partition"]): pickle.loads(rows[-1]["data"])}}
    for key, kinds in ((1, []), (2, ["schema", "delete"])):
        found = [item_message(2, None, key={"id": key}, fields=FIELDS, topic=TOPIC)]
        rows = [one for batch in decode_messages(config(tmp_path), deleted, batches(found, 9)) for one in batch.to_pylist()]
        assert [one["kind"] for one in rows if one["kind"] != Note.DELETED] == kinds


def test_messages_out_of_order_are_refused(tmp_path: Path) -> None:
    found = messages(random.Random(1), 9)
    with pytest.raises(RuntimeError, match="the order of its partition is not known"):
        list(decode_messages(config(tmp_path), {}, batches([*found[3:], *found[:3]], 4)))


def test_a_key_that_changed_is_a_delete_and_a_row(tmp_path: Path) -> None:
    """Where the route names the key, an update says the key before it. Values that were not sent are told apart."""
    made = config(tmp_path, key=["id"])
    rows = [
        {"id": 1, "name": "a", "body": "b", "at": 1},
        {"id": 2, "name": "a", "body": "b", "at": 1},
        {"id": 3, "name": "a", "body": UNAVAILABLE, "at": 1},
    ]
    found = [
        item_message(0, envelope("c", rows[0]), fields=FIELDS, topic=TOPIC),
        item_message(1, envelope("u", rows[1], before=rows[0]), fields=FIELDS, topic=TOPIC),
        item_message(2, envelope("u", rows[2], before=rows[1]), fields=FIELDS, topic=TOPIC),
    ]
    said = [
        (row["offset"], row["part"], row["kind"]) for batch in decode_messages(made, {}, batches(found, 2)) for row in batch.to_pylist()
    ]
    assert said == [
        (0, 0, "schema"), (0, 1, "insert"), (1, 0, "delete"), (1, 1, "update"), (2, 0, "moved"), (2, 1, "delete"), (2, 2, "update"),
    ]  # fmt: skip
