"""What goes wrong around an ingest from PostgreSQL: servers, passwords, clocks, tables that others alter, partitions. Nothing is left out
in silence: the ingest goes on, reads a table again, sets it aside with a message, or stops with one."""

from __future__ import annotations

import datetime as dt
import shutil
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from devkit.databases import PostgresServer
from fileio.env import Env, default_env
from objcat.errors import IngestStopped, PositionGone, SourceAway
from objcat.ingest.postgres.server_history import HistoryName, ServerHistory, parse_switches
from objcat.ingest.requests import add_request
from objcat.ingest.runner import Ingest
from objcat.ingest.sources import open_source
from tests.ingest.shop import Shop
from tests.ingest.struck import wait_until


@pytest.fixture
def items(shop: Shop) -> Shop:
    shop.sql("create table items(id int primary key, n int, v text); insert into items select i, 0, 'v' from generate_series(1, 10) i")
    return shop


def aside(shop: Shop, table: str = "public.items") -> str:
    """Why a table is set aside; empty when it is not."""
    stored = shop.lake.source_position("shop", shared_log="shop")
    assert stored is not None
    return str(stored.state["tables"][table].get("aside") or "")


# ---- the server


def test_a_slot_that_lost_its_log(tmp_path: Path) -> None:
    """The server keeps no more than it was told to, and removes the log that the reader has not read."""
    with PostgresServer(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB") as server:
        shop = Shop(server, tmp_path)
        shop.sql("create table items(id int primary key, n int); insert into items values (1, 1), (2, 2)")
        shop.once()
        shop.sql("update items set n = 3 where id = 1; delete from items where id = 2")
        for _ in range(6):
            shop.sql("insert into items values (9, 9); delete from items where id = 9; select pg_switch_wal()")
            shop.sql("checkpoint")
        assert shop.sql("select wal_status from pg_replication_slots where slot_name = %s", shop.slot) == [("lost",)]
        with pytest.raises(PositionGone, match=r"lost its log.*max_slot_wal_keep_size.*resnapshot .* --all"):
            shop.once()
        assert sorted(row["id"] for row in shop.rows("items")) == [1, 2]
        add_request(shop.lake, shop.config(), "resnapshot_all")
        assert shop.once().is_consistent and shop.differences("items") == []


def test_a_server_that_was_restored_from_a_backup(tmp_path: Path) -> None:
    """It has the slot, and lacks what the lake has: it would write other transactions at the same positions."""
    with PostgresServer() as server:
        shop = Shop(server, tmp_path)
        shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
        shop.once()
        server.kill()
        data = server._folder.path / "data"
        shutil.copytree(data, server._folder.path / "backup", copy_function=shutil.copy2)
        for path in [server._folder.path / "backup", *(server._folder.path / "backup").rglob("*")]:
            shutil.chown(path, server._user.uid, server._user.gid)
        server.start()
        shop = Shop.again(shop)
        shop.sql("insert into items select i, i from generate_series(2, 5000) i")
        shop.once()
        server.kill()
        shutil.rmtree(data)
        (server._folder.path / "backup").rename(data)
        server.start()
        shop = Shop.again(shop)
        with pytest.raises(PositionGone, match=r"restored from a backup.*resnapshot .* --all"):
            shop.once()
        add_request(shop.lake, shop.config(), "resnapshot_all")
        assert shop.once().is_consistent and shop.differences("items") == []


def test_positions_of_other_histories() -> None:
    """A standby that took over is followed where it has all that was read."""
    history = ServerHistory(HistoryName("77", 3), end=900, switches=parse_switches(b"1\t0/1F4\tno recovery target\n\n2\t0/2BC\tx\n"))
    assert history.switches == {1: 500, 2: 700}
    assert history.why_not(900, HistoryName("77", 3)) is None and history.why_not(700, HistoryName("77", 2)) is None
    assert "restored" in (history.why_not(901, HistoryName("77", 3)) or "") and "took over" in (
        history.why_not(501, HistoryName("77", 1)) or ""
    )
    assert "timeline 4" in (history.why_not(1, HistoryName("77", 4)) or "") and "another one" in (
        history.why_not(1, HistoryName("78", 3)) or ""
    )
    assert HistoryName.parse(str(history.name)) == history.name


def test_a_password_that_was_changed(tmp_path: Path) -> None:
    """The run that has the old one waits and stops, without a secret in its message. One that has the new one goes on."""
    with PostgresServer() as server:
        shop = Shop(server, tmp_path)
        shop.sql("create role reader superuser login password 'before-the-change'")
        rules = server._folder.path / "data" / "pg_hba.conf"
        rules.write_text(
            f"host all reader 127.0.0.1/32 scram-sha-256\nhost replication reader 127.0.0.1/32 scram-sha-256\n{rules.read_text()}"
        )
        shop.sql("select pg_reload_conf(); create table items(id int primary key, n int); insert into items values (1, 0)")
        shop.configure(run="away_s = 0.5")
        url = f"postgresql://reader:${{MASK_SECRET}}@127.0.0.1:{server.port}/{shop.name}"
        shop.config_path.write_text(shop.config_path.read_text().replace("${SHOP}", url))
        shop.secret = "before-the-change"
        made = shop.ingest()
        errors: list[BaseException] = []

        def run() -> None:
            try:
                made.run()
            except IngestStopped as error:
                errors.append(error)

        runner = threading.Thread(target=run)
        runner.start()
        wait_until(lambda: made.metrics.value("consistent") == 1, "the table is read")
        shop.sql("alter role reader password 'after-the-change'; update items set n = 1")
        shop.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'reader'")
        runner.join(60)
        assert not runner.is_alive() and len(errors) == 1 and isinstance(errors[0], SourceAway)
        assert "password authentication failed" in str(errors[0]) and "before-the-change" not in str(errors[0])
        shop.secret = "after-the-change"
        shop.once()
        assert shop.differences("items") == []


class ShiftedEnv:
    """An environment whose wall clock is wrong by some ms, seen from the source."""

    def __init__(self, env: Env, shift_ms: int) -> None:
        self._env = env
        self._shift_ms = shift_ms

    def now_ms(self) -> int:
        return self._env.now_ms() + self._shift_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_wrong(items: Shop, hours: int) -> None:
    """The order of rows is that of positions. The lag is counted by the clock of the source."""
    items.once()
    items.sql("update items set n = 1; delete from items where id = 2")
    env: Any = ShiftedEnv(default_env(), hours * 3_600_000)
    made = Ingest(items.config(), items.lake, open_source, env=env)
    made.once()
    assert items.differences("items") == [] and made.metrics.value("lag_seconds") == 0
    assert abs((made.metrics.value("clock_offset_seconds") or 0) + hours * 3600) < 600


# ---- tables of the lake that others alter


def test_a_table_of_the_lake_that_was_dropped(items: Shop) -> None:
    items.sql("create table others(id int primary key)")
    items.once()
    items.lake.drop_table("shop.items")
    items.sql("update items set n = 1; insert into others values (1)")
    items.once()
    assert "dropped or renamed" in aside(items) and items.differences("others") == []
    add_request(items.lake, items.config(), "resnapshot", "public.items")
    assert items.once().is_consistent and items.differences("items") == []


def test_a_table_that_is_dropped_while_it_is_followed(items: Shop) -> None:
    items.sql("create table others(id int primary key)")
    made = items.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        wait_until(lambda: made.metrics.value("consistent") == 1, "the tables are read")
        items.lake.drop_table("shop.items")
        items.sql("update items set n = 1; insert into others values (1)")
        wait_until(lambda: aside(items) and items.rows("others"), "the table is set aside, and the other one goes on")
    finally:
        made.stop()
        runner.join(60)
    assert not runner.is_alive() and "dropped or renamed" in aside(items)


def test_a_table_of_the_lake_that_was_made_again(items: Shop) -> None:
    items.once()
    schema = items.lake.table("shop.items").schema
    items.lake.drop_table("shop.items")
    items.lake.create_table("shop.items", schema, key=["id"], shared_log="shop")
    items.sql("update items set n = 1 where id = 1")
    items.once()
    assert items.differences("items") == []
    items.lake.drop_table("shop.items")
    items.lake.create_table("shop.items", schema, key=["id"])
    items.sql("update items set n = 2 where id = 1")
    items.once()
    assert "outside of the shared log" in aside(items)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_column_of_the_lake_that_others_took_away(items: Shop, at_once: bool) -> None:
    """It comes back with the values of the source, whether a run notices it or the start of one."""
    if at_once:
        items.once()
        items.lake.table("shop.items").alter.drop_column("v")
        items.sql("update items set n = 1 where id = 1")
        items.once()
        assert items.differences("items") == []
    made = items.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        wait_until(lambda: made.metrics.value("consistent") == 1, "the table is read")
        items.lake.table("shop.items").alter.rename_column("v", "w")
        items.sql("update items set n = 2, v = 'u' where id = 1")
        wait_until(lambda: items.differences("items") == [], "the column comes back")
        items.lake.table("shop.items").alter.add_column("mine", "bigint")
        items.sql("update items set n = 3 where id = 2")
        wait_until(lambda: items.differences("items") == [], "a column of others is left alone")
    finally:
        made.stop()
        runner.join(60)
    assert not runner.is_alive()


# ---- tables of the source


def test_a_table_of_the_source_that_is_made_again(items: Shop) -> None:
    items.sql("create table others(id int primary key)")
    items.once()
    items.sql("drop table items")
    items.sql("create table items(id int primary key, n int, v text); insert into items values (3, 3, 'new')")
    items.once()
    assert items.differences("items") == [] and len(items.rows("items")) == 1
    items.sql("drop table items")
    items.once()
    assert "no longer at the source" in aside(items)
    items.sql("create table items(id int primary key, n int, v text); insert into items values (4, 4, 'new')")
    items.once()
    items.sql("insert into items values (5, 5, 'newer')")
    items.once()
    assert items.differences("items") == [] and aside(items) == ""


def test_a_replica_identity_that_changes(items: Shop) -> None:
    items.once()
    items.sql("alter table items replica identity full; update items set n = 1; delete from items where id = 2")
    items.once()
    items.sql("alter table items replica identity default; update items set id = 20 where id = 3")
    items.once()
    assert items.differences("items") == [] and aside(items) == ""
    items.sql("alter table items alter v set not null; create unique index by_v on items(v, id)")
    items.sql("alter table items replica identity using index by_v; update items set n = 2 where id = 4")
    items.once()
    assert "key" in aside(items)
    items.sql("alter table items replica identity default")
    add_request(items.lake, items.config(), "resnapshot", "public.items")
    items.once()
    assert items.differences("items") == [] and aside(items) == ""
    items.sql("alter table items replica identity nothing")
    items.once()
    assert "no replica identity" in aside(items)
    # As long as it is published, the server refuses this.
    items.sql("update items set n = 3")


def test_partitions_that_come_and_go(shop: Shop) -> None:
    """No row tells of rows that come or go with a partition."""
    shop.sql("create table days(id int, day int, primary key (id, day)) partition by list (day)")
    shop.sql("create table days_1 partition of days for values in (1); create table days_2 partition of days for values in (2)")
    shop.sql("insert into days select i, 1 + i % 2 from generate_series(1, 20) i")
    shop.once()

    def after(statement: str) -> bool:
        """Follow a statement, and compare. Returns whether the table was read again."""
        with shop.db.cursor() as cursor:
            cursor.execute(statement)
        shop.sql("insert into days values ((select coalesce(max(id), 0) + 1 from days), 2)")
        made = shop.ingest()
        made.once()
        assert shop.differences("days", ("id", "day")) == [], statement
        return (made.metrics.value("schema_changes_total") or 0) > 1

    assert not after("create table days_3 partition of days for values in (3)")
    assert not after("insert into days values (100, 3)")
    filled = (
        "create table days_{0}(like days); insert into days_{0} values ({0}00, {0}); "
        "alter table days attach partition days_{0} for values in ({0})"
    )
    assert after(filled.format(4))
    assert after("alter table days detach partition days_4")
    assert after(f"begin; {filled.format(5)}; commit")
    assert not after("begin; create table days_6(like days); alter table days attach partition days_6 for values in (6); commit")
    assert after("truncate days_1")
    assert after("drop table days_5")
    assert not after("vacuum days_2")


def test_what_no_type_holds_is_counted(shop: Shop) -> None:
    shop.sql(
        "create table ends(id int primary key, at timestamptz, day date, amount numeric(6, 2), f float8, empty date, "
        "days date[], amounts numeric(6, 2)[])"
    )
    values = "'infinity', '-infinity', 'NaN', 'NaN', null, '{infinity,NULL,2024-02-29}', '{1.5,NaN,NULL}'"
    shop.sql(f"insert into ends values (1, {values})")
    assert shop.once().nulled == 5
    shop.sql(f"insert into ends values (2, {values}), (3, {values})")
    made = shop.ingest()
    assert made.once().nulled == 15 and made.metrics.value("nulled_total") == 15
    for row in shop.rows("ends"):
        assert (row["at"], row["day"], row["amount"]) == (None, None, None) and row["f"] != row["f"]
        assert row["days"] == [None, None, dt.date(2024, 2, 29)] and row["amounts"] == [Decimal("1.50"), None, None]
