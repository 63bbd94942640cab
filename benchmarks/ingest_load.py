"""Writes to MariaDB at a steady rate, and says of each transaction when it was sent and when it was acknowledged.

`python -m benchmarks.ingest_load PORT CHANGES_A_SECOND SECONDS ROWS FILE`. Each transaction has four changes: money goes from an account
to another one, an order joins and one is paid. So the sum of all balances is constant. Ten times a second a transaction writes one row into
`probes`. The file has a line for each transaction; clocks are those of `time.time`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.ingest_sources import connect_mariadb

WRITERS = 4
CHANGES = 4
PROBES_A_SECOND = 10
BALANCE = 1000
"""Of each account in the beginning."""
ACCOUNTS = 20_000
SCHEMA = (
    "create table accounts(id bigint primary key, balance bigint not null, touched datetime(6))",
    "create table probes(id bigint primary key, sent double not null)",
)
_TRANSACTION = (
    "begin; update accounts set balance = balance - {amount}, touched = now(6) where id = {poorer}; "
    "update accounts set balance = balance + {amount}, touched = now(6) where id = {richer}; "
    "insert into orders values ({fresh}, {poorer}, 'new', {amount}, now(), 'an order that a writer of the benchmark made just now', 1); "
    "update orders set status = 'paid', total = total + 0.01 where id = {old}; commit; select @@last_gtid"
)
_PROBE = "begin; insert into probes values ({number}, {sent}); commit; select @@last_gtid"


def make_tables(connection: Any) -> None:
    """The tables next to `orders`."""
    with connection.cursor() as cursor:
        for statement in SCHEMA:
            cursor.execute(statement)
        cursor.execute("set session sql_log_bin = 0")
        cursor.execute(f"insert into accounts select seq, {BALANCE}, null from seq_1_to_{ACCOUNTS}")
        cursor.execute("set session sql_log_bin = 1")


class _Writer:
    """One session. `transactions_a_second`: 0 for one that sends probes."""

    def __init__(self, port: int, number: int, transactions_a_second: float, rows: int) -> None:
        self._connection = connect_mariadb(port, "bench")
        self._random = random.Random(number)
        self._number = number
        self._a_second = transactions_a_second
        self._rows = rows
        self.lines: list[str] = []

    def write(self, begin_s: float, end_s: float) -> None:
        """Write until the end. One that is late catches up, so that the rate is kept on average."""
        count = 0
        while (now_s := time.time()) < end_s:
            due_s = begin_s + count / self._a_second
            if due_s > now_s:
                time.sleep(min(due_s - now_s, end_s - now_s))
                continue
            self._send(count)
            count += 1
        self._connection.close()

    def _send(self, count: int) -> None:
        is_probe = self._number == WRITERS
        sent_s = time.time()
        text = _PROBE.format(number=count + 1, sent=repr(sent_s)) if is_probe else self._transaction(count)
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            rows: Any = cursor.fetchall()
            while cursor.nextset():
                rows = cursor.fetchall() or rows
        number = int(str(rows[0][0]).rpartition("-")[2])
        self.lines.append(json.dumps([number, sent_s, time.time(), 1 if is_probe else CHANGES, count + 1 if is_probe else 0]))

    def _transaction(self, count: int) -> str:
        # Each writer has accounts and orders of its own, so that none waits for another one.
        each = ACCOUNTS // WRITERS
        poorer, richer = (self._number * each + self._random.randrange(each) + 1 for _ in range(2))
        fresh = self._rows + count * WRITERS + self._number + 1
        old = self._random.randrange(self._rows // WRITERS) * WRITERS + self._number + 1
        return _TRANSACTION.format(amount=self._random.randrange(1, 9), poorer=poorer, richer=richer, fresh=fresh, old=old)


def main() -> None:
    """Write as the command line says."""
    port, changes_a_second, seconds, rows = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    each = changes_a_second / CHANGES / WRITERS
    writers = [_Writer(port, number, each, rows) for number in range(WRITERS)] + [_Writer(port, WRITERS, PROBES_A_SECOND, rows)]
    begin_s = time.time()
    failed: list[BaseException] = []

    def work(writer: _Writer) -> None:
        try:
            writer.write(begin_s, begin_s + seconds)
        except BaseException as error:  # noqa: BLE001 - the run has no figures then
            failed.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Path(sys.argv[5]).write_text("".join(f"{line}\n" for writer in writers for line in writer.lines))
    if failed:
        raise failed[0]


if __name__ == "__main__":
    main()
