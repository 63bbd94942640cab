"""Writers of a shop in PostgreSQL."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Any

import psycopg2

from tests.ingest.writers import ACCOUNTS, START_SUM, Writer, write

__all__ = ["SCHEMA", "START_SUM"]

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


class PostgresWriter(Writer):
    """A writer by psycopg2."""

    error = psycopg2.Error
    touch = "update accounts set balance = balance - %s, seen = now() where id = %s"
    rewrite_row = "update accounts set bio = repeat(%s, 2000) where id = %s"
    append = "update accounts set owner = owner || 's' where id = %s"
    note = "update wallets set note = left(note, 20) || %s where id > %s and id < %s"
    put = "insert into scratch(id, part, v) values (%s, %s, 't') on conflict (id, part) do update set v = excluded.v || 'u'"
    delete_empty = "delete from accounts where id = (select id from accounts where balance = 0 limit 1)"


def change(db: Any, statement: str) -> None:
    """Run a statement that another session may stop by a deadlock."""
    with contextlib.suppress(psycopg2.errors.DeadlockDetected), db.cursor() as cursor:
        cursor.execute(statement)


if __name__ == "__main__":
    changing = psycopg2.connect(sys.argv[1])
    changing.autocommit = True
    write(PostgresWriter, partial(psycopg2.connect, sys.argv[1]), partial(change, changing), DDL, sys.argv[2:])
