"""Writers of a shop in PostgreSQL: what a source does while its ingest is killed. The sum of all balances never changes."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from pathlib import Path

import psycopg2

ACCOUNTS = 600
CALM_S = 0.3
START_SUM = 2 * ACCOUNTS * 100

SCHEMA = f"""
create table accounts(id bigint primary key, owner text, balance numeric(12, 2), bio text, seen timestamptz, born date, ok boolean,
  ratio float8, marks int[], notes jsonb);
alter table accounts alter column bio set storage external;
create table wallets(id text primary key, balance numeric(12, 2), note text);
create table scratch(id int, part text, v text, primary key (id, part));
insert into accounts select i, 'o' || i, 100, case when i % 3 = 0 then repeat(md5(i::text), 100) end, now(), date '1990-01-01' + i % 9000,
  i % 2 = 0, i / 3.0, array[i, null], jsonb_build_object('a', i) from generate_series(1, {ACCOUNTS}) i;
insert into wallets select chr(97 + i % 26) || upper(chr(97 + i % 7)) || 'é' || i, 100, 'n' || i from generate_series(1, {ACCOUNTS}) i;
insert into scratch select i, 'p' || i % 3, 's' from generate_series(1, 200) i;
"""
DDL = (
    "alter table accounts add column tier int default 7",
    "truncate scratch",
    "alter table wallets add column extra text",
    "alter table accounts add column at timestamptz default clock_timestamp()",
    "alter table wallets alter column note type text using note || '!'",
    "alter table scratch add column w numeric(6, 2) default 1.5",
    "truncate scratch",
    "alter table accounts drop column ok",
    "alter table accounts alter column tier type bigint",
)


class Writer:
    """One writer of the source, with its own connection."""

    def __init__(self, connection: str, number: int, seed: int) -> None:
        self._db = psycopg2.connect(connection)
        self._random = random.Random(f"{seed}/{number}")
        self._fresh = 10**6 * (number + 1)
        self._number = number
        self.transactions = 0

    def step(self) -> None:
        """One transaction, which may be refused by another one's change of the schema or lock."""
        try:
            with self._db.cursor() as cursor:
                self._cursor = cursor
                self._random.choices(
                    [
                        self.transfer,
                        self.insert,
                        self.move,
                        self.rewrite,
                        self.savepoint,
                        self.give_up,
                        self.many,
                        self.scratch,
                        self.delete,
                    ],
                    [40, 8, 8, 8, 5, 5, 6, 14, 6],
                )[0]()
            self.transactions += 1
        except psycopg2.Error:
            with contextlib.suppress(psycopg2.Error):
                self._db.rollback()

    def transfer(self) -> None:
        """Money goes from an account to a wallet, or nothing happens."""
        amount = self._random.randrange(1, 50)
        taken = self._run("update accounts set balance = balance - %s, seen = now() where id = %s", amount, self._id())
        given = self._run("update wallets set balance = balance + %s where id = %s", amount, self._wallet())
        self._db.commit() if taken == given == 1 else self._db.rollback()

    def insert(self) -> None:
        self._fresh += 1
        self._run("insert into accounts(id, owner, balance, bio) values (%s, 'new', 0, repeat('é', 3000))", self._fresh)
        if self._random.random() < 0.5:
            self._run("update accounts set owner = 'newer' where id = %s", self._fresh)
        self._db.commit()

    def move(self) -> None:
        """A key changes, with a value that is stored apart and not sent."""
        self._fresh += 1
        self._run("update accounts set id = %s where id = %s", self._fresh, self._id())
        if self._random.random() < 0.4:
            self._run("update accounts set id = %s where id = %s", self._fresh + 500_000, self._fresh)
        self._db.commit()

    def rewrite(self) -> None:
        account = self._id()
        self._run("update accounts set bio = repeat(%s, 2000) where id = %s", str(self._random.random()), account)
        self._run("update accounts set owner = 'x' where id = %s", account)
        self._db.commit()

    def savepoint(self) -> None:
        account = self._id()
        self._run("savepoint s")
        self._run("update accounts set balance = 0 where id = %s", account)
        self._run("rollback to s")
        self._run("update accounts set owner = owner || 's' where id = %s", account)
        self._db.commit()

    def give_up(self) -> None:
        self._run("update accounts set balance = 0 where id = %s", self._id())
        self._db.rollback()

    def many(self) -> None:
        self._run(
            "update wallets set note = left(note, 20) || %s where id > %s and id < %s", f"é{self._number}", self._wallet(), self._wallet()
        )
        self._db.commit()

    def scratch(self) -> None:
        number, part = self._random.randrange(300), f"p{self._random.randrange(3)}"
        self._run("delete from scratch where id = %s", self._random.randrange(300))
        self._run(
            "insert into scratch(id, part, v) values (%s, %s, 't') on conflict (id, part) do update set v = excluded.v || 'u'", number, part
        )
        self._db.commit()

    def delete(self) -> None:
        """An account without money goes. Its key may come again."""
        self._run("delete from accounts where id = (select id from accounts where balance = 0 limit 1)")
        self._db.commit()

    def _run(self, text: str, *arguments: object) -> int:
        self._cursor.execute(text, arguments or None)
        return self._cursor.rowcount

    def _id(self) -> int:
        return self._random.randrange(1, ACCOUNTS + 1)

    def _wallet(self) -> str:
        i = self._id()
        return f"{chr(97 + i % 26)}{chr(97 + i % 7).upper()}é{i}"


def main(connection: str, seed: int, stop: Path, pause_s: float, ddl_s: float) -> None:
    """Write until the file `stop` appears, slowly once `calm` is beside it. The schema changes every `ddl_s` seconds."""
    calm = stop.with_name("calm")
    writers = [Writer(connection, number, seed) for number in range(3)]

    def write(writer: Writer) -> None:
        while not stop.exists():
            writer.step()
            time.sleep(CALM_S if calm.exists() else pause_s)

    def change() -> None:
        db = psycopg2.connect(connection)
        db.autocommit = True
        for statement in DDL:
            end = time.monotonic() + ddl_s
            while time.monotonic() < end and not stop.exists():
                time.sleep(0.05)
            if stop.exists():
                return
            with contextlib.suppress(psycopg2.errors.DeadlockDetected), db.cursor() as cursor:
                cursor.execute(statement)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers] + [threading.Thread(target=change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(writer.transactions for writer in writers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
