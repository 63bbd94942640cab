"""An ingest as it runs: the command, its status and page, other readers, a source that goes away, bad records, and large transactions."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from devkit.databases import PostgresServer
from devkit.paths import ROOT
from fileio.env import default_env
from objcat.errors import IngestStopped, InvalidBatch, SourceAway, SourceUnfit, TooManyBadRecords
from objcat.ingest.ingest_metrics import IngestMetrics, serve_metrics
from objcat.ingest.model import BadRecord, SourceTransaction
from objcat.ingest.requests import add_request
from objcat.ingest.sink import LakeSink
from objcat.ingest.sources import open_source
from tests.ingest.shop import Shop


def command(shop: Shop, *arguments: str) -> subprocess.CompletedProcess[str]:
    import os

    called = [sys.executable, "-m", "objcat.cli", "ingest", arguments[0], str(shop.config_path), *arguments[1:]]
    return subprocess.run(called, cwd=ROOT, env={**os.environ, **shop.environment}, capture_output=True, text=True, check=False)


@pytest.fixture
def items(shop: Shop) -> Shop:
    shop.sql("create table items(id int primary key, n int); insert into items select i, 0 from generate_series(1, 10) i")
    return shop


def test_the_commands(items: Shop, tmp_path: Path) -> None:
    done = command(items, "status", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["position"] is None
    done = command(items, "once", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and lines[-1]["consistent"] is True and lines[-1]["rows"] == 10 and len(lines) > 2
    done = command(items, "status")
    assert done.returncode == 0 and "consistent: yes" in done.stdout and "public.items" in done.stdout and "wal_status" in done.stdout
    done = command(items, "status", "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert done.returncode == 0 and "public.items" in page and "Nothing to do." in page and "<script" not in page
    assert command(items, "status", "--html", str(tmp_path / "page.html")).returncode == 2
    done = command(items, "resnapshot", "public.items", "--json")
    assert done.returncode == 0 and json.loads(done.stdout) == {"request": 0, "kind": "resnapshot", "what": "public.items"}
    assert command(items, "resnapshot").returncode == 2
    assert command(items, "once").returncode == 0
    found = json.loads(command(items, "status", "--json", "--offline").stdout)
    assert found["is_consistent"] is True and found["tables"][0]["rows"] == 10 and found["report"] is None


def test_a_message_of_the_command_has_no_secret(items: Shop) -> None:
    items.config_path.write_text(items.config_path.read_text().replace('"${SHOP}"', '"host=127.0.0.1 port=1 password=${MASK_SECRET}"'))
    done = command(items, "status")
    assert done.returncode == 0 and "away" in done.stdout and "keyed" not in done.stdout + done.stderr
    items.config_path.write_text(items.config_path.read_text() + "\n[rum]\n")
    done = command(items, "once")
    assert done.returncode == 2 and "did you mean 'run'" in done.stderr and "Traceback" not in done.stderr


def test_a_second_process_in_the_lake_is_refused(items: Shop) -> None:
    """Two readers by mistake, with a slot each: the position decides."""
    items.once()
    items.sql("update items set n = 1")

    def opened(config: Any, router: Any, env: Any) -> Any:
        source = open_source(config, router, env)
        head = source.head

        def other_first() -> Any:
            if not other:
                other.append(1)
                stored = items.lake.source_position("shop", shared_log="shop")
                assert stored is not None
                sink = LakeSink(items.lake, config, "shop.ingest_dead", env)
                state = sink.load()
                assert state is not None
                sink.commit([], state, [], {})
            return head()

        source.head = other_first  # type: ignore[method-assign]
        return source

    other: list[int] = []
    with pytest.raises(IngestStopped, match="Another process reads the source"):
        items.once(opener=opened)
    items.once()
    assert items.differences("items") == []


def test_a_server_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    with PostgresServer() as server:
        shop = Shop(server, tmp_path)
        shop.sql("create table items(id int primary key, n int); insert into items values (1, 0)")
        shop.once()
        made = shop.ingest()
        seen = threading.Event()
        made._tell = lambda at: seen.set() if at.changes else None
        runner = threading.Thread(target=made.run)
        runner.start()
        shop.sql("update items set n = 1")
        assert seen.wait(30)
        server.kill()
        server.start()
        shop = Shop.again(shop)
        shop.sql("update items set n = 2")
        for _ in range(600):
            if shop.rows("items")[0]["n"] == 2:
                break
            default_env().sleep(0.05)
        made.stop()
        runner.join(30)
        assert not runner.is_alive() and shop.differences("items") == []
        assert (made.metrics.value("reconnects_total") or 0) >= 1


def test_a_source_that_stays_away_stops_the_run(items: Shop) -> None:
    items.configure(run="away_s = 0.2")
    items.config_path.write_text(items.config_path.read_text().replace('"${SHOP}"', '"host=127.0.0.1 port=1 dbname=x"'))
    made = items.ingest()
    with pytest.raises(SourceAway, match="connecting"):
        made.run()
    assert made.metrics.value("reconnects_total")
    made = items.ingest()
    with pytest.raises(SourceAway, match="connecting"):
        made.once()
    assert not made.metrics.value("reconnects_total"), "one that was never reached is not waited for"


def test_a_server_that_does_not_fit_is_told_how(tmp_path: Path) -> None:
    with PostgresServer(wal_level="replica") as server:
        shop = Shop(server, tmp_path)
        shop.sql("create table items(id int primary key)")
        with pytest.raises(SourceUnfit, match="ALTER SYSTEM SET wal_level"):
            shop.once()


def test_bad_rows_go_to_the_dead_letters(shop: Shop) -> None:
    """A year beyond what a timestamp here can be, in the snapshot and in the stream, and more of them than allowed."""
    shop.sql("create table items(id int primary key, at timestamp)")
    shop.sql("insert into items values (1, '2024-01-01'), (2, '0044-03-15 BC')")
    state = shop.once()
    assert state.dead == 1 and [row["id"] for row in shop.rows("items")] == [1]
    shop.sql("insert into items values (3, '0044-03-15 BC'), (4, '2024-01-02')")
    assert shop.once().dead == 2
    letters = shop.lake.table("shop.ingest_dead").scan().to_arrow().to_pylist()
    assert {letter["table"] for letter in letters} == {"public.items"} and all("0044" in letter["payload"].decode() for letter in letters)
    assert sorted(row["id"] for row in shop.rows("items")) == [1, 4]
    shop.sql("insert into items select i, '0044-03-15 BC' from generate_series(10, 40) i")
    with pytest.raises(TooManyBadRecords, match="records_max"):
        shop.once()
    shop.configure(more="[dead_letters]\nrecords_max = 100\n")
    assert shop.once().dead == 33


def test_a_record_that_is_no_row_goes_to_the_dead_letters(items: Shop) -> None:
    items.once()
    items.sql("insert into items values (11, 1)")

    def opened(config: Any, router: Any, env: Any) -> Any:
        source = open_source(config, router, env)
        stream = source.transactions

        def spoiled(position: Any) -> Any:
            for transaction in stream(position):
                if transaction.count:
                    bad = BadRecord(table="public.items", payload=b"\x00\xff", error="no row")
                    transaction = SourceTransaction(  # noqa: PLW2901 - the one that is handed over
                        position=transaction.position,
                        mark=transaction.mark,
                        changes=[*transaction.changes, bad],
                        count=transaction.count + 1,
                    )
                yield transaction

        source.transactions = spoiled  # type: ignore[method-assign]
        return source

    assert items.once(opener=opened).dead == 1 and items.differences("items") == []
    (letter,) = items.lake.table("shop.ingest_dead").scan().to_arrow().to_pylist()
    assert letter["payload"] == b"\x00\xff" and letter["error"] == "no row" and letter["source"] == "shop"


def test_a_refused_transaction_is_named_and_can_be_left_out(items: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    items.once()
    items.sql("update items set n = 1 where id = 1")
    items.sql("update items set n = 666 where id = 2")
    items.sql("update items set n = 3 where id = 3")
    commit = LakeSink.commit

    def refusing(self: Any, writes: Any, *arguments: Any) -> Any:
        for write in writes:
            if (
                write.action == "upsert"
                and write.rows is not None
                and 666 in write.rows.column("n").to_pylist()
                and "read" not in str(refused)
            ):
                raise InvalidBatch("The number is refused.")
        return commit(self, writes, *arguments)

    refused: list[str] = []
    monkeypatch.setattr(LakeSink, "commit", refusing)
    with pytest.raises(IngestStopped, match="objcat ingest skip") as stopped:
        items.once()
    assert {row["id"]: row["n"] for row in items.rows("items")}[1] == 1
    position = str(stopped.value).split("objcat ingest skip ")[1].split("`")[0].split(" ")[1]
    add_request(items.lake, items.config(), "skip", position)
    items.sql("update items set n = 2 where id = 2")
    state = items.once()
    assert state.dead == 1 and state.skips == [] and items.differences("items") == []


def test_a_restore_lets_all_tables_be_read_again(items: Shop) -> None:
    items.once()
    table = items.lake.table("shop.items")
    slot = table.snapshot.slot
    items.sql("update items set n = 5")
    items.once()
    items.lake.table("shop.items").restore(to=slot)
    assert items.differences("items") != []
    items.once()
    assert items.differences("items") == []


def test_a_transaction_that_is_larger_than_the_memory_for_it(items: Shop) -> None:
    """It waits on disk, is combined in pieces, and is one commit."""
    items.configure(run="transaction_bytes = 200000\nqueue_bytes = 100000")
    items.once()
    before = items.lake.table("shop.items").refresh().slot
    items.transaction(
        "insert into items select i, 0 from generate_series(11, 240000) i",
        "update items set n = n + 1",
        "update items set id = -id where id between 100 and 200",
        "delete from items where id > 200000",
    )
    state = items.once()
    assert state.is_consistent
    table = items.lake.table("shop.items")
    slots = [entry.slot for entry in table.inspect.history(limit=50) if entry.slot > before and entry.metadata.get("source") == "shop"]
    sizes = [table.scan(as_of=slot).to_arrow().num_rows for slot in sorted(slots)]
    assert set(sizes) <= {10, 200_000} and items.differences("items") == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


def test_metrics_are_served(items: Shop) -> None:
    made = items.ingest()
    made.once()
    port, stop = serve_metrics(made.metrics.text, host="127.0.0.1", port=0, env=default_env())
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
    finally:
        stop()
    assert (
        'objcat_ingest_consistent{source="shop"} 1' in text and 'objcat_ingest_snapshot_rows{source="shop",table="public.items"} 10' in text
    )
    assert "# TYPE objcat_ingest_commits_total counter" in text and "objcat_ingest_retained_bytes" in text


def test_metrics_escape_what_they_show() -> None:
    metrics = IngestMetrics('a"b')
    metrics.set("snapshot_rows", 1.5, table="x\ny")
    assert 'objcat_ingest_snapshot_rows{source="a\\"b",table="x\\ny"} 1.5' in metrics.text()


def test_an_idle_source_lets_go_of_its_log(items: Shop) -> None:
    """The slot advances while none of the followed tables changes, and no faster than what is committed."""
    items.configure(run="idle_commit_s = 0")
    items.sql("create table others(id int)")
    items.configure(run="idle_commit_s = 0")
    items.once()
    confirmed = "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s"
    before = items.sql(confirmed, items.slot)
    items.sql("select pg_switch_wal(); select pg_logical_emit_message(true, 'x', 'y')")
    items.once()
    # The server hears of it a moment after the process has ended.
    moved = f"select ({confirmed}) > %s::pg_lsn"
    assert any(items.sql(moved, items.slot, before[0][0]) == [(True,)] or items.sql("select pg_sleep(0.05)") is None for _ in range(200))
