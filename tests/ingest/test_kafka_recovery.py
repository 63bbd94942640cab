"""Topics that end early, come again, or say less than they should: what is written then, and which slots are called consistent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fileio.testing.env import FakeEnv
from objcat.errors import IngestStopped, PositionGone
from objcat.ingest.change_applier import ChangeApplier
from objcat.ingest.handover import IngestState, TableProgress
from objcat.ingest.kafka import pending
from objcat.ingest.kafka.batches import MessageBatches, SchemaNotes, bad_message
from objcat.ingest.kafka.cluster import TopicInfo
from objcat.ingest.kafka.message import ROW_BYTES, KafkaMessage, MessageChange
from objcat.ingest.kafka.position import KafkaPosition, TopicPosition
from objcat.ingest.kafka.source import KafkaSource
from objcat.ingest.kafka.topic_reader import TopicReader
from objcat.ingest.model import BadRecord, ChangeKind, RowChange, SourceTransaction, TableTruncated
from tests.ingest.test_kafka_transactions import ENDS, TABLES, TOPICS, WAIT_S, Log, Reader, empty

A, B = TOPICS


def settled() -> KafkaPosition:
    return KafkaPosition(at="beginning")


def again(reader: Reader, log: Log) -> Reader:
    """The next process, from what was committed."""
    return Reader(log, reader.position, reader.rows, reader.env)


# ---- ends that are gone


def test_rows_whose_ends_expired_do_not_wait_for_the_topic_of_transactions_to_be_silent() -> None:
    """As when a topic is read again: the ends of its transactions were passed long ago."""
    log, env = Log(), FakeEnv()
    log.transaction(1, [(B, 1, 1)], ends=False)
    log.now_ms += 60_000
    reader = Reader(log, empty(), {}, env)
    for number in range(2, 12):
        log.transaction(number, [(A, 1, number)])
        reader.read_all()
        env.advance(1)
    assert reader.rows[B, 1] == 1, "the topic of transactions is never silent"


def test_memory_is_bounded_where_the_ends_of_a_long_history_expired() -> None:
    log = Log()
    for number in range(1, 400):
        log.transaction(number, [(A, 1, number)], ends=False)
        log.now_ms += 1_000
    log.transaction(400, [(A, 1, 400)])
    reader, most = Reader(log, empty(), {}, FakeEnv(), bytes_max=10_000), 0
    while not reader.rows or reader.rows[A, 1] < 400:
        for place in log.messages:
            reader.read(place, 5)
        list(reader.apply())
        most = max(most, reader.made._bytes)
    assert most < 40_000, "a partition was read to its end before anything of it was written"
    loose = [one for one in reader.taken if one.count and one.mark is None]
    assert loose and all(one.size_bytes for one in loose), "what is handed over counts in the queue"


def test_ends_that_expired_are_left_out_on_request() -> None:
    log = Log()
    log.transaction(1, [(A, 1, 1)], ends=False)
    reader = Reader(log, settled(), {}, FakeEnv())
    reader.read_all()
    message = KafkaMessage(ENDS, 0, 7, None, None)
    reader.made.take(message, (bad_message(message, "the messages from 0 to 7 expired"),))
    (one,) = reader.made.finished()
    (change,) = one.changes
    assert isinstance(change, BadRecord) and "expired" in change.error and one.is_consistent is False
    assert KafkaPosition.of(one.position).next_offset(ENDS, 0) == 8


def test_ids_of_transactions_that_were_handed_over_are_forgotten() -> None:
    log = Log()
    for number in range(1, 50):
        log.transaction(number, [(A, 1, number)])
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    assert reader.rows == {(A, 1): 49} and not reader.made._ending and not reader.made._sent and not reader.made._pending


def test_a_transaction_that_is_larger_than_memory_stays_whole_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "SPILL_BYTES_MIN", 1)
    log, env = Log(), FakeEnv()
    for order in range(1, 25):
        log.event(TOPICS[order % 2], 1, order, transaction="1", order=order)
    reader = Reader(log, settled(), {}, env, bytes_max=10_000)
    for _ in range(8):
        for place in ((A, 1), (B, 1), (ENDS, 0), (A, 0), (B, 0)):
            reader.read(place, 2)
        list(reader.apply())
        env.advance(WAIT_S / 2)
    log.end("1:100", {A: 12, B: 12})
    for _ in range(5):
        reader.read_all()
    (whole,) = (one for one in reader.taken if one.count)
    assert whole.count == 24 and reader.is_consistent and whole.size_bytes >= 24 * ROW_BYTES, "what is on disk counts in the queue"


# ---- partitions


def test_an_empty_partition_has_an_offset() -> None:
    """What comes into it and expires before it is read has to be missed."""
    reader = Reader(log := Log(), empty(), {}, FakeEnv())
    reader.read_all()
    assert all(reader.position.next_offset(*place) == 0 for place in log.messages)


def test_a_topic_that_is_gone_is_not_waited_for() -> None:
    log = Log()
    log.event(B, 1, 1, transaction=None, snapshot="last")
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read((ENDS, 0), 9)
    log.transaction(1, [(A, 1, 1)])
    reader.read((ENDS, 0), 9)
    reader.read((A, 1), 9)
    list(reader.apply())
    assert reader.position.settle, "the topic has a message that was not read"
    for partition in (0, 1):
        del log.messages[B, partition]
    reader.made.follow(set(log.messages))
    for _ in range(2):
        reader.read_all()
    assert reader.is_consistent


class Consumer:
    def __init__(self) -> None:
        self.sought: list[int] = []
        self._is_assigned = True

    def incremental_unassign(self, places: list[Any]) -> None:
        assert self._is_assigned
        self._is_assigned = False

    def incremental_assign(self, places: list[Any]) -> None:
        assert not self._is_assigned
        self._is_assigned = True
        self.sought += [place.offset for place in places]


def topic_reader(*, transactions: str | None = ENDS, skip: bool = False, oldest: int = 0) -> TopicReader:
    """A reader of a cluster whose partitions have messages up to the offset 9."""
    from confluent_kafka import KafkaError, TopicPartition

    from objcat.ingest.kafka.cluster import KafkaCluster

    cluster: Any = SimpleNamespace(
        kafka=SimpleNamespace(TopicPartition=TopicPartition),
        offsets=lambda places, *, newest, committed=True: dict.fromkeys(places, 9 if newest else oldest),
        is_code=lambda error, *names: error.code() in {getattr(KafkaError, name) for name in names},
        is_truncation=lambda error: KafkaCluster.is_truncation(cluster, error),
        errors=lambda doing: KafkaCluster.errors(cluster, doing),
    )
    config: Any = SimpleNamespace(name="shop", path="shop.toml", hide=str)
    settings: Any = SimpleNamespace(registry=None, transactions=transactions, unsafe_skip_expired=skip, truncates="follow")
    topics = {A: TopicInfo("", (0, 1)), B: TopicInfo("", (0, 1)), ENDS: TopicInfo("", (0,))}
    router: Any = SimpleNamespace()
    return TopicReader(config, settings, router, cluster, FakeEnv(), read_topics=lambda: topics, describe=lambda _: None)


def out_of_range(place: tuple[str, int], said: str = "fetch failed due to requested offset not available") -> tuple[Any, Any]:
    from confluent_kafka import KafkaError

    error = SimpleNamespace(code=lambda: KafkaError._AUTO_OFFSET_RESET, str=lambda: said)
    return SimpleNamespace(topic=lambda: place[0], partition=lambda: place[1]), error


def test_what_waits_to_be_handed_over_is_not_read_twice() -> None:
    """A new leader may say for a moment that it lacks an offset."""
    log = Log()
    for number in (1, 2, 3):
        log.transaction(number, [(A, 1, number)], ends=False)
    reader = Reader(log, settled(), {}, FakeEnv())
    reader.read((A, 1), 3)
    list(reader.apply())
    assert reader.position.next_offset(A, 1) == 0
    consumer = Consumer()
    topic_reader()._take_error(consumer, *out_of_range((A, 1)), reader.position, reader.made)
    assert consumer.sought == [3]
    # Messages beyond those were expired, and nothing that waits.
    with pytest.raises(PositionGone, match="from 3 to 5"):
        topic_reader(oldest=6)._take_error(consumer, *out_of_range((A, 1)), reader.position, reader.made)
    topic_reader(oldest=6, skip=True)._take_error(consumer, *out_of_range((A, 1)), reader.position, reader.made)
    assert consumer.sought == [3, 6]


def test_a_log_that_was_cut_back_and_written_again_stops_the_run() -> None:
    """The client says so by the code that an offset has which is not there, since it may take no other offset."""
    said = "Partition log truncation detected at offset 3 (leader epoch 0): broker end offset is 1 (offset leader epoch 0)."
    reader = Reader(Log(), settled(), {}, FakeEnv())
    with pytest.raises(PositionGone, match="was cut back"):
        topic_reader()._take_error(Consumer(), *out_of_range((A, 1), said), reader.position, reader.made)


def test_a_topic_of_transactions_that_expired_names_a_command_that_helps() -> None:
    position = KafkaPosition(at="1:100", topics={ENDS: TopicPosition(next={"0": 2})})
    with pytest.raises(PositionGone, match=r"resnapshot shop\.toml --all`"):
        topic_reader(oldest=6).check_offsets({(ENDS, 0): 2}, position, MessageBatches(position, SchemaNotes(lambda _: None)))


def test_a_truncation_without_a_transaction_stops_the_run_also_where_transactions_are_followed() -> None:
    reader = topic_reader()
    reader._assigned = {(A, 0), (A, 1), (ENDS, 0)}
    message = KafkaMessage(A, 0, 0, None, b"")
    with pytest.raises(IngestStopped, match="which rows came before it"):
        reader._truncations(message, (MessageChange(change=TableTruncated(table=TABLES[A])),))
    whole = (MessageChange(change=TableTruncated(table=TABLES[A]), transaction="7", total_order=1),)
    assert reader._truncations(message, whole) == whole
    # An event may name its transaction where no topic says how that ended.
    alone = topic_reader(transactions=None)
    alone._assigned = {(A, 0), (A, 1)}
    with pytest.raises(IngestStopped, match="which rows came before it"):
        alone._truncations(message, whole)


def test_a_request_to_leave_a_message_out_is_for_that_one_alone() -> None:
    """The text of a position that is asked for is that of one message, and not that of a batch which ends there."""
    log, texts = Log(), []
    log.event(A, 1, 1, transaction=None)
    log.event(A, 1, 2, transaction=None)
    for count in (2, 1):
        made = MessageBatches(KafkaPosition(at="beginning"), SchemaNotes(lambda _: None))
        for message, changes in log.messages[A, 1][-count:]:
            made.take(message, changes)
        texts += [one.position["at"] for one in made.finished()]
    assert texts[1] == f"{A}/1@1" != texts[0]
    reader = Reader(log, settled(), {}, FakeEnv())
    reader.read_all()
    assert reader.taken[0].count == 2 and reader.taken[0].position["at"] != f"{A}/1@1"


# ---- which slots are consistent


def test_a_snapshot_that_stalls_is_not_over() -> None:
    """A connector that is away for a while goes on with its snapshot. It has a last row."""
    log, env = Log(), FakeEnv()
    log.event(A, 1, 1, transaction=None, snapshot="first")
    reader = Reader(log, empty(), {}, env)
    reader.read_all()
    env.advance(10 * WAIT_S)
    reader.read_all()
    assert not reader.is_consistent
    reader = again(reader, log)
    env.advance(10 * WAIT_S)
    reader.read_all()
    assert not reader.is_consistent
    log.event(B, 1, 1, transaction=None, snapshot="last")
    reader.read_all()
    reader.read_all()
    assert reader.is_consistent


def test_a_snapshot_whose_last_row_was_compacted_is_over_with_the_first_transaction() -> None:
    log = Log()
    log.event(A, 1, 1, transaction=None, snapshot="first")
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    log.transaction(1, [(B, 1, 1)])
    reader.read_all()
    reader.read_all()
    assert reader.is_consistent


def test_changes_without_their_transactions_are_not_called_consistent() -> None:
    """The connector does not write transaction metadata, or did not when it wrote these."""
    log = Log()
    log.event(A, 1, 1, transaction=None)
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    reader.read_all()
    assert reader.rows and not reader.is_consistent, "the other half of the transaction may come"
    log.event(B, 1, -1, transaction=None)
    reader = again(reader, log)
    reader.read_all()
    reader.read_all()
    assert not reader.is_consistent
    log.transaction(1, [(A, 1, 2), (B, 1, -2)])
    reader.read_all()
    reader.read_all()
    assert reader.is_consistent


def test_an_older_transaction_of_another_sequence_is_noticed() -> None:
    """The connector goes on at another server of MySQL, and sends the last transactions of the first one again."""
    log = Log()
    first, second = "0" * 35 + "a", "0" * 35 + "b"
    sent = [(f"{first}:9", 1), (f"{first}:10", 2), (f"{second}:1", 3)]
    reader = Reader(log, settled(), {}, FakeEnv())
    for identifier, value in [*sent, *sent]:
        log.event(A, 1, value, transaction=identifier, order=1)
        log.end(identifier, {A: 1})
        reader.read_all()
    assert [one.is_consistent for one in reader.taken if one.mark] == [True, True, True, False, False, True]


def test_tables_that_lack_rows_are_not_called_consistent() -> None:
    log = Log()
    position = settled()
    position.topics[A] = TopicPosition(has_gap=True)
    reader = Reader(log, position, {}, FakeEnv())
    log.transaction(1, [(A, 1, 1)])
    reader.read_all()
    assert reader.rows and not reader.is_consistent
    expired = topic_reader(oldest=6, skip=True)
    made = msgspec.convert({"at": "x", "topics": {A: {"next": {"0": 2}}, ENDS: {"next": {"0": 2}}}}, KafkaPosition)
    expired.check_offsets({(A, 0): 2, (ENDS, 0): 2}, made, MessageBatches(made, SchemaNotes(lambda _: None)))
    assert made.topics[A].has_gap and not made.topics[ENDS].has_gap


def test_a_topic_with_another_name_than_its_table_is_known_after_a_restart() -> None:
    log = Log()
    for name in ("other", "topic"):
        log.messages[name, 0] = []

    def transaction(number: int) -> None:
        log.transaction(number, [(A, 1, number)], ends=False)
        message, (change,) = log.messages[A, 1].pop()
        named = msgspec.structs.replace(change, collections=("public.renamed",))
        log._add(("topic", 0), None, [named])
        log.event(A, 1, number, transaction=str(number), order=2)
        log.end(f"{number}:{number * 100}", {A: 1, "pg.public.renamed": 1})
        assert message.topic == A

    transaction(1)
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    assert reader.is_consistent
    transaction(2)
    reader = again(reader, log)
    for place in log.messages:
        if place[0] != "topic":
            reader.read(place, 9)
    assert not [one for one in reader.apply() if one.mark], "its rows in the other topic were not read"
    reader.read_all()
    assert [one.count for one in reader.taken if one.mark] == [2]


# ---- values that were not sent


def test_a_value_that_no_commit_has_any_more_is_noted() -> None:
    """The delete of the old key was committed before its row came under the new one."""
    progress = TableProgress()
    routed: Any = SimpleNamespace(name="shop.a", key=("id",), route=SimpleNamespace(drop=(), mask={}, deletes="apply"), appends=False)
    tables: Any = SimpleNamespace(
        state=IngestState(position={}, tables={A: progress}),
        routed=lambda name: routed,
        handover=SimpleNamespace(
            wanted=lambda changes, mark: ((one, True, True) for one in changes), note_transaction=lambda *_, is_consistent: False
        ),
    )
    source: Any = SimpleNamespace(has_snapshots=False, fetch_rows=lambda *_: {}, position_text=lambda position: "x")
    sink: Any = SimpleNamespace(find_row=lambda *_: {})
    made = ChangeApplier(tables, source, sink, memory_bytes=10**6)
    change = RowChange(TABLES[A], ChangeKind.UPDATE, (2,), {"id": 2}, ("n",), (1,))
    made.apply(SourceTransaction(position={"at": "x"}, changes=[change], count=1))
    (bad,) = made._bad
    assert bad.table == A and "n of the row [2] was not sent with its new key" in bad.error and progress.incomplete == [[2]]


def test_a_topic_that_is_read_no_further_is_not_waited_for() -> None:
    """It was deleted, or its table was set aside, while a run went on to where the topics were."""
    source = KafkaSource.__new__(KafkaSource)
    source._settings = SimpleNamespace(transactions=None)  # type: ignore[assignment]
    source._topics, source._followed = {A: TopicInfo("", (0,)), B: TopicInfo("", (0,))}, frozenset({A, B})
    source._ended = frozenset()
    target = KafkaPosition(at="", topics={A: TopicPosition(next={"0": 5}, read_ms=7), B: TopicPosition(next={"0": 5})}).stored()
    position = KafkaPosition(at="", topics={A: TopicPosition(next={"0": 2}), B: TopicPosition(next={"0": 5})}).stored()
    assert not source.is_reached(position, target)
    source.follow_tables([B])
    assert source.is_reached(position, target)
    source.follow_tables([A, B])
    assert not source.is_reached(position, target)
    # That brokers do not name it for a moment says nothing.
    del source._topics[A]
    assert not source.is_reached(position, target)
    source.follow_tables([B])
    assert source.is_reached(position, target)


def test_a_session_that_begins_again_waits_for_topics_without_a_table_yet() -> None:
    source = KafkaSource.__new__(KafkaSource)
    source._settings = SimpleNamespace(transactions=None)  # type: ignore[assignment]
    source._router = SimpleNamespace(follows=lambda name: name != B)  # type: ignore[assignment]
    source._topics, source._followed, source._ended = {A: TopicInfo("", (0,)), B: TopicInfo("", (0,))}, None, frozenset()
    target = KafkaPosition(at="", topics={A: TopicPosition(next={"0": 5})}).stored()
    nothing = KafkaPosition(at="").stored()
    assert not source.is_reached(nothing, target)
    source.follow_tables([A])
    assert not source.is_reached(nothing, target)
    source.follow_tables([])
    assert source.is_reached(nothing, target)
