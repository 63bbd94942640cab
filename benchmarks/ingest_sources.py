"""The databases that `./dev bench ingest` follows: a table of orders, changes of it, and what both sides must hold in the end."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pymysql.constants import CLIENT

import objcat
from devkit.databases import DatabaseServer, MariaDbServer, PostgresServer

COLUMNS = ("id", "customer", "status", "total", "ordered_at", "comment", "version")
FILLED_AT_ONCE = 500_000
"""Rows that one statement makes."""
CHANGES_OF_TRANSACTION = 10
"""Seven updates, two inserts and a delete."""
CONFIG = """\
[lake]
url = "{lake}"

[source]
name = "{name}"
kind = "{kind}"
connection = "${{BENCH_SOURCE}}"
{source}

[[route]]
tables = '{tables}'
to = 'shop.\\1'
{profiles}
"""


class BenchSource(ABC):
    """A database with a table `orders`. A context manager. For one thread.

    Attributes:
        kind: of the source, as the configuration names it.
    """

    kind: str
    _digest: str

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._connection: Any = None
        self._rows = 0
        self._transactions = 0

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._connection = self._connect()
        self._prepare()
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._server.__exit__()

    @property
    def environment(self) -> dict[str, str]:
        """What the configuration reads from the environment."""
        return {"BENCH_SOURCE": self.url}

    @property
    @abstractmethod
    def url(self) -> str:
        """How `objcat ingest` connects."""

    @property
    def port(self) -> int:
        """Where the server is, on loopback."""
        return self._server.port

    @property
    def rows(self) -> int:
        """Rows that `fill` made."""
        return self._rows

    def configure(self, folder: Path, name: str, *, profiles: str = "", tables: str = "") -> Path:
        """Write the configuration of an ingest into a new lake below a folder.

        Args:
            folder: for the file and the lake.
            name: of the source, one for each lake.
            profiles: text of TOML that comes after the route, such as `[profile.database]`.
            tables: a regular expression for the table names; all when empty.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "ingest.toml"
        said = {"lake": folder / "lake", "name": name, "kind": self.kind, "source": self._source_lines(name), "profiles": profiles}
        path.write_text(CONFIG.format(**said, tables=f"{self._schema}\\.({tables or '.*'})"))
        return path

    def fill(self, rows: int) -> None:
        """Make the table anew with so many rows."""
        self._make_table()
        for start in range(1, rows + 1, FILLED_AT_ONCE):
            self._insert(start, min(start + FILLED_AT_ONCE - 1, rows))
        self._rows, self._transactions = rows, 0
        self._analyze()

    @abstractmethod
    def change(self, count: int) -> None:
        """Make so many changes, in transactions of `CHANGES_OF_TRANSACTION`."""

    def change_all(self) -> None:
        """Change every row, in one transaction."""
        self.run("update orders set status = 'held', total = total + 1")

    def run(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement. Returns its rows."""
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall()) if cursor.description else []

    def digest(self) -> tuple[int, ...]:
        """Numbers that tell the rows of the table."""
        return tuple(int(value or 0) for value in self.run(f"select {self._digest} from orders")[0])

    def cpu_s(self) -> float:
        """CPU seconds of the server so far, with all its processes."""
        return tree_cpu_s(self._server.pid)

    @abstractmethod
    def forget(self, name: str) -> None:
        """The ingest of that name is over: the server need not keep anything for it."""

    # ---- for the kinds

    _schema: str

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _make_table(self) -> None: ...

    @abstractmethod
    def _insert(self, first: int, last: int) -> None: ...

    @abstractmethod
    def _analyze(self) -> None: ...

    def _source_lines(self, name: str) -> str:  # noqa: ARG002 - of some kinds
        return ""


class PostgresBench(BenchSource):
    """PostgreSQL."""

    kind = "postgres"
    _schema = "public"
    _digest = (
        "count(*), sum(id), sum(customer::bigint), sum(id % 1009 * (total * 100)::bigint), sum(length(comment) * (id % 1013)), "
        "sum(length(status) + version % 17), sum(extract(epoch from ordered_at)::bigint % 100003 * (id % 11))"
    )

    def __init__(self) -> None:
        super().__init__(PostgresServer(shared_buffers="256MB", max_wal_size="8GB", checkpoint_timeout="30min", wal_sender_timeout="0"))

    @property
    def url(self) -> str:
        """See `BenchSource`."""
        return self._server.connection()

    def change(self, count: int) -> None:
        """See `BenchSource`."""
        transactions = count // CHANGES_OF_TRANSACTION
        self.run(
            f"""do $$ declare changed bigint; fresh bigint; begin
            for n in {self._transactions + 1}..{self._transactions + transactions} loop
              fresh := {self._rows} + 2 * n;
              for k in 1..7 loop
                changed := (n::bigint * 7919 + k * 104729) % {self._rows} + 1;
                update orders set status = 'paid', total = total + 0.01, ordered_at = ordered_at + interval '1 second',
                  version = n where id = changed;
                if not found then
                  insert into orders values (changed, k, 'again', n, timestamp '2025-01-01 00:00:00' + n * interval '1 second', 'again', n);
                end if;
              end loop;
              insert into orders values (fresh, 1, 'new', n, timestamp '2025-01-01 00:00:00', 'a new order of number ' || fresh, n);
              insert into orders values (fresh + 1, 2, 'new', n, timestamp '2025-01-01 00:00:00', null, n);
              delete from orders where id = case when n % 2 = 0 then fresh - 2 else (n::bigint * 15485863) % {self._rows} + 1 end;
              commit;
            end loop; end $$"""
        )
        self._transactions += transactions

    def forget(self, name: str) -> None:
        """See `BenchSource`."""
        self.run(f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{_slot(name)}'")
        self.run(f"drop publication if exists {_slot(name)}")
        self.run("checkpoint")

    def _connect(self) -> Any:
        opened = psycopg2.connect(self.url)
        opened.autocommit = True
        return opened

    def _prepare(self) -> None:
        """Nothing."""

    def _make_table(self) -> None:
        self.run("drop table if exists orders")
        self.run(
            "create table orders(id bigint primary key, customer integer not null, status varchar(12) not null, "
            "total numeric(12, 2) not null, ordered_at timestamp not null, comment varchar(80), version bigint not null)"
        )

    def _insert(self, first: int, last: int) -> None:
        self.run(
            "insert into orders select i, i % 150000, (array['open', 'paid', 'sent', 'done'])[i % 4 + 1], (i % 90000) / 7.0, "
            "timestamp '2024-01-01 00:00:00' + i * interval '1 second', 'order ' || i || ' of a customer who wants it soon, or sooner', "
            "i - 10000000000 "
            f"from generate_series({first}, {last}) i"
        )

    def _analyze(self) -> None:
        self.run("vacuum analyze orders")
        self.run("checkpoint")

    def _source_lines(self, name: str) -> str:
        return f'slot = "{_slot(name)}"\npublication = "{_slot(name)}"'


class MariaBench(BenchSource):
    """MariaDB."""

    kind = "mariadb"
    _schema = "bench"
    _digest = (
        "count(*), sum(id), sum(customer), sum(id % 1009 * cast(total * 100 as signed)), sum(char_length(comment) * (id % 1013)), "
        "sum(char_length(status) + version % 17), sum(timestampdiff(second, '1970-01-01', ordered_at) % 100003 * (id % 11))"
    )

    def __init__(self) -> None:
        super().__init__(MariaDbServer(**{"innodb-buffer-pool-size": "768M", "innodb-log-file-size": "1G"}))

    @property
    def url(self) -> str:
        """See `BenchSource`."""
        return self._server.connection()

    def change(self, count: int) -> None:
        """See `BenchSource`."""
        transactions = count // CHANGES_OF_TRANSACTION
        self.run(f"call bench.change_orders({self._transactions + 1}, {self._transactions + transactions}, {self._rows})")
        self._transactions += transactions

    def forget(self, name: str) -> None:
        """See `BenchSource`. The server keeps its binlog as long as it likes."""
        del name
        self.run("flush binary logs")
        last = self.run("show binary logs")[-1][0]
        self.run(f"purge binary logs to '{last}'")

    def _connect(self) -> Any:
        return connect_mariadb(self._server.port)

    def _prepare(self) -> None:
        self.run("create database bench character set utf8mb4")
        self._connection.select_db("bench")
        self.run("set session time_zone = '+00:00', sql_mode = 'NO_UNSIGNED_SUBTRACTION'")
        self.run(
            """create procedure change_orders(first_number bigint, last_number bigint, filled bigint)
            begin
              declare n bigint default first_number;
              declare k int;
              declare fresh, changed bigint;
              while n <= last_number do
                set fresh = filled + 2 * n, k = 1;
                start transaction;
                while k <= 7 do
                  set changed = (n * 7919 + k * 104729) % filled + 1;
                  update orders set status = 'paid', total = total + 0.01, ordered_at = ordered_at + interval 1 second,
                    version = n where id = changed;
                  if row_count() = 0 then
                    insert into orders values (changed, k, 'again', n, timestamp '2025-01-01 00:00:00' + interval n second, 'again', n);
                  end if;
                  set k = k + 1;
                end while;
                insert into orders values (fresh, 1, 'new', n, timestamp '2025-01-01 00:00:00', concat('a new order of number ', fresh), n);
                insert into orders values (fresh + 1, 2, 'new', n, timestamp '2025-01-01 00:00:00', null, n);
                delete from orders where id = if(n % 2 = 0, fresh - 2, (n * 15485863) % filled + 1);
                commit;
                set n = n + 1;
              end while;
            end"""
        )

    def _make_table(self) -> None:
        self.run("drop table if exists orders")
        self.run(
            "create table orders(id bigint primary key, customer int not null, status varchar(12) not null, "
            "total decimal(12, 2) not null, ordered_at datetime not null, comment varchar(80), version bigint not null)"
        )

    def _insert(self, first: int, last: int) -> None:
        # Rows that a snapshot reads need not be in the binlog.
        self.run("set session sql_log_bin = 0")
        self.run(
            "insert into orders select seq, seq % 150000, elt(seq % 4 + 1, 'open', 'paid', 'sent', 'done'), (seq % 90000) / 7, "
            "timestamp '2024-01-01 00:00:00' + interval seq second, concat('order ', seq, ' of a customer who wants it soon, or sooner'), "
            "cast(seq as signed) - 10000000000 "
            f"from seq_{first}_to_{last}"
        )
        self.run("set session sql_log_bin = 1")

    def _analyze(self) -> None:
        self.run("analyze no_write_to_binlog table orders")


SOURCES: Mapping[str, type[PostgresBench | MariaBench]] = {"postgres": PostgresBench, "mariadb": MariaBench}


def connect_mariadb(port: int, database: str | None = None) -> Any:
    """A session of MariaDB that takes several statements at once."""
    return pymysql.connect(
        host="127.0.0.1", port=port, user="objcat", database=database, autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS
    )


def lake_digest(lake: str | Path, table: str = "shop.orders") -> tuple[int, ...]:
    """The numbers of `BenchSource.digest`, of the table in the lake."""
    totals = [0] * 7
    for batch in objcat.connect(str(lake)).table(table).scan(columns=list(COLUMNS)).to_batches():
        for place, value in enumerate(_digest_of(batch)):
            totals[place] += value
    return tuple(totals)


def _digest_of(batch: pa.RecordBatch) -> Sequence[int]:
    ids = batch["id"]
    cents = pc.cast(pc.multiply(pc.cast(batch["total"], pa.decimal128(14, 2)), pa.scalar(Decimal(100))), pa.int64())
    seconds = pc.cast(pc.cast(batch["ordered_at"], pa.timestamp("s"), safe=False), pa.int64())
    return (
        batch.num_rows,
        _sum(ids),
        _sum(pc.cast(batch["customer"], pa.int64())),
        _sum(pc.multiply(_modulo(ids, 1009), cents)),
        _sum(pc.multiply(pc.cast(pc.utf8_length(batch["comment"]), pa.int64()), _modulo(ids, 1013))),
        _sum(pc.add(pc.cast(pc.utf8_length(batch["status"]), pa.int64()), _modulo(batch["version"], 17))),
        _sum(pc.multiply(_modulo(seconds, 100003), _modulo(ids, 11))),
    )


def _modulo(values: pa.Array, by: int) -> pa.Array:
    return pc.subtract(values, pc.multiply(pc.divide(values, by), by))


def _sum(values: pa.Array) -> int:
    return int(pc.sum(values).as_py() or 0)


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, of its children, and of those of them that have ended."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                spent = one.cpu_times()
                total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


def _slot(name: str) -> str:
    return name.replace("-", "_")
