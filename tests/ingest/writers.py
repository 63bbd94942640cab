"""What writes to a shop while its ingest is killed, whatever its database is. The sum of all balances never changes."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ACCOUNTS = 600
CALM_S = 0.3
START_SUM = 2 * ACCOUNTS * 100


class Writer:
    """One writer of the source, with a connection of its own.

    Attributes:
        error: what the driver raises when a statement is refused.
        touch, rewrite_row, append, note, put, delete_empty: statements that databases write in different ways.
    """

    error: type[Exception]
    touch: str
    rewrite_row: str
    append: str
    note: str
    put: str
    delete_empty: str

    def __init__(self, db: Any, number: int, seed: int) -> None:
        self._db = db
        self._cursor = db.cursor()
        self._random = random.Random(f"{seed}/{number}")
        self._fresh = 10**6 * (number + 1)
        self._number = number
        self.transactions = 0

    def step(self) -> None:
        """One transaction, which may be refused by another one's change of the schema or lock."""
        steps = [self.transfer, self.insert, self.move, self.rewrite, self.savepoint, self.give_up, self.many, self.scratch, self.delete]
        try:
            self._random.choices(steps, [40, 8, 8, 8, 5, 5, 6, 14, 6])[0]()
            self.transactions += 1
        except self.error:
            with contextlib.suppress(self.error):
                self._db.rollback()

    def transfer(self) -> None:
        """Money goes from an account to a wallet, or nothing happens."""
        amount = self._random.randrange(1, 50)
        taken = self._run(self.touch, amount, self._id())
        given = self._run("update wallets set balance = balance + %s where id = %s", amount, self._wallet())
        self._db.commit() if taken == given == 1 else self._db.rollback()

    def insert(self) -> None:
        self._fresh += 1
        self._run("insert into accounts(id, owner, balance, bio) values (%s, 'new', 0, repeat('é', 3000))", self._fresh)
        if self._random.random() < 0.5:
            self._run("update accounts set owner = 'newer' where id = %s", self._fresh)
        self._db.commit()

    def move(self) -> None:
        """A key changes, sometimes twice, with a value that PostgreSQL stores apart and does not send."""
        self._fresh += 1
        self._run("update accounts set id = %s where id = %s", self._fresh, self._id())
        if self._random.random() < 0.4:
            self._run("update accounts set id = %s where id = %s", self._fresh + 500_000, self._fresh)
        self._db.commit()

    def rewrite(self) -> None:
        account = self._id()
        self._run(self.rewrite_row, str(self._random.random()), account)
        self._run("update accounts set owner = 'x' where id = %s", account)
        self._db.commit()

    def savepoint(self) -> None:
        account = self._id()
        self._run("savepoint s")
        self._run("update accounts set balance = 0 where id = %s", account)
        self._run("rollback to s")
        self._run(self.append, account)
        self._db.commit()

    def give_up(self) -> None:
        self._run("update accounts set balance = 0 where id = %s", self._id())
        self._db.rollback()

    def many(self) -> None:
        low, high = sorted((self._wallet(), self._wallet()))
        self._run(self.note, f"é{self._number}", low, high)
        self._db.commit()

    def scratch(self) -> None:
        number, part = self._random.randrange(300), f"p{self._random.randrange(3)}"
        self._run("delete from scratch where id = %s", self._random.randrange(300))
        self._run(self.put, number, part)
        self._db.commit()

    def delete(self) -> None:
        """An account without money goes. Its key may come again."""
        self._run(self.delete_empty)
        self._db.commit()

    def _run(self, text: str, *arguments: object) -> int:
        self._cursor.execute(text, arguments or None)
        return int(self._cursor.rowcount)

    def _id(self) -> int:
        return self._random.randrange(1, ACCOUNTS + 1)

    def _wallet(self) -> str:
        i = self._id()
        return f"{chr(97 + i % 26)}{chr(97 + i % 7).upper()}é{i}"


def write(
    kind: type[Writer], connect: Callable[[], Any], change: Callable[[str], None], statements: Sequence[str], arguments: Sequence[str]
) -> None:
    """Write until the file `stop` appears, slowly once `calm` is beside it. Prints how many transactions there were.

    Args:
        kind: of the writers.
        connect: opens a session.
        change: runs a statement that changes the schema, in a session of its own.
        statements: such statements, in order.
        arguments: seed, the path of `stop`, seconds between two transactions, and seconds between two changes of the schema.
    """
    seed, stop, pause_s, ddl_s = int(arguments[0]), Path(arguments[1]), float(arguments[2]), float(arguments[3])
    calm = stop.with_name("calm")
    writers = [kind(connect(), number, seed) for number in range(3)]

    def keep_writing(writer: Writer) -> None:
        while not stop.exists():
            writer.step()
            time.sleep(CALM_S if calm.exists() else pause_s)

    def keep_changing() -> None:
        for statement in statements:
            end = time.monotonic() + ddl_s
            while time.monotonic() < end and not stop.exists():
                time.sleep(0.05)
            if stop.exists():
                return
            change(statement)

    threads = [threading.Thread(target=keep_writing, args=(writer,)) for writer in writers] + [threading.Thread(target=keep_changing)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{sum(writer.transactions for writer in writers)}\n")
