"""`SourceMoments`: whether the tables are, by now, what the source had after one of its transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fileio.env import Env
from objcat.ingest.kafka.message import KafkaMessage, MessageChange
from objcat.ingest.kafka.pending import Place, TransactionEnd, sequence_number
from objcat.ingest.kafka.position import KafkaPosition


class SourceMoments:
    """Remembers what was applied outside of whole transactions, and what has to be passed after it.

    Args:
        position: of the stream. It is changed.
        heads: asks the brokers where the next messages of all topics will be.
        wait_s: how long a snapshot without a last row is silent when it is over.
        env: the clock.
    """

    def __init__(self, position: KafkaPosition, heads: Callable[[], dict[str, dict[str, int]]], *, wait_s: float, env: Env) -> None:
        self._position = position
        self._heads = heads
        self._wait_s = wait_s
        self._env = env
        self._places: Collection[Place] = ()
        self._has_gap = False
        # When a row came of a snapshot that has no last one.
        self._row_at_s = env.monotonic_s() if position.snapshot.is_incremental else None

    def follow(self, places: Collection[Place]) -> None:
        """Partitions that are read from now on. Those that are gone are not waited for."""
        self._places = places
        followed = {topic for topic, _ in places}
        self._has_gap = any(topic.has_gap for name, topic in self._position.topics.items() if name in followed)

    def take(self, message: KafkaMessage, change: MessageChange) -> None:
        """A change was read."""
        if not change.is_snapshot:
            # Debezium names the transaction of each change, if it writes them at all.
            self._position.lacks_transactions |= bool(change.collections) and change.transaction is None
            return
        snapshot, at_ms = self._position.snapshot, message.timestamp_ms or 0
        if change.is_incremental:
            snapshot.is_incremental = True
            self._row_at_s = self._env.monotonic_s()
        else:
            snapshot.newest_at_ms = max(snapshot.newest_at_ms, at_ms)
        if change.ends_snapshot:
            snapshot.ended_at_ms = max(snapshot.ended_at_ms, at_ms)

    def take_end(self, end: TransactionEnd) -> None:
        """The end of a transaction was read. The connector writes none until its snapshot is over, whose last row may be compacted."""
        self._position.snapshot.ended_at_ms = max(self._position.snapshot.ended_at_ms, end.number[0])

    def unsettle(self) -> None:
        """Changes are applied outside of whole transactions."""
        self._position.is_unsettled = True
        self._position.settle = {}

    def note_whole(self) -> None:
        """A whole transaction is handed over: the connector says which changes belong together."""
        self._position.lacks_transactions = False

    def note_order(self, text: str) -> bool:
        """Whether no later transaction was handed over before. Otherwise the connector sends it again."""
        found = sequence_number(text)
        if found is None:
            return True
        name, number = found
        newest = self._position.newest
        before = newest.get(name, -1)
        if number == before:
            # Transactions of another sequence may have come after it.
            return next(reversed(newest)) == name
        if number < before:
            return False
        # The sequence of the last transaction is the last one.
        newest.pop(name, None)
        newest[name] = number
        return True

    def is_settled(self) -> bool:
        """Whether slots are consistent: what was applied outside of transactions is followed by all that was there by then."""
        position = self._position
        if self._has_gap:
            return False
        if not position.is_unsettled:
            return True
        if position.lacks_transactions or position.snapshot.lacks_last:
            return False
        if self._row_at_s is not None and self._env.monotonic_s() - self._row_at_s < self._wait_s:
            return False
        if not position.settle:
            position.settle = self._heads()
        target = {
            topic: {number: offset for number, offset in offsets.items() if (topic, int(number)) in self._places}
            for topic, offsets in position.settle.items()
        }
        if not position.has_passed(target):
            return False
        position.is_unsettled, position.settle, position.snapshot.is_incremental = False, {}, False
        return True
