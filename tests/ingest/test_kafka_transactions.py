"""Transactions across topics, from messages in any order: whole, in the order of the source, and again after a restart."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from fileio.testing.env import FakeEnv
from objcat.ingest.kafka.batches import MessageBatches, MessageTimes, SchemaNotes
from objcat.ingest.kafka.message import KafkaMessage, MessageChange
from objcat.ingest.kafka.position import KafkaPosition
from objcat.ingest.kafka.readers import JsonReader
from objcat.ingest.kafka.transactions import TransactionAssembler
from objcat.ingest.model import ChangeKind, RowChange, SchemaChanged, SourceColumn, SourceTable, SourceTransaction
from tests.effort import seeds
from tests.ingest.envelopes import connect_json

ENDS = "pg.transaction"
TOPICS = ("pg.public.a", "pg.public.b")
PARTITIONS = 2
WAIT_S = 30.0
TABLES = {
    name: SourceTable(name=name, columns=(SourceColumn(name="id", type=pa.int64()), SourceColumn(name="n", type=pa.int64())), key=("id",))
    for name in TOPICS
}


class Log:
    """Topics in memory, which a connector writes in the order of the source's transactions."""

    def __init__(self, *, end_partitions: int = 1) -> None:
        self.end_partitions = end_partitions
        self.now_ms = 1_000
        self.messages: dict[tuple[str, int], list[tuple[KafkaMessage, list[MessageChange]]]] = {}
        for partition in range(end_partitions):
            self.messages[ENDS, partition] = []
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                self.messages[topic, partition] = []

    def heads(self) -> dict[str, dict[str, int]]:
        made: dict[str, dict[str, int]] = {}
        for (topic, partition), found in self.messages.items():
            made.setdefault(topic, {})[str(partition)] = len(found)
        return made

    def event(self, topic: str, key: int, value: int | None, *, transaction: str | None, order: int = 0, snapshot: str = "false") -> None:
        place = (topic, key % PARTITIONS)
        kind = ChangeKind.DELETE if value is None else ChangeKind.UPDATE
        change = RowChange(TABLES[topic], kind, (key,), None if value is None else {"id": key, "n": value})
        made = MessageChange(
            change=change,
            transaction=transaction,
            total_order=order,
            collections=(topic.removeprefix("pg."),),
            is_snapshot=snapshot != "false",
            ends_snapshot=snapshot == "last",
            is_incremental=snapshot == "incremental",
        )
        self._add(place, None, [made])

    def end(self, identifier: str, counts: dict[str, int]) -> None:
        collections = [{"data_collection": name.removeprefix("pg."), "event_count": count} for name, count in counts.items()]
        value = {"status": "END", "id": identifier, "ts_ms": 5, "event_count": sum(counts.values()), "data_collections": collections}
        partition = len(self.messages[ENDS, 0]) * 7 // 3 % self.end_partitions
        self._add((ENDS, 0), connect_json(None, {"status": "BEGIN", "id": identifier, "ts_ms": 5}), [])
        self._add((ENDS, partition), connect_json(None, value), [])

    def transaction(self, number: int, changes: Sequence[tuple[str, int, int | None]], *, ends: bool = True) -> None:
        counts: dict[str, int] = {}
        for order, (topic, key, value) in enumerate(changes, 1):
            self.event(topic, key, value, transaction=str(number), order=order)
            counts[topic] = counts.get(topic, 0) + 1
        if ends:
            self.end(f"{number}:{number * 100}", counts)

    def _add(self, place: tuple[str, int], value: bytes | None, changes: list[MessageChange]) -> None:
        found = self.messages[place]
        self.now_ms += 1
        found.append((KafkaMessage(*place, len(found), b"k", value, self.now_ms), changes))


class Reader:
    """Reads a log from a position, and applies what is handed over."""

    def __init__(
        self, log: Log, position: KafkaPosition, rows: dict[tuple[str, int], int], env: FakeEnv, *, bytes_max: int = 10**9
    ) -> None:
        self.log = log
        self.env = env
        self.rows = rows
        self.position = msgspec.convert(msgspec.to_builtins(position), KafkaPosition)
        self.next = {place: max(0, self.position.next_offset(*place)) for place in log.messages}
        self.is_consistent = False
        self.taken: list[SourceTransaction] = []
        reader = JsonReader([], numeric_scale=None)
        notes = SchemaNotes(lambda _: None)
        copied = msgspec.convert(msgspec.to_builtins(position), KafkaPosition)
        self.made = TransactionAssembler(copied, ENDS, reader, notes, heads=log.heads, bytes_max=bytes_max, wait_s=WAIT_S, env=env)
        self.made.follow(set(log.messages))

    def read(self, place: tuple[str, int], count: int) -> None:
        """Read messages of one partition, and its end."""
        wanted = self.made.wanted()
        if wanted is not None and place not in wanted:
            return
        found = self.log.messages[place]
        for message, changes in found[self.next[place] : self.next[place] + count]:
            self.made.take(message, changes)
        self.next[place] = min(len(found), self.next[place] + count)
        if self.next[place] == len(found):
            self.made.reach_end(*place, len(found))

    def apply(self) -> Iterator[SourceTransaction]:
        for transaction in self.made.finished():
            for change in transaction.changes:
                assert not isinstance(change, (SchemaChanged, RowChange)) or change.table.name in TOPICS
                if isinstance(change, RowChange):
                    place = (change.table.name, change.key[0])
                    if change.row is None:
                        self.rows.pop(place, None)
                    else:
                        self.rows[place] = change.row["n"]
            self.position = msgspec.convert(dict(transaction.position), KafkaPosition)
            self.taken.append(transaction)
            if transaction.is_consistent is not None:
                self.is_consistent = transaction.is_consistent
            yield transaction

    def read_all(self) -> None:
        for place in self.log.messages:
            self.read(place, 10**6)
        list(self.apply())


def empty() -> KafkaPosition:
    return KafkaPosition(at="beginning", is_unsettled=True)


def test_a_transaction_waits_for_its_end_and_all_its_events() -> None:
    log = Log()
    log.transaction(1, [(TOPICS[0], 1, 10), (TOPICS[1], 1, -10)])
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read((TOPICS[0], 1), 9)
    assert [one.count for one in reader.apply()] == [0] and reader.rows == {}
    assert reader.position.next_offset(TOPICS[0], 1) == 0, "an event that waits is read again after a restart"
    reader.read((ENDS, 0), 9)
    assert [one.count for one in reader.apply()] == [0]
    reader.read((TOPICS[1], 1), 9)
    done = list(reader.apply())
    assert [one.count for one in done] == [2] and done[0].mark == "1:100" and done[0].position["at"] == "1:100"
    assert reader.rows == {(TOPICS[0], 1): 10, (TOPICS[1], 1): -10}
    assert reader.position.next_offset(TOPICS[0], 1) == 1 and reader.position.next_offset(ENDS, 0) == 2


def test_events_are_in_the_order_of_their_transaction() -> None:
    log = Log()
    log.transaction(1, [(TOPICS[0], 1, 1), (TOPICS[0], 2, 2), (TOPICS[1], 1, 3), (TOPICS[0], 1, None), (TOPICS[0], 1, 5)])
    reader = Reader(log, empty(), {}, FakeEnv())
    for place in reversed(list(log.messages)):
        reader.read(place, 99)
    changes = [change for one in reader.apply() for change in one.changes if isinstance(change, RowChange)]
    assert reader.rows[TOPICS[0], 1] == 5
    assert not changes, "the changes are read once"


def test_rows_of_a_snapshot_are_not_consistent_until_its_last_one() -> None:
    log = Log()
    log.event(TOPICS[0], 1, 1, transaction=None, snapshot="first")
    log.event(TOPICS[0], 2, 2, transaction=None, snapshot="true")
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    assert len(reader.rows) == 2 and not reader.is_consistent and reader.position.snapshot.is_open
    log.event(TOPICS[1], 1, 3, transaction=None, snapshot="last")
    reader.read_all()
    reader.read_all()
    assert reader.is_consistent and not reader.position.is_unsettled


def test_a_snapshot_without_a_last_row_ends_by_silence() -> None:
    log, env = Log(), FakeEnv()
    log.event(TOPICS[0], 1, 1, transaction=None, snapshot="incremental")
    reader = Reader(log, empty(), {}, env)
    reader.read_all()
    log.transaction(1, [(TOPICS[0], 2, 2)])
    reader.read_all()
    assert not reader.is_consistent
    env.advance(WAIT_S + 1)
    log.transaction(2, [(TOPICS[0], 2, 3)])
    reader.read_all()
    assert reader.is_consistent


def test_events_that_were_compacted_are_not_waited_for() -> None:
    """All partitions of the topic have events of a later transaction, so those that are missing will not come."""
    log = Log()
    log.transaction(1, [(TOPICS[0], 1, 1), (TOPICS[0], 3, 1)])
    log.transaction(2, [(TOPICS[0], 1, 2), (TOPICS[0], 2, 2)])
    del log.messages[TOPICS[0], 1][0]
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    assert reader.rows == {(TOPICS[0], 3): 1, (TOPICS[0], 1): 2, (TOPICS[0], 2): 2}
    assert [one.is_consistent for one in reader.taken if one.mark] == [False, True]


def test_events_that_do_not_come_are_waited_for_a_while() -> None:
    log, env = Log(), FakeEnv()
    log.end("1:100", {TOPICS[0]: 1})
    reader = Reader(log, empty(), {}, env)
    reader.read_all()
    assert not any(one.mark for one in reader.taken)
    env.advance(WAIT_S + 1)
    list(reader.apply())
    assert [one.is_consistent for one in reader.taken if one.mark] == [False]


def test_events_without_an_end_are_written_after_a_while_and_before_what_follows_them() -> None:
    log, env = Log(), FakeEnv()
    log.transaction(1, [(TOPICS[0], 1, 1)], ends=False)
    reader = Reader(log, empty(), {}, env)
    reader.read_all()
    assert reader.rows == {}
    log.transaction(2, [(TOPICS[0], 3, 2)])
    reader.read_all()
    assert reader.rows == {(TOPICS[0], 1): 1, (TOPICS[0], 3): 2} and reader.is_consistent
    log.transaction(3, [(TOPICS[1], 1, 1)], ends=False)
    reader.read_all()
    assert (TOPICS[1], 1) not in reader.rows
    env.advance(WAIT_S + 1)
    reader.read_all()
    assert reader.rows[TOPICS[1], 1] == 1


def test_a_table_that_no_topic_has_is_not_waited_for() -> None:
    log = Log()
    log.event(TOPICS[0], 1, 1, transaction="1", order=2)
    log.end("1:100", {TOPICS[0]: 1, "pg.public.other": 4})
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    assert reader.rows == {(TOPICS[0], 1): 1} and reader.is_consistent


def test_transactions_that_are_sent_again_are_not_called_consistent() -> None:
    log = Log()
    first, second = [(TOPICS[0], 1, 1), (TOPICS[1], 1, -1)], [(TOPICS[0], 1, 2), (TOPICS[1], 1, -2)]
    log.transaction(1, first)
    log.transaction(2, second)
    reader = Reader(log, empty(), {}, FakeEnv())
    reader.read_all()
    assert reader.is_consistent
    log.transaction(1, first)
    reader.read_all()
    assert not reader.is_consistent
    log.transaction(2, second)
    reader.read_all()
    assert reader.is_consistent and reader.rows == {(TOPICS[0], 1): 2, (TOPICS[1], 1): -2}


def test_memory_is_bounded_by_partitions_that_wait() -> None:
    log = Log()
    for number in range(1, 60):
        log.transaction(number, [(TOPICS[0], 1, number), (TOPICS[1], 1, -number)])
    reader = Reader(log, empty(), {}, FakeEnv(), bytes_max=2_000)
    most = 0
    for _ in range(2_000):
        for place in log.messages:
            reader.read(place, 2)
        list(reader.apply())
        most = max(most, reader.made._bytes)
    assert reader.rows == {(TOPICS[0], 1): 59, (TOPICS[1], 1): -59} and most < 8_000


def present(source: dict[tuple[str, int], int | None]) -> dict[tuple[str, int], int]:
    return {place: value for place, value in source.items() if value is not None}


@pytest.mark.parametrize("seed", seeds(60, with_all=2000))
def test_any_order_and_any_restart_end_equal(seed: int) -> None:
    """Slots that are called consistent have what the source had after one of its transactions."""
    drawn, env = random.Random(seed), FakeEnv(seed)
    log = Log(end_partitions=drawn.choice([1, 1, 3]))
    source: dict[tuple[str, int], int | None] = {}
    states: list[dict[tuple[str, int], int]] = [{}]
    history: list[tuple[int, list[tuple[str, int, int | None]]]] = []
    rows = drawn.randrange(4)
    for key in range(rows):
        log.event(TOPICS[0], key, 0, transaction=None, snapshot="last" if key == rows - 1 else "true")
        source[TOPICS[0], key] = 0
    states.append(present(source))
    reader = Reader(log, empty(), {}, env, bytes_max=drawn.choice([1_000, 10**9]))
    committed: dict[tuple[str, int], int] = {}
    number = 0
    for step in range(drawn.randrange(20, 150)):
        match drawn.choice("wwwwrrrrrrrrascx"):
            case "w":
                number += 1
                changes = [
                    (drawn.choice(TOPICS), drawn.randrange(6), drawn.choice([None, step, step])) for _ in range(drawn.randrange(1, 5))
                ]
                history.append((number, changes))
                log.transaction(number, changes)
                source |= {(topic, key): value for topic, key, value in changes}
                states.append(present(source))
            case "r":
                reader.read(drawn.choice(list(log.messages)), drawn.randrange(1, 6))
            case "a":
                for transaction in reader.apply():
                    if transaction.is_consistent:
                        assert reader.rows in states, f"seed {seed}, step {step}"
                committed = dict(reader.rows)
            case "s":
                reader = Reader(log, reader.position, dict(committed), env, bytes_max=drawn.choice([1_000, 10**9]))
            case "c":
                env.advance(drawn.choice([0.1, 1.0]))
            case "x" if history and drawn.random() < 0.3:
                # The connector failed, and sends its last transactions again.
                for again, changes in history[-drawn.randrange(1, 4) :]:
                    log.transaction(again, changes)
    for _ in range(400):
        reader.read_all()
        env.advance(1)
    assert reader.rows == present(source), f"seed {seed}"
    assert reader.is_consistent and reader.position.has_passed(log.heads()), f"seed {seed}"


def test_the_lag_is_that_of_the_partition_that_is_most_behind() -> None:
    times = MessageTimes()
    assert times.read_until_ms() is None
    for topic, timestamp in (("a", 1_000), ("b", 5_000), ("a", 2_000), ("c", None)):
        times.take(KafkaMessage(topic, 0, 0, None, b"", timestamp))
    assert times.read_until_ms() == 2_000
    times.reach_end("a", 0)
    assert times.read_until_ms() == 5_000
    times.reach_end("b", 0)
    assert times.read_until_ms() == 5_000


def test_batches_have_whole_messages_and_are_not_consistent() -> None:
    position = KafkaPosition(at="beginning")
    described: list[Any] = []
    made = MessageBatches(position, SchemaNotes(described.append))
    log = Log()
    log.transaction(1, [(TOPICS[0], 1, 1), (TOPICS[0], 3, 2)])
    for message, changes in log.messages[TOPICS[0], 1]:
        made.take(message, changes)
    (done,) = made.finished()
    assert (
        done.count == 2
        and done.is_consistent is False
        and done.position["at"] == "pg.public.a/1@1 and 1 before it"
        and described == [TABLES[TOPICS[0]]]
    )
    assert isinstance(next(iter(done.changes)), SchemaChanged) and not list(made.finished())
    made.reach_end(TOPICS[0], 1, 5)
    (moved,) = made.finished()
    assert moved.count == 0 and KafkaPosition.of(moved.position).next_offset(TOPICS[0], 1) == 5
