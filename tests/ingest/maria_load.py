"""Writers of a shop in MariaDB."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pymysql

from tests.ingest.writers import ACCOUNTS, START_SUM, Writer, write

__all__ = ["SCHEMA", "START_SUM"]

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


class MariaWriter(Writer):
    """A writer by PyMySQL."""

    error = pymysql.MySQLError
    touch = "update accounts set balance = balance - %s, seen = now(6) where id = %s"
    rewrite_row = "update accounts set bio = repeat(%s, 2000), tags = if(tags = '', 'y', '') where id = %s"
    append = "update accounts set owner = left(concat(owner, 's'), 40) where id = %s"
    note = "update wallets set note = concat(left(note, 20), %s) where id > %s and id < %s"
    put = "insert into scratch(id, part, v) values (%s, %s, 't') on duplicate key update v = 'tu'"
    delete_empty = "delete from accounts where balance = 0 limit 1"


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


def change(db: Any, statement: str) -> None:
    """Run statements that another session may stop by a deadlock."""
    with contextlib.suppress(pymysql.MySQLError), db.cursor() as cursor:
        cursor.execute(statement)
        while cursor.nextset():
            pass


if __name__ == "__main__":
    write(MariaWriter, partial(connect, sys.argv[1]), partial(change, connect(sys.argv[1])), DDL, sys.argv[2:])
