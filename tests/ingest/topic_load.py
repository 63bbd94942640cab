"""Writers of topics while their ingest is killed: transactions over several topics and partitions, some of which are given up."""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.ingest.topic_shop import ANSWER_S_MAX, TopicRecord, raw

PARTITIONS = {"accounts": 4, "wallets": 2, "events": 3}
KEYS = 200
CALM_S = 0.3


class TopicWriter:
    """A producer of its own, for one thread. What it gave up has `is_given_up`, which no row of a lake may have.

    Args:
        url: of the broker and the prefix of the topics, with a slash in between.
        number: of the writer.
        seed: of what it writes.
    """

    def __init__(self, url: str, number: int, seed: int) -> None:
        broker, self._prefix = url.split("/")
        self._random = random.Random(f"{seed}/{number}")
        self._number = number
        self._made = 0
        self.transactions = 0
        self._producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{self._prefix}-{number}", "linger.ms": 0})
        self._producer.init_transactions(ANSWER_S_MAX)

    def step(self) -> None:
        """One transaction, which is given up now and then, also after a part of it has come to the broker."""
        is_given_up = self._random.random() < 0.2
        self._producer.begin_transaction()
        for _ in range(self._random.randrange(1, 12)):
            self._write(is_given_up=is_given_up)
            if self._random.random() < 0.1:
                self._producer.flush(ANSWER_S_MAX)
        if is_given_up:
            self._producer.flush(ANSWER_S_MAX)
            self._producer.abort_transaction(ANSWER_S_MAX)
        else:
            self._producer.commit_transaction(ANSWER_S_MAX)
            self.transactions += 1

    def _write(self, *, is_given_up: bool) -> None:
        self._made += 1
        name = self._random.choice(["accounts", "accounts", "wallets", "events"])
        value: dict[str, Any] = {"n": self._made, "by": self._number, "is_given_up": is_given_up}
        if name == "events":
            self._put(name, TopicRecord(None, {**value, "text": "é" * self._random.randrange(20)}, self._random.randrange(3)))
            return
        key = str(self._random.randrange(KEYS))
        if self._random.random() < 0.1:
            self._put(name, TopicRecord(key, None))
        else:
            self._put(name, TopicRecord(key, {"id": int(key), **value, "balance": self._random.randrange(1000)}))

    def _put(self, name: str, record: TopicRecord) -> None:
        self._producer.produce(f"{self._prefix}.{name}", raw(record.value), raw(record.key), record.partition)
        self._producer.poll(0)


def main(url: str, seed: int, stop: Path, pause_s: float) -> None:
    """Write until the file `stop` appears, slowly once `calm` is beside it. Prints how many transactions there were."""
    calm = stop.with_name("calm")
    writers = [TopicWriter(url, number, seed) for number in range(3)]

    def keep_writing(writer: TopicWriter) -> None:
        while not stop.exists():
            writer.step()
            time.sleep(CALM_S if calm.exists() else pause_s)

    threads = [threading.Thread(target=keep_writing, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{sum(writer.transactions for writer in writers)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
