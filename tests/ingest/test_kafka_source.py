"""Topics of a real broker into a lake: offsets, partitions, what expired or was made again, and bad records."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest

from devkit.kafka import KafkaBroker
from fileio.errors import InvalidConfig
from objcat.errors import IngestStopped, InvalidBatch, PositionGone, SourceAway, TooManyBadRecords
from objcat.ingest.requests import add_request
from objcat.ingest.sink import LakeSink
from tests.ingest.envelopes import ITEM_FIELDS, envelope, item_message
from tests.ingest.topics import Topics

JSON = """format = "json"
[[source.topic]]
topics = '.*'
columns = { id = "int64", n = "int64", at = "timestamp_ms" }
"""
KEY = 'key = ["id"]'


@pytest.fixture
def topics(broker: KafkaBroker, tmp_path: Path) -> Topics:
    made = Topics(broker.connection(), tmp_path)
    made.configure(JSON, route=KEY)
    return made


def test_rows_of_json(topics: Topics) -> None:
    topics.create("items", partitions=2)
    for number in range(10):
        topics.put("items", {"id": number, "n": 1, "at": 1_700_000_000_000}, key={"id": number}, partition=number % 2)
    state = topics.once()
    assert len(topics.rows("items")) == 10 and topics.rows("items")[0]["at"] == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    assert state.position["topics"][topics.name("items")]["next"] == {"0": 5, "1": 5} and not state.is_consistent
    topics.put("items", {"id": 1, "n": 2}, key={"id": 1}, partition=1)
    topics.put("items", None, key={"id": 2}, partition=0)
    state = topics.once()
    assert {row["id"]: row["n"] for row in topics.rows("items")} == {0: 1, 1: 2, **dict.fromkeys(range(3, 10), 1)}
    # Nothing new: nothing is written, and nothing twice.
    before = topics.lake.table("shop.items").snapshot.slot
    assert topics.once().position["at"] == state.position["at"] and topics.lake.table("shop.items").snapshot.slot == before


def test_rows_without_a_key_are_written_once(topics: Topics) -> None:
    topics.configure(JSON + 'record_columns = ["timestamp", "partition", "offset"]\n')
    topics.create("clicks", partitions=3)
    for number in range(30):
        topics.put("clicks", {"id": 1, "n": number}, partition=number % 3)
    topics.once()
    for number in range(30, 40):
        topics.put("clicks", {"id": 1, "n": number}, partition=number % 3)
    topics.once()
    rows = topics.rows("clicks")
    assert sorted(row["n"] for row in rows) == list(range(40)) and {(row["_partition"], row["_offset"]) for row in rows} == {
        (number % 3, number // 3) for number in range(40)
    }


def test_partitions_and_topics_that_join(topics: Topics) -> None:
    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    topics.once()
    topics.add_partitions("items", 2)
    topics.create("others")
    topics.put("items", {"id": 2, "n": 2}, partition=1)
    topics.put("others", {"id": 3, "n": 3})
    topics.once()
    assert [row["id"] for row in topics.rows("items")] == [1, 2] and [row["id"] for row in topics.rows("others")] == [3]


def test_messages_that_expired_stop_the_run(topics: Topics) -> None:
    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    topics.once()
    for number in range(2, 6):
        topics.put("items", {"id": number, "n": number})
    topics.flush()
    topics.expire("items", 3)
    with pytest.raises(PositionGone, match=r"from 1 to 2: they expired.*objcat ingest resnapshot"):
        topics.once()
    assert [row["id"] for row in topics.rows("items")] == [1]
    topics.configure("unsafe_skip_expired = true\n" + JSON, route=KEY)
    state = topics.once()
    assert [row["id"] for row in topics.rows("items")] == [1, 4, 5] and state.dead == 1
    (letter,) = topics.lake.table("shop.ingest_dead").scan().to_arrow().to_pylist()
    assert letter["table"] == topics.name("items") and "from 1 to 2" in letter["error"]


def test_a_topic_that_was_made_again_stops_the_run_and_is_read_again_on_request(topics: Topics) -> None:
    topics.create("items")
    topics.create("others")
    for number in range(3):
        topics.put("items", {"id": number, "n": 1})
        topics.put("others", {"id": number, "n": 1})
    topics.once()
    topics.delete("items")
    for _ in range(100):
        if topics.name("items") not in topics.admin.list_topics(timeout=10).topics:
            break
    topics.create("items")
    for number in range(10, 20):
        topics.put("items", {"id": number, "n": 2})
    with pytest.raises(PositionGone, match="made again"):
        topics.once()
    add_request(topics.lake, topics.config(), "resnapshot", topics.name("items"))
    topics.once()
    assert [row["id"] for row in topics.rows("items")] == list(range(10, 20)) and len(topics.rows("others")) == 3


def test_everything_again(topics: Topics) -> None:
    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    topics.put("items", {"id": 2, "n": 1})
    topics.once()
    topics.expire("items", 1)
    add_request(topics.lake, topics.config(), "resnapshot_all")
    topics.put("items", {"id": 3, "n": 1})
    topics.once()
    assert [row["id"] for row in topics.rows("items")] == [2, 3]


def test_from_the_latest_message_on(topics: Topics) -> None:
    topics.configure('begin = "latest"\n' + JSON, route=KEY)
    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    topics.once()
    topics.put("items", {"id": 2, "n": 1})
    topics.once()
    assert [row["id"] for row in topics.rows("items")] == [2]


def test_messages_of_aborted_transactions_are_not_there(topics: Topics) -> None:
    from confluent_kafka import Producer

    topics.create("items")
    producer = Producer({"bootstrap.servers": topics.broker, "transactional.id": topics.prefix, "log_level": 0})
    producer.init_transactions(30)
    for number, commits in ((1, True), (2, False), (3, True), (4, False)):
        producer.begin_transaction()
        producer.produce(topics.name("items"), b'{"id": %d, "n": 1}' % number)
        assert producer.flush(30) == 0
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    state = topics.once()
    assert [row["id"] for row in topics.rows("items")] == [1, 3]
    # The marks at the end were passed, and no message had them.
    assert state.position["topics"][topics.name("items")]["next"] == {"0": 8}


def test_bad_records_go_to_the_dead_letters_with_their_place(topics: Topics) -> None:
    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    topics.put("items", b"\x00\xff")
    topics.put("items", {"id": None, "n": 1})
    topics.put("items", {"id": 2, "n": "x"})
    topics.put("items", {"id": 3, "n": 1})
    assert topics.once().dead == 3
    letters = {row["position"]: row for row in topics.lake.table("shop.ingest_dead").scan().to_arrow().to_pylist()}
    name = topics.name("items")
    assert set(letters) == {f"{name}/0@{offset}" for offset in (1, 2, 3)} and letters[f"{name}/0@1"]["payload"] == b"\x00\xff"
    assert [row["id"] for row in topics.rows("items")] == [1, 3]
    for _ in range(20):
        topics.put("items", b"no")
    with pytest.raises(TooManyBadRecords):
        topics.once()


def test_debezium_of_a_topic(topics: Topics) -> None:
    topics.configure('format = "debezium-json"')
    topics.create("items")
    for offset, payload in enumerate(
        (
            envelope("r", {"id": 1, "name": "pen"}, snapshot="last"),
            envelope("c", {"id": 2, "name": "ink"}),
            envelope("u", {"id": 1, "name": "cup"}),
            envelope("d", None, before={"id": 2, "name": ""}),
        )
    ):
        made = item_message(offset, payload)
        topics.put("items", made.value, key=made.key)
    topics.put("items", None, key=item_message(0, None, key={"id": 2}).key)
    topics.once()
    assert topics.rows("items") == [{"id": 1, "name": "cup"}]
    # A tombstone alone, before any row was read in this process.
    topics.put("items", None, key=item_message(0, None, key={"id": 1}).key)
    topics.once()
    assert topics.rows("items") == []
    made = item_message(0, envelope("t", None))
    topics.put("items", made.value)
    made = item_message(1, envelope("c", {"id": 7, "name": "new"}))
    topics.put("items", made.value, key=made.key)
    topics.once()
    assert topics.rows("items") == [{"id": 7, "name": "new"}]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_an_older_row_has_the_default_of_a_column_that_joined_whether_a_run_ends_in_between_or_not(
    topics: Topics, restarts: bool, is_new: bool
) -> None:
    """is_new: the table of the lake is made with that column."""
    topics.configure('format = "debezium-json"')
    topics.create("items", partitions=2)
    more = [*ITEM_FIELDS, {"type": "string", "optional": True, "field": "size", "default": "M"}]

    def put(partition: int, at_ms: int, row: dict[str, Any], fields: Any = ITEM_FIELDS) -> None:
        made = item_message(0, envelope("c", row, ts_ms=at_ms), fields=fields)
        topics.put("items", made.value, key=made.key, partition=partition)

    if not is_new:
        put(0, 1_000, {"id": 1, "name": "a"})
        topics.once()
    put(0, 2_000, {"id": 2, "name": "a", "size": "L"}, more)
    put(0, 2_500, {"id": 5, "name": "a", "size": None}, more)
    if restarts:
        topics.once()
    put(1, 1_500, {"id": 3, "name": "b"})
    topics.once()
    put(1, 3_000, {"id": 4, "name": "b"})
    topics.once()
    sizes = {row["id"]: row["size"] for row in topics.rows("items")}
    assert sizes == {**({} if is_new else {1: "M"}), 2: "L", 3: "M", 4: None, 5: None}


def test_rows_older_than_a_column_have_its_default_in_one_run_and_when_they_are_read_again(topics: Topics) -> None:
    topics.configure('format = "debezium-json"')
    topics.create("items", partitions=2)
    tags = {"type": "array", "items": {"type": "string"}, "optional": True, "field": "tags", "default": []}
    more = [*ITEM_FIELDS, {"type": "string", "optional": True, "field": "size", "default": "M"}, tags]

    def put(partition: int, at_ms: int, operation: str, row: dict[str, Any], fields: Any = ITEM_FIELDS) -> None:
        after, before = (None, row) if operation == "d" else (row, None)
        made = item_message(0, envelope(operation, after, before=before, ts_ms=at_ms), fields=fields)
        topics.put("items", made.value, key=made.key, partition=partition)

    for number in (1, 2, 3, 4):
        put(number % 2, 1_000 + number, "c", {"id": number, "name": "a"})
    put(0, 1_500, "d", {"id": 4, "name": "a"})
    put(1, 1_500, "u", {"id": 3, "name": "b"})
    put(0, 2_000, "d", {"id": 2, "name": "a", "size": "M", "tags": None}, more)
    put(0, 2_001, "c", {"id": 6, "name": "a", "size": "L", "tags": ["x"]}, more)
    wanted = [{"id": 1, "name": "a", "size": "M", "tags": None}, {"id": 3, "name": "b", "size": "M", "tags": None}]
    wanted.append({"id": 6, "name": "a", "size": "L", "tags": ["x"]})
    topics.once()
    assert topics.rows("items") == wanted
    add_request(topics.lake, topics.config(), "resnapshot", topics.name("items"))
    topics.once()
    assert topics.rows("items") == wanted


def test_deletes_that_a_compaction_may_have_removed_stop_the_run(topics: Topics) -> None:
    topics.create("items", cleanup_policy="compact")
    for number in (1, 2):
        topics.put("items", {"id": number, "n": 1}, key={"id": number})
    topics.once()
    topics.put("items", None, key={"id": 1})
    topics.once()
    assert [row["id"] for row in topics.rows("items")] == [2], "in time"
    topics.alter("items", "delete.retention.ms", "1")
    read_ms = topics.read_ms("items")
    topics.once()
    assert topics.read_ms("items") > read_ms, "a run that found nothing is no pause"
    topics.put("items", {"id": 3, "n": 1}, key={"id": 3})
    topics.flush()
    with pytest.raises(PositionGone, match=r"is compacted, and forgets deletes after .* resnapshot .* unsafe_skip_expired") as stopped:
        topics.once()
    assert topics.name("items") in str(stopped.value) and [row["id"] for row in topics.rows("items")] == [2]
    text = topics.config_path.read_text()
    topics.configure(f"unsafe_skip_expired = true\n{JSON}", route=KEY)
    state = topics.once()
    assert state.dead == 1 and [row["id"] for row in topics.rows("items")] == [2, 3]
    topics.config_path.write_text(text)
    topics.put("items", {"id": 4, "n": 1}, key={"id": 4})
    add_request(topics.lake, topics.config(), "resnapshot", topics.name("items"))
    topics.once()
    assert [row["id"] for row in topics.rows("items")] == [2, 3, 4]


def test_once_commits_nothing_where_topics_have_nothing_new(topics: Topics) -> None:
    topics.create("items", partitions=3)
    topics.put("items", {"id": 1, "n": 1})
    topics.once()

    def version() -> int:
        stored = topics.lake.source_position("shop", shared_log="shop")
        assert stored is not None
        return stored.version

    before = version()
    for _ in range(3):
        topics.once()
    assert version() == before
    topics.put("items", {"id": 2, "n": 1})
    topics.once()
    assert version() == before + 1


def test_a_truncation_without_an_order_stops_the_run(topics: Topics) -> None:
    topics.configure('format = "debezium-json"')
    topics.create("items", partitions=2)
    made = item_message(0, envelope("c", {"id": 7, "name": "new"}))
    topics.put("items", made.value, key=made.key)
    topics.put("items", item_message(1, envelope("t", None)).value, partition=1)
    with pytest.raises(IngestStopped, match="which rows came before it"):
        topics.once()
    topics.configure('format = "debezium-json"\ntruncates = "ignore"')
    topics.once()
    assert topics.rows("items") == [{"id": 7, "name": "new"}]


def test_a_message_that_is_refused_is_named_and_can_be_left_out(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topics.create("items")
    for number in (1, 666, 3):
        topics.put("items", {"id": number, "n": number})
    commit = LakeSink.commit

    def refusing(self: Any, writes: Any, *arguments: Any) -> Any:
        if any(write.rows is not None and 666 in write.rows.column("n").to_pylist() for write in writes):
            raise InvalidBatch("The number is refused.")
        return commit(self, writes, *arguments)

    monkeypatch.setattr(LakeSink, "commit", refusing)
    place = f"{topics.name('items')}/0@1"
    with pytest.raises(IngestStopped, match=f"objcat ingest skip .* {re.escape(place)}"):
        topics.once()
    assert [row["id"] for row in topics.rows("items")] == [1]
    add_request(topics.lake, topics.config(), "skip", place)
    state = topics.once()
    assert [row["id"] for row in topics.rows("items")] == [1, 3] and state.dead == 1 and state.skips == []


def test_the_group_is_told_on_request_and_asked_never(topics: Topics) -> None:
    topics.configure("commit_group = true\n" + JSON, route=KEY)
    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    state = topics.once()
    assert topics.committed() == {0: 1}
    # What others do to the group changes nothing.
    topics.commit(0)
    assert topics.once().position == state.position and len(topics.rows("items")) == 1


def test_lag(topics: Topics) -> None:
    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    topics.flush()
    made = topics.ingest()
    made.once()
    assert made.metrics.value("lag_seconds") == 0 and made.metrics.value("behind_events") == 0


def test_brokers_that_are_away(topics: Topics) -> None:
    topics.broker = "127.0.0.1:1"
    topics.configure("connect_s = 0.5\n" + JSON, route=KEY, run="away_s = 0.1")
    with pytest.raises(SourceAway, match="were away"):
        topics.ingest().once()


def test_an_option_that_the_position_rests_on_is_refused(topics: Topics) -> None:
    topics.configure(JSON + '[source.options]\n"auto.offset.reset" = "earliest"\n', route=KEY)
    with pytest.raises(InvalidConfig, match="is set by objcat"):
        topics.ingest().once()


def test_marks_that_another_leader_wrote_are_no_lost_messages(topics: Topics, broker: KafkaBroker) -> None:
    """The last message that was read is of an older epoch than the marks behind it, which were passed."""
    from confluent_kafka import Producer

    topics.create("items")
    topics.put("items", {"id": 1, "n": 1})
    topics.once()
    broker.kill()
    broker.start()
    topics.broker = broker.connection()
    producer = Producer({"bootstrap.servers": topics.broker, "transactional.id": topics.prefix, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topics.name("items"), b'{"id": 2, "n": 1}')
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    state = topics.once()
    assert state.position["topics"][topics.name("items")]["next"] == {"0": 3}
    topics.put("items", {"id": 3, "n": 1})
    topics.once()
    assert [row["id"] for row in topics.rows("items")] == [1, 3]
