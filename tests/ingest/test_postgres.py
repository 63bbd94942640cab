"""PostgreSQL into a lake: each trap of logical replication by a test, on a real server."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from objcat.errors import IngestStopped, PositionGone
from objcat.ingest.postgres.visibility import lsn_number
from objcat.ingest.requests import add_request
from objcat.ingest.sources import open_source
from tests.ingest.shop import Shop

LONG = "repeat(md5('x'), 200)"
"""A text that PostgreSQL stores apart (TOAST), so an update that leaves it does not send it."""


def toasted(shop: Shop) -> None:
    shop.sql("create table notes(id bigint primary key, title text, body text); alter table notes alter body set storage external")


def test_a_snapshot_and_what_comes_after_it(shop: Shop) -> None:
    shop.sql("create table items(id bigint primary key, name text); insert into items select i, 'n' || i from generate_series(1, 10) i")
    state = shop.once()
    assert state.is_consistent and shop.differences("items") == []
    shop.sql("insert into items values (11, 'new'); update items set name = 'é' where id = 2; delete from items where id = 3")
    shop.sql("update items set id = 40 where id = 4")
    shop.once()
    assert shop.differences("items") == [] and len(shop.rows("items")) == 10


def test_every_type(shop: Shop) -> None:
    shop.sql("create type mood as enum ('good', 'bad'); create domain cents as numeric(10, 2) check (value >= 0)")
    shop.sql(
        """create table kinds(id int primary key, a smallint, b bigint, c numeric(12, 3), d numeric, e real, f double precision, g boolean,
        h date, i timestamp, j timestamptz, k time, l interval, m text, n varchar(5), o char(4), p bytea, q uuid, r jsonb, s json, t int[],
        u text[], v mood, w cents, x inet, y int4range, z numeric(6, 2)[], "odd, name" text,
        generated int generated always as (id * 2) stored)"""
    )
    row = (
        "%s, -3, 9007199254740993, -1.500, 123456789012345678901234567890.5, 1.5, 0.1, true, '2024-02-29', '2024-02-29 12:34:56.123456', "
        "'2024-02-29 12:34:56.123456+02', '12:00', '1 day 02:00', E'a,\"b\\n\\tü\\\\.', '', 'ab', '\\x00ff', "
        "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1, null]}', '{\"b\":1}', '{1,NULL,-3}', "
        "'{\"a b\",NULL,\"NULL\",\"q\\\"x\\\\\",\"\"}', 'bad', 1.25, '10.0.0.1', '[1,5)', '{1.50,NULL}', 'x'"
    )
    shop.sql(f"insert into kinds values ({row % 1})")
    shop.sql("insert into kinds(id) values (2)")
    shop.once()
    shop.sql(f"insert into kinds values ({row % 3})")
    shop.sql("insert into kinds(id) values (4)")
    shop.once()
    rows = {found["id"]: found for found in shop.rows("kinds")}
    assert rows[1] == {**rows[3], "id": 1} and rows[2] == {**rows[4], "id": 2}
    assert all(value is None for name, value in rows[2].items() if name != "id")
    found = rows[1]
    assert (found["a"], found["b"], found["c"]) == (-3, 9007199254740993, Decimal("-1.500"))
    assert found["d"] == "123456789012345678901234567890.5" and found["f"] == 0.1 and found["g"] is True
    assert found["h"] == dt.date(2024, 2, 29) and found["i"] == dt.datetime(2024, 2, 29, 12, 34, 56, 123456)
    assert found["j"] == dt.datetime(2024, 2, 29, 10, 34, 56, 123456, dt.UTC)
    assert found["m"] == 'a,"b\n\tü\\.' and found["n"] == "" and found["o"] == "ab  " and found["p"] == b"\x00\xff"
    assert found["r"] == '{"a": [1, null]}' and found["t"] == [1, None, -3] and found["u"] == ["a b", None, "NULL", 'q"x\\', ""]
    assert found["v"] == "bad" and found["w"] == Decimal("1.25") and found["z"] == [Decimal("1.50"), None]
    assert "generated" not in found and found["odd, name"] == "x"


def test_endless_times_and_nan_become_null(shop: Shop) -> None:
    shop.sql("create table ends(id int primary key, at timestamptz, day date, amount numeric(6, 2), f float8)")
    values = "'infinity', '-infinity', 'NaN', 'NaN'"
    shop.sql(f"insert into ends values (1, {values})")
    shop.once()
    shop.sql(f"insert into ends values (2, {values})")
    shop.once()
    for row in shop.rows("ends"):
        assert (row["at"], row["day"], row["amount"]) == (None, None, None) and row["f"] != row["f"]


def test_a_value_that_was_not_sent_stays(shop: Shop) -> None:
    """P5: of an old key only the key is sent, and its nulls are no values."""
    toasted(shop)
    shop.sql(f"insert into notes select i, 't', {LONG} || i from generate_series(1, 6) i")
    shop.once()
    shop.sql("update notes set title = 'u' where id = 1")
    shop.sql("update notes set id = 20 where id = 2")
    shop.transaction("update notes set id = 30 where id = 3", "update notes set id = 31, title = 'v' where id = 30")
    shop.transaction("update notes set body = 'short' where id = 4", "update notes set id = 40 where id = 4")
    shop.transaction(
        "delete from notes where id = 5", f"insert into notes values (5, 'again', {LONG})", "update notes set title = 'w' where id = 5"
    )
    shop.once()
    assert shop.differences("notes") == []


def test_a_key_that_changed_before_its_chunk_was_read(shop: Shop) -> None:
    """The old row is in no chunk yet, and what was not sent is nowhere but at the source."""
    toasted(shop)
    shop.sql(f"insert into notes select i, 't', {LONG} || i from generate_series(1, 9) i")

    def opened(config, router, env):
        source = open_source(config, router, env)
        read, seen = source.read_chunk, list[int]()

        def read_chunk(table, after, **options):
            chunk = read(table, after, **options)
            if not seen:
                seen.append(1)
                shop.sql(
                    "update notes set id = 0 where id = 9; update notes set id = -1 where id = 8; update notes set id = -2 where id = -1"
                )
            return chunk

        source.read_chunk = read_chunk  # type: ignore[method-assign]
        return source

    state = shop.once(opener=opened)
    assert state.is_consistent and shop.differences("notes") == []


def test_a_row_with_the_whole_old_row(shop: Shop) -> None:
    toasted(shop)
    shop.sql("alter table notes replica identity full")
    shop.sql(f"insert into notes select i, 't', {LONG} || i from generate_series(1, 4) i")
    shop.once()
    shop.sql("update notes set title = 'u' where id = 1; update notes set id = 20 where id = 2; delete from notes where id = 3")
    shop.once()
    assert shop.differences("notes") == []


@pytest.mark.parametrize("key", ["id text", 'id text collate "C"', "id uuid", "id numeric(8, 2)", "id varchar(20), part int"])
def test_keys_of_every_kind(shop: Shop, key: str) -> None:
    """P7: chunks are cut by the order of the server, and never by the order of text of another column."""
    names = ["id", "part"] if "part" in key else ["id"]
    value = {"uuid": "md5(i::text)::uuid", "numeric(8": "i * 1.5"}.get(
        key.split(" ")[1].split(",", maxsplit=1)[0], "chr(97 + i % 3) || upper(chr(97 + i)) || 'é' || i"
    )
    columns = f"{value}, i % 4" if "part" in key else value
    shop.sql(f"create table things({key}, v text, primary key ({', '.join(names)}))")
    shop.sql(f"insert into things select {columns}, 'v' from generate_series(1, 20) i")

    def opened(config, router, env):
        source = open_source(config, router, env)
        read = source.read_chunk

        def read_chunk(table, after, **options):
            chunk = read(table, after, **options)
            shop.sql("update things set v = v || 'u'; delete from things where ctid = (select ctid from things order by v limit 1)")
            return chunk

        source.read_chunk = read_chunk  # type: ignore[method-assign]
        return source

    assert shop.once(opener=opened).is_consistent
    assert shop.differences("things", names) == []
    add_request(shop.lake, shop.config(), "resnapshot", "public.things")
    assert shop.once(opener=opened).is_consistent
    assert shop.differences("things", names) == []


def test_a_second_snapshot_replaces_ranges(shop: Shop) -> None:
    """P3: rows that were deleted between the snapshots are gone."""
    shop.sql("create table items(id bigint primary key, name text); insert into items select i, 'n' from generate_series(1, 30) i")
    shop.once()
    shop.sql("delete from items where id % 3 = 0")
    add_request(shop.lake, shop.config(), "resnapshot", "public.items")
    shop.sql("delete from items where id = 29")
    shop.once()
    assert shop.differences("items") == [] and len(shop.rows("items")) == 19


def test_a_column_with_a_default(shop: Shop) -> None:
    """P4: no row tells of a default."""
    shop.sql("create table items(id bigint primary key, name text); insert into items select i, 'n' from generate_series(1, 8) i")
    shop.once()
    shop.sql("alter table items add column tier int default 7")
    shop.sql("update items set name = 'm' where id = 1; insert into items values (9, 'x', 1)")
    shop.once()
    assert shop.differences("items") == []
    shop.sql("alter table items add column at timestamptz default clock_timestamp()")
    shop.once()
    assert shop.differences("items") == []


def test_rows_that_changed_before_a_column_joined_read_its_default(shop: Shop) -> None:
    """The catalog is ahead of the stream then: the column is not one that was dropped."""
    shop.sql("create table items(id int primary key, name text); insert into items select i, 'n' from generate_series(1, 4) i")
    shop.once()
    shop.sql("update items set name = 'm' where id = 1; insert into items values (5, 'x')")
    shop.sql("alter table items add column tier int default 7")
    shop.sql("insert into items values (6, 'y', 1); update items set name = 'z' where id = 2")
    shop.once()
    assert shop.differences("items") == []
    shop.sql("insert into items values (7, 'y', 1)")
    shop.sql("alter table items drop column tier; insert into items values (8, 'y')")
    shop.once()
    assert shop.differences("items") == []
    assert {row["id"]: row["tier"] for row in shop.rows("items")}[8] is None


def test_schemas_that_change(shop: Shop) -> None:
    shop.sql(
        "create table items(id int primary key, name varchar(10), gone text, n int); "
        "insert into items select i, 'n', 'g', i from generate_series(1, 5) i"
    )
    shop.once()
    shop.sql("alter table items add column extra text")
    shop.sql("insert into items values (6, 'a', 'b', 1, 'c')")
    shop.transaction(
        "alter table items alter column name type text", "alter table items alter column n type bigint", "update items set n = 5000000000"
    )
    shop.sql("alter table items drop column gone")
    shop.sql("insert into items values (7, 'after', 8, 'e'); update items set name = 'q' where id = 2")
    shop.once()
    assert shop.differences("items") == []
    assert {row["id"]: row["gone"] for row in shop.rows("items")}[7] is None
    shop.sql("alter table items rename column extra to other")
    shop.sql("insert into items values (8, 'after', 8, 'f')")
    shop.once()
    assert shop.differences("items") == []
    shop.sql("alter table items alter column name type text using upper(name)")
    shop.once()
    assert shop.differences("items") == []


def test_a_change_that_cannot_be_followed_sets_the_table_aside(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n text); create table others(id int primary key, n text)")
    shop.sql("insert into items values (1, '5'); insert into others values (1, 'a')")
    shop.once()
    shop.sql("alter table items alter column n type int using n::int; insert into items values (2, 3); insert into others values (2, 'b')")
    state = shop.once()
    assert "is int now" in (state.tables["public.items"].aside or "") and shop.differences("others") == []
    shop.lake.table("shop.items").alter.rename_column("n", "n_before")
    add_request(shop.lake, shop.config(), "resnapshot", "public.items")
    state = shop.once()
    assert state.is_consistent and shop.differences("items") == []


def test_tables_that_are_truncated(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n text); insert into items select i, 'a' from generate_series(1, 20) i")
    shop.once()
    shop.transaction("insert into items values (21, 'x')", "truncate items", "insert into items values (3, 'b')")
    shop.once()
    assert shop.differences("items") == [] and len(shop.rows("items")) == 1


def test_a_table_that_joins(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n text); insert into items values (1, 'a')")
    shop.once()
    shop.sql("create table more(id int primary key, n text); insert into more select i, 'm' from generate_series(1, 7) i")
    shop.sql("insert into items values (2, 'b')")
    shop.once()
    shop.sql("update more set n = 'k' where id = 3")
    shop.once()
    assert shop.differences("items") == [] and shop.differences("more") == []


def test_partitions_are_one_table(shop: Shop) -> None:
    shop.sql("create table days(id int, day int, n text, primary key (id, day)) partition by list (day)")
    shop.sql("create table days_1 partition of days for values in (1); create table days_2 partition of days for values in (2)")
    shop.sql("insert into days select i, 1 + i % 2, 'a' from generate_series(1, 9) i")
    shop.once()
    shop.sql("update days set n = 'b' where id = 2; update days set day = 3 - day where id = 3; delete from days where id = 4")
    shop.once()
    assert shop.differences("days", ("id", "day")) == []
    assert shop.lake.tables() == ["shop.days", "shop.ingest_dead"]


def test_a_table_without_a_key(shop: Shop) -> None:
    shop.sql("create table log(at int, n text); create table items(id int primary key); insert into items values (1)")
    state = shop.once()
    assert "REPLICA IDENTITY FULL" in (state.tables["public.log"].aside or "")
    shop.sql("update log set n = 'x'")  # The server does not refuse it: the table was not published.
    shop.sql("alter table log replica identity full; insert into log values (1, 'a'), (1, 'a')")
    add_request(shop.lake, shop.config(), "resnapshot", "public.log")
    shop.once()
    shop.sql("insert into log values (1, 'a'), (2, 'b')")
    shop.once()
    assert sorted((row["at"], row["n"]) for row in shop.rows("log")) == [(1, "a"), (1, "a"), (1, "a"), (2, "b")]
    shop.sql("delete from log where at = 2")
    assert "has no key" in (shop.once().tables["public.log"].aside or "")


def test_rollbacks_and_savepoints(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n int); insert into items select i, 0 from generate_series(1, 5) i")
    shop.once()
    shop.sql("begin; update items set n = 1; rollback")
    shop.sql("begin; savepoint a; update items set n = 2 where id = 1; rollback to a; update items set n = 3 where id = 2; commit")
    shop.once()
    assert shop.differences("items") == []


def test_soft_deletes_masks_and_drops(shop: Shop) -> None:
    shop.sql(
        "create table people(id int primary key, email text, secret text, n int); "
        "insert into people select i, 'a' || i, 's', i from generate_series(1, 5) i"
    )
    shop.configure(route='deletes = "soft"\ndrop = ["secret"]\nmask = { email = "hash" }\nmask_secret = "${MASK_SECRET}"\nlineage = true')
    shop.once()
    shop.sql("delete from people where id = 2; update people set n = 9 where id = 3")
    shop.transaction("insert into people values (6, 'x', 's', 6)", "delete from people where id = 6")
    shop.once()
    rows = {row["id"]: row for row in shop.rows("people")}
    assert {one: row["_deleted"] for one, row in rows.items()} == {1: False, 2: True, 3: False, 4: False, 5: False, 6: True}
    assert rows[2]["n"] == 2 and rows[6]["n"] == 6 and rows[3]["_op"] == "update" and rows[1]["_op"] == "read"
    assert "secret" not in rows[1] and len(rows[1]["email"]) == 64 and rows[3]["email"] != rows[1]["email"]
    shop.sql("truncate people")
    shop.once()
    assert all(row["_deleted"] for row in shop.rows("people"))


def test_history_keeps_every_change(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
    shop.configure(route='deletes = "history"')
    shop.once()
    shop.sql("update items set n = 2; update items set n = 3; delete from items")
    shop.once()
    assert [(row["_op"], row["n"]) for row in sorted(shop.rows("items"), key=lambda row: (row["_source_pos"], row["_source_seq"]))] == [
        ("read", 1),
        ("update", 2),
        ("update", 3),
        ("delete", None),
    ]


def test_a_lost_slot_stops_and_names_the_command(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
    shop.once()
    shop.sql("select pg_drop_replication_slot(%s)", shop.slot)
    shop.sql("update items set n = 2")
    with pytest.raises(PositionGone, match=r"resnapshot .* --all"):
        shop.once()
    shop.sql("select pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
    with pytest.raises(PositionGone, match="was moved"):
        shop.once()
    add_request(shop.lake, shop.config(), "resnapshot_all")
    assert shop.once().is_consistent and shop.differences("items") == []


def test_two_readers_by_mistake(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
    shop.configure(more="")
    shop.once()
    text = shop.config_path.read_text()
    shop.config_path.write_text(text.replace('kind = "postgres"', 'kind = "postgres"\nslot_wait_s = 0.3'))
    other = psycopg2.connect(shop.server.connection(shop.name), connection_factory=LogicalReplicationConnection)
    shop.sql("insert into items values (2, 2)")
    other.cursor().start_replication(slot_name=shop.slot, decode=False, options={"proto_version": "1", "publication_names": shop.slot})
    with pytest.raises(IngestStopped, match="Another process reads"):
        shop.once()
    other.close()
    assert shop.once().is_consistent


def test_a_commit_is_confirmed_after_it_is_durable(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
    shop.once()
    seen = []

    def opened(config, router, env):
        source = open_source(config, router, env)
        confirm = source.confirm

        def checked(position):
            stored = shop.lake.source_position("shop", shared_log="shop")
            seen.append(stored is not None and stored.state["position"] == dict(position))
            confirm(position)

        source.confirm = checked  # type: ignore[method-assign]
        return source

    shop.sql("update items set n = 2")
    shop.once(opener=opened)
    assert seen and all(seen)


def test_only_what_is_confirmed_is_forgotten_by_the_server(shop: Shop) -> None:
    """The server names places up to which it has sent everything, and a sign of life confirms none of them by itself."""
    shop.sql("create table items(id int primary key, n int); insert into items values (1, 1); create schema aside")
    shop.once()
    known: list[Any] = []

    def remember(*given: Any) -> Any:
        known.extend(given)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        shop.once(opener=remember)
    stored = shop.lake.source_position("shop", shared_log="shop")
    assert stored is not None
    source: Any = open_source(*known)
    sent = confirmed = stored.state["position"]
    stream = source.transactions(sent)
    for turn in range(6):
        shop.sql(f"create table aside.noise{turn} as select generate_series(1, 10000) i")
        sent = next(stream).position
        if turn < 3:
            confirmed = sent
            source.confirm(confirmed)
        assert lsn_number(sent["lsn"]) >= lsn_number(confirmed["lsn"])
        source._keep_alive()
    assert sent != confirmed
    time.sleep(0.5)  # The server hears it in a moment.
    asked = "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
    assert shop.sql(asked, shop.slot) == [(confirmed["lsn"],)]
    source.close()


def test_transactions_stay_whole(shop: Shop) -> None:
    """A slot holds whole transactions over all tables."""
    shop.sql("create table a(id int primary key, n numeric(12, 2)); create table b(id int primary key, n numeric(12, 2))")
    shop.sql("insert into a select i, 100 from generate_series(1, 10) i; insert into b select i, 100 from generate_series(1, 10) i")
    shop.once()
    for turn in range(10):
        shop.transaction(f"update a set n = n - {turn} where id = {turn + 1}", f"update b set n = n + {turn} where id = {10 - turn}")
        if turn % 3 == 0:
            shop.once()
    shop.once()
    newest = shop.lake.table("shop.a").refresh().slot
    consistent = [
        slot
        for slot in range(newest + 1)
        if (at := shop.lake.source_position("shop", shared_log="shop", as_of=slot)) is not None
        and at.state.get("tables") is not None
        and not any(table.get("unread") or table.get("chunks") for table in at.state["tables"].values())
    ]
    assert len(consistent) >= 4
    assert set(shop.sums({"a": "n", "b": "n"}, consistent).values()) == {Decimal(2000)}


def test_rows_of_two_schemas_in_one_batch(shop: Shop) -> None:
    """P6: the columns of one row are not those of all."""
    shop.sql("create table items(id int primary key, n text); insert into items values (1, 'a')")
    shop.once()
    shop.transaction(
        "insert into items values (2, 'b')",
        "alter table items add column extra text",
        "insert into items values (3, 'c', 'd')",
        "alter table items drop column n",
        "insert into items values (4, 'e')",
    )
    shop.once()
    assert shop.differences("items") == []
    assert {row["id"]: row["n"] for row in shop.rows("items")} == {1: "a", 2: "b", 3: "c", 4: None}


def test_a_commit_in_the_log_that_no_snapshot_sees(shop: Shop) -> None:
    """Between its place in the log and its visibility a commit is in the stream, and in no chunk."""
    shop.sql("create table items(id int primary key, n int); insert into items select i, 0 from generate_series(1, 9) i")
    waiting = psycopg2.connect(shop.server.connection(shop.name))
    released: list[int] = []

    def opened(config, router, env):
        source = open_source(config, router, env)
        read, begin = source.read_chunk, source.begin

        def begun(tables):
            position = begin(tables)
            # This session hangs in its commit until it is released.
            shop.hang(waiting, "update items set n = n + 1")
            return position

        def read_chunk(table, after, **options):
            chunk = read(table, after, **options)
            if len(released) == 5:
                shop.let_go()
            released.append(1)
            return chunk

        source.begin, source.read_chunk = begun, read_chunk  # type: ignore[method-assign]
        return source

    try:
        shop.once(opener=opened)
    finally:
        shop.release(waiting)
    assert [row["n"] for row in shop.source_rows("items")] == [1] * 9
    shop.once()
    assert shop.differences("items") == []


def test_killed_after_every_commit(shop: Shop) -> None:
    """Whatever is committed is whole: the process ends after its first commit, again and again."""
    shop.sql("create table items(id int primary key, n int); insert into items select i, 0 from generate_series(1, 9) i")
    shop.sql("create table more(id int primary key, n int)")
    for turn in range(8):
        shop.killed_after_commits(1 + turn % 2)
        shop.transaction("update items set n = n + 1 where id = 1", f"insert into more values ({turn}, {turn})")
    shop.once()
    assert shop.differences("items") == [] and shop.differences("more") == []
