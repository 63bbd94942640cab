"""What goes wrong around an ingest from MariaDB: a server that ends, two readers, transactions of two phases (XA), values of no type."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from devkit.databases import MariaDbServer
from objcat.errors import IngestStopped, SourceAway, SourceUnfit
from objcat.ingest.mysql import source as mysql_source
from objcat.ingest.requests import add_request
from tests.conftest import check_needed
from tests.ingest.maria_shop import MariaShop
from tests.ingest.struck import wait_until

NEW_ROWS = "insert into t values (1, 'a'), (2, 'b'), (3, 'c')"


class TwoPhases:
    """A transaction of two phases, in a session of its own that ends with `prepare`, as that of an application server may."""

    def __init__(self, shop: MariaShop, name: str) -> None:
        self._shop = shop
        self._name = name
        self._session = shop.connect(shop.name)

    def prepare(self, *statements: str) -> TwoPhases:
        for statement in (f"xa start '{self._name}'", *statements, f"xa end '{self._name}'", f"xa prepare '{self._name}'"):
            self._session.cursor().execute(statement)
        self._session.close()
        return self

    def commit(self) -> None:
        self._end("commit")

    def roll_back(self) -> None:
        self._end("rollback")

    def _end(self, word: str) -> None:
        def is_done() -> bool:
            try:
                self._shop.sql(f"xa {word} '{self._name}'")
            except pymysql.MySQLError as error:
                # The server has not noticed yet that the session is gone.
                if error.args[0] != ER.XAER_NOTA:
                    raise
                return False
            return True

        wait_until(is_done, f"{word} of {self._name}")


@pytest.fixture
def items(maria: MariaShop) -> MariaShop:
    maria.sql("create table t(id int primary key, v varchar(9)); create table u(id int primary key, at date)")
    maria.sql(NEW_ROWS)
    return maria


def in_lake(shop: MariaShop) -> dict[int, str]:
    return {row["id"]: row["v"] for row in shop.rows("t")}


def test_rows_of_two_phases_count_from_their_commit(items: MariaShop) -> None:
    """Also over starts of the ingest in between, next to other transactions, in any order of the commits, and not after a rollback."""
    items.once()
    first = TwoPhases(items, "first").prepare("update t set v = 'x' where id = 1", "insert into t values (10, 'x')")
    items.sql("update t set v = 'other' where id = 2")
    second = TwoPhases(items, "second").prepare("delete from t where id = 3", "insert into u values (1, null)")
    third = TwoPhases(items, "third").prepare("insert into t values (30, 'never')")
    items.once()
    assert in_lake(items) == {1: "a", 2: "other", 3: "c"} and items.differences("t") == []
    items.sql("insert into t values (4, 'd')")
    second.commit()
    items.once()
    assert in_lake(items) == {1: "a", 2: "other", 4: "d"} and items.differences("t") == items.differences("u") == []
    third.roll_back()
    items.sql("update t set v = 'dd' where id = 4")
    items.once()
    assert items.differences("t") == []
    first.commit()
    items.sql("update t set v = 'y' where id = 10")
    items.once()
    assert in_lake(items) == {1: "x", 2: "other", 4: "dd", 10: "y"} and items.differences("t") == []
    # Nothing waits any more, so the next start reads from the position alone.
    stored = items.lake.source_position("shop", shared_log="shop")
    assert stored is not None and "since" not in stored.state["position"]
    session = items.connect(items.name)
    for statement in ("xa start 'one'", "insert into t values (5, 'e')", "xa end 'one'", "xa commit 'one' one phase"):
        session.cursor().execute(statement)
    session.close()
    items.once()
    assert items.differences("t") == [] and in_lake(items)[5] == "e"


def test_rows_of_two_phases_while_the_ingest_runs(items: MariaShop) -> None:
    items.once()
    prepared = TwoPhases(items, "running").prepare("update t set v = 'x' where id = 1")
    made = items.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        items.sql("update t set v = 'z' where id = 2; alter table u add column n int default 7; insert into u values (1, null, 2)")
        wait_until(lambda: in_lake(items)[2] == "z" and items.differences("u") == [], "other rows come")
        assert in_lake(items)[1] == "a"
        prepared.commit()
        wait_until(lambda: in_lake(items)[1] == "x", "the row of two phases comes")
    finally:
        made.stop()
        runner.join(60)
    assert not runner.is_alive() and items.differences("t") == []


def test_a_table_is_read_when_nothing_is_prepared(items: MariaShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prepared transaction from before the beginning cannot be known, and one that is being committed may be in the binlog alone."""
    prepared = TwoPhases(items, "before").prepare("update t set v = 'x' where id = 1")
    monkeypatch.setattr(mysql_source, "CALM_S_MAX", 0.2)
    with pytest.raises(IngestStopped, match="XA RECOVER"):
        items.once()
    prepared.commit()
    items.once()
    assert items.differences("t") == []
    prepared = TwoPhases(items, "again").prepare("update t set v = 'y' where id = 1")
    add_request(items.lake, items.config(), "resnapshot", items.source_name("t"))
    made = items.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        items.sql("insert into u values (9, null)")
        wait_until(lambda: items.differences("u") == [], "the stream goes on")
        assert made.metrics.value("consistent") == 0
        prepared.commit()
        wait_until(lambda: made.metrics.value("consistent") == 1 and items.differences("t") == [], "the table is read")
    finally:
        made.stop()
        runner.join(60)
    assert not runner.is_alive()


def test_two_ingests_by_mistake(items: MariaShop) -> None:
    """Each takes the stream from the other, and the position lets one of them go on alone."""
    items.configure(run="away_s = 60")
    items.once()
    ended: list[BaseException] = []

    def follow(run: Callable[[], Any]) -> None:
        try:
            run()
        except IngestStopped as error:
            ended.append(error)

    made = [items.ingest(), items.ingest()]
    runners = [threading.Thread(target=follow, args=(one.run,)) for one in made]
    for runner in runners:
        runner.start()
    number = 100
    try:
        end = time.monotonic() + 60
        while not ended and time.monotonic() < end:
            number += 1
            time.sleep(0.02)
            items.sql(f"insert into t values ({number}, 'n')")
        assert len(ended) == 1 and "Another process reads" in str(ended[0])
        wait_until(lambda: items.differences("t") == [], "the other one goes on")
    finally:
        for one in made:
            one.stop()
        for runner in runners:
            runner.join(60)
    assert not any(runner.is_alive() for runner in runners) and len(ended) == 1


def test_a_server_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    check_needed("mariadb")
    with MariaDbServer() as server:
        shop = MariaShop(server, tmp_path)
        shop.sql("create table t(id int primary key, v varchar(9)); insert into t values (1, 'a')")
        shop.once()
        made = shop.ingest()
        runner = threading.Thread(target=made.run)
        runner.start()
        try:
            shop.sql("update t set v = 'b'")
            wait_until(lambda: in_lake(shop)[1] == "b", "the row comes")
            server.kill()
            server.start()
            shop.connection = shop.connect(shop.name)
            shop.sql("update t set v = 'c'; insert into t values (2, 'd')")
            wait_until(lambda: in_lake(shop) == {1: "c", 2: "d"}, "the rows come after the server is back")
        finally:
            made.stop()
            runner.join(60)
        assert not runner.is_alive() and (made.metrics.value("reconnects_total") or 0) >= 1
        server.kill()
        shop.configure(run="away_s = 0.2")
        with pytest.raises(SourceAway):
            shop.ingest().run()


def test_a_table_that_is_made_again_and_one_that_is_dropped_in_the_lake(items: MariaShop) -> None:
    items.once()
    items.sql("drop table t; create table t(id int primary key, v varchar(9)); insert into t values (7, 'new')")
    items.once()
    assert items.differences("t") == [] and in_lake(items) == {7: "new"}
    items.lake.drop_table("shop.t")
    items.sql("update t set v = 'newer'; insert into u values (3, null)")
    state = items.once()
    assert "dropped or renamed" in (state.tables[items.source_name("t")].aside or "") and items.differences("u") == []
    add_request(items.lake, items.config(), "resnapshot", items.source_name("t"))
    assert items.once().is_consistent and items.differences("t") == []


def test_dates_that_do_not_exist_are_counted(items: MariaShop) -> None:
    items.sql("set sql_mode = ''; insert into u values (1, '0000-00-00'), (2, null)")
    assert items.once().nulled == 1
    items.sql("insert into u values (3, '0000-00-00'), (4, '2024-00-05'), (5, '2024-01-05')")
    assert items.once().nulled == 3
    assert [row["at"] is None for row in sorted(items.rows("u"), key=lambda row: row["id"])] == [True, True, True, True, False]


def test_a_compressed_binlog_is_refused_and_never_passed_over(items: MariaShop) -> None:
    items.sql("create table w(id int primary key, v text)")
    items.once()
    items.sql("set global log_bin_compress = on")
    try:
        with pytest.raises(SourceUnfit, match="log_bin_compress is ON"):
            items.once()
        session = items.connect(items.name)
        session.cursor().execute("insert into w values (1, repeat('x', 5000))")
        session.close()
    finally:
        items.sql("set global log_bin_compress = off")
    # The rows that were compressed meanwhile are in the binlog.
    with pytest.raises(IngestStopped, match=r"is not followed.*resnapshot .* --all"):
        items.once()
    add_request(items.lake, items.config(), "resnapshot_all")
    assert items.once().is_consistent and items.differences("w") == []
