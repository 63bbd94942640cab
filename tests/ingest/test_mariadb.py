"""MariaDB followed into a lake, on a real server: both sides are equal afterwards, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.databases import MariaDbServer
from tests.effort import ALL, INTEGRATION, effort
from tests.ingest import maria_load
from tests.ingest.killing import killed_run
from tests.ingest.maria_shop import MariaShop

KILLS = effort(6, with_all=40)


@pytest.fixture
def shop(maria: MariaShop) -> MariaShop:
    return maria


def test_a_table_is_read_and_followed(shop: MariaShop) -> None:
    shop.sql("create table t(id int primary key, v varchar(9))")
    shop.sql("insert into t values (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')")
    state = shop.once()
    assert state.is_consistent and shop.differences("t") == []
    shop.sql(
        "update t set v = 'z' where id < 3; delete from t where id = 4; update t set id = 50 where id = 5; insert into t values (6, null)"
    )
    shop.once()
    assert shop.differences("t") == [] and len(shop.rows("t")) == 5


def test_columns_that_join_have_what_the_source_has(shop: MariaShop) -> None:
    shop.sql("create table t(id int primary key, v varchar(9)); insert into t values (1, 'a'), (2, 'b')")
    shop.once()
    shop.sql("alter table t add column n int not null default 7, add column w varchar(5)")
    shop.once()
    assert shop.differences("t") == []
    shop.sql("insert into t values (3, 'c', 8, 'x'); alter table t add column at datetime(6) default current_timestamp(6)")
    shop.once()
    assert shop.differences("t") == []
    shop.sql("set statement lock_wait_timeout = 9 for alter table t add column o int default 4")
    shop.sql("alter table t add column p int default 5, order by v")
    shop.once()
    assert shop.differences("t") == []
    # A column that comes again has nothing of the old one.
    shop.sql("alter table t drop column w")
    shop.once()
    shop.sql("alter table t add column w varchar(5)")
    shop.once()
    assert shop.differences("t") == []
    shop.sql("alter table t modify v varchar(20), add column m decimal(6, 2) default 1.5; update t set v = 'longer than nine' where id = 1")
    shop.once()
    assert shop.differences("t") == []


def test_a_table_that_is_exchanged_for_another_is_read_again(shop: MariaShop) -> None:
    """As tools for changes of large tables do it."""
    shop.sql("create table t(id int primary key, v varchar(9)); insert into t values (1, 'a'), (2, 'b')")
    shop.once()
    shop.sql("create table _t_new(id int primary key, v varchar(9), w int default 3); insert into _t_new(id, v) select id, upper(v) from t")
    shop.sql("rename table t to _t_old, _t_new to t; insert into t values (3, 'c', 4); drop table _t_old")
    shop.once()
    assert shop.differences("t") == [] and len(shop.rows("t")) == 3


def test_a_truncate_is_followed(shop: MariaShop) -> None:
    shop.sql("create table t(id int primary key, v varchar(9)); insert into t values (1, 'a'), (2, 'b')")
    shop.once()
    shop.sql("truncate t; insert into t values (2, 'again')")
    shop.once()
    assert shop.differences("t") == [] and len(shop.rows("t")) == 1


@pytest.mark.parametrize("seed", [pytest.param(7, marks=INTEGRATION), pytest.param(11, marks=ALL), pytest.param(23, marks=ALL)])
@pytest.mark.timeout(1200)
def test_killed_again_and_again(mariadb: MariaDbServer, tmp_path: Path, seed: int) -> None:
    shop = MariaShop(mariadb, tmp_path)
    found = killed_run(shop, maria_load, tmp_path, seed, kills=KILLS)
    print(f"seed {seed}: {found.said()}")
    assert found.problems == []
    # A run in which nothing was at stake shows nothing.
    assert len(found.kills) == KILLS
    assert found.after_commits(in_snapshot=True) >= KILLS // 5, found.said()
    assert found.after_commits(in_snapshot=False) >= KILLS // 5, found.said()
    assert found.slots >= KILLS // 2 and found.transactions > KILLS * 10
