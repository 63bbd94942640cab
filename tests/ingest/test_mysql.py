"""MySQL followed into a lake, on a real server: the scenarios of MariaDB, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from devkit import mysql_server
from devkit.mysql_server import MySqlServer
from objcat.errors import IngestStopped, SourceUnfit
from objcat.ingest.decoding import decode_column
from objcat.ingest.model import KeyOrder, SchemaChanged
from objcat.ingest.mysql.source import MysqlSource
from objcat.ingest.requests import add_request
from tests.effort import ALL
from tests.ingest import mysql_load
from tests.ingest import test_mariadb as tables
from tests.ingest import test_mariadb_failures as failures
from tests.ingest import test_mariadb_source as sources
from tests.ingest.killing import killed_run
from tests.ingest.maria_shop import MariaShop
from tests.ingest.test_mariadb_source import Database, changes_of, read_to_head, table_of

TYPES = """
create table t(id bigint primary key, ti tinyint, tu tinyint unsigned, bo boolean, mi mediumint, mu mediumint unsigned, bu bigint unsigned,
  de decimal(12, 2), wide decimal(60, 5), f float, d double, bi bit(1), b12 bit(12), ye year, da date, dt datetime, dt6 datetime(6),
  ts timestamp null, ts3 timestamp(3) null, tm time, tm4 time(4), ch char(5), vc varchar(40), tx text, l1 varchar(20) character set latin1,
  bn binary(6), vb varbinary(20), bl blob, en enum('a', 'b', 'ü'), se set('x', 'y', 'z'), js json, ge geometry,
  gen bigint as (id * 2) virtual, inv int default 3 invisible)
"""
ROWS = (
    """insert into t(id, ti, tu, bo, mi, mu, bu, de, wide, f, d, bi, b12, ye, da, dt, dt6, ts, ts3, tm, tm4, ch, vc, tx, l1, bn, vb, bl, en,
    se, js, ge) values(1, -5, 250, 1, -8388608, 16777215, 18446744073709551615, -12.30, 123456789012345678901234567890.12345, 0.1,
    0.1, b'1', b'101010101010', 2024, '2024-02-29', '2024-01-02 03:04:05', '2024-01-02 03:04:05.123456', '2024-01-02 03:04:05',
    '2024-01-02 03:04:05.120', '-12:13:14', '100:01:02.1234', 'ab  ', 'é漢😀', 'text', 'é', x'0102030000', x'00ff00', x'00ff', 'ü', 'z,x',
    '{"b": 1, "a": [1.5, null]}', ST_GeomFromText('POINT(1 2)'))""",
    """insert into t(id, da, dt, ts, en, se, tm, vc)
    values(2, '0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', 'no such', '', '00:00:00', '')""",
    "insert into t(id, dt) values(3, '2024-00-05 00:00:00')",
    """insert into t(id, f, d, tm, ts)
    values(10, 0.3, 1e300, '-00:00:01', '1970-01-01 00:00:01'), (11, 3.4e38, -1.5, '838:59:59', null)""",
)
DOCUMENTS = (
    "'null'", "'[]'", "'{}'", "'\"é漢😀\\\\n\"'", "'-9223372036854775808'", "'18446744073709551615'", "'1e300'", "'0.1'", "'1.0'", "'true'",
    "'{\"long key\": 1, \"k\": [true, false, {\"x\": \"y\"}], \"\": null}'", "json_object('d', cast(1.10 as decimal(5, 2)))",
    "json_object('t', cast('2024-01-02 03:04:05.5' as datetime(6)), 'd', date '2024-02-29', 'u', time '-12:13:14')",
    "concat('[', repeat('\"0123456789\",', 9000), '1]')", "json_array(cast(x'00ff' as binary))",
    "cast(date '2024-02-29' as json)", "cast(time '100:00:01' as json)", "cast(1.10 as json)", "null",
)  # fmt: skip
"""Documents as SQL. The binlog has them in a form of its own, and a query as text."""


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySqlServer]:
    if mysql_server.mysql_folder() is None:
        pytest.skip(f"MySQL {mysql_server.VERSION} cannot be had on this machine")
    with MySqlServer() as started:
        yield started


@pytest.fixture
def database(mysql: MySqlServer) -> Iterator[Database]:
    made = Database(mysql)
    yield made
    made.close()


@pytest.fixture
def shop(mysql: MySqlServer, tmp_path: Path) -> Iterator[MariaShop]:
    made = MariaShop(mysql, tmp_path)
    yield made
    made.close()


@pytest.fixture
def items(shop: MariaShop) -> MariaShop:
    shop.sql("create table t(id int primary key, v varchar(9)); create table u(id int primary key, at date)")
    shop.sql(failures.NEW_ROWS)
    return shop


def test_chunks_and_stream_have_the_same_values_of_all_types(database: Database) -> None:
    database.sql(TYPES)
    source = database.source(kind="mysql")
    source.check_settings()
    position = source.begin([])
    for row in ROWS:
        database.sql(row)
    table = table_of(source, "t")
    chunk = source.read_chunk(table, None, rows_max=100, order=KeyOrder.SOURCE)
    assert chunk is not None and chunk.bad == () and chunk.last is None
    changes = changes_of(read_to_head(source, position))
    assert [change.key for change in changes] == [(1,), (2,), (3,), (10,), (11,)]
    streamed = changes[0].table
    assert [(column.name, column.type) for column in streamed.columns] == [(column.name, column.type) for column in table.columns]
    for column in streamed.columns:
        array, bad = decode_column(column, [change.row[column.name] for change in changes])
        assert (array.to_pylist(), bad) == (chunk.rows[column.name].to_pylist(), {}), column.name
    first, second = chunk.rows.slice(0, 2).to_pylist()
    assert first["f"] == pa.scalar(0.1, pa.float32()).as_py() and first["bn"] == b"\1\2\3\0\0\0" and first["b12"] == b"\n\xaa"
    assert (first["bi"], first["se"], first["vc"]) == (True, "x,z", "é漢😀")
    assert (second["da"], second["dt"], second["ts"], second["en"], second["se"]) == (None, None, None, "", "")


def test_documents_are_the_same_from_both_sides(database: Database) -> None:
    database.sql("create table t(id int primary key, js json)")
    source = database.source(kind="mysql")
    position = source.begin([])
    for number, document in enumerate(DOCUMENTS):
        database.sql(f"insert into t values ({number}, {document})")
    chunk = source.read_chunk(table_of(source, "t"), None, rows_max=100, order=KeyOrder.SOURCE)
    changes = changes_of(read_to_head(source, position))
    assert chunk is not None and chunk.bad == () and len(changes) == len(DOCUMENTS)
    column = changes[0].table.column("js")
    streamed, bad = decode_column(column, [change.row["js"] for change in changes])
    assert bad == {}
    for number, (there, here) in enumerate(zip(streamed.to_pylist(), chunk.rows["js"].to_pylist(), strict=True)):
        assert there == here, DOCUMENTS[number][:80]


def test_a_password_of_today(database: Database) -> None:
    """caching_sha2_password, for the first time and from the server's cache."""
    database.sql("create user if not exists reader@'127.0.0.1' identified with caching_sha2_password by 'p@ss/word'")
    database.sql("grant select, replication slave, replication client on *.* to reader@'127.0.0.1'")
    database.sql("create table t(id int primary key)")
    connection = database.server.connection().replace("objcat@", "reader:p%40ss%2Fword@")
    for _ in range(2):
        source = database.source(kind="mysql", connection=connection)
        source.check_settings()
        position = source.begin([])
        database.sql("insert into t values ((select n from (select count(*) n from t) c))")
        assert len(changes_of(read_to_head(source, position))) == 1
    with pytest.raises(SourceUnfit) as wrong:
        database.source(kind="mysql", connection=connection.replace("word", "wort"))
    assert "wort" not in str(wrong.value)


def test_what_the_stream_cannot_have_is_refused(database: Database) -> None:
    for name, value in (
        ("binlog_row_value_options", "'PARTIAL_JSON'"),
        ("binlog_transaction_compression", "on"),
        ("binlog_row_metadata", "minimal"),
    ):
        before = database.sql(f"select @@global.{name}")[0][0]
        database.sql(f"set global {name} = {value}")
        try:
            with pytest.raises(SourceUnfit, match=name):
                database.source(kind="mysql").check_settings()
        finally:
            database.sql(f"set global {name} = {before!r}")


def test_transaction_ids_with_tags_are_refused_with_what_to_do(shop: MariaShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows before the tag are in the lake; then the ingest says how the server gets rid of tags, and goes on after that."""
    shop.config_path.write_text(shop.config_path.read_text().replace('kind = "mariadb"', 'kind = "mysql"'))
    shop.sql("create table items(id int primary key); insert into items values (1)")
    shop.once()
    shop.sql("insert into items values (2)")
    shop.sql("set gtid_next = 'AUTOMATIC:nightly'; insert into items values (3); set gtid_next = 'AUTOMATIC'")
    assert ":nightly:1" in shop.sql("select @@global.gtid_executed")[0][0].replace("\n", "")
    try:
        with pytest.raises(SourceUnfit, match=r"gtid_executed has transaction ids with tags.*RESET BINARY LOGS AND GTIDS"):
            shop.once()
        # A tag that comes while the ingest runs: the settings of its start were right.
        monkeypatch.setattr(MysqlSource, "check_settings", lambda _: None)
        with pytest.raises(IngestStopped, match="transaction id with a tag after"):
            shop.once()
        assert {row["id"] for row in shop.rows("items")} <= {1, 2}
    finally:
        monkeypatch.undo()
        shop.sql("reset binary logs and gtids")
    add_request(shop.lake, shop.config(), "resnapshot_all")
    shop.once()
    assert shop.differences("items") == []


SOURCE_SCENARIOS: tuple[Callable[[Database], None], ...] = (
    sources.test_a_transaction_is_whole_and_in_the_order_of_its_changes,
    sources.test_a_large_chunk_ends_early,
    sources.test_tables_that_cannot_be_followed_say_why,
    sources.test_the_stream_ends_when_it_is_closed,
)
SHOP_SCENARIOS: tuple[Callable[[MariaShop], None], ...] = (
    tables.test_a_table_is_read_and_followed,
    tables.test_a_table_that_is_exchanged_for_another_is_read_again,
    tables.test_a_truncate_is_followed,
)
ITEM_SCENARIOS: tuple[Callable[[MariaShop], None], ...] = (
    failures.test_rows_of_two_phases_count_from_their_commit,
    failures.test_rows_of_two_phases_while_the_ingest_runs,
    failures.test_two_ingests_by_mistake,
    failures.test_a_table_that_is_made_again_and_one_that_is_dropped_in_the_lake,
    failures.test_dates_that_do_not_exist_are_counted,
)


def named(scenario: Callable[..., Any]) -> str:
    return scenario.__name__.removeprefix("test_")


@ALL
@pytest.mark.parametrize("scenario", SOURCE_SCENARIOS, ids=named)
def test_streams_as_those_of_mariadb(database: Database, scenario: Callable[[Database], None]) -> None:
    scenario(database)


@pytest.mark.parametrize("scenario", [SHOP_SCENARIOS[0], *(pytest.param(one, marks=ALL) for one in SHOP_SCENARIOS[1:])], ids=named)
def test_tables_as_those_of_mariadb(shop: MariaShop, scenario: Callable[[MariaShop], None]) -> None:
    scenario(shop)


@ALL
@pytest.mark.parametrize("scenario", ITEM_SCENARIOS, ids=named)
def test_failures_as_those_of_mariadb(items: MariaShop, scenario: Callable[[MariaShop], None]) -> None:
    scenario(items)


@ALL
@pytest.mark.parametrize("order", KeyOrder)
@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("k int", ["(3)", "(-1)", "(20)"]),
        ("k varchar(9)", ["('b')", "('A')", "('a ')", "('ä')", "('C')", "('😀')", "('\uff5e')"]),
        ("k varchar(9) collate utf8mb4_general_ci", ["('b')", "('A')", "('a ')", "('ä')", "('C')"]),
        ("k varchar(9) character set latin1 collate latin1_german1_ci", ["('b')", "('Ä')", "('C')", "('ß')"]),
        ("k decimal(6, 2)", ["(10)", "(9.5)", "(-3.25)"]),
        ("k datetime(3)", ["('2024-01-02 03:04:05.5')", "('1999-12-31')", "('2024-01-02 03:04:05.25')"]),
        ("k binary(3)", ["(x'00ff')", "(x'ff')", "(x'0a0b0c')"]),
        ("k enum('z', 'a')", ["('z')", "('a')"]),
        ("k varchar(9), l int, primary key (k, l)", ["('b', 2)", "('B', 10)", "('a', 3)", "('c', 1)"]),
        ("l int, k bigint unsigned, primary key (k, l)", ["(1, 18446744073709551615)", "(-1, 18446744073709551615)", "(1, 5)"]),
    ],
)
def test_keys_as_the_server_orders_them(database: Database, columns: str, values: list[str], order: KeyOrder) -> None:
    sources.test_chunks_meet_and_keys_are_placed_as_the_server_orders_them(database, columns, values, order)


def test_changes_of_schemas(shop: MariaShop) -> None:
    shop.sql("create table t(id int primary key, v varchar(9)); insert into t values (1, 'a'), (2, 'b')")
    shop.once()
    for statement in (
        "alter table t add column n int not null default 7, add column w varchar(5)",
        "insert into t values (3, 'c', 8, 'x'); alter table t add column at datetime(6) default current_timestamp(6)",
        "alter table t add column p int default (1 + 1)",
        "alter table t drop column w",
        "alter table t add column w varchar(5)",
        "alter table t modify v varchar(20), add column m decimal(6, 2) default 1.5; update t set v = 'longer than nine' where id = 1",
        "alter table t rename column v to x; insert into t(id, x) values (9, 'y')",
    ):
        shop.sql(statement)
        shop.once()
        assert shop.differences("t") == [], statement


def test_a_snapshot_beside_writers_has_two_positions(database: Database) -> None:
    """What was committed between both may be in the chunk, and comes again by the stream."""
    database.sql("create table t(id int primary key, n int); ")
    source = database.source(kind="mysql")
    position = source.begin([])
    database.sql("insert into t values (1, 0)")
    executed = source._chunks._executed
    calls: list[int] = []

    def between() -> Any:
        found = executed()
        calls.append(1)
        if len(calls) == 1:
            # After the first position, and before the snapshot.
            database.sql("update t set n = 1")
        return found

    source._chunks._executed = between  # type: ignore[method-assign]
    chunk = source.read_chunk(table_of(source, "t"), None, rows_max=9, order=KeyOrder.SOURCE)
    assert chunk is not None and chunk.rows["n"].to_pylist() == [1]
    inserted, updated = (one for one in read_to_head(source, position) if one.mark)
    assert source.is_covered(chunk.covers, inserted.mark) and not source.is_covered(chunk.covers, updated.mark)
    assert source.is_reached(updated.position, chunk.until) and not source.is_reached(inserted.position, chunk.until)
    assert not [one for one in updated.changes if isinstance(one, SchemaChanged)]


@ALL
@pytest.mark.parametrize("seed", [7, 11, 23])
@pytest.mark.timeout(1200)
def test_killed_again_and_again(mysql: MySqlServer, tmp_path: Path, seed: int) -> None:
    found = killed_run(MariaShop(mysql, tmp_path), mysql_load, tmp_path, seed, kills=tables.KILLS)
    print(f"seed {seed}: {found.said()}")
    assert found.problems == []
    assert found.after_commits(in_snapshot=True) + found.after_commits(in_snapshot=False) >= 3 and found.slots >= 3, found.said()
