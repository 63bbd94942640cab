"""Writers of a shop in MySQL: those of MariaDB, and tables that are filled without its sequences."""

from __future__ import annotations

import re
import sys
from functools import partial

from tests.ingest import maria_load
from tests.ingest.maria_load import DDL, START_SUM, MariaWriter, change, connect
from tests.ingest.writers import ACCOUNTS, write

__all__ = ["SCHEMA", "START_SUM"]

NUMBERS = "(with recursive numbers(seq) as (select 1 union all select seq + 1 from numbers where seq < {0}) select seq from numbers) s"
SCHEMA = re.sub(r"seq_1_to_(\d+)", lambda found: NUMBERS.format(found[1]), maria_load.SCHEMA)
SCHEMA = SCHEMA.replace("md5(seq)", "left(sha2(seq, 256), 32)")  # MySQL 9 has no md5 any more.
assert str(ACCOUNTS) in SCHEMA

if __name__ == "__main__":
    write(MariaWriter, partial(connect, sys.argv[1]), partial(change, connect(sys.argv[1])), DDL, sys.argv[2:])
