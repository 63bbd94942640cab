"""Writers of a shop in PostgreSQL that Debezium follows: what changes rows and sends no event of it is left out."""

from __future__ import annotations

import sys
from functools import partial

import psycopg2

from tests.ingest.load import SCHEMA, START_SUM, PostgresWriter, change
from tests.ingest.writers import write

__all__ = ["SCHEMA", "START_SUM"]

DDL = (
    "alter table wallets add column extra text",
    "truncate scratch",
    "alter table scratch add column w numeric(6, 2)",
    "alter table accounts drop column ok",
    "truncate scratch",
)

if __name__ == "__main__":
    changing = psycopg2.connect(sys.argv[1])
    changing.autocommit = True
    write(PostgresWriter, partial(psycopg2.connect, sys.argv[1]), partial(change, changing), DDL, sys.argv[2:])
