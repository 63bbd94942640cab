"""Writers of a shop in MariaDB: what a source does while its ingest is killed. The sum of all balances never changes."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

ACCOUNTS = 600
CALM_S = 0.3
START_SUM = 2 * ACCOUNTS * 100

SCHEMA = f"""
create table accounts(id bigint primary key, owner varchar(40), balance decimal(12, 2), bio mediumtext, seen timestamp(6) null, born date,
  ok bit(1), ratio double, part float, kind enum('a', 'b'), tags set('x', 'y'), big bigint unsigned, raw varbinary(20));
create table wallets(id varchar(20) primary key, balance decimal(12, 2), note varchar(40));
create table scratch(id int, part varchar(9), v varchar(9), primary key (id, part));
insert into accounts select seq, concat('o', seq), 100, if(seq % 3 = 0, repeat(md5(seq), 100), null), now(6),
  date '1990-01-01' + interval seq day, seq % 2, seq / 3, seq / 7, if(seq % 2, 'a', 'b'), if(seq % 3, 'x,y', ''),
  18446744073709551615 - seq, unhex(md5(seq)) from seq_1_to_{ACCOUNTS};
insert into wallets select concat(char(97 + seq % 26), upper(char(97 + seq % 7)), 'é', seq), 100, concat('n', seq) from seq_1_to_{ACCOUNTS};
insert into scratch select seq, concat('p', seq % 3), 's' from seq_1_to_200
"""
DDL: tuple[str, ...] = (
    "alter table accounts add column tier int default 7",
    "truncate scratch",
    "alter table wallets add column extra text",
    "flush binary logs",
    "alter table accounts add column at datetime(6) default current_timestamp(6)",
    "alter table wallets modify note varchar(200)",
    "alter table scratch add column w decimal(6, 2) default 1.5",
    "create table copy like scratch; insert into copy select * from scratch; rename table scratch to gone, copy to scratch",
    "drop table gone",
    "truncate scratch",
    "alter table accounts drop column ok",
    "alter table accounts modify tier bigint, add index born(born)",
    "flush binary logs",
)


def connect(url: str) -> Any:
    """A session in the database of the shop."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        database=parts.path[1:],
        client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS,
    )


class Writer:
    """One writer of the source, with its own connection."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        self._db = connect(url)
        self._random = random.Random(f"{seed}/{number}")
        self._fresh = 10**6 * (number + 1)
        self._number = number
        self._cursor = self._db.cursor()
        self.transactions = 0

    def step(self) -> None:
        """One transaction, which may be refused by another one's change of the schema or lock."""
        try:
            self._random.choices(
                [self.transfer, self.insert, self.move, self.rewrite, self.savepoint, self.give_up, self.many, self.scratch, self.delete],
                [40, 8, 8, 8, 5, 5, 6, 14, 6],
            )[0]()
            self.transactions += 1
        except pymysql.MySQLError:
            with contextlib.suppress(pymysql.MySQLError):
                self._db.rollback()

    def transfer(self) -> None:
        """Money goes from an account to a wallet, or nothing happens."""
        amount = self._random.randrange(1, 50)
        taken = self._run("update accounts set balance = balance - %s, seen = now(6) where id = %s", amount, self._id())
        given = self._run("update wallets set balance = balance + %s where id = %s", amount, self._wallet())
        self._db.commit() if taken == given == 1 else self._db.rollback()

    def insert(self) -> None:
        self._fresh += 1
        self._run("insert into accounts(id, owner, balance, bio) values (%s, 'new', 0, repeat('é', 3000))", self._fresh)
        if self._random.random() < 0.5:
            self._run("update accounts set owner = 'newer' where id = %s", self._fresh)
        self._db.commit()

    def move(self) -> None:
        """A key changes, sometimes twice."""
        self._fresh += 1
        self._run("update accounts set id = %s where id = %s", self._fresh, self._id())
        if self._random.random() < 0.4:
            self._run("update accounts set id = %s where id = %s", self._fresh + 500_000, self._fresh)
        self._db.commit()

    def rewrite(self) -> None:
        account = self._id()
        self._run(
            "update accounts set bio = repeat(%s, 2000), tags = if(tags = '', 'y', '') where id = %s", str(self._random.random()), account
        )
        self._run("update accounts set owner = 'x' where id = %s", account)
        self._db.commit()

    def savepoint(self) -> None:
        account = self._id()
        self._run("savepoint s")
        self._run("update accounts set balance = 0 where id = %s", account)
        self._run("rollback to s")
        self._run("update accounts set owner = left(concat(owner, 's'), 40) where id = %s", account)
        self._db.commit()

    def give_up(self) -> None:
        self._run("update accounts set balance = 0 where id = %s", self._id())
        self._db.rollback()

    def many(self) -> None:
        low, high = sorted((self._wallet(), self._wallet()))
        self._run("update wallets set note = concat(left(note, 20), %s) where id > %s and id < %s", f"é{self._number}", low, high)
        self._db.commit()

    def scratch(self) -> None:
        number, part = self._random.randrange(300), f"p{self._random.randrange(3)}"
        self._run("delete from scratch where id = %s", self._random.randrange(300))
        self._run("insert into scratch(id, part, v) values (%s, %s, 't') on duplicate key update v = 'tu'", number, part)
        self._db.commit()

    def delete(self) -> None:
        """An account without money goes. Its key may come again."""
        self._run("delete from accounts where balance = 0 limit 1")
        self._db.commit()

    def _run(self, text: str, *arguments: object) -> int:
        self._cursor.execute(text, arguments or None)
        return int(self._cursor.rowcount)

    def _id(self) -> int:
        return self._random.randrange(1, ACCOUNTS + 1)

    def _wallet(self) -> str:
        i = self._id()
        return f"{chr(97 + i % 26)}{chr(97 + i % 7).upper()}é{i}"


def main(url: str, seed: int, stop: Path, pause_s: float, ddl_s: float) -> None:
    """Write until the file `stop` appears, slowly once `calm` is beside it. The schema changes every `ddl_s` seconds."""
    calm = stop.with_name("calm")
    writers = [Writer(url, number, seed) for number in range(3)]

    def write(writer: Writer) -> None:
        while not stop.exists():
            writer.step()
            time.sleep(CALM_S if calm.exists() else pause_s)

    def change() -> None:
        db = connect(url)
        for statement in DDL:
            end = time.monotonic() + ddl_s
            while time.monotonic() < end and not stop.exists():
                time.sleep(0.05)
            if stop.exists():
                return
            with contextlib.suppress(pymysql.MySQLError), db.cursor() as cursor:
                cursor.execute(statement)
                while cursor.nextset():
                    pass

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers] + [threading.Thread(target=change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(writer.transactions for writer in writers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
