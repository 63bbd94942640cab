"""An ingest beside other processes that work on its tables: `objcat maintain --watch`, and writers of rows of their own."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from devkit.paths import ROOT
from objcat.errors import CommitConflict
from tests.ingest.shop import Shop
from tests.ingest.struck import wait_until

FOREIGN = 1_000_000
"""Keys from here on are those of the other writer."""
COMPACTED = 3


def test_beside_a_compactor_and_another_writer(shop: Shop) -> None:
    """No row of either is lost, and each is there once, while file groups are compacted, cleaned and split below them."""
    shop.sql("create table items(id int primary key, n int); insert into items select i, 0 from generate_series(1, 40) i")
    text = shop.config_path.read_text()
    shop.config_path.write_text(
        text.replace("properties = {}", 'properties = { compact_after_commits = "2", split_above_bytes = "20000", keep_commits = "3" }')
    )
    made = shop.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    wait_until(lambda: made.metrics.value("consistent") == 1, "the table is read")
    command = [sys.executable, "-m", "objcat.cli", "maintain", str(shop.lake_path), "--watch", "--every", "0.05"]
    log = shop.config_path.with_name("maintain.log")
    with log.open("wb") as said:
        maintenance = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
    acknowledged: dict[int, int] = {}
    stop = threading.Event()

    def keep_writing() -> None:
        """Rows of another process, in the table that is followed."""
        mine = shop.lake.table("shop.items")
        number = 0
        while not stop.is_set():
            key = FOREIGN + number % 50
            try:
                mine.upsert([{"id": key, "n": number}])
            except CommitConflict:
                continue
            acknowledged[key] = number
            number += 1

    other = threading.Thread(target=keep_writing)
    other.start()

    def compactions() -> int:
        return sum(1 for entry in shop.lake.table("shop.items").inspect.history(limit=5000) if entry.action == "COMPACTION")

    try:
        turn = 0
        while (compactions() < COMPACTED or len(acknowledged) < 20) and turn < 2000:
            turn += 1
            shop.transaction(f"update items set n = {turn} where id = {1 + turn % 40}", f"insert into items values ({1000 + turn}, {turn})")
            shop.sql("delete from items where id = %s", 1000 + turn - 7)
        stop.set()
        other.join(60)
        maintenance.kill()
        maintenance.wait()
        wait_until(lambda: not source_differences(shop), "the lake comes up to the source")
    finally:
        stop.set()
        maintenance.kill()
        maintenance.wait()
        made.stop()
        runner.join(60)
    assert not runner.is_alive() and compactions() >= COMPACTED, log.read_text()[-2000:]
    foreign = [row for row in shop.rows("items") if row["id"] >= FOREIGN]
    assert {row["id"]: row["n"] for row in foreign} == acknowledged and len(foreign) == len(acknowledged) >= 20
    assert "Traceback" not in log.read_text()


def source_differences(shop: Shop) -> list[str]:
    """What differs between both sides, without the rows of the other writer."""
    there: dict[Any, Any] = {row["id"]: row["n"] for row in shop.source_rows("items")}
    rows = [row for row in shop.rows("items") if row["id"] < FOREIGN]
    here = {row["id"]: row["n"] for row in rows}
    found = [] if len(here) == len(rows) else ["a key is there twice"]
    return found + [
        f"{one}: {there.get(one)} at the source, {here.get(one)} in the lake" for one in there | here if there.get(one) != here.get(one)
    ]
