"""MariaDB as a source: what its stream and its chunks hand over, on a real server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from devkit.databases import DatabaseServer, MariaDbServer
from fileio.env import default_env
from fileio.errors import InvalidConfig
from objcat.errors import PositionGone, SourceAway, SourceUnfit
from objcat.ingest.config import parse_config
from objcat.ingest.decoding import decode_column
from objcat.ingest.model import Change, ChangeKind, KeyOrder, RowChange, SchemaChanged, SourceTransaction, TableTruncated
from objcat.ingest.mysql.source import MysqlSource
from objcat.ingest.packed_row import PackedRow
from objcat.ingest.routes import Router
from objcat.ingest.sources import open_source
from tests.conftest import check_needed
from tests.effort import INTEGRATION

TYPES = """
create table t(id bigint primary key, ti tinyint, tu tinyint unsigned, bo boolean, mi mediumint, mu mediumint unsigned, bu bigint unsigned,
  de decimal(12, 2), wide decimal(60, 5), f float, d double, bi bit(1), b12 bit(12), ye year, da date, dt datetime, dt6 datetime(6),
  ts timestamp null, ts3 timestamp(3) null, tm time, tm4 time(4), ch char(5), vc varchar(40), tx text, l1 varchar(20) character set latin1,
  bn binary(6), vb varbinary(20), bl blob, en enum('a', 'b', 'ü'), se set('x', 'y', 'z'), js json, ge geometry, uu uuid, i6 inet6,
  gen bigint as (id * 2) virtual, inv int invisible default 3)
"""
ROWS = (
    """insert into t(id, ti, tu, bo, mi, mu, bu, de, wide, f, d, bi, b12, ye, da, dt, dt6, ts, ts3, tm, tm4, ch, vc, tx, l1, bn, vb, bl, en,
    se, js, ge, uu, i6) values(1, -5, 250, 1, -8388608, 16777215, 18446744073709551615, -12.30, 123456789012345678901234567890.12345, 0.1,
    0.1, b'1', b'101010101010', 2024, '2024-02-29', '2024-01-02 03:04:05', '2024-01-02 03:04:05.123456', '2024-01-02 03:04:05',
    '2024-01-02 03:04:05.120', '-12:13:14', '100:01:02.1234', 'ab  ', 'é漢😀', 'text', 'é', x'0102030000', x'00ff00', x'00ff', 'ü', 'z,x',
    '{"b": 1, "a": [1.5, null]}', ST_GeomFromText('POINT(1 2)'), '123e4567-e89b-12d3-a456-426614174000', '2001:db8::1')""",
    """insert into t(id, da, dt, ts, en, se, tm, vc)
    values(2, '0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', 'no such', '', '00:00:00', '')""",
    "insert into t(id, dt) values(3, '2024-00-05 00:00:00')",
    """insert into t(id, f, d, tm, ts)
    values(10, 0.3, 1e300, '-00:00:01', '1970-01-01 00:00:01'), (11, 3.4e38, -1.5, '838:59:59', null)""",
)


class Database:
    """A database of its own on a shared server, and sources upon it."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.name = f"shop_{secrets.token_hex(4)}"
        self._sources: list[MysqlSource] = []
        self.connection = pymysql.connect(host="127.0.0.1", port=server.port, user="objcat", autocommit=True)
        self.sql(f"create database {self.name} character set utf8mb4")
        self.sql(f"use {self.name}")
        # Such values are in old tables, and today's default refuses them.
        self.sql("set sql_mode = '', time_zone = '+00:00'")

    def sql(self, text: str) -> Sequence[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchall()

    def source(self, **settings: Any) -> MysqlSource:
        given = {"name": self.name, "kind": "mariadb", "connection": self.server.connection(), **settings}
        route = [{"tables": rf"{self.name}\.(.*)", "to": r"shop.\1"}]
        config = parse_config({"lake": {"url": "unused"}, "source": given, "route": route}, path="ingest.toml", environment={})
        made = open_source(config, Router(config), default_env())
        assert isinstance(made, MysqlSource)
        self._sources.append(made)
        made.describe_tables()
        return made

    def close(self) -> None:
        for one in self._sources:
            one.close()
        self.sql(f"drop database {self.name}")
        self.connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    check_needed("mariadb")
    with MariaDbServer() as started:
        yield started


@pytest.fixture
def database(server: MariaDbServer) -> Iterator[Database]:
    made = Database(server)
    yield made
    made.close()


def read_to_head(source: MysqlSource, position: Any) -> list[SourceTransaction]:
    """The transactions from a position to where the server is now."""
    head = source.head()
    found = []
    if source.is_reached(position, head):
        return []
    for transaction in source.transactions(position):
        found.append(transaction)
        if source.is_reached(transaction.position, head):
            return found
    raise AssertionError("the stream ended")


def changes_of(transactions: Sequence[SourceTransaction], kind: type[Any] = RowChange) -> list[Any]:
    made: list[Change] = [change for transaction in transactions for change in transaction.changes]
    return [change for change in made if isinstance(change, kind)]


def table_of(source: MysqlSource, name: str) -> Any:
    return next(table for table in source.describe_tables() if table.name.endswith(f".{name}"))


def test_chunks_and_stream_have_the_same_values_of_all_types(database: Database) -> None:
    database.sql(TYPES)
    source = database.source()
    source.check_settings()
    position = source.begin([])
    for row in ROWS:
        database.sql(row)
    table = table_of(source, "t")
    chunk = source.read_chunk(table, None, rows_max=100, order=KeyOrder.SOURCE)
    assert chunk is not None and chunk.bad == () and chunk.last is None
    transactions = read_to_head(source, position)
    changes = changes_of(transactions)
    assert [change.key for change in changes] == [(1,), (2,), (3,), (10,), (11,)]
    assert all(source.is_covered(chunk.covers, one.mark) for one in transactions)
    streamed = changes[0].table
    assert [(column.name, column.type) for column in streamed.columns] == [(column.name, column.type) for column in table.columns]
    for column in streamed.columns:
        array, bad = decode_column(column, [change.row[column.name] for change in changes])
        assert (array.to_pylist(), bad) == (chunk.rows[column.name].to_pylist(), {}), column.name
    # What becomes of values that the lake cannot have, and of those that a query would round.
    second = chunk.rows.slice(1, 1).to_pylist()[0]
    assert (second["da"], second["dt"], second["ts"], second["en"], second["se"], second["tm"]) == (None, None, None, "", "", "00:00:00")
    first = chunk.rows.slice(0, 1).to_pylist()[0]
    assert first["f"] == pa.scalar(0.1, pa.float32()).as_py() and first["bn"] == b"\1\2\3\0\0\0" and first["b12"] == b"\n\xaa"
    assert (first["bi"], first["se"], first["uu"]) == (True, "x,z", "123e4567-e89b-12d3-a456-426614174000")


PACKED_TYPES = """
create table p(id bigint unsigned, part varchar(300), ti tinyint, tu tinyint unsigned, si smallint, mi mediumint, mu mediumint unsigned,
  i int, bu bigint unsigned, de decimal(18, 9), sm decimal(5, 0), f float, d double, da date, dt datetime, dt1 datetime(1), dt6 datetime(6),
  ts timestamp null, ts3 timestamp(3) null, ch char(5), vc varchar(40), tx mediumtext, vb varbinary(20), bl blob, primary key (part, id))
"""


def test_rows_that_stay_packed_have_the_values_of_chunks(database: Database) -> None:
    database.sql(PACKED_TYPES)
    source = database.source()
    position = source.begin([])
    database.sql(
        """insert into p values(18446744073709551615, 'é', -5, 250, -300, -8388608, 16777215, -1, 18446744073709551615,
        -123456789.123456789, -99999, 0.1, 0.1, '2024-02-29', '2024-01-02 03:04:05', '2024-01-02 03:04:05.7',
        '9999-12-31 23:59:59.999999', '2024-01-02 03:04:05',
        '2024-01-02 03:04:05.120', 'ab  ', 'é漢😀', repeat('t', 70000), x'00ff00', x'00ff')"""
    )
    database.sql("insert into p(id, part, da, dt, ts, de, vc) values(1, '', '0000-00-00', '0000-00-00 00:00:00', 0, 0, '')")
    database.sql("insert into p(id, part) values(2, 'x'), (3, 'x')")
    database.sql("update p set id = 4, de = 1.5, tx = '' where id = 3")
    database.sql("update p set tx = null, i = 7 where part = 'é'")
    database.sql("delete from p where id = 2")
    chunk = source.read_chunk(table_of(source, "p"), None, rows_max=100, order=KeyOrder.SOURCE)
    changes = changes_of(read_to_head(source, position))
    assert chunk is not None and all(isinstance(change.row, PackedRow) for change in changes)
    assert [change.old_key for change in changes if change.old_key] == [("x", 3)]
    rows = {change.key: change.row for change in changes if change.kind is not ChangeKind.DELETE}
    del rows["x", 2], rows["x", 3]
    wanted = {(row["part"], int(row["id"])): row for row in chunk.rows.to_pylist()}
    assert rows.keys() == wanted.keys() and len(rows) == 3
    table = changes[0].table
    together = type(changes[0].row).read_columns(table, list(rows.values()))
    for column in table.columns:
        array, bad = decode_column(column, together[column.name])
        assert (array.to_pylist(), bad) == ([wanted[key][column.name] for key in rows], {}), column.name


def test_a_transaction_is_whole_and_in_the_order_of_its_changes(database: Database) -> None:
    database.sql("create table a(id int primary key, v varchar(9))")
    database.sql("create table b(id int primary key, v varchar(9))")
    source = database.source()
    position = source.begin([])
    database.sql("begin")
    for text in ("insert into a values (1, 'x')", "insert into b values (1, 'y')", "update a set id = 2 where id = 1"):
        database.sql(text)
    database.sql("savepoint s")
    database.sql("insert into b values (7, 'never')")
    database.sql("rollback to s")
    database.sql("delete from b")
    database.sql("commit")
    database.sql("begin")
    database.sql("insert into a values (3, 'never')")
    database.sql("rollback")
    transactions = [one for one in read_to_head(source, position) if one.count]
    assert len(transactions) == 1
    found = [(one.table.name[-1], one.kind, one.key, one.old_key) for one in changes_of(transactions)]
    assert found == [
        ("a", ChangeKind.INSERT, (1,), None),
        ("b", ChangeKind.INSERT, (1,), None),
        ("a", ChangeKind.UPDATE, (2,), (1,)),
        ("b", ChangeKind.DELETE, (1,), None),
    ]
    assert transactions[0].committed_at_ms is not None


def test_schema_changes_come_where_they_happened(database: Database) -> None:
    database.sql("create table t(id int primary key, v varchar(9), e enum('a', 'b'))")
    source = database.source()
    stream = source.transactions(source.begin([]))

    def after(statement: str) -> list[Any]:
        """What the stream has for a statement, in short."""
        database.sql(statement)
        head, found = source.head(), list[Any]()
        for transaction in stream:
            for change in transaction.changes:
                match change:
                    case RowChange():
                        found.append(dict(change.row or {}))
                    case TableTruncated():
                        found.append("truncated")
                    case SchemaChanged():
                        types = {column.name: str(column.type) for column in change.table.columns}
                        defaults = dict(change.defaults)
                        found.append((change.table.name.split(".")[1], types, defaults, change.needs_snapshot))
            if source.is_reached(transaction.position, head):
                return found
        raise AssertionError("the stream ended")

    old = {"id": "int32", "v": "string", "e": "string"}
    new = {**old, "n": "int32", "m": "string"}
    assert after("insert into t values (1, 'x', 'a')") == [("t", old, {}, False), {"id": 1, "v": "x", "e": "a"}]
    assert after("alter table t add column n int default 7, add column m varchar(5)") == [("t", new, {"n": 7, "m": None}, False)]
    assert after("insert into t values (2, 'y', 'b', 8, null)") == [
        ("t", new, {}, False),
        {"id": 2, "v": "y", "e": "b", "n": 8, "m": None},
    ]
    assert after("alter table t modify v varchar(20), modify e enum('a', 'b', 'c')") == [("t", new, {}, False)]
    assert after("delete from t where id = 2")[0] == ("t", new, {}, False)
    assert after("alter table t modify n tinyint")[0][3] is True
    # What a column was before is not known without rows, so the table is read again.
    assert after("alter table t modify v varchar(30)")[0][3] is True
    assert after("alter table t drop column m")[0][3] is False
    assert after("truncate table t") == ["truncated"]
    assert after("flush binary logs") == []
    assert after("optimize table t") == []
    assert after("insert into t values (4, 'z', 'c', 8)")[1] == {"id": 4, "v": "z", "e": "c", "n": 8}
    assert after("create table u(id int primary key)")[0][:1] == ("u",)
    renamed = after("rename table t to old, u to t")
    assert [(one[0], one[3]) for one in renamed] == [("old", True), ("t", True)]


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("k int", ["(3)", "(-1)", "(20)"]),
        ("k varchar(9)", ["('b')", "('A')", "('a ')", "('ä')", "('C')", "('😀')", "('\uff5e')"]),
        ("k varchar(9) character set latin1 collate latin1_german1_ci", ["('b')", "('Ä')", "('C')", "('ß')"]),
        ("k decimal(6, 2)", ["(10)", "(9.5)", "(-3.25)"]),
        ("k datetime(3)", ["('2024-01-02 03:04:05.5')", "('1999-12-31')", "('2024-01-02 03:04:05.25')"]),
        ("k binary(3)", ["(x'00ff')", "(x'ff')", "(x'0a0b0c')"]),
        ("k enum('z', 'a')", ["('z')", "('a')"]),
        ("k uuid", ["('123e4567-e89b-12d3-a456-426614174000')", "('00000000-0000-0000-0000-0000000000ff')"]),
        ("k varchar(9), l int, primary key (k, l)", ["('b', 2)", "('B', 10)", "('a', 3)", "('c', 1)"]),
        ("l int, k bigint unsigned, primary key (k, l)", ["(1, 18446744073709551615)", "(-1, 18446744073709551615)", "(1, 5)"]),
    ],
)
@pytest.mark.parametrize("order", KeyOrder)
def test_chunks_meet_and_keys_are_placed_as_the_server_orders_them(
    database: Database, columns: str, values: list[str], order: KeyOrder
) -> None:
    key = "" if "primary" in columns else ", primary key (k)"
    database.sql(f"create table t({columns}{key}) character set utf8mb4")
    for value in values:
        database.sql(f"insert ignore into t values {value}")
    source = database.source()
    position = source.begin([])
    table = table_of(source, "t")
    chunks = []
    after = None
    while True:
        chunk = source.read_chunk(table, after, rows_max=1, order=order)
        assert chunk is not None
        chunks.append(chunk)
        after = chunk.last
        if after is None:
            break
    rows = [row for chunk in chunks for row in chunk.rows.to_pylist()]
    assert len(rows) == database.sql("select count(*) from t")[0][0]
    if order is KeyOrder.BYTES:
        kept = [tuple(row[name].encode() if isinstance(row[name], str) else row[name] for name in table.key) for row in rows]
        assert kept == sorted(kept)
    # The stream has the same keys, and each falls where the chunk that has it ends.
    database.sql("delete from t")
    keys = [change.key for change in changes_of(read_to_head(source, position))]
    bounds = [chunk.last for chunk in chunks if chunk.last is not None]
    assert set(bounds) <= set(keys) and len(keys) == len(rows)
    placed = dict(zip(keys, source.place_keys(table, keys, bounds, order=order), strict=True))
    assert [placed[bound] for bound in bounds] == list(range(len(bounds)))
    # Rows as they are now are found by such keys.
    for value in values:
        database.sql(f"insert ignore into t values {value}")
    assert set(source.fetch_rows(table, keys, list(table.key))) == set(keys)


def test_a_chunk_says_what_it_has_seen(database: Database) -> None:
    database.sql("create table t(id int primary key)")
    source = database.source()
    position = source.begin([])
    database.sql("insert into t values (1)")
    chunk = source.read_chunk(table_of(source, "t"), None, rows_max=9, order=KeyOrder.SOURCE)
    database.sql("insert into t values (2)")
    assert chunk is not None and chunk.rows["id"].to_pylist() == [1]
    before, after = (one for one in read_to_head(source, position) if one.mark)
    assert source.is_covered(chunk.covers, before.mark) and not source.is_covered(chunk.covers, after.mark)
    assert source.is_reached(before.position, chunk.until) and not source.is_reached(position, chunk.until)
    assert source.unsettled([before.mark, after.mark, "0-1-999999"]) == ["0-1-999999"]


def test_a_large_chunk_ends_early(database: Database) -> None:
    database.sql("create table t(id int primary key, v longtext)")
    for number in range(3):
        database.sql(f"insert into t values ({number}, repeat('x', 2000))")
    source = database.source()
    source._chunks._bytes_max = 1000
    chunk = source.read_chunk(table_of(source, "t"), None, rows_max=9, order=KeyOrder.SOURCE)
    assert chunk is not None and chunk.last == (2,)


@pytest.mark.parametrize("setting", ["binlog_row_image=MINIMAL", "binlog_row_metadata=NO_LOG", "binlog_format=STATEMENT"])
def test_a_server_that_cannot_be_followed_is_told_how(database: Database, setting: str) -> None:
    name, value = setting.split("=")
    before = database.sql(f"select @@global.{name}")[0][0]
    database.sql(f"set global {name} = {value}")
    try:
        with pytest.raises(SourceUnfit, match=f"{name} is {value}, and has to be"):
            database.source().check_settings()
    finally:
        database.sql(f"set global {name} = {before}")


def test_a_replica_whose_binlog_lacks_what_it_takes_over_is_refused(database: Database) -> None:
    assert database.sql("select @@log_slave_updates")[0][0] == 0
    database.source().check_settings()
    database.sql("change master 'other' to master_host = '127.0.0.1'")
    try:
        with pytest.raises(SourceUnfit, match=r"a replica, and log_slave_updates is OFF.*Set log_slave_updates = ON"):
            database.source().check_settings()
    finally:
        database.sql("reset slave 'other' all")
    database.sql("create or replace user watcher@'127.0.0.1'")
    database.sql("grant select, replication slave, binlog monitor on *.* to watcher@'127.0.0.1'")
    database.source(connection=database.server.connection().replace("objcat@", "watcher@")).check_settings()


def test_rights_and_passwords(database: Database) -> None:
    database.sql("create or replace user reader@'127.0.0.1' identified by 'p@ss/word'")
    connection = database.server.connection().replace("objcat@", "reader:p%40ss%2Fword@")
    with pytest.raises(SourceUnfit, match="REPLICATION SLAVE"):
        database.source(connection=connection).check_settings()
    database.sql("grant select, replication slave, binlog monitor, slave monitor on *.* to reader@'127.0.0.1'")
    source = database.source(connection=connection)
    source.check_settings()
    database.sql("create table t(id int primary key)")
    position = source.begin([])
    database.sql("insert into t values (1)")
    assert len(changes_of(read_to_head(source, position))) == 1
    assert source.report().behind_bytes == 0
    with pytest.raises(SourceUnfit) as wrong:
        database.source(connection=connection.replace("word", "wort"))
    assert "wort" not in str(wrong.value) and "Access denied for user 'reader'@'127.0.0.1'. Correct `connection` in" in str(wrong.value)
    with pytest.raises(InvalidConfig, match="mysql://user:password@host:port"):
        database.source(connection="host=secret-host")


def test_tables_that_cannot_be_followed_say_why(database: Database) -> None:
    database.sql("create table old(id int primary key) engine=myisam")
    database.sql("create table plain(v int)")
    database.sql("create table other(a int not null, b int, unique key (b), unique key (a))")
    database.sql("create view v as select * from plain")
    found = {table.name.split(".")[1]: table for table in database.source().describe_tables() if table.name.startswith(database.name)}
    assert found.keys() == {"old", "plain", "other"}
    assert "ENGINE=InnoDB" in (found["old"].problem or "") and found["plain"].key == () and found["other"].key == ("a",)


def test_a_second_reader_takes_the_place_of_the_first(database: Database) -> None:
    database.sql("create table t(id int primary key)")
    first, second = database.source(), database.source()
    position = first.begin([])
    database.sql("insert into t values (1)")
    stream = first.transactions(position)
    assert next(stream).count
    assert len(changes_of(read_to_head(second, position))) == 1
    with pytest.raises(SourceAway, match=r"Another reader of the server of .* has the server_id \d+. If it is this ingest once more, end"):
        for _ in stream:
            pass


@INTEGRATION
def test_what_was_purged_is_told_and_never_left_out() -> None:
    check_needed("mariadb")
    with MariaDbServer() as server:
        database = Database(server)
        database.sql("create table t(id int primary key)")
        source = database.source()
        beginning, position = {"gtids": ""}, source.begin([])
        database.sql("insert into t values (1)")
        database.sql("flush binary logs")
        database.sql("insert into t values (2)")
        database.sql("flush binary logs")
        newest = database.sql("show binary logs")[-1][0]
        end_s = time.monotonic() + 60
        while len(database.sql("show binary logs")) > 1:
            # A file that a crash would need is not removed yet.
            assert time.monotonic() < end_s
            database.sql(f"purge binary logs to '{newest}'")
        for gone in (position, beginning):
            with pytest.raises(PositionGone, match="resnapshot"):
                next(source.transactions(gone))
        assert changes_of(read_to_head(source, source.begin([]))) == []
        database.close()


@INTEGRATION
def test_a_replica_that_takes_over_goes_on_at_the_same_position() -> None:
    check_needed("mariadb")
    with MariaDbServer() as primary, MariaDbServer(**{"server-id": "2", "log-slave-updates": "1"}) as replica:
        database = Database(primary)
        database.sql("create table t(id int primary key)")
        standby = pymysql.connect(host="127.0.0.1", port=replica.port, user="objcat", autocommit=True)
        cursor = standby.cursor()
        # Users were made before the binlog was on; what follows is in it.
        cursor.execute(
            f"change master to master_host = '127.0.0.1', master_port = {primary.port}, master_user = 'objcat', master_use_gtid = slave_pos"
        )
        cursor.execute("start slave")
        source = database.source()
        position = source.begin([])
        database.sql("insert into t values (1)")
        read = read_to_head(source, position)
        cursor.execute("select master_gtid_wait(%s, 30)", (read[-1].position["gtids"],))
        cursor.execute("stop slave")
        cursor.execute(f"insert into {database.name}.t values (2)")
        second = database.source(connection=replica.connection())
        assert [one.key for one in changes_of(read_to_head(second, read[-1].position))] == [(2,)]
        # What the old server alone has is no longer there.
        database.sql("insert into t values (3)")
        ahead = read_to_head(source, position)[-1].position
        database.sql("insert into t values (4)")
        ahead = read_to_head(source, ahead)[-1].position
        with pytest.raises(PositionGone):
            next(second.transactions(ahead))
        standby.close()
        database.close()


def test_the_stream_ends_when_it_is_closed(database: Database) -> None:
    database.sql("create table t(id int primary key)")
    source = database.source()
    stream = source.transactions(source.begin([]))
    assert next(stream).count == 0  # A sign of life.
    source.close()
    assert list(stream) == []
