"""A table of PostgreSQL is read by executors of Spark in one snapshot, while it is written, and the stream goes on from there."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import psycopg2
import pytest

from devkit.environments import listed_artifacts, locked_artifacts
from devkit.paths import ROOT
from devkit.toolchain import java_home, run_environment
from fileio.env import default_env
from objcat.errors import InvalidInput
from objcat.ingest import spark_bootstrap
from objcat.ingest.postgres import exported_snapshot
from objcat.ingest.postgres.exported_snapshot import jdbc_address, parts_of
from objcat.ingest.requests import add_request
from objcat.ingest.routes import Router
from objcat.ingest.sources import open_source
from objcat.ingest.spark_bootstrap import bootstrap_table
from tests.effort import effort
from tests.ingest.shop import Shop

DRIVER = "org.postgresql:postgresql"
ROWS = 20_000
KILLS = effort(0, with_all=12)
"""At random moments, next to one at each step."""
TABLE = """
create type mood as enum ('calm', 'wild');
create table items(
  id bigint primary key, n int, ok boolean, price numeric(12, 3), any_number numeric, x double precision, f real, note text, code char(8),
  name varchar(20), at timestamp, seen timestamptz, day date, t time, how interval, data bytea, doc jsonb, u uuid, m mood, list int[]
);
"""
FILL = """
insert into items select i, i % 100, i % 3 = 0, i / 7.0, i / 3.0, i * 0.1, i / 3.0,
  case when i % 5 = 0 then null else E'a "b"\\n''c'' ' || i end,
  'c' || i % 10, 'n' || i, timestamp '2024-01-01' + i * interval '1 second', timestamptz '2024-03-31 01:00+02' + i * interval '1 minute',
  date '2024-02-28' + i % 400, time '01:02:03' + i * interval '1 millisecond', i * interval '1 hour', decode(md5(i::text), 'hex'),
  jsonb_build_object('i', i), md5(i::text)::uuid, case when i % 2 = 0 then 'calm' else 'wild' end::mood, array[i, null, 3]
from generate_series(1, ROWS) i
"""


def bootstrap_command(shop: Shop, table: str = "public.items") -> tuple[list[str], dict[str, str]]:
    """What reads a table by Spark in a process of its own: the command and its environment."""
    (jar,) = locked_artifacts([one for one in listed_artifacts("kafka") if one.coordinate.startswith(DRIVER)])
    command = [sys.executable, "-m", "tests.ingest.bootstrap_process", str(shop.config_path), str(shop.lake_path), table, str(jar)]
    environment = {**run_environment(), **shop.environment, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    return command, environment


def bootstrap(shop: Shop, table: str = "public.items") -> subprocess.CompletedProcess[str]:
    """Read a table by Spark, in a process of its own."""
    command, environment = bootstrap_command(shop, table)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


def differences(shop: Shop) -> list[str]:
    """What differs, but for columns that the shop reads otherwise than the lake has them, also after chunks."""
    return [one for one in shop.differences("items") if not any(f") {name}: " in one for name in ("any_number", "code", "t", "f"))]


@pytest.mark.timeout(600)
def test_a_table_that_is_written_meanwhile(shop: Shop) -> None:
    shop.sql(TABLE)
    shop.sql(FILL.replace("ROWS", str(ROWS)))
    shop.sql("create table others(id int primary key, n int); insert into others values (1, 1), (2, 2)")
    stop = threading.Event()
    written = []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            # A row leaves one part for another: its new version is on another page.
            shop.transaction(
                f"update items set n = n + 1000, note = 'w{number}' where id in ({number}, {ROWS - number})",
                f"delete from items where id = {ROWS // 2 + number}",
                f"insert into items(id, n) values ({ROWS + number}, {number})",
            )
            written.append(number)
            default_env().sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = bootstrap(shop)
    finally:
        stop.set()
        writer.join()
    assert done.returncode == 0, done.stderr[-4000:]
    assert "in 7 parts" in done.stdout and len(written) > 20
    stored = shop.lake.source_position("shop", shared_log="shop")
    assert stored is not None and stored.state["tables"]["public.items"].get("unread") is None
    before = shop.lake.table("shop.items").scan().count()
    assert ROWS - len(written) <= before <= ROWS + len(written)
    state = shop.once()
    assert state.is_consistent and differences(shop) == shop.differences("others") == []
    assert state.tables["public.items"].rows >= 1


def test_a_table_that_was_read_is_refused(shop: Shop) -> None:
    shop.sql("create table items(id int primary key)")
    shop.once()
    with pytest.raises(InvalidInput, match="was read before"):
        bootstrap_table(shop.config(), shop.lake, None, "public.items")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not followed"):
        bootstrap_table(shop.config(), shop.lake, None, "public.nothing")  # type: ignore[arg-type]


def test_a_table_that_was_read_is_read_again_on_request(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sql("create table items(id int primary key); insert into items values (1)")
    shop.once()
    add_request(shop.lake, shop.config(), "resnapshot", "public.items")
    # What executors read stands for itself: here it is nothing.
    monkeypatch.setattr(spark_bootstrap, "_frame", lambda *_: SimpleNamespace(isEmpty=lambda: True))
    done = bootstrap_table(shop.config(), shop.lake, None, "public.items")  # type: ignore[arg-type]
    assert done.rows == 0 and shop.lake.table("shop.items").scan().count() == 0
    stored = shop.lake.source_position("shop", shared_log="shop")
    assert stored is not None and stored.state["requests"] == 0 and stored.state["tables"]["public.items"].get("unread") is None
    shop.once()
    assert shop.lake.table("shop.items").scan().count() == 0, "the request was taken again"


@pytest.mark.timeout(600)
def test_a_value_that_cannot_be_decoded_writes_nothing(shop: Shop) -> None:
    shop.sql("create table items(id int primary key, at timestamp); insert into items values (1, '0044-03-15 BC')")
    done = bootstrap(shop)
    assert done.returncode != 0 and "which cannot be decoded" in done.stderr
    stored = shop.lake.source_position("shop", shared_log="shop")
    assert stored is not None and stored.state["tables"]["public.items"].get("unread") is not None
    assert shop.once().dead == 1


@pytest.mark.parametrize(("pages", "parts_max", "count"), [(0, 10, 1), (1023, 10, 1), (2048, 10, 2), (100_000, 10, 10), (10**9, 200, 200)])
def test_parts_cover_every_page_once(pages: int, parts_max: int, count: int) -> None:
    parts = parts_of(pages, parts_max=parts_max)
    assert len(parts) == count
    bounds = [int(one.split("'(")[1].split(",")[0]) for one in parts[1:]]
    assert bounds == sorted(set(bounds)) and all(0 < bound < pages for bound in bounds)
    for one, after in itertools.pairwise(parts):
        end, start = one.rsplit("'(", 1)[1].split(",")[0], after.split("'(")[1].split(",")[0]
        assert end == start, "no page is between two parts, or in both"


def test_an_address_of_jdbc_has_no_secret() -> None:
    url, properties = jdbc_address(
        {"host": "db", "port": "5433", "dbname": "a b?x", "user": "me", "password": "hunter2", "sslmode": "require"}
    )
    assert url == "jdbc:postgresql://db:5433/a%20b%3Fx" and properties == {"user": "me", "password": "hunter2", "sslmode": "require"}


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_sessions_that_join_a_snapshot_read_every_row_once(shop: Shop, monkeypatch: pytest.MonkeyPatch, is_partitioned: bool) -> None:
    """What executors do, by connections of this process: the table is written between the snapshot and the reads."""
    monkeypatch.setattr(exported_snapshot, "PAGES_MIN", 1)
    shop.sql(f"create table items(id int primary key, note text, ok boolean, code char(4)) {'partition by range (id)' * is_partitioned}")
    if is_partitioned:
        shop.sql(
            "create table low partition of items for values from (0) to (700); "
            "create table high partition of items for values from (700) to (9999)"
        )
    shop.sql("insert into items select i, repeat('x', 200) || i, i % 2 = 0, 'a' from generate_series(1, 1000) i")
    source = open_source(shop.config(), Router(shop.config()), default_env())
    try:
        (table,) = [one for one in source.describe_tables() if one.name == "public.items"]
        source.begin(["public.items"])
        with source.export_snapshot(table, parts_max=5) as exported:  # type: ignore[attr-defined]
            assert exported is not None and len(exported.parts) == 5
            shop.sql(
                "update items set note = 'new' where id % 3 = 0; delete from items where id < 50; insert into items values (2000, 'new')"
            )
            found = []
            for part in exported.parts:
                with psycopg2.connect(shop.source_url) as connection, connection.cursor() as cursor:
                    cursor.execute(exported.properties["sessionInitStatement"])
                    cursor.execute(f"select id, note, ok, code from {exported.query} where {part}")
                    found += cursor.fetchall()
                connection.close()
    finally:
        source.close()
    expected = [(str(i), "x" * 200 + str(i), "t" if i % 2 == 0 else "f", "a   ") for i in range(1, 1001)]
    assert sorted(found, key=lambda row: int(row[0])) == expected


def progress_of(shop: Shop) -> str:
    """How far a bootstrap of the table is, by what others see of it."""
    stored = shop.lake.source_position("shop", shared_log="shop")
    if stored is None:
        return "nothing"
    if stored.state["tables"]["public.items"].get("unread") is None:
        return "committed"
    reads = shop.sql("select count(*) from pg_stat_activity where datname = current_database() and application_name like '%%JDBC%%'")
    return "reading" if reads != [(0,)] else "begun"


STEPS = ("nothing", "begun", "reading", "committed")


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed(shop: Shop) -> None:
    """At each step, and then at random moments after it; meanwhile the table is written. A new call reads it, or finds that it was read."""
    shop.sql(TABLE)
    shop.sql(FILL.replace("ROWS", str(ROWS)))
    drawn = random.Random(7)
    met: list[str] = []
    for number, (step, pause_s) in enumerate(
        [("begun", 0.0), ("reading", 0.0), *(("reading", drawn.uniform(0, 2)) for _ in range(KILLS)), ("committed", 0.0)]
    ):
        command, environment = bootstrap_command(shop)
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while process.poll() is None and STEPS.index(progress_of(shop)) < STEPS.index(step):
                default_env().sleep(0.02)
            default_env().sleep(pause_s)
        finally:
            met.append(progress_of(shop))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shop.sql(f"update items set n = -{number + 1} where id % 50 = {number}; delete from items where id = {1000 + number}")
        shop.sql(f"insert into items(id, n) values ({ROWS + number + 1}, {number})")
    print(f"killed at {met}")
    assert {"begun", "reading", "committed"} <= set(met), met
    again = bootstrap(shop)
    assert again.returncode != 0 and "was read before" in again.stderr
    state = shop.once()
    assert state.is_consistent and differences(shop) == []
